"""Runs that train.py made by hand, evaluated as they stood at a number of tokens: records for the tables.

    D="python -m eval.population.deployed --tokens 400000 --also math --out out/study"
    $D --arm niches:30 --flags='--niches' out/niches_30             # an arm, its seed, what makes it, the run
    $D --arm singles:30 out/a_30 out/b_30 out/c_30 out/d_30         # four runs, a quarter of the tokens each
    $D --arm crossed:30 --cross add out/forwards_30 out/backwards_30    # two parents, crossed at the end
    python -m eval.population.ablation --from out/study --reference niches --measure deployed

Of each run the checkpoint counts whose tokens, without those of probes, are nearest (train with --keep 1000).
All its students answer held-out tasks of the types that the run plays, and of --also, of both splits.
"""
import argparse
from pathlib import Path

from eval import common
from eval.population import heldout, runs
from infra.errors import UserError
from operators import OPERATORS
from run.checkpoint import RunDir


def nearest(directory: Path, tokens: float) -> int:
    """The checkpoint of a run at which it had spent most nearly so many tokens; else raises UserError."""
    steps = [step for step in RunDir(directory, writes=False).steps() if step]      # 0 has spent nothing
    if not steps:
        raise UserError(f"{directory}: no checkpoint there; give a run's directory, out/NAME")
    done = runs.spent(runs.logged(directory))
    return min(steps, key=lambda step: abs(done[step - 1] - tokens))


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    p = argparse.ArgumentParser(prog="python -m eval.population.deployed", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="+", type=Path, help="the run, or those that share the budget, out/NAME ...")
    p.add_argument("--arm", required=True, metavar="NAME:SEED", help="what the runs are in the tables")
    p.add_argument("--tokens", type=int, required=True, help="the budget, of all these runs together")
    p.add_argument("--flags", default="", help="what makes the arm, for the table's check: '--evolve copy'")
    p.add_argument("--cross", default="", choices=("", *OPERATORS), help="the arm is the runs' child by it")
    p.add_argument("--also", default="", help="types that are asked though not played, as in code_o,math")
    p.add_argument("--limit", type=int, default=120, help="held-out tasks of each type and split; 0 = all")
    p.add_argument("--samples", action="store_true", help="also sampled answers, for coverage")
    p.add_argument("--out", type=Path, required=True, help="where records and answers go")
    p.add_argument("--base", default="", help="default: what the adapters were trained on")
    args = p.parse_args(argv)
    name, _, seed = args.arm.partition(":")
    if not (name and seed.isdigit()):
        raise UserError(f"--arm {args.arm}: give NAME:SEED, the arm of the tables and the seed of the run")
    parts = [(path, nearest(path, args.tokens / len(args.runs))) for path in args.runs]
    played = ",".join(RunDir(path, writes=False).config()["task_types"] for path in args.runs).split(",")
    types = [kind for kind in heldout.FAMILIES if kind in played]
    asked = [*types, *common.choose(args.also, tuple(heldout.FAMILIES), "--also", "type")]
    flags, n = tuple(args.flags.split()), 1 if args.cross else len(parts)
    arm = runs.Arm(flags, 1 / n, n, args.cross)
    plan = dict(tokens=args.tokens, types=types, asked=list(dict.fromkeys(asked)), limit=args.limit)
    plan |= dict(samples=runs.SAMPLES) if args.samples else {}
    runs.write_plan(args.out, plan, {name: arm})
    words = ["--workers", 1, *(["--base", args.base] if args.base else [])]
    for run, own in zip(runs.runs_of(name, arm, int(seed)), [parts] if args.cross else [[x] for x in parts]):
        record = runs.examined(args.out / run, own, args.cross, plan, words)
        runs.add(args.out, record)
        right = ", ".join(f"{kind} {x:.2f}" for kind, x in record["deployed"].items())
        print(f"{run}: {record['spent'][-1]:,} tokens; deployed: {right}", flush=True)
    return 0


if __name__ == "__main__":
    common.command("eval.population.deployed", main)
