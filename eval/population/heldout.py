"""Held-out tasks of the micro domain, by kind and size: programs that nobody was trained on.

    python -m eval.population.heldout --run out/NAME                      # base and members; 1,500 tasks
    python -m eval.population.heldout --run out/NAME --samples 16         # and pass@k, at temperature 1
    python -m eval.population.heldout --base micro/base --bench code_o,logic --limit 60 --split validation

Five families: output, input and program tasks (code_o, code_i, code_f) by statements, word problems (math) by
events, puzzles (logic) by variables, of programs that micro/programs.py keeps out of the base's training
text. A program's hash says whether it is of the validation or the test split. The smallest programs are too
few to be reserved: the table by size marks them, the sums leave them out. Questions, parsers and verifier are
those of self-play. The same command goes on where it stopped.

A sixth family, code_o_long, has output tasks of 7 to 10 statements, longer than any in the base's training.
It is asked where --bench names it or --samples asks for several answers, and is no part of "all". Several
answers give pass@k, the chance that one of k answers is right: training that only makes the base's good
answers likelier raises pass@1, and at large k the base catches up (Yue et al. 2025, arXiv 2504.13837).
"""
import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from config import PRESETS, config_of_run
from eval import answering, common
from eval.summary import comparable, summarise, table
from micro.evaluate import SIZES, draw_tasks
from run.checkpoint import RunDir
from run.platform import open_sandbox
from tasks import TASK_TYPES, verify_answers
from tasks.base import UNJUDGED, Task
from tasks.prompts import PROMPT_FORMATS, Prompt, reasoning
from tasks.validation import Limits
from verifier import Sandbox

# family -> row of micro.evaluate
ROWS = {"code_o": "out", "code_i": "inp", "code_f": "fun", "math": "math", "logic": "logic"}
LONG = "code_o_long"
FAMILIES = {family: (row, tuple(SIZES[row])) for family, row in ROWS.items()}       # family -> row, sizes
FAMILIES[LONG] = "out", (7, 8, 9, 10)
SPLITS = ("test", "validation")
SEED = 2605                         # of the draws
PER_SIZE = 60                       # tasks of one family and size
MICRO_MAX_NEW = 96                  # the micro base's longest traces; training cuts at 80
SEEN_SIZES = {"logic": 2}           # the size of which the base knows programs is 1, of puzzles 2


@dataclass(frozen=True)
class Item:
    """One held-out task; size counts statements, events or variables; seen: the base may know its program."""
    bench: str
    id: str
    size: int
    seen: bool
    task: Task


# ---- the tasks ---------------------------------------------------------------------------------------------

def split_of(task: Task) -> str:
    """The split of a task's program (of a word problem: its story), the same on every machine."""
    text = task.message or task.program
    return SPLITS[hashlib.blake2b(text.encode(), digest_size=1, person=b"split").digest()[0] % 2]


@functools.cache
def draw(family: str, split: str, per_size: int = PER_SIZE) -> tuple[Item, ...]:
    """Held-out tasks of a family in one split, the sizes in turn, no program twice in a size.

    Fewer per_size are the first ones of more.
    """
    columns = []
    row, sizes = FAMILIES[family]
    for size in sizes:
        column, known = [], set()
        seed = 0
        while len(column) < per_size:
            task, = draw_tasks(row, size, 1, f"{SEED}/{seed}")
            seed += 1
            text = task.message or task.program
            if split_of(task) == split and text not in known:
                known.add(text)
                seen = size == SEEN_SIZES.get(family, 1)
                column.append(Item(family, f"{size}/{len(column)}", size, seen, task))
        columns.append(column)
    return tuple(item for turn in zip(*columns) for item in turn)


def items_of(families: list[str], split: str, limit: int) -> list[Item]:
    """The first `limit` tasks (0 = all) of each family."""
    items = []
    for family in families:
        per_size = -(-limit // len(FAMILIES[family][1])) if limit else PER_SIZE
        items += draw(family, split, min(PER_SIZE, per_size))[:limit or None]
    return items


def hashes_of(families: list[str], split: str) -> dict[str, str]:
    """SHA-256 of the first task of each size, by family.

    It tells a change of split or generator, and lets a larger --limit go on from a smaller.
    """
    out = {}
    for family in families:
        tasks = [dataclasses.astuple(item.task) for item in draw(family, split, 1)]
        out[family] = hashlib.sha256(repr(tasks).encode()).hexdigest()
    return out


def kept_items(path: Path, families: list[str], split: str, limit: int) -> list[Item]:
    """items_of, written down beside the answers to them; the first line says how they were drawn."""
    items = items_of(families, split, limit)
    drawn = dict(split=split, limit=limit, seed=SEED, per_size=PER_SIZE)
    rows = [drawn, *map(dataclasses.asdict, items)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return items


def families_for(prompt_format: str) -> tuple[str, ...]:
    """Those of ROWS that a prompt format can ask: the word problems' template is the micro protocol's own."""
    return tuple(name for name in ROWS if prompt_format == "micro" or name != "math")


def n_proposed(run: str, items: list[Item]) -> int:
    """How many of the reserved programs the run's own teachers have proposed: students may have met them."""
    path = Path(run).expanduser() / "tasks.jsonl"
    if not run or not path.exists():
        return 0
    rows = map(json.loads, path.read_bytes().splitlines())
    programs = {row["program"] for row in rows if not row["reason"]}
    return sum(item.task.program in programs for item in items if not item.seen)


# ---- asking and judging ------------------------------------------------------------------------------------

def asking(prompt_format: str, limits: Limits | None = None) -> Callable[[Item], Prompt]:
    """The question of an item (anything with .task), as in training; limits: a run's, else the format's."""
    limits = limits or Limits.for_format(prompt_format)

    def ask(item: Item) -> Prompt:
        return TASK_TYPES[item.task.kind].solve(prompt_format, item.task, limits)
    return ask


def judging(sandbox: Sandbox, prompt_format: str, limits: Limits | None = None,
            noted: tuple[str, ...] = ()) -> Callable[[list], list[dict]]:
    """judge([(item, text)]) -> [dict(correct, verdict)], as in training; None: the sandbox failed.

    noted: fields of the items that go along.
    """
    limits = limits or Limits.for_format(prompt_format)
    ask = asking(prompt_format, limits)

    def judge(answers: list[tuple]) -> list[dict]:
        """A row for each (item, text): whether it is right, and by which verdict."""
        texts = [[ask(item).prefix + text] for item, text in answers]
        tasks = [item.task for item, _ in answers]
        verdicts = verify_answers(tasks, texts, prompt_format, limits, sandbox.run)
        out = []
        for [verdict], (item, _) in zip(verdicts, answers):
            more = {name: getattr(item, name) for name in noted}
            correct = None if verdict == UNJUDGED else verdict == "correct"
            out.append(dict(correct=correct, verdict=verdict, **more))
        return out
    return judge


def judge_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of what asks and judges tasks."""
    parser.add_argument("--prompt-format", default="", choices=("", *PROMPT_FORMATS),
                        help="how the model is talked to; default: as the run was, else as the base wants")
    parser.add_argument("--workers", type=int, default=2, help="sandbox processes")
    parser.add_argument("--weak-sandbox", action="store_true",
                        help="weaker walls where the system has no seccomp (dangerous)")


def run_config(run: str) -> dict:
    """A run's config.json, {} without a run. Raises ValueError where the folder is no run, or where its flags
    have former names: what they say would be lost."""
    if not run:
        return {}
    path = Path(run).expanduser()
    if not (path / "config.json").exists():
        raise ValueError(f"--run {run}: no run there (no config.json); give a run's directory, out/NAME")
    config = RunDir(path, writes=False).config()
    if "prompt_format" not in config:
        config_of_run(config, path)                 # raises, with the sentence that training and replay say
    return config


def formatted(args: argparse.Namespace, population: common.Population) -> common.Population:
    """The population, talked to as --prompt-format or the run say; sets --max-new and --max-rows if they
    are not given."""
    base = population.base
    prompt_format = args.prompt_format or run_config(args.run).get("prompt_format", base.prompt_format)
    preset = PRESETS[prompt_format]
    args.max_new = args.max_new or (MICRO_MAX_NEW if prompt_format == "micro" else preset["max_new_tokens"])
    args.max_rows = args.max_rows or preset["rollout_batch"]
    return dataclasses.replace(population, base=dataclasses.replace(base, prompt_format=prompt_format))


# ---- the table by size -------------------------------------------------------------------------------------

def cells_of(rows: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """(family, size) -> its rows, in the order of FAMILIES."""
    cells = {}
    for row in rows:
        cells.setdefault((row["bench"], row["size"]), []).append(row)
    order = list(FAMILIES)
    return dict(sorted(cells.items(), key=lambda cell: (order.index(cell[0][0]), cell[0][1])))


def by_size(rows: list[dict], max_new: int) -> list[dict]:
    """The last line of `summarise` (students' mean, or whoever stands for it) of every family and size.

    * marks sizes of which the base may know the programs.
    """
    out = []
    for (bench, size), cell in cells_of(rows).items():
        seen = cell[0]["seen"]
        line = summarise(cell, max_new)[-1]
        out.append(line | dict(bench=f"{bench} {size}{'*' if seen else ''}", size=size, seen=seen))
    return out


def counted(rows: list[dict]) -> list[dict]:
    """The answers that the sums count: to programs that the base does not know, by family, and together under
    "all" (without code_o_long, which not every evaluation asks)."""
    fresh = [row for row in rows if not row["seen"]]
    summed = [row for row in fresh if row["bench"] in ROWS]
    return fresh + [row | dict(bench="all", id=f"{row['bench']}/{row['id']}") for row in summed]


# ---- answers that think ------------------------------------------------------------------------------------

def note_thinking(rows: list[dict], items: list[Item], prompt_format: str) -> None:
    """Writes into every row whether its answer thinks, read from its text: answers on disk need not say it.

    Not in the direct format, in which nobody can: the block of the answer is opened for the student.
    """
    if prompt_format == "direct":
        return
    ask = asking(prompt_format)
    opening = {(item.bench, item.id): ask(item).prefix for item in items}
    for row in rows:
        row["think"] = bool(reasoning(opening[row["bench"], row["id"]] + row["text"], prompt_format))


def command_line(argv: list[str] | None) -> argparse.Namespace:
    """The flags, checked as far as can be without the base. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.population.heldout", __doc__, None,
                              without=("data", "prompt", "temperature"))
    parser.add_argument("--temperature", type=float, default=None,
                        help="0 = greedy; default: 0 with one sample, 1 (as in training) with several")
    judge_flags(parser)
    parser.add_argument("--split", default="test", choices=SPLITS,
                        help="choose members on validation, claim on test")
    parser.set_defaults(max_rows=None)
    args = parser.parse_args(argv)
    if args.temperature is None:
        args.temperature = 1.0 if args.samples > 1 else 0.0
        if args.samples > 1:
            print(f"temperature 1, as in training: {args.samples} answers to a task must differ")
    common.check(args)
    run_config(args.run)
    return args


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    args = command_line(argv)
    wanted = common.choose(args.bench, tuple(FAMILIES))
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_sandbox(args.workers, args.weak_sandbox))
        population = formatted(args, common.load(args))
        prompt_format = population.base.prompt_format
        if beyond := set(wanted) - {*families_for(prompt_format), LONG}:
            raise ValueError(f"--bench {','.join(beyond)}: its template is that of the micro prompt format, "
                             f"and this base speaks the {prompt_format} format")
        families = wanted or [*families_for(prompt_format), *([LONG] if args.samples > 1 else [])]
        default = "eval-heldout" if args.split == "test" else "eval-heldout-validation"
        default += f"-t{args.temperature:g}" if args.temperature else ""       # greedy answers are other ones
        hashes = hashes_of(families, args.split)
        out, done = common.open_out(args, population, f"task {prompt_format}", hashes, default)
        items = kept_items(out.path / "items.jsonl", families, args.split, args.limit)
        if all(item.seen for item in items):
            raise ValueError(f"--limit {args.limit}: the base may know the only task of each family, and no "
                             "sum counts such tasks; give 2 or more")
        judge = judging(sandbox, prompt_format, noted=("size", "seen"))
        ask = asking(prompt_format)
        rows = answering.answer_all(population, items, ask, judge, args, out, done, prompt_format)
    rows = comparable(rows)
    note_thinking(rows, items, prompt_format)
    sizes = by_size(rows, args.max_new)
    n_met = n_proposed(args.run, items)
    print(f"{table(sizes)}\n* programs that the base may know: not in the sums below\n")
    common.conclude(args, out, rows, counted, split=args.split, limit=args.limit, sizes=sizes,
                    proposed_by_the_run=n_met)
    if n_met:
        print(f"note: {n_met} of the programs in these sums were also proposed by this run's own teachers",
              file=sys.stderr)
    return 0


if __name__ == "__main__":
    common.command("eval.population.heldout", main)
