"""Word problems: a teacher writes a question and a program that computes the answer, a student a number.

The answer is a plain number, so it is read here and nothing of a student's has to run. Two tasks whose
programs have one structure are duplicates, whatever their constants.
"""
import re
import unicodedata
from dataclasses import replace
from fractions import Fraction

from common import Refused, refuse_unless
from sandbox.values import decode
from tasks.base import Proposal, Task, TaskType, first_program, text_of
from tasks.complexity import normalise
from tasks.prompts import MATH_TOPICS, Answer
from tasks.validation import Limits
from verifier import Verdict

MAX_CHARS = 400             # of an answer
MAX_DIGITS = 60             # of the part that states the number
SHORT_DECIMAL = 12          # significant digits up to which a float is exact

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
FRACTION = rf"(?:(?P<whole>\d+)\s+)?(?P<top>{NUMBER})\s*/\s*(?P<bottom>{NUMBER})"
DECIMAL = rf"(?P<number>{NUMBER}|\d{{1,3}}(?:\ \d{{3}})+)(?:[eE](?P<exponent>[-+]?\d{{1,3}}))?"
SCALES = {"k": 10**3, "thousand": 10**3, "m": 10**6, "million": 10**6, "b": 10**9, "billion": 10**9}
ANSWER = re.compile(rf"""(?x)
    (?:(?:US|USD|EUR|GBP|INR|Rs\.?)\s*)?(?P<sign>[-+]?)\s*      # signs of currency are gone by now
    (?:{FRACTION}|{DECIMAL})
    (?P<scale>[kKMB](?![A-Za-z])|\s*(?i:thousand|million|billion)\b)?    # 3M and 3 m differ
    \s*(?P<percent>%|(?:percent|per\s?cent)(?![A-Za-z]))?
    (?P<unit>(?:[A-Za-z\s.,/']|(?<=[A-Za-z])-(?=[A-Za-z]))*)[;:?]?\s*""", re.ASCII)
VERBS = "is|are|was|were|be|has|have|had|equals|takes|costs|needs|gets|makes|earns|pays"
LABEL = re.compile(rf"^(?!.*n['’]t\b)\D*(?::|\b(?:{VERBS})\b)")   # what leads to the number: "Total cost:"
RATIO = re.compile(r"-?\d{1,30}/0{0,29}[1-9]\d{0,29}", re.ASCII)         # how Python prints a Fraction
REMARK = re.compile(r"\([^()\d]*\)\W*$")                        # 42 (forty-two)

# A unit is any words, for a word problem may count anything. These change the number beside them or take it
# back, so they are none. Number words are none either, but a remark may repeat the number in words.
CHANGES = frozenset("""not never or than plus minus divided half halves twice quarter third fourth fifth sixth
    seventh eighth ninth tenth hundred hundredth thousand thousandth million millionth billion billionth
    trillion lakh crore dozen score mil bn mn squared cubed factorial sqrt pi""".split())
NUMBER_WORDS = frozenset("""zero one two three four five six seven eight nine ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety""".split())
UNIT_LETTERS = frozenset("mglLshNJWVACF")       # any other single letter is a variable: 5n

# LaTeX and typography become plain text, in this order.
PLAIN = [
    (r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+)", r"^\1"),                             # 10⁶ would become 106
    (r"[₀-₉]", "?"),                                            # 101₂ would become 1012
    (r"(?<=\d)([¼-¾⅐-⅞])", r" \1"),                             # 3½
    (r"(?<=\d)(?:,\\!|\\[,!;: ]|\{,\}|[_\u2000-\u200a\u202f\xa0])(?=\d{3})", ","),     # 5\,000, 5{,}000
    (r"\\boxed\b", ""),
    (r"\\[dt]?frac\s*(\d)\s*(\d)", r" \1/\2"),
    (r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2"),
    (r"\\(?:text|mathrm|mathbf|textbf|mbox)\b", " "),
    (r"\^\s*\{?\s*\\circ\s*\}?|°", " "),
    (r"\\(?:times|cdot)(?![A-Za-z])", "×"),
    (r"\\approx(?![A-Za-z])|≈", "="),
    (r"\\(?:left|right|quad)(?![A-Za-z])|\\[,!;:()\[\]]", " "),
    (r"\\([$% ])", r"\1"),
    (r"\^\s*\{([^{}]*)\}", r"^\1"),
    (r"[$¢-¥\u20a0-\u20cf`_~{}]", "  "),                            # two: 2{345} is not 2 345
]
# After Unicode's simplification: minus signs, slashes, powers of ten, squares and cubes of units (m^2, m2).
LENGTH = "[kcdm]?m|ft|in|yd|mi|meters?|metres?|feet|inch|inches|yards?|miles?"
PLAIN_ASCII = [
    ("[\u2212\u2013]", "-"),
    ("\u2044", "/"),
    (r"(?<=\d)\s*[×x*X·⋅]\s*10\s*\^\s*([-+]?\d{1,3})\b", r"e\1"),
    (r"(?<![\w.,^])10\s*\^\s*([-+]?\d{1,3})\b", r"1e\1"),
    (r"(?<=[A-Za-z])\s*\^\s*-?[1-4]\b", ""),
    (rf"(?<![A-Za-z])({LENGTH})[23]\b(?![./]\d)", r"\1"),
]


def plain(text: str) -> str:
    """The last line of a text that is not blank, without LaTeX and typography."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    text = lines[-1]
    # What NFKC would change for the worse (10⁶ into 106) is written out before it, the rest after it.
    for pattern, by in PLAIN:
        text = re.sub(pattern, by, text)
    text = unicodedata.normalize("NFKC", text)
    for pattern, by in PLAIN_ASCII:
        text = re.sub(pattern, by, text)
    return text


def has_word(text: str, wanted: frozenset[str]) -> bool:
    """Whether a word of a text, or its singular, is one of those wanted."""
    words = re.findall("[a-z]+", text.lower())
    words += [word.removesuffix("s") for word in words]
    return not wanted.isdisjoint(words)


def is_unit(text: str) -> bool:
    """Whether words can be what a number counts or measures. (p.m. is one word.)"""
    first = re.match(r"[\s/]*([A-Za-z.]*)", text)[1].strip(".")
    # 5n is an expression, not five of something.
    if len(first) == 1 and first not in UNIT_LETTERS:
        return False
    return not has_word(text, CHANGES | NUMBER_WORDS)


def number(digits: str) -> Fraction:
    """The value of what NUMBER matches."""
    return Fraction("0" + re.sub("[, ]", "", digits).rstrip("."))


def without_label(stated: str) -> str:
    """A statement without what leads to its number ("Total cost:") and a remark behind it ("(forty-two)")."""
    for pattern in (LABEL, REMARK):
        beside = pattern.search(stated)
        # Words that change a number count wherever they stand: "less than half: 3".
        if beside and not has_word(beside[0], CHANGES):
            stated = stated[:beside.start()] + stated[beside.end():]
    return stated


def value_of(m: re.Match) -> Fraction | None:
    """The number that a match of ANSWER states, its percent sign apart; None for a fraction over zero."""
    if m["top"]:
        bottom = number(m["bottom"])
        if bottom == 0:
            return None
        value = int(m["whole"] or 0) + number(m["top"]) / bottom        # 3 1/2 is a mixed number
    else:
        value = number(m["number"]) * Fraction(10) ** int(m["exponent"] or 0)
    if m["scale"]:
        value *= SCALES[m["scale"].strip().lower()]
    if m["sign"] == "-":
        return -value
    return value


def rational(text: str) -> set[Fraction]:
    """The one number that an answer states, exactly: {x}; for a percentage {x, x/100}; else the empty set.

    The last line is a number, perhaps with a currency before it and a unit behind it. What leads to it is
    left out up to an equals sign, or, where it has no digit, up to a colon or a verb such as "is" or "has".
    Everything else is malformed: an expression, a choice, a bound, a ratio, a root, a number in words.
    """
    if len(text) > MAX_CHARS:
        return set()
    # Behind the last = or =>; a comparison such as <= is a bound, and stays.
    stated = re.split(r"(?<![<>!/])=+>?", plain(text))[-1]
    # Two spaces, so that a bracket joins no digits to those beside it.
    stated = re.sub(r"[()]|\*\*", "  ", without_label(stated)).strip(" '\"*")
    m = ANSWER.fullmatch(stated)
    n_digits = sum(map(str.isdigit, stated))
    # The bound on digits also bounds the work on the fractions below.
    if not m or n_digits > MAX_DIGITS or not is_unit(m["unit"]):
        return set()
    value = value_of(m)
    if value is None:
        return set()
    if m["percent"]:
        return {value, value / 100}             # 40% of something is 40 to some teachers and 0.4 to others
    return {value}


def exact(value: object) -> Fraction | None:
    """The rational of an int, of a float that is a short decimal, of a text such as "3/4"; else None."""
    if type(value) is int:                      # not a bool, which is no number to a reader
        return Fraction(value)
    if type(value) is float:
        return short_decimal(value)
    if type(value) is str and RATIO.fullmatch(value):
        return Fraction(value)
    return None


def short_decimal(value: float) -> Fraction | None:
    """The decimal that Python prints for a float; None where it is too long to be what was meant (1 / 3)."""
    text = repr(value)
    digits = text.partition("e")[0].strip("-0.").replace(".", "")
    if len(digits) > SHORT_DECIMAL:
        return None
    return Fraction(text)


class Math(TaskType):
    """A question in words and a program that computes the answer; the student sees the question alone."""
    name = "math"
    tags = ("answer", "output", "boxed")
    topics = MATH_TOPICS
    seed = Proposal("math", "def f():\n    apples = 3\n    apples = apples + 4\n    return apples", ("",),
                    "Tom has 3 apples and gets 4 more. How many apples does he have now?")

    def from_row(self, row: dict) -> Proposal:
        """As `TaskType.from_row`; the question may stand under its name in a run's tasks.jsonl, message."""
        name = "message"
        if "question" in row:
            name = "question"
        question = text_of(row, name)
        program = super().from_row(row | {"input": ""}).program
        return Proposal(self.name, program, ("",), question)

    def read(self, written: Answer, few_shot: list[Task], limits: Limits) -> Proposal:
        """The question and the program, whose function may be called solution."""
        refuse_unless(written.admits("question", "python"), "syntax")
        _, body = written.blocks[first_program(written.blocks)]
        program = normalise(body, limits.source_chars, written.form.tidy, alias="solution")
        questions = [*written.bodies("question"), ""]
        return Proposal(self.name, program, ("",), questions[0].strip())

    def demands(self, proposal: Proposal, limits: Limits) -> None:
        """As `TaskType.demands`, and a question. A program without parameters may well be constant."""
        refuse_unless(proposal.message, "no_question")
        super().demands(proposal, replace(limits, reject_constant=False))

    def make(self, proposal: Proposal, verdict: Verdict, limits: Limits, key: str) -> Task:
        """The task, if its gold is a number that a student can state exactly."""
        task = super().make(proposal, verdict, limits, key)
        gold = decode(task.outputs[0])
        if exact(gold) is None:
            refuse_unless(not isinstance(gold, float), "inexact")
            raise Refused("not_a_number")
        return task

    def fields(self, prompt_format: str, task: Task, limits: Limits) -> dict[str, str]:
        """As `TaskType.fields`; the program under the name that the template asks for."""
        program = task.program.replace("def f(", "def solution(")
        return super().fields(prompt_format, task, limits) | {"program": program}

    def read_answer(self, block: str, task: Task, limits: Limits) -> str:
        """The text that states the number."""
        if rational(block):
            return block
        return ""

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether an answer states the gold number."""
        return exact(decode(task.outputs[0])) in rational(answer)
