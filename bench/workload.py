"""What is measured, bases of a shape, populations, prompts; and how: in turns, as medians and ratios."""
import dataclasses
import statistics
import time
from pathlib import Path

import torch

import rl
from generate import Prompts, Rollout, SamplingParams, generate
from lora import Adapters
from micro.make import SHAPE, VOCAB
from model import Base, Model, ModelConfig

POP = 8
# Qwen2.5-Coder's sizes of the same names, and the bundled base's.
SHAPES = {
    "7b": ModelConfig(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                      num_attention_heads=28, num_key_value_heads=4),
    "1.5b": ModelConfig(vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                        num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True),
    "0.5b": ModelConfig(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True),
    "micro": ModelConfig(vocab_size=VOCAB, **SHAPE)}


def timed(work):
    """A function that does the work and returns its seconds."""
    def run() -> float:
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start
    return run


def take_turns(ways: dict, repeats: int, seconds: float = float("inf")) -> dict[str, list]:
    """{name: function()} -> {name: results of the repeats}, forwards, backwards, ..., while time is left."""
    seen = {name: [] for name in ways}
    start = time.perf_counter()
    for i in range(repeats):
        if i and (time.perf_counter() - start) * (i + 1) / i > seconds:
            break
        for name in list(ways)[::-1 if i % 2 else 1]:
            seen[name].append(ways[name]())
    return seen


def show(label: str, unit: str, values: list[float]) -> None:
    """Print the values of the repeats as median and range."""
    middle = statistics.median(values)
    print(f"{label:46} {middle:10.5g} {unit:8} {min(values):.4g} .. {max(values):.4g}", flush=True)


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the repeats of above / below, to three digits."""
    return float(f"{statistics.median(a / b for a, b in zip(above, below)):.3g}")


@torch.no_grad()
def random_base(shape: str, dtype: torch.dtype, device) -> Base:
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
    return Base(model.fuse(), None, (), "base", Path(shape), graphs=model.embedding.is_cuda)


def population(base: Base, rank: int, n: int = POP, std: float = .01) -> Adapters:
    """n members that all differ from the base by a few percent of its activations."""
    adapters = Adapters.on(base.model, n, rank, 2.0 * rank, device=base.model.embedding.device)
    gen = torch.Generator().manual_seed(0)
    for p in range(n):
        adapters.init_member(p, gen)
        for _, B in adapters.masters.values():
            B.data[p] = (torch.randn(B.shape[1:], generator=gen) * std).to(B)
    return adapters


def prompts_of(base: Base, rows: int, length: int) -> list[list[int]]:
    """Random token ids, the same on every call."""
    gen = torch.Generator().manual_seed(1)
    return torch.randint(10, base.model.cfg.vocab_size, (rows, length), generator=gen).tolist()


def members_of(rows: int) -> list[int]:
    """The member of each row: equally many each, in order."""
    return [i * POP // rows for i in range(rows)]


def decoder(base: Base, adapters: Adapters | None, prompts: list[list[int]], members: list[int], new: int,
            n: int = 1):
    """A function that decodes n answers of `new` tokens to each prompt in one batch and returns its seconds.
    With new = 1 it runs the prompts alone: their last states give the first token."""
    base, rows = dataclasses.replace(base, eos_ids=()), len(prompts) * n        # no answer ends by itself
    sampling = SamplingParams(n, max_new_tokens=new, rollout_batch=rows)
    asked = Prompts(prompts, members, [(7, i) for i in range(rows)])

    @timed
    def run() -> None:
        rollout = generate(base, adapters, asked, sampling)
        assert int(rollout.n_tokens.sum()) == new * rows
    return run


def drawn(base: Base, adapters: Adapters, prompt: int = 40, new: int = 24) -> Rollout:
    """Two answers a prompt, of several lengths, in half as many places: rows come and go in any order."""
    base = dataclasses.replace(base, eos_ids=tuple(range(0, base.model.cfg.vocab_size, 16)))
    prompts = prompts_of(base, 2 * adapters.n_members, prompt)
    prompts = [ids[:prompt - prompt // 20 * i] for i, ids in enumerate(prompts)]
    members, rows = [i % adapters.n_members for i in range(len(prompts))], len(prompts) * 2
    sampling = SamplingParams(2, max_new_tokens=new, rollout_batch=rows // 2)
    return generate(base, adapters, Prompts(prompts, members, [(7, i) for i in range(rows)]), sampling)


def fixed_rollout(base: Base, members: list[int], prompt: int, new: int, attempts: int) -> Rollout:
    """Rows of arbitrary tokens, equally long, so many attempts at each prompt, log-probabilities 0."""
    device, rows = base.model.embedding.device, len(members)
    ids = torch.tensor(prompts_of(base, rows, prompt + new), device=device)
    ids[:, :prompt] = ids[torch.arange(rows, device=device) // attempts * attempts, :prompt]
    return Rollout(ids, torch.full((rows,), prompt, device=device),
                   torch.full((rows,), prompt + new, device=device), torch.zeros(ids.shape, device=device),
                   torch.tensor(members, device=device))


def batch_of(rollout: Rollout) -> tuple[rl.Batch, torch.Tensor]:
    """A rollout as a batch of one group, and advantages (N,) of which none is 0."""
    device, n = rollout.ids.device, len(rollout.ids)
    adv = torch.linspace(-1, 1, n, device=device) + .01
    column = torch.zeros(n, dtype=torch.int64, device=device)
    return rl.Batch(rollout, adv, column, column, column), adv


def updater(base: Base, adapters: Adapters, rollout: Rollout, budget: int):
    """A function that accumulates the joint gradient and returns its seconds."""
    batch, adv = batch_of(rollout)
    cfg = dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=budget)
    return timed(lambda: rl.accumulate(rl.Objective(base, adapters, batch, adv, cfg)))
