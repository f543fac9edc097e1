"""Mathematics: GSM8K, MATH-500, AIME24, graded by math-verify (pip install -r requirements-eval.txt).

    python -m eval.math --run out/NAME --data DIR --bench gsm8k,math500

DIR holds the published files as JSON lines (.gz): gsm8k, math500, aime24. Other benchmarks: docs/evaluation.md has the
commands of EleutherAI's harness, which takes a member by peft=.
"""
import gzip
import json
import multiprocessing
from pathlib import Path

from common import demand, leave
from eval.answer import Item, answer_all, conclude, load, parser
from tasks.prompts import Prompt, concluded

SETS = ("gsm8k", "math500", "aime24")
ASK = "{}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
LIMIT_S = 10.0                      # of one answer: some make sympy compute for hours


def items_of(bench: str, path: Path, limit: int | None) -> list[Item]:
    """The first questions of a published file."""
    found = [file for file in (path / f"{bench}.jsonl", path / f"{bench}.jsonl.gz") if file.exists()]
    demand(found, f"--data {path} has no {bench}.jsonl")
    with (gzip.open if found[0].suffix == ".gz" else open)(found[0], "rt", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f][:limit]
    items = []
    for number, row in enumerate(rows):
        gold = str(row["answer"]).rpartition("####")[2].strip()
        items.append(Item(bench, str(number), Prompt(ASK.format(row.get("problem") or row["question"])), gold))
    return items


def grade(asked: tuple[str, str]) -> bool:
    """Whether an answer states the gold one."""
    from math_verify import parse, verify
    text, gold = asked
    expected = parse(f"$\\boxed{{{gold}}}$", parsing_timeout=None)
    return bool(verify(expected, parse(text, parsing_timeout=None), timeout_seconds=None))


class Grader:
    """A process that grades; it is replaced after an answer that it does not survive, which counts as wrong."""
    pool = None

    def __call__(self, asked: list[tuple[Item, str]]) -> list[dict]:
        rows = []
        for item, text in asked:
            self.pool = self.pool or multiprocessing.get_context("spawn").Pool(1)
            try:
                correct = self.pool.apply_async(grade, [(concluded(text, "chat"), item.gold)]).get(LIMIT_S)
            except Exception as error:                  # math-verify and sympy raise what they like
                correct = False
                if isinstance(error, multiprocessing.TimeoutError):
                    self.pool.terminate()
                    self.pool = None
            rows.append(dict(correct=correct, gold=item.gold))
        return rows


def main() -> None:
    """The command line."""
    p = parser("math", __doc__)
    p.add_argument("--data", type=Path, required=True, metavar="DIR")
    args = p.parse_args()
    population = load(args)
    items = []
    for bench in args.bench.split(",") if args.bench else SETS:
        items += items_of(bench, args.data, args.limit)
    conclude(*answer_all(args, population, items, "math", Grader()))


if __name__ == "__main__":
    leave("eval.math", main)
