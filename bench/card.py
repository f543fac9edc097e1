"""card: is this card right, how fast is it, and how near to what it can do? One page of text to send us.

    python -m bench card                            at most 15 minutes, a 7B's shape on a large GPU
    python -m bench card --shape micro --minutes 2  the same on a CPU

First correctness (checks.py), then decoding and update of 8 members and of one beside what the card can do at
best, the kernels of one step and one micro-batch, and memory against its plan. A part that fails is named
with its error. All that is known is in --out (JSON, written after each part) and beside it in a page (.md).
Exit code 0 where every check was made and held.
"""
import contextlib
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
import sys
import time
from pathlib import Path

import torch
from torch.profiler import profile

from bench import checks
from bench.common import take_turns, timed
from bench.workload import (
    SHAPES,
    base_of,
    decoder,
    fixed_rollout,
    members_of,
    population,
    prompts_of,
    random_model,
    updater,
)
from config import Config, resolve_config
from generate import DecodeBatch
from infra.distributed import Ranks
from infra.precision import pick_dtype
from run.memory import ALWAYS, GENERATE, UPDATE, memory_plan
from run.platform import git_commit

# What a reading of the code expects of a 7B's shape on an H200, by figure. Nobody has measured it.
EXPECTED = {"decode_64_8": "7,000", "decode_256_8": "17,000", "update_8": "35 to 40% of the best"}
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
        device = Ranks.join(args.device).device
        self.on_gpu = device.type == "cuda"
        self.shape = args.shape or default_shape(device)
        self.dtype = getattr(torch, args.dtype or pick_dtype("auto", device))
        self.device, self.sizes = device, MICRO if self.shape == "micro" else Sizes()
        self.path, self.deadline = Path(args.out), 0.0
        self.known = machine(device) | dict(shape=self.shape, dtype=str(self.dtype), parts={}, checks=[],
                                            figures={}, memory={}, kernels={}, notes=[], clocks="")
        self.base = self.adapters = None

    def make_base(self) -> None:
        """Random weights of the shape and 8 members on them."""
        self.base = base_of(random_model(SHAPES[self.shape], self.dtype, self.device), self.shape)
        self.adapters = population(self.base, self.sizes.rank)

    def check(self, found: list[checks.Check]) -> None:
        """Book checks."""
        self.known["checks"] += [dataclasses.asdict(check) | dict(held=check.held) for check in found]

    def put(self, name: str, unit: str, values: list[float], best: float | None = None) -> None:
        """Book a figure by its repeats; best: what the card could do."""
        expected = EXPECTED.get(name) if self.shape == "7b" and "H200" in self.known["card"] else None
        figure = dict(unit=unit, value=statistics.median(values), values=values)
        self.known["figures"][name] = figure | dict(best=best, expected=expected)

    def best(self, name: str) -> float:
        """A bound that was measured; ValueError where it was not."""
        if name not in self.known["figures"]:
            raise ValueError(f"without the card's {name} there is no bound")
        return self.known["figures"][name]["value"]

    def left(self) -> float:
        """Seconds that the present part has."""
        return self.deadline - time.monotonic()

    def fit(self, run, n_runs: int) -> int:
        """The part of the tokens (1 = all, 2 = half, ...) with which n_runs runs fit into the time left."""
        part = 16
        run(part)                                       # loads the kernels
        while True:
            seconds = run(part)
            if part == 1 or 2 * seconds * n_runs > self.left():
                return part
            part //= 2

    def save(self) -> None:
        """Write the JSON file and the page anew."""
        finite = json.loads(json.dumps(self.known), parse_constant=lambda name: None)   # JSON has no NaN
        self.path.write_text(json.dumps(finite, indent=1) + "\n")
        self.path.with_suffix(".md").write_text(page(self.known) + "\n")


# --- parts --------------------------------------------------------------------------------------------------

def check_small(card: Card, check) -> None:
    """A check of checks.py on small models."""
    card.check(check(SHAPES[card.shape], card.dtype, card.device))


def check_shape(card: Card) -> None:
    """Decoding and gradients of the shape itself."""
    card.make_base()
    card.check(checks.check_shape(card.base, card.adapters, 48, 16))
    card.check(checks.check_shape_gradients(card.base, card.adapters, card.sizes.checked))


def roofs(card: Card) -> None:
    """Bandwidth of a copy, which reads and writes each byte, and arithmetic of a large product."""
    n_bytes, n = (1 << 30, 8192) if card.on_gpu else (1 << 27, 1024)
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    a, b = torch.randn(2, n, n, device=card.device).to(card.dtype)

    def seconds(work) -> list[float]:
        work()
        return take_turns({"": timed(work)}, 7)[""]
    card.put("bandwidth", "GB/s", [2 * n_bytes / s / 1e9 for s in seconds(lambda: target.copy_(source))])
    card.put("arithmetic", "TFLOP/s", [2 * n ** 3 / s / 1e12 for s in seconds(lambda: torch.mm(a, b))])


def n_weights(base) -> int:
    """Numbers that every token is multiplied by: linear layers and head."""
    cfg = base.model.cfg
    return sum(x.in_features * x.out_features for x in base.model.linears().values()) \
        + cfg.vocab_size * cfg.hidden_size


def decoding(card: Card, rows: int) -> None:
    """Tokens a second of 8 members and of one, less the time of the prompts. At best a step reads the base,
    the adapters present and the rows' keys and values once."""
    base, adapters, sizes = card.base, card.adapters, card.sizes
    n = min(sizes.attempts, rows // 8)

    def way(part: int, members: list[int], new: int):
        prompts = prompts_of(base, rows // n, max(1, sizes.prompt // part))
        return decoder(base, adapters, prompts, members[::n], max(2, new // part) if new > 1 else 1, n)

    populations = {8: members_of(rows), 1: [0] * rows}
    part = card.fit(lambda part: way(part, populations[8], sizes.new)(), 10)
    ways = {(k, new): way(part, members, new) for k, members in populations.items() for new in (sizes.new, 1)}
    seen = take_turns(ways, 5, card.left())
    cfg, size = base.model.cfg, card.dtype.itemsize
    slots = (sizes.prompt + sizes.new / 2) / part
    keys = 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * slots * rows
    a_member = sum(p.numel() for p in adapters.parameters()) // adapters.n_members
    for k in populations:
        first = statistics.median(seen[k, 1])
        rates = [rows * (max(2, sizes.new // part) - 1) / (s - first) for s in seen[k, sizes.new]]
        n_bytes = size * (n_weights(base) + k * a_member + keys)
        at_best = rows * card.best("bandwidth") * 1e9 / n_bytes
        card.put(f"decode_{rows}_{k}", f"tokens/s (1/{part} of the tokens)", rates, at_best)
    planned(card, f"decoding {rows} rows", GENERATE, rollout_batch=rows)


def update(card: Card) -> None:
    """Operations a second of the joint gradient of 8 members, and of one with all the rows. Counted are
    forward and backward through frozen layers and head: no attention, padding, adapter or second forward."""
    base, sizes = card.base, card.sizes
    rows = sizes.rows[0]

    def way(part: int, members: list[int]):
        prompt, new = max(1, sizes.prompt // part), max(2, sizes.new // part)
        rollout = fixed_rollout(base, members, prompt, new, sizes.attempts)
        return updater(base, card.adapters, rollout, sizes.tokens_per_microbatch)

    part = card.fit(lambda part: way(part, members_of(rows))(), 10)
    seen = take_turns({8: way(part, members_of(rows)), 1: way(part, [0] * rows)}, 5, card.left())
    prompt, new = max(1, sizes.prompt // part), max(2, sizes.new // part)
    n_tokens = rows // sizes.attempts * prompt + rows * new
    for k, seconds in seen.items():
        flops = [4 * n_weights(base) * n_tokens / s / 1e12 for s in seconds]
        card.put(f"update_{k}", f"TFLOP/s (1/{part} of the tokens)", flops, card.best("arithmetic"))
    planned(card, "update", UPDATE, rollout_batch=rows)


def planned(card: Card, name: str, uses: tuple[str, ...], **flags) -> None:
    """Book the most memory that the present part had reserved beside what run/memory.py plans for it."""
    sizes = card.sizes
    cfg = Config(device=str(card.device), rank=sizes.rank, max_new_tokens=sizes.new,
                 samples_per_task=sizes.attempts, tokens_per_microbatch=sizes.tokens_per_microbatch, **flags)
    cfg = resolve_config(cfg, "base", card.device.type)
    plan = memory_plan(cfg, card.base.model.cfg, card.dtype, card.adapters.n_members)
    reserved = torch.cuda.max_memory_reserved() / 2 ** 30 if card.on_gpu else None
    need = sum(plan[use] for use in (*ALWAYS, *uses) if use != "optimiser")
    card.known["memory"][name] = dict(planned=need, reserved=reserved)


def kernels(card: Card) -> None:
    """The kernels of one eager step of decoding and of one micro-batch, by their time."""
    base, sizes, plain = card.base, card.sizes, DecodeBatch.step
    seen = []

    def step(self, *args, **kwargs) -> None:
        seen.append(self)
        if len(seen) == 3:                              # the first ones load kernels
            work = functools.partial(plain, self, *args, **kwargs)
            card.known["kernels"]["a step of decoding"] = profiled(work)
        else:
            plain(self, *args, **kwargs)
    DecodeBatch.step = step
    try:
        eager, rows = dataclasses.replace(base, graphs=False), sizes.rows[0]
        decoder(eager, card.adapters, prompts_of(base, rows, sizes.prompt), members_of(rows), 6)()
    finally:
        DecodeBatch.step = plain
    rollout = fixed_rollout(base, members_of(8), sizes.prompt // 2, sizes.new // 2, 1)
    learn = updater(base, card.adapters, rollout, sizes.tokens_per_microbatch)
    learn()
    card.known["kernels"]["a micro-batch"] = profiled(learn)


def profiled(work) -> list[dict]:
    """Names, calls and microseconds of the fifteen kernels (on a CPU: ops) that take longest, and of all."""
    with profile() as found:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    rows = [dict(name=e.key[:90], calls=e.count, us=e.self_device_time_total or e.self_cpu_time_total)
            for e in found.key_averages() if e.self_device_time_total or not torch.cuda.is_available()]
    rows.sort(key=lambda row: -row["us"])
    whole = {key: sum(row[key] for row in rows) for key in ("calls", "us")}
    return [dict(name="all", **whole), *rows[:15]]


def parts(sizes: Sizes) -> dict:
    """What is done, in this order: {name: (work, share of the time, whether it is a check)}."""
    made = {}
    for name in ("sampling", "logits", "decoding", "gradients"):
        made[name] = functools.partial(check_small, check=getattr(checks, f"check_{name}")), 1, True
    made |= {"the shape itself": (check_shape, 3, True), "bandwidth and arithmetic": (roofs, 1, False)}
    for rows, share in zip(sizes.rows, (5, 8)):
        made[f"decoding {rows} rows"] = functools.partial(decoding, rows=rows), share, False
    return made | {"update": (update, 6, False), "kernels": (kernels, 1, False)}


# --- the command --------------------------------------------------------------------------------------------

def machine(device: torch.device) -> dict:
    """What is measured, where and when."""
    known = dict(date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                 commit=git_commit() or "unknown", python=platform.python_version(), torch=torch.__version__,
                 transformers=importlib.metadata.version("transformers"), card=f"CPU, {os.cpu_count()} cores")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        known |= dict(card=properties.name, gigabytes=round(properties.total_memory / 2 ** 30, 1),
                      capability=f"{properties.major}.{properties.minor}", cuda=torch.version.cuda)
    return known


def clocks() -> str:
    """What nvidia-smi says of driver, clocks, temperature and power; "" where there is none."""
    words = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.strip()
    return ""


def default_shape(device: torch.device) -> str:
    """The largest shape that a card has room for with 8 members, or the bundled base's on a CPU."""
    if device.type != "cuda":
        return "micro"
    gigabytes = torch.cuda.get_device_properties(device).total_memory / 2 ** 30
    return "7b" if gigabytes > 36 else "1.5b" if gigabytes > 14 else "0.5b"


class Notes:
    """stderr that also keeps its lines."""

    def __init__(self, stream, kept: list[str]):
        self.stream, self.kept = stream, kept

    def write(self, text: str) -> int:
        self.kept += [line for line in text.splitlines() if line.startswith("note:")]
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def page(known: dict) -> str:
    """All of it as text for an issue."""
    head = [f"{name} {value}" for name, value in known.items() if isinstance(value, (str, float))]
    lines = [", ".join(head), "", "| check | error | bound | a wrong answer's | |",
             "|---|---|---|---|---|"]
    for c in known["checks"]:
        held = "held" if c["held"] else "**failed**"
        control = number(c["control"])
        lines.append(f"| {c['name']} | {c['error']:.1e} | {c['bound']:.0e} | {control} | {held} |")
    lines += ["", "| | measured | range | at best | expected, not measured |", "|---|---|---|---|---|"]
    for name, f in known["figures"].items():
        spread = f"{number(min(f['values']))} .. {number(max(f['values']))}"
        share = f"{number(f['best'])} ({f['value'] / f['best']:.0%})" if f["best"] else ""
        measured = f"{number(f['value'])} {f['unit']}"
        lines.append(f"| {name} | {measured} | {spread} | {share} | {f['expected'] or ''} |")
    lines += ["", "| memory, GB | planned | reserved |", "|---|---|---|"]
    for name, m in known["memory"].items():
        lines.append(f"| {name} | {number(m['planned'])} | {number(m['reserved'])} |")
    for name, rows in known["kernels"].items():
        lines += ["", f"Kernels of {name} (microseconds, calls):", "```"]
        lines += [f"{row['us']:10.0f} {row['calls']:6} {row['name']}" for row in rows] + ["```"]
    lines += ["", *known["notes"]]
    return "\n".join(lines + [f"{name}: {how}" for name, how in known["parts"].items() if how != "done"])


def number(x: float | None) -> str:
    """Three digits; nothing of None."""
    if x is None:
        return ""
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def card(args) -> dict:
    """Is this card right, how fast is it, and how near to what it can do? Writes a JSON file and a page."""
    end = time.monotonic() + 60 * args.minutes
    if args.threads:
        torch.set_num_threads(args.threads)
    card = Card(args)
    todo = parts(card.sizes)
    known, names = card.known, list(todo)
    with contextlib.redirect_stderr(Notes(sys.stderr, known["notes"])):
        for i, (name, (work, share, _)) in enumerate(todo.items()):
            began = time.monotonic()
            card.deadline = began + (end - began) * share / sum(todo[later][1] for later in names[i:])
            gc.collect()
            if card.on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            print(f"--- {name}", flush=True)
            known["parts"][name] = "done"
            try:
                if began > end:
                    raise TimeoutError("no time was left: raise --minutes")
                work(card)
            except Exception as e:          # whatever it is, the other parts still have something to say
                known["parts"][name] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
                print(known["parts"][name], flush=True)
            known["clocks"] = clocks() or known["clocks"]           # the last ones, of a warm card
            card.save()
    print(page(known), flush=True)
    made = all(known["parts"][name] == "done" for name in names if todo[name][2])
    failed = [name for name in names if known["parts"][name] != "done"]
    return dict(correct=made and all(check["held"] for check in known["checks"]), out=args.out, failed=failed)


def card_flags(parser) -> None:
    """The flags of card."""
    parser.add_argument("--minutes", type=float, default=15, help="all parts together")
    parser.add_argument("--shape", choices=SHAPES, help="default: the largest that fits; micro on a CPU")
    parser.add_argument("--out", default="card.json", help="all that was found; the page lies beside it")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                        help="default: bfloat16 where the card has it, else float16; float32 on a CPU")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 = torch's choice")


COMMANDS = {"card": (card, card_flags)}
