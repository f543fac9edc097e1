"""Prompts in, rows out: one mixed batch for all members. The way of a token:

    generate     deals the prompts out to the processes
    decode       lets prompts in where rows have ended, then takes steps, until all answers are there
    DecodeBatch  the rows that decode side by side: `admit` runs prompts, `step` gives every row a token more
    sample       draws by inverting the cumulative distribution at a number that hangs on the row's key alone

A prompt is run once for all answers to it. A token lies in the cache slot of its position: no padding. On a
CUDA card the cache is paged and a step works in place: one CUDA graph holds it while the batch has its size.
"""
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from attention import KVCache, PagedCache, paged_kernel
from common import demand
from ranks import ALONE, Ranks, send
from lora import Adapters, AdapterWeights, Route
from model import Base, closing_table

BELOW_1 = 1 - 2 ** -23      # largest number whose product with a float32 total cannot round up to the total
BLOCK = 512                 # probabilities of a vocabulary that are summed apart: see draw
PREFILL = 1 << 12           # padded tokens of prompts run at a time: never a long prompt of each row at once
PATIENCE = {"cuda": 8}      # steps between looks at who has ended: each makes the processor wait for the GPU


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off).
    Masks come from the lengths, never from tokens. logp[:, t] scores ids[:, t] under what it was drawn
    from."""
    ids: Tensor                  # (N, T) int64
    prompt_len: Tensor           # (N,) tokens of the prompt
    length: Tensor               # (N,) tokens of prompt and answer
    logp: Tensor                 # (N, T) float32, 0 in the prompt
    member: Tensor               # (N,) int64, -1 = bare base

    @property
    def n_tokens(self) -> Tensor:
        """Answer tokens per row (N,)."""
        return self.length - self.prompt_len

    @property
    def mask(self) -> Tensor:
        """(N, T) true on answer tokens."""
        t = torch.arange(self.ids.shape[1], device=self.ids.device)
        return (t >= self.prompt_len[:, None]) & (t < self.length[:, None])

    def answers(self, eos_ids: tuple[int, ...]) -> list[list[int]]:
        """The answers' token ids without end tokens."""
        found = []
        for ids, start, end in zip(self.ids.tolist(), self.prompt_len.tolist(), self.length.tolist()):
            found.append([token for token in ids[start:end] if token not in eos_ids])
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> "Rollout":
        """The same change of every tensor, all of which have a row for each answer."""
        tensors = {f.name: change(getattr(self, f.name)) for f in fields(self)}
        return Rollout(**tensors)

    def select(self, rows: Tensor) -> "Rollout":
        """The given rows (n,), cut to their longest."""
        kept = self.map(lambda x: x[rows])
        return kept.widened(int(kept.length.max()))

    def to(self, device: torch.device | str) -> "Rollout":
        """The same rows in another device's memory."""
        return self.map(lambda x: x.to(device))

    def widened(self, T: int) -> "Rollout":
        """The same rows, padded or cut to T tokens."""
        missing = (0, T - self.ids.shape[1])            # to the left and right; below 0 F.pad cuts
        return replace(self, ids=F.pad(self.ids, missing), logp=F.pad(self.logp, missing))

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Join the rows of several rollouts, padding to the longest."""
        T = max(part.ids.shape[1] for part in parts)
        parts = [part.widened(T) for part in parts]
        joined = {}
        for f in fields(Rollout):
            joined[f.name] = torch.cat([getattr(part, f.name) for part in parts])
        return Rollout(**joined)


@dataclass(frozen=True)
class Prompts:
    """What is asked of whom. Row i * n + j of a rollout is answer j to prompt i."""
    ids: list[list[int]]                            # tokens of each prompt
    member: list[int]                               # who answers each; -1 = bare base
    keys: list[tuple[int, ...]]                     # of each row: the source of its draws


@dataclass(frozen=True)
class SamplingParams:
    """How answers are drawn. At most rollout_batch rows decode together, but n at least."""
    n: int = 1                                      # answers to each prompt
    temperature: float = 1.0                        # 0 = greedy
    max_new_tokens: int = 128
    rollout_batch: int = 512
    closing: str = ""                               # a text that ends an answer
    desc: str = ""                                  # title of the progress bar; "" = no bar


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Index (B,) where the running sum of probabilities (B, V) passes u (B,) in [0, 1) times the whole sum.
    First among blocks, then within one: a card would write and read the sums of a whole vocabulary."""
    V = probs.shape[1]
    size = min(V, BLOCK)
    blocks = F.pad(probs, (0, -V % size)).unflatten(1, (-1, size))      # (B, blocks, size)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)               # (B, blocks), running sum
    starts = F.pad(ends, (1, 0))                                        # (B, blocks + 1)
    at = u.clamp_max(BELOW_1)[:, None] * ends[:, -1:].float()           # (B, 1)
    block = torch.searchsorted(ends.float(), at, right=True)
    block = block.clamp_max(blocks.shape[1] - 1)                        # (B, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, size))
    inside = inside.squeeze(1)                                          # (B, size), of each row's block
    cdf = starts.gather(1, block) + inside.cumsum(-1, dtype=torch.float64)
    index = block * size + torch.searchsorted(cdf.float(), at, right=True)
    return index.squeeze(1).clamp_max(V - 1)                            # NaN may pass the end


def sample(logits: Tensor, temperature: float, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row of logits (B, V) by u (B,) in [0, 1); at temperature 0 take the likeliest.
    Returns ids (B,) and their float32 log-probabilities (B,) when tempered (of greedy ones: untempered)."""
    logits = logits.float()
    if temperature:
        logp = (logits / temperature).log_softmax(-1)
        ids = draw(logp.exp(), u)
    else:
        logp = logits.log_softmax(-1)
        ids = logits.argmax(-1)
    return ids, logp.gather(1, ids[:, None]).squeeze(1)


class DecodeBatch:
    """B places, in which a call's N rows decode side by side: L answer tokens at most.

    `rows` is the rollout as it grows, with a spare last column; u (N, L + 1) are the numbers that its answers
    are drawn by. Of the places: which row (B,) decodes there, its latest token, which is not in the cache
    yet, that token's position, and t, the answer's tokens so far; t = L where no row decodes.
    """

    def __init__(self, base: Base, adapters: Adapters | None, prompts: Prompts, sampling: SamplingParams):
        cfg = base.model.cfg
        weight = base.model.embedding
        device, dtype = weight.device, weight.dtype
        N = len(prompts.keys)
        n = sampling.n
        L = sampling.max_new_tokens
        self.base = base
        self.sampling = sampling
        self.n = n
        self.L = L
        self.lengths = list(map(len, prompts.ids))      # of each prompt
        S = max(self.lengths) + L

        # the rows: each prompt once for each answer to it, and a number for each draw
        padded = [ids + [0] * (S + 1 - len(ids)) for ids in prompts.ids]
        ids = send(torch.tensor(padded), device).repeat_interleave(n, 0)                # (N, S + 1)
        length = send(torch.tensor(self.lengths), device).repeat_interleave(n, 0)       # (N,)
        member = send(torch.tensor(prompts.member), device).repeat_interleave(n, 0)     # (N,)
        logp = torch.zeros(ids.shape, device=device)
        self.rows = Rollout(ids, length, length.clone(), logp, member)
        u = []
        for key in prompts.keys:
            u.append(np.random.default_rng(key).random(L + 1))
        self.u = send(torch.from_numpy(np.stack(u)).float(), device)
        self.eos = send(torch.tensor(base.eos_ids), device)
        self.closing = closing_table(base.tokenizer, sampling.closing, cfg.vocab_size, device)
        self.n_matched = torch.zeros_like(length)       # characters of the closing text that a row ends with

        # the places: all idle, t = L
        B = min(N, max(1, sampling.rollout_batch // n) * n)
        kernel = paged_kernel(cfg, dtype, device)
        self.paged = kernel is not None
        if self.paged:
            self.cache = PagedCache(cfg, B, S, dtype, device, kernel)
        else:
            self.cache = KVCache(cfg, B, S, dtype, device)
        self.weights = None
        if adapters:
            self.weights = AdapterWeights(adapters, member, dtype, in_graph=self.paged)
        self.row = torch.arange(B, device=device)
        self.token = torch.zeros_like(self.row)
        self.position = torch.zeros_like(self.row)
        self.t = torch.full_like(self.row, L)
        self.stepper = None                             # takes a step while the places stay as they are

    def route(self, row: Tensor, one_token: bool = False) -> Route | None:
        """What adds the adapters of these rows' (n,) members; None for the bare base."""
        if self.weights is None:
            return None
        return self.weights.route(self.rows.member[row], one_token)

    def extend(self, row: Tensor, t: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the next token of rows (n,), whose answers have t (n,) tokens, by logits (n, V). Returns the
        tokens and the new t. What a row draws when it has ended, at t = L, lands in the spare column."""
        rows = self.rows
        token, logp = sample(logits, self.sampling.temperature, self.u[row, t])
        live = t < self.L
        spare = rows.ids.shape[1] - 1
        column = torch.where(live, rows.prompt_len[row] + t, spare)
        rows.ids[row, column] = token
        rows.logp[row, column] = logp
        rows.length[row] = torch.where(live, column + 1, rows.length[row])
        ended = (token[:, None] == self.eos).any(-1)       # torch.isin of many ends would wait for a GPU
        if self.closing is not None:
            n_matched = self.closing[self.n_matched[row], token].long()
            self.n_matched[row] = n_matched
            ended = ended | (n_matched == len(self.closing) - 1)
        return token, torch.where(live & ~ended, t + 1, self.L)

    def admit(self, prompts: list[int]) -> None:
        """Run these prompts, by number, for n rows each, in the first places that are idle."""
        model, rows, n = self.base.model, self.rows, self.n
        device = self.t.device
        first = send(torch.tensor(prompts), device) * n             # (m,) row of each prompt's first answer
        longest = max(self.lengths[i] for i in prompts)
        ids = rows.ids[first, :longest]                             # (m, T), padded with 0
        cache = KVCache(model.cfg, *ids.shape, model.embedding.dtype, device)
        hidden = model(ids, cache=cache, lora=self.route(first))
        line = torch.arange(len(ids), device=device)
        last = rows.prompt_len[first] - 1
        logits = model.logits(hidden[line, last])                   # (m, V) of the first answer token

        source = line.repeat_interleave(n)                          # (m n,) the prompt of each row
        places = (self.t == self.L).nonzero().squeeze(1)
        places = places[:len(source)]
        self.cache.put(places, cache, source)
        row = first[:, None] + torch.arange(n, device=device)
        row = row.flatten()
        token, t = self.extend(row, torch.zeros_like(row), logits[source])
        self.row[places] = row
        self.token[places] = token
        self.position[places] = rows.prompt_len[row]
        self.t[places] = t
        if not self.paged:                      # other members, or another order: it needs another route
            self.stepper = None

    def keep(self, kept: Tensor) -> None:
        """Drop all places but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("row", "token", "position", "t"):
            setattr(self, name, getattr(self, name)[kept])
        self.stepper = None

    def step(self, route: Route | None) -> None:
        """One more token for every row, in place and without a look at any value, so that a GPU can run ahead
        and a CUDA graph can hold it."""
        model = self.base.model
        hidden = model(self.token[:, None], self.position[:, None], cache=self.cache, lora=route)  # (B, 1, C)
        token, t = self.extend(self.row, self.t, model.logits(hidden[:, 0]))
        self.token.copy_(token)
        self.t.copy_(t)
        self.position += t < self.L

    def make_stepper(self) -> Callable[[], None]:
        """What takes a step. In pages rows may come and go between two: the route is made from their members
        within the step. Otherwise it has the route of the rows that are here, and looks at as many slots as
        the furthest row fills."""
        if self.paged:
            return CUDAGraphRunner(lambda: self.step(self.route(self.row)), self.base.graphs)
        self.cache.length = int(self.position.max())
        route = self.route(self.row, one_token=True)
        return lambda: self.step(route)


@dataclass
class CUDAGraphRunner:
    """A step that is called over and over, as a CUDA graph where that works: one launch, not a thousand.

    The third call is recorded and from then on replayed. All recordings share one pool of memory, so a graph
    may not be replayed any more once another has been recorded. A step that cannot be recorded runs as it is;
    so do all later ones, unless only memory was short.
    """
    can_record = True                       # this and what follows up to `stream`: of all runners together
    pool = None                             # torch.cuda.MemPool
    stream = None                           # on which graphs are recorded
    step: Callable[[], None]
    as_graph: bool
    n_calls: int = 0

    def __call__(self) -> None:
        self.n_calls += 1
        if self.as_graph and self.n_calls == 3 and CUDAGraphRunner.can_record:
            self.record()                   # not earlier: the first calls load kernels, no recording may
        self.step()

    def record(self) -> None:
        """Make the step a replay of its recording, which computes nothing."""
        cls = CUDAGraphRunner
        torch.cuda.synchronize()
        torch.cuda.empty_cache()            # a private pool cannot use what the common one keeps
        try:
            if cls.pool is None:
                cls.pool, cls.stream = torch.cuda.MemPool(), torch.cuda.Stream()
            self.step = capture(self.step, cls.pool, cls.stream).replay
        except RuntimeError as e:
            cls.can_record = isinstance(e, torch.OutOfMemoryError)
            print(f"note: decoding without a CUDA graph, as none could be recorded: {e}", file=sys.stderr)


def capture(
    step: Callable[[], None],
    pool: "torch.cuda.MemPool",
    stream: "torch.cuda.Stream",
) -> "torch.cuda.CUDAGraph":
    """A graph of what `step` launches. Raises the first error, not the one of ending a failed recording."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):                     # torch.cuda.graph would stay on it on failure
        graph.capture_begin(pool.id, capture_error_mode="thread_local")         # NCCL's thread may go on
        try:
            step()
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            with contextlib.suppress(RuntimeError):     # else all that follows is allocated in the pool
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool.id)
            raise
    return graph


@torch.inference_mode()
def decode(
    base: Base,
    adapters: Adapters | None,
    prompts: Prompts,
    sampling: SamplingParams,
) -> Rollout:
    """The rows in this process, wider than the longest: let prompts in where enough rows have ended, the
    longest first; drop the places of ended rows if no prompt waits and they are many; step; and so on."""
    batch = DecodeBatch(base, adapters, prompts, sampling)
    n, member, N = sampling.n, prompts.member, len(prompts.keys)
    # numbers of prompts, the longest first
    waiting = sorted(range(len(member)), key=lambda i: (-batch.lengths[i], member[i]))
    # The share of idle places from which on they are dropped. They cost time in each step, in pages less,
    # and to drop them costs some, too.
    share = 1 / 2 if batch.paged else 1 / 4
    with tqdm(total=N, desc=sampling.desc, leave=False, disable=not sampling.desc) as bar:
        while True:
            # who has ended
            B = len(batch.t)
            n_idle = int((batch.t == batch.L).sum())            # places without a row: waits for a GPU
            n_ended = N - len(waiting) * n - (B - n_idle)
            bar.update(n_ended - bar.n)
            # who comes in, and whether ended rows go
            if waiting and n_idle >= max(n, B / 4):             # one call for several prompts
                admit_next(batch, waiting, n_idle // n, member)
                continue                        # their first tokens may have ended rows
            if n_idle == B:
                batch.stepper = None            # a reference cycle would keep the batch's cache
                return batch.rows
            if not waiting and n_idle >= B * share:
                busy = batch.t < batch.L
                batch.keep(busy.nonzero().squeeze(1))

            # a token more for all who are here
            if batch.stepper is None:
                batch.stepper = batch.make_stepper()
            for _ in range(PATIENCE.get(batch.t.device.type, 1)):
                batch.stepper()


def admit_next(batch: DecodeBatch, waiting: list[int], n: int, member: list[int]) -> None:
    """Let the first n of the prompts in that wait, or all if they are fewer, those of a member together: as
    many at a time as PREFILL allows."""
    chosen = sorted(waiting[:n], key=lambda i: member[i])
    del waiting[:n]
    longest = max(batch.lengths[i] for i in chosen)
    size = max(1, PREFILL // longest)
    for at in range(0, len(chosen), size):
        batch.admit(chosen[at:at + size])


def generate(
    base: Base,
    adapters: Adapters | None,
    prompts: Prompts,
    sampling: SamplingParams = SamplingParams(),
    ranks: Ranks = ALONE,
) -> Rollout:
    """sampling.n answers to each prompt by its member, dealt out to `ranks`. Raises UserError where a prompt
    is too long."""
    context = base.model.cfg.max_position_embeddings
    longest = max(map(len, prompts.ids))
    new = sampling.max_new_tokens
    n = sampling.n
    demand(longest + new <= context, f"a prompt of {longest} tokens and an answer of {new} exceed the base's context "
           f"of {context}: lower --max-new-tokens, or shorten the prompt")
    assert len(prompts.keys) == len(prompts.ids) * n and len(prompts.member) == len(prompts.ids)
    # Each process takes every world-th prompt; all of them gather the rows, and put them into order.
    dealt = [list(range(rank, len(prompts.ids), ranks.world)) for rank in range(ranks.world)]
    own = dealt[ranks.rank] or [0]                  # who has nothing to do does another's, and drops it
    ids, member, keys = [], [], []
    for i in own:
        ids.append(prompts.ids[i])
        member.append(prompts.member[i])
        keys += prompts.keys[i * n:(i + 1) * n]
    part = decode(base, adapters, Prompts(ids, member, keys), sampling)
    part = part.widened(longest + new + 1)          # as wide as everybody's
    n_rows = [len(numbers) * n for numbers in dealt]                # of each process
    gathered = part.map(lambda x: ranks.gather(x[:n_rows[ranks.rank]], n_rows))
    numbers = torch.tensor(sum(dealt, []), device=ranks.device)     # of the prompts, as they were gathered
    place = numbers.argsort()                                       # of each prompt in this order
    rows = place[:, None] * n + torch.arange(n, device=ranks.device)
    return gathered.select(rows.flatten())
