"""Asks which part of a population is worth its compute: trains arms that spend the same budget, over seeds.

    python -m eval.ablate --seeds 0 1 2 --plan                  # the runs, and how long they take
    python -m eval.ablate --seeds 0 1 2                         # the usual arms on the bundled base
    python -m eval.ablate --seeds 0 1 2 --arm "slow: --lr 3e-4" --arm "fast: --lr 4e-3" -- --task-types code_i

The same command goes on where it stopped, and with more --seeds runs only what is missing. What `full` (the
population as it is) generates with a seed, without probes, is the budget of every other arm with this seed.
A run stops after the step that brings it nearest. Then its students answer held-out tasks. Words behind --
are flags of train.py for every arm. Three seeds are a first look; an interval takes five and a verdict
eight.

OUT/results.jsonl has a line for each run, OUT/table.txt the arms compared. `python -m report OUT` draws them.

    arm, seed, run          an arm of several runs has several lines for a seed
    steps, tokens, spent    `spent` is the share of its budget
    births                  members that were replaced
    area                    the students' held-out accuracy, averaged over the budget
    end, deployed           test accuracy: mean of the students; of the one that is best on validation
    validation              accuracy by which that one was chosen
"""
import argparse
import contextlib
import json
import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import train
from common import UserError, leave, parser_of, readable
from config import SWITCHED_OFF, Config, config_of, parse_args, spelled
from eval import heldout
from eval.answer import table
from eval.stats import holm, interval_of_runs, sign_flip
from measure import ends_about, heldout_mean, spent
from ranks import Ranks
from run import RunDir
from run import plan as resolved
from tasks import read_tasks
from tasks.base import SPLITS, split_of

RESULTS = "results.jsonl"
FULL = "full"
ARMS = {
    FULL: "",
    "no-evolution": "--evolve none",
    "uniform": "--matching uniform",
    "pair": "--pop 2",
    "single-long": "--single",
    "singles": "--single",              # as many runs as there are pairs, each with its share of the budget
    "frozen-teachers": "--lr-teacher 0",
    "novelty": "--teacher-reward novelty",
    "static": "--tasks micro",
    "pbt": "--lr-spread 8 --lr-mutate 1.25"
}
USUAL = "no-evolution,uniform,pair,single-long,singles,frozen-teachers"
# Flags of train.py that this command sets, or that mean nothing for an arm
OWNED = """base name out init resume seed steps plan save_every keep show heldout n_heldout probe_every
device""".split()
MEASURES = ("area", "end", "deployed")
FEWEST = 8                          # seeds below which there is no verdict
STRIDE = 1000                       # between the seeds of several runs of an arm; --seeds are below it
MICRO_MINUTES = 0.01                # of the bundled base, on two cores, for each member and step


@dataclass(frozen=True)
class Run:
    """Says what one run is. share: of the budget; flags: train.py's."""
    arm: str
    seed: int                           # of the comparison
    name: str
    share: float
    flags: dict


# --- before the first run -----------------------------------------------------------------------------------

def arms_of(args: argparse.Namespace) -> dict[str, dict]:
    """Returns the chosen arms' flags of train.py, full's first. Raises UserError for an arm that cannot
    be."""
    known = dict(ARMS)
    chosen = [FULL, *filter(None, args.arms.split(","))]
    for text in args.arm:
        name, _, flags = text.partition(":")
        if not flags.strip() or name in known:
            raise UserError(f'--arm "{text}": give a new name and flags, as in "slow: --lr 3e-4"')
        known[name] = flags
        chosen.append(name)
    arms = {}
    for name in chosen:
        if name not in known:
            raise UserError(f"--arms {name}: give some of {', '.join(known)}")
        with readable(f"arm {name}"):
            words = shlex.split(known[name])
        own = parse_args(None, words)
        given = parse_args(None, args.train + words)
        for flag in OWNED:
            if flag in given:
                raise UserError(f"arm {name}: {spelled(flag)} is set by this command and is no arm's flag")
        arms[name] = given
        for switch, (is_on, idle) in SWITCHED_OFF.items():
            for flag in idle:
                if flag not in given or not is_on(config_of(given)):
                    continue
                if flag not in own:
                    del given[flag]             # given for every arm, it would do nothing in this one
                elif args.arms == USUAL and name in USUAL.split(","):
                    print(f"{name} is left out: {spelled(flag)} does nothing beside {switch}")
                    arms.pop(name, None)
    return arms


def settled(args: argparse.Namespace, arms: dict[str, dict]) -> Config:
    """Returns full's configuration. Raises UserError for whatever could end a run that is still to come."""
    there = set(heldout.FAMILIES)
    if args.heldout:                    # what each split has
        splits = {split: set() for split in SPLITS}
        for p in read_tasks(args.heldout):
            splits[split_of(p.message or p.program)].add(p.kind)
        there = set.intersection(*splits.values())
    configs = []
    for flags in arms.values():
        cfg, *_ = resolved(config_of(flags | dict(base=args.base)), Ranks.join(args.device))
        if cfg.prompt_format != "micro" and not args.heldout:
            there.discard("math")
        if not there.issuperset(cfg.task_types):
            raise UserError(f"both splits have held-out tasks of {', '.join(there) or 'no type'} alone: give "
                            "--heldout FILE")
        configs.append(cfg)
    return configs[0]


def plan(args: argparse.Namespace, arms: dict[str, dict]) -> list[Run]:
    """Returns all runs, seed by seed, full first."""
    runs = []
    for seed in args.seeds:
        for arm, flags in arms.items():
            n = args.pop // 2 if arm == "singles" else 1
            for i in range(n):
                own = seed + STRIDE * i
                ours = dict(
                    base=args.base,
                    out=str(args.out),
                    seed=own,
                    steps=args.steps,
                    device=args.device,
                    keep=1,
                    heldout=args.heldout or str(args.out / "heldout.jsonl"),
                    n_heldout=args.limit,
                    probe_every=5
                )
                if arm != FULL:
                    ours["steps"] *= args.pop           # its budget ends it
                runs.append(Run(arm, seed, f"{arm}-s{own}", 1 / n, flags | ours))
    return runs


def show_plan(args: argparse.Namespace, runs: list[Run]) -> None:
    """Prints the runs that are to come, and about how long they take."""
    budgets = 0
    for run in runs:
        print(f"{run.name}: {run.share:g} of the tokens of full, which has {args.steps} steps")
        budgets += run.share
    minutes = budgets * args.steps * args.pop * MICRO_MINUTES
    print(f"{len(runs)} runs to come, about {minutes:.0f} minutes with the bundled base on two cores")


def write_heldout(args: argparse.Namespace, kinds: tuple[str, ...]) -> None:
    """Writes the validation tasks as a file for train.py --heldout, so that probes ask what is asked after
    a run."""
    lines = ""
    for kind in kinds:
        for _, task in heldout.draw(kind, "validation", args.limit):
            row = dict(kind=kind, program=task.program, inputs=task.inputs, message=task.message)
            lines += json.dumps(row) + "\n"
    (args.out / "heldout.jsonl").write_text(lines)


# --- a run --------------------------------------------------------------------------------------------------

def train_run(args: argparse.Namespace, run: Run, due: float | None) -> list[dict]:
    """Trains a run until it has spent `due` tokens; full, which has None, for all of its steps. Returns its
    metrics. What is on the disk counts."""
    directory = RunDir(args.out / run.name, writes=False)
    last = max(directory.steps(), default=0)
    rows = directory.rows("metrics.jsonl")[:last]       # of the steps that a resumed run keeps

    def is_done() -> bool:
        if due is None:
            return len(rows) >= args.steps
        before, now = [0, 0, *spent(rows)][-2:]
        return now + (now - before) / 2 >= due

    def enough(row: dict) -> bool:
        rows.append(row)
        return is_done()

    if not is_done():
        place = dict(resume=str(directory.path)) if last else dict(name=run.name)
        train.main(config_of(run.flags | place), enough)
    return rows


def area(rows: list[dict], due: float) -> float:
    """Returns the students' mean held-out accuracy, averaged over the budget: the area under the line
    through the probes. Each stands at what the steps before it had spent."""
    x, y = [], []
    for before, row in zip([0, *spent(rows)], rows):
        accuracy = heldout_mean(row)
        if accuracy is not None:
            x.append(before / due)
            y.append(accuracy)
    grid = np.unique(np.minimum([*x, 1.0], 1.0))
    return np.trapezoid(np.interp(grid, x, y), grid)


def examine(args: argparse.Namespace, run: Run) -> dict[str, float]:
    """Returns what a run's students can do at its end, by answers to held-out tasks."""
    path = args.out / run.name
    directory = RunDir(path, writes=False)
    cfg = config_of(directory.config())
    last = path / f"step_{directory.steps()[-1]}"
    students = sorted(last.glob("S*")) or sorted(last.glob("T*"))       # --single's only adapter is called T0
    words = ["--adapters", *map(str, students)]
    for name in ("prompt_format", "max_new_tokens", "device", "dtype"):
        words += [spelled(name), str(getattr(cfg, name))]
    words += ["--bench", ",".join(cfg.task_types), "--limit", str(args.limit), "--tasks", args.heldout]
    names = [student.name for student in students]
    accuracy = {}                       # split -> student -> mean of the types
    for split in SPLITS:
        heldout.main([*words, "--split", split, "--out", str(path / split)])
        own = accuracy[split] = dict.fromkeys(names, 0.0)
        for line in json.loads((path / split / "summary.json").read_text()):
            if line["member"] in names:
                own[line["member"]] += line["accuracy"] / len(cfg.task_types)
    validation, test = accuracy["validation"], accuracy["test"]
    best = max(validation, key=validation.get)
    return dict(
        end=statistics.fmean(test.values()), deployed=test[best], validation=validation[best]
    )


def run_all(args: argparse.Namespace, out: RunDir, runs: list[Run]) -> None:
    """Trains and examines runs, and adds each to results.jsonl."""
    began = time.time()
    for number, run in enumerate(runs, 1):
        due = None                      # for full, which is not among the results yet
        for row in out.rows(RESULTS):
            if (row["arm"], row["seed"]) == (FULL, run.seed):
                due = run.share * row["tokens"]
        with open(args.out / f"{run.name}.log", "a") as log, contextlib.redirect_stdout(log):
            metrics = train_run(args, run, due)
            found = examine(args, run)
        tokens = spent(metrics)[-1]
        record = dict(
            arm=run.arm,
            seed=run.seed,
            run=run.name,
            steps=len(metrics),
            tokens=tokens,
            spent=tokens / (due or tokens),
            births=sum(len(row["births"]) for row in metrics),
            area=area(metrics, due or tokens),
            **found
        )
        out.append(results=[record])
        each = dict(seconds=dict(run=(time.time() - began) / number))
        print(
            f"{number} of {len(runs)}: {run.name}, {len(metrics)} steps, {tokens:,} tokens, {args.measure} "
            f"{record[args.measure]:.3f}; the last one {ends_about([each], len(runs) - number)}",
            flush=True
        )


# --- results ------------------------------------------------------------------------------------------------

def by_arm(rows: list[dict], measure: str) -> dict[str, dict[int, float]]:
    """Returns arm -> seed -> a measure. Several runs of a seed have their mean, but one deployed student of
    all."""
    found = {}
    for row in rows:
        found.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(row)
    for seeds in found.values():
        for seed, own in seeds.items():
            seeds[seed] = statistics.fmean(row[measure] for row in own)
            if measure == "deployed":
                seeds[seed] = max(own, key=lambda row: row["validation"])["deployed"]
    return found


def contrasts(rows: list[dict], measure: str, reference: str) -> list[dict]:
    """Returns for each other arm the reference's measure less the arm's, paired by seed, with an interval
    and with p corrected for all arms (Holm)."""
    values = by_arm(rows, measure)
    first = values.pop(reference)
    lines = []
    for arm, own in values.items():
        seeds = sorted(first.keys() & own.keys())
        x = np.array([first[seed] - own[seed] for seed in seeds])
        if seeds:
            lines.append(
                dict(
                    measure=measure,
                    contrast=f"{reference} - {arm}",
                    seeds=len(seeds),
                    difference=x.mean(),
                    interval=interval_of_runs(x) or "",
                    p=sign_flip(x)
                )
            )
    for line, p in zip(lines, holm([line["p"] for line in lines])):
        verdict = "ahead"
        if line["difference"] < 0:
            verdict = "behind"
        if p >= 0.05:
            verdict = "cannot tell"
        if line["seeds"] < FEWEST:
            verdict = "too few seeds"
        line |= dict(p_holm=p, verdict=verdict)
    return lines


def means(rows: list[dict]) -> list[dict]:
    """Returns the means of each arm's measures."""
    lines = {}
    for name in ("steps", "spent", *MEASURES, "births"):
        for arm, seeds in by_arm(rows, name).items():
            line = lines.setdefault(arm, dict(arm=arm, seeds=len(seeds)))
            line[name] = statistics.fmean(seeds.values())
    return list(lines.values())


# --- the command --------------------------------------------------------------------------------------------

def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    p = parser_of("python -m eval.ablate", __doc__)
    add = p.add_argument
    add("--base", default=Config.base)
    add("--arms", default=USUAL, help=f"beside full, with commas, of {', '.join(ARMS)} ({USUAL})")
    add(
        "--arm",
        action="append",
        default=[],
        help='one of your own, "name: --flag value ..."; several times'
    )
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help=f"below {STRIDE}")
    add("--steps", type=int, help="of full; default: as train.py")
    add("--limit", type=int, default=72, help="held-out tasks of each type and split")
    add(
        "--heldout",
        default="",
        metavar="FILE",
        help="held-out tasks of your own, such as a type of your own needs"
    )
    add("--out", type=Path, default=Path("out/ablate"))
    add("--device", default="auto")
    add("--plan", action="store_true", help="only print the runs")
    add("--measure", default="deployed", choices=MEASURES)
    add("--reference", default=FULL, help="the arm with which the others are compared")
    return p


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:at])
    args.train = words[at + 1 :]
    if min(args.seeds) < 0 or max(args.seeds) >= STRIDE:
        raise UserError(f"--seeds: give numbers below {STRIDE}")
    arms = arms_of(args)
    if args.reference not in arms:
        raise UserError(f"--reference {args.reference}: give one of {', '.join(arms)}")
    full = settled(args, arms)
    args.steps = args.steps or full.steps
    args.pop = full.pop
    done = {row["run"] for row in RunDir(args.out, writes=False).rows(RESULTS)}
    runs = [run for run in plan(args, arms) if run.name not in done]
    if args.plan:
        return show_plan(args, runs)
    out = RunDir(args.out)
    out.note(arms | dict(base=args.base, steps=args.steps, limit=args.limit, heldout=args.heldout))
    if not args.heldout:
        write_heldout(args, full.task_types)
    run_all(args, out, runs)
    rows = [row for row in out.rows(RESULTS) if row["arm"] in arms]
    lines = contrasts(rows, args.measure, args.reference)
    told = f"{table(means(rows))}\n\n{args.measure}\n{table(lines)}"
    (args.out / "table.txt").write_text(told)
    print(told)


if __name__ == "__main__":
    leave("eval.ablate", main)
