"""Asks tasks that nobody was trained on, put and judged as self-play puts and judges its own.

    python -m eval.heldout --run out/NAME                       # the micro domain's, base and members
    python -m eval.heldout --run out/NAME --samples 16 --temperature 1      # and pass@16
    python -m eval.heldout --base DIR --tasks cruxeval.jsonl    # CRUXEval: cruxeval-o and cruxeval-i
    python -m eval.heldout --run out/NAME --tasks FILE          # your own, as for train.py --tasks

The micro domain's tasks are programs by number of statements, word problems and puzzles that
micro/programs.py keeps out of the base's training text. A hash of a program says whether it is of the
validation or of the test split: choose members on validation, make claims on test.
"""
import argparse
import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import selfplay
from common import UserError, leave, readable
from eval.answer import Item, answer_all, conclude, load, open_results, parser
from micro.evaluate import ROWS, SEEN, SIZES, draw_tasks
from selfplay import Setup
from tasks import cruxeval, read_tasks
from tasks.base import SPLITS, Task, split_of
from verifier import open_sandbox

SEED = 2605                         # of the draws
PER_SIZE = 60                       # tasks of one family and size, at most
FAMILIES = dict(zip(ROWS.values(), ROWS))       # task type -> its row of micro.evaluate


@functools.cache
def draw(family: str, split: str, limit: int | None) -> list[tuple[str, Task]]:
    """Returns (size/number, task) of a family in one split, the sizes in turn, at most `limit` of all sizes
    together. Sizes whose programs the base may know are left out."""
    row = FAMILIES[family]
    sizes = [size for size in SIZES[row] if size > SEEN.get(family, 1)]
    most = limit or PER_SIZE * len(sizes)
    per_size = min(PER_SIZE, math.ceil(most / len(sizes)))
    columns = []
    for size in sizes:
        column = {}                     # text -> (id, task): no program comes twice
        for number in itertools.count():
            if len(column) == per_size:
                break
            (task,) = draw_tasks(row, size, 1, f"{SEED}/{number}")
            text = task.message or task.program
            if split_of(text) == split:
                column.setdefault(text, (f"{size}/{len(column)}", task))
        columns.append(column.values())
    return list(itertools.chain(*zip(*columns)))[:limit]


def of_file(setup: Setup, split: str, file: str) -> dict[str, list[tuple[str, Task]]]:
    """Returns bench -> (id, task) of a split of CRUXEval's file or of any file of tasks. Raises UserError
    for an empty split."""
    found = {}
    with readable(f"{file} is no text"):
        text = Path(file).read_text(encoding="utf-8")
    rows = cruxeval.rows_of(text, split)
    if rows:
        for bench, kind in cruxeval.KINDS.items():
            found[bench] = list(cruxeval.tasks_of(rows, kind, "exact", setup.sandbox.run).items())
        return found
    tasks = selfplay.make_tasks(setup, read_tasks(file), file)
    for number, task in enumerate(tasks, 1):
        if split_of(task.message or task.program) == split:
            found.setdefault(task.kind, []).append((str(number), task))
    if not found:
        raise UserError(f"{file} holds no task of the {split} split, which a hash of the program decides: "
                        "add tasks")
    return found


def item_of(setup: Setup, bench: str, id: str, task: Task) -> Item:
    """Returns a task as a question."""
    return Item(bench, id, selfplay.prompt_student(setup, task), task)


def items_of(setup: Setup, args: argparse.Namespace) -> list[Item]:
    """Returns the tasks of --bench, --limit of each: those of --tasks, else those of the micro domain. Raises
    UserError for an unknown benchmark."""
    found = dict.fromkeys(FAMILIES)
    if args.tasks:
        found = of_file(setup, args.split, args.tasks)
    elif setup.base.prompt_format != "micro":
        del found["math"]               # its questions are in the micro format's words
    items = []
    for bench in args.bench.split(",") if args.bench else found:
        if bench not in found:
            raise UserError(f"--bench {bench}: give some of {', '.join(found)}")
        tasks = found[bench]
        if not args.tasks:
            tasks = draw(bench, args.split, args.limit)
        for id, task in tasks[: args.limit]:
            items.append(item_of(setup, bench, id, task))
    return items


def judge(setup: Setup, asked: list[tuple[Item, str]]) -> list[dict]:
    """Returns the verdicts of self-play."""
    tasks = [item.gold for item, _ in asked]
    texts = [[text] for _, text in asked]
    return [dict(verdict=verdict) for (verdict,) in selfplay.judge(setup, tasks, texts)]


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser("heldout", __doc__)
    p.add_argument("--split", default="test", choices=SPLITS)
    p.add_argument(
        "--tasks",
        default="",
        metavar="FILE",
        help="tasks as JSON lines, or the published file of CRUXEval"
    )
    args = p.parse_args(argv)
    setup, slots = load(args)
    with open_sandbox(setup.base.prompt_format) as sandbox:
        setup = replace(setup, sandbox=sandbox)
        items = items_of(setup, args)
        tasks = args.tasks and crc32(Path(args.tasks).read_bytes())
        out = open_results(args, f"heldout-{args.split}", setup, slots, split=args.split, tasks=tasks)
        conclude(out, answer_all(args, out, setup, slots, items, functools.partial(judge, setup)))


if __name__ == "__main__":
    leave("eval.heldout", main)
