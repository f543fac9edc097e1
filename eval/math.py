"""Mathematics: AIME24, AIME25, AMC23, MATH-500, Minerva, GSM8K, OlympiadBench, as Absolute Zero is measured.

    python -m eval.math --self-test               # does the grader know right from wrong? JSON line last
    python -m eval.math --run out/NAME            # base and members of the last checkpoint, all sets
    python -m eval.math --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench math500,aime24 \\
        --samples 4 --temperature 0.6

Answers are graded by math-verify (pip install -r requirements-eval.txt). They go to answers.jsonl as they
come, the numbers to summary.json and the terminal. The same command goes on where it stopped.
"""
from contextlib import closing
from functools import partial

from eval import answering, common, fetch
from eval.fetch import Item, published
from eval.forms import forms
from eval.grader import Grader
from infra.errors import demand
from model import Base
from tasks.prompts import concluded

SETS = tuple("aime24 aime25 amc23 math500 minerva gsm8k olympiadbench".split())


def item_of(bench: str, number: int, row: fetch.Row) -> Item:
    """An item from the row of this number, from 0. Raises UserError for a row of another file. Gold is the
    answer (GSM8K: what follows "####"), OlympiadBench's list of one, or, where there is none, the solution,
    from whose box the grader takes it (Minerva)."""
    gold = first_of(row, "answer", "final_answer", "solution")
    if isinstance(gold, list):
        gold = "".join(map(str, gold[:1]))
    _, _, gold = str(gold).rpartition("####")
    gold = gold.strip()
    demand(gold not in ("", "None"), "no answer")
    name = first_of(row | dict(number=number), "unique_id", "id", "idx", "number")
    question = row.get("problem") or row["question"]
    return Item(bench, str(name), question, gold)


def first_of(row: dict, *names: str) -> object:
    """The first of these fields that a row has; None without any."""
    for name in names:
        if name in row:
            return row[name]
    return None


def ask(item: Item, prompt_format: str, base: Base) -> str:
    """The question, with the request for an answer in a box."""
    return f"{item.question}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."


def grade(
    grader: Grader,
    answers: list[tuple[Item, str]],
    prompt_format: str,
) -> list[dict]:
    """Verdicts on answers, with the gold ones."""
    rows = []
    for item, text in answers:
        verdict = grader.grade(concluded(text, prompt_format), item.gold)
        rows.append(verdict | dict(gold=item.gold))
    return rows


def tell_apart(
    grader: Grader,
    answers: list[tuple[Item, str]],
    prompt_format: str,
) -> list[dict]:
    """Whether the grader tells three right and two wrong ways to write each item's gold answer apart:
    correct, and the ones that it misjudged. The answers themselves are passed over."""
    rows = []
    for item, _ in answers:
        misjudged = []
        for formulas, is_right in zip(forms(item.gold), (True, False)):
            for formula in formulas:
                verdict = grader.grade(f"The answer is $\\boxed{{{formula}}}$.", item.gold)
                if verdict["correct"] is not is_right:
                    misjudged.append(verdict | dict(formula=formula))
        rows.append(dict(correct=not misjudged, gold=item.gold, misjudged=misjudged))
    return rows


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises UserError for what the user can mend."""
    parser = common.parser_of("eval.math", __doc__, default_max_new=2048)
    args = common.check(parser.parse_args(argv))
    items, hashes = fetch.load(args, SETS, item_of)
    with closing(Grader()) as grader:
        if args.self_test:
            apart = partial(tell_apart, grader)
            return answering.self_test(items, published, apart)
        judge = partial(grade, grader)
        answered = answering.evaluate(args, "eval-math", items, hashes, ask, judge)
    common.conclude(args, *answered)
    return 0


if __name__ == "__main__":
    common.command("eval.math", main)
