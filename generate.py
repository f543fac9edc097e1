"""Prompts in, rows out: one mixed batch for all members.

A prompt is run once for all attempts at it. Rows decode side by side in a cache of fixed size; when a quarter of them has
ended, waiting prompts take their places, and when none waits, the batch shrinks. A token lies in the cache slot of its
position, so that rows of any length stand beside each other without padding. Every token of a row is drawn by inverting its
cumulative distribution at a uniform number that depends on the row's key alone: a row's draws do not depend on its neighbours.
"""
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from lora import Adapters, Serving
from model import Base, KVCache

PREFILL = 1 << 12                          # padded tokens of prompts run at a time: a long prompt of each row never does at once
PATIENCE = {"cuda": 8}                     # steps between looks at who has ended: each makes the processor wait for the GPU


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off at the limit)."""
    ids: torch.Tensor                  # (N, T) int64
    prompt_len: torch.Tensor           # (N,) tokens of the prompt
    length: torch.Tensor               # (N,) tokens of prompt and answer: masks come from these, never from token identity
    logp: torch.Tensor                 # (N, T) float32: logp[:, t] scores ids[:, t] under the distribution it was drawn from, else 0
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
class Rows:
    """B rows that decode together. Idle rows, whose answers have ended, have t = the limit and stay where they are."""
    cache: KVCache
    logits: torch.Tensor               # (B, V) of the next token
    row: torch.Tensor                  # (B,) which row of the call this is
    member: torch.Tensor               # (B,)
    position: torch.Tensor             # (B,) of the last token in the cache
    t: torch.Tensor                    # (B,) answer tokens so far

    def keep(self, kept: torch.Tensor) -> None:
        """Drop all rows but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("logits", "row", "member", "position", "t"):
            setattr(self, name, getattr(self, name)[kept])


def admit(base: Base, serving: Serving | None, rows: Rows, places: torch.Tensor, n: int, prompts: list[list[int]], first: torch.Tensor,
          member: torch.Tensor) -> None:
    """Run prompts (U) of members (U,) and begin n attempts at each in the places (U n,), as the call's rows first[i] + 0..n-1."""
    model, device = base.model, places.device
    length = torch.tensor([len(p) for p in prompts], device=device)
    size = max(1, PREFILL // max(map(len, prompts)))
    for part in (slice(at, at + size) for at in range(0, len(prompts), size)):
        some = prompts[part]
        T = max(map(len, some))
        ids = torch.tensor([p + [0] * (T - len(p)) for p in some], device=device)                        # causal: padding is never seen
        cache = KVCache.empty(model.cfg, len(some), T, model.embedding.dtype, device)
        hidden = model(ids, cache=cache, lora=serving and serving.route(member[part]))
        logits = model.logits(hidden[torch.arange(len(some), device=device), length[part] - 1])
        into, of = places.view(-1, n)[part].flatten(), torch.arange(len(some), device=device).repeat_interleave(n)
        rows.cache.put(into, cache, of)
        rows.logits[into] = logits[of]
    rows.row[places] = (first[:, None] + torch.arange(n, device=device)).flatten()
    rows.member[places], rows.position[places], rows.t[places] = member.repeat_interleave(n), (length - 1).repeat_interleave(n), 0


@torch.inference_mode()
def decode(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: torch.Tensor, n: int, temperature: torch.Tensor,
           max_new: int, max_rows: int, u: torch.Tensor, bar: tqdm) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Answers (N, max_new + 1) to n attempts at each prompt, their log-probabilities, and their lengths (N,), N = len(prompts) n."""
    model, device, N = base.model, member.device, len(prompts) * n
    dtype, ends = model.embedding.dtype, torch.tensor(base.eos_ids, device=device)
    serving = Serving(adapters, member, dtype) if adapters is not None else None
    slot = member.tolist()
    waiting = deque(sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), slot[i])))       # longest first: no surprises
    B, S = min(N, max(1, max_rows // n) * n), len(prompts[waiting[0]]) + max_new
    number = lambda value: torch.full((B,), value, device=device)
    rows = Rows(KVCache.empty(model.cfg, B, S, dtype, device), torch.zeros(B, model.cfg.vocab_size, dtype=dtype, device=device),
                torch.arange(B, device=device), number(-1), number(0), number(max_new))
    out, out_logp = (torch.zeros(N, max_new + 1, dtype=kind, device=device) for kind in (torch.int64, torch.float32))
    length, n_idle, step, moved = torch.zeros(N, dtype=torch.int64, device=device), B, 0, False
    while True:
        if waiting and n_idle >= max(n, len(rows.t) / 4):
            places = (rows.t == max_new).nonzero().squeeze(1)[:len(waiting) * n]
            chosen = sorted((waiting.popleft() for _ in range(len(places) // n)), key=slot.__getitem__)
            first = torch.tensor(chosen, device=device)
            admit(base, serving, rows, places[:len(chosen) * n], n, [prompts[i] for i in chosen], first * n, member[first])
            n_idle, moved = 0, True
        token, logp = sample(rows.logits, temperature[rows.row], u[rows.row, rows.t])
        out[rows.row, rows.t], out_logp[rows.row, rows.t] = token, logp                              # idle rows write behind the limit
        live = rows.t < max_new
        rows.t += live
        length[rows.row] = torch.where(live, rows.t, length[rows.row])
        rows.t.masked_fill_(live & torch.isin(token, ends), max_new)
        step += 1
        if step % PATIENCE.get(device.type, 1) == 0:
            n_idle = int((rows.t == max_new).sum())
            bar.update(N - len(waiting) * n - len(rows.t) + n_idle - bar.n)
            if n_idle == len(rows.t):
                if not waiting:
                    return out, out_logp, length
                continue
            if not waiting and 4 * n_idle >= len(rows.t):                                            # idle rows stop costing
                kept = (rows.t < max_new).nonzero().squeeze(1)
                rows.keep(kept)
                token, n_idle, moved = token[kept], 0, True
        if moved:
            route, width, moved = serving and serving.route(rows.member), int(rows.position.max()) + 1, False
        rows.position += rows.t < max_new
        width = min(width + 1, S)
        seen = torch.arange(width, device=device) <= rows.position[:, None]
        hidden = model(token[:, None], rows.position[:, None], seen[:, None, None], rows.cache, route)[:, 0]
        rows.logits = model.logits(hidden)


def generate(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int], keys: list[tuple[int, ...]],
             n: int = 1, temperature: float | list[float] = 1.0, max_new: int = 128, max_rows: int = 512, desc: str = "") -> Rollout:
    """n attempts at each prompt by the prompt's member; row i*n+j is attempt j at prompt i.

    prompts: token ids; member: one index per prompt, -1 = bare base; keys: one per row, the source of its draws;
    temperature: one or one per row, 0 = greedy. At most max_rows rows decode together, but n at least.
    Raises ValueError when a prompt and its answer would not fit the base's context.
    """
    limit, longest = base.model.cfg.max_position_embeddings, max(map(len, prompts))
    if longest + max_new > limit:
        raise ValueError(f"a prompt of {longest} tokens and an answer of {max_new} exceed the base's context of {limit}: "
                         "lower --max-new or --n-refs")
    assert len(keys) == len(prompts) * n and len(member) == len(prompts), (len(keys), len(prompts), n, len(member))
    device, N = base.model.embedding.device, len(keys)
    temperature = torch.tensor(temperature if isinstance(temperature, list) else [temperature] * N, device=device)
    u = torch.from_numpy(np.stack([uniforms(key, max_new + 1) for key in keys])).float().to(device)
    members = torch.tensor(member, device=device)
    with tqdm(total=N, desc=desc, leave=False, disable=not desc) as bar:
        out, out_logp, length = decode(base, adapters, prompts, members, n, temperature, max_new, max_rows, u, bar)
    prompt_len = torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(n)
    T = int((prompt_len + length).max())
    rollout = Rollout(torch.zeros(N, T, dtype=torch.int64, device=device), prompt_len, prompt_len + length,
                      torch.zeros(N, T, device=device), members.repeat_interleave(n))
    slot, t = torch.arange(T, device=device), torch.arange(max_new + 1, device=device)
    rollout.ids[slot < prompt_len[:, None]] = torch.tensor([t for p in prompts for _ in range(n) for t in p], device=device)
    rollout.ids[rollout.mask], rollout.logp[rollout.mask] = out[t < length[:, None]], out_logp[t < length[:, None]]
    return rollout
