"""Tasks of self-play that nobody was trained on, asked and judged as in training.

    python -m eval.heldout --run out/NAME                         # the micro domain's, base and members
    python -m eval.heldout --run out/NAME --samples 16 --temperature 1      # and pass@16
    python -m eval.heldout --base DIR --tasks FILE                # any file of tasks, CRUXEval's too

The micro domain's tasks are programs by number of statements, word problems and puzzles that micro/programs.py keeps out
of the base's training text. A hash of a program says whether it is of the validation or the test split: choose members on
validation, claim on test.
"""
import argparse
import functools
import itertools

from common import demand, leave
from eval.answer import Item, Population, answer_all, conclude, load, parser
from micro.evaluate import ROWS, SEEN, SIZES, draw_tasks
from tasks import TASK_TYPES, cruxeval, verify_answers
from tasks.base import SPLITS, UNJUDGED, Task, split_of
from tasks.programs import Limits
from verifier import Verifier, open_sandbox

SEED = 2605                         # of the draws
FAMILIES = {family: (row, SIZES[row]) for row, family in ROWS.items()}
FAMILIES["code_o_long"] = "out", range(7, 11)


@functools.cache
def draw(family: str, split: str, per_size: int) -> list[tuple[str, Task]]:
    """(size/number, task) of a family in one split, the sizes in turn, but for those that the base may know."""
    row, sizes = FAMILIES[family]
    columns = []
    for size in sizes:
        column, numbers = {}, itertools.count()
        while len(column) < per_size:
            [task] = draw_tasks(row, size, 1, f"{SEED}/{next(numbers)}")
            text = task.message or task.program
            if split_of(text) == split:
                column.setdefault(text, (f"{size}/{len(column)}", task))
        if size > SEEN.get(family, 1):
            columns.append(column.values())
    return list(itertools.chain(*zip(*columns)))


def items_of(named: list[tuple[str, str, Task]], prompt_format: str, limits: Limits) -> list[Item]:
    """Questions from (bench, id, task)."""
    return [Item(bench, id, TASK_TYPES[task.kind].solve(prompt_format, task, limits), task) for bench, id, task in named]


def judge(sandbox: Verifier, prompt_format: str, limits: Limits, asked: list[tuple[Item, str]]) -> list[dict]:
    """The verdicts of self-play."""
    tasks, texts = [item.gold for item, _ in asked], [[text] for _, text in asked]
    verdicts = verify_answers(tasks, texts, prompt_format, limits, sandbox.run)
    return [dict(correct=None if v == UNJUDGED else v == "correct", verdict=v) for [v] in verdicts]


def ask(args: argparse.Namespace, population: Population, named: list[tuple[str, str, Task]], sandbox: Verifier,
        name: str) -> tuple:
    """Everybody's answers to (bench, id, task)."""
    prompt_format = population.base.prompt_format
    limits = Limits.for_format(prompt_format)
    return answer_all(args, population, items_of(named, prompt_format, limits), name,
                      functools.partial(judge, sandbox, prompt_format, limits))


def main() -> None:
    """The command line."""
    p = parser("heldout", __doc__)
    p.add_argument("--split", default="test", choices=SPLITS)
    p.add_argument("--tasks", default="", metavar="FILE", help="cruxeval.jsonl")
    args = p.parse_args()
    population = load(args)
    with open_sandbox("auto", population.base.prompt_format) as sandbox:
        named = []
        if args.tasks:
            rows = cruxeval.rows_of(open(args.tasks).read(), args.split)
            demand(rows, f"--tasks {args.tasks}: not the published file of CRUXEval")
            for bench in args.bench.split(",") if args.bench else cruxeval.KINDS:
                tasks = cruxeval.tasks_of(rows, cruxeval.KINDS[bench], "exact", sandbox.run)
                named += [(bench, id, task) for id, task in list(tasks.items())[:args.limit]]
        else:
            for family in args.bench.split(",") if args.bench else ROWS.values():
                named += [(family, id, task) for id, task in draw(family, args.split, 60)[:args.limit]]
        conclude(*ask(args, population, named, sandbox, f"heldout-{args.split}"))


if __name__ == "__main__":
    leave("eval.heldout", main)
