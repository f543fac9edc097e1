"""Word problems: a teacher writes a question and a program that computes the answer, a student a number. The
answer is a plain number, so it is read here and nothing of a student's has to run. Two tasks whose programs
have one structure are duplicates, whatever their constants."""
import re
import unicodedata
from dataclasses import replace
from fractions import Fraction

from sandbox.values import decode
from tasks.base import Proposal, TaskType, is_program
from tasks.complexity import demand, normalise
from tasks.prompts import MATH_TOPICS

MAX_CHARS = 400             # of an answer
MAX_DIGITS = 60             # of an answer
SHORT_DECIMAL = 12          # significant digits up to which a float is exact
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
WORDS = r"[A-Za-z\s.,:;'\"?/]*"        # beside the number: names, units, punctuation, but no arithmetic
FRACTION = rf"(?:(?P<whole>\d+)\s+)?(?P<top>{NUMBER})\s*/\s*(?P<bottom>{NUMBER})"
DECIMAL = rf"(?P<number>{NUMBER})(?:[eE](?P<exponent>[-+]?\d{{1,3}}))?"
ANSWER = re.compile(rf"(?:[A-Za-z\s]*=)?{WORDS}?(?P<sign>[-+]?)\s*(?:{FRACTION}|{DECIMAL})\s*"
                    rf"(?P<percent>%|percent\b)?{WORDS}", re.ASCII)
# LaTeX and typography become plain text, in this order
PLAIN = [(r"([²³])", r"^\1"), (r"(?<=\d)([¼-¾⅐-⅞])", r" \1"), (r"\\boxed\b", ""),
         (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2"), (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2"),
         (r"\\(?:text|mathrm|mathbf|textbf|mbox)\b", " "), (r"\{,\}", ","),
         (r"(?<=\d)(?:\\[,!;:]|\\ |\u202f|\u00a0)(?=\d{3})", ""), (r"\^\s*\{?\s*\\circ\s*\}?|°", " "),
         (r"\\([$% ])", r"\1"),
         (r"\s*(?:\\times|\\cdot|×|\*)\s*10\s*\^\s*\{?\s*([-+]?\d{1,3})\s*\}?", r"e\1"),
         (r"\\(?:left|right|quad|[,!;:()\[\]])|[$€£¥~*_`{}()]", " ")]
# what changes the number beside it
OTHER = re.compile(r"(?i)\b(?:pi|sqrt|minus|negative|half|twice|dozen|hundred|thousand|\w+illion)\b")
UNITS = "[kcdm]?m|ft|in|yd|mi|meters?|metres?|feet|inch|inches|yards?|miles?"
# minus signs, the fraction slash, and squares and cubes of units: 5 m^2, 5 m2
PLAIN_ASCII = [("[\u2212\u2013]", "-"), ("\u2044", "/"), (r"(?<=[A-Za-z])(?<!\d[eE])\s*\^\s*-?[23]\b", ""),
               (rf"(?<![A-Za-z])({UNITS})[23]\b(?![./]\d)", r"\1")]


def number(digits: str) -> Fraction:
    """The value of what NUMBER matches."""
    return Fraction("0" + digits.replace(",", "").rstrip("."))


def rational(text: str) -> set[Fraction]:
    """The one number that an answer states, exactly: {x}; for a percentage {x, x/100}; else the empty set.
    Tolerates units, currency, thousands commas, fractions, mixed numbers, percent, powers of ten and the
    LaTeX forms of all these; no expression ("2*3"), choice ("3 or 4"), root or "2 million"."""
    if len(text) > MAX_CHARS:
        return set()
    for pattern, by in PLAIN:
        text = re.sub(pattern, by, text)
    text = unicodedata.normalize("NFKC", text)
    for pattern, by in PLAIN_ASCII:
        text = re.sub(pattern, by, text)
    m = ANSWER.fullmatch(text.strip())
    if not m or sum(map(str.isdigit, text)) > MAX_DIGITS or OTHER.search(text):
        return set()
    if m["top"] and number(m["bottom"]) == 0:
        return set()
    if m["top"]:
        value = int(m["whole"] or 0) + number(m["top"]) / number(m["bottom"])
    else:
        value = number(m["number"]) * Fraction(10) ** int(m["exponent"] or 0)
    if m["sign"] == "-":
        value = -value
    return {value, value / 100} if m["percent"] else {value}


def exact(value) -> Fraction | None:
    """The rational of an int, of a float that is a short decimal, of a text such as "3/4"; else None."""
    if type(value) is int:
        return Fraction(value)
    if type(value) is float:
        digits = repr(value).partition("e")[0].strip("-0.").replace(".", "")
        return Fraction(repr(value)) if len(digits) <= SHORT_DECIMAL else None
    fraction = re.fullmatch(r"(-?\d{1,30})/(\d{1,30})", value) if type(value) is str else None
    return Fraction(int(fraction[1]), int(fraction[2])) if fraction and int(fraction[2]) else None


class Math(TaskType):
    """A question in words and a program that computes the answer; the student sees the question alone."""
    name = "math"
    tags = ("answer", "output")
    topics = MATH_TOPICS
    seed = Proposal("math", "def f():\n    apples = 3\n    apples = apples + 4\n    return apples", ("",),
                    "Tom has 3 apples and gets 4 more. How many apples does he have now?")

    def from_row(self, row):
        question = row["question"] if "question" in row else row["message"]
        return Proposal(self.name, super().from_row(row | {"input": ""}).program, ("",), str(question))

    def read(self, written, few_shot, limits):
        """The question and the program, whose function may be called solution."""
        questions = [body.strip() for body in written.bodies("question") if body.strip()]
        programs = [body for tag, body in written.blocks if is_program(tag, body)]
        demand(written.admits("question", "python"), "syntax")
        demand(programs, "no_program")
        program = normalise(programs[0], limits.source_chars, written.form.tidy, alias="solution")
        return Proposal(self.name, program, ("",), "".join(questions[:1]))

    def demands(self, proposal, limits):
        demand(proposal.message, "no_question")
        super().demands(proposal, replace(limits, reject_constant=False))

    def make(self, proposal, verdict, limits, key):
        task = super().make(proposal, verdict, limits, key)
        gold = decode(task.outputs[0])
        demand(exact(gold) is not None, "inexact" if isinstance(gold, float) else "not_a_number")
        return task

    def fields(self, prompt_format, task, limits):
        program = task.program.replace("def f(", "def solution(")
        return super().fields(prompt_format, task, limits) | {"program": program}

    def read_answer(self, written, task, limits):
        """The text that states the number, in a block, else the last \\boxed{...}."""
        block = super().read_answer(written, task, limits)
        if not block and not written.form.strict:
            boxed = re.findall(r"\\boxed\s*(\{(?:[^{}]|\{[^{}]*\})*\})", written.text)
            block = boxed[-1] if boxed else ""
        return block if rational(block) else ""

    def is_correct(self, task, answer):
        return exact(decode(task.outputs[0])) in rational(answer)
