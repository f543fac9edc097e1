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
from infra import command
from infra.errors import demand
from operators import OPERATORS
from run.checkpoint import RunDir


def nearest(directory: Path, tokens: float) -> int:
    """The checkpoint of a run at which it had spent most nearly so many tokens; else raises UserError."""
    run = RunDir(directory, writes=False)
    steps = list(filter(None, run.steps()))             # at 0 nothing was spent
    demand(steps, f"{directory}: no checkpoint there; give a run's directory, out/NAME")
    done = runs.spent(runs.logged(directory))
    return min(steps, key=lambda step: abs(done[step - 1] - tokens))


def parser() -> argparse.ArgumentParser:
    """The flags."""
    p = command.parser_of("python -m eval.population.deployed", __doc__)
    add = p.add_argument
    add("runs", nargs="+", type=Path, help="the run, or those that share the budget, out/NAME ...")
    add("--arm", required=True, metavar="NAME:SEED", help="what the runs are in the tables")
    add("--tokens", type=int, required=True, help="the budget, of all these runs together")
    add("--flags", default="", help="what makes the arm, for the table's check: '--evolve copy'")
    add("--cross", default="", choices=("", *OPERATORS), help="the arm is the runs' child by it")
    add("--also", default="", help="types that are asked though not played, as in code_o,math")
    add("--limit", type=int, default=120, help="held-out tasks of each type and split; 0 = all")
    add("--samples", action="store_true", help="also sampled answers, for coverage")
    add("--out", type=Path, required=True, help="where records and answers go")
    add("--base", default="", help="default: what the adapters were trained on")
    return p


def plan_of(args: argparse.Namespace) -> dict:
    """What all runs in --out share: the budget and what is asked. Raises UserError for an unknown type."""
    played = []
    for path in args.runs:
        played += RunDir(path, writes=False).config()["task_types"].split(",")
    types = [kind for kind in heldout.FAMILIES if kind in played]
    also = common.choose(args.also, tuple(heldout.FAMILIES), "--also", "type")
    asked = dict.fromkeys([*types, *also])
    plan = {
        "tokens": args.tokens,
        "types": types,
        "asked": list(asked),
        "limit": args.limit,
    }
    if args.samples:
        plan["samples"] = runs.SAMPLES
    return plan


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    args = parser().parse_args(argv)
    name, _, seed = args.arm.partition(":")
    demand(name and seed.isdigit(),
           f"--arm {args.arm}: give NAME:SEED, the arm of the tables and the seed of the run")
    share = args.tokens / len(args.runs)
    parts = []
    for path in args.runs:
        parts.append((path, nearest(path, share)))
    each = [[part] for part in parts]                   # each run is a record,
    if args.cross:
        each = [parts]                                  # or all are the parents of one
    flags = tuple(args.flags.split())
    n = len(each)
    arm = runs.Arm(flags, 1 / n, n, args.cross)
    plan = plan_of(args)
    runs.write_plan(args.out, plan, {name: arm})
    words = ["--base", args.base]               # where it is "", heldout reads it in the adapters
    names = runs.runs_of(name, arm, int(seed))
    for run, own in zip(names, each):
        record = runs.examined(args.out / run, own, args.cross, plan, words)
        runs.add(args.out, record)
        right = [f"{kind} {x:.2f}" for kind, x in record["deployed"].items()]
        print(f"{run}: {record['spent'][-1]:,} tokens; deployed: {', '.join(right)}", flush=True)
    return 0


if __name__ == "__main__":
    common.command("eval.population.deployed", main)
