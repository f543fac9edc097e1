"""Word problems: a teacher writes a question and a program that computes the answer, a student a number.

The answer is a plain number, so it is read here and nothing of a student's has to run. Two tasks whose programs have one
structure are duplicates, whatever their constants.
"""
import re
from dataclasses import replace
from fractions import Fraction

from common import refuse_unless
from sandbox.values import decode
from tasks.base import Proposal, Task, TaskType, first_program, text_of
from tasks.programs import Limits, normalise
from tasks.prompts import MATH_TOPICS, Answer
from verifier import Verdict

MAX_CHARS = 400             # of an answer
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
# 42, -3.5, $1,250.00, 3/4, 20%, 27 figs; what leads to it ("x = ", "Total:") is cut off before
ANSWER = re.compile(rf"(-?)\s*[$€£]?\s*({NUMBER})(?:\s*/\s*({NUMBER}))?\s*(%?)\s*[A-Za-z ]*\.?")


def rational(text: str) -> set[Fraction]:
    """The one number that an answer states in its last line, exactly: {x}; for a percentage {x, x/100}; else the empty
    set. An expression, a choice, a bound and a number in words are malformed."""
    lines = text[:MAX_CHARS].strip().splitlines() or [""]
    stated = re.split(r"[=:]", lines[-1])[-1].strip(" \t*`'\"$")
    m = ANSWER.fullmatch(stated)
    if not m or m[3] and not float(m[3].replace(",", "")):
        return set()
    value = Fraction(m[2].replace(",", "")) / Fraction((m[3] or "1").replace(",", ""))
    value = -value if m[1] else value
    return {value, value / 100} if m[4] else {value}


def exact(value: object) -> Fraction | None:
    """The rational of an int or of a float that is a short decimal; else None."""
    if type(value) is int or type(value) is float and len(repr(value)) <= 13 and "e" not in repr(value):
        return Fraction(repr(value))
    return None


class Math(TaskType):
    """A question in words and a program that computes the answer; the student sees the question alone."""
    name = "math"
    tags = ("answer", "output", "boxed")
    topics = MATH_TOPICS
    seed = Proposal("math", "def f():\n    apples = 3\n    apples = apples + 4\n    return apples", ("",),
                    "Tom has 3 apples and gets 4 more. How many apples does he have now?")

    def from_row(self, row: dict) -> Proposal:
        """As `TaskType.from_row`; the question may stand under its name in a run's tasks.jsonl, message."""
        program = super().from_row(row | {"input": ""}).program
        return Proposal(self.name, program, ("",), text_of(row, "question" if "question" in row else "message"))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """The question and the program."""
        refuse_unless(written.admits("question", "python"), "syntax")
        _, body = written.blocks[first_program(written.blocks)]
        questions = [*written.bodies("question"), ""]
        program = normalise(body, limits.source_chars, written.form.tidy)
        return Proposal(self.name, program, ("",), questions[0].strip())

    def demands(self, proposal: Proposal, limits: Limits) -> None:
        """As `TaskType.demands`, and a question. A program without parameters may well be constant."""
        refuse_unless(proposal.message, "no_question")
        super().demands(proposal, replace(limits, reject_constant=False))

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """The task, if its gold is a number that a student can state exactly."""
        task = super().make(proposal, verdict, limits, key)
        refuse_unless(exact(decode(task.outputs[0])) is not None, "not_a_number")
        return task

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The text that states the number."""
        return block if rational(block) else ""

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer states the gold number."""
        return exact(decode(task.outputs[0])) in rational(answer)
