"""card: is this card right, how fast is it, and how near to what it can do? One page of text to send us.

    python -m bench card                            at most 15 minutes, a 7B's shape on a large GPU
    python -m bench card --shape micro --minutes 2  the same on a CPU

First correctness (checks.py), then decoding and update of 8 members and of one, and memory against its plan.
A part that fails is named with its error. All of it is in --out (JSON, written after each part) and beside it
in a page (.md). Exit code 0: every check was made and held.
"""
import contextlib
import dataclasses
import gc
import importlib.metadata
import io
import json
import statistics
import subprocess
import time
from functools import partial
from pathlib import Path

import torch

from bench import checks, workload
from bench.workload import SHAPES, members_of, take_turns
from config import Config, resolve_config
from infra.distributed import Ranks
from infra.precision import pick_dtype
from run.memory import ALWAYS, GENERATE, UPDATE, memory_plan
from run.platform import git_commit

SMI = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,power.limit"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is run: rows of the two batches, tokens of prompt and answer, answers to a prompt, ..."""
    rows: tuple[int, int] = (64, 256)
    prompt: int = 768
    new: int = 256
    attempts: int = 8
    rank: int = 32
    tokens_per_microbatch: int = 16384      # at most: the update halves it until it fits
    checked: int = 2000                     # tokens of the gradients that are compared


MICRO = Sizes((16, 64), 48, 32, 2, 8, 2048, 400)


class Card:
    """One run of the command: what is measured on what, and all that is known so far."""

    def __init__(self, args):
        self.device = Ranks.join(args.device).device
        self.on_gpu = self.device.type == "cuda"
        self.dtype = getattr(torch, pick_dtype("auto", self.device))
        self.known = machine(self.device)
        room = self.known.get("gigabytes", 0)       # for 8 members; 0 on a CPU
        fitting = [name for name, least in (("7b", 36), ("1.5b", 14), ("0.5b", 0)) if room > least]
        shape = args.shape or (*fitting, "micro")[0]
        self.sizes = MICRO if shape == "micro" else Sizes()
        self.base = workload.random_base(shape, self.dtype, self.device)
        self.adapters = workload.population(self.base, self.sizes.rank)
        self.deadline = 0.0                                     # of the present part
        self.known |= dict(shape=shape, dtype=str(self.dtype), parts={}, checks=[], figures={}, memory={},
                           notes="")

    def turns(self, ways: dict) -> dict[str, list]:
        """As many repeats as the part has time for; what runs for the first time loads kernels."""
        for way in ways.values():
            way()
        return take_turns(ways, 5, self.deadline - time.monotonic())

    def put(self, name: str, unit: str, values: list[float]) -> None:
        """Book a figure by its repeats."""
        self.known["figures"][name] = dict(unit=unit, value=statistics.median(values), values=values)

    def plan(self, name: str, uses: tuple[str, ...], rows: int) -> None:
        """Book the most memory that this part had reserved beside what run/memory.py plans for it."""
        sizes = self.sizes
        cfg = Config(device=str(self.device), rank=sizes.rank, max_new_tokens=sizes.new, rollout_batch=rows,
                     samples_per_task=sizes.attempts, tokens_per_microbatch=sizes.tokens_per_microbatch)
        cfg = resolve_config(cfg, "base", self.device.type)
        plan = memory_plan(cfg, self.base.model.cfg, self.dtype, self.adapters.n_members)
        reserved = torch.cuda.max_memory_reserved() / 2 ** 30 if self.on_gpu else None
        need = sum(plan[use] for use in (*ALWAYS, *uses) if use != "optimiser")
        self.known["memory"][name] = dict(planned=need, reserved=reserved)


def check(card: Card) -> None:
    """What checks.py compares, on the shape itself, of members that are easily told apart."""
    base, adapters = card.base, workload.population(card.base, card.sizes.rank, 4, std=.1)
    results = [*checks.sampling(base), *checks.decoding(base, adapters, card.sizes.prompt // 2, 16),
             *checks.gradients(base, adapters, card.sizes.checked)]
    card.known["checks"] = [dataclasses.asdict(check) | dict(held=check.held) for check in results]


def decoding(card: Card, rows: int) -> None:
    """Tokens a second of 8 members and of one, less the time of the prompts."""
    sizes, n = card.sizes, min(card.sizes.attempts, rows // 8)
    prompts = workload.prompts_of(card.base, rows // n, sizes.prompt)
    populations = {8: members_of(rows), 1: [0] * rows}
    seen = card.turns({(k, new): workload.decoder(card.base, card.adapters, prompts, members[::n], new, n)
                       for k, members in populations.items() for new in (sizes.new, 1)})
    for k in populations:
        first = statistics.median(seen[k, 1])
        rates = [rows * (sizes.new - 1) / (s - first) for s in seen[k, sizes.new]]
        card.put(f"decode_{rows}_{k}", "tokens/s", rates)
    card.plan(f"decoding {rows} rows", GENERATE, rows)


def update(card: Card) -> None:
    """Operations a second of the joint gradient of 8 members, and of one with all the rows."""
    base, sizes, rows, cfg = card.base, card.sizes, card.sizes.rows[0], card.base.model.cfg

    def way(members: list[int]):
        rollout = workload.fixed_rollout(base, members, sizes.prompt, sizes.new, sizes.attempts)
        return workload.updater(base, card.adapters, rollout, sizes.tokens_per_microbatch)
    seen = card.turns({8: way(members_of(rows)), 1: way([0] * rows)})
    weights = sum(x.in_features * x.out_features for x in base.model.linears().values())
    weights += cfg.vocab_size * cfg.hidden_size
    n_tokens = rows // sizes.attempts * sizes.prompt + rows * sizes.new
    for k, seconds in seen.items():
        card.put(f"update_{k}", "TFLOP/s", [4 * weights * n_tokens / s / 1e12 for s in seconds])
    card.plan("update", UPDATE, rows)


def parts(sizes: Sizes) -> dict:
    """What is done, in this order: {name: (work, share of the time)}."""
    made = {"checks": (check, 6)}
    for rows, share in zip(sizes.rows, (5, 8)):
        made[f"decoding {rows} rows"] = partial(decoding, rows=rows), share
    return made | {"update": (update, 6)}


def machine(device: torch.device) -> dict:
    """What is measured, where and when."""
    known = dict(date=time.strftime("%Y-%m-%d %H:%M"), commit=git_commit() or "unknown", card="CPU",
                 torch=torch.__version__, transformers=importlib.metadata.version("transformers"))
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        known |= dict(card=card.name, gigabytes=round(card.total_memory / 2 ** 30, 1),
                      capability=f"{card.major}.{card.minor}", cuda=torch.version.cuda)
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
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def page(known: dict) -> str:
    """All of it as text for an issue."""
    words = [f"{name} {value}" for name, value in known.items() if isinstance(value, (str, float))]
    lines = ["```", ", ".join(words), "", "check: error, bound, error of a wrong answer"]
    for c in known["checks"]:
        errors = ", ".join(number(c[key]) for key in ("error", "bound", "control"))
        lines.append(f"{'held  ' if c['held'] else 'FAILED'} {c['name']}: {errors}")
    lines += ["", "figure: median (range)"]
    for name, f in known["figures"].items():
        spread = f"{number(min(f['values']))} .. {number(max(f['values']))}"
        lines.append(f"{name}: {number(f['value'])} {f['unit']} ({spread})")
    lines += ["", "memory, GB: planned, reserved"]
    for name, m in known["memory"].items():
        lines.append(f"{name}: {number(m['planned'])}, {number(m['reserved'])}")
    lines += ["", *(f"{name}: {how}" for name, how in known["parts"].items() if how != "done"), "```"]
    return "\n".join(lines)


def card(args) -> dict:
    """Is this card right, how fast is it, and how near to what it can do? Writes a JSON file and a page."""
    end, path = time.monotonic() + 60 * args.minutes, Path(args.out)
    card = Card(args)
    known, todo = card.known, list(parts(card.sizes).items())
    for i, (name, (work, share)) in enumerate(todo):
        began = time.monotonic()
        card.deadline = began + (end - began) * share / sum(later for _, (_, later) in todo[i:])
        gc.collect()
        if card.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        known["parts"][name], stderr = "done", io.StringIO()
        try:
            with contextlib.redirect_stderr(stderr):
                if began > end:
                    raise TimeoutError("no time was left: raise --minutes")
                work(card)
        except Exception as e:              # whatever it is, the other parts still have something to say
            known["parts"][name] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
        known["notes"] += "".join(line for line in stderr.getvalue().splitlines() if line.startswith("note:"))
        known["clocks"] = clocks()                                      # the last ones, of a warm card
        print(f"--- {name}: {known['parts'][name]}", flush=True)
        finite = json.loads(json.dumps(known), parse_constant=lambda name: None)    # JSON has no NaN
        path.write_text(json.dumps(finite, indent=1) + "\n")
        path.with_suffix(".md").write_text(page(known) + "\n")
    print(page(known), flush=True)
    failed = [name for name, how in known["parts"].items() if how != "done"]
    held = known["parts"]["checks"] == "done" and all(check["held"] for check in known["checks"])
    return dict(correct=held, out=args.out, failed=failed)


COMMANDS = {"card": (card, {
    "--minutes": dict(type=float, default=15, help="all parts together"),
    "--shape": dict(choices=SHAPES, help="default: the largest that fits; micro on a CPU"),
    "--out": dict(default="card.json", help="all that was found; the page lies beside it"),
    "--device": dict(default="auto", help="auto, cpu or cuda")})}
