"""Asks for short answers: seven benchmarks of mathematics, graded by math-verify, and MMLU.

    pip install -r requirements-eval.txt                        # math-verify
    python -m eval.math --run out/NAME --data DIR               # the published files that lie in DIR
    python -m eval.math --base DIR --data DIR --bench math500,aime24 --samples 4 --temperature 0.6

math-verify is taken as it is, so that scores compare with those that others report. MMLU (2009.03300) is
asked with five examples of its subject, and the first letter that an answer writes counts; --limit takes
questions of all subjects.
"""
import csv
import io
import multiprocessing
import random
import re
import tarfile
from importlib.util import find_spec
from itertools import islice

from common import UserError, leave, readable
from eval.answer import (
    Item,
    answer_all,
    benchmarks,
    conclude,
    load,
    located,
    open_results,
    parser,
    published_rows,
    sums,
)
from tasks.prompts import THINK, Prompt, concluded

MATHEMATICS = ("aime24", "aime25", "amc23", "math500", "minerva", "gsm8k", "olympiadbench")
ASK = "{}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
CHOOSE = "The following is a multiple choice question about {}. Answer with the letter alone.\n\n{}"
LIMIT_S = 100.0                     # for one answer: some make sympy compute for hours
QUESTION = re.compile(r"(?:.*/)?(?P<split>dev|test)/(?P<subject>\w+)_(?P=split)\.csv")


# --- questions ----------------------------------------------------------------------------------------------

def item_of(bench: str, number: int, row: dict, prefix: str) -> Item:
    """Returns the question in a row of a published file. The gold is the answer (in GSM8K what follows
    "####"), in OlympiadBench a list of one, in Minerva the solution, in whose box it stands."""
    gold = row.get("answer", row.get("final_answer", row.get("solution")))
    if isinstance(gold, list):
        gold = gold[0]
    gold = str(gold).rpartition("####")[2].strip()
    question = row.get("problem") or row["question"]
    return Item(bench, str(number), Prompt(ASK.format(question), prefix), gold)


def choice(subject: str, row: list[str]) -> tuple[str, str]:
    """Returns what a row of MMLU asks, and the letter of the answer."""
    question, a, b, c, d, letter = row
    question = f"{question}\nA. {a}\nB. {b}\nC. {c}\nD. {d}"
    return CHOOSE.format(subject.replace("_", " "), question), letter.strip()


def mmlu(data: str, prefix: str) -> list[Item]:
    """Returns the questions of MMLU's test split, the subjects mixed, from the authors' archive."""
    asked = {}                          # split, subject -> what is asked, with the letter
    path = located(data, "mmlu.tar")
    with readable(f"{path} is damaged: fetch it again"), tarfile.open(path) as tar:
        for member in tar:
            match = QUESTION.fullmatch(member.name)
            if match:
                file = io.TextIOWrapper(tar.extractfile(member), "utf-8-sig", newline="")
                own = asked[match["split"], match["subject"]] = []
                for row in csv.reader(file):
                    own.append(choice(match["subject"], row))
    items = []
    for (split, subject), questions in sorted(asked.items()):
        shown = tuple(asked["dev", subject][:5])
        for number, (question, letter) in enumerate(questions):
            if split == "test":
                prompt = Prompt(question, prefix, turns=shown)
                items.append(Item("mmlu", f"{subject}/{number}", prompt, letter))
    random.Random(0).shuffle(items)
    return items


# --- verdicts -----------------------------------------------------------------------------------------------

def grade(text: str, gold: str) -> bool:
    """Returns whether math-verify takes an answer for the gold one."""
    from math_verify import parse, verify
    expected = parse(gold if "\\boxed" in gold else f"$\\boxed{{{gold}}}$", parsing_timeout=None)
    found = parse(text, parsing_timeout=None)
    return bool(verify(expected, found, timeout_seconds=None))


class Judge:
    """Grades in a process of its own. It is replaced if an answer takes too long, which counts as wrong."""

    def __init__(self, prompt_format: str):
        self.prompt_format = prompt_format
        self.pool = None

    def __call__(self, asked: list[tuple[Item, str]]) -> list[dict]:
        """Returns a row for each answer, with the gold one."""
        rows = []
        for item, text in asked:
            text = concluded(text, self.prompt_format)
            verdict = self.letter(item, text) if item.bench == "mmlu" else self.graded(item, text)
            rows.append(dict(verdict=verdict, gold=item.gold))
        return rows

    def letter(self, item: Item, text: str) -> str:
        """Returns the verdict on the first letter that an answer writes."""
        letter = re.search(r"\b[A-D]\b", text)
        if not letter:
            return "malformed"
        return "correct" if letter[0] == item.gold else "wrong"

    def graded(self, item: Item, text: str) -> str:
        """Returns math-verify's verdict; what it raises for a strange answer is no verdict, so the answer
        is wrong."""
        if self.pool is None:
            self.pool = multiprocessing.get_context("spawn").Pool(1)
            self.pool.apply(grade, ("$1$", "1"))        # imports what grading needs
        try:
            right = self.pool.apply_async(grade, (text, item.gold)).get(LIMIT_S)
        except multiprocessing.TimeoutError:
            self.close()
            right = False
        except Exception:
            right = False
        return "correct" if right else "wrong"

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self.pool:
            self.pool.terminate()
        self.pool = None


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser("math", __doc__, max_new_tokens=2048)
    p.add_argument("--data", required=True, metavar="DIR", help="the published files")
    args = p.parse_args(argv)
    chosen = benchmarks(args, (*MATHEMATICS, "mmlu"))
    if chosen != ["mmlu"] and not find_spec("math_verify"):
        raise UserError("math-verify, which grades mathematics, is missing: pip install -r "
                        "requirements-eval.txt")
    setup, slots = load(args)
    prefix = THINK if setup.base.prompt_format == "base" else ""
    items = []
    for bench in chosen:
        if bench == "mmlu":
            items += mmlu(args.data, prefix)[: args.limit]
            continue
        for number, row in enumerate(islice(published_rows(args.data, bench), args.limit)):
            items.append(item_of(bench, number, row, prefix))
    out = open_results(args, "math", setup, slots, **sums(args.data, chosen))
    judge = Judge(setup.base.prompt_format)
    rows = answer_all(args, out, setup, slots, items, judge)
    judge.close()
    conclude(out, rows)


if __name__ == "__main__":
    leave("eval.math", main)
