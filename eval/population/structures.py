"""Do the teachers' tasks go on being new, or are they endless variants of one loop? Of finished runs.

    python -m eval.population.structures out/NAME                   # a line for each hundred steps
    python -m eval.population.structures out/one out/other --every 50

Hashes of a program without names and constants call `x=[v+1 for v in x]` and `x=[v*2 for v in x]` two
structures. So beside those there are two coarser measures: structures that also take all operators for equal,
and the share of tasks that have the commonest shape of loops. This shape is a program's loops and
comprehensions alone, nested as they are.
"""
import argparse
import ast
from collections import Counter
from pathlib import Path

from eval import common
from eval.summary import table
from infra.errors import UserError
from run.directory import RunDir
from selfplay import mean
from tasks.complexity import parse, structural_hash

# What a loop is, and how it is written in a shape.
LOOPS = {ast.For: "for", ast.While: "while", ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict",
         ast.GeneratorExp: "generator"}


def loop_shape(node: ast.AST) -> str:
    """The loops below a node in their order, as in "for(list) list"; "" without any."""
    found = []
    for child in ast.iter_child_nodes(node):
        inner = loop_shape(child)
        if type(child) in LOOPS:
            found.append(LOOPS[type(child)] + (f"({inner})" if inner else ""))
        elif inner:
            found.append(inner)
    return " ".join(found)


class Operatorless(ast.NodeTransformer):
    """Puts one operator in the place of all that stand between two values, and of comparisons."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Arithmetic."""
        node.op = ast.Add()
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Arithmetic in place."""
        node.op = ast.Add()
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Comparisons."""
        node.ops = [ast.Lt()] * len(node.ops)
        return self.generic_visit(node)


def coarse_hash(program: str) -> str:
    """The structural hash of a program in which all operators are one."""
    return structural_hash(ast.unparse(Operatorless().visit(parse(program))))


def described(path: Path, every: int) -> list[dict]:
    """A dict for each `every` steps of a run: share of proposals that repeated a structure, valid tasks and
    their structures, share of these tasks that are new also where operators do not count, share of the
    commonest shape with a loop, and the students' mean accuracy at the last probe."""
    run, windows = RunDir(path, writes=False), {}
    for row in run.rows("tasks.jsonl"):
        windows.setdefault(row["step"] // every, []).append(row)
    heldout = {}
    for row in run.rows("metrics.jsonl"):
        if row.get("heldout_greedy"):
            heldout[row["step"] // every] = mean(row["heldout_greedy"].values())
    lines, seen = [], set()
    for number, rows in sorted(windows.items()):
        programs = [row["program"] for row in rows if not row["reason"]]
        coarse = {coarse_hash(program) for program in programs}
        shapes = Counter(loop_shape(parse(program)) for program in programs)
        del shapes[""]
        commonest, n = shapes.most_common(1)[0] if shapes else ("-", 0)
        lines.append(dict(
            run=path.name, steps=f"{number * every} to {(number + 1) * every - 1}",
            repeats=sum(row["reason"] == "duplicate" for row in rows) / len(rows), tasks=len(programs),
            structures=len({structural_hash(program) for program in programs}),
            new_without_operators=len(coarse - seen) / max(1, len(programs)), shapes=len(shapes),
            share=n / max(1, len(programs)), commonest=commonest, heldout=heldout.get(number)))
        seen |= coarse
    return lines


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    p = argparse.ArgumentParser(prog="python -m eval.population.structures", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="+", type=Path, help="runs' directories, out/NAME")
    p.add_argument("--every", type=int, default=100, help="steps of a line")
    args = p.parse_args(argv)
    if args.every < 1:
        raise UserError(f"--every {args.every}: give at least 1")
    lines = [line for path in args.runs for line in described(path, args.every)]
    if not lines:
        raise UserError("no tasks in these runs: give the directories of runs, out/NAME")
    print(table(lines))
    return 0


if __name__ == "__main__":
    common.command("eval.population.structures", main)
