"""Right and wrong ways to write a gold answer of mathematics, to test the grader with.

    right, wrong = forms("4.5e33")      # 4.5 \\times 10^{33}, ... and -4.5 \\times 10^{33}, ...

A gold that is compared with itself is right however it is misread. So golds are read here once more, by means
other than the grader's: numbers as fractions, lists and tuples by their commas and brackets, and the rest as
a text that is put into a formula whose value is known.
"""
import re
from decimal import Decimal
from fractions import Fraction

SETS = re.compile(r"\\(?:cup|in|geq?|leq?|geqslant|leqslant|infty)(?![A-Za-z])|[<>]|^\[|\]$")
SYMBOL = r"\\?[A-Za-z]+"
WORDS = r"\\(?:text|mbox|mathrm)\{([^{}]*)\}"
UNIT = rf"(?:\\ |\s)*{WORDS}(?:\^\{{?\d\}}?)?$"                             # behind a number
MATRIX = r"\\begin\{pmatrix\}.*\\end\{pmatrix\}"
NESTED = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\})*"

Forms = tuple[list[str], list[str]]         # three right formulas, two wrong ones


# ---- reading a gold ----------------------------------------------------------------------------------------

def stated(gold: str) -> str:
    """The formula of a gold: the box of a worked solution, without dollars, a full stop or a remark."""
    boxes = re.findall(rf"\\boxed\{{({NESTED})\}}", gold)
    text = [gold, *boxes][-1]
    text = text.replace(r"\$", "").replace("$", "").replace("np.", "\\")
    text = re.sub(r"\\(?:left|right|quad)(?![A-Za-z])", "", text)
    text = re.sub(r"^[a-z](?=[(\[].*\]$)", "", text)                 # t(0,4]
    text, _, _ = text.partition(", where")
    return text.strip().rstrip(".").strip()


def number(text: str) -> Fraction | None:
    """The value of a written number, or None."""
    text = re.sub(UNIT, "", text.strip())
    mixed = re.fullmatch(r"(\d+) ?(\\frac.*)", text)
    if mixed and number(mixed[2]) is not None:
        return int(mixed[1]) + number(mixed[2])
    for mark in (r"\!", " ", r"^{\circ}", r"^\circ"):
        text = text.replace(mark, "")
    text = re.sub(r"\\frac(\d)", r"\\frac{\1}", text)                  # \frac9{19}: a digit needs no braces
    text = re.sub(r"(\\frac\{\d+\})(\d)$", r"\1{\2}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)               # 1,300
    if text.endswith("%"):
        value = number(text[:-1].removesuffix("\\"))
        return None if value is None else value / 100
    match = re.fullmatch(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", text)
    match = match or re.fullmatch(r"(-?)(\d+)\.?/(\d+)", text)
    if match:
        sign, over, under = match.groups()
        return Fraction(int(over), int(under)) * int(f"{sign}1")
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return Fraction(Decimal(text))
    return None


def split(text: str) -> list[str]:
    """The parts of a text between the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return list(map(str.strip, parts))


def is_tuple(text: str) -> bool:
    """Whether round brackets hold several formulas."""
    is_bracketed = text.startswith("(") and text.endswith(")")
    return is_bracketed and len(split(text)) == 1 and len(split(text[1:-1])) > 1


# ---- writing a number or a formula -------------------------------------------------------------------------

def digits_of(value: Fraction) -> Decimal | None:
    """The exact decimal of a fraction, or None where it does not end."""
    digits = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return digits if Fraction(digits) == value else None


def as_decimal(value: Fraction) -> str:
    """A number as a decimal, or as p/q where it does not end."""
    digits = digits_of(value)
    if digits is None:
        return f"{value.numerator}/{value.denominator}"
    return f"{digits:f}"


def as_power(value: Fraction) -> str:
    """A number with one digit before the point and a power of ten, or a fraction where it does not end."""
    digits = digits_of(value)
    if digits is None or value == 0:
        return rf"\dfrac{{{value.numerator}}}{{{value.denominator}}}"
    exponent = digits.adjusted()
    return rf"{digits.scaleb(-exponent):f} \times 10^{{{exponent}}}"


def as_fraction(value: Fraction) -> str:
    """A number as a fraction that could be cancelled by 2."""
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{2 * abs(value.numerator)}}}{{{2 * value.denominator}}}"


def another(text: str) -> str:
    """The same number or formula, written otherwise."""
    value = number(text)
    if value is not None:
        return f"{2 * value.numerator}/{2 * value.denominator}"
    if re.fullmatch(SYMBOL, text):              # math-verify does not cancel beside a symbol alone
        return rf"\left({text}\right)"
    return rf"2 \left({text}\right) / 2"


def neighbour(value: Fraction) -> str:
    """A number that differs by one in the last digit, or the fourth, or by one in the numerator."""
    digits = digits_of(value)
    if digits is None:
        return as_fraction(value + Fraction(1, value.denominator))
    place = max(digits.as_tuple().exponent, digits.adjusted() - 3)
    return as_decimal(value + Fraction(10) ** place)


def changed(text: str) -> str:
    """Another number or formula."""
    value = number(text)
    if value is None:
        return f"{text} + 1"
    return neighbour(value)


# ---- three right forms and two wrong ones ------------------------------------------------------------------

def of_number(value: Fraction) -> Forms:
    """Forms of a number."""
    negative = as_power(-value) if value else "-1"
    right = [as_decimal(value), as_power(value), as_fraction(value)]
    return right, [negative, neighbour(value)]


def of_tuple(text: str) -> Forms:
    """Forms of (a, b, ...)."""
    first, *rest = parts = split(text[1:-1])
    *front, last = parts
    right = [
        ", ".join(parts),
        ",".join(map(another, parts)),
        r",\; ".join([another(first), *rest]),
    ]
    wrong = [
        ", ".join([changed(first), *rest]),
        ", ".join([*front, changed(last)]),
    ]
    return list(map(r"\left({}\right)".format, right)), list(map("({})".format, wrong))


def of_list(parts: list[str]) -> Forms:
    """Forms of several answers, whose order does not count."""
    *front, last = parts = list(dict.fromkeys(parts))
    written = parts
    if not any("=" in part or is_tuple(part) for part in parts):
        written = map(another, parts)
    other = changed(last)
    if is_tuple(last):
        _, [other, _] = of_tuple(last)
    right = [", ".join(parts), ", ".join(reversed(parts)), r",\; ".join(written)]
    return right, [", ".join([*front, other]), ", ".join([*parts, "1000003"])]


def of_equation(text: str) -> Forms:
    """Forms of left = right; a function's or variable's name may be left out."""
    left, right = map(str.strip, text.split("=", 1))
    last = rf"{left} - \left({right}\right) = 0"
    if re.fullmatch(r"\w(?:_\{[^{}]*\}|_\w)?(?:\(\w\))?", left):
        last = right
    return [text, f"{left} = {another(right)}", last], [f"{left} = {right} + 1", f"{left} = {right} - 2"]


def of_set(text: str) -> Forms:
    """Forms of an interval, a union or an inequality: its brackets, and its first and its last number."""
    first, *_, last = 2 * list(re.finditer(r"\d+", text))
    wrong = []
    for match, more in ((first, 1), (last, 2)):
        other = int(match[0]) + more
        wrong.append(f"{text[:match.start()]}{other}{text[match.end():]}")
    airy = re.sub(r"\s*([(,)])\s*", r" \1 ", text)
    large = re.sub(r"([(\[])([^()\[\]]*)([)\]])", r"\\left\1\2\\right\3", text)
    return [text, airy, large], wrong


def of_formula(text: str) -> Forms:
    """Forms of any other formula."""
    last = rf"0 + \left({text}\right)"
    if re.fullmatch(SYMBOL, text):
        last = f"x = {text}"
    return [text, another(text), last], [rf"-\left({text}\right)", f"{text} + 1"]


def of_words(text: str) -> Forms:
    """Forms of an answer in words."""
    words = re.fullmatch(WORDS, text)[1].strip()
    return [text, rf"\text{{ {words} }}", words], [r"\text{neither}", rf"\text{{not {words}}}"]


def of_based(digits: str, base: str) -> Forms:
    """Forms of digits in another base than ten; math-verify looks at the digits alone."""
    right = [f"{digits}_{base}", f"{digits}_{{{base}}}", digits]
    return right, [f"{int(digits) + 1}_{{{base}}}", f"{digits}0_{{{base}}}"]


def of_two(parts: list[str]) -> Forms:
    """Forms of several answers, one of which is two with a sign of plus or minus."""
    plus, minus = [], []
    for part in parts:
        plus.append(part.replace(r"\pm", "+"))
        if r"\pm" in part:
            minus.append(part.replace(r"\pm", "-"))
    first, *rest = parts
    right = [", ".join(parts), ", ".join([*plus, *minus]), ", ".join([*minus, *plus])]
    return right, [", ".join(plus), ", ".join([f"{first} + 1", *rest])]


def of_matrix(text: str) -> Forms:
    """Forms of a matrix: its first number changed, or its sign."""
    tight = re.sub(r" *(\\\\|&) *", r"\1", text)
    more = re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), text, count=1)
    return [text, another(text), tight], [more, f"-{text}"]


def forms(gold: str) -> Forms:
    """Three right and two wrong formulas for a gold answer."""
    text = stated(gold)
    value = number(text)
    based = re.fullmatch(r"(\d+)_\{?(\d+)\}?", text)
    parts = split(text.removeprefix(r"\{").removesuffix(r"\}"))
    if value is not None:
        return of_number(value)
    if based:
        return of_based(*based.groups())
    if re.fullmatch(WORDS, text):
        return of_words(text)
    if re.fullmatch(MATRIX, text):
        return of_matrix(text)
    if SETS.search(text):
        return of_set(text)
    if r"\pm" in text:
        return of_two(parts)
    if len(parts) > 1:
        return of_list(parts)
    if is_tuple(text):
        return of_tuple(text)
    if "=" in text:
        return of_equation(text)
    return of_formula(text)
