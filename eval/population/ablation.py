"""The questions that the paper leaves open, on any base: which part of a population is worth its compute?

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan     # what would be run, and what it costs
    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --jobs 2   # trains, evaluates, prints; also goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --seeds 0,1,2,3,4,5 --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2

`full` (the population as it is) is the reference and always run. What it spends with seed S, counted in generated tokens
without those of probes (or in rows, or in proposals: --budget), is the budget of every other arm with seed S: once per run, or,
for `single` and `singles`, once per pair of teacher and student. Every run is stopped after the step that brings it nearest to
its budget; one that misses it by more than 5% is refused. Seeds are run one after the other, so that what is on disk is always
whole seeds. Words after -- are flags of train.py for every arm. docs/ablations.md holds the plan of our own comparison.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from config import Config, parse_args, settle
from eval import common
from eval.population import compare, heldout, measures
from eval.population.arms import FULL, PRESETS, Arm, Run, arms_of, given_arm, rows_of_step, runs_of, stretch_of
from eval.population.compare import TOLERANCE
from infra.checkpoint import RunDir, differing
from infra.weights import load_tokenizer, resolve

LONGEST = 4                         # times the steps first thought of: a run that needs more has stopped to spend
POLL_S = 0.3                        # between looks at what a run has spent
INTERRUPTED = 130                   # exit code of a run that saved and left when asked to
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep", "plan", "device",
         "probe_every", "probe_share", "anchors", "n_anchors", "n_heldout")


# ---- budgets -------------------------------------------------------------------------------------------------------------

def unmatched(budgets: dict[str, float]) -> list[str]:
    """Which runs spent more or less than their part of the budget. budgets: run -> spent / due."""
    return [f"{name} spent {ratio:.2f} of what is due" for name, ratio in budgets.items() if not abs(ratio - 1) <= TOLERANCE]


def spent_by(args: argparse.Namespace, run: Run) -> list[dict]:
    """measures.spent of a run on disk."""
    return measures.spent(measures.logged(args.out / run.name))


def area_of(args: argparse.Namespace, run: Run, due: float) -> float:
    """The primary measure of a run that is trained and evaluated."""
    directory = args.out / run.name
    final = measures.final_accuracy(directory / compare.folder("validation"))
    return measures.area(measures.curve(measures.logged(directory), args.budget, due, final))


def budgets_of(args: argparse.Namespace, arms: dict[str, Arm], seeds: list[int]) -> tuple[dict[str, dict], dict[str, float]]:
    """Per arm what its runs spent together as shares of full's, means over seeds; per run what it spent over what was due."""
    lines, ratios = {}, {}
    units = (*measures.BUDGETS, "trained")
    full = {seed: spent_by(args, runs_of(FULL, arms, seed)[0])[-1] for seed in seeds}
    for name in args.wanted:
        line = dict(runs=arms[name].runs, steps=0.0, hours=0.0) | dict.fromkeys(units, 0.0)
        for seed in seeds:
            for run in runs_of(name, arms, seed):
                history = spent_by(args, run)
                last = history[-1]
                ratios[run.name] = last[args.budget] / (run.part * full[seed][args.budget])
                line["hours"] += last["seconds"] / 3600
                line["steps"] += len(history) / len(seeds) / arms[name].runs
                for unit in units:
                    line[unit] += last[unit] / full[seed][unit] / len(seeds)
        lines[name] = line
    return lines, ratios


# ---- running -------------------------------------------------------------------------------------------------------------

class Crew:
    """Starts our commands as processes, so many at a time; when one fails or on Ctrl-C all are asked to save and leave."""

    def __init__(self, jobs: int):
        self.jobs = jobs
        self.stopping = False
        self.lock = threading.Lock()
        self.children = set()
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        path = os.pathsep.join(filter(None, (str(common.ROOT), os.environ.get("PYTHONPATH"))))
        self.env = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path}

    def call(self, words: list[str], log: Path, enough: Callable[[], bool] | None = None) -> None:
        """Run a command of ours to its end, or until enough() is true: then it is asked to save and leave.

        Raises ValueError or OSError with its last words where it fails.
        """
        with open(log, "a") as f:
            f.write(f"$ {' '.join(words)}\n")
            f.flush()
            with self.lock:
                if self.stopping:
                    raise InterruptedError("stopped")
                child = subprocess.Popen([sys.executable, *words], stdout=f, stderr=f, env=self.env, start_new_session=True)
                self.children.add(child)
            asked = False
            while enough and not asked and child.poll() is None:
                time.sleep(POLL_S)
                asked = enough()
                if asked:
                    child.terminate()
            code = child.wait()
        with self.lock:
            self.children.discard(child)
        if code and not (asked and code == INTERRUPTED):
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1]
            error = ValueError if code == 2 else OSError
            raise error(f"{' '.join(words[:2])} ended with code {code}: {said} ({log} has more)")

    def stop(self) -> None:
        """Ask every child to save and leave."""
        with self.lock:
            self.stopping = True
            for child in self.children:
                child.terminate()                     # not SIGINT, which what a shell starts in the background ignores

    def wait(self, ready: Callable[[], bool]) -> None:
        """Until ready() is true. Raises InterruptedError where the others are stopped meanwhile."""
        while not ready():
            if self.stopping:
                raise InterruptedError("stopped")
            time.sleep(POLL_S)

    def each(self, work: Callable, jobs: list) -> None:
        """work(job) of every job, begun in their order. The first failure or signal stops all of them and is raised."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(work, job) for job in jobs]
            try:
                concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_EXCEPTION)
                broken = [f.exception() for f in waiting if f.done() and f.exception()]
                if broken:
                    raise next((e for e in broken if not isinstance(e, InterruptedError)), broken[0])
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.stop()
                raise
            finally:
                signal.signal(signal.SIGTERM, before)


def in_order(args: argparse.Namespace, arms: dict[str, Arm]) -> list[tuple[int, Run]]:
    """(seed, run) in the order in which they begin: a seed's full one seed ahead of its other runs, which wait for it."""
    fulls, others = [], []
    for seed in args.seeds:
        runs = {run.name: run for name in args.wanted for run in runs_of(name, arms, seed, args.stretch[name])}
        first, *rest = runs.values()
        fulls.append((seed, first))
        others.append([(seed, run) for run in rest])
    out = fulls[:1]
    for i, rest in enumerate(others):
        out += fulls[i + 1:i + 2] + rest
    return out


def words_of(args: argparse.Namespace, run: Run) -> list[str]:
    """The command that trains a run, or goes on with it. It is stopped at its budget, long before its steps.

    Arms of more and smaller steps probe as often as the others by what they spend.
    """
    flags = {"base": args.base, "seed": run.seed, "steps": LONGEST * args.steps * run.stretch, "device": args.device,
             "probe-every": args.probe_every * run.stretch, "probe-share": 1, "anchors": args.out / "anchors.jsonl",
             "n-anchors": len(measures.anchor_items()), "n-heldout": 0,
             "keep": 1, "out": args.out, "name": run.name, "resume": "auto"}
    words = [str(common.ROOT / "train.py"), *args.train, *run.flags]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


def train(args: argparse.Namespace, crew: Crew, run: Run, due: float | None) -> None:
    """Train a run until it has spent `due`, or, without one, for --steps; what is on disk counts."""
    def finished(rows: list[dict]) -> bool:
        if due is None:
            return len(rows) >= args.steps
        return measures.met([state[args.budget] for state in measures.spent(rows)], due)

    directory = args.out / run.name
    if not finished(measures.logged(directory)):
        crew.call(words_of(args, run), args.out / f"{run.name}.log", lambda: finished(measures.logged_so_far(directory)))


def evaluate(args: argparse.Namespace, crew: Crew, run: Run) -> None:
    """Greedy answers of a run's students to both splits, unless they are there: the anchors, and all test families."""
    directory = args.out / run.name
    last = RunDir(directory, writes=False).steps()[-1]
    members = sorted(p.parent for p in (directory / f"step_{last}").glob("*/adapter_config.json"))
    students = [path for path in members if path.name.startswith("S")] or members
    for split, (families, limit) in args.evaluations.items():
        out = directory / compare.folder(split)
        if (out / "summary.json").exists() and json.loads((out / "summary.json").read_text())["limit"] == limit:
            continue
        words = ["-m", "eval.population.heldout", "--base", args.base, "--adapters", *map(str, students),
                 "--split", split, "--bench", ",".join(families), "--limit", str(limit), "--max-new", str(args.max_new),
                 "--out", str(out), "--device", args.device, "--workers", "1"]
        words += [word for word in args.train if word == "--weak-sandbox"]
        crew.call(words, args.out / f"{run.name}.log")


def run_all(args: argparse.Namespace, arms: dict[str, Arm]) -> None:
    """Train and evaluate every run that is not yet on disk."""
    crew = Crew(args.jobs)
    budget = {}                                       # of each seed, once its full is trained

    def work(job: tuple[int, Run]) -> None:
        seed, run = job
        started = time.monotonic()
        due = None
        if run.name != f"{FULL}-s{seed}":
            crew.wait(lambda: seed in budget)
            due = run.part * budget[seed]
        train(args, crew, run, due)
        history = spent_by(args, run)
        if due is None:
            budget[seed] = history[-1][args.budget]
        evaluate(args, crew, run)
        last, due = history[-1], due or budget[seed]
        print(f"{time.strftime('%H:%M:%S')} {run.name}: {len(history)} steps, {last['tokens']} tokens, {last[args.budget] / due:.3f} "
              f"of its budget, and {last['probe_tokens']} for probes; area {area_of(args, run, due):.3f}; "
              f"{time.monotonic() - started:.0f} s", flush=True)
    crew.each(work, in_order(args, arms))


# ---- the command line ----------------------------------------------------------------------------------------------------

def chosen_arms(args: argparse.Namespace, cfg: Config) -> dict[str, Arm]:
    """Every arm by name, --arm's among them; sets args.wanted and each one's stretch.

    Wanted are full, those of --arms and of --arm, and where neither is given those of the preset.
    Raises ValueError with the near name for one that is not valid.
    """
    arms = arms_of(args.pop, cfg.n_prompts)
    given = []
    for text in args.arm:
        name, arm = given_arm(text, args.pop)
        if name in arms:
            raise ValueError(f"--arm {name}: there is an arm of this name; give it another")
        arms[name] = arm
        given.append(name)
    names = args.arms or ("" if given else ",".join(PRESETS[args.preset]))
    wanted = common.choose(names, tuple(arms), "--arms", "arm")
    args.wanted = list(dict.fromkeys([FULL, *wanted, *given]))
    args.stretch = {name: stretch_of(arms[name], cfg, args.train) for name in args.wanted}
    return arms


def settled(args: argparse.Namespace) -> Config:
    """train.py's configuration of the full arm; sets args.base, steps and seeds. Raises ValueError for what the user can mend."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    owned = [word for word in args.train if word[:2] == "--" and word[2:].split("=")[0].replace("-", "_") in OWNED]
    if owned:
        raise ValueError(f"{owned[0]} after --: the arms set it themselves; eval.population.ablation has --base, --steps, "
                         "--pop, --seeds, --probe-every, --out and --device")
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
    families = (*heldout.families_for(cfg.style), heldout.LONG)
    args.evaluations = {"validation": (("code_o", heldout.LONG), measures.VALIDATION_LIMIT), "test": (families, args.limit)}
    args.steps, args.max_new, args.out = cfg.steps, cfg.max_new, Path(args.out).expanduser().resolve()
    return cfg


def seconds_on_disk(args: argparse.Namespace, arms: dict[str, Arm]) -> dict[str, float]:
    """Arm -> mean seconds of one of its runs, of the arms of which at least one is on disk; steps only, without evaluations."""
    known = {}
    for name in args.wanted:
        runs = [run for seed in args.seeds for run in runs_of(name, arms, seed)]
        seconds = [history[-1]["seconds"] for history in (spent_by(args, run) for run in runs) if history]
        if seconds:
            known[name] = float(np.mean(seconds))
    return known


def show_plan(args: argparse.Namespace, cfg: Config, arms: dict[str, Arm]) -> str:
    """Every run with its command, and hours where a run of full is there to judge by."""
    known = seconds_on_disk(args, arms)
    out = [f"{name:21} {arms[name].what}" for name in args.wanted]
    out.append(f"\n{'run':25} {'rows at most':>12} {'steps, about':>12}  command")
    names, hours = set(), 0.0
    for name in args.wanted:
        for seed in args.seeds:
            for run in runs_of(name, arms, seed, args.stretch[name]):
                if run.name in names:
                    continue
                names.add(run.name)
                hours += known.get(name, run.part * known.get(FULL, 0)) / 3600
                rows = run.part * args.steps * rows_of_step(cfg)
                out.append(f"{run.name:25} {rows:12.0f} {args.steps * run.stretch:12}  "
                           f"train.py {' '.join(words_of(args, run)[1:])}")
    cost = f"about {hours:.1f} hours of training, by the runs on disk" if known else "hours: once a run of full is on disk"
    out.append(f"\n{len(names)} runs; {cost}; then {len(names)} x 2 evaluations by eval.population.heldout; {args.jobs} at a "
               f"time. Matched: {args.budget}, without those of probes")
    return "\n".join(out)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    form = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__, formatter_class=form)
    add = p.add_argument
    presets = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in PRESETS.items())
    add("--base", required=True, help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help="names, separated by commas; default: those of --preset")
    add("--arm", action="append", default=[], help='an arm of your own, "name: --flag value ..."')
    add("--preset", default="paper", choices=tuple(PRESETS), help=presets)
    add("--seeds", default="0,1,2", help="separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full")
    add("--budget", default="tokens", choices=measures.BUDGETS, help="what is matched; rows: proposals and attempts")
    add("--probe-every", type=int, default=5, help="steps of full between probes; smaller steps: as many more")
    add("--out", default="out/ablation", help="where runs and summary go")
    add("--jobs", type=int, default=0, help="processes at a time; default: one a core, on cuda one")
    add("--limit", type=int, default=72, help="held-out test tasks of each family; 0 = all")
    add("--effect", type=float, default=0.05, help="difference that the recommended number of seeds is to find")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run and what it costs")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def conclude(args: argparse.Namespace, arms: dict[str, Arm], out: RunDir) -> None:
    """Print and write what the runs say. Raises ValueError where a budget was missed."""
    lines, ratios = budgets_of(args, arms, args.seeds)
    if wrong := unmatched(ratios):
        raise ValueError(f"budgets in {args.budget} are not matched, and such arms are not compared: {'; '.join(wrong)}. More "
                         "--steps make a step a smaller part of the budget; or leave these arms out")
    found = {}
    for name in args.wanted:
        found[name] = [compare.measured([args.out / run.name for run in runs_of(name, arms, seed)]) for seed in args.seeds]
    result = dict(seeds=args.seeds, budget=args.budget, **compare.conclude(found, lines, args.effect))
    out.write_json("summary.json", result)
    print(f"\n{compare.table(result)}\n{out.path / 'summary.json'}")


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if args.jobs < 0 or not args.effect > 0 or args.limit < 0 or args.probe_every < 1:
        raise ValueError("--jobs and --limit must not be negative, --effect and --probe-every must be positive")
    cfg = settled(args)
    arms = chosen_arms(args, cfg)
    args.jobs = args.jobs or (1 if common.Ranks.join(args.device).device.type == "cuda" else len(os.sched_getaffinity(0)))
    if args.plan:
        print(show_plan(args, cfg, arms))
        return 0
    out = RunDir(args.out)
    manifest = dict(base=args.base, pop=args.pop, steps=args.steps, budget=args.budget, probe_every=args.probe_every,
                    train=args.train)
    before = json.loads((out.path / "config.json").read_text()) if (out.path / "config.json").exists() else manifest
    if changed := differing(before, manifest, ()):
        raise ValueError(f"{out.path} holds arms of another comparison: {', '.join(changed)}; use the old values or another "
                         "--out")
    out.write_json("config.json", manifest)
    measures.write_anchors(args.out / "anchors.jsonl")
    run_all(args, arms)
    conclude(args, arms, out)
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
