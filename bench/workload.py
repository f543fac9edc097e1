"""What is measured, bases of a shape, populations, prompts; and how: in turns, as medians and ratios."""
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import rl
from generate import Prompts, Rollout, SamplingParams, generate
from lora import Adapters
from micro.make import SHAPE, VOCAB
from model import Base, Model, ModelConfig

POP = 8
Work = Callable[[], object]             # what is measured
# Qwen2.5-Coder's sizes of the same names, and the bundled base's.
SHAPES = {
    "7b": ModelConfig(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4),
    "1.5b": ModelConfig(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True),
    "0.5b": ModelConfig(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True),
    "micro": ModelConfig(vocab_size=VOCAB, **SHAPE),
}


def timed(work: Work) -> float:
    """The seconds that a piece of work takes; waits for the card to end it."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(
    cases: dict[str, Work],
    repeats: int,
    seconds: float = math.inf,          # no repeat begins that would not be done in this time
) -> dict[str, list[float]]:
    """{name: seconds of the repeats}; the cases run forwards, backwards, ..., while time is left."""
    seen = {}
    names = list(cases)
    start = time.perf_counter()
    for i in range(repeats):
        used = time.perf_counter() - start
        if i and used * (i + 1) / i > seconds:
            break
        for name in names:
            seen.setdefault(name, []).append(timed(cases[name]))
        names.reverse()
    return seen


def show(label: str, unit: str, values: list[float]) -> None:
    """Print the values of the repeats as median and range."""
    middle = statistics.median(values)
    print(f"{label:46} {middle:10.5g} {unit:8} {min(values):.4g} .. {max(values):.4g}", flush=True)


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the repeats of above / below, to three digits."""
    ratios = [a / b for a, b in zip(above, below)]
    return float(f"{statistics.median(ratios):.3g}")


@torch.no_grad()
def random_base(shape: str, dtype: torch.dtype, device: torch.device | str) -> Base:
    """A base without tokenizer, drawn on the device; what passes through keeps its size."""
    with torch.device("meta"):
        model = Model(SHAPES[shape]).to(dtype)
    model = model.to_empty(device=device).requires_grad_(False).eval()
    torch.manual_seed(0)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.fill_(1)
        else:
            p.normal_(0, p.shape[-1] ** -.5)
    return Base(
        model=model.fuse(),
        tokenizer=None,
        eos_ids=(),
        prompt_format="base",
        path=Path(shape),
        graphs=model.embedding.is_cuda)


def population(base: Base, rank: int, n: int = POP, std: float = .01) -> Adapters:
    """n members that all differ from the base by a few percent of its activations."""
    adapters = Adapters.on(base.model, n, rank, 2.0 * rank, device=base.model.embedding.device)
    gen = torch.Generator().manual_seed(0)
    for p in range(n):
        adapters.init_member(p, gen)
        for _, B in adapters.masters.values():
            drawn = torch.randn(B.shape[1:], generator=gen) * std           # on the CPU, as gen is
            B.data[p] = drawn.to(B)
    return adapters


def prompts_of(base: Base, rows: int, length: int) -> list[list[int]]:
    """Random token ids, the same on every call."""
    gen = torch.Generator().manual_seed(1)
    ids = torch.randint(10, base.model.cfg.vocab_size, (rows, length), generator=gen)
    return ids.tolist()


def members_of(rows: int) -> list[int]:
    """The member of each row: equally many each, in order."""
    return [i * POP // rows for i in range(rows)]


def both(rows: int, name: str, work_of: Callable[[list[int]], Work]) -> dict[str, Work]:
    """work_of(the member of each row) for 8 members and for one with all the rows: what 8 cost. The number of
    members stands behind each name."""
    return {
        f"{name}{POP}": work_of(members_of(rows)),
        f"{name}1": work_of([0] * rows)}


def keys_of(rows: int) -> list[tuple[int, int]]:
    """The random key of each row's answer."""
    return [(7, i) for i in range(rows)]


def decoder(
    base: Base,
    adapters: Adapters | None,
    prompts: list[list[int]],
    members: list[int],                 # of each prompt
    new: int,                           # tokens of an answer; of 1 the prompts' last states give it
    n: int = 1,                         # answers to each prompt
) -> Work:
    """A function that decodes answers in one batch, each of its full length."""
    rows = len(prompts) * n
    endless = dataclasses.replace(base, eos_ids=())                 # no answer ends by itself
    sampling = SamplingParams(n, max_new_tokens=new, rollout_batch=rows)
    asked = Prompts(prompts, members, keys_of(rows))

    def decode() -> None:
        rollout = generate(endless, adapters, asked, sampling)
        assert int(rollout.n_tokens.sum()) == new * rows

    return decode


def drawn(base: Base, adapters: Adapters, prompt: int = 40, new: int = 24) -> Rollout:
    """Two answers a prompt, of several lengths, in half as many places: rows come and go in any order."""
    often = tuple(range(0, base.model.cfg.vocab_size, 16))
    base = dataclasses.replace(base, eos_ids=often)                 # one token in 16 ends an answer
    prompts = []
    members = []
    for i, ids in enumerate(prompts_of(base, 2 * adapters.n_members, prompt)):
        prompts.append(ids[:prompt - prompt // 20 * i])
        members.append(i % adapters.n_members)
    sampling = SamplingParams(2, max_new_tokens=new, rollout_batch=len(prompts))
    keys = keys_of(2 * len(prompts))
    return generate(base, adapters, Prompts(prompts, members, keys), sampling)


def fixed_rollout(
    base: Base,
    members: list[int],                 # of each row
    prompt: int,                        # tokens of a prompt
    new: int,                           # tokens of an answer
    attempts: int,                      # rows that have one prompt
) -> Rollout:
    """Rows of arbitrary tokens, equally long, with log-probabilities 0."""
    device = base.model.embedding.device
    rows = len(members)
    member = torch.tensor(members, device=device)
    ids = torch.tensor(prompts_of(base, rows, prompt + new), device=device)
    first = torch.arange(rows, device=device) // attempts * attempts        # of the rows with its prompt
    ids[:, :prompt] = ids[first, :prompt]
    return Rollout(
        ids,
        prompt_len=torch.full_like(member, prompt),
        length=torch.full_like(member, prompt + new),
        logp=torch.zeros(ids.shape, device=device),
        member=member)


def batch_of(rollout: Rollout) -> tuple[rl.Batch, torch.Tensor]:
    """A rollout as a batch of one group, and advantages (N,) of which none is 0."""
    adv = torch.linspace(-1, 1, len(rollout.ids), device=rollout.ids.device) + .01
    column = torch.zeros_like(rollout.length)
    return rl.Batch(rollout, adv, column, column, column), adv


def updater(
    base: Base,
    adapters: Adapters,
    rollout: Rollout,
    budget: int,                        # tokens of a micro-batch, at most
) -> Work:
    """A function that accumulates the joint gradient."""
    batch, adv = batch_of(rollout)
    cfg = dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=budget)
    return partial(rl.accumulate, rl.Objective(base, adapters, batch, adv, cfg))
