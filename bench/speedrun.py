"""speedrun: generated tokens until the students solve .70 of the held-out tasks (docs/speedrun.md)."""
import argparse
import contextlib
import json
import statistics
from pathlib import Path

import train
from config import parse_args
from measure.metrics import spent

GOAL = 0.70
RULES = ["--pop", "8", "--probe-every", "3", "--n-heldout", "476", "--keep", "1"]
HELDOUT = Path("micro/base/heldout.jsonl")


# What has to be at the goal. Copying the best student over the others raises the mean and teaches nobody
# anything, so a record is read with both numbers: the mean that counts and when the first student was there.
MEASURES = {"mean": statistics.fmean, "best": max}


def accuracy(row: dict, measure: str) -> float:
    """The students' greedy accuracy on the held-out tasks at a step's probe, their mean or the best one's; 0
    without a probe."""
    students = row.get("heldout_greedy")
    if not students:
        return 0
    return MEASURES[measure](students.values())


def tokens_before(rows: list[dict], measure: str) -> int | None:
    """Tokens of proposals and attempts before the first probe at the goal; None where none is."""
    # A probe comes before its step's update: the tokens of the steps before it count.
    for row, tokens in zip(rows, [0, *spent(rows)]):
        if accuracy(row, measure) >= GOAL:
            return tokens
    return None


def output_tasks(path: Path) -> Path:
    """A file of the held-out output tasks: unseen task types cost as much again and decide nothing."""
    lines = ""
    for line in HELDOUT.read_text().splitlines(keepends=True):
        if json.loads(line)["kind"] == "code_o":
            lines += line
    path.write_text(lines)
    return path


def run(args: argparse.Namespace, seed: int, asked: Path) -> dict[str, int | None]:
    """One training run until the mean is at the goal, its output in a file; measure -> tokens before it
    was."""
    flags = [
        *RULES,
        "--heldout", str(asked),
        "--out", str(args.out),
        "--name", f"seed_{seed}",
        "--seed", str(seed),
        *args.train[1:]]                            # without the "--" before them
    rows = []

    def enough(row: dict) -> bool:
        rows.append(row)
        return accuracy(row, "mean") >= GOAL

    with open(args.out / f"seed_{seed}.log", "w") as log, contextlib.redirect_stdout(log):
        train.main(parse_args(None, flags), enough)
    return {measure: tokens_before(rows, measure) for measure in MEASURES}


def summed_up(by_seed: dict[int, int | None]) -> dict:
    """The tokens of a measure's runs, and their mean where all of them got there."""
    reached = [n for n in by_seed.values() if n is not None]
    mean = None
    if len(reached) == len(by_seed):
        mean = round(statistics.fmean(reached))
    return dict(tokens=by_seed, reached=len(reached), mean_of_seeds=mean)


def speedrun(args: argparse.Namespace) -> dict:
    """Tokens until the students' mean accuracy is .70, and until the best one's; all runs must get there."""
    args.out.mkdir(parents=True, exist_ok=True)
    asked = output_tasks(args.out / "heldout.jsonl")
    tokens = {measure: {} for measure in MEASURES}
    for seed in range(args.seeds):
        found = run(args, seed, asked)
        for measure, n in found.items():
            tokens[measure][seed] = n
        print(f"seed {seed}: mean {found['mean']} tokens, best {found['best']} tokens", flush=True)
    return {measure: summed_up(by_seed) for measure, by_seed in tokens.items()}


FLAGS = {
    "--seeds": dict(type=int, default=8, help="runs, of seeds 0, 1, ..."),
    "--out": dict(type=Path, default=Path("out/speedrun"), help="where the runs go"),
    "train": dict(nargs=argparse.REMAINDER, help="-- and the flags of train.py that are tried"),
}
