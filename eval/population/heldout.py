"""Held-out tasks of the micro domain, by kind and size: programs that nobody was trained on.

    python -m eval.population.heldout --run out/NAME                      # base and members; 1,500 tasks
    python -m eval.population.heldout --run out/NAME --samples 16         # and pass@k, at temperature 1
    python -m eval.population.heldout --base micro/base --bench code_o,logic --limit 60 --split validation

Five families: output, input and program tasks (code_o, code_i, code_f) by statements, word problems (math) by
events, puzzles (logic) by variables, of programs that micro/programs.py keeps out of the base's training
text. A program's hash says whether it is of the validation or the test split. The smallest programs are too
few to be reserved: they are asked and not counted. A sixth family, code_o_long, has longer programs than any
in the base's training and is asked where --bench names it. Questions, parsers and verifier are self-play's.
"""
import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from config import PRESETS
from eval import answering, common
from infra.errors import demand
from micro.evaluate import MAX_NEW_TOKENS, ROWS, SEEN, SIZES, draw_tasks
from run.directory import RunDir
from tasks import TASK_TYPES, verify_answers
from tasks.base import SPLITS, UNJUDGED, Task, split_of
from tasks.prompts import FORMATS, Prompt
from tasks.validation import Limits
from verifier import Sandbox, open_sandbox

# -> row of micro.evaluate, sizes
FAMILIES = {family: (row, SIZES[row]) for row, family in ROWS.items()}
FAMILIES["code_o_long"] = "out", range(7, 11)
SEED = 2605                         # of the draws
PER_SIZE = 60                       # tasks of one family and size


@dataclass(frozen=True)
class Item:
    """A task to ask; the id of a held-out task is size/number, in statements, events or variables."""
    bench: str
    id: str
    task: Task


def is_seen(bench: str, id: str) -> bool:
    """Whether the base may know the program of a task."""
    return int(id.partition("/")[0]) == SEEN.get(bench, 1)


@functools.cache
def draw(family: str, split: str, per_size: int) -> tuple[Item, ...]:
    """Held-out tasks of a family in one split, the sizes in turn, no program twice in a size. Fewer per_size
    are the first ones of more."""
    row, sizes = FAMILIES[family]
    columns = []
    for size in sizes:
        column = {}                                     # text -> its item
        for number in itertools.count():
            if len(column) == per_size:
                break
            task, = draw_tasks(row, size, 1, f"{SEED}/{number}")
            text = task.message or task.program
            if split_of(text) == split:
                column.setdefault(text, Item(family, f"{size}/{len(column)}", task))
        columns.append(column.values())
    return tuple(itertools.chain(*zip(*columns)))


def items_of(families: list[str], split: str, limit: int) -> list[Item]:
    """The first `limit` tasks (0 = all) of each family."""
    items = []
    for family in families:
        n_sizes = len(FAMILIES[family][1])
        per_size = min(PER_SIZE, math.ceil(limit / n_sizes)) or PER_SIZE
        items += draw(family, split, per_size)[:limit or None]
    return items


def examiner(
    sandbox: Sandbox,
    prompt_format: str,
    limits: Limits | None = None,       # a run's; None: the format's
) -> tuple[Callable, Callable]:
    """ask(item) -> Prompt and verify([(item, text)]) -> [row of answers.jsonl], as in training. A row's
    correct is None where the sandbox failed."""
    limits = limits or Limits.for_format(prompt_format)

    def ask(item: Item) -> Prompt:
        return TASK_TYPES[item.task.kind].solve(prompt_format, item.task, limits)

    def verify(answers: list[tuple[Item, str]]) -> list[dict]:
        tasks = [item.task for item, _ in answers]
        texts = [[text] for _, text in answers]
        rows = []
        for verdict, in verify_answers(tasks, texts, prompt_format, limits, sandbox.run):
            correct = verdict == "correct"
            if verdict == UNJUDGED:
                correct = None
            rows.append(dict(correct=correct, verdict=verdict))
        return rows

    return ask, verify


def ask_all(
    args: argparse.Namespace,
    population: common.Population,
    sandbox: Sandbox,
    items: list[Item],
    hashes: dict[str, str],             # of what is asked: another one is another evaluation
    name: str,                          # of the directory of results, where --out gives none
) -> tuple[RunDir, list[dict]]:
    """That directory, and everybody's answers to tasks, asked and judged as in training."""
    prompt_format = population.base.prompt_format
    out, done = common.open_out(args, population, f"task {prompt_format}", hashes, name)
    lines = map(json.dumps, map(dataclasses.asdict, items))
    (out.path / "items.jsonl").write_text("\n".join(lines))
    exam = answering.Exam(items, *examiner(sandbox, prompt_format), prompt_format)
    return out, answering.answer_all(population, exam, args, out, done)


def verifier_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of what asks and verifies tasks."""
    parser.add_argument("--prompt-format", default="", choices=("", *FORMATS),
                        help="how the model is talked to; default: as the run was, else as the base wants")
    parser.add_argument("--workers", type=int, default=2, help="sandbox processes")
    parser.set_defaults(max_rows=None)


def loaded(args: argparse.Namespace) -> common.Population:
    """As common.load, with --prompt-format or the run's; sets args.max_new and .max_rows."""
    population = common.load(args)
    base = population.base
    prompt_format = args.prompt_format or common.of_run(args, "prompt_format") or base.prompt_format
    preset = PRESETS[prompt_format]
    longest = preset["max_new_tokens"]
    if prompt_format == "micro":
        longest = MAX_NEW_TOKENS
    args.max_new = args.max_new or longest
    args.max_rows = args.max_rows or preset["rollout_batch"]
    population.base = dataclasses.replace(base, prompt_format=prompt_format)
    return population


def counted(rows: list[dict]) -> list[dict]:
    """The answers to programs that the base does not know, by family, and together as "all"."""
    fresh = [row for row in rows if not is_seen(row["bench"], row["id"])]
    together = [row | dict(bench="all", id=f"{row['bench']}/{row['id']}") for row in fresh]
    return fresh + together


def parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = common.parser_of("eval.population.heldout", __doc__, None,
                              without=("data", "prompt", "temperature", "self-test"))
    parser.add_argument("--temperature", type=float, default=None,
                        help="0 = greedy; default: 0 with one sample, 1 (as in training) with several")
    verifier_flags(parser)
    parser.add_argument("--split", default="test", choices=SPLITS,
                        help="choose members on validation, claim on test")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises UserError for what the user can mend."""
    args = parser().parse_args(argv)
    if args.temperature is None:
        args.temperature = float(args.samples > 1)
    common.check(args)
    default = "eval-heldout"
    if args.split != "test":
        default += f"-{args.split}"
    if args.temperature:
        default += f"-t{args.temperature:g}"
    population = loaded(args)
    prompt_format = population.base.prompt_format
    is_micro = prompt_format == "micro"
    families = common.choose(args.bench, tuple(FAMILIES))
    demand(is_micro or "math" not in families, "--bench math: its questions are written in the micro prompt "
           f"format, and this base speaks the {prompt_format} format")
    families = families or [name for name in ROWS.values() if is_micro or name != "math"]
    with open_sandbox("auto", prompt_format, args.workers) as sandbox:
        items = items_of(families, args.split, args.limit)
        hashes = {}
        for name in families:           # of the first tasks: a larger --limit can go on from a smaller
            first = draw(name, args.split, 1)
            hashes[name] = hashlib.sha256(repr(first).encode()).hexdigest()
        out, rows = ask_all(args, population, sandbox, items, hashes, default)
    common.conclude(args, out, rows, counted, split=args.split, limit=args.limit)
    return 0


if __name__ == "__main__":
    common.command("eval.population.heldout", main)
