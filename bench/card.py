"""card: is this card right, how fast is it, and how near to what it can do? One page of text to send us.

    python -m bench card                            at most 15 minutes, a 7B's shape on a large GPU
    python -m bench card --shape micro --minutes 2  the same on a CPU

First correctness (checks.py), then decoding and update of 8 members and of one, and memory against its plan.
A part that fails is named with its error. All of it is in --out (JSON, written after each part) and beside it
in a page (.md). Exit code 0: every check was made and held.
"""
import argparse
import contextlib
import dataclasses
import gc
import importlib.metadata
import io
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bench import checks, workload
from bench.workload import SHAPES, Work, both, take_turns
from config import Config, resolve_config
from infra.distributed import Ranks
from infra.precision import pick_dtype
from model import Base
from run.memory import GENERATE, UPDATE, memory_plan, peak
from run.platform import git_commit

SMI = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,power.limit"


@dataclass(frozen=True)
class Sizes:
    """What is run: rows of the two batches, tokens of prompt and answer, answers to a prompt, ..."""
    rows: tuple[int, int] = (64, 256)
    prompt: int = 768
    new: int = 256
    attempts: int = 8
    rank: int = 32
    tokens_per_microbatch: int = 16384      # at most: the update halves it until it fits
    checked: int = 2000                     # tokens of the gradients that are compared


MICRO = Sizes(
    rows=(16, 64),
    prompt=48,
    new=32,
    attempts=2,
    rank=8,
    tokens_per_microbatch=2048,
    checked=400)
FITS = (("7b", 36), ("1.5b", 14), ("0.5b", 0))      # shapes, each in more than so many gigabytes


def largest(gigabytes: float) -> str:
    """The largest shape of which 8 members fit; "micro" on a CPU, whose memory counts as 0."""
    for shape, least in FITS:
        if gigabytes > least:
            return shape
    return "micro"


class Card:
    """One run of the command: what is measured on what, and all that is known so far."""

    def __init__(self, args: argparse.Namespace):
        self.device = Ranks.join(args.device).device
        self.on_gpu = self.device.type == "cuda"
        self.dtype = getattr(torch, pick_dtype("auto", self.device))
        self.known = machine(self.device)
        shape = args.shape or largest(self.known.get("gigabytes", 0))
        self.sizes = MICRO if shape == "micro" else Sizes()
        self.base = workload.random_base(shape, self.dtype, self.device)
        self.adapters = workload.population(self.base, self.sizes.rank)
        self.deadline = 0.0                                     # of the present part
        self.known |= dict(
            shape=shape,
            dtype=str(self.dtype),
            parts={},
            checks=[],
            figures={},
            memory={},
            notes="")

    def turns(self, cases: dict[str, Work]) -> dict[str, list[float]]:
        """As many repeats as the part has time for."""
        take_turns(cases, 1)                                    # what runs for the first time loads kernels
        return take_turns(cases, 5, self.deadline - time.monotonic())

    def put(self, name: str, unit: str, values: list[float]) -> None:
        """Book a figure by its repeats."""
        middle = statistics.median(values)
        self.known["figures"][name] = dict(unit=unit, value=middle, values=values)

    def plan(self, name: str, uses: tuple[str, ...], rows: int) -> None:
        """Book the most memory that this part had reserved beside what run/memory.py plans for it."""
        cfg = Config(
            device=str(self.device),
            rank=self.sizes.rank,
            max_new_tokens=self.sizes.new,
            rollout_batch=rows,
            samples_per_task=self.sizes.attempts,
            tokens_per_microbatch=self.sizes.tokens_per_microbatch)
        cfg = resolve_config(cfg, "base", self.device.type)
        plan = memory_plan(cfg, self.base.model.cfg, self.dtype, self.adapters.n_members)
        planned = peak(plan, (uses,)) - plan["optimiser"]        # none is here
        reserved = None
        if self.on_gpu:
            reserved = torch.cuda.max_memory_reserved() / 2 ** 30
        self.known["memory"][name] = dict(planned=planned, reserved=reserved)


def check(card: Card) -> None:
    """What checks.py compares, on the shape itself, of members that are easily told apart."""
    adapters = workload.population(card.base, card.sizes.rank, 4, std=.1)
    results = checks.sampling(card.base)
    results += checks.decoding(card.base, adapters, card.sizes.prompt // 2, 16)
    results += checks.gradients(card.base, adapters, card.sizes.checked)
    for result in results:
        told = dataclasses.asdict(result)
        told["held"] = result.held
        card.known["checks"].append(told)


def decoding(card: Card, rows: int) -> None:
    """Tokens a second of 8 members and of one, less the time of the prompts."""
    sizes = card.sizes
    n = min(sizes.attempts, rows // 8)
    prompts = workload.prompts_of(card.base, rows // n, sizes.prompt)

    def work_of(members: list[int], new: int = sizes.new) -> Work:
        asked = members[::n]                        # a prompt's rows belong to one member
        return workload.decoder(card.base, card.adapters, prompts, asked, new, n)

    whole = both(rows, f"decode_{rows}_", work_of)
    first = both(rows, "prompts alone, ", partial(work_of, new=1))
    seen = card.turns(whole | first)
    n_tokens = rows * (sizes.new - 1)               # the first ones come with the prompts
    for name, alone in zip(whole, first):
        least = statistics.median(seen[alone])
        rates = [n_tokens / (seconds - least) for seconds in seen[name]]
        card.put(name, "tokens/s", rates)
    card.plan(f"decoding {rows} rows", GENERATE, rows)


def update(card: Card) -> None:
    """Operations a second of the joint gradient of 8 members, and of one with all the rows."""
    sizes = card.sizes
    rows = sizes.rows[0]

    def work_of(members: list[int]) -> Work:
        rollout = workload.fixed_rollout(card.base, members, sizes.prompt, sizes.new, sizes.attempts)
        return workload.updater(card.base, card.adapters, rollout, sizes.tokens_per_microbatch)

    seen = card.turns(both(rows, "update_", work_of))
    # Attempts at a prompt share it. Forwards and backwards to the activations: 4 operations a weight.
    n_tokens = rows // sizes.attempts * sizes.prompt + rows * sizes.new
    operations = 4 * n_weights(card.base) * n_tokens
    for name, seconds in seen.items():
        card.put(name, "TFLOP/s", [operations / s / 1e12 for s in seconds])
    card.plan("update", UPDATE, rows)


def n_weights(base: Base) -> int:
    """The numbers in the matrices that a token is multiplied with."""
    n = base.model.embedding.numel()                # as many as the output head has
    for layer in base.model.linears().values():
        n += layer.weight.numel()
    return n


def parts(sizes: Sizes) -> dict[str, Callable[[Card], None]]:
    """What is done, in this order, by name."""
    few, many = sizes.rows
    return {
        "checks": check,
        f"decoding {few} rows": partial(decoding, rows=few),
        f"decoding {many} rows": partial(decoding, rows=many),
        "update": update,
    }


def machine(device: torch.device) -> dict:
    """What is measured, where and when."""
    known = dict(
        date=time.strftime("%Y-%m-%d %H:%M"),
        commit=git_commit() or "unknown",
        card="CPU",
        torch=torch.__version__,
        transformers=importlib.metadata.version("transformers"))
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        known |= dict(
            card=properties.name,
            gigabytes=round(properties.total_memory / 2 ** 30, 1),
            capability=f"{properties.major}.{properties.minor}",
            cuda=torch.version.cuda)
    return known


def clocks() -> str:
    """What nvidia-smi says of driver, clocks, temperature and power; "" where there is none."""
    words = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.strip()
    return ""


def number(x: float | None) -> str:
    """Three digits; of None, a dash."""
    if x is None:
        return "-"
    if x >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def page(known: dict) -> str:
    """All of it as text for an issue."""
    words = []
    for name, value in known.items():
        if isinstance(value, (str, float)):
            words.append(f"{name} {value}")
    text = f"```\n{', '.join(words)}\n"
    text += "\ncheck: error, bound, error of a wrong answer\n"
    for c in known["checks"]:
        word = "held  " if c["held"] else "FAILED"
        errors = f"{number(c['error'])}, {number(c['bound'])}, {number(c['control'])}"
        text += f"{word} {c['name']}: {errors}\n"
    text += "\nfigure: median (range)\n"
    for name, figure in known["figures"].items():
        least, most = min(figure["values"]), max(figure["values"])
        spread = f"{number(least)} .. {number(most)}"
        text += f"{name}: {number(figure['value'])} {figure['unit']} ({spread})\n"
    text += "\nmemory, GB: planned, reserved\n"
    for name, m in known["memory"].items():
        text += f"{name}: {number(m['planned'])}, {number(m['reserved'])}\n"
    text += "\n"
    for name, how in known["parts"].items():
        if how != "done":
            text += f"{name}: {how}\n"
    return text + "```"


def outcome(work: Callable[[Card], None], card: Card, end: float) -> str:
    """Does a part; "done", or what went wrong. Notes that it prints are kept."""
    stderr = io.StringIO()
    how = "done"
    try:
        with contextlib.redirect_stderr(stderr):
            if time.monotonic() > end:
                raise TimeoutError("no time was left: raise --minutes")
            work(card)
    except Exception as e:              # whatever it is, the other parts still have something to say
        how = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    for line in stderr.getvalue().splitlines():
        if line.startswith("note:"):
            card.known["notes"] += line
    return how


def write(known: dict, path: Path) -> None:
    """The JSON file, and the page beside it."""
    finite = json.loads(json.dumps(known), parse_constant=lambda name: None)        # JSON has no NaN
    path.write_text(json.dumps(finite, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(known) + "\n")


def try_card(args: argparse.Namespace) -> dict:
    """Is this card right, how fast is it, and how near to what it can do? Writes a JSON file and a page."""
    end = time.monotonic() + 60 * args.minutes
    card = Card(args)
    known = card.known
    todo = parts(card.sizes)
    for n_done, (name, work) in enumerate(todo.items()):
        # What a part leaves of its time is shared by the later ones.
        began = time.monotonic()
        card.deadline = began + (end - began) / (len(todo) - n_done)
        gc.collect()
        if card.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        known["parts"][name] = outcome(work, card, end)
        known["clocks"] = clocks()                                      # the last ones, of a warm card
        print(f"--- {name}: {known['parts'][name]}", flush=True)
        write(known, Path(args.out))
    print(page(known), flush=True)
    failed = [name for name, how in known["parts"].items() if how != "done"]
    held = "checks" not in failed and all(check["held"] for check in known["checks"])
    return dict(correct=held, out=args.out, failed=failed)


FLAGS = {
    "--minutes": dict(type=float, default=15, help="all parts together"),
    "--shape": dict(choices=SHAPES, help="default: the largest that fits; micro on a CPU"),
    "--out": dict(default="card.json", help="all that was found; the page lies beside it"),
    "--device": dict(default="auto", help="auto, cpu or cuda"),
}
