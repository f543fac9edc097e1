"""speedrun: generated tokens until the students solve .70 of the held-out tasks (docs/speedrun.md)."""
import argparse
import contextlib
import json
import statistics
from pathlib import Path

import train
from config import parse_args

GOAL = 0.70
RULES = ["--pop", "8", "--probe-every", "3", "--n-heldout", "476", "--keep", "1"]
HELDOUT = Path("micro/base/heldout.jsonl")


def accuracy(row: dict) -> float:
    """The students' mean greedy accuracy on the held-out tasks at a step's probe; 0 without one."""
    return statistics.fmean(row.get("heldout_greedy", {}).values() or [0])


def tokens_to_goal(flags: list[str]) -> int | None:
    """Tokens of proposals and attempts before the first probe at the goal; None where none is."""
    rows = []

    def enough(row: dict) -> bool:
        rows.append(row)
        return accuracy(row) >= GOAL

    train.main(parse_args(None, flags), enough)
    *before, last = rows                    # a probe comes before its step's update
    if accuracy(last) < GOAL:
        return None
    return before[-1]["tokens_generated"] - sum(row.get("probe_tokens", 0) for row in before)


def speedrun(args) -> dict:
    """Tokens until the students' mean accuracy is .70, by seed; every run must get there."""
    tokens = {}
    args.out.mkdir(parents=True, exist_ok=True)
    asked = args.out / "heldout.jsonl"      # unseen task types cost as much again and decide nothing
    asked.write_text("".join(row for row in HELDOUT.open() if json.loads(row)["kind"] == "code_o"))
    for seed in range(args.seeds):
        flags = [*RULES, "--out", str(args.out), "--name", f"seed_{seed}", "--seed", str(seed),
                 "--heldout", str(asked), *args.train[1:]]
        with open(args.out / f"seed_{seed}.log", "w") as log, contextlib.redirect_stdout(log):
            tokens[seed] = tokens_to_goal(flags)
        print(f"seed {seed}: {tokens[seed]} tokens", flush=True)
    reached = [n for n in tokens.values() if n]
    mean = round(statistics.fmean(reached)) if len(reached) == args.seeds else None
    return dict(tokens=tokens, reached=len(reached), mean=mean)


COMMANDS = {"speedrun": (speedrun, {
    "--seeds": dict(type=int, default=8, help="runs, of seeds 0, 1, ..."),
    "--out": dict(type=Path, default=Path("out/speedrun"), help="where the runs go"),
    "train": dict(nargs=argparse.REMAINDER, help="-- and the flags of train.py that are tried")})}
