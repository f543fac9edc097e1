"""The questions that the paper leaves open, on any base: which part of a population is worth its compute?

    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --plan       # the runs, their cost
    python -m eval.population.ablation --base micro/base --seeds 0,1,2 --jobs 2     # the same command goes on
    python -m eval.population.ablation --base DIR --arms single-long,no-evolution --steps 200 -- --lr 2e-5
    python -m eval.population.ablation --base micro/base --arm "slow: --lr 3e-4" --seeds 0,1,2

`full` (the population as it is) is the reference and always run. What it spends with seed S, counted in
generated tokens without those of probes (or in rows, or in proposals: --budget), is the budget of every other
arm with seed S: once per run, or, for `single` and `singles`, once per pair of teacher and student. Every run
is stopped after the step that brings it nearest to its budget; one that misses it by more than 5% is refused.
Seeds are run one after the other, so that what is on disk is always whole seeds. Words after -- are flags of
train.py for every arm. docs/ablations.md holds the plan of our own comparison.
"""
import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np

from config import Config, parse_args, resolve_config
from eval import common
from eval.population import compare, heldout, measures
from eval.population.arms import (FULL, PRESETS, Arm, Run, arms_of, given_arm, rows_of_step, runs_of,
                                  stretch_of)
from eval.population.compare import TOLERANCE
from eval.population.crew import Crew
from infra.checkpoint import RunDir, differing
from infra.weights import load_tokenizer, resolve

LONGEST = 4             # times the steps first thought of: a run that needs more has stopped to spend
OWNED = ("base", "name", "out", "resume", "seed", "steps", "pop", "teachers", "students", "single", "keep",
         "plan", "device", "probe_every", "probe_share", "anchors", "n_anchors", "n_heldout")


# ---- budgets -----------------------------------------------------------------------------------------------

def unmatched(budgets: dict[str, float]) -> list[str]:
    """Which runs spent more or less than their part of the budget. budgets: run -> spent / due."""
    wrong = {name: ratio for name, ratio in budgets.items() if not abs(ratio - 1) <= TOLERANCE}
    return [f"{name} spent {ratio:.2f} of what is due" for name, ratio in wrong.items()]


def spent_by(args: argparse.Namespace, run: Run) -> list[dict]:
    """measures.spent of a run on disk."""
    return measures.spent(measures.logged(args.out / run.name))


def area_of(args: argparse.Namespace, run: Run, due: float) -> float:
    """The primary measure of a run that is trained and evaluated."""
    directory = args.out / run.name
    final = measures.final_accuracy(directory / compare.folder("validation"))
    return measures.area(measures.curve(measures.logged(directory), args.budget, due, final))


def budgets_of(args: argparse.Namespace, arms: dict[str, Arm], seeds: list[int]) -> tuple[dict, dict]:
    """What was spent: arm -> shares of full's (its runs together, means over seeds); run -> spent / due."""
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


# ---- running -----------------------------------------------------------------------------------------------

def seed_runs(args: argparse.Namespace, arms: dict[str, Arm], seed: int) -> list[Run]:
    """The runs of all wanted arms with one seed, full first; what two arms share is there once."""
    runs = {}
    for name in args.wanted:
        for run in runs_of(name, arms, seed, args.stretch[name]):
            runs.setdefault(run.name, run)
    return list(runs.values())


def in_order(args: argparse.Namespace, arms: dict[str, Arm]) -> list[tuple[int, Run]]:
    """(seed, run) as they begin: a seed's full comes one seed ahead of its other runs, which wait for it."""
    fulls, others = [], []
    for seed in args.seeds:
        first, *rest = seed_runs(args, arms, seed)
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
    flags = {"base": args.base, "seed": run.seed, "steps": LONGEST * args.steps * run.stretch,
             "device": args.device, "probe-every": args.probe_every * run.stretch, "probe-share": 1,
             "anchors": args.out / "anchors.jsonl", "n-anchors": len(measures.anchor_items()), "n-heldout": 0,
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
        log = args.out / f"{run.name}.log"
        crew.call(words_of(args, run), log, lambda: finished(measures.logged_so_far(directory)))


def evaluate(args: argparse.Namespace, crew: Crew, run: Run) -> None:
    """Greedy answers of a run's students, unless they are there: to the anchors, and to all test families."""
    directory = args.out / run.name
    last = RunDir(directory, writes=False).steps()[-1]
    members = sorted(p.parent for p in (directory / f"step_{last}").glob("*/adapter_config.json"))
    students = [path for path in members if path.name.startswith("S")] or members
    for split, (families, limit) in args.evaluations.items():
        out = directory / compare.folder(split)
        summary = out / "summary.json"
        if summary.exists() and json.loads(summary.read_text())["limit"] == limit:
            continue
        words = ["-m", "eval.population.heldout", "--base", args.base, "--adapters", *map(str, students),
                 "--split", split, "--bench", ",".join(families), "--limit", str(limit),
                 "--max-new", str(args.max_new), "--out", str(out), "--device", args.device, "--workers", "1"]
        words += [word for word in args.train if word == "--weak-sandbox"]
        crew.call(words, args.out / f"{run.name}.log")


def run_all(args: argparse.Namespace, arms: dict[str, Arm]) -> None:
    """Train and evaluate every run that is not yet on disk."""
    crew = Crew(args.jobs)
    budget = {}                                       # of each seed, once its full is trained

    def work(job: tuple[int, Run]) -> None:
        seed, run = job
        due = None
        if run.name != f"{FULL}-s{seed}":
            crew.wait(lambda: seed in budget)
            due = run.part * budget[seed]
        started = time.monotonic()
        train(args, crew, run, due)
        history = spent_by(args, run)
        if due is None:
            budget[seed] = history[-1][args.budget]
        evaluate(args, crew, run)
        last, due = history[-1], due or budget[seed]
        print(f"{time.strftime('%H:%M:%S')} {run.name}: {len(history)} steps, {last['tokens']} tokens, "
              f"{last[args.budget] / due:.3f} of its budget, and {last['probe_tokens']} for probes; "
              f"area {area_of(args, run, due):.3f}; {time.monotonic() - started:.0f} s", flush=True)
    crew.each(work, in_order(args, arms))


# ---- the command line --------------------------------------------------------------------------------------

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
    """train.py's configuration of full; sets args.base, .steps, .seeds and the like. Raises ValueError."""
    args.train = args.train[1:] if args.train[:1] == ["--"] else args.train
    for word in args.train:
        if word.startswith("--") and word[2:].split("=")[0].replace("-", "_") in OWNED:
            raise ValueError(f"{word} after --: the arms set it themselves; this command has --base, "
                             "--steps, --pop, --seeds, --probe-every, --out and --device")
    if args.pop < 4 or args.pop % 2:
        raise ValueError(f"--pop {args.pop}: a population of at least two teachers and two students, an even "
                         "number from 4 on")
    args.base = common.base_name(argparse.Namespace(base=args.base, run=""), [])
    path = resolve(args.base)
    args.base = str(path.resolve()) if Path(args.base).is_dir() else args.base
    cfg = dataclasses.replace(parse_args(None, args.train), base=args.base, pop=args.pop, steps=args.steps)
    cfg = resolve_config(cfg, load_tokenizer(path)[1] if cfg.prompt_format == "auto" else cfg.prompt_format)
    if cfg.steps <= cfg.evolve_every:
        raise ValueError(f"--steps {cfg.steps}: nobody would be replaced before the end, so that full and "
                         f"no-evolution are one; give more than {cfg.evolve_every}, or -- --evolve-every N")
    try:
        args.seeds = list(dict.fromkeys(int(s) for s in args.seeds.split(",")))
    except ValueError:
        raise ValueError(f"--seeds {args.seeds}: whole numbers, separated by commas") from None
    if min(args.seeds) < 0 or max(args.seeds) >= 1000:
        raise ValueError("--seeds: from 0 to 999 (those of independent singles are counted on from 1000)")
    families = (*heldout.families_for(cfg.prompt_format), heldout.LONG)
    args.evaluations = {"validation": (("code_o", heldout.LONG), measures.VALIDATION_LIMIT),
                        "test": (families, args.limit)}
    args.steps, args.max_new, args.out = cfg.steps, cfg.max_new_tokens, Path(args.out).expanduser().resolve()
    return cfg


def seconds_on_disk(args: argparse.Namespace, arms: dict[str, Arm]) -> dict[str, float]:
    """Arm -> mean seconds of the steps of one of its runs, of the arms that have a run on disk."""
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
    runs = [run for seed in args.seeds for run in seed_runs(args, arms, seed)]
    seconds = 0.0
    for run in runs:
        seconds += known.get(run.name.rsplit("-s", 1)[0], run.part * known.get(FULL, 0))
        rows = run.part * args.steps * rows_of_step(cfg)
        out.append(f"{run.name:25} {rows:12.0f} {args.steps * run.stretch:12}  "
                   f"train.py {' '.join(words_of(args, run)[1:])}")
    cost = f"about {seconds / 3600:.1f} hours of training, by the runs on disk"
    cost = cost if known else "hours: once a run of full is on disk"
    out.append(f"\n{len(runs)} runs; {cost}; then {len(runs)} x 2 evaluations by eval.population.heldout; "
               f"{args.jobs} at a time. Matched: {args.budget}, without those of probes")
    return "\n".join(out)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = argparse.ArgumentParser(prog="python -m eval.population.ablation", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    add = p.add_argument
    presets = "; ".join(f"{name}: {', '.join(arms)}" for name, arms in PRESETS.items())
    add("--base", required=True, help="Hugging Face directory or hub id of the frozen base")
    add("--arms", default="", help="names, separated by commas; default: those of --preset")
    add("--arm", action="append", default=[], help='an arm of your own, "name: --flag value ..."')
    add("--preset", default="paper", choices=tuple(PRESETS), help=presets)
    add("--seeds", default="0,1,2", help="separated by commas")
    add("--steps", type=int, default=None, help="of full; default: the prompt format's")
    add("--pop", type=int, default=8, help="members of full")
    add("--budget", default="tokens", choices=measures.BUDGETS, help="what is matched; rows: also attempts")
    add("--probe-every", type=int, default=5, help="steps of full between probes")
    add("--out", default="out/ablation", help="where runs and summary go")
    add("--jobs", type=int, default=0, help="processes at a time; default: one a core, on cuda one")
    add("--limit", type=int, default=72, help="held-out test tasks of each family; 0 = all")
    add("--effect", type=float, default=0.05, help="difference that the seeds needed are to find")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--plan", action="store_true", help="only print what would be run and what it costs")
    add("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    return p


def conclude(args: argparse.Namespace, arms: dict[str, Arm], out: RunDir) -> None:
    """Print and write what the runs say. Raises ValueError where a budget was missed."""
    lines, ratios = budgets_of(args, arms, args.seeds)
    if wrong := unmatched(ratios):
        raise ValueError(f"budgets in {args.budget} are not matched, and such arms are not compared: "
                         f"{'; '.join(wrong)}. More --steps make a step a smaller part of the budget; or "
                         "leave these arms out")
    found = {}
    for name in args.wanted:
        found[name] = []
        for seed in args.seeds:
            found[name].append(compare.measured([args.out / run.name for run in runs_of(name, arms, seed)]))
    result = dict(seeds=args.seeds, budget=args.budget, **compare.conclude(found, lines, args.effect))
    out.write_json("summary.json", result)
    print(f"\n{compare.table(result)}\n{out.path / 'summary.json'}")


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = parser().parse_args(argv)
    if args.jobs < 0 or not args.effect > 0 or args.limit < 0 or args.probe_every < 1:
        raise ValueError("--jobs and --limit must not be negative, --effect and --probe-every be positive")
    cfg = settled(args)
    arms = chosen_arms(args, cfg)
    if not args.jobs:
        on_gpu = common.Ranks.join(args.device).device.type == "cuda"
        args.jobs = 1 if on_gpu else len(os.sched_getaffinity(0))
    if args.plan:
        print(show_plan(args, cfg, arms))
        return 0
    out = RunDir(args.out)
    manifest = dict(base=args.base, pop=args.pop, steps=args.steps, budget=args.budget,
                    probe_every=args.probe_every, train=args.train)
    before = out.config() if (out.path / "config.json").exists() else manifest
    if changed := differing(before, manifest, ()):
        raise ValueError(f"{out.path} holds arms of another comparison: {', '.join(changed)}; use the old "
                         "values or another --out")
    out.write_json("config.json", manifest)
    measures.write_anchors(args.out / "anchors.jsonl")
    run_all(args, arms)
    conclude(args, arms, out)
    return 0


if __name__ == "__main__":
    common.command("eval.population.ablation", main)
