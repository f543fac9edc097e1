"""Prompts in, rows out: one mixed batch for all members.

A prompt is run once for all attempts at it. Rows decode side by side in a cache of fixed size; when a quarter
of them has ended, waiting prompts take their places, and when none waits, the batch shrinks. A token lies in
the cache slot of its position, so that rows of any length stand beside each other without padding. Every
token of a row is drawn by inverting its cumulative distribution at a uniform number that depends on the row's
key alone, not on its neighbours.

On a GPU the cache is paged (attention.py) and a step is static: it reads and writes tensors that stay where
they are while rows come and go, so that one CUDA graph holds it for as long as the batch has its size.
"""
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from attention import KVCache, PagedCache, paged_kernel, pool_pages
from infra.gpu import CUDAGraphRunner
from lora import Adapters, AdapterWeights, LoRARouter
from model import Base

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

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Join the rows of several rollouts, padding to the longest."""
        T = max(p.ids.shape[1] for p in parts)
        joined = {}
        for f in fields(Rollout):
            tensors = [getattr(p, f.name) for p in parts]
            if f.name in ("ids", "logp"):
                tensors = [F.pad(x, (0, T - x.shape[1])) for x in tensors]
            joined[f.name] = torch.cat(tensors)
        return Rollout(**joined)


def uniforms(key: tuple[int, ...], n: int) -> np.ndarray:
    """n numbers in [0, 1) that depend on the key (seed, step, phase, member, index) alone."""
    return np.random.default_rng(key).random(n)


def sample(logits: torch.Tensor, temperature: torch.Tensor,
           u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of logits (B, V) at temperature (B,), 0 = greedy, by u (B,) in [0, 1).

    Returns ids (B,) and their float32 log-probabilities (B,) when tempered (of greedy rows: untempered).
    """
    greedy = temperature == 0
    logp = (logits.float() / temperature.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)
    cdf = logp.exp().cumsum(-1)
    total = cdf[:, -1:]
    below = total.nextafter(torch.zeros_like(total))
    at = torch.minimum(u.to(cdf.dtype)[:, None] * total, below)         # the product may round up to total
    drawn = torch.searchsorted(cdf, at, right=True).squeeze(1)
    drawn = drawn.clamp_max(logits.shape[1] - 1)                        # NaN may pass the end
    ids = torch.where(greedy, logits.argmax(-1), drawn)
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
    def begin(cls, temperature: torch.Tensor, u: torch.Tensor, ends: tuple[int, ...],
              closing: torch.Tensor | None = None) -> "Answers":
        """None of them has a token yet."""
        return cls(temperature, u, closing=closing,
                   n_matched=torch.zeros(len(u), dtype=torch.int64, device=u.device),
                   ends=torch.tensor(ends, dtype=torch.int64, device=u.device),
                   ids=torch.zeros_like(u, dtype=torch.int64),
                   logp=torch.zeros_like(u),
                   length=torch.zeros(len(u), dtype=torch.int64, device=u.device))

    def draw(self, row: torch.Tensor, t: torch.Tensor,
             logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the next token of rows (n,), which have t (n,) tokens, by logits (n, V). Returns it and the
        new t.

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
    cache: KVCache | PagedCache
    row: torch.Tensor                  # (B,) which row of the call this is
    member: torch.Tensor               # (B,)
    token: torch.Tensor                # (B,) the last one drawn, not yet in the cache
    position: torch.Tensor             # (B,) of that token
    t: torch.Tensor                    # (B,) answer tokens so far

    @classmethod
    def idle(cls, cache: KVCache | PagedCache, n_rows: int, limit: int, device) -> "DecodeBatch":
        """Rows without a prompt yet."""
        row = torch.arange(n_rows, device=device)
        return cls(cache, row, member=torch.full_like(row, -1), token=torch.zeros_like(row),
                   position=torch.zeros_like(row), t=torch.full_like(row, limit))

    @classmethod
    def begin(cls, base: Base, lengths: list[int], n: int, rollout_batch: int, limit: int,
              kernel: Callable | None) -> "DecodeBatch":
        """Rows for n answers to each prompt, longest first; in pages if there is a kernel for them."""
        cfg, weight = base.model.cfg, base.model.embedding
        B = min(len(lengths) * n, max(1, rollout_batch // n) * n)
        S = lengths[0] + limit
        if kernel is None:
            cache = KVCache.empty(cfg, B, S, weight.dtype, weight.device)
        else:
            n_pages = pool_pages(B, n, lengths[0], limit)
            cache = PagedCache(cfg, B, S, n_pages, weight.dtype, weight.device, kernel)
        rows = cls.idle(cache, B, limit, weight.device)
        assert rows.fitting(lengths[:B // n], n, limit) == B // n, "the first prompts must fill the batch"
        return rows

    def fitting(self, lengths: list[int], n: int, limit: int) -> int:
        """How many prompts of these lengths, in turn, find room in the cache for n answers each."""
        if isinstance(self.cache, KVCache):
            return len(lengths)                     # every row has its slots
        return self.cache.fitting(lengths, n, limit)

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

    def prefill(self, base: Base, weights: AdapterWeights | None, answers: Answers, places: torch.Tensor,
                n: int, prompts: list[list[int]], first: torch.Tensor, member: torch.Tensor) -> None:
        """Run prompts (U) of members (U,); n attempts at each begin in places (U n,), rows first + 0..n-1."""
        model, device = base.model, places.device
        lengths = list(map(len, prompts))
        if isinstance(self.cache, PagedCache):
            self.cache.admit(places.tolist(), lengths, answers.u.shape[1] - 1)
        length = torch.tensor(lengths, device=device)
        self.row[places] = (first[:, None] + torch.arange(n, device=device)).flatten()
        self.member[places] = member.repeat_interleave(n)
        self.position[places] = length.repeat_interleave(n)
        size = max(1, PREFILL // max(lengths))
        for at in range(0, len(prompts), size):
            part = slice(at, at + size)
            some = prompts[part]
            T = max(map(len, some))
            padded = [p + [0] * (T - len(p)) for p in some]             # no token sees what follows it
            ids = torch.tensor(padded, device=device)
            cache = KVCache.empty(model.cfg, len(some), T, model.embedding.dtype, device)
            hidden = model(ids, cache=cache, lora=weights and weights.route(member[part]))
            prompt = torch.arange(len(some), device=device)
            logits = model.logits(hidden[prompt, length[part] - 1])
            into = places.view(-1, n)[part].flatten()
            source = prompt.repeat_interleave(n)
            self.cache.put(into, cache, source, self.position[into])
            token, t = answers.draw(self.row[into], torch.zeros_like(into), logits[source])
            self.token[into] = token
            self.t[into] = t

    def step(self, base: Base, answers: Answers, lora: AdapterWeights | LoRARouter | None,
             width: int | None) -> None:
        """One more token for every row: from a dense cache's first `width` slots, or from all its pages.

        lora: a route of the rows as they are, or the factors, of which a route is made here: then rows may
        come and go between two steps. In place and without a look at any value, so that a GPU can run ahead
        and a CUDA graph can hold it.
        """
        model, limit = base.model, answers.u.shape[1] - 1
        route = lora.dense_route(self.member) if isinstance(lora, AdapterWeights) else lora
        mask = None
        if width is not None:
            mask = (torch.arange(width, device=self.t.device) <= self.position[:, None])[:, None, None]
        hidden = model(self.token[:, None], self.position[:, None], mask, self.cache, route)    # (B, 1, C)
        token, t = answers.draw(self.row, self.t, model.logits(hidden[:, 0]))
        self.token.copy_(token)
        self.t.copy_(t)
        self.position += t < limit


@torch.inference_mode()
def decode(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: torch.Tensor, n: int,
           answers: Answers, rollout_batch: int, bar: tqdm, kernel: Callable | None) -> None:
    """Fill in the answers to n attempts at each prompt.

    A round: let prompts in where enough rows have ended, or drop ended rows if nobody waits and they are
    many; then `patience` steps. A static step serves until the batch shrinks; another is made anew each
    round, for the rows as they are and as much of the cache as the furthest of them needs.
    """
    N = len(prompts) * n
    limit = answers.u.shape[1] - 1
    patience = PATIENCE.get(member.device.type, 1)
    static = kernel is not None or base.graphs
    shrink = 2 if static else 4
    weights = None
    if adapters is not None:
        weights = AdapterWeights(adapters, member, base.model.embedding.dtype)
    slot = member.tolist()
    longest_first = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), slot[i]))      # no surprises
    waiting = deque(longest_first)
    lengths = [len(prompts[i]) for i in longest_first]
    S = lengths[0] + limit
    rows = DecodeBatch.begin(base, lengths, n, rollout_batch, limit, kernel)
    step = None
    moved = True
    need = 0            # slots of a dense cache that hold a token by now
    while True:
        idle = rows.t == limit
        n_idle = int(idle.sum())
        bar.update(N - len(waiting) * n - len(rows.t) + n_idle - bar.n)
        rows.release(idle)
        n_chosen = 0
        if waiting and n_idle >= max(n, len(rows.t) / 4):
            candidates = islice(waiting, n_idle // n)
            n_chosen = rows.fitting([len(prompts[i]) for i in candidates], n, limit)
        if n_chosen:
            chosen = [waiting.popleft() for _ in range(n_chosen)]
            chosen.sort(key=slot.__getitem__)
            places = idle.nonzero().squeeze(1)[:len(chosen) * n]
            index = torch.tensor(chosen, device=member.device)
            some = [prompts[i] for i in chosen]
            rows.prefill(base, weights, answers, places, n, some, index * n, member[index])
            moved = True
            continue
        if n_idle == len(rows.t):
            assert not waiting, "a prompt that fits into an empty cache was not let in"
            return
        if not waiting and shrink * n_idle >= len(rows.t):              # idle rows stop costing
            rows.keep((~idle).nonzero().squeeze(1))
            step = None
            moved = True
        if static and step is None:
            width = None if kernel is not None else S
            step = CUDAGraphRunner(partial(rows.step, base, answers, weights, width), base.graphs)
        if not static:
            if moved:
                route = weights and weights.route(rows.member)
                need = int(rows.position.max())
            need = min(need + patience, S)
            step = partial(rows.step, base, answers, route, need)
        moved = False
        for _ in range(patience):
            step()


def generate(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int],
             keys: list[tuple[int, ...]], n: int = 1, temperature: float | list[float] = 1.0,
             max_new_tokens: int = 128, rollout_batch: int = 512, desc: str = "",
             closing: torch.Tensor | None = None, kernel: Callable | None = None) -> Rollout:
    """n attempts at each prompt by the prompt's member; row i*n+j is attempt j at prompt i.

    prompts: token ids; member: one index per prompt, -1 = bare base; keys: one per row, the source of its
    draws; temperature: one or one per row, 0 = greedy; closing: weights.closing_table of a text that ends an
    answer as an end token does; kernel: attention over pages, by default torch's where it works, else the
    cache is dense. At most rollout_batch rows decode together, but n at least. Raises ValueError when a
    prompt and its answer would not fit the base's context.
    """
    cfg, weight = base.model.cfg, base.model.embedding
    context = cfg.max_position_embeddings
    longest = max(map(len, prompts))
    if longest + max_new_tokens > context:
        raise ValueError(f"a prompt of {longest} tokens and an answer of {max_new_tokens} exceed the base's "
                         f"context of {context}: lower --max-new-tokens or --n-few-shot")
    N = len(keys)
    assert N == len(prompts) * n and len(member) == len(prompts), (N, len(prompts), n, len(member))
    device = weight.device
    if kernel is None:
        heads = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        kernel = paged_kernel(*heads, weight.dtype, device)
    temperatures = temperature if isinstance(temperature, list) else [temperature] * N
    u = np.stack([uniforms(key, max_new_tokens + 1) for key in keys])
    answers = Answers.begin(torch.tensor(temperatures, device=device),
                            torch.from_numpy(u).float().to(device), base.eos_ids, closing)
    members = torch.tensor(member, device=device)
    with tqdm(total=N, desc=desc, leave=False, disable=not desc) as bar:
        decode(base, adapters, prompts, members, n, answers, rollout_batch, bar, kernel)
    prompt_len = torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(n)
    T = int((prompt_len + answers.length).max())
    rollout = Rollout(ids=torch.zeros(N, T, dtype=torch.int64, device=device), prompt_len=prompt_len,
                      length=prompt_len + answers.length, logp=torch.zeros(N, T, device=device),
                      member=members.repeat_interleave(n))
    flat = []
    for prompt in prompts:
        flat += prompt * n
    is_prompt = torch.arange(T, device=device) < prompt_len[:, None]                            # (N, T)
    is_drawn = torch.arange(max_new_tokens + 1, device=device) < answers.length[:, None]        # (N, L + 1)
    rollout.ids[is_prompt] = torch.tensor(flat, device=device)
    rollout.ids[rollout.mask] = answers.ids[is_drawn]
    rollout.logp[rollout.mask] = answers.logp[is_drawn]
    return rollout
