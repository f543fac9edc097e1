"""Mathematics: AIME24, AIME25, AMC23, MATH-500, Minerva, GSM8K, OlympiadBench, as Absolute Zero is measured.

    python -m eval.math --self-test --data DIR    # is every gold answer right by its grader? JSON line last
    python -m eval.math --run out/NAME            # base and members of the last checkpoint, all sets fetched
    python -m eval.math --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench math500,aime24 \\
        --samples 4 --temperature 0.6

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes
on where it stopped.
"""
import functools
import json
import sys

from eval import answering, common
from eval.fetch import CACHE, at_hand
from eval.math.data import SETS, Item, load
from eval.math.grading import extract, grade, readings
from eval.math.symbolic import WORKER


def present(data: str | None) -> list[str]:
    """The sets that --data or the cache holds. Raises ValueError where there is none."""
    found = at_hand(data)
    sets = [name for name in SETS if name in found]
    if not sets:
        raise ValueError(f"none of {', '.join(SETS)} is in {data or CACHE}: run python -m eval.fetch, or say "
                         "with --data where they are")
    return sets


def self_test(sets: list[str], data: str | None) -> dict:
    """Per set: n questions, how many gold answers are right against themselves, how many are values."""
    result = {}
    for name in sets:
        items, _ = load(name, data)
        counts = dict(n=len(items), right=0, read=0)
        for item in items:
            found = right(extract(f"Therefore the answer is $\\boxed{{{item.gold}}}$."), item)
            counts["right"] += found
            counts["read"] += bool(readings(item.gold))
            if not found:
                print(f"{name} {item.id}: the gold answer {item.gold!r} is not right against itself",
                      file=sys.stderr)
        result[name] = counts
    return result


def question(item: Item) -> str:
    """The question as it is put, for an answer in a box."""
    return f"{item.question}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."


@functools.lru_cache(maxsize=1 << 16)
def right(answer: str, item: Item) -> bool:
    """Whether an extracted answer is right; members often agree, so verdicts are remembered."""
    return grade(answer, item.gold, item.relative, item.absolute)


def judge(answers: list[tuple[Item, str]]) -> list[dict]:
    """Verdicts for answers.jsonl: what was extracted, the gold answer, whether they are equal."""
    verdicts = []
    for item, text in answers:
        answer = extract(text)
        verdicts.append(dict(correct=right(answer, item), answer=answer, gold=item.gold))
    return verdicts


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.math", __doc__, default_max_new=2048)
    parser.add_argument("--self-test", action="store_true", help="grade the gold answers; needs no model")
    args = parser.parse_args(argv)
    common.check(args)
    sets = common.choose(args.bench, SETS) or present(args.data)
    if args.self_test:
        result = self_test(sets, args.data)
        print(json.dumps(result))
        return int(any(counts["right"] != counts["n"] for counts in result.values()))
    items, hashes = [], {}
    for name in sets:
        part, hashes[name] = load(name, args.data)
        items += part[:args.limit or None]
    population = common.load(args)
    prompt_format = answering.pick_prompt_format(args, population.base)
    run, done = common.open_out(args, population, prompt_format, hashes, "eval-math")
    rows = answering.answer_all(population, items, question, judge, args, run, done, prompt_format)
    if WORKER.n_late:
        print(f"note: {WORKER.n_late} answers took too long to compare and count as wrong", file=sys.stderr)
    common.conclude(args, run, rows, "eval-math")
    return 0


if __name__ == "__main__":
    common.command("eval.math", main)
