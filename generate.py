"""Prompts in, rows out: one mixed batch for all members.

A prompt is run once for all attempts at it. Rows decode side by side in a cache of fixed size; when a quarter
of them has ended, waiting prompts take their places, and when none waits, the batch shrinks. A token lies in
the cache slot of its position, so that rows of any length stand beside each other without padding. Every
token of a row is drawn by inverting its cumulative distribution at a uniform number that depends on the row's
key alone, not on its neighbours.

On a CUDA card the cache is paged (attention.py) and a step is static: it reads and writes tensors that stay
where they are while rows come and go, so that one CUDA graph holds it for as long as the batch has its size.
"""
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import count, islice

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from attention import KVCache, PagedCache, paged_kernel, pool_pages
from infra.gpu import CUDAGraphRunner, send
from lora import Adapters, AdapterWeights, Route
from model import Base

BLOCK = 512                 # weights of a vocabulary that are summed apart: see draw
PREFILL = 1 << 12           # padded tokens of prompts run at a time: never a long prompt of each row at once
PATIENCE = {"cuda": 8}      # steps between looks at who has ended: each makes the processor wait for the GPU


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off).

    Masks come from the lengths, never from tokens. logp[:, t] scores ids[:, t] under what it was drawn from.
    """
    ids: torch.Tensor                  # (N, T) int64
    prompt_len: torch.Tensor           # (N,) tokens of the prompt
    length: torch.Tensor               # (N,) tokens of prompt and answer
    logp: torch.Tensor                 # (N, T) float32, 0 in the prompt
    member: torch.Tensor               # (N,) int64, -1 = bare base

    @property
    def n_tokens(self) -> torch.Tensor:
        """Answer tokens per row (N,)."""
        return self.length - self.prompt_len

    @property
    def mask(self) -> torch.Tensor:
        """(N, T) true on answer tokens."""
        t = torch.arange(self.ids.shape[1], device=self.ids.device)
        return (t >= self.prompt_len[:, None]) & (t < self.length[:, None])

    def answers(self, eos_ids: tuple[int, ...]) -> list[list[int]]:
        """The answers' token ids without end tokens."""
        answers = []
        for ids, start, end in zip(self.ids.tolist(), self.prompt_len.tolist(), self.length.tolist()):
            answers.append([t for t in ids[start:end] if t not in eos_ids])
        return answers

    def select(self, rows: torch.Tensor) -> "Rollout":
        """The given rows (n,), cut to their longest."""
        T = int(self.length[rows].max())
        return Rollout(self.ids[rows, :T], self.prompt_len[rows], self.length[rows], self.logp[rows, :T],
                       self.member[rows])

    def to(self, device) -> "Rollout":
        """The same rows in another device's memory."""
        return Rollout(*(getattr(self, f.name).to(device) for f in fields(self)))

    def widened(self, T: int) -> "Rollout":
        """The same rows, padded to T tokens."""
        missing = (0, T - self.ids.shape[1])
        return replace(self, ids=F.pad(self.ids, missing), logp=F.pad(self.logp, missing))

    @classmethod
    def empty(cls, device) -> "Rollout":
        """No row."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(none[:, None], none, none, none[:, None].float(), none)

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Join the rows of several rollouts, padding to the longest."""
        T = max(p.ids.shape[1] for p in parts)
        parts = [p.widened(T) for p in parts]
        return Rollout(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Rollout)))


@dataclass(frozen=True)
class SamplingParams:
    """How answers are drawn. At most rollout_batch rows decode together, but n at least."""
    n: int = 1                                      # attempts at each prompt
    temperature: float | list[float] = 1.0          # of all rows, or of each; 0 = greedy
    max_new_tokens: int = 128
    rollout_batch: int = 512
    closing: torch.Tensor | None = None             # weights.closing_table of a text that ends an answer


def uniforms(key: tuple[int, ...], n: int) -> np.ndarray:
    """n numbers in [0, 1) that depend on the key (seed, step, phase, member, index) alone."""
    return np.random.default_rng(key).random(n)


def draw(weight: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Index (B,) where the running sum of weights (B, V) passes u (B,) in [0, 1) times their sum."""
    if weight.is_cuda:
        return draw_by_blocks(weight, u)
    cdf = weight.cumsum(-1)                                             # on a CPU summed in float64
    drawn = torch.searchsorted(cdf, threshold(cdf[:, -1:], u), right=True).squeeze(1)
    return drawn.clamp_max(cdf.shape[1] - 1)                            # NaN may pass the end


def threshold(total: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """u (B,) times total (B, 1); less than that, as the product may round up to it."""
    return torch.minimum(u.to(total.dtype)[:, None] * total, total.nextafter(torch.zeros_like(total)))


def draw_by_blocks(weight: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """`draw` by the sums of blocks, then within one: a card would write a running sum over a whole vocabulary
    and read it again. In float64, rounded last: so the index is that of one running sum."""
    V = weight.shape[1]
    blocks = F.pad(weight, (0, -V % BLOCK)).unflatten(1, (-1, BLOCK))                   # (B, n, BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)                               # (B, n)
    at = threshold(ends[:, -1:].float(), u)
    block = torch.searchsorted(ends.float(), at, right=True).clamp_max(blocks.shape[1] - 1)     # (B, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)
    cdf = F.pad(ends, (1, 0)).gather(1, block) + inside.cumsum(-1, dtype=torch.float64)
    index = block * BLOCK + torch.searchsorted(cdf.float(), at, right=True)
    return index.squeeze(1).clamp_max(V - 1)                            # NaN may pass the end


def sample(logits: torch.Tensor, temperature: torch.Tensor,
           u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of logits (B, V) at temperature (B,), 0 = greedy, by u (B,) in [0, 1).

    Returns ids (B,) and their float32 log-probabilities (B,) when tempered (of greedy rows: untempered).
    """
    greedy = temperature == 0
    logp = (logits.float() / temperature.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)
    ids = torch.where(greedy, logits.argmax(-1), draw(logp.exp(), u))
    return ids, logp.gather(1, ids[:, None]).squeeze(1)


@dataclass
class Answers:
    """The answers of a call's N rows as they grow, at most L tokens each, and what they are drawn with."""
    temperature: torch.Tensor          # (N,)
    u: torch.Tensor                    # (N, L + 1) in [0, 1); the last column is spare, as in ids and logp
    ends: torch.Tensor                 # ids of the end tokens
    ids: torch.Tensor                  # (N, L + 1) int64
    logp: torch.Tensor                 # (N, L + 1) float32
    length: torch.Tensor               # (N,) of the answers alone; Rollout.length counts the prompts, too
    closing: torch.Tensor | None       # (n + 1, V) weights.closing_table of the n characters that end one
    n_matched: torch.Tensor            # (N,) characters of that text that an answer ends with

    @classmethod
    def empty(cls, keys: list[tuple[int, ...]], sampling: SamplingParams, ends: tuple[int, ...],
              device) -> "Answers":
        """One without tokens for each key, the source of its draws."""
        N = len(keys)
        temperature = sampling.temperature
        temperature = temperature if isinstance(temperature, list) else [temperature] * N
        u = np.stack([uniforms(key, sampling.max_new_tokens + 1) for key in keys])
        u = send(torch.from_numpy(u).float(), device)
        none = torch.zeros(N, dtype=torch.int64, device=device)
        return cls(send(torch.tensor(temperature), device), u, send(torch.tensor(ends), device),
                   torch.zeros_like(u, dtype=torch.int64), torch.zeros_like(u), none, sampling.closing,
                   none.clone())

    def extend(self, row: torch.Tensor, t: torch.Tensor,
               logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the next token of rows (n,), which have t (n,) tokens, by logits (n, V): it and the new t.

        A row that has ended is marked by t = L: what it draws from then on lands in the spare column.
        """
        limit = self.u.shape[1] - 1
        token, logp = sample(logits, self.temperature[row], self.u[row, t])
        self.ids[row, t], self.logp[row, t] = token, logp
        live = t < limit
        self.length[row] = torch.where(live, t + 1, self.length[row])
        ended = (token[:, None] == self.ends).any(-1)       # torch.isin of many ends would wait for a GPU
        if self.closing is not None:
            n_matched = self.closing[self.n_matched[row], token].long()
            self.n_matched[row] = n_matched
            ended = ended | (n_matched == len(self.closing) - 1)
        return token, torch.where(live & ~ended, t + 1, limit)


@dataclass
class DecodeBatch:
    """B rows that decode together. Idle ones, whose answers have ended, have t = limit and stay in place."""
    base: Base
    weights: AdapterWeights | None
    answers: Answers
    cache: KVCache | PagedCache
    row: torch.Tensor                  # (B,) which row of the call this is
    member: torch.Tensor               # (B,)
    token: torch.Tensor                # (B,) the last one drawn, not yet in the cache
    position: torch.Tensor             # (B,) of that token
    t: torch.Tensor                    # (B,) answer tokens so far

    @classmethod
    def idle(cls, base: Base, weights: AdapterWeights | None, answers: Answers, cache: KVCache | PagedCache,
             n_rows: int) -> "DecodeBatch":
        """Rows without a prompt yet."""
        row = torch.arange(n_rows, device=answers.u.device)
        limit = answers.u.shape[1] - 1
        return cls(base, weights, answers, cache, row, member=torch.full_like(row, -1),
                   token=torch.zeros_like(row), position=torch.zeros_like(row), t=torch.full_like(row, limit))

    def release(self, idle: torch.Tensor) -> None:
        """Give back the pages of rows (B,) bool that have ended: from now on they write to page 0."""
        if isinstance(self.cache, PagedCache):
            self.cache.release(idle)
            self.position.masked_fill_(idle, 0)

    def keep(self, kept: torch.Tensor) -> None:
        """Drop all rows but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("row", "member", "token", "position", "t"):
            setattr(self, name, getattr(self, name)[kept])

    def prefill(self, places: torch.Tensor, prompts: list[list[int]], row: torch.Tensor,
                member: torch.Tensor) -> None:
        """Run prompts (U) of members (U,), the same number of attempts at each in places (n,), which are
        rows (n,) of the call."""
        model, device = self.base.model, places.device
        n = len(places) // len(prompts)
        lengths = list(map(len, prompts))
        length = send(torch.tensor(lengths), device)
        self.row[places] = row
        self.member[places] = member.repeat_interleave(n)
        self.position[places] = length.repeat_interleave(n)
        if isinstance(self.cache, PagedCache):
            self.cache.admit(places.tolist(), lengths, self.answers.u.shape[1] - 1)
        size = max(1, PREFILL // max(lengths))
        for at in range(0, len(prompts), size):
            part = slice(at, at + size)
            T = max(lengths[part])
            padded = [p + [0] * (T - len(p)) for p in prompts[part]]    # no token sees what follows it
            ids = send(torch.tensor(padded), device)
            cache = KVCache.empty(model.cfg, len(ids), T, model.embedding.dtype, device)
            hidden = model(ids, cache=cache, lora=self.weights and self.weights.route(member[part]))
            prompt = torch.arange(len(ids), device=device)
            logits = model.logits(hidden[prompt, length[part] - 1])
            into = places.view(-1, n)[part].flatten()
            source = prompt.repeat_interleave(n)
            self.cache.put(into, cache, source, self.position[into])
            self.token[into], self.t[into] = self.answers.extend(self.row[into], torch.zeros_like(into),
                                                                 logits[source])

    def step(self, route: Route | None, mask: torch.Tensor | None = None) -> None:
        """One more token for every row, in place and without a look at any value, so that a GPU can run ahead
        and a CUDA graph can hold it."""
        model, limit = self.base.model, self.answers.u.shape[1] - 1
        hidden = model(self.token[:, None], self.position[:, None], mask, self.cache, route)    # (B, 1, C)
        token, t = self.answers.extend(self.row, self.t, model.logits(hidden[:, 0]))
        self.token.copy_(token)
        self.t.copy_(t)
        self.position += t < limit

    def paged_step(self) -> None:
        """`step` from the rows' pages. Rows may come and go between two."""
        self.step(self.weights and self.weights.static_route(self.member))

    def stepper(self) -> Callable[[], None]:
        """What to call for each step: in pages until rows are dropped; otherwise while the rows are these,
        by their own route and from as many slots as the furthest row fills."""
        if isinstance(self.cache, PagedCache):
            return CUDAGraphRunner(self.paged_step, self.base.graphs)
        route = self.weights and self.weights.route(self.member, one_token=True)
        furthest = count(int(self.position.max()))

        def step() -> None:
            slot = torch.arange(min(next(furthest) + 1, self.cache.n_slots), device=self.t.device)
            self.step(route, (slot <= self.position[:, None])[:, None, None])
        return step


@torch.inference_mode()
def decode(rows: DecodeBatch, prompts: list[list[int]], member: torch.Tensor, n: int, bar: tqdm) -> None:
    """Fill in the answers to n attempts at each prompt, with idle rows to begin with.

    A round: let prompts in where enough rows have ended, or drop ended rows if no prompt waits and they are
    many; then `patience` steps.
    """
    limit = rows.answers.u.shape[1] - 1
    paged = isinstance(rows.cache, PagedCache)
    patience = PATIENCE.get(member.device.type, 1)
    slot = member.tolist()
    waiting = deque(sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), slot[i])))
    step = None
    while True:
        idle = rows.t == limit
        n_idle = int(idle.sum())
        bar.update((len(prompts) - len(waiting)) * n - len(rows.t) + n_idle - bar.n)
        rows.release(idle)
        chosen = []
        if waiting and n_idle >= max(n, len(rows.t) / 4):
            lengths = [len(prompts[i]) for i in islice(waiting, n_idle // n)]
            chosen = [waiting.popleft() for _ in range(rows.cache.fitting(lengths, n, limit))]
        if chosen:
            chosen.sort(key=slot.__getitem__)
            index = send(torch.tensor(chosen), member.device)
            row = (index[:, None] * n + torch.arange(n, device=member.device)).flatten()
            places = idle.nonzero().squeeze(1)[:len(row)]
            rows.prefill(places, [prompts[i] for i in chosen], row, member[index])
            step = step if paged else None
            continue
        if n_idle == len(rows.t):
            assert not waiting, "a prompt that fits into an empty cache was not let in"
            return
        if not waiting and (2 if paged else 4) * n_idle >= len(rows.t):         # idle rows stop costing
            rows.keep((~idle).nonzero().squeeze(1))
            step = None
        step = step or rows.stepper()
        for _ in range(patience):
            step()


def deal(n_prompts: int, n: int, world: int) -> tuple[int, list[list[int]]]:
    """Attempts in a piece of rows, and for each of `world` processes the numbers of its rows.

    Process r has the pieces r, r + world, r + 2 world, ...: a piece is all n attempts at a prompt, or half of
    them where n is even and the largest share gets smaller so. It may have none.
    """
    halved = n % 2 == 0 and -(-2 * n_prompts // world) < 2 * -(-n_prompts // world)
    size = n // 2 if halved else n          # piece i has the rows i size, ..., i size + size - 1
    return size, [[i * size + j for i in range(rank, n_prompts * n // size, world) for j in range(size)]
                  for rank in range(world)]


def generate(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int],
             keys: list[tuple[int, ...]], sampling: SamplingParams = SamplingParams(), ranks=None,
             desc: str = "", kernel: Callable | None = None) -> Rollout:
    """sampling.n attempts at each prompt by the prompt's member; row i*n+j is attempt j at prompt i.

    prompts: token ids; member: one index per prompt, -1 = bare base; keys: one per row, the source of its
    draws; ranks: the processes (infra.distributed.Ranks) that the rows are dealt out to, all of which get all
    rows; kernel: attention over pages, by default torch's where it works, else the cache is dense. Raises
    ValueError when a prompt and its answer would not fit the base's context.
    """
    context = base.model.cfg.max_position_embeddings
    longest, new, n = max(map(len, prompts)), sampling.max_new_tokens, sampling.n
    if longest + new > context:
        raise ValueError(f"a prompt of {longest} tokens and an answer of {new} exceed the base's context of "
                         f"{context}: lower --max-new-tokens or --n-few-shot")
    assert len(keys) == len(prompts) * n and len(member) == len(prompts), (len(keys), len(prompts), n)
    if ranks is None or ranks.world == 1:
        return generate_here(base, adapters, prompts, member, keys, sampling, desc, kernel)
    size, dealt = deal(len(prompts), n, ranks.world)
    mine = dealt[ranks.rank]
    own = Rollout.empty(ranks.device)
    if mine:
        asked = [row // n for row in mine[::size]]
        own = generate_here(base, adapters, [prompts[i] for i in asked], [member[i] for i in asked],
                            [keys[row] for row in mine], replace(sampling, n=size), desc, kernel)
    own = own.widened(-ranks.all_reduce_min(-own.ids.shape[1]))
    n_rows = list(map(len, dealt))
    joined = Rollout(*(ranks.gather(getattr(own, f.name), n_rows) for f in fields(Rollout)))
    order = torch.tensor([row for rows in dealt for row in rows], device=ranks.device).argsort()
    return joined.select(order)


def generate_here(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int],
                  keys: list[tuple[int, ...]], sampling: SamplingParams, desc: str,
                  kernel: Callable | None) -> Rollout:
    """`generate` in this process alone."""
    cfg, weight = base.model.cfg, base.model.embedding
    device, dtype = weight.device, weight.dtype
    n, new = sampling.n, sampling.max_new_tokens
    heads = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    kernel = kernel or paged_kernel(*heads, dtype, device)
    answers = Answers.empty(keys, sampling, base.eos_ids, device)
    members = send(torch.tensor(member), device)
    weights = adapters and AdapterWeights(adapters, members, dtype, joint=kernel is None)
    longest = max(map(len, prompts))
    B = min(len(keys), max(1, sampling.rollout_batch // n) * n)
    if kernel is None:
        cache = KVCache.empty(cfg, B, longest + new, dtype, device)
    else:
        cache = PagedCache(cfg, B, longest + new, pool_pages(B, n, longest, new), dtype, device, kernel)
    with tqdm(total=len(keys), desc=desc, leave=False, disable=not desc) as bar:
        decode(DecodeBatch.idle(base, weights, answers, cache, B), prompts, members, n, bar)
    prompt_len = send(torch.tensor([len(p) for p in prompts]), device).repeat_interleave(n)
    length = prompt_len + answers.length
    T = int(length.max())
    rollout = Rollout(torch.zeros(len(keys), T, dtype=torch.int64, device=device), prompt_len, length,
                      torch.zeros(len(keys), T, device=device), members.repeat_interleave(n))
    flat = [token for prompt in prompts for token in prompt * n]
    is_prompt = torch.arange(T, device=device) < prompt_len[:, None]                            # (N, T)
    is_drawn = torch.arange(new + 1, device=device) < answers.length[:, None]                   # (N, L + 1)
    rollout.ids[is_prompt] = send(torch.tensor(flat), device)
    rollout.ids[rollout.mask] = answers.ids[is_drawn]
    rollout.logp[rollout.mask] = answers.logp[is_drawn]
    return rollout
