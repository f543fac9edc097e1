"""Which part of a population is worth its compute? Arms that spend the same budget, over seeds, in one table.

    python -m eval.ablate --seeds 0,1,2                                    # the arms below, on the bundled base
    python -m eval.ablate --seeds 0,1,2 --arm "slow: --lr 3e-4"            # one of your own, beside full
    python -m eval.ablate --from out/ablate                                # the table of what is there

What `full` (the population as it is) generates with a seed is the budget of every other arm with this seed, of all its
runs together; a run stops after the step that brings it nearest. Then all students answer held-out tasks: the one that is
best on validation is `deployed`, and asked on test. Three seeds are a first look; an interval takes five, a verdict eight.
"""
import argparse
import contextlib
import json
import shlex
import statistics
from argparse import Namespace
from pathlib import Path

import numpy as np

import train
from common import demand, leave, parser_of
from config import Config, config_of, parse_args
from eval.answer import load
from eval.heldout import ask, draw
from eval.stats import bootstrap, sign_flip
from measure import spent
from run import RunDir
from verifier import open_sandbox

# name -> flags of train.py, share of full's budget for one run, runs of a seed
ARMS = {
    "full": ("", 1.0, 1),
    "no-evolution": ("--evolve none", 1.0, 1),
    "uniform": ("--matching uniform", 1.0, 1),
    "frozen-teachers": ("--lr-teacher 0", 1.0, 1),
    "novelty": ("--teacher-reward novelty", 1.0, 1),
    "static": ("--tasks micro", 1.0, 1),
    "pbt": ("--lr-spread 8 --lr-mutate 1.25", 1.0, 1),
    "pair": ("--pop 2", 1.0, 1),
    "single-long": ("--single", 1.0, 1),
    "singles": ("--single", 0.25, 4),
}
FEWEST = 8                          # seeds under which nothing is concluded
LIMIT = 72                          # held-out tasks of each type and split


def area(rows: list[dict], due: float) -> float:
    """The students' mean held-out accuracy, averaged over the budget: high where learning comes early."""
    x, y = [], []
    for before, row in zip([0, *spent(rows)], rows):
        if row.get("heldout_greedy"):
            x.append(before / due)
            y.append(statistics.fmean(row["heldout_greedy"].values()))
    grid = np.append([t for t in x if t < 1], 1.0)
    return float(np.trapezoid(np.interp(grid, x, y), grid))


def accuracy(run: Path, split: str, sandbox: object) -> dict[str, float]:
    """Student -> share of a split's held-out tasks of the played types that it solves greedily."""
    step = RunDir(run, writes=False).steps()[-1]
    here = run / f"step_{step}"
    paths = sorted(here.glob("S*")) or sorted(here.glob("T*"))      # --single's only adapter is called T0
    args = Namespace(base="", run="", adapters=paths, prompt_format="", samples=1, temperature=0.0, max_new_tokens=None,
                     seed=0, device="auto", dtype="auto", out=str(run / f"heldout-{split}"))
    types = config_of(RunDir(run, writes=False).config()).task_types
    named = [(kind, id, task) for kind in types for id, task in draw(kind, split, 60)[:LIMIT]]
    _, rows = ask(args, load(args), named, sandbox, "")
    right = {}
    for row in rows:
        if row["member"] != "base":
            right.setdefault(row["member"], []).append(bool(row["correct"]))
    return {name: statistics.fmean(own) for name, own in right.items()}


def train_run(args: argparse.Namespace, name: str, flags: str, seed: int, due: float | None) -> dict:
    """Train a run until it has spent `due` (None: for all of its steps), and examine its students."""
    path = args.out / name
    words = ["--base", args.base, "--out", str(args.out), "--seed", str(seed), "--probe-every", "5", *args.train,
             *shlex.split(flags)]
    if not {"--single", "--pop"} & set(words):
        words += ["--pop", str(args.pop)]
    words += ["--resume", str(path)] if RunDir(path, writes=False).steps() else ["--name", name]
    if due is not None:
        words += ["--steps", "1000000"]
    rows = RunDir(path, writes=False).rows("metrics.jsonl")

    def met(row: dict | None = None) -> bool:
        rows.extend([row] if row else [])
        before, now = [0, 0, *spent(rows)][-2:]
        return due is not None and now + (now - before) / 2 >= due

    if not met():
        with open(args.out / f"{name}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(config_of(parse_args(None, words)), met)
    with open_sandbox("auto", "micro") as sandbox:
        chosen, tested = accuracy(path, "validation", sandbox), accuracy(path, "test", sandbox)
    best = max(chosen, key=chosen.get)
    tokens = spent(rows)[-1]
    return dict(run=name, tokens=tokens, validation=chosen[best], deployed=tested[best],
                end=statistics.fmean(tested.values()), area=area(rows, due or tokens))


def run_all(args: argparse.Namespace, arms: dict[str, tuple]) -> None:
    """Train and examine every run that is not yet in results.jsonl."""
    file = args.out / "results.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    done = {r["run"]: r for r in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    for seed in args.seeds:
        for arm, (flags, share, n) in arms.items():
            for i in range(n):
                name = f"{arm}-s{seed}" + f".{i}" * (n > 1)
                if name in done:
                    continue
                due = None if arm == "full" else share * done[f"full-s{seed}"]["tokens"]
                done[name] = train_run(args, name, flags, seed + 1000 * i, due) | dict(arm=arm, seed=seed)
                with open(file, "a") as f:
                    f.write(json.dumps(done[name]) + "\n")
                print(done[name], flush=True)


def table(rows: list[dict], measure: str, reference: str) -> str:
    """Means of each arm, and differences to the reference, paired by seed. Of several runs of a seed the deployed one
    is that which is best on validation; else their mean."""
    by_arm = {}
    for row in rows:
        by_arm.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(row)
    values = {}
    for arm, seeds in by_arm.items():
        values[arm] = {}
        for seed, own in seeds.items():
            one = {m: statistics.fmean(r[m] for r in own) for m in ("area", "end")}
            one["deployed"] = max(own, key=lambda r: r["validation"])["deployed"]
            values[arm][seed] = one
    demand(reference in values, f"--reference {reference}: there is no run of it")
    out = [f"{'arm':18} seeds   area    end deployed | {measure} of {reference} less it, 95% interval, p, verdict"]
    for arm, seeds in values.items():
        means = [statistics.fmean(one[m] for one in seeds.values()) for m in ("area", "end", "deployed")]
        told = f"{arm:18} {len(seeds):5} {means[0]:6.3f} {means[1]:6.3f} {means[2]:8.3f} |"
        x = np.array([values[reference][s][measure] - seeds[s][measure] for s in seeds if s in values[reference]])
        if arm != reference and len(x) >= 5:
            (low, high), p = bootstrap(x), sign_flip(x)
            verdict = "too few seeds" if len(x) < FEWEST else "cannot tell" if p >= 0.05 else "ahead" if x.mean() > 0 else "behind"
            told += f" {x.mean():+.3f} ({low:+.3f} .. {high:+.3f}) {p:.4f} {verdict}"
        out.append(told)
    return "\n".join(out) + "\np is not corrected: of twenty arms one is below .05 by luck"


def main() -> None:
    """The command line."""
    p = parser_of("python -m eval.ablate", __doc__)
    p.add_argument("--base", default=Config.base)
    p.add_argument("--arms", default="no-evolution,uniform,pair,single-long,singles,frozen-teachers")
    p.add_argument("--arm", action="append", default=[], help='"name: --flag value ..."; several times')
    p.add_argument("--seeds", default="0,1,2")
    p.add_argument("--pop", type=int, default=8)
    p.add_argument("--out", type=Path, default=Path("out/ablate"))
    p.add_argument("--from", dest="source", type=Path, nargs="+", default=[], metavar="DIR", help="only the table")
    p.add_argument("--measure", default="deployed", choices=("deployed", "area", "end"))
    p.add_argument("--reference", default="full")
    p.add_argument("train", nargs=argparse.REMAINDER, help="-- and flags of train.py for every arm")
    args = p.parse_args()
    args.train = args.train[1:]
    args.seeds = list(map(int, args.seeds.split(",")))
    own = {name.strip(): (flags, 1.0, 1) for name, _, flags in (text.partition(":") for text in args.arm)}
    arms = {"full": ARMS["full"]} | {name: ARMS[name] for name in args.arms.split(",") if name} | own
    if not args.source:
        run_all(args, arms)
    rows = []
    for path in args.source or [args.out]:
        rows += map(json.loads, (path / "results.jsonl").read_text().splitlines())
    print(table(rows, args.measure, args.reference))


if __name__ == "__main__":
    leave("eval.ablate", main)
