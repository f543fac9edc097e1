"""The comparison that the paper leaves open, on any base: which part of a population is worth its compute?

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan              # what would be run, and what it costs
    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --out out/arms      # trains, evaluates, prints; the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --seeds 0,1,2,3,4,5 --steps 200 --jobs 1 -- --lr 2e-5

`full` (the population as it is) is the reference and always run. Its seed S spends a budget, counted in generated tokens (or
rows, or proposals: --budget); every other arm with seed S is trained, by continuing it, until it has spent the same: once per
run, or, for `single` and `singles`, once per pair of teacher and student. A budget that is missed by more than 5% is refused.
Words after -- are flags of train.py for every arm. Members are chosen on the validation split of eval.population.heldout and judged on its
test split. The run is the unit: p is of the exact sign-flip test over seeds, intervals draw seeds and items.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from config import Config, parse_args, settle
from eval import common
from eval.population import compare, heldout
from eval.population.compare import FULL, TOLERANCE
from infra.checkpoint import RunDir, differing
from infra.weights import load_tokenizer, resolve
from operators import OPERATORS

ROOT = common.ROOT
PART = 0.6                                        # of what is left at a time: steps grow dearer as answers grow longer
LONGEST = 4                                       # times the steps first thought of: a run that needs more has stopped to spend
BUDGETS = ("tokens", "rows", "proposals")
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "matching", "evolve", "keep",
         "probe_every", "plan", "device")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to spend the budget. flags of train.py; runs: of one seed; part: of full's budget that one run spends."""
    what: str
    flags: tuple[str, ...]
    part: float = 1.0
    runs: int = 1
    longer: int = 1                               # times the steps of full, as a first guess


def arms_of(pop: int, n_prompts: int) -> dict[str, Arm]:
    """Every arm by name, for a population of `pop` whose teachers answer n_prompts prompts a step."""
    pairs, wide = pop // 2, str(n_prompts * (pop // 2))
    population = ("--pop", str(pop))
    return {FULL: Arm("the population as it is", population),
            "single": Arm("one adapter in both roles, at the budget of one teacher and its student", ("--single",), 1 / pairs),
            "single-long": Arm("one adapter in both roles, at the total budget: more steps", ("--single",), longer=pairs),
            "single-wide": Arm("one adapter in both roles, at the total budget: larger steps", ("--single", "--n-prompts", wide)),
            "singles": Arm(f"{pairs} independent singles, the first of them that of `single`", ("--single",), 1 / pairs, pairs),
            "pair": Arm("one teacher and one student at the total budget: larger steps", ("--pop", "2", "--n-prompts", wide)),
            "no-evolution": Arm("nobody is replaced", (*population, "--evolve", "none")),
            "uniform": Arm("students are drawn uniformly", (*population, "--matching", "uniform")),
            **{name: Arm(f"children by {name} alone", (*population, "--evolve", name))
               for name in ("mutation", "crossover", *OPERATORS)}}


PRESETS = {"paper": ("single", "single-long", "single-wide", "singles", "pair", "no-evolution", "uniform", "mutation",
                     "crossover", "copy"),
           "operators": ("no-evolution", *OPERATORS), "quick": ("single-long", "no-evolution")}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: its folder's name, train.py's flags, seed, the part of full's budget, the first guess of its steps."""
    name: str
    flags: tuple[str, ...]
    seed: int
    part: float
    steps: int


def runs_of(arm: str, arms: dict[str, Arm], seed: int, steps: int) -> list[Run]:
    """The runs of one arm and seed. Those of `singles` have seeds of their own, 1000 apart; the first is `single`'s."""
    a, stem = arms[arm], "single" if arm == "singles" else arm
    return [Run(f"{stem}-s{s}", a.flags, s, a.part, steps * a.longer) for s in (seed + 1000 * j for j in range(a.runs))]


# ---- budgets -------------------------------------------------------------------------------------------------------------

def spent(directory: Path) -> list[dict[str, float]]:
    """What a run had spent after each step up to its last checkpoint: BUDGETS, trained tokens and seconds, all cumulative."""
    run = RunDir(directory, writes=False)
    steps, out, total = run.steps(), [], dict(rows=0, proposals=0, seconds=0.0)
    size = run.part(steps[-1], "state.json", lambda path: json.loads(path.read_text())["logs"]["metrics.jsonl"]) if steps else 0
    for row in run.rows("metrics.jsonl", size):
        attempts = sum(m["n"] for m in row["members"].values() if m["role"] == "student")
        total = dict(rows=total["rows"] + row["n"] + attempts, proposals=total["proposals"] + row["n"],
                     seconds=total["seconds"] + sum(row["seconds"].values()))
        out.append(dict(total, tokens=row["tokens_generated"], trained=row["tokens_trained"]))
    return out


def next_steps(done: list[float], target: float, guess: int, exact: bool) -> int | None:
    """The steps to train to next, so that a run ends within half a step of its target; None = it is there, or will never be.

    done: spent after each step. A step cannot be taken back, and the next ones may spend more than the last: so not all the way
    at once.
    """
    if not done:
        return max(1, guess if exact else int(PART * guess))
    recent = done[-1 - max(1, len(done) // 4):]
    a_step = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else done[-1]
    left = (target - done[-1]) / a_step if a_step > 0 else math.inf
    if left < 0.5 or len(done) >= LONGEST * guess:
        return None
    return min(len(done) + max(1, int(PART * left)), LONGEST * guess)


def unmatched(budgets: dict[str, float]) -> list[str]:
    """Which runs spent more or less than their part of the budget. budgets: run -> spent / due."""
    return [f"{name} spent {ratio:.2f} of what is due" for name, ratio in budgets.items() if not abs(ratio - 1) <= TOLERANCE]


def budgets_of(args: argparse.Namespace, arms: dict[str, Arm], wanted: list[str]) -> tuple[dict[str, dict], dict[str, float]]:
    """Per arm what its runs spent together as shares of full's, means over seeds; per run what it spent over what was due."""
    books = {run.name: spent(args.out / run.name)
             for arm in wanted for s in args.seeds for run in runs_of(arm, arms, s, args.steps)}
    lines, ratios = {}, {}
    for arm in wanted:
        lines[arm] = dict(runs=arms[arm].runs, steps=0.0, hours=0.0) | dict.fromkeys((*BUDGETS, "trained"), 0.0)
        for s in args.seeds:
            full = books[f"{FULL}-s{s}"][-1]
            for run in runs_of(arm, arms, s, args.steps):
                last = books[run.name][-1]
                ratios[run.name] = last[args.budget] / (run.part * full[args.budget])
                lines[arm]["hours"] += last["seconds"] / 3600
                lines[arm]["steps"] += len(books[run.name]) / len(args.seeds) / arms[arm].runs
                for unit in (*BUDGETS, "trained"):
                    lines[arm][unit] += last[unit] / full[unit] / len(args.seeds)
    return lines, ratios


# ---- running -------------------------------------------------------------------------------------------------------------

class Crew:
    """Starts train.py and eval.population.heldout as processes, so many at a time; when one fails or on Ctrl-C all are asked to save and
    leave."""

    def __init__(self, jobs: int):
        self.jobs, self.stopping, self.lock, self.children = jobs, False, threading.Lock(), set()
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        self.env = {"OMP_NUM_THREADS": str(threads), **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}

    def call(self, words: list[str], log: Path) -> None:
        """Run a command of ours to its end. Raises ValueError or OSError with its last words where it fails."""
        with open(log, "a") as f:
            f.write(f"$ {' '.join(words)}\n")
            f.flush()
            with self.lock:
                if self.stopping:
                    raise InterruptedError("stopped")
                child = subprocess.Popen([sys.executable, *words], stdout=f, stderr=f, env=self.env, start_new_session=True)
                self.children.add(child)
            code = child.wait()
        with self.lock:
            self.children.discard(child)
        if code:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1]
            raise (ValueError if code == 2 else OSError)(f"{' '.join(words[:2])} ended with code {code}: {said} ({log} has more)")

    def stop(self) -> None:
        """Ask every child to save and leave."""
        with self.lock:
            self.stopping = True
            for child in self.children:
                child.terminate()                     # not SIGINT, which what a shell starts in the background ignores

    def each(self, work: Callable, jobs: list) -> list:
        """work(job) of every job, in their order. The first failure or signal stops all of them and is raised."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(work, job) for job in jobs]
            try:
                concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_EXCEPTION)
                broken = [f.exception() for f in waiting if f.done() and f.exception()]
                if broken:
                    raise next((e for e in broken if not isinstance(e, InterruptedError)), broken[0])
                return [f.result() for f in waiting]
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.stop()
                raise
            finally:
                signal.signal(signal.SIGTERM, before)


def words_of(args: argparse.Namespace, run: Run, steps: int) -> list[str]:
    """The command that trains a run to `steps`, or goes on with it. Probes are off: their tokens train nobody."""
    return [str(ROOT / "train.py"), *args.train, "--base", args.base, *run.flags, "--seed", str(run.seed), "--steps", str(steps),
            "--probe-every", "0", "--device", args.device, "--out", str(args.out), "--name", run.name, "--resume", "auto"]


def train(args: argparse.Namespace, crew: Crew, run: Run, target: float | None) -> None:
    """Train a run until it has spent `target`, or, without one, for its steps; what is on disk counts."""
    directory = args.out / run.name
    while True:
        done = [x[args.budget] for x in spent(directory)]
        steps = (run.steps if len(done) < run.steps else None) if target is None else \
            next_steps(done, target, run.steps, args.budget == "proposals")
        if steps is None:
            return
        crew.call(words_of(args, run, steps), args.out / f"{run.name}.log")


def evaluate(args: argparse.Namespace, crew: Crew, run: Run) -> None:
    """Answers of a run's members to both splits, unless they are there."""
    for split in heldout.SPLITS:
        out = args.out / run.name / compare.folder(split, args.temperature)
        wanted = dict(samples=args.samples, temperature=args.temperature, limit=args.limit)
        if not (out / "summary.json").exists() or differing(json.loads((out / "summary.json").read_text()), wanted, ()):
            flags = [w for k, v in wanted.items() for w in (f"--{k}", str(v))]
            flags += [w for w in args.train if w == "--weak-sandbox"]
            crew.call(["-m", "eval.population.heldout", "--run", str(args.out / run.name), "--split", split, "--out", str(out), *flags,
                       "--device", args.device, "--workers", "1"], args.out / f"{run.name}.log")


# ---- the command line ----------------------------------------------------------------------------------------------------

def chosen_arms(args: argparse.Namespace, arms: dict[str, Arm]) -> list[str]:
    """full, then --arms or the preset's. Raises ValueError with the near name for one that is not valid."""
    wanted = common.choose(args.arms or ",".join(PRESETS[args.preset]), tuple(arms), "--arms", "arm")
    return list(dict.fromkeys([FULL, *wanted]))


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of the full arm; sets args.base, steps and seeds. Raises ValueError for what the user can mend."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    owned = [word for word in args.train if word[:2] == "--" and word[2:].split("=")[0].replace("-", "_") in OWNED]
    if owned:
        raise ValueError(f"{owned[0]} after --: the arms set it themselves; eval.population.ablation has --base, --steps, --pop, --seeds, --out "
                         "and --device")
    if args.pop < 4 or args.pop % 2:
        raise ValueError(f"--pop {args.pop}: a population of at least two teachers and two students, an even number from 4 on")
    args.base = common.base_name(argparse.Namespace(base=args.base, run=""), [])
    path = resolve(args.base)
    args.base = str(path.resolve()) if Path(args.base).is_dir() else args.base
    cfg = dataclasses.replace(parse_args(None, args.train), base=args.base, pop=args.pop, steps=args.steps)
    cfg = settle(cfg, load_tokenizer(path)[1] if cfg.style == "auto" else cfg.style)
    if cfg.steps <= cfg.evolve_every:
        raise ValueError(f"--steps {cfg.steps}: nobody would be replaced before the end, so that full and no-evolution are one; "
                         f"give more than {cfg.evolve_every}, or -- --evolve-every N")
    try:
        args.seeds = list(dict.fromkeys(int(s) for s in args.seeds.split(",")))
    except ValueError:
        raise ValueError(f"--seeds {args.seeds}: whole numbers, separated by commas") from None
    if min(args.seeds) < 0 or max(args.seeds) >= 1000:
        raise ValueError("--seeds: from 0 to 999 (those of independent singles are counted on from 1000)")
    args.steps, args.out = cfg.steps, Path(args.out).expanduser().resolve()
    return cfg


def show_plan(args: argparse.Namespace, cfg: Config, arms: dict[str, Arm], wanted: list[str]) -> str:
    """Every run with its command and what it costs; hours where a run of full is there to judge by."""
    runs = {run.name: run for arm in wanted for s in args.seeds for run in runs_of(arm, arms, s, args.steps)}
    known = [x[-1] for s in args.seeds if (x := spent(args.out / f"{FULL}-s{s}"))]
    proposals = lambda run: run.part * args.steps * cfg.teachers * cfg.n_prompts * cfg.group
    total = sum(map(proposals, runs.values()))
    out = [f"{arm:13} {arms[arm].what}" for arm in wanted]
    out.append(f"\n{'run':18} {'proposals':>9} {'rows at most':>12} {'steps':>6}  command "
               f"(steps: a first guess where {args.budget} decide)")
    for run in runs.values():
        out.append(f"{run.name:18} {proposals(run):9.0f} {proposals(run) * (1 + cfg.attempts):12.0f} {run.steps:6}  "
                   f"train.py {' '.join(words_of(args, run, run.steps)[1:])}")
    hours = np.mean([x["seconds"] / x["proposals"] for x in known]) * total / 3600 if known else None
    cost = f"about {hours:.1f} hours of training, by the runs of full on disk" if known else "hours: once full is on disk"
    out.append(f"\n{len(runs)} runs, {total:.0f} proposals, at most {total * (1 + cfg.attempts):.0f} rows; {cost}; then "
               f"{len(runs)} x 2 evaluations by eval.population.heldout; {args.jobs} at a time. Matched: {args.budget}")
    return "\n".join(out)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    form = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__, formatter_class=form)
    add = p.add_argument
    add("--base", required=True, help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help="names, separated by commas; default: those of --preset")
    add("--preset", default="paper", choices=tuple(PRESETS), help="; ".join(f"{k}: {', '.join(v)}" for k, v in PRESETS.items()))
    add("--seeds", default="0,1,2", help="separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the style's")
    add("--pop", type=int, default=8, help="members of full")
    add("--budget", default="tokens", choices=BUDGETS, help="what is matched; rows: proposals and attempts")
    add("--out", default="out/arms", help="where runs and summary go")
    add("--jobs", type=int, default=0, help="processes at a time; default: one a core, on cuda one")
    add("--limit", type=int, default=0, help="held-out tasks of each family and split; 0 = all")
    add("--samples", type=int, default=1, help="answers to each task")
    add("--temperature", type=float, default=0.0, help="of these; 0 = greedy")
    add("--effect", type=float, default=0.02, help="difference that the recommended number of seeds is to find")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run and what it costs")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    common.check(argparse.Namespace(**{**vars(args), "max_new": None, "max_rows": None}))
    if args.jobs < 0 or not args.effect > 0:
        raise ValueError("--jobs must not be negative and --effect must be positive")
    cfg = settled(args)
    arms = arms_of(args.pop, cfg.n_prompts)
    wanted = chosen_arms(args, arms)
    args.jobs = args.jobs or (1 if common.Ranks.join(args.device).device.type == "cuda" else len(os.sched_getaffinity(0)))
    if args.plan:
        print(show_plan(args, cfg, arms, wanted))
        return 0
    out = RunDir(args.out)
    manifest = dict(base=args.base, pop=args.pop, steps=args.steps, budget=args.budget, train=args.train)
    before = json.loads((out.path / "config.json").read_text()) if (out.path / "config.json").exists() else manifest
    if changed := differing(before, manifest, ()):
        raise ValueError(f"{out.path} holds arms of another comparison: {', '.join(changed)}; use the old values or another "
                         "--out")
    out.write_json("config.json", manifest)
    crew = Crew(args.jobs)

    def work(job: tuple[Run, float | None]) -> None:
        run, target = job
        train(args, crew, run, target)
        evaluate(args, crew, run)
        books = spent(args.out / run.name)
        print(f"{run.name}: {len(books)} steps, {books[-1]['tokens']} tokens, evaluated", flush=True)
    full = {s: runs_of(FULL, arms, s, args.steps)[0] for s in args.seeds}
    crew.each(work, [(run, None) for run in full.values()])
    due = {s: spent(args.out / run.name)[-1][args.budget] for s, run in full.items()}
    others = {run.name: (run, run.part * due[s])
              for arm in wanted[1:] for s in args.seeds for run in runs_of(arm, arms, s, args.steps)}
    crew.each(work, list(others.values()))
    lines, ratios = budgets_of(args, arms, wanted)
    if wrong := unmatched(ratios):
        raise ValueError(f"budgets in {args.budget} are not matched, and such arms are not compared: {'; '.join(wrong)}. More "
                         "--steps make a step a smaller part of the budget; or leave these arms out")
    places = lambda arm, s: [args.out / run.name for run in runs_of(arm, arms, s, args.steps)]
    measured = lambda arm, s: compare.measured(places(arm, s), args.temperature, args.samples, args.limit)
    found = {arm: [measured(arm, s) for s in args.seeds] for arm in wanted}
    result = dict(seeds=args.seeds, budget=args.budget, **compare.conclude(found, lines, args.effect))
    out.write_json("summary.json", result)
    print(f"\n{compare.table(result)}\n{out.path / 'summary.json'}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
