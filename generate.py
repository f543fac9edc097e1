"""Lets all members answer prompts, in one mixed batch. The way of a token:

    generate     deals the prompts out to the processes
    decode       lets prompts in where rows have ended, and takes steps until all answers have ended
    DecodeBatch  holds the rows that decode side by side: `admit` runs prompts, `step` gives every row a token
    sample       draws a token by inverting the cumulative distribution at a random number. The number depends
                 only on the row's key, so a run can be repeated.

A prompt is run once for all answers to it. A token lies in the cache slot of its position, so there is no
padding. On a GPU a step's code never looks at a value, so a CUDA graph can hold its thousand launches.
"""
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from common import UserError
from lora import Adapters, AdapterWeights, Route
from model import Base, KVCache
from ranks import ALONE, Ranks, send

BELOW_1 = 1 - 2 ** -23      # largest number whose product with a float32 total cannot round up to the total
BLOCK = 512                 # `draw` sums the probabilities of a vocabulary in blocks of this size
PREFILL = 1 << 12           # padded tokens of prompts that run at a time, so that they do not fill the memory
PATIENCE = 8                # steps between looks at who has ended, because each look waits for the GPU
SLOTS = 256                 # on a GPU a step looks at a multiple of this many slots, so that graphs are few


@dataclass
class Rollout:
    """Holds N rows, padded on the right: a prompt, then the sampled answer with its end token, if it has one.
    Masks come from the lengths, never from tokens. logp[:, t] scores ids[:, t] by the distribution from
    which it was drawn."""
    ids: Tensor                  # (N, T) int64
    prompt_len: Tensor           # (N,) tokens of the prompt
    length: Tensor               # (N,) tokens of prompt and answer
    logp: Tensor                 # (N, T) float32, 0 in the prompt
    member: Tensor               # (N,) int64, -1 = bare base

    @property
    def n_tokens(self) -> Tensor:
        """Returns the number of answer tokens of each row (N,)."""
        return self.length - self.prompt_len

    @property
    def mask(self) -> Tensor:
        """Returns (N, T), true on answer tokens."""
        t = torch.arange(self.ids.shape[1], device=self.ids.device)
        begun = t >= self.prompt_len[:, None]
        return begun & (t < self.length[:, None])

    def answers(self, eos_ids: tuple[int, ...]) -> list[list[int]]:
        """Returns the answers' token ids without end tokens."""
        found = []
        for ids, start, end in zip(self.ids.tolist(), self.prompt_len.tolist(), self.length.tolist()):
            found.append([token for token in ids[start:end] if token not in eos_ids])
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> "Rollout":
        """Returns the rollout after the same change of every tensor."""
        return Rollout(*[change(x) for x in vars(self).values()])

    def select(self, rows: Tensor) -> "Rollout":
        """Returns the given rows (n,), cut to their longest."""
        kept = self.map(lambda x: x[rows])
        return kept.widened(int(kept.length.max()))

    def to(self, device: torch.device | str) -> "Rollout":
        """Returns the same rows in another device's memory."""
        return self.map(lambda x: x.to(device))

    def widened(self, T: int) -> "Rollout":
        """Returns the same rows, padded or cut to T tokens."""
        missing = (0, T - self.ids.shape[1])            # to the left and right; F.pad cuts if it is below 0
        ids = F.pad(self.ids, missing)
        logp = F.pad(self.logp, missing)
        return replace(self, ids=ids, logp=logp)

    @staticmethod
    def cat(parts: list["Rollout"]) -> "Rollout":
        """Returns the rows of several rollouts, padded to the longest."""
        T = max(part.ids.shape[1] for part in parts)
        columns = zip(*[vars(part.widened(T)).values() for part in parts])
        return Rollout(*map(torch.cat, columns))


@dataclass(frozen=True)
class Prompts:
    """Says what is asked of whom. Row i * n + j of a rollout is answer j to prompt i."""
    ids: list[list[int]]                            # tokens of each prompt
    member: list[int]                               # who answers each; -1 = bare base
    keys: list[tuple[int, ...]]                     # a row's draws depend on its key alone


@dataclass(frozen=True)
class SamplingParams:
    """Says how answers are drawn. At most rollout_batch rows decode together, but at least n."""
    n: int = 1                                      # answers to each prompt
    temperature: float = 1.0                        # 0 = greedy
    max_new_tokens: int = 128
    rollout_batch: int = 512
    closing: str = ""                               # a text that ends an answer
    desc: str = ""                                  # title of the progress bar; "" = no bar


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Returns the index (B,) where the running sum of probabilities (B, V) passes u (B,) in [0, 1) times the
    whole sum. It is found among blocks first, then within one, because on a card the sums of a whole
    vocabulary cost time."""
    V = probs.shape[1]
    size = min(V, BLOCK)
    padded = F.pad(probs, (0, -V % size))
    blocks = padded.unflatten(1, (-1, size))                            # (B, blocks, size)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)               # (B, blocks), running sum
    starts = F.pad(ends, (1, 0))                                        # (B, blocks + 1)
    whole = ends[:, -1:].float()
    at = u.clamp_max(BELOW_1)[:, None] * whole                          # (B, 1)
    block = torch.searchsorted(ends.float(), at, right=True)
    block = block.clamp_max(blocks.shape[1] - 1)                        # (B, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, size))
    inside = inside.squeeze(1)                                          # (B, size), of each row's block
    cdf = starts.gather(1, block) + inside.cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(cdf.float(), at, right=True)
    index = block * size + place
    return index.squeeze(1).clamp_max(V - 1)                            # NaN may pass the end


def sample(
    logits: Tensor,                 # (B, V)
    temperature: float,             # 0 = the likeliest token
    u: Tensor,                      # (B,) in [0, 1)
) -> tuple[Tensor, Tensor]:
    """Draws a token for each row. Returns ids (B,) and their float32 log-probabilities (B,) at this
    temperature, or at 1 if it is 0."""
    logits = logits.float()
    if temperature:
        logp = (logits / temperature).log_softmax(-1)
        ids = draw(logp.exp(), u)
    else:
        logp = logits.log_softmax(-1)
        ids = logits.argmax(-1)
    return ids, logp.gather(1, ids[:, None]).squeeze(1)


@lru_cache(maxsize=2)
def closing_table(
    tokenizer: object,
    tag: str,
    vocab_size: int,
    device: torch.device,
) -> Tensor | None:
    """Returns a table (len(tag) + 1, vocab_size) uint8 that finds `tag` in whatever tokens it is written.

    The state k is the number of the tag's characters in which the text ends so far. table[k, token] is the
    state after one token more. The last state, the whole tag, is never left. The tag is printable ASCII and
    line feeds, without spaces, because vocabularies write other characters in other ways. Returns None
    without a tag.
    """
    if not tag:
        return None

    def n_matched(text: str) -> int:
        """Returns how many characters of the tag a text ends in, all of them if it contains the tag."""
        if tag in text:
            return len(tag)
        k = len(tag) - 1
        while not text.endswith(tag[:k]):       # every text ends with the empty one
            k -= 1
        return k

    table = torch.zeros(len(tag) + 1, vocab_size, dtype=torch.uint8)
    for text, token in tokenizer.get_vocab().items():
        text = text.replace("Ċ", "\n").replace("<0x0A>", "\n")      # how vocabularies write a line feed
        takes_part = text in tag or tag[0] in text or tag[-1] in text
        if not takes_part or token >= vocab_size:           # the column of most tokens stays 0
            continue
        for k in range(len(tag)):
            table[k, token] = n_matched(tag[:k] + text)     # what a text held before does not count
    table[-1] = len(tag)
    return table.to(device)


class DecodeBatch:
    """Holds B places, in which the N rows of a call decode side by side.

    `rows` is the rollout as it grows, with a spare last column. An answer has at most L tokens. The numbers
    u (N, L + 1) decide what is drawn. A place has a row, its latest token, which is not in the cache yet, the
    position of this token, and t, the number of the answer's tokens so far. If t = L, no row decodes there.
    """

    def __init__(
        self,
        base: Base,
        adapters: Adapters | None,
        prompts: Prompts,
        sampling: SamplingParams,
    ):
        cfg = base.model.cfg
        weight = base.model.embedding
        device, dtype = weight.device, weight.dtype
        N = len(prompts.keys)
        n = sampling.n
        L = sampling.max_new_tokens
        self.base = base
        self.sampling = sampling
        self.L = L
        self.lengths = list(map(len, prompts.ids))      # one for each prompt
        S = max(self.lengths) + L

        # the rows: each prompt once for each answer to it, and a number for each draw
        padded = [ids + [0] * (S + 1 - len(ids)) for ids in prompts.ids]
        columns = []
        for numbers in (padded, self.lengths, prompts.member):
            column = send(torch.tensor(numbers), device)
            columns.append(column.repeat_interleave(n, 0))
        ids, length, member = columns                   # (N, S + 1), (N,), (N,)
        logp = torch.zeros(ids.shape, device=device)
        self.rows = Rollout(ids, length, length.clone(), logp, member)
        u = [np.random.default_rng(key).random(L + 1) for key in prompts.keys]
        drawn = torch.from_numpy(np.stack(u)).float()   # (N, L + 1)
        self.u = send(drawn, device)
        self.eos = send(torch.tensor(base.eos_ids), device)
        self.closing = closing_table(base.tokenizer, sampling.closing, cfg.vocab_size, device)
        self.n_matched = torch.zeros_like(length)       # characters of the closing text that a row ends with

        # the places, all of them idle
        B = min(N, max(1, sampling.rollout_batch // n) * n)
        self.n_slots = S
        self.unit = SLOTS if base.graphs else 1         # slots are looked at in multiples of this
        self.cache = KVCache(cfg, B, up(S, self.unit), dtype, device)
        self.weights = None
        if adapters:
            self.weights = AdapterWeights(adapters, member, dtype, in_graph=base.graphs)
        self.row = torch.arange(B, device=device)
        self.token = torch.zeros_like(self.row)
        self.position = torch.zeros_like(self.row)
        self.t = torch.full_like(self.row, L)
        self.graphs = Graphs(device)
        self.n_filled = 0                               # slots of the furthest row; 0 = count them anew
        self.lora = None                                # what adds the adapters of the rows that are here

    def route(self, row: Tensor, one_token: bool = False) -> Route | None:
        """Returns what adds the adapters of these rows' (n,) members; None for the bare base."""
        if self.weights is None:
            return None
        return self.weights.route(self.rows.member[row], one_token)

    def extend(
        self,
        row: Tensor,                    # (n,)
        t: Tensor,                      # (n,) tokens of their answers so far
        logits: Tensor,                 # (n, V)
    ) -> tuple[Tensor, Tensor]:
        """Draws the next token of these rows. Returns the tokens (n,) and the new t (n,). What a row draws
        when it has ended, at t = L, lands in the spare column."""
        rows = self.rows
        token, logp = sample(logits, self.sampling.temperature, self.u[row, t])
        live = t < self.L
        spare = rows.ids.shape[1] - 1
        column = torch.where(live, rows.prompt_len[row] + t, spare)
        rows.ids[row, column] = token
        rows.logp[row, column] = logp
        rows.length[row] = torch.where(live, column + 1, rows.length[row])
        ended = (token[:, None] == self.eos).any(-1)       # torch.isin might wait for a GPU
        if self.closing is not None:
            n_matched = self.closing[self.n_matched[row], token].long()
            self.n_matched[row] = n_matched
            ended = ended | (n_matched == len(self.closing) - 1)
        return token, torch.where(live & ~ended, t + 1, self.L)

    def admit(self, prompts: list[int]) -> None:
        """Runs these prompts, by number, for n rows each, in the first places that are idle."""
        model, rows, n = self.base.model, self.rows, self.sampling.n
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
        self.n_filled = 0

    def keep(self, kept: Tensor) -> None:
        """Drops all places but the given ones (n,)."""
        self.cache.select(kept)
        for name in ("row", "token", "position", "t"):
            setattr(self, name, getattr(self, name)[kept])
        self.graphs = Graphs(self.t.device)                 # the old ones work on the old tensors
        self.n_filled = 0

    def step(self) -> None:
        """Gives every row one more token, in place. With graphs it looks at no value and has the same shapes
        whoever comes and goes, so that a GPU can run ahead and a CUDA graph can hold it."""
        model = self.base.model
        lora = self.lora
        if self.base.graphs:
            lora = self.route(self.row)
        ids = self.token[:, None]
        positions = self.position[:, None]
        hidden = model(ids, positions, cache=self.cache, lora=lora)         # (B, 1, C)
        logits = model.logits(hidden[:, 0])
        token, t = self.extend(self.row, self.t, logits)
        self.token.copy_(token)
        self.t.copy_(t)
        self.position += t < self.L

    def advance(self) -> None:
        """Takes a step that looks at as many slots as the furthest row fills."""
        if not self.n_filled:                               # rows have come or gone
            self.n_filled = int(self.position.max())
            if not self.base.graphs:
                self.lora = self.route(self.row, one_token=True)
        self.n_filled = min(self.n_filled + 1, self.n_slots)
        self.cache.length = up(self.n_filled, self.unit)
        if self.base.graphs:
            self.graphs.run(self.step, self.cache.length)
        else:
            self.step()


def up(n: int, unit: int) -> int:
    """Returns the multiple of a unit that is n or the next above it."""
    return -(-n // unit) * unit


class Graphs:
    """Takes the steps of a batch as CUDA graphs, one for each number of slots that are looked at.

    The first step of a number runs as it is, because it loads kernels, which no recording may. The second is
    recorded, and from then on replayed. Graphs share one pool of memory, because a step leaves nothing in it
    that a later one reads. If a step cannot be recorded, all later ones of the process run as they are.
    """
    can_record = True

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.recorded = {}                      # number of slots -> its graph; None after the first step
        self.pool = None

    def run(self, step: Callable[[], None], slots: int) -> None:
        """Takes a step, or replays it."""
        if slots in self.recorded and self.recorded[slots] is None:
            self.record(step, slots)
        graph = self.recorded.setdefault(slots)
        if graph is None:
            step()
        else:
            graph.replay()

    def record(self, step: Callable[[], None], slots: int) -> None:
        """Records a step, which computes nothing."""
        if not (self.on_gpu and Graphs.can_record):
            return
        torch.cuda.synchronize()
        torch.cuda.empty_cache()                # the graphs' pool cannot use what the common pool keeps
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.capture_begin(self.pool, capture_error_mode="thread_local")   # NCCL's thread may go on
                try:
                    step()
                finally:
                    graph.capture_end()
            self.recorded[slots] = graph
        except RuntimeError as error:
            Graphs.can_record = False
            first = error.__context__ or error          # the cause, not its consequence at capture_end
            print(f"note: decoding without CUDA graphs, as none could be recorded: {first}", file=sys.stderr)


@torch.inference_mode()
def decode(
    base: Base,
    adapters: Adapters | None,
    prompts: Prompts,
    sampling: SamplingParams,
) -> Rollout:
    """Returns this process's rows, with columns to spare. Prompts, the longest first, take the places of rows
    that have ended. When no prompt is left and many places are empty, the batch is made smaller."""
    batch = DecodeBatch(base, adapters, prompts, sampling)
    n, member, N = sampling.n, prompts.member, len(prompts.keys)
    # numbers of prompts, the longest first
    waiting = sorted(range(len(member)), key=lambda i: (-batch.lengths[i], member[i]))
    # Idle places are dropped when they are this share of all. They cost time in each step, but to drop them
    # costs some, too, because graphs have to be recorded anew.
    share, patience = 1 / 4, 1
    if base.graphs:
        share, patience = 1 / 2, PATIENCE
    with tqdm(total=N, desc=sampling.desc, leave=False, disable=not sampling.desc) as bar:
        while True:
            # who has ended
            B = len(batch.t)
            n_idle = int((batch.t == batch.L).sum())            # places without a row; this waits for a GPU
            n_busy = B - n_idle
            n_ended = N - len(waiting) * n - n_busy
            bar.update(n_ended - bar.n)
            # who comes in, and whether ended rows go
            if waiting and n_idle >= max(n, B / 4):             # else wait, to admit several in one call
                admit_next(batch, waiting, n_idle // n, member)
                continue                        # a first token may have been the last
            if n_busy == 0:
                return batch.rows
            if not waiting and n_idle >= B * share:
                busy = batch.t < batch.L
                batch.keep(busy.nonzero().squeeze(1))

            # a token more for all who are here
            for _ in range(patience):
                batch.advance()


def admit_next(
    batch: DecodeBatch,
    waiting: list[int],             # numbers of prompts
    n: int,                         # how many of them
    member: list[int],              # who answers each prompt
) -> None:
    """Admits the first n of the waiting prompts, or all if fewer wait. Those of a member go together, and as
    many go at a time as PREFILL allows."""
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
    """Returns sampling.n answers to each prompt by its member; the prompts are dealt out to `ranks`. Raises
    UserError if a prompt is too long."""
    context = base.model.cfg.max_position_embeddings
    longest = max(map(len, prompts.ids))
    new = sampling.max_new_tokens
    n = sampling.n
    if longest + new > context:
        raise UserError(f"a prompt of {longest} tokens and an answer of {new} exceed the base's context of "
                        f"{context}: lower --max-new-tokens, or shorten the prompt")
    assert len(prompts.member) == len(prompts.ids)
    assert len(prompts.keys) == len(prompts.ids) * n
    # Each process takes every world-th prompt; all of them gather the rows, and put them into order.
    numbers = list(range(len(prompts.ids)))
    dealt = [numbers[rank::ranks.world] for rank in range(ranks.world)]
    own = dealt[ranks.rank] or [0]                  # a process without a prompt answers one in vain
    ids, member, keys = [], [], []
    for i in own:
        ids.append(prompts.ids[i])
        member.append(prompts.member[i])
        keys += prompts.keys[i * n:(i + 1) * n]
    part = decode(base, adapters, Prompts(ids, member, keys), sampling)
    part = part.widened(longest + new + 1)          # as wide as in the other processes
    n_rows = [len(numbers) * n for numbers in dealt]
    n_own = n_rows[ranks.rank]
    gathered = part.map(lambda x: ranks.gather(x[:n_own], n_rows))
    order = sum(dealt, [])                          # prompts in the order in which they were gathered
    place = torch.tensor(order, device=ranks.device).argsort()      # where each prompt is in it
    rows = place[:, None] * n + torch.arange(n, device=ranks.device)
    return gathered.select(rows.flatten())
