"""How fast a card is beside its bounds: prompts, decoding, update, whole steps, and the loop itself.

Each part measures for about the time it is given, at sizes that fit into it; what it finds goes into Figures.
"""
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

import rl
import train
from bench.bounds import arithmetic, bandwidth, decode_seconds, prefill_flops, update_flops
from bench.common import take_turns
from bench.enlarge import enlarge
from bench.peers import Peers
from bench.workload import (POP, SHAPES, base_of, batch_of, decoder, fixed_rollout, members_of, population,
                            prompts_of, random_model, stepper, updater, without_end)
from config import Config, resolve_config
from run.checkpoint import RunDir, init_state
from infra.distributed import Ranks
from run.metrics import header
from run.platform import Signals, open_sandbox
from run.startup import ROOT, populate
from weights import load_base
from lora import Adapters
from model import Base, Model

TRIAL = 16                  # the first trial has this part of the tokens
STEPS = 10                  # of the loop


@dataclass(frozen=True)
class Sizes:
    """What is run: rows of the two batches, tokens of prompt and answer, rows that share a prompt, ..."""
    rows: tuple[int, int] = (64, 256)
    prompt: int = 768
    new: int = 256
    attempts: int = 8
    step_prompt: int = 512
    step_new: int = 512
    rank: int = 32
    tokens_per_microbatch: int = 16384      # at most: halved until it fits


MICRO = Sizes((16, 64), prompt=48, new=32, attempts=4, step_prompt=16, step_new=16, rank=8,
              tokens_per_microbatch=2048)


@dataclass
class Figure:
    """A row of the table: repeats of one number, the best possible, and the goal on an H200."""
    what: str
    unit: str
    goal: float | None = None               # of a ratio: at most; of a speed: at least
    of_bound: bool = False                  # the goal is a share of the bound
    values: list[float] = field(default_factory=list)
    bound: float | None = None
    part: int = 1                           # measured with this part of the tokens: 1 = all, 2 = half, ...

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def share(self) -> float | None:
        """Of the bound."""
        return self.value / self.bound if self.values and self.bound else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is; None where nothing can be said."""
        if self.goal is None or not self.values or self.part > 1:
            return None
        if self.unit == "ratio":
            return self.value <= self.goal
        return (self.share if self.of_bound else self.value) >= self.goal


def figures(sizes: Sizes, has_goals: bool) -> dict[str, Figure]:
    """All rows of the table, by name, none measured yet. Goals are those of a 7B's shape on an H200."""
    rows = {"bandwidth": Figure("a copy", "GB/s"), "arithmetic": Figure("a product of matrices", "TFLOP/s")}
    for n, goal in zip(sizes.rows, (12_000, 24_000)):
        batch = f"{n} rows of {sizes.prompt} + {sizes.new} tokens"
        rows |= {f"prefill_{n}": Figure(f"prompts, {batch}, 8 members", "tokens/s"),
                 f"decode_{n}": Figure(f"decoding, {batch}, 8 members", "tokens/s", goal),
                 f"decode_{n}_1": Figure(f"decoding, {batch}, 1 member", "tokens/s"),
                 f"decode_{n}_0": Figure(f"decoding, {batch}, no adapter", "tokens/s"),
                 f"decode_{n}_eager": Figure(f"decoding, {batch}, 8 members, no CUDA graph", "tokens/s"),
                 f"decode_{n}_8_over_1": Figure(f"decoding, {n} rows, 8 members over 1", "ratio", 1.05)}
    for name, what in (("int8", "an int8 base"), ("compile", "--torch-compile")):
        key = f"decode_{sizes.rows[0]}_{name}"
        rows[key] = Figure(f"decoding, {sizes.rows[0]} rows, 8 members, {what}", "tokens/s")
        rows[f"{key}_over_plain"] = Figure(f"decoding, seconds with {what} over without", "ratio")
    batch = f"{sizes.rows[0]} rows of {sizes.step_prompt} + {sizes.step_new} tokens"
    rows |= {"update": Figure(f"update, {batch}, 8 members", "TFLOP/s", .4, of_bound=True),
             "update_8_over_1": Figure("update, 8 members over 1", "ratio"),
             "step_8": Figure(f"whole step, {batch}, 8 members", "s"),
             "step_8_over_1": Figure("whole step, 8 members over 1", "ratio", 1.05),
             "loop": Figure("the loop, a step", "s"),
             "peft_decode": Figure("rollout, PEFT with mixed adapters over ours", "ratio"),
             "peft_update": Figure("update, a loop over PEFT's adapters over ours", "ratio")}
    for row in rows.values():
        row.goal = row.goal if has_goals else None
    return rows


@dataclass
class Bench:
    """What the parts share. The base is made when it is first asked for."""
    shape: str
    dtype: torch.dtype
    ranks: Ranks
    sizes: Sizes
    figures: dict[str, Figure]
    graphs: bool = False                    # whether decoding by CUDA graphs was found right
    cache: str = "unknown"                  # that decoding uses: paged, or dense
    budget: int = 2048                      # tokens of a micro-batch; the update looks for the largest
    deadline: float = 0.0                   # of the present part
    loop: list[dict] = field(default_factory=list)          # lines of metrics.jsonl
    made: Base | None = None
    members: Adapters | None = None

    @property
    def base(self) -> Base:
        """Random weights of the shape."""
        if self.made is None:
            self.made = base_of(random_model(SHAPES[self.shape], self.dtype, self.ranks.device), self.shape)
        return without_end(self.made, self.graphs)

    @property
    def adapters(self) -> Adapters:
        """8 members on it."""
        if self.members is None:
            self.members = population(self.base, self.sizes.rank)
        return self.members

    def left(self) -> float:
        """Seconds that the present part has."""
        return self.deadline - time.monotonic()

    def fit(self, run, n_runs: int) -> int:
        """The part of the tokens (1 = all, 2 = half, ...) with which n_runs runs fit into the time left.

        run(part) does the work once; it is tried from TRIAL on, which also loads the kernels.
        """
        part = TRIAL
        run(part)
        while True:
            seconds = run(part)
            if 2 * seconds * n_runs > self.left():          # it may have compiled a kernel for its shape
                seconds = run(part)
            if part == 1 or 2 * seconds * n_runs > self.left():
                return part
            part //= 2

    def bounds(self) -> tuple[float, float]:
        """Bytes and operations a second at best. Raises ValueError where they were not measured."""
        if not (self.figures["bandwidth"].values and self.figures["arithmetic"].values):
            raise ValueError("without bandwidth and arithmetic of the card there are no bounds")
        return self.figures["bandwidth"].value * 1e9, self.figures["arithmetic"].value * 1e12

    def put(self, name: str, values: list[float], bound: float | None = None, part: int = 1) -> None:
        """Fill in a row of the table."""
        row = self.figures[name]
        row.values, row.bound, row.part = values, bound, part


def roofs(b: Bench) -> None:
    """Bandwidth and arithmetic of the card, which all bounds rest on."""
    b.put("bandwidth", [bandwidth(b.ranks.device) / 1e9])
    b.put("arithmetic", [arithmetic(b.ranks.device, b.dtype) / 1e12])


def compare(b: Bench, rows: int, ways: dict) -> tuple[dict, int, int]:
    """Decode in turns by ways {name: (base, adapters, member of each row)}; fill in their rows, if empty.
    One way is named "". Returns {name: seconds less those of its prompts, "prompts": of "" alone}; the part;
    the prompts' tokens in all."""
    sizes = b.sizes
    base, members, member = next(iter(ways.values()))
    n = min(sizes.attempts, rows // POP)            # answers to a prompt

    def lengths(part: int) -> tuple[int, int]:
        return max(1, sizes.prompt // part), max(2, sizes.new // part)

    def run(part: int) -> float:
        prompt, new = lengths(part)
        return decoder(base, members, prompts_of(base, rows // n, prompt), member[::n], new, n)()

    part = b.fit(run, 2 * len(ways))
    prompt, new = lengths(part)
    prompts = prompts_of(base, rows // n, prompt)
    works = {}
    for name, (base, members, member) in ways.items():
        works[name] = decoder(base, members, prompts, member[::n], new, n)
        works[name + " prompts"] = decoder(base, members, prompts, member[::n], 1, n)
    seen = take_turns(works, 5, b.left())
    n_bytes_s, flops_s = b.bounds()
    seconds = dict(prompts=seen[" prompts"])
    for name, (base, members, member) in ways.items():
        first = statistics.median(seen[name + " prompts"])
        seconds[name] = [whole - first for whole in seen[name]]
        floor = decode_seconds(base, members, len(set(member)), rows, prompt + new / 2, n_bytes_s, flops_s)
        if not b.figures[f"decode_{rows}{name}"].values:
            b.put(f"decode_{rows}{name}", [rows * (new - 1) / s for s in seconds[name]], rows / floor, part)
    return seconds, part, rows // n * prompt


def decoding(b: Bench, rows: int) -> None:
    """Prompts and decoding apart, of 8 members, one and none."""
    base, adapters = b.base, b.adapters
    own, one, none = members_of(rows), [0] * rows, [-1] * rows
    ways = {"": (base, adapters, own), "_1": (base, adapters, one), "_0": (base, None, none)}
    if base.graphs:
        ways["_eager"] = (without_end(base, False), adapters, own)
    seconds, part, n_tokens = compare(b, rows, ways)
    _, flops_s = b.bounds()
    b.put(f"decode_{rows}_8_over_1", [x / y for x, y in zip(seconds[""], seconds["_1"])], part=part)
    prompt = max(1, b.sizes.prompt // part)
    at_best = n_tokens * flops_s / prefill_flops(base, n_tokens // prompt, prompt)
    b.put(f"prefill_{rows}", [n_tokens / s for s in seconds["prompts"]], at_best, part)


def other_model(b: Bench, name: str, make: Callable[[Model], Model]) -> None:
    """Decoding on make(model), in turns with the model as it is. ValueError where make returns that."""
    base, rows = b.base, b.sizes.rows[0]
    other = dataclasses.replace(base, model=make(base.model))
    if other.model is base.model:
        raise ValueError("it does not work here: see the note above")
    own, name = members_of(rows), f"_{name}"
    seconds, part, _ = compare(b, rows, {name: (other, b.adapters, own), "": (base, b.adapters, own)})
    b.put(f"decode_{rows}{name}_over_plain", [x / y for x, y in zip(seconds[name], seconds[""])], part=part)


def step_lengths(sizes: Sizes, part: int) -> tuple[int, int]:
    """Tokens of prompt and answer in update and whole step."""
    return max(1, sizes.step_prompt // part), max(2, sizes.step_new // part)


def update(b: Bench) -> None:
    """The joint gradient of 8 members, and of one with all the rows."""
    base, adapters, sizes = b.base, b.adapters, b.sizes
    rows = sizes.rows[0]

    def work(part: int, members: list[int], budget: int):
        rollout = fixed_rollout(base, members, *step_lengths(sizes, part), sizes.attempts)
        return rollout, updater(base, adapters, rollout, budget)

    own = members_of(rows)
    part = b.fit(lambda part: work(part, own, b.budget)[1](), 3)
    batch, adv = batch_of(work(part, own, 1)[0])
    b.budget = 2 * sizes.tokens_per_microbatch
    fitting = sizes.tokens_per_microbatch
    while fitting < b.budget:               # accumulate halves a micro-batch that finds no memory
        b.budget = fitting
        cfg = rl.UpdateConfig(tokens_per_microbatch=fitting)
        fitting = rl.accumulate(base, adapters, batch, adv, cfg)[0].tokens_per_microbatch
    rollout, joint = work(part, own, b.budget)
    seen = take_turns({"8": joint, "1": work(part, [0] * rows, b.budget)[1]}, 5, b.left())
    flops = update_flops(base, rollout, sizes.attempts)
    _, flops_s = b.bounds()
    b.put("update", [flops / s / 1e12 for s in seen["8"]], flops_s / 1e12, part)
    b.put("update_8_over_1", [x / y for x, y in zip(seen["8"], seen["1"])], part=part)


def whole_step(b: Bench) -> None:
    """Rollout, gradient and optimiser step of 8 members, and of one with all the rows."""
    base, sizes = b.base, b.sizes
    rows = sizes.rows[0]
    single = population(base, sizes.rank, 1)

    def work(part: int, adapters: Adapters, members: list[int]):
        return stepper(base, adapters, members, *step_lengths(sizes, part), sizes.attempts, b.budget)

    part = b.fit(lambda part: work(part, b.adapters, members_of(rows))(), 2)
    seen = take_turns({"8": work(part, b.adapters, members_of(rows)), "1": work(part, single, [0] * rows)}, 5,
                      b.left())
    b.put("step_8", seen["8"], part=part)
    b.put("step_8_over_1", [x / y for x, y in zip(seen["8"], seen["1"])], part=part)


def loop(b: Bench) -> None:
    """Ten steps of train.train, or as many as fit, on the micro base in the shape's size: judge, evolution
    and all. Overwrites the base, which is made anew if asked for again. Raises ValueError where nothing was
    learned from."""
    micro = load_base(str(ROOT / "micro" / "base"), b.dtype, b.ranks.device)
    plain = b.base
    b.made = b.members = None
    enlarge(plain.model, micro.model)
    base = dataclasses.replace(micro, model=plain.model, graphs=plain.graphs)
    sizes = dict(rank=b.sizes.rank, alpha=2.0 * b.sizes.rank, samples_per_task=b.sizes.attempts,
                 rollout_batch=256, tokens_per_microbatch=b.budget)
    never = dict(steps=10 ** 6, save_every=10 ** 6, probe_every=0, n_heldout=0)
    cfg = Config(device=str(b.ranks.device), evolve_every=4, **sizes, **never)
    cfg = resolve_config(cfg, "micro", b.ranks.device.type)
    with tempfile.TemporaryDirectory() as folder, open_sandbox(2, False) as sandbox:
        setup, adam, base_hash = populate(cfg, base, b.ranks, sandbox)
        state = init_state(cfg, setup)
        run = RunDir(Path(folder))
        print(header())
        began = time.monotonic()
        while state.step < STEPS:
            if state.step and (time.monotonic() - began) / state.step > b.left():
                break
            train.train(setup, state, run, adam, base_hash, Signals(), until=state.step + 1)
            b.loop = run.rows("metrics.jsonl", run.sizes()["metrics.jsonl"])
            b.put("loop", [sum(row["seconds"].values()) for row in b.loop])
    if not state.totals["trained"]:
        raise ValueError("the loop trained no token: nothing that the members wrote was rewarded unequally")


def peft(b: Bench) -> None:
    """Rollout and update by PEFT (a development package) on the same weights, over ours. Raises
    AssertionError where its gradients differ."""
    base, adapters, sizes = b.base, b.adapters, b.sizes
    rows = sizes.rows[0]
    own = members_of(rows)
    peers = Peers(base, adapters)

    def rollouts(part: int):
        prompts, new = prompts_of(base, rows, max(1, sizes.prompt // part)), max(2, sizes.new // part)
        theirs = peers.decoder(peers.lora, prompts, new, [f"m{p}" for p in own])
        return theirs, decoder(base, adapters, prompts, own, new)

    part = b.fit(lambda part: rollouts(part)[0](), 4)
    theirs, ours = rollouts(part)
    seen = take_turns(dict(theirs=theirs, ours=ours), 3, b.left() / 2)
    b.put("peft_decode", [x / y for x, y in zip(seen["theirs"], seen["ours"])], part=part)
    fixed = fixed_rollout(base, own, *step_lengths(sizes, part), sizes.attempts)
    theirs, ours = peers.updater(fixed), updater(base, adapters, fixed, b.budget)
    seen = take_turns(dict(theirs=theirs, ours=ours), 3, b.left())
    b.put("peft_update", [x / y for x, y in zip(seen["theirs"], seen["ours"])], part=part)
    peers.check_gradients(adapters)
