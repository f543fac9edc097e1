"""Do the teachers' tasks go on being new, or are they endless variants of one loop? Of finished runs.

    python -m eval.population.structures out/NAME                   # a line for each hundred steps
    python -m eval.population.structures out/one out/other --every 50

Hashes of a program without names and constants call `x=[v+1 for v in x]` and `x=[v*2 for v in x]` two
structures. So beside those there are two coarser measures: structures that also take all operators for equal,
and the share of tasks that have the commonest shape of loops. This shape is a program's loops and
comprehensions alone, nested as they are.
"""
import ast
from collections import Counter
from pathlib import Path

from eval import common
from eval.summary import table
from infra import command
from infra.errors import demand
from run.directory import RunDir
from selfplay import mean
from tasks.complexity import parse, structural_hash

# What a loop is, and how it is written in a shape.
LOOPS = {
    ast.For: "for",
    ast.While: "while",
    ast.ListComp: "list",
    ast.SetComp: "set",
    ast.DictComp: "dict",
    ast.GeneratorExp: "generator",
}


def loop_shape(node: ast.AST) -> str:
    """The loops below a node in their order, as in "for(list) list"; "" without any."""
    found = []
    for child in ast.iter_child_nodes(node):
        inner = loop_shape(child)
        if type(child) in LOOPS:
            inner = f"{LOOPS[type(child)]}({inner})".removesuffix("()")
        if inner:
            found.append(inner)
    return " ".join(found)


def coarse_hash(program: str) -> str:
    """The structural hash of a program in which all operators between two values are one, and all
    comparisons."""
    tree = parse(program)
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)):
            node.op = ast.Add()
        if isinstance(node, ast.Compare):
            node.ops = [ast.Lt()] * len(node.ops)
    return structural_hash(ast.unparse(tree))


def described(path: Path, every: int) -> list[dict]:
    """A dict for each `every` steps of a run; the columns of `window`, and the students' mean accuracy at the
    last probe."""
    run = RunDir(path, writes=False)
    windows = {}
    for row in run.rows("tasks.jsonl"):
        windows.setdefault(row["step"] // every, []).append(row)
    heldout = {}
    for row in run.rows("metrics.jsonl"):
        if row.get("heldout_greedy"):
            heldout[row["step"] // every] = mean(row["heldout_greedy"].values())
    lines, seen = [], set()
    for number, rows in sorted(windows.items()):
        first = number * every
        steps = f"{first} to {first + every - 1}"
        measured = window(rows, seen)
        lines.append(dict(run=path.name, steps=steps, **measured, heldout=heldout.get(number)))
    return lines


def window(rows: list[dict], seen: set[str]) -> dict:
    """What proposals are like: share that repeated a structure, valid tasks and their structures, share of
    these tasks that are new also where operators do not count, shapes with a loop, and the commonest one's
    share. seen: coarse hashes of all windows before, to which this one's are added."""
    programs = [row["program"] for row in rows if not row["reason"]]
    fine, coarse, shapes = set(), set(), Counter()
    for program in programs:
        fine.add(structural_hash(program))
        coarse.add(coarse_hash(program))
        shapes[loop_shape(parse(program))] += 1
    del shapes[""]                                      # without a loop
    [(commonest, n)] = shapes.most_common(1) or [("-", 0)]
    n_new = len(coarse - seen)
    seen |= coarse
    some = max(1, len(programs))
    return {
        "repeats": mean(row["reason"] == "duplicate" for row in rows),
        "tasks": len(programs),
        "structures": len(fine),
        "new_without_operators": n_new / some,
        "shapes": len(shapes),
        "share": n / some,
        "commonest": commonest,
    }


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    parser = command.parser_of("python -m eval.population.structures", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="runs' directories, out/NAME")
    parser.add_argument("--every", type=int, default=100, help="steps of a line")
    args = parser.parse_args(argv)
    demand(args.every >= 1, f"--every {args.every}: give at least 1")
    lines = []
    for path in args.runs:
        lines += described(path, args.every)
    demand(lines, "no tasks in these runs: give the directories of runs, out/NAME")
    print(table(lines))
    return 0


if __name__ == "__main__":
    common.command("eval.population.structures", main)
