"""card: is this card right, how fast is it, and how near to what it can do?

    python -m bench card                            25 minutes, a 7B's shape on a large GPU
    python -m bench card --shape micro --minutes 2  the same on a CPU

First correctness (correct.py), then every row of the table in engine.md beside its bound (speed.py),
then ten steps of the real loop. A part that fails is named with its error, and one for which no time is left
is named, too. After each part, all that is known is written to --out. Exit code 0 where everything was
computed correctly, 1 where a check failed or was not made; goals have no say in it.
"""
import dataclasses
import datetime
import functools
import gc
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from attention import paged_kernel
from bench import correct, speed
from bench.correct import Check
from bench.speed import Bench, Sizes
from bench.workload import SHAPES, in_int8
from infra.distributed import Ranks
from run.platform import git_commit
from infra.precision import pick_dtype


def checked(b: Bench, check) -> list[Check]:
    """The checks that a function of correct.py makes on small models."""
    return check(SHAPES[b.shape], b.dtype, b.ranks.device)


def check_graphs(b: Bench) -> list[Check]:
    """From here on the base decodes by CUDA graphs, if these are right."""
    checks = checked(b, correct.check_graphs)
    b.graphs = all(check.held for check in checks)
    return checks


def check_shape(b: Bench) -> list[Check]:
    """Decoding against prefill in the shape itself: other kernels than those of a small model."""
    cfg = SHAPES[b.shape]
    heads = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    b.cache = "paged" if paged_kernel(*heads, b.dtype, b.ranks.device) else "dense"
    name = "decode against prefill, the shape itself"
    return [correct.compare_decoding(name, b.base, b.adapters, prompt=48, new=16)]


@dataclasses.dataclass(frozen=True)
class Part:
    """Something that is done by work(Bench). share: of the time, in relation to the parts that follow."""
    name: str
    work: Callable[[Bench], list[Check] | None]
    share: int
    checks: bool = False                    # correctness: work returns its checks


def parts(device: torch.device, sizes: Sizes) -> list[Part]:
    """What is done, in this order."""
    made = []
    for name, check in (("logits", correct.check_logits), ("decoding", correct.check_decoding),
                        ("gradients", correct.check_gradients), ("routing", correct.check_routing),
                        ("int8 logits", correct.check_int8)):
        made.append(Part(name, functools.partial(checked, check=check), 1, True))
    if device.type == "cuda":
        made.append(Part("CUDA graphs", check_graphs, 1, True))
    made += [Part("bandwidth and arithmetic", speed.roofs, 1), Part("the shape itself", check_shape, 2, True)]
    for rows, share in zip(sizes.rows, (14, 24)):
        made.append(Part(f"decoding {rows} rows", functools.partial(speed.decoding, rows=rows), share))
    made.append(Part("int8 decoding", functools.partial(speed.other_model, name="int8", make=in_int8), 8))
    return made + [Part("update", speed.update, 10), Part("whole step", speed.whole_step, 14),
                   Part("loop", speed.loop, 20), Part("PEFT", speed.peft, 8)]


def machine(device: torch.device) -> dict:
    """What was measured where and when."""
    known = dict(date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                 commit=git_commit() or "unknown", python=platform.python_version(), torch=torch.__version__,
                 transformers=importlib.metadata.version("transformers"), threads=torch.get_num_threads(),
                 card=f"CPU, {os.cpu_count()} cores")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        known |= dict(card=properties.name, gigabytes=round(properties.total_memory / 2 ** 30, 1),
                      cuda=torch.version.cuda, driver=driver())
    return known


def driver() -> str:
    """NVIDIA's version of it, or "unknown"."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "unknown"


def free_memory() -> None:
    """Give back what the last part left behind, above all where it failed."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


class Report:
    """All that is known so far, and the file it is kept in."""

    def __init__(self, path: Path, b: Bench, known: dict):
        self.path, self.bench, self.machine = path, b, known
        self.checks: list[Check] = []
        self.parts: list[dict] = []

    def add(self, part: Part, status: str, began: float, error: str = "", trace: str = "") -> None:
        """Book a part (done, failed, not run), and write the file anew."""
        peak = torch.cuda.max_memory_allocated() / 2 ** 30 if torch.cuda.is_available() else None
        self.parts.append(dict(name=part.name, status=status, error=error, checks=part.checks,
                               seconds=round(time.monotonic() - began, 1), gigabytes=peak, traceback=trace))
        rows = {key: dataclasses.asdict(row) | dict(value=row.value, share=row.share, met=row.met)
                for key, row in self.bench.figures.items()}
        b = self.bench
        data = dict(self.machine, cache=b.cache, graphs=b.graphs, parts=self.parts, figures=rows, loop=b.loop,
                    checks=[dataclasses.asdict(check) | dict(held=check.held) for check in self.checks])
        finite = json.loads(json.dumps(data), parse_constant=lambda name: None)     # JSON has no NaN
        new = self.path.with_name(self.path.name + ".part")
        new.write_text(json.dumps(finite, indent=1) + "\n")
        new.replace(self.path)

    @property
    def correct(self) -> bool:
        """Whether all checks were made, and held."""
        complete = all(part["status"] == "done" for part in self.parts if part["checks"])
        return complete and all(check.held for check in self.checks)

    def names(self, status: str) -> list[str]:
        """Of the parts that are done, failed or not run."""
        return [part["name"] for part in self.parts if part["status"] == status]

    def markdown(self) -> str:
        """The tables for docs/advanced/engine.md."""
        known = self.machine
        versions = ", ".join(f"{name} {known[name]}" for name in ("torch", "cuda", "driver") if name in known)
        lines = [f"{known['card']}; {known['shape']} shape in {known['dtype']}, rank {known['rank']}; "
                 f"{self.bench.cache} cache; {versions}; commit {known['commit']}, {known['date'][:10]}.", "",
                 "| check | relative error | bound | of a wrong answer | |", "|---|---|---|---|---|"]
        for check in self.checks:
            held = "held" if check.held else "**failed**"
            control = number(check.control)
            lines.append(f"| {check.name} | {check.error:.1e} | {check.bound:.0e} | {control} | {held} |")
        lines += ["", "| | measured | range | at best | of that | goal (7B, H200) | |",
                  "|---|---|---|---|---|---|---|"]
        lines += [self.line(row) for row in self.bench.figures.values()]
        if self.bench.loop:
            lines += ["", self.loop_line()]
        for part in self.parts:
            if part["status"] != "done":
                lines += ["", f"{part['name']}: {part['status']}. {part['error']}"]
        return "\n".join(lines)

    def loop_line(self) -> str:
        """Where the loop's time went, and whether its steps were whole: valid tasks, trained tokens."""
        rows = self.bench.loop
        phases = []
        for phase in rows[0]["seconds"]:
            seconds = statistics.fmean(row["seconds"][phase] for row in rows)
            phases.append(f"{phase} {number(seconds)} s")
        valid = statistics.fmean(row["valid"] for row in rows)
        return (f"{len(rows)} steps of the loop, a step: {', '.join(phases)}; {valid:.0%} of tasks valid, "
                f"{rows[-1]['tokens_generated']:,} tokens generated, {rows[-1]['tokens_trained']:,} trained.")

    def line(self, row: speed.Figure) -> str:
        """A figure's line in the table."""
        what = row.what if row.part == 1 else f"{row.what} (with 1/{row.part} of the tokens)"
        share = "" if row.share is None else f"{row.share:.0%}"
        spread = f"{number(min(row.values))} .. {number(max(row.values))}" if row.values else ""
        goal, verdict = number(row.goal), ""
        if row.goal is not None:
            verdict = {True: "met", False: "**not met**", None: "not measured"}[row.met]
            goal = f"{row.goal:.0%} of it" if row.of_bound else goal
        unit = "" if row.unit == "ratio" else f" {row.unit}"
        measured = f"{number(row.value)}{unit}" if row.values else "not measured"
        return f"| {what} | {measured} | {spread} | {number(row.bound)} | {share} | {goal} | {verdict} |"


def number(x: float | None) -> str:
    """Three digits; nothing of None."""
    if x is None:
        return ""
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def run_parts(report: Report, made: list[Part], end: float) -> None:
    """One part after another until `end` (of time.monotonic); time that one leaves goes to the rest."""
    b = report.bench
    for at, part in enumerate(made):
        began = time.monotonic()
        if began >= end:
            report.add(part, "not run", began, "no time was left: raise --minutes")
            continue
        b.deadline = began + (end - began) * part.share / sum(other.share for other in made[at:])
        print(f"--- {part.name}", flush=True)
        error = trace = ""
        try:
            free_memory()
            report.checks += part.work(b) or []
        except Exception as e:              # whatever it is, the other parts still have something to say
            error = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
            trace = traceback.format_exc()
            print(error, flush=True)
        report.add(part, "failed" if error else "done", began, error, trace)


def default_shape(device: torch.device) -> str:
    """The largest shape that a card has room for with 8 members, or the bundled base's on a CPU."""
    if device.type != "cuda":
        return "micro"
    gigabytes = torch.cuda.get_device_properties(device).total_memory / 2 ** 30
    return "7b" if gigabytes > 36 else "1.5b" if gigabytes > 14 else "0.5b"


def card(args) -> dict:
    """Is this card right, how fast is it, and how near to what it can do? Writes card.json and a table."""
    end = time.monotonic() + 60 * args.minutes
    if args.threads:
        torch.set_num_threads(args.threads)
    ranks = Ranks.join(args.device)
    shape = args.shape or default_shape(ranks.device)
    dtype = args.dtype or pick_dtype("auto", ranks.device)
    sizes = speed.MICRO if shape == "micro" else Sizes()
    known = machine(ranks.device) | dict(shape=shape, dtype=dtype, rank=sizes.rank, minutes=args.minutes)
    has_goals = shape == "7b" and "H200" in known["card"]
    b = Bench(shape, getattr(torch, dtype), ranks, sizes, speed.figures(sizes, has_goals))
    report = Report(Path(args.out), b, known)
    run_parts(report, parts(ranks.device, sizes), end)
    print(report.markdown(), flush=True)
    return dict(correct=report.correct, out=args.out, failed=report.names("failed"),
                not_run=report.names("not run"))


def card_flags(parser) -> None:
    """The flags of card."""
    parser.add_argument("--minutes", type=float, default=25, help="all parts together")
    parser.add_argument("--shape", choices=SHAPES, help="default: the largest that fits; micro on a CPU")
    parser.add_argument("--out", default="card.json", help="all that was found, written after each part")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                        help="default: bfloat16 where the card has it, else float16; float32 on a CPU")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = torch's choice")


COMMANDS = {"card": (card, card_flags)}
