"""Asks which part of a population is worth its compute: trains arms that spend the same budget, over seeds.

    python -m eval.ablate --seeds 0 1 2 --plan                  # the runs, and how long they take
    python -m eval.ablate --seeds 0 1 2                         # the usual arms on the bundled base
    python -m eval.ablate --seeds 0 1 2 --arm "slow: --lr 3e-4" --arm "fast: --lr 4e-3" -- --task-types code_i
    python -m eval.ablate --from out/ablate                     # the table of finished runs

The same command goes on where it stopped, and with more --seeds runs only what is missing. What `full` (the
population as it is) generates with a seed, without probes, is the budget of every other arm with this seed.
A run stops after the step that brings it nearest. Then its students answer held-out tasks. Words behind --
are flags of train.py for every arm. Three seeds are a first look; an interval takes five and a verdict
eight.

OUT/results.jsonl has a line for each run, OUT/results.csv is the same as a table, and OUT/contrasts.csv has
the arms compared. `python -m report OUT` draws them.

    arm, seed, run, path    the run's logs lie in `path`; an arm of several runs has several lines for a seed
    steps, tokens, spent    `spent` is the share of its budget
    minutes                 of training
    area                    the students' held-out accuracy, averaged over the budget
    end, deployed           test accuracy: mean of the students; of the one that is best on validation
    validation              accuracy by which that one was chosen
    coverage                (--measure coverage) the chance that one of four answers is right
    births, helped          students replaced; those whose parent led by .05 at the last probe
"""
import argparse
import contextlib
import csv
import json
import re
import shlex
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import train
from common import demand, leave, parser_of
from config import SWITCHED_OFF, Config, config_of, parse_args, spelled
from eval.answer import BASE, cell, load, marks, table
from eval.heldout import FAMILIES, ask, draw, named_tasks
from eval.stats import covered, holm, interval_of_runs, sign_flip
from measure import spent
from operators import OPERATORS
from ranks import Ranks
from run import RunDir
from run import plan as resolved
from tasks import read_tasks
from verifier import open_sandbox

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
for operator in ("mutation", "crossover", *OPERATORS):
    ARMS[operator] = f"--evolve {operator}"
USUAL = "no-evolution,uniform,pair,single-long,singles,frozen-teachers"
# Flags of train.py that this command sets, or that mean nothing for an arm
OWNED = """base name out init resume seed steps plan save_every keep show heldout n_heldout probe_every
device""".split()
MEASURES = ("area", "end", "deployed", "coverage")
SAMPLES = 4                         # answers at temperature 1, for coverage
FEWEST = 8                          # seeds below which there is no verdict
EFFECT = 0.05                       # a lead that counts
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
        is_new = re.fullmatch(r"[\w.-]+", name) and name not in known
        demand(
            is_new and flags.strip(),
            f'--arm "{text}": give a new name and flags, as in "slow: --lr 3e-4"'
        )
        known[name] = flags
        chosen.append(name)
    arms = {}
    for name in chosen:
        demand(name in known, f"--arms {name}: give some of {', '.join(known)}")
        words = shlex.split(known[name])
        own = parse_args(None, words)
        given = parse_args(None, args.train + words)
        for flag in OWNED:
            demand(
                flag not in given,
                f"arm {name}: {spelled(flag)} is set by this command and is no arm's flag"
            )
        if "single" not in given:
            given.setdefault("pop", args.pop)
        for is_on, idle in SWITCHED_OFF.values():
            for flag in idle:
                if is_on(config_of(given)) and flag not in own:
                    given.pop(flag, None)       # given for every arm, it would do nothing in this one
        arms[name] = given
    return arms


def settled(args: argparse.Namespace, arms: dict[str, dict]) -> Config:
    """Returns full's configuration. Raises UserError for whatever could end a run that is still to come."""
    there = set(FAMILIES)
    if args.heldout:
        there = {p.kind for p in read_tasks(args.heldout)}
    configs = []
    for flags in arms.values():
        cfg, _, _ = resolved(config_of(flags | dict(base=args.base)), Ranks.join(args.device))
        for kind in cfg.task_types:
            demand(
                kind in there,
                f"there are no held-out tasks of type {kind}: give --heldout FILE with some"
            )
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
                name = f"{arm}-s{own}"
                ours = dict(
                    base=args.base,
                    out=str(args.out),
                    seed=own,
                    steps=args.steps
                    if arm == FULL
                    else args.steps * args.pop,                                     # it stops at its budget
                    device=args.device,
                    keep=1,
                    heldout=args.heldout or str(args.out / "heldout.jsonl"),
                    n_heldout=args.limit,
                    probe_every=5
                )
                runs.append(Run(arm, seed, name, 1 / n, flags | ours))
    return runs


def show_plan(args: argparse.Namespace, runs: list[Run]) -> None:
    """Prints the runs that are to come, and about how long they take."""
    rows = read(args.out)
    done = [row["run"] for row in rows]
    budgets = n = 0
    for run in runs:
        if run.name not in done:
            print(f"{run.name}: {run.share:g} of the tokens of full, which has {args.steps} steps")
            budgets += run.share
            n += 1
    each = args.steps * args.pop * MICRO_MINUTES
    if rows:
        each = statistics.fmean(row["minutes"] / row["spent"] for row in rows)
    elif args.base != Config.base:
        each = float("nan")             # nobody knows before the first one
    print(f"{n} of {len(runs)} runs to come, about {budgets * each:.0f} minutes")


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
        with open(args.out / f"{run.name}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(config_of(run.flags | place), enough)
        demand(
            is_done(), f"{run.name} ended before its budget was spent: the same command goes on with it"
        )
    return rows


def area(rows: list[dict], due: float) -> float:
    """Returns the students' mean held-out accuracy, averaged over the budget: the area under the line
    through the probes. Each stands at what the steps before it had spent."""
    x, y = [], []
    for before, row in zip([0, *spent(rows)], rows):
        if row.get("heldout_greedy"):
            x.append(before / due)
            y.append(statistics.fmean(row["heldout_greedy"].values()))
    grid = np.unique(np.minimum([*x, 1.0], 1.0))
    return float(np.trapezoid(np.interp(grid, x, y), grid))


def births_of(metrics: list[dict], genealogy: list[dict]) -> tuple[int, int]:
    """Returns how many students were replaced, and how many of them by a child of which a parent led by
    EFFECT at the last probe. A member that no probe knows has no lead."""
    births = helped = 0
    for birth in genealogy:
        if birth["victim"]["role"] != "student":
            continue
        known = {}
        for row in metrics:
            if row["step"] <= birth["step"]:
                known = row.get("heldout_greedy") or known
        parents = [known.get(parent["name"], 0.0) for parent in birth["parents"]]
        births += 1
        helped += max(parents) >= known.get(birth["victim"]["name"], 1.0) + EFFECT
    return births, helped


def examine(args: argparse.Namespace, run: Run) -> dict[str, float]:
    """Returns what a run's students can do at its end, by answers to held-out tasks."""
    directory = RunDir(args.out / run.name, writes=False)
    cfg = config_of(directory.config())
    last = directory.path / f"step_{directory.steps()[-1]}"
    students = sorted(last.glob("S*")) or sorted(
        last.glob("T*")
    )                                                                   # --single's only adapter is called T0
    setup, slots = load(
        argparse.Namespace(**vars(cfg) | dict(run="", adapters=students, rollout_batch=None))
    )
    del slots[BASE]

    def answers(split: str, samples: int, temperature: float, name: str) -> dict:
        own = argparse.Namespace(
            seed=0,
            samples=samples,
            temperature=temperature,
            split=split,
            tasks=args.heldout,
            out=directory.path / name
        )
        named = named_tasks(setup, split, args.heldout, ",".join(cfg.task_types), args.limit)
        return marks(ask(own, setup, slots, named, name)[1])

    with open_sandbox("auto", cfg.prompt_format) as sandbox:
        setup = replace(setup, sandbox=sandbox)
        chosen = answers("validation", 1, 0.0, "validation")
        tested = answers("test", 1, 0.0, "test")
        sampled = {}
        if args.measure == "coverage":
            sampled = answers("test", SAMPLES, 1.0, "sampled")
    validation, test = {}, {}           # student -> mean accuracy of the types
    for name in slots:
        for scores, found in ((validation, chosen), (test, tested)):
            scores[name] = float(np.mean([members[name].mean() for members in found.values()]))
    best = max(validation, key=validation.get)
    record = dict(end=statistics.fmean(test.values()), deployed=test[best], validation=validation[best])
    chances = []
    for members in sampled.values():
        for right in zip(*map(members.get, slots)):     # of each student its answers to one task
            chances.append(covered(np.sum(right, 1).astype(int).tolist(), SAMPLES, SAMPLES))
    if chances:
        record["coverage"] = statistics.fmean(chances)
    return record


def run_all(args: argparse.Namespace, runs: list[Run]) -> None:
    """Trains and examines every run for which results.jsonl lacks the measure."""
    done = {row["run"]: row for row in read(args.out)}
    began, n = time.time(), 0
    for number, run in enumerate(runs, 1):
        if args.measure in done.get(run.name, ()):
            continue
        due = None
        if run.arm != FULL:
            due = run.share * done[f"{FULL}-s{run.seed}"]["tokens"]
        metrics = train_run(args, run, due)
        path = args.out / run.name
        tokens = spent(metrics)[-1]
        seconds = 0.0
        for row in metrics:
            seconds += sum(row["seconds"].values())
        births, helped = births_of(metrics, RunDir(path, writes=False).rows("genealogy.jsonl"))
        row = done[run.name] = dict(
            arm=run.arm,
            seed=run.seed,
            run=run.name,
            path=str(path),
            steps=len(metrics),
            tokens=tokens,
            spent=tokens / (due or tokens),
            minutes=seconds / 60,
            births=births,
            helped=helped,
            area=area(metrics, due or tokens),
            **examine(args, run)
        )
        write(args.out, list(done.values()))
        n += 1
        ends = time.localtime(time.time() + (time.time() - began) / n * (len(runs) - number))
        print(
            f"{number} of {len(runs)}: {run.name}, {row['steps']} steps, {tokens:,} tokens, {args.measure} "
            f"{row[args.measure]:.3f}; all end about {time.strftime('%a %H:%M', ends)}",
            flush=True
        )


# --- results ------------------------------------------------------------------------------------------------

def read(out: Path) -> list[dict]:
    """Returns the lines of results.jsonl; [] without the file."""
    return RunDir(out, writes=False).rows("results.jsonl")


def write(out: Path, rows: list[dict]) -> None:
    """Writes results.jsonl and results.csv whole."""
    part = out / "results.jsonl.part"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(out / "results.jsonl")
    write_csv(out / "results.csv", rows)


def write_csv(path: Path, rows: list[dict]) -> None:
    """Writes dicts as a table, with a column for every key."""
    names = {}
    for row in rows:
        names |= row
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, names)
        writer.writeheader()
        writer.writerows(rows)


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


def contrasts(rows: list[dict], measure: str, pairs: list[tuple[str, str]]) -> list[dict]:
    """Returns for each pair of arms the first one's measure less the other's, paired by seed, with an
    interval and with p corrected for all pairs (Holm)."""
    values = by_arm(rows, measure)
    lines = []
    for one, other in pairs:
        seeds = sorted(values[one].keys() & values[other].keys())
        x = np.array([values[one][seed] - values[other][seed] for seed in seeds])
        if seeds:
            lines.append(
                dict(
                    measure=measure,
                    contrast=f"{one} - {other}",
                    seeds=len(seeds),
                    difference=float(x.mean()),
                    interval=interval_of_runs(x) or "",
                    p=sign_flip(x)
                )
            )
    for line, p in zip(lines, holm([line["p"] for line in lines])):
        line["p_holm"] = p
        line["verdict"] = "ahead" if line["difference"] > 0 else "behind"
        if p >= 0.05:
            line["verdict"] = "cannot tell"
        if line["seeds"] < FEWEST:
            line["verdict"] = "too few seeds"
    return lines


def means(rows: list[dict]) -> list[dict]:
    """Returns the means of each arm's measures."""
    lines = {}
    for name in ("steps", *MEASURES, "births", "helped"):
        if all(name in row for row in rows):
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
    add("--seeds", nargs="+", default=["0,1,2"], help=f"whole numbers below {STRIDE}")
    add("--steps", type=int, default=None, help="of full; default: as train.py")
    add("--pop", type=int, default=8)
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
    add("--from", dest="source", type=Path, nargs="+", default=[], metavar="DIR", help="only the table")
    add("--measure", default="deployed", choices=MEASURES)
    add("--reference", default=FULL, help="the arm with which the others are compared")
    add(
        "--contrast",
        action="append",
        default=[],
        metavar="ONE,OTHER",
        help="a further pair; several times"
    )
    return p


def pairs_of(args: argparse.Namespace, arms: list[str]) -> list[tuple[str, str]]:
    """Returns the pairs of arms that are compared. Raises UserError for an arm that is not there."""
    pairs = [(args.reference, arm) for arm in arms if arm != args.reference]
    pairs += [tuple(text.split(",")) for text in args.contrast]
    for pair in [(args.reference, args.reference), *pairs]:
        demand(
            len(pair) == 2 and set(pair) <= set(arms),
            f"--reference, --contrast: {','.join(pair)} is not two of the arms {', '.join(arms)}"
        )
    return pairs


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:at])
    args.train = words[at + 1 :]
    if args.source:
        rows = []
        for path in args.source:
            rows += read(path)
        pairs = pairs_of(args, list(dict.fromkeys(row["arm"] for row in rows)))
    else:
        seeds = ",".join(args.seeds)
        demand(
            re.fullmatch(r"\d{1,3}(,\d{1,3})*", seeds),
            f"--seeds {seeds}: give numbers below {STRIDE}: --seeds 0 1 2"
        )
        args.seeds = sorted(set(map(int, seeds.split(","))))
        demand(args.pop > 0 and args.pop % 2 == 0, f"--pop {args.pop}: give an even number")
        demand(
            "pop" not in parse_args(None, args.train), "--pop is this command's flag: put it before --"
        )
        arms = arms_of(args)
        pairs = pairs_of(args, list(arms))
        full = settled(args, arms)
        args.steps = args.steps or full.steps
        runs = plan(args, arms)
        if args.plan:
            return show_plan(args, runs)
        args.out.mkdir(parents=True, exist_ok=True)
        write_heldout(args, full)
        run_all(args, runs)
        rows = [row for row in read(args.out) if row["arm"] in arms]
    demand(
        rows and all(args.measure in row for row in rows),
        f"--measure {args.measure}: some of these runs lack it; the command that trained them adds it"
    )
    lines = contrasts(rows, args.measure, pairs)
    shown = []
    for line in lines:
        shown.append({name: cell(value) for name, value in line.items()})
    write_csv((args.source or [args.out])[0] / "contrasts.csv", shown)
    print(f"{table(means(rows))}\n\n{args.measure}\n{table(lines)}")
    for row in rows:
        if abs(row["spent"] - 1) > 0.05:
            print(
                f"{row['run']} spent {row['spent']:.2f} of its budget: give more --steps, or take a new --out"
            )


def write_heldout(args: argparse.Namespace, cfg: Config) -> None:
    """Writes the validation tasks as a file for train.py --heldout, so that probes ask what is asked after
    a run."""
    lines = []
    for kind in cfg.task_types if not args.heldout else ():
        for _, task in draw(kind, "validation", args.limit)[: args.limit]:
            lines.append(
                json.dumps(
                    dict(kind=kind, program=task.program, inputs=task.inputs, message=task.message)
                )
            )
    (args.out / "heldout.jsonl").write_text("\n".join(lines))


if __name__ == "__main__":
    leave("eval.ablate", main)
