"""Prompts in, rows out: one mixed batch for all members.

Prompts are padded on the left and run once; the cache rows are then repeated for the attempts at each prompt. Rows that
have ended leave the batch as soon as a quarter of it is idle. Every token of a row is drawn by inverting its cumulative
distribution at a uniform number that depends on the row's key alone, so that a row's draws do not depend on its neighbours.
"""
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from lora import Adapters
from model import Base, KVCache, Model

PREFILL = 1 << 14                          # padded tokens of prompts run at a time: a long prompt of each row never does at once


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off at the limit)."""
    ids: torch.Tensor                  # (N, T) int64
    prompt_len: torch.Tensor           # (N,) tokens of the prompt
    length: torch.Tensor               # (N,) tokens of prompt and answer: masks come from these, never from token identity
    logp: torch.Tensor                 # (N, T) float32: logp[:, t] scores ids[:, t] under the distribution it was drawn from; 0 elsewhere
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
                       torch.cat([p.length for p in parts]), torch.cat([wide(p.logp) for p in parts]), torch.cat([p.member for p in parts]))


def uniforms(key: tuple[int, ...], n: int) -> np.ndarray:
    """n numbers in [0, 1) that depend on the key (seed, step, phase, member, index) alone."""
    return np.random.default_rng(key).random(n)


def left_pad(prompts: list[list[int]], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts -> ids (B, T) padded on the left, and which of them are real (B, T)."""
    T = max(map(len, prompts))
    ids = torch.tensor([[0] * (T - len(p)) + p for p in prompts], device=device)
    real = torch.arange(T, device=device) >= torch.tensor([T - len(p) for p in prompts], device=device)[:, None]
    return ids, real


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


def prefill(model: Model, ids: torch.Tensor, real: torch.Tensor, cache: KVCache, route) -> torch.Tensor:
    """Run left-padded prompts (U, T) into the cache, at most PREFILL tokens at a time; returns the last hidden states (U, C)."""
    (U, T), out = ids.shape, []
    causal = torch.ones(T, T, dtype=torch.bool, device=ids.device).tril()
    own = torch.eye(T, dtype=torch.bool, device=ids.device)                         # padding sees itself: no row of softmax is empty
    for rows in torch.arange(U, device=ids.device).split(max(1, PREFILL // T)):
        a, b = int(rows[0]), int(rows[-1]) + 1
        position = (real[a:b].cumsum(1) - 1).clamp_min(0)
        seen = (real[a:b, None, None] & causal) | own                               # (u, 1, T, T)
        out.append(model(ids[a:b], position, seen, cache.rows(a, b), route and route.keep(rows))[:, -1])
    cache.length = T
    return torch.cat(out)


@torch.inference_mode()
def _decode(base: Base, adapters: Adapters | None, prompts, member, n, temperature, max_new, u) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One batch: answers (B, max_new), their logp, and answer lengths (B,), for B = len(prompts) * n rows, prompt-major."""
    model, device = base.model, base.model.embedding.device
    dtype, ends = model.embedding.dtype, torch.tensor(base.eos_ids, device=device)
    ids, real = left_pad(prompts, device)
    U, T = ids.shape
    cache = KVCache.empty(model.cfg, U, T + max_new, dtype, device)
    route = adapters.route(member[::n], dtype) if adapters is not None else None
    hidden = prefill(model, ids, real, cache, route)
    rows = torch.arange(U, device=device).repeat_interleave(n)
    cache.select(rows)
    route, logits, position = route and route.keep(rows), model.logits(hidden)[rows], real.sum(1)[rows] - 1
    valid = torch.cat((real[rows], torch.ones(U * n, max_new, dtype=torch.bool, device=device)), 1)[:, None, None]   # (B, 1, 1, S)
    out, out_logp = torch.zeros(U * n, max_new, dtype=torch.int64, device=device), torch.zeros(U * n, max_new, device=device)
    length = torch.full((U * n,), max_new, device=device)
    live, done = torch.arange(U * n, device=device), torch.zeros(U * n, dtype=torch.bool, device=device)
    for t in range(max_new):
        token, logp = sample(logits, temperature[live], u[live, t])
        open_ = ~done
        out[live[open_], t], out_logp[live[open_], t] = token[open_], logp[open_]
        ended = open_ & torch.isin(token, ends)
        length[live[ended]] = t + 1
        done |= ended
        n_done = int(done.sum())
        if n_done == len(live) or t == max_new - 1:
            break
        if 4 * n_done >= len(live):                                                 # finished rows stop costing
            keep = (~done).nonzero().squeeze(1)
            live, token, position, valid, done = live[keep], token[keep], position[keep], valid[keep], done[keep]
            cache.select(keep)
            route = route and route.keep(keep)
        position = position + 1
        hidden = model(token[:, None], position[:, None], valid[..., :cache.length + 1], cache, route)[:, 0]
        logits = model.logits(hidden)
    return out, out_logp, length


def generate(base: Base, adapters: Adapters | None, prompts: list[list[int]], member: list[int], keys: list[tuple[int, ...]], n: int = 1,
             temperature: float | list[float] = 1.0, max_new: int = 128, max_rows: int = 512, desc: str = "") -> Rollout:
    """n attempts at each prompt by the prompt's member; row i*n+j is attempt j at prompt i.

    prompts: token ids; member: one index per prompt, -1 = bare base; keys: one per row, the source of its draws;
    temperature: one or one per row, 0 = greedy. At most max_rows rows decode together, shortest prompts first.
    Raises ValueError when a prompt and its answer would not fit the base's context.
    """
    limit, longest = base.model.cfg.max_position_embeddings, max(map(len, prompts))
    if longest + max_new > limit:
        raise ValueError(f"a prompt of {longest} tokens and an answer of {max_new} exceed the base's context of {limit}: lower --max-new or --n-refs")
    assert len(keys) == len(prompts) * n and len(member) == len(prompts), (len(keys), len(prompts), n, len(member))
    device = base.model.embedding.device
    B = len(keys)
    temp = torch.tensor(temperature if isinstance(temperature, list) else [temperature] * B, device=device)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    step, T = max(1, max_rows // n), longest + max_new
    ids, logp = torch.zeros(B, T, dtype=torch.int64, device=device), torch.zeros(B, T, device=device)
    prompt_len = torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(n)
    length, members = prompt_len.clone(), torch.tensor(member, device=device).repeat_interleave(n)
    for start in tqdm(range(0, len(order), step), desc=desc, leave=False, disable=not desc):
        chunk = order[start:start + step]
        rows = torch.tensor([i * n + j for i in chunk for j in range(n)], device=device)
        u = torch.from_numpy(np.stack([uniforms(keys[r], max_new) for r in rows.tolist()])).float().to(device)
        out, out_logp, answer = _decode(base, adapters, [prompts[i] for i in chunk], members[rows], n, temp[rows], max_new, u)
        length[rows] += answer
        for i, r in enumerate(rows.tolist()):
            a, k = int(prompt_len[r]), int(answer[i])
            ids[r, :a] = torch.tensor(prompts[r // n], device=device)
            ids[r, a:a + k], logp[r, a:a + k] = out[i, :k], out_logp[i, :k]
    T = int(length.max())
    return Rollout(ids[:, :T], prompt_len, length, logp[:, :T], members)
