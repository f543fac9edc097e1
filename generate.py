"""Prompts in, rows out: one mixed batch for all members.

A prompt is run once for all attempts at it. Rows decode side by side in a cache of fixed size; when a quarter of them has
ended, waiting prompts take their places, and when none waits, the batch shrinks. A token lies in the cache slot of its
position, so that rows of any length stand beside each other without padding. Every token of a row is drawn by inverting its
cumulative distribution at a uniform number that depends on the row's key alone: a row's draws do not depend on its neighbours.
"""
from collections import deque
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from lora import Adapters, LoRARouter, AdapterWeights
from model import Base, KVCache

PREFILL = 1 << 12                          # padded tokens of prompts run at a time: a long prompt of each row never does at once
PATIENCE = {"cuda": 8}                     # steps between looks at who has ended: each makes the processor wait for the GPU
STRIDE = 128                               # cache slots by which a recorded step's width grows: every width is a recording


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off at the limit)."""
    ids: torch.Tensor                  # (N, T) int64
    prompt_len: torch.Tensor           # (N,) tokens of the prompt
    length: torch.Tensor               # (N,) tokens of prompt and answer: masks come from these, never from token identity
    logp: torch.Tensor                 # (N, T) float32: logp[:, t] scores ids[:, t] under what it was drawn from; 0 in the prompt
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
        rows = zip(self.ids.tolist(), self.prompt_len.tolist(), self.length.tolist())
        return [[t for t in ids[start:end] if t not in eos_ids] for ids, start, end in rows]

    def select(self, rows: torch.Tensor) -> "Rollout":
        """The given rows (n,), cut to their longest."""
        T = int(self.length[rows].max())
        return Rollout(self.ids[rows, :T], self.prompt_len[rows], self.length[rows], self.logp[rows, :T], self.member[rows])

    def to(self, device) -> "Rollout":
        """The same rows in another device's memory."""
        return Rollout(*(getattr(self, f.name).to(device) for f in fields(self)))

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Join the rows of several rollouts, padding to the longest."""
        T = max(p.ids.shape[1] for p in parts)
        wide = lambda x: torch.nn.functional.pad(x, (0, T - x.shape[1]))
        return Rollout(torch.cat([wide(p.ids) for p in parts]), torch.cat([p.prompt_len for p in parts]),
                       torch.cat([p.length for p in parts]), torch.cat([wide(p.logp) for p in parts]),
                       torch.cat([p.member for p in parts]))


def uniforms(key: tuple[int, ...], n: int) -> np.ndarray:
    """n numbers in [0, 1) that depend on the key (seed, step, phase, member, index) alone."""
    return np.random.default_rng(key).random(n)


def sample(logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of logits (B, V) at temperature (B,), 0 = greedy, by u (B,) in [0, 1).

    Returns token ids (B,) and their float32 log-probabilities (B,) under the tempered distribution (greedy rows: untempered).
    """
    greedy = temperature == 0
    logp = (logits.float() / temperature.masked_fill(greedy, 1.0)[:, None]).log_softmax(-1)
    cdf = logp.exp().cumsum(-1)
    total = cdf[:, -1:]
    at = torch.minimum(u.to(cdf.dtype)[:, None] * total, total.nextafter(torch.zeros_like(total)))   # may round up to total
    drawn = torch.searchsorted(cdf, at, right=True).squeeze(1).clamp_max(logits.shape[1] - 1)        # NaN may pass the end
    ids = torch.where(greedy, logits.argmax(-1), drawn)
    return ids, logp.gather(1, ids[:, None]).squeeze(1)


@dataclass
class Answers:
    """The answers of a call's N rows as they grow, at most L tokens each, and what they are drawn with."""
    temperature: torch.Tensor          # (N,)
    u: torch.Tensor                    # (N, L + 1) in [0, 1); the last column is spare, and so in ids and logp
    ends: torch.Tensor                 # ids of the end tokens
    ids: torch.Tensor                  # (N, L + 1) int64
    logp: torch.Tensor                 # (N, L + 1) float32
    length: torch.Tensor               # (N,)

    @classmethod
    def begin(cls, temperature: torch.Tensor, u: torch.Tensor, ends: tuple[int, ...]) -> "Answers":
        """None of them has a token yet."""
        ids, length = (torch.zeros(shape, dtype=torch.int64, device=u.device) for shape in (u.shape, len(u)))
        return cls(temperature, u, torch.tensor(ends, dtype=torch.int64, device=u.device), ids, torch.zeros_like(u), length)

    def draw(self, row: torch.Tensor, t: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the next token of rows (n,), which have t (n,) tokens, by logits (n, V). Returns it and the new t.

        A row that has ended is marked by t = L: what it draws from then on lands in the spare column.
        """
        limit = self.u.shape[1] - 1
        token, logp = sample(logits, self.temperature[row], self.u[row, t])
        self.ids[row, t], self.logp[row, t] = token, logp
        live = t < limit
        self.length[row] = torch.where(live, t + 1, self.length[row])
        return token, torch.where(live & ~torch.isin(token, self.ends), t + 1, limit)


@dataclass
class DecodeBatch:
    """B rows that decode together. Idle ones, whose answers have ended, have t = the limit and stay where they are."""
    cache: KVCache
    row: torch.Tensor                  # (B,) which row of the call this is
    member: torch.Tensor               # (B,)
    token: torch.Tensor                # (B,) the last one drawn, not yet in the cache
    position: torch.Tensor             # (B,) of that token
    t: torch.Tensor                    # (B,) answer tokens so far

    def keep(self, kept: torch.Tensor) -> None:
        """Drop all rows but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("row", "member", "token", "position", "t"):
            setattr(self, name, getattr(self, name)[kept])

    def prefill(self, base: Base, weights: AdapterWeights | None, answers: Answers, places: torch.Tensor, n: int, prompts: list[list[int]],
              first: torch.Tensor, member: torch.Tensor) -> None:
        """Run prompts (U) of members (U,); n attempts at each begin in the places (U n,), as rows first[i] + 0..n-1."""
        model, device = base.model, places.device
        length = torch.tensor([len(p) for p in prompts], device=device)
        self.row[places] = (first[:, None] + torch.arange(n, device=device)).flatten()
        self.member[places], self.position[places] = member.repeat_interleave(n), length.repeat_interleave(n)
        size = max(1, PREFILL // max(map(len, prompts)))
        for part in (slice(at, at + size) for at in range(0, len(prompts), size)):
            some = prompts[part]
            T = max(map(len, some))
            ids = torch.tensor([p + [0] * (T - len(p)) for p in some], device=device)        # causal: padding is never seen
            cache = KVCache.empty(model.cfg, len(some), T, model.embedding.dtype, device)
            hidden = model(ids, cache=cache, lora=weights and weights.route(member[part]))
            logits = model.logits(hidden[torch.arange(len(some), device=device), length[part] - 1])
            into, of = places.view(-1, n)[part].flatten(), torch.arange(len(some), device=device).repeat_interleave(n)
            self.cache.put(into, cache, of)
            self.token[into], self.t[into] = answers.draw(self.row[into], torch.zeros_like(into), logits[of])

    def step(self, base: Base, answers: Answers, route: LoRARouter | None, width: int) -> None:
        """One more token for every row, from the cache's first `width` slots: in place and without a look at any value, so that
        a GPU can run ahead and a CUDA graph can hold it."""
        model, limit = base.model, answers.u.shape[1] - 1
        seen = torch.arange(width, device=self.t.device) <= self.position[:, None]
        hidden = model(self.token[:, None], self.position[:, None], seen[:, None, None], self.cache, route)[:, 0]
        token, t = answers.draw(self.row, self.t, model.logits(hidden))
        self.token.copy_(token)
        self.t.copy_(t)
        self.position += t < limit


class CUDAGraphRunner:
    """A step that is called over and over. As a CUDA graph its third call is recorded, and that and all later ones are replayed:
    one launch instead of a thousand."""

    def __init__(self, step, as_graph: bool):
        self.step, self.as_graph, self.n_calls, self.graph = step, as_graph, 0, None

    def __call__(self) -> None:
        self.n_calls += 1
        if self.as_graph and self.n_calls == 3:              # the first two load kernels, which is forbidden while recording
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step()                                  # computes nothing
        self.graph.replay() if self.graph else self.step()


@torch.inference_mode()
def decode(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: torch.Tensor, n: int, answers: Answers,
           rollout_batch: int, bar: tqdm) -> None:
    """Fill in the answers to n attempts at each prompt, N = len(prompts) n.

    A round: let prompts in where enough rows have ended, or drop ended rows if nobody waits and they are many; then `patience`
    steps, which look at as much of the cache as the furthest row needs.
    """
    device, dtype, N, max_new_tokens = member.device, base.model.embedding.dtype, len(prompts) * n, answers.u.shape[1] - 1
    patience, stride, shrink = PATIENCE.get(device.type, 1), STRIDE if base.graphs else 1, 2 if base.graphs else 4
    weights = AdapterWeights(adapters, member, dtype) if adapters is not None else None
    slot = member.tolist()
    waiting = deque(sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), slot[i])))        # longest first: no surprises
    B, S = min(N, max(1, rollout_batch // n) * n), len(prompts[waiting[0]]) + max_new_tokens
    number = lambda value: torch.full((B,), value, device=device)
    rows = DecodeBatch(KVCache.empty(base.model.cfg, B, S, dtype, device), torch.arange(B, device=device),
                member=number(-1), token=number(0), position=number(0), t=number(max_new_tokens))
    moved, need, width = True, 0, 0                                          # slots of the cache: needed by now, looked at
    while True:
        n_idle = int((rows.t == max_new_tokens).sum())
        bar.update(N - len(waiting) * n - len(rows.t) + n_idle - bar.n)
        if waiting and n_idle >= max(n, len(rows.t) / 4):
            places = (rows.t == max_new_tokens).nonzero().squeeze(1)[:len(waiting) * n]
            chosen = sorted((waiting.popleft() for _ in range(len(places) // n)), key=slot.__getitem__)
            places, first = places[:len(chosen) * n], torch.tensor(chosen, device=device)
            rows.prefill(base, weights, answers, places, n, [prompts[i] for i in chosen], first * n, member[first])
            moved = True
            continue
        if n_idle == len(rows.t):
            return
        if not waiting and shrink * n_idle >= len(rows.t):                   # idle rows stop costing
            rows.keep((rows.t < max_new_tokens).nonzero().squeeze(1))
            moved = True
        if moved:
            route, need = weights and weights.route(rows.member), int(rows.position.max())
        need = min(need + patience, S)
        if moved or need > width:
            width = min(-(-need // stride) * stride, S)
            step, moved = CUDAGraphRunner(partial(rows.step, base, answers, route, width), base.graphs), False
        for _ in range(patience):
            step()


def generate(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int], keys: list[tuple[int, ...]],
             n: int = 1, temperature: float | list[float] = 1.0, max_new_tokens: int = 128, rollout_batch: int = 512,
             desc: str = "") -> Rollout:
    """n attempts at each prompt by the prompt's member; row i*n+j is attempt j at prompt i.

    prompts: token ids; member: one index per prompt, -1 = bare base; keys: one per row, the source of its draws;
    temperature: one or one per row, 0 = greedy. At most rollout_batch rows decode together, but n at least.
    Raises ValueError when a prompt and its answer would not fit the base's context.
    """
    limit, longest = base.model.cfg.max_position_embeddings, max(map(len, prompts))
    if longest + max_new_tokens > limit:
        raise ValueError(f"a prompt of {longest} tokens and an answer of {max_new_tokens} exceed the base's context of {limit}: "
                         "lower --max-new-tokens or --n-few-shot")
    assert len(keys) == len(prompts) * n and len(member) == len(prompts), (len(keys), len(prompts), n, len(member))
    device, N = base.model.embedding.device, len(keys)
    temperature = torch.tensor(temperature if isinstance(temperature, list) else [temperature] * N, device=device)
    u = torch.from_numpy(np.stack([uniforms(key, max_new_tokens + 1) for key in keys])).float().to(device)
    members = torch.tensor(member, device=device)
    answers = Answers.begin(temperature, u, base.eos_ids)
    with tqdm(total=N, desc=desc, leave=False, disable=not desc) as bar:
        decode(base, adapters, prompts, members, n, answers, rollout_batch, bar)
    length, prompt_len = answers.length, torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(n)
    T = int((prompt_len + length).max())
    rollout = Rollout(torch.zeros(N, T, dtype=torch.int64, device=device), prompt_len, prompt_len + length,
                      torch.zeros(N, T, device=device), members.repeat_interleave(n))
    slot, t = torch.arange(T, device=device), torch.arange(max_new_tokens + 1, device=device)
    rollout.ids[slot < prompt_len[:, None]] = torch.tensor([t for p in prompts for _ in range(n) for t in p], device=device)
    rollout.ids[rollout.mask], rollout.logp[rollout.mask] = answers.ids[t < length[:, None]], answers.logp[t < length[:, None]]
    return rollout
