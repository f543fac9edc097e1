"""Prompts in, rows out: one mixed batch for all members. The way of a token:

    generate     deals the prompts out to the processes
    decode       lets prompts in where rows have ended, then takes steps, until all answers are there
    DecodeBatch  the rows that decode side by side: `admit` runs prompts, `step` gives every row a token more
    sample       draws by inverting the cumulative distribution at a number that hangs on the row's key alone

A prompt is run once for all answers to it. A token lies in the cache slot of its position: no padding. On a
CUDA card the cache is paged and a step works in place: one CUDA graph holds it while the batch has its size.
"""
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from attention import KVCache, PagedCache, paged_kernel
from infra.distributed import ALONE, Ranks
from infra.errors import UserError
from infra.gpu import CUDAGraphRunner, send
from lora import Adapters, AdapterWeights, Route
from model import Base, closing_table

BELOW_1 = 1 - 2 ** -23      # largest number whose product with a float32 total cannot round up to the total
BLOCK = 512                 # weights of a vocabulary that are summed apart: see draw
PREFILL = 1 << 12           # padded tokens of prompts run at a time: never a long prompt of each row at once
PATIENCE = {"cuda": 8}      # steps between looks at who has ended: each makes the processor wait for the GPU


@dataclass
class Rollout:
    """N rows, padded on the right: a prompt, then the sampled answer with its end token (absent if cut off).
    Masks come from the lengths, never from tokens. logp[:, t] scores ids[:, t] under what it was drawn
    from."""
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
        rows = zip(self.ids.tolist(), self.prompt_len.tolist(), self.length.tolist())
        return [[token for token in ids[start:end] if token not in eos_ids] for ids, start, end in rows]

    def select(self, rows: torch.Tensor) -> "Rollout":
        """The given rows (n,), cut to their longest."""
        kept = Rollout(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})
        return kept.widened(int(kept.length.max()))

    def to(self, device) -> "Rollout":
        """The same rows in another device's memory."""
        return Rollout(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def widened(self, T: int) -> "Rollout":
        """The same rows, padded or cut to T tokens."""
        missing = (0, T - self.ids.shape[1])
        return replace(self, ids=F.pad(self.ids, missing), logp=F.pad(self.logp, missing))

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Join the rows of several rollouts, padding to the longest."""
        T = max(p.ids.shape[1] for p in parts)
        parts = [p.widened(T) for p in parts]
        return Rollout(**{f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Rollout)})


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


def draw(weight: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Index (B,) where the running sum of weights (B, V) passes u (B,) in [0, 1) times their sum. By the sums
    of blocks, then within one: a card would write and read the running sum of a whole vocabulary."""
    V = weight.shape[1]
    size = min(V, BLOCK)
    blocks = F.pad(weight, (0, -V % size)).unflatten(1, (-1, size))                     # (B, n, size)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)                               # (B, n)
    at = u.clamp_max(BELOW_1)[:, None] * ends[:, -1:].float()
    block = torch.searchsorted(ends.float(), at, right=True).clamp_max(blocks.shape[1] - 1)     # (B, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, size)).squeeze(1)
    cdf = F.pad(ends, (1, 0)).gather(1, block) + inside.cumsum(-1, dtype=torch.float64)
    index = block * size + torch.searchsorted(cdf.float(), at, right=True)
    return index.squeeze(1).clamp_max(V - 1)                                            # NaN may pass the end


def sample(logits: torch.Tensor, temperature: float, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row of logits (B, V) by u (B,) in [0, 1); at temperature 0 take the likeliest.
    Returns ids (B,) and their float32 log-probabilities (B,) when tempered (of greedy ones: untempered)."""
    logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    ids = draw(logp.exp(), u) if temperature else logits.argmax(-1)
    return ids, logp.gather(1, ids[:, None]).squeeze(1)


class DecodeBatch:
    """B places, in which a call's N rows decode side by side: L answer tokens at most.

    `rows` is the rollout as it grows, with a spare last column; u (N, L + 1) are the numbers that its answers
    are drawn by. Of the places: which row (B,) decodes there, its member, its latest token, which is not in
    the cache yet, that token's position, and t, the answer's tokens so far; t = L where no row decodes.
    """

    def __init__(self, base: Base, adapters: Adapters | None, prompts: Prompts, sampling: SamplingParams):
        cfg, weight, N = base.model.cfg, base.model.embedding, len(prompts.keys)
        device, dtype, n, L = weight.device, weight.dtype, sampling.n, sampling.max_new_tokens
        self.base, self.n, self.L, self.sampling = base, n, L, sampling
        self.lengths = list(map(len, prompts.ids))
        S = max(self.lengths) + L
        padded = [ids + [0] * (S + 1 - len(ids)) for ids in prompts.ids]
        ids, length, member = [send(torch.tensor(of_prompts), device).repeat_interleave(n, 0)
                               for of_prompts in (padded, self.lengths, prompts.member)]
        self.rows = Rollout(ids, length, length.clone(), torch.zeros(ids.shape, device=device), member)
        u = np.stack([np.random.default_rng(key).random(L + 1) for key in prompts.keys])
        self.u = send(torch.from_numpy(u).float(), device)
        self.ends = send(torch.tensor(base.eos_ids), device)
        self.closing = closing_table(base.tokenizer, sampling.closing, cfg.vocab_size, device)
        self.n_matched = torch.zeros_like(length)       # characters of the closing text that a row ends with

        B = min(N, max(1, sampling.rollout_batch // n) * n)
        kernel = paged_kernel(cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim, dtype, device)
        self.paged, sizes = kernel is not None, (cfg, B, S, dtype, device)
        self.cache = PagedCache(*sizes, kernel) if self.paged else KVCache(*sizes)
        self.weights = adapters and AdapterWeights(adapters, member, dtype, pages=self.paged)
        self.row = torch.arange(B, device=device)
        self.member = torch.full_like(self.row, -1)
        self.token, self.position = torch.zeros(2, B, dtype=torch.int64, device=device)
        self.t = torch.full_like(self.row, L)
        self.stepper = None                             # takes a step while the places stay as they are

    def extend(self, row: torch.Tensor, t: torch.Tensor, logits: torch.Tensor):
        """Draw the next token of rows (n,), which have t (n,) tokens, by logits (n, V): it and the new t.
        What a row draws when it has ended, at t = L, lands in the spare column."""
        rows = self.rows
        token, logp = sample(logits, self.sampling.temperature, self.u[row, t])
        live = t < self.L
        column = torch.where(live, rows.prompt_len[row] + t, rows.ids.shape[1] - 1)
        rows.ids[row, column] = token
        rows.logp[row, column] = logp
        rows.length[row] = torch.where(live, column + 1, rows.length[row])
        ended = (token[:, None] == self.ends).any(-1)       # torch.isin of many ends would wait for a GPU
        if (closing := self.closing) is not None:
            self.n_matched[row] = n_matched = closing[self.n_matched[row], token].long()
            ended = ended | (n_matched == len(closing) - 1)
        return token, torch.where(live & ~ended, t + 1, self.L)

    def admit(self, prompts: list[int]) -> None:
        """Run these prompts, by number, for n rows each, in the first places that are idle."""
        model, rows, n, device = self.base.model, self.rows, self.n, self.t.device
        first = send(torch.tensor(prompts), device) * n             # row of each prompt's first answer
        ids = rows.ids[first, :max(self.lengths[i] for i in prompts)]                       # padded with 0
        cache = KVCache(model.cfg, *ids.shape, model.embedding.dtype, device)
        hidden = model(ids, cache=cache, lora=self.weights and self.weights.route(rows.member[first]))
        line = torch.arange(len(ids), device=device)
        logits = model.logits(hidden[line, rows.prompt_len[first] - 1])
        source = line.repeat_interleave(n)
        places = (self.t == self.L).nonzero().squeeze(1)[:len(source)]
        self.cache.put(places, cache, source)
        row = (first[:, None] + torch.arange(n, device=device)).flatten()
        token, t = self.extend(row, torch.zeros_like(row), logits[source])
        new = dict(row=row, member=rows.member[row], token=token, position=rows.prompt_len[row], t=t)
        for name, x in new.items():
            getattr(self, name)[places] = x
        self.stepper = self.stepper if self.paged else None

    def keep(self, kept: torch.Tensor) -> None:
        """Drop all places but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("row", "member", "token", "position", "t"):
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

    def unfinished(self, waiting: deque[int]) -> set[int]:
        """Numbers of the rows that decode, or whose prompts wait."""
        rows = set(self.row[self.t < self.L].tolist())
        for prompt in waiting:
            rows.update(range(prompt * self.n, (prompt + 1) * self.n))
        return rows

    def make_stepper(self):
        """What takes a step. In pages rows may come and go between two: the route is made from their members
        within the step. Otherwise it has the route of the rows that are here, and looks at as many slots as
        the furthest row fills."""
        if self.paged:
            return CUDAGraphRunner(lambda: self.step(self.weights and self.weights.route(self.member)),
                                   self.base.graphs)
        self.cache.length = int(self.position.max())
        route = self.weights and self.weights.route(self.member, one_token=True)
        return lambda: self.step(route)


@torch.inference_mode()
def decode(base: Base, adapters: Adapters | None, prompts: Prompts, sampling: SamplingParams,
           watch: Callable[[Rollout, list[int]], None] | None = None) -> Rollout:
    """The rows in this process, wider than the longest: let prompts in where enough rows have ended, the
    longest first; drop the places of ended rows if no prompt waits and they are many; step; and so on. watch:
    see `generate`."""
    batch, n, member = DecodeBatch(base, adapters, prompts, sampling), sampling.n, prompts.member
    going = set(range(len(prompts.keys)))           # rows that `watch` has not been shown
    waiting = deque(sorted(range(len(member)), key=lambda i: (-batch.lengths[i], member[i])))
    with tqdm(total=len(prompts.keys), desc=sampling.desc, leave=False, disable=not sampling.desc) as bar:
        while True:
            idle = batch.t == batch.L
            B, n_idle = len(idle), int(idle.sum())
            n_ended = (len(member) - len(waiting)) * n - (B - n_idle)
            bar.update(n_ended - bar.n)
            if watch:
                still = batch.unfinished(waiting) if n_ended > len(prompts.keys) - len(going) else going
                watch(batch.rows, sorted(going - still))
                going = still
            if waiting and n_idle >= max(n, B / 4):
                chosen = [waiting.popleft() for _ in range(min(len(waiting), n_idle // n))]
                chosen.sort(key=member.__getitem__)
                size = max(1, PREFILL // max(batch.lengths[i] for i in chosen))
                for at in range(0, len(chosen), size):
                    batch.admit(chosen[at:at + size])
                continue
            if n_idle == B:
                batch.stepper = None            # a reference cycle would keep the batch's cache
                return batch.rows
            if not waiting and n_idle >= B / (2 if batch.paged else 4):         # idle rows stop costing
                batch.keep((~idle).nonzero().squeeze(1))
            batch.stepper = batch.stepper or batch.make_stepper()
            for _ in range(PATIENCE.get(idle.device.type, 1)):
                batch.stepper()


def generate(base: Base, adapters: Adapters | None, prompts: Prompts,
             sampling: SamplingParams = SamplingParams(), ranks: Ranks = ALONE,
             watch: Callable[[Rollout, list[int]], None] | None = None) -> Rollout:
    """sampling.n answers to each prompt by its member, dealt out to `ranks`. watch: of one process, is called
    before each step with the rows so far and the numbers of those that have ended since its last call. Raises
    UserError."""
    context = base.model.cfg.max_position_embeddings
    longest, new, n = max(map(len, prompts.ids)), sampling.max_new_tokens, sampling.n
    if longest + new > context:
        raise UserError(f"a prompt of {longest} tokens and an answer of {new} exceed the base's context of "
                         f"{context}: lower --max-new-tokens or --n-few-shot")
    assert len(prompts.keys) == len(prompts.ids) * n and len(prompts.member) == len(prompts.ids)
    assert watch is None or ranks.world == 1
    if ranks.world == 1:
        return decode(base, adapters, prompts, sampling, watch).select(torch.arange(len(prompts.keys)))
    dealt = [list(range(rank, len(prompts.ids), ranks.world)) for rank in range(ranks.world)]
    own = dealt[ranks.rank] or [0]                  # who has nothing to do does another's, and drops it
    asked = Prompts([prompts.ids[i] for i in own], [prompts.member[i] for i in own],
                    [prompts.keys[i * n + j] for i in own for j in range(n)])
    part = decode(base, adapters, asked, sampling).widened(longest + new + 1)
    sizes = [len(numbers) * n for numbers in dealt]
    gathered = {f.name: ranks.gather(getattr(part, f.name)[:sizes[ranks.rank]], sizes) for f in fields(part)}
    place = torch.tensor(sum(dealt, []), device=ranks.device).argsort()
    order = place[:, None] * n + torch.arange(n, device=ranks.device)
    return Rollout(**gathered).select(order.flatten())
