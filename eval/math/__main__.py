"""Mathematics: AIME24, AIME25, AMC23, MATH-500, Minerva, GSM8K and OlympiadBench, as Absolute Zero Reasoner is measured.

    python -m eval.math --self-test --data DIR             # is every gold answer right by its own grader? JSON line last
    python -m eval.math --run out/NAME                     # base and all members of the last checkpoint, all sets fetched
    python -m eval.math --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench math500,aime24 --samples 4 \\
        --temperature 0.6

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes on where it stopped.
"""
import functools
import json
import sys

from eval import common
from eval.fetch import CACHE, at_hand
from eval.math.data import SETS, Item, load
from eval.math.grading import extract, grade, readings
from eval.math.symbolic import WORKER

INSTRUCTION = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def present(data: str | None) -> list[str]:
    """The sets that --data or the cache holds. Raises ValueError where there is none."""
    found = at_hand(data)
    if not (sets := [name for name in SETS if name in found]):
        raise ValueError(f"none of {', '.join(SETS)} is in {data or CACHE}: run python -m eval.fetch, or say with --data where "
                         "they are")
    return sets


def self_test(sets: list[str], data: str | None) -> dict:
    """Per set: n questions, how many gold answers are right against themselves when boxed in a sentence, and how many of them are
    read as values (the rest is compared as written)."""
    result = {}
    for name in sets:
        items, _ = load(name, data)
        boxed = lambda gold: f"Therefore the answer is $\\boxed{{{gold}}}$."
        right = [grade(extract(boxed(item.gold)), item.gold, item.relative, item.absolute) for item in items]
        result[name] = dict(n=len(items), right=sum(right), read=sum(bool(readings(item.gold)) for item in items))
        for item, ok in zip(items, right):
            if not ok:
                print(f"{name} {item.id}: the gold answer {item.gold!r} is not right against itself", file=sys.stderr)
    return result


@functools.lru_cache(maxsize=1 << 16)
def right(answer: str, item: Item) -> bool:
    """Whether an extracted answer is right; members often agree, so verdicts are remembered."""
    return grade(answer, item.gold, item.relative, item.absolute)


def judge(answers: list[tuple[Item, str]]) -> list[dict]:
    """Verdicts for answers.jsonl: what was extracted, the gold answer, whether they are equal."""
    stated = [extract(text) for _, text in answers]
    return [dict(correct=right(answer, item), answer=answer, gold=item.gold) for answer, (item, _) in zip(stated, answers)]


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.math", __doc__, default_max_new=2048)
    parser.add_argument("--self-test", action="store_true", help="grade the gold answers against themselves; needs no model")
    args = parser.parse_args(argv)
    common.check(args)
    sets = common.choose(args.bench, SETS) or present(args.data)
    if args.self_test:
        result = self_test(sets, args.data)
        print(json.dumps(result))
        return 0 if all(counts["right"] == counts["n"] for counts in result.values()) else 1
    loaded = {name: load(name, args.data) for name in sets}
    items = [item for part, _ in loaded.values() for item in part[:args.limit or None]]
    population = common.load(args)
    style = common.prompt_style(args, population.base)
    run, done = common.open_out(args, population, style, {name: sha for name, (_, sha) in loaded.items()}, "eval-math")
    rows = common.answer_all(population, items, lambda item: item.question + INSTRUCTION, judge, args, run, done, style)
    if WORKER.n_late:
        print(f"note: {WORKER.n_late} answers took too long to compare and count as wrong", file=sys.stderr)
    common.conclude(args, run, rows, "eval-math")
    return 0


if __name__ == "__main__":
    common.command("eval.math", main)
