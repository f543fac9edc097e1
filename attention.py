"""What all attention goes through: one function, what its queries see, and the caches of decoding.

Shapes: B rows, T tokens, S cache slots, H heads, K kv heads, D head size, P pages.

    KVCache      every row has S slots of its own (B, K, S, D); a mask says which of them it sees
    PagedCache   all rows share a pool of pages (P, PAGE, K, D), and a table (B, n) lists each row's: attempts
                 at a prompt share its full pages, and a row reads its own tokens only, without any mask
                 (PagedAttention, 2309.06180). For CUDA cards whose torch has a kernel for it.
"""
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from infra.gpu import send

PAGE = 256                  # tokens of a page: torch's kernel takes multiples of 256 alone


@dataclass(frozen=True)
class Pages:
    """What one token a row sees in a PagedCache: arguments of torch.nn.attention.varlen.varlen_attn."""
    kernel: Callable                    # varlen_attn, or what computes the same
    table: torch.Tensor                 # (B, n) int32, pages of each row in the order of their tokens
    n_seen: torch.Tensor                # (B,) int32, keys of each row
    q_starts: torch.Tensor              # (B + 1,) int32, 0, 1, 2, ...: every row has one query
    k_starts: torch.Tensor              # (B + 1,) int32, the same in slots of the table
    window: int = 0                     # a query sees so many of the latest keys, itself too; 0 = all

    @classmethod
    def of(cls, kernel: Callable, table: torch.Tensor, n_seen: torch.Tensor, window: int = 0) -> "Pages":
        """For rows with these pages that see so many keys (B,)."""
        starts = torch.arange(len(table) + 1, dtype=torch.int32, device=table.device)
        return cls(kernel, table, n_seen.int(), starts, starts * (table.shape[1] * PAGE), window)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Outputs of queries (B, H, 1, D) on a pool's keys and values (P, PAGE, K, D)."""
        B, H, _, D = q.shape
        n_slots = self.table.shape[1] * PAGE
        window = (self.window - 1, 0) if self.window else (-1, -1)
        # One split: with several, torch 2.13 leaves rows unwritten (pytorch issue 194167, torchtitan 3235)
        y = self.kernel(q.reshape(B, H, D), keys, values, self.q_starts, self.k_starts, 1, n_slots,
                        window_size=window, enable_gqa=True, seqused_k=self.n_seen, block_table=self.table,
                        num_splits=1)
        return y.reshape(B, H, 1, D)


def has_flash(x: torch.Tensor) -> bool:
    """Whether a CUDA tensor's card and type have flash attention, the one fast kernel for unequal heads."""
    return x.dtype != torch.float32 and torch.cuda.get_device_capability(x.device) >= (8, 0)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
           mask: torch.Tensor | Pages | None = None) -> torch.Tensor:
    """Outputs (B, H, T, D) of queries q (B, H, T, D) on keys and values k, v (B, K, S, D).

    mask, what a query sees: None = all keys up to its own, and all of them if it is a row's only one; a
    tensor (B, 1, T, S), true or 0 where it sees a key; Pages, where k and v are a pool (P, PAGE, K, D).
    """
    if isinstance(mask, Pages):
        return mask.attend(q, k, v)
    B, H, T, D = q.shape
    K = k.shape[1]
    if T == 1:
        # Decoding: one kv head's queries stand as its tokens: no repeated keys, no slow masked kernel
        y = F.scaled_dot_product_attention(q.view(B, K, -1, D), k, v, attn_mask=mask)
        return y.reshape(B, H, 1, D)
    if q.is_cuda and (mask is not None or not has_flash(q)):    # else unequal heads take CUDA's slow kernel
        k = k.repeat_interleave(H // K, 1)
        v = v.repeat_interleave(H // K, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)


# --- masks of tensors ---------------------------------------------------------------------------------------

def window_mask(mask: torch.Tensor | None, positions: torch.Tensor, n_slots: int,
                window: int) -> torch.Tensor:
    """The mask (B, 1, T, S), None = causal, less the keys `window` or more positions before their query.

    Without a cache the keys are the queries; in a cache a token lies in the slot of its position.
    """
    T = positions.shape[1]
    key = positions if n_slots == T else torch.arange(n_slots, device=positions.device)[None]
    far = key[:, None] <= positions[:, :, None] - window                                # (B, T, S)
    causal = torch.ones(T, n_slots, dtype=torch.bool, device=positions.device).tril(n_slots - T)
    return (causal if mask is None else mask) & ~far[:, None]


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """0 where a boolean mask allows a key, else -inf: else the kernels would do this in every layer."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def masks(mask: torch.Tensor | None, positions: torch.Tensor, cache, window: int, dtype: torch.dtype):
    """What queries at positions (B, T) see in layers without a sliding window and in those with one.

    mask is boolean (B, 1, T, S), None = causal; window is 0 where no layer has one. Returns two masks that
    `attend` takes.
    """
    if isinstance(cache, PagedCache):
        return cache.seen(positions[:, 0]), cache.seen(positions[:, 0], window)
    n_slots = positions.shape[1] if cache is None else cache.length
    whole = near = additive(mask, dtype)
    if window and n_slots > window:
        near = additive(window_mask(mask, positions, n_slots, window), dtype)
    return whole, near


# --- caches -------------------------------------------------------------------------------------------------

def empty_layers(cfg, shape: tuple[int, ...], dtype: torch.dtype, device) -> tuple[list, list]:
    """Zeroed keys and values of this shape for each layer of a ModelConfig."""
    tensors = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * cfg.num_hidden_layers)]
    return tensors[::2], tensors[1::2]


class KVCache:
    """Keys and values (B, K, S, D) of each layer; a token's slot is its position; `length` slots are seen."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor], length: int = 0):
        self.keys = keys
        self.values = values
        self.length = length

    @classmethod
    def empty(cls, cfg, n_rows: int, n_slots: int, dtype: torch.dtype, device) -> "KVCache":
        """Zeroed cache of a ModelConfig for n_rows rows of up to n_slots tokens."""
        shape = (n_rows, cfg.num_key_value_heads, n_slots, cfg.head_dim)
        return cls(*empty_layers(cfg, shape, dtype, device))

    def select(self, rows: torch.Tensor) -> None:
        """Keep the given rows (n,); layer by layer, as two whole caches may not fit."""
        for all_layers in (self.keys, self.values):
            for i, x in enumerate(all_layers):
                all_layers[i] = x.index_select(0, rows)

    @property
    def n_slots(self) -> int:
        """Slots of each row."""
        return self.keys[0].shape[2]

    def fitting(self, lengths: list[int], n: int, n_new: int) -> int:
        """How many prompts find room, see PagedCache: here every row has its slots."""
        return len(lengths)

    def put(self, rows: torch.Tensor, other: "KVCache", source: torch.Tensor, length: torch.Tensor) -> None:
        """Overwrite the beginning of the given rows (n,) with the rows `source` (n,) of another cache."""
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for x, y in zip(mine, theirs):
                x[rows, :, :y.shape[2]] = y[source]

    def slots(self, position: torch.Tensor) -> torch.Tensor:
        """Where in the flattened (B K S, D) keys one token of each row at position (B,) belongs: (B K,)."""
        B, K, S, _ = self.keys[0].shape
        head = torch.arange(B * K, device=position.device)
        return head * S + position.repeat_interleave(K)

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor | None):
        """Write k, v (B, K, T, D) from slot 0 on, or one token a row into its slot; returns what is seen."""
        D = k.shape[3]
        seen = []
        for x, whole in ((k, self.keys[layer]), (v, self.values[layer])):
            if slots is None:
                whole[:, :, :x.shape[2]] = x
            else:
                whole.view(-1, D).index_copy_(0, slots, x.reshape(-1, D))
            seen.append(whole[:, :, :self.length])
        return seen


def pages_of(n_prompt: int, n_new: int) -> tuple[int, int]:
    """Full pages of a prompt, which its attempts share, and the further ones that each answer may need."""
    shared = n_prompt // PAGE
    return shared, -(-(n_prompt + n_new) // PAGE) - shared


def pool_pages(rollout_batch: int, n: int, longest_prompt: int, n_new: int) -> int:
    """Pages that rollout_batch rows, n answers of n_new tokens to each prompt, take at most at any time.

    A prompt's full pages count twice, as its last attempt may outlive the others, whose places a new prompt
    has taken by then; prompts that find no pages wait. The most pages go to the longest prompt, or to one
    that ends a token before the longest's last full page does, as each answer copies the page that it
    goes on with. Page 0 holds nobody's tokens.
    """
    most = 0
    for length in (longest_prompt, max(0, longest_prompt // PAGE * PAGE - 1)):
        shared, own = pages_of(length, n_new)
        most = max(most, min(n, 2) * shared + n * own)
    return 1 + max(1, rollout_batch // n) * most


class PagedCache:
    """Keys and values (P, PAGE, K, D) of each layer in one pool; `table` (B, n) int32 lists each row's pages.

    A row gets all pages that its answer may need when it is admitted and gives them back when it is released;
    from then until it is admitted again it writes to page 0, as its table says. `pages` is the table on the
    CPU, n_users counts the rows that hold each page.
    """

    def __init__(self, cfg, n_rows: int, n_slots: int, n_pages: int, dtype: torch.dtype, device,
                 kernel: Callable):
        shape = (n_pages, PAGE, cfg.num_key_value_heads, cfg.head_dim)
        self.keys, self.values = empty_layers(cfg, shape, dtype, device)
        self.table = torch.zeros(n_rows, -(-n_slots // PAGE), dtype=torch.int32, device=device)
        self.kernel = kernel
        self.pages = [[] for _ in range(n_rows)]
        self.n_users = [0] * n_pages
        self.free = list(range(n_pages - 1, 0, -1))

    def fitting(self, lengths: list[int], n: int, n_new: int) -> int:
        """How many prompts of these lengths, in turn, find pages for n answers of n_new tokens each."""
        n_free = len(self.free)
        for i, length in enumerate(lengths):
            shared, own = pages_of(length, n_new)
            n_free -= shared + n * own
            if n_free < 0:
                return i
        return len(lengths)

    def admit(self, rows: list[int], lengths: list[int], n_new: int) -> None:
        """Give rows their pages: equally many attempts, side by side, at each prompt of these lengths."""
        n = len(rows) // len(lengths)
        for i, length in enumerate(lengths):
            shared, own = pages_of(length, n_new)
            common = [self.free.pop() for _ in range(shared)]
            for row in rows[i * n:(i + 1) * n]:
                assert not self.pages[row], f"row {row} still holds pages"
                self.pages[row] = common + [self.free.pop() for _ in range(own)]
                for page in self.pages[row]:
                    self.n_users[page] += 1
        width = self.table.shape[1]
        table = [self.pages[row] + [0] * (width - len(self.pages[row])) for row in rows]
        device = self.table.device
        self.table[send(torch.tensor(rows), device)] = send(torch.tensor(table, dtype=torch.int32), device)

    def release(self, idle: torch.Tensor) -> None:
        """Take back the pages of rows (B,) bool that have ended; the last row of a prompt frees its pages."""
        for row in idle.nonzero().flatten().tolist():
            for page in self.pages[row]:
                self.n_users[page] -= 1
                if not self.n_users[page]:
                    self.free.append(page)
            self.pages[row] = []
        self.table.masked_fill_(idle[:, None], 0)

    def select(self, rows: torch.Tensor) -> None:
        """Keep the given rows (n,); the others have been released. No page moves."""
        self.pages = [self.pages[row] for row in rows.tolist()]
        self.table = self.table[rows]

    def slots(self, position: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Where in the flat (P PAGE, K, D) keys tokens of rows (n,), None = all, at position (n,) lie."""
        table = self.table if rows is None else self.table[rows]
        page = table.gather(1, (position // PAGE)[:, None]).squeeze(1)
        return page.long() * PAGE + position % PAGE

    def put(self, rows: torch.Tensor, other: KVCache, source: torch.Tensor, length: torch.Tensor) -> None:
        """Write the prompts `source` (n,), of length (n,) tokens, of another cache into admitted rows (n,).

        Attempts at a prompt lie side by side: the first writes all of it, the others what they do not share.
        """
        t = torch.arange(other.keys[0].shape[2], device=rows.device)
        is_first = source.diff(prepend=source[:1] - 1) != 0
        is_own = t >= (length // PAGE * PAGE)[:, None]                                  # (n, T)
        i, t = ((t < length[:, None]) & (is_own | is_first[:, None])).nonzero(as_tuple=True)
        slots = self.slots(t, rows[i])
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for x, y in zip(mine, theirs):
                x.flatten(0, 1)[slots] = y[source[i], :, t]

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor):
        """Write k, v (B, K, 1, D), one token a row, into their slots; returns the pool's keys and values."""
        for x, whole in ((k, self.keys[layer]), (v, self.values[layer])):
            whole.flatten(0, 1).index_copy_(0, slots, x.squeeze(2))
        return self.keys[layer], self.values[layer]

    def seen(self, position: torch.Tensor, window: int = 0) -> Pages:
        """What one token a row, at position (B,), sees: itself and all before it, or the latest `window`."""
        return Pages.of(self.kernel, self.table, position + 1, window)


# --- the kernel for pages -----------------------------------------------------------------------------------

def check_kernel(kernel: Callable, H: int, K: int, D: int, dtype: torch.dtype, device) -> None:
    """Raise RuntimeError where a kernel for pages differs from SDPA on three rows of different lengths."""
    gen = torch.Generator().manual_seed(0)
    q, keys, values = [torch.randn(shape, generator=gen).to(device, dtype)
                       for shape in ((3, H, 1, D), (5, PAGE, K, D), (5, PAGE, K, D))]
    table = torch.tensor([[2, 0], [4, 0], [3, 1]], dtype=torch.int32, device=device)
    lengths = (1, PAGE - 3, PAGE + 5)
    n_seen = torch.tensor(lengths, device=device)
    for window in (0, PAGE // 2):
        got = attend(q, keys, values, Pages.of(kernel, table, n_seen, window))
        for i, n in enumerate(lengths):
            first = max(0, n - window) if window else 0
            k, v = [x[table[i].long()].flatten(0, 1)[None, first:n].transpose(1, 2) for x in (keys, values)]
            off = (got[i:i + 1] - attend(q[i:i + 1], k, v)).abs().max().item()
            if not off < 0.05:
                raise RuntimeError(f"it is off by {off:.2g} in row {i} with a window of {window}")


@cache
def paged_kernel(H: int, K: int, D: int, dtype: torch.dtype, device: torch.device) -> Callable | None:
    """torch's attention over pages for such heads, where it works; None, said once on stderr, where not."""
    if device.type != "cuda":
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
        check_kernel(varlen_attn, H, K, D, dtype, device)
    except (ImportError, TypeError, ValueError, RuntimeError) as e:
        print(f"note: no paged attention here, decoding with a dense cache: {e}", file=sys.stderr, flush=True)
        return None
    return varlen_attn
