"""What all attention goes through: one function, what its queries see, and the two caches of decoding.

Shapes: B rows, T tokens, S cache slots, H heads, K kv heads, D head size, P pages. A token lies in the slot
of its position:

    KVCache      (B, K, S, D); a mask says which slots a row sees
    PagedCache   (P, PAGE, K, D), of which a table (B, n) lists each row's pages: a row reads its own tokens
                 only, without any mask (PagedAttention, 2309.06180). For CUDA cards whose torch has a kernel
"""
import sys
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

PAGE = 256                  # tokens of a page: torch's kernel takes multiples of 256 alone


class Pages:
    """What one token a row sees in a PagedCache: the arguments of torch.nn.attention.varlen.varlen_attn."""

    def __init__(self, kernel: Callable, table: torch.Tensor, n_seen: torch.Tensor):
        """table (B, n) int32: pages of each row; n_seen (B,): its keys."""
        self.kernel = kernel
        self.table = table
        self.n_seen = n_seen.int()
        self.n_slots = table.shape[1] * PAGE
        self.q_starts = torch.arange(len(table) + 1, dtype=torch.int32, device=table.device)
        self.k_starts = self.q_starts * self.n_slots

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Outputs of queries (B, H, 1, D) on keys and values (P, PAGE, K, D)."""
        # One split: with several, torch 2.13 leaves rows unwritten (pytorch issue 194167, torchtitan 3235)
        y = self.kernel(q.squeeze(2), keys, values, self.q_starts, self.k_starts, 1, self.n_slots,
                        enable_gqa=True, seqused_k=self.n_seen, block_table=self.table, num_splits=1)
        return y.reshape(q.shape)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
           mask: torch.Tensor | Pages | None = None) -> torch.Tensor:
    """Outputs (B, H, T, D) of queries q (B, H, T, D) on keys and values k, v (B, K, S, D). mask, what a query
    sees: None = all keys up to its own, and all of them if it is a row's only one; a tensor (B, 1, T, S),
    true or 0 where it sees a key; Pages, where k and v are (P, PAGE, K, D)."""
    if isinstance(mask, Pages):
        return mask.attend(q, k, v)
    B, H, T, D = q.shape
    K = k.shape[1]
    if T == 1:
        # Decoding: one kv head's queries stand as its tokens: no repeated keys, no slow masked kernel
        y = F.scaled_dot_product_attention(q.view(B, K, -1, D), k, v, attn_mask=mask)
        return y.reshape(B, H, 1, D)
    if q.is_cuda and (mask is not None or q.dtype == torch.float32):    # there unequal heads would be slow
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where a boolean mask allows a key, else -inf: else the kernels would do this in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


# --- caches -------------------------------------------------------------------------------------------------

def empty_layers(cfg, shape: tuple[int, ...], dtype: torch.dtype, device) -> tuple[list, list]:
    """Zeroed keys and values of this shape for each layer of a ModelConfig."""
    tensors = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * cfg.num_hidden_layers)]
    return tensors[::2], tensors[1::2]


class KVCache:
    """Keys and values (B, K, S, D) of each layer, of which the first `length` slots are seen."""

    def __init__(self, cfg, n_rows: int, n_slots: int, dtype: torch.dtype, device):
        """Of a ModelConfig, for n_rows rows of up to n_slots tokens."""
        shape = (n_rows, cfg.num_key_value_heads, n_slots, cfg.head_dim)
        self.keys, self.values = empty_layers(cfg, shape, dtype, device)
        self.length = 0

    def select(self, rows: torch.Tensor) -> None:
        """Keep the given rows (n,); layer by layer, as two whole caches may not fit."""
        for all_layers in (self.keys, self.values):
            for i, x in enumerate(all_layers):
                all_layers[i] = x.index_select(0, rows)

    def put(self, rows: torch.Tensor, other: "KVCache", source: torch.Tensor) -> None:
        """Overwrite the given rows (n,) with the rows `source` (n,) of another cache, and 0 behind them: a
        masked key's value is multiplied by 0, and the row's last tenant may have left NaN."""
        for x, y in zip(self.keys + self.values, other.keys + other.values):
            x[rows, :, :other.length] = y[source]
            x[rows, :, other.length:] = 0

    def extend(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Make room for one token a row, at position (B,), `length` at most. Returns its slots (B K,) in the
        flattened (B K S, D) keys, and the mask of what it sees: itself and all before it."""
        x = self.keys[0]
        B, K, S, _ = x.shape
        self.length = min(self.length + 1, S)
        slots = torch.arange(B * K, device=x.device) * S + position.repeat_interleave(K)
        seen = torch.arange(self.length, device=x.device) <= position[:, None]
        return slots, additive(seen[:, None, None], x.dtype)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor | None):
        """Write k, v (B, K, T, D) from slot 0 on, or one token a row into its slot; returns what is seen."""
        T, D = k.shape[2:]
        for x, whole in ((k, self.keys[layer]), (v, self.values[layer])):
            if slots is None:
                self.length = T
                whole[:, :, :T] = x
            else:
                whole.view(-1, D).index_copy_(0, slots, x.reshape(-1, D))
        return self.keys[layer][:, :, :self.length], self.values[layer][:, :, :self.length]


class PagedCache:
    """Keys and values (P, PAGE, K, D) of each layer; `table` (B, n) int32 lists each row's own pages."""

    def __init__(self, cfg, n_rows: int, n_slots: int, dtype: torch.dtype, device, kernel: Callable):
        n = -(-n_slots // PAGE)
        shape = (n_rows * n, PAGE, cfg.num_key_value_heads, cfg.head_dim)
        self.keys, self.values = empty_layers(cfg, shape, dtype, device)
        self.table = torch.arange(n_rows * n, dtype=torch.int32, device=device).view(n_rows, n)
        self.kernel = kernel

    def select(self, rows: torch.Tensor) -> None:
        """Keep the given rows (n,). No page moves."""
        self.table = self.table[rows]

    def put(self, rows: torch.Tensor, other: KVCache, source: torch.Tensor) -> None:
        """As KVCache.put."""
        slots = self.table[rows, :, None] * PAGE + torch.arange(PAGE, device=rows.device)
        slots = slots.flatten(1)
        told, rest = slots[:, :other.length], slots[:, other.length:]                   # (n, T), (n, S - T)
        for x, y in zip(self.keys + self.values, other.keys + other.values):
            x.flatten(0, 1)[told] = y[source].transpose(1, 2)
            x.flatten(0, 1)[rest] = 0

    def extend(self, position: torch.Tensor) -> tuple[torch.Tensor, Pages]:
        """As KVCache.extend: slots (B,) in the flattened (P PAGE, K, D) keys, and what the token sees."""
        page = self.table.gather(1, (position // PAGE)[:, None]).squeeze(1)
        return page * PAGE + position % PAGE, Pages(self.kernel, self.table, position + 1)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor):
        """Write k, v (B, K, 1, D), one token a row, into their slots; returns all keys and values."""
        for x, whole in ((k, self.keys[layer]), (v, self.values[layer])):
            whole.flatten(0, 1).index_copy_(0, slots, x.squeeze(2))
        return self.keys[layer], self.values[layer]


# --- the kernel for pages -----------------------------------------------------------------------------------

def check_kernel(kernel: Callable, H: int, K: int, D: int, dtype: torch.dtype, device) -> None:
    """Raise RuntimeError where a kernel for pages differs from SDPA on three rows of different lengths."""
    gen = torch.Generator().manual_seed(0)
    q, keys, values = [torch.randn(shape, generator=gen).to(device, dtype)
                       for shape in ((3, H, 1, D), (5, PAGE, K, D), (5, PAGE, K, D))]
    table = torch.tensor([[2, 0], [4, 0], [3, 1]], dtype=torch.int32, device=device)
    lengths = (1, PAGE - 3, PAGE + 5)
    got = attend(q, keys, values, Pages(kernel, table, torch.tensor(lengths, device=device)))
    for i, n in enumerate(lengths):
        k, v = [x[table[i].long()].flatten(0, 1)[None, :n].transpose(1, 2) for x in (keys, values)]
        off = (got[i:i + 1] - attend(q[i:i + 1], k, v)).abs().max().item()
        if not off < 0.05:
            raise RuntimeError(f"it is off by {off:.2g} in a row of {n} tokens")


@cache
def paged_kernel(H: int, K: int, D: int, dtype: torch.dtype, device: torch.device) -> Callable | None:
    """torch's attention over pages for such heads, where it works; None, noted once on stderr, where not."""
    if device.type != "cuda":
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
        check_kernel(varlen_attn, H, K, D, dtype, device)
    except (ImportError, TypeError, ValueError, RuntimeError) as e:
        print(f"note: no paged attention here, decoding with a dense cache: {e}", file=sys.stderr, flush=True)
        return None
    return varlen_attn
