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


def stated(gold: str) -> str:
    """The formula of a gold: the box of a worked solution, without dollars, a full stop or a remark."""
    boxes = re.findall(rf"\\boxed\{{({NESTED})\}}", gold)
    text = boxes[-1] if boxes else gold
    text = text.replace(r"\$", "").replace("$", "").replace("np.", "\\")
    text = re.sub(r"\\(?:left|right|quad)(?![A-Za-z])", "", text)
    text = re.sub(r"^[a-z](?=[(\[].*\]$)", "", text)                 # t(0,4]
    return text.split(", where")[0].strip().rstrip(".").strip()


def number(text: str) -> Fraction | None:
    """The value of a written number, or None."""
    text = re.sub(UNIT, "", text.strip())
    mixed = re.fullmatch(r"(\d+) ?(\\frac.*)", text)
    if mixed and number(mixed[2]) is not None:
        return int(mixed[1]) + number(mixed[2])
    text = text.replace(r"\!", "").replace(" ", "").replace(r"^{\circ}", "").replace(r"^\circ", "")
    text = re.sub(r"\\frac(\d)", r"\\frac{\1}", text)      # \frac9{19}: a digit needs no braces
    text = re.sub(r"(\\frac\{\d+\})(\d)$", r"\1{\2}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    percent = re.fullmatch(r"(.*?)\\?%", text)
    if percent:
        value = number(percent[1])
        return None if value is None else value / 100
    fraction = re.fullmatch(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", text)
    fraction = fraction or re.fullmatch(r"(-?)(\d+)\.?/(\d+)", text)
    if fraction:
        value = Fraction(int(fraction[2]), int(fraction[3]))
        return -value if fraction[1] else value
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
    return [part.strip() for part in parts]


def as_decimal(value: Fraction) -> str:
    """A number as a decimal, or as p/q where it does not end."""
    digits = digits_of(value)
    return f"{value.numerator}/{value.denominator}" if digits is None else f"{digits:f}"


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
    return f"{sign}\\frac{{{2 * abs(value.numerator)}}}{{{2 * value.denominator}}}"


def digits_of(value: Fraction) -> Decimal | None:
    """The exact decimal of a fraction, or None where it does not end."""
    digits = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return digits if Fraction(digits) == value else None


def another(text: str) -> str:
    """The same number or formula, written otherwise."""
    value = number(text)
    if value is not None:
        return f"{2 * value.numerator}/{2 * value.denominator}"
    if re.fullmatch(SYMBOL, text):              # math-verify does not cancel beside a symbol alone
        return rf"\left({text}\right)"
    return rf"2 \left({text}\right) / 2"


def changed(text: str) -> str:
    """Another number or formula."""
    value = number(text)
    return f"{text} + 1" if value is None else neighbour(value)


def neighbour(value: Fraction) -> str:
    """A number that differs by one in the last digit, or the fourth, or by one in the numerator."""
    digits = digits_of(value)
    if digits is None:
        return as_fraction(value + Fraction(1, value.denominator))
    place = max(digits.as_tuple().exponent, digits.adjusted() - 3)
    return as_decimal(value + Fraction(10) ** place)


def of_number(value: Fraction) -> tuple[list[str], list[str]]:
    """Forms of a number."""
    negative = as_power(-value) if value else "-1"
    return [as_decimal(value), as_power(value), as_fraction(value)], [negative, neighbour(value)]


def of_tuple(text: str) -> tuple[list[str], list[str]]:
    """Forms of (a, b, ...)."""
    parts = split(text[1:-1])
    right = [", ".join(parts), ",".join(map(another, parts)), r",\; ".join([another(parts[0]), *parts[1:]])]
    wrong = [", ".join([changed(parts[0]), *parts[1:]]), ", ".join([*parts[:-1], changed(parts[-1])])]
    return [rf"\left({inside}\right)" for inside in right], [f"({inside})" for inside in wrong]


def of_list(parts: list[str]) -> tuple[list[str], list[str]]:
    """Forms of several answers, whose order does not count."""
    parts = list(dict.fromkeys(parts))
    written = parts
    if not any(is_equation(part) or is_tuple(part) for part in parts):
        written = [another(part) for part in parts]
    right = [", ".join(parts), ", ".join(reversed(parts)), r",\; ".join(written)]
    return right, [", ".join([*parts[:-1], changed_part(parts[-1])]), ", ".join([*parts, "1000003"])]


def changed_part(text: str) -> str:
    """One of several answers, changed."""
    return of_tuple(text)[1][0] if is_tuple(text) else changed(text)


def of_equation(text: str) -> tuple[list[str], list[str]]:
    """Forms of left = right; a function's or variable's name may be left out."""
    left, _, right = (part.strip() for part in text.partition("="))
    named = re.fullmatch(r"\w(?:_\{[^{}]*\}|_\w)?(?:\(\w\))?", left)
    last = right if named else rf"{left} - \left({right}\right) = 0"
    return [text, f"{left} = {another(right)}", last], [f"{left} = {right} + 1", rf"{left} = {right} - 2"]


def of_set(text: str) -> tuple[list[str], list[str]]:
    """Forms of an interval, a union or an inequality: its brackets, and its first and its last number."""
    numbers = [match.span() for match in re.finditer(r"\d+", text)]
    wrong = []
    for (start, end), more in zip((numbers[0], numbers[-1]), (1, 2)):
        wrong.append(f"{text[:start]}{int(text[start:end]) + more}{text[end:]}")
    airy = re.sub(r"\s*([(,)])\s*", r" \1 ", text)
    large = re.sub(r"([(\[])([^()\[\]]*)([)\]])", r"\\left\1\2\\right\3", text)
    return [text, airy, large], wrong


def of_formula(text: str) -> tuple[list[str], list[str]]:
    """Forms of any other formula."""
    last = rf"x = {text}" if re.fullmatch(SYMBOL, text) else rf"0 + \left({text}\right)"
    return [text, another(text), last], [rf"-\left({text}\right)", rf"{text} + 1"]


def of_words(text: str) -> tuple[list[str], list[str]]:
    """Forms of an answer in words."""
    words = re.fullmatch(WORDS, text)[1].strip()
    return [text, rf"\text{{ {words} }}", words], [r"\text{neither}", rf"\text{{not {words}}}"]


def of_based(digits: str, base: str) -> tuple[list[str], list[str]]:
    """Forms of digits in another base than ten; math-verify looks at the digits alone."""
    right = [f"{digits}_{base}", f"{digits}_{{{base}}}", digits]
    return right, [f"{int(digits) + 1}_{{{base}}}", f"{digits}0_{{{base}}}"]


def of_two(parts: list[str]) -> tuple[list[str], list[str]]:
    """Forms of several answers, one of which is two with a sign of plus or minus."""
    plus = [part.replace(r"\pm", "+") for part in parts]
    minus = [part.replace(r"\pm", "-") for part in parts if r"\pm" in part]
    right = [", ".join(parts), ", ".join([*plus, *minus]), ", ".join([*minus, *plus])]
    return right, [", ".join(plus), ", ".join([f"{parts[0]} + 1", *parts[1:]])]


def of_matrix(text: str) -> tuple[list[str], list[str]]:
    """Forms of a matrix: its first number changed, or its sign."""
    tight = re.sub(r" *(\\\\|&) *", r"\1", text)
    more = re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), text, count=1)
    return [text, another(text), tight], [more, f"-{text}"]


def is_equation(text: str) -> bool:
    """Whether a formula has two sides."""
    return "=" in text


def is_tuple(text: str) -> bool:
    """Whether round brackets hold several formulas."""
    return text[0] == "(" and text[-1] == ")" and len(split(text)) == 1 and len(split(text[1:-1])) > 1


def forms(gold: str) -> tuple[list[str], list[str]]:
    """Three right and two wrong formulas for a gold answer."""
    text = stated(gold)
    value = number(text)
    if value is not None:
        return of_number(value)
    based = re.fullmatch(r"(\d+)_\{?(\d+)\}?", text)
    if based:
        return of_based(*based.groups())
    if re.fullmatch(WORDS, text):
        return of_words(text)
    if re.fullmatch(MATRIX, text):
        return of_matrix(text)
    if SETS.search(text):
        return of_set(text)
    parts = split(text.removeprefix(r"\{").removesuffix(r"\}"))
    if r"\pm" in text:
        return of_two(parts)
    if len(parts) > 1:
        return of_list(parts)
    if is_tuple(text):
        return of_tuple(text)
    return of_equation(text) if is_equation(text) else of_formula(text)
