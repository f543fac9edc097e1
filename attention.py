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
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PAGE = 256                  # tokens of a page: torch's kernel takes multiples of 256 alone


class Sizes(Protocol):
    """What is needed of a model.ModelConfig, which imports this module."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


class Pages:
    """What one token a row sees in a PagedCache: the arguments of torch.nn.attention.varlen.varlen_attn."""

    def __init__(
        self,
        kernel: Callable,
        table: Tensor,                  # (B, n) int32: the pages of each row
        n_seen: Tensor,                 # (B,): keys that it sees
    ):
        self.kernel = kernel
        self.table = table
        self.n_seen = n_seen.int()
        self.n_slots = table.shape[1] * PAGE
        # To the kernel rows are pieces of one long text: a query each, and all the slots of its pages.
        self.q_starts = torch.arange(len(table) + 1, dtype=torch.int32, device=table.device)
        self.k_starts = self.q_starts * self.n_slots

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Outputs of queries (B, H, 1, D) on keys and values (P, PAGE, K, D)."""
        y = self.kernel(
            q.squeeze(2),
            keys,
            values,
            self.q_starts,
            self.k_starts,
            1,                          # queries of a row, at most
            self.n_slots,               # keys of a row, at most
            enable_gqa=True,
            seqused_k=self.n_seen,
            block_table=self.table,
            num_splits=1)               # several leave rows unwritten: pytorch issue 194167
        return y.reshape(q.shape)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Pages | None = None) -> Tensor:
    """Outputs (B, H, T, D) of queries q (B, H, T, D) on keys and values k, v (B, K, S, D). mask, what a query
    sees: None = all keys up to its own, and all of them if it is a row's only one; a tensor (B, 1, T, S),
    true or 0 where it sees a key; Pages, where k and v are (P, PAGE, K, D)."""
    if isinstance(mask, Pages):
        return mask.attend(q, k, v)
    B, H, T, D = q.shape
    K = k.shape[1]
    if T == 1:
        # Decoding: one kv head's queries stand as its tokens: no repeated keys, no slow masked kernel
        tokens = q.view(B, K, -1, D)                                    # (B, K, H/K, D)
        y = F.scaled_dot_product_attention(tokens, k, v, attn_mask=mask)
        return y.reshape(B, H, 1, D)
    slow_if_unequal = mask is not None or q.dtype == torch.float32
    if q.is_cuda and slow_if_unequal:           # no fast kernel takes fewer kv heads there: repeat them
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a boolean mask allows a key, else -inf: else the kernels would do this in every layer."""
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill_(~mask, -torch.inf)


# --- caches -------------------------------------------------------------------------------------------------

def empty_layers(cfg: Sizes, shape: tuple[int, ...], dtype: torch.dtype,
                 device: torch.device | str) -> list[Tensor]:
    """A tensor of zeros for each layer."""
    layers = []
    for _ in range(cfg.num_hidden_layers):
        layers.append(torch.zeros(shape, dtype=dtype, device=device))
    return layers


class KVCache:
    """Keys and values (B, K, S, D) of each layer, of which the first `length` slots are seen."""

    def __init__(self, cfg: Sizes, n_rows: int, n_slots: int, dtype: torch.dtype, device: torch.device | str):
        shape = (n_rows, cfg.num_key_value_heads, n_slots, cfg.head_dim)
        self.keys = empty_layers(cfg, shape, dtype, device)
        self.values = empty_layers(cfg, shape, dtype, device)
        self.length = 0

    def select(self, rows: Tensor) -> None:
        """Keep the given rows (n,); layer by layer, as two whole caches may not fit."""
        for all_layers in (self.keys, self.values):
            for layer, x in enumerate(all_layers):
                all_layers[layer] = x.index_select(0, rows)

    def put(self, rows: Tensor, other: "KVCache", source: Tensor) -> None:
        """Overwrite the given rows (n,) with the rows `source` (n,) of another cache, and 0 behind them: a
        masked key's value is multiplied by 0, and the row's last tenant may have left NaN."""
        T = other.length
        for x, y in zip(self.keys + self.values, other.keys + other.values):
            x[rows, :, :T] = y[source]
            x[rows, :, T:] = 0

    def extend(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for one token a row, at position (B,), `length` at most. Returns its slots (B K,) in the
        flattened (B K S, D) keys, and the mask of what it sees: itself and all before it."""
        x = self.keys[0]
        B, K, S, _ = x.shape
        self.length = min(self.length + 1, S)
        first = torch.arange(B * K, device=x.device) * S                # slot of each head's first token
        slots = first + position.repeat_interleave(K)
        seen = torch.arange(self.length, device=x.device) <= position[:, None]          # (B, length)
        return slots, additive(seen[:, None, None], x.dtype)

    def append(self, layer: int, k: Tensor, v: Tensor, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write k, v (B, K, T, D) from slot 0 on, or one token a row into its slot; returns what is seen."""
        keys, values = self.keys[layer], self.values[layer]
        T, D = k.shape[2:]
        if slots is None:
            self.length = T
            keys[:, :, :T] = k
            values[:, :, :T] = v
        else:
            keys.view(-1, D).index_copy_(0, slots, k.reshape(-1, D))
            values.view(-1, D).index_copy_(0, slots, v.reshape(-1, D))
        return keys[:, :, :self.length], values[:, :, :self.length]


class PagedCache:
    """Keys and values (P, PAGE, K, D) of each layer; `table` (B, n) int32 lists each row's own pages."""

    def __init__(self, cfg: Sizes, n_rows: int, n_slots: int, dtype: torch.dtype,
                 device: torch.device | str, kernel: Callable):
        n = -(-n_slots // PAGE)                                         # pages of a row, rounded up
        shape = (n_rows * n, PAGE, cfg.num_key_value_heads, cfg.head_dim)
        self.keys = empty_layers(cfg, shape, dtype, device)
        self.values = empty_layers(cfg, shape, dtype, device)
        pages = torch.arange(n_rows * n, dtype=torch.int32, device=device)
        self.table = pages.view(n_rows, n)
        self.kernel = kernel

    def select(self, rows: Tensor) -> None:
        """Keep the given rows (n,). No page moves."""
        self.table = self.table[rows]

    def put(self, rows: Tensor, other: KVCache, source: Tensor) -> None:
        """As KVCache.put."""
        T = other.length
        first = self.table[rows, :, None] * PAGE                        # (n, pages, 1): slot of each page
        slots = first + torch.arange(PAGE, device=rows.device)
        slots = slots.flatten(1)                                        # (n, S), in the order of positions
        for x, y in zip(self.keys + self.values, other.keys + other.values):
            flat = x.flatten(0, 1)                                      # (P PAGE, K, D)
            flat[slots[:, :T]] = y[source].transpose(1, 2)
            flat[slots[:, T:]] = 0

    def extend(self, position: Tensor) -> tuple[Tensor, Pages]:
        """As KVCache.extend: slots (B,) in the flattened (P PAGE, K, D) keys, and what the token sees."""
        number = position // PAGE                                       # (B,) of its page, within the row
        page = self.table.gather(1, number[:, None]).squeeze(1)
        slots = page * PAGE + position % PAGE
        return slots, Pages(self.kernel, self.table, position + 1)

    def append(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v (B, K, 1, D), one token a row, into their slots; returns all keys and values."""
        keys, values = self.keys[layer], self.values[layer]
        keys.flatten(0, 1).index_copy_(0, slots, k.squeeze(2))
        values.flatten(0, 1).index_copy_(0, slots, v.squeeze(2))
        return keys, values


Cache = KVCache | PagedCache


# --- the kernel for pages -----------------------------------------------------------------------------------

def check_kernel(kernel: Callable, cfg: Sizes, dtype: torch.dtype, device: torch.device) -> None:
    """Raise RuntimeError where a kernel for pages differs from SDPA on three rows of different lengths."""
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen).to(device, dtype)

    q = random(3, cfg.num_attention_heads, 1, cfg.head_dim)
    shape = 5, PAGE, cfg.num_key_value_heads, cfg.head_dim              # page 0 is nobody's
    keys = random(*shape)
    values = random(*shape)
    table = torch.tensor([[2, 0], [4, 0], [3, 1]], dtype=torch.int32, device=device)
    lengths = (1, PAGE - 3, PAGE + 5)           # of one token, within a page, and over two pages
    got = attend(q, keys, values, Pages(kernel, table, torch.tensor(lengths, device=device)))
    for i, n in enumerate(lengths):
        pages = table[i].long()
        k = keys[pages].flatten(0, 1)[None, :n].transpose(1, 2)         # (1, K, n, D)
        v = values[pages].flatten(0, 1)[None, :n].transpose(1, 2)
        wanted = attend(q[i:i + 1], k, v)
        off = (got[i:i + 1] - wanted).abs().max().item()
        if not off < 0.05:                      # NaN is not below anything
            raise RuntimeError(f"it is off by {off:.2g} in a row of {n} tokens")


@cache
def paged_kernel(cfg: Sizes, dtype: torch.dtype, device: torch.device) -> Callable | None:
    """torch's attention over pages for a model's heads, where it works; None, noted once on stderr, where it
    does not."""
    if device.type != "cuda":
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
        check_kernel(varlen_attn, cfg, dtype, device)
    except (ImportError, TypeError, ValueError, RuntimeError) as e:
        print(f"note: no paged attention here, decoding with a dense cache: {e}", file=sys.stderr, flush=True)
        return None
    return varlen_attn
