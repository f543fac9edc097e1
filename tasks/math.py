"""Word problems: a teacher writes a question and a program that computes the answer, a student a number.

The answer is a plain number, so nothing of a student's has to run. Two tasks whose programs have one
structure are duplicates, whatever their constants. A question has to say something: every number of the
program stands in it, and the gold does not (echo)."""
import ast
import re
from dataclasses import replace
from fractions import Fraction

from common import Refused, refuse_unless
from sandbox.values import decode
from tasks.base import Proposal, Task, TaskType, first_program, text_of
from tasks.programs import Limits, normalise, tree_of
from tasks.prompts import MATH_TOPICS, Answer
from verifier import Verdict

MAX_CHARS = 400             # in an answer
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
ANSWER = re.compile(rf"([-+]?)\s*[$€£]?\s*({NUMBER})(?:\s*/\s*({NUMBER}))?")
# A program may use these without a word in the question: of a half, a double, a mean, a counter.
FREE = {Fraction(0), Fraction(1), Fraction(2)}
SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
         "sixteen seventeen eighteen nineteen twenty").split()
# Numbers that other words say, of which the plural is known, too.
SAID = """30 thirty, 40 forty, 50 fifty, 60 sixty, 70 seventy, 80 eighty, 90 ninety, 100 hundred, 1000
thousand, 1000000 million, 12 dozen, 2 half, 3 third, 3 triple, 4 quarter, 5 fifth, 100 percent, 100 %,
100 cent, 10 decade, 100 century, 60 minute, 60 hour, 3600 hour, 24 day, 7 week, 14 fortnight, 30 month,
12 month, 12 year, 52 year, 365 year, 1000 kg, 1000 kilogram, 1000 km, 1000 kilometer, 1000 kilometre, 100
m, 100 meter, 100 metre, 1000 litre, 1000 liter"""
WORDS = {word: [n] for n, word in enumerate(SMALL)}
for entry in SAID.split(","):
    number, word = entry.split()
    WORDS.setdefault(word, []).append(int(number))


def rational(text: str) -> Fraction:
    """Returns the number that an answer is, exactly: digits, perhaps with a sign, a currency before it,
    commas between thousands, decimals or a denominator (-3.5, $1,250, 3/4). Raises Refused for anything
    else."""
    stated = len(text) <= MAX_CHARS and ANSWER.fullmatch(text.strip().strip("*`$"))
    refuse_unless(stated, "not_a_number")
    sign, above, below = stated.groups()
    denominator = fraction(below or "1")
    refuse_unless(denominator, "not_a_number")
    value = fraction(above) / denominator
    return -value if sign == "-" else value


def fraction(number: str) -> Fraction:
    """Returns the value of a NUMBER."""
    return Fraction(number.replace(",", ""))


def exact(value: object) -> Fraction | None:
    """Returns the rational of an int or of a float that is a short decimal; else None."""
    if type(value) is int or type(value) is float and len(repr(value)) <= 13 and "e" not in repr(value):
        return Fraction(repr(value))
    return None


def told(question: str) -> set[Fraction]:
    """Returns the numbers that a question states, in digits or in words (a dozen, twenty-five, an hour)."""
    numbers = set()
    before = []                 # what the word before says
    for word in re.findall(rf"{NUMBER}|[a-z]+|%", question.lower()):
        if word[-1].isdigit():
            said = [fraction(word)]
        else:
            said = WORDS.get(word) or WORDS.get(word.removesuffix("s"), [])
        for one in said:
            numbers.add(Fraction(one))
            for other in before:
                if one < 10:            # twenty-five
                    numbers.add(Fraction(other + one))
                else:                   # three hundred, 20%
                    numbers |= {Fraction(other * one), Fraction(other) / one}
        before = said
    return numbers


def used(program: str) -> set[Fraction]:
    """Returns the numbers that stand in a program."""
    numbers = set()
    for node in ast.walk(tree_of(program)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            try:
                numbers.add(Fraction(str(node.value)))
            except ValueError:          # infinite, or of more digits than Python prints
                raise Refused("not_told") from None
    return numbers


def is_told(number: Fraction, stated: set[Fraction]) -> bool:
    """Returns whether a program may use a number where a question states these."""
    if number in FREE or number in stated or 1 / number in stated:
        return True
    return number.denominator > 1 and abs(1 - number) in stated         # 20% off is .8


class Math(TaskType):
    """Asks a question in words. The teacher also writes the program that computes the answer."""
    name = "math"
    tags = ("answer", "boxed")
    topics = MATH_TOPICS
    seed = Proposal("math", "def f():\n    apples = 3\n    apples = apples + 4\n    return apples", ("",),
                    "Tom has 3 apples and gets 4 more. How many apples does he have now?")

    def from_row(self, row: dict) -> Proposal:
        """Does what `TaskType.from_row` does. A run's tasks.jsonl has the question as its message."""
        program = super().from_row(row | {"input": ""}).program
        name = "question" if "question" in row else "message"
        return Proposal(self.name, program, ("",), text_of(row, name))

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """Returns the question and the program."""
        refuse_unless(written.admits("question", "python"), "syntax")
        _, body = written.blocks[first_program(written.blocks)]
        questions = [*written.bodies("question"), ""]
        program = normalise(body, limits.source_chars, written.form.tidy)
        return Proposal(self.name, program, ("",), questions[0].strip())

    def check(self, proposal: Proposal, limits: Limits) -> None:
        """Does what `TaskType.check` does, and refuses a question that does not state the program's numbers.
        The program has no parameters, so it may be constant."""
        refuse_unless(proposal.message, "no_question")
        super().check(proposal, replace(limits, dull=limits.dull - {"ignores_input"}))
        if "not_told" in limits.dull:
            stated, needed = told(proposal.message), used(proposal.program)
            refuse_unless(needed & stated, "not_told")
            for number in needed:
                refuse_unless(is_told(number, stated), "not_told")

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """Returns the task, if its gold is a number that a student can state exactly."""
        task = super().make(proposal, verdict, limits, key)
        refuse_unless(exact(decode(task.outputs[0])) is not None, "not_a_number")
        return task

    def copies(self, task: Task) -> list[str]:
        """Returns the numbers that stand in the question in digits, or as one word up to twenty."""
        numbers = []
        for word in re.findall(rf"{NUMBER}|[a-z]+", task.message.lower()):
            if word in SMALL:
                numbers.append(str(SMALL.index(word)))
            elif word[-1].isdigit():
                numbers.append(word)
        return numbers

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """Returns the text that is the number."""
        rational(block)
        return block

    def grade(self, task: Task, answer: str, ran: Verdict, limits: Limits) -> str:
        """Returns "correct" if an answer is the gold number."""
        if rational(answer) == exact(decode(task.outputs[0])):
            return "correct"
        return "wrong"
