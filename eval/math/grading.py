"""Is a model's answer right? The answer is cut out of the text, then compared with the gold answer as a mathematical value.

    extract(text) -> "\\frac{1}{2}"         last \\boxed, <answer> tag, "#### ", closing sentence, or a last line that is a value
    grade("0.5", r"\\frac{1}{2}") -> True   by exact rationals, intervals, sets, matrices, equations, or symbolic.same

Rules of taste, all in `equal`: an item of a list may stand in any order, one of a tuple not; "x = 5" is 5; 50% is 50 and 1/2,
30 degrees is 30 and pi/6; a unit may be left out but must not differ; an irrational is not its decimals. No text makes these
functions raise.
"""
import re
from fractions import Fraction

from eval.math.expression import read
from eval.math.symbolic import Late, exact, same

MAX_ANSWER, MAX_ITEMS = 2000, 30        # characters compared, items of a list
TAIL = 4000                             # characters that are searched for a closing sentence
SENTENCE = re.compile(r"\banswer\s*(?:to\s[^.\n:]{1,80}?)?(?:\*\*|__)?\s*"
                      r"(?:(?:is|are|equals|would be|must be|should be|will be)\b|[:=])\s*(?:\*\*|__)?[:\s]*"
                      r"(?:(?:therefore|thus|then|simply|just|indeed|equal to|given by)\b[,\s]*)?", re.I)
UNITS = {name: names.split()[0] for names in (       # the first name stands for the unit
    "in inch inches", "ft foot feet", "yd yard yards", "mi mile miles", "mm millimeter millimeters", "cm centimeter centimeters",
    "m meter meters metre metres", "km kilometer kilometers", "s sec secs second seconds", "min mins minute minutes",
    "h hr hrs hour hours", "day days", "week weeks", "month months", "year years", "g gram grams", "kg kilogram kilograms",
    "lb lbs pound pounds", "oz ounce ounces", "dollar dollars usd", "cent cents", "euro euros", "mph", "deg degree degrees",
    "unit units", "ml milliliter milliliters", "l liter liters", "j joule joules", "w watt watts", "n newton newtons", "k kelvin",
    "percent") for name in names.split()}
FILLER = set("square sq cubic cu of per a an the in each total people students ways times points apples eggs books".split())
POWER = r"(?:\^\s*\{?(?P<power>[23])\}?)?\s*[.]?$"
TEXTUAL = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|hbox)\s*\{(?P<words>[^{}]*)\}\s*" + POWER)
WORDS = re.compile(r"(?<=[\d})\s%])\s*(?P<words>[A-Za-z]+(?:[ /]+[A-Za-z]+)*)\s*" + POWER)
JOINED = re.compile(r"[\s$]*(?:,|,?\s*and\b|,?\s*or\b|,?\s*\\text\{\s*(?:and|or)\s*\})[\s$]*")      # between boxes of one answer


# ---- cutting the answer out ----------------------------------------------------------------------------------------------

def boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of the text's last few \\boxed{...} and \\fbox{...}, braces balanced; what is cut off is left out."""
    found = []
    for m in list(re.finditer(r"\\(?:boxed|fbox)\s*(?P<brace>\{)?", text))[-20:]:
        if m["brace"]:
            depth = 1
            for close in re.finditer(r"\\.|[{}]", text[m.end():m.end() + MAX_ANSWER], re.S):
                depth += {"{": 1, "}": -1}.get(close[0], 0)
                if depth == 0:
                    found.append((m.start(), m.end() + close.end(), text[m.end():m.end() + close.start()]))
                    break
        elif token := re.match(r"\s?([^\s$.,;]+)", text[m.end():m.end() + MAX_ANSWER]):
            found.append((m.start(), m.end() + token.end(), token[1]))
    return found


def last_box(text: str) -> str | None:
    """Content of the last box; of boxes joined by commas or "and", all of them, so that lists may be boxed item by item."""
    found = boxes(text)
    if not found:
        return None
    start, _, answer = found[-1]
    inner = last_box(answer)
    if inner is not None:
        return inner
    while len(found) > 1:
        found.pop()
        before, end, content = found[-1]
        if end > start or not JOINED.fullmatch(text[end:start][:60]):
            break
        start, answer = before, f"{content}, {answer}"
    return answer


def sentence(line: str) -> str:
    """The value that the rest of a closing sentence begins with: a formula between dollars, else the words up to its end."""
    line = line.strip().strip("*_ ")
    if m := re.match(r"\$+(?P<formula>[^$]+)\$+(?P<unit>\s*[A-Za-z%]+)?", line):
        rest = (m["unit"] or "").strip()
        return m["formula"].strip() + (f" {rest}" if rest.lower() in UNITS or rest == "%" else "")
    if m := re.match(r"\\[(\[](?P<formula>.+?)\\[)\]]", line):
        return m["formula"].strip()
    return re.split(r"[.;](?:\s|$)|,\s*(?:because|since|as|which|so)\b|\s(?:because|since)\b", line)[0].strip().strip("*_ `\"")


def closing(text: str) -> str:
    """What the last sentence of the kind "the answer is ..." says; "" without one."""
    heads = list(SENTENCE.finditer(text))
    return sentence(text[heads[-1].end():].partition("\n")[0]) if heads else ""


def extract(text: str) -> str:
    """The final answer that a text states, as written; "" without one. Text after </think> counts first. Never raises."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    if "<answer>" in text:
        inside = text.rpartition("<answer>")[2].partition("</answer>")[0]
        if (box := last_box(inside)) is not None:
            return box.strip()
        return closing(inside[-TAIL:]) or inside.strip()[:MAX_ANSWER + 1]
    if (box := last_box(text)) is not None:
        return box.strip()
    tail = text[-TAIL:]
    if "####" in tail:
        return tail.rpartition("####")[2].strip().partition("\n")[0].strip()
    if stated := closing(tail):
        return stated
    line = tail.strip().rpartition("\n")[2]
    value = sentence(line)
    tree = read(strip_unit(value)[0]) if value and len(line) <= 100 else None
    words = tree and tree[0] == "text" and (line != text.strip() or len(value.split()) > 3)
    return value if tree and not words else ""


# ---- comparing -----------------------------------------------------------------------------------------------------------

def bare(text: str) -> str:
    """Text without spaces and typography, for comparison as written; words in lower case."""
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|textrm)\b|\\left|\\right|\\[,!;: ]|[\s${}]|\\displaystyle", "", text).rstrip(".")
    return text.lower() if re.fullmatch(r"[A-Za-z]{2,}", text) else text


def strip_unit(text: str) -> tuple[str, tuple | None]:
    """The text without currency sign and trailing unit, and (unit, power) where one is known."""
    text, unit = text.strip(), None
    if m := re.search(r"\\\$|^-?\s*\$(?=[\d.,]+$)|[€£]", text):
        text, unit = text.replace(m[0], m[0].rstrip("\\$€£")), ({"€": "euro", "£": "sterling"}.get(m[0], "dollar"), 1)
    if text.count("$") >= 2:
        text = text.replace("$", " ").strip()
    for pattern in (TEXTUAL, WORDS):
        m = pattern.search(text[-200:])
        before = text[:len(text) - len(text[-200:]) + m.start()] if m else ""
        if not m or not re.search(r"\d|\\pi|\\sqrt" if pattern is WORDS else r"\w", before):
            continue
        words = re.findall(r"[A-Za-z]+", m["words"].lower())
        known = [UNITS[word] for word in words if word in UNITS]
        unknown = pattern is WORDS and any(word not in UNITS and word not in FILLER for word in words)
        if unknown or set(words) & {"and", "or"} or not words:
            continue
        power = 2 if {"square", "sq"} & set(words) else 3 if {"cubic", "cu"} & set(words) else int(m["power"] or 1)
        if known == ["percent"]:
            return before + r"\%", unit
        return before.strip(), (" ".join(known), power) if known and known != ["unit"] else unit
    return text, unit


def readings(text: str) -> list[tuple]:
    """Trees that a text may mean: with and without commas for thousands, and with letters that look like a unit as symbols."""
    text, found = text.strip().strip("$").strip() if text.count("$") == 2 else text, []
    for form in dict.fromkeys((strip_unit(text)[0], text)):
        found += [tree for thousands in (True, False) if (tree := read(form, thousands)) is not None]
    return list(dict.fromkeys(found))


def grade(answer: str, gold: str, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether an answer (as `extract` gives it) equals the gold one; a number may differ by the given share or amount of it.

    Never raises; what cannot be read is compared as written.
    """
    if not answer.strip() or len(answer) > MAX_ANSWER:
        return False
    if bare(answer) == bare(gold):
        return True
    units = [strip_unit(text)[1] for text in (answer, gold)]
    if None not in units and units[0] != units[1]:
        return False
    try:
        return any(equal(a, b, (relative, absolute)) for b in readings(gold) for a in readings(answer))
    except Late:
        return False


def equal(a: tuple, b: tuple, slack: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether answer tree a means the same as gold tree b; slack = (relative, absolute) difference forgiven in numbers."""
    if a == b:
        return True
    a, b = whole(a), whole(b)
    kinds = (a[0], b[0])
    if "eq" in kinds:
        return equation(a, b, slack)
    if "list" in kinds or kinds in (("set", "set"), ("union", "union")):
        return collection(a, b, slack)
    if kinds == ("tuple", "tuple"):
        return a[1:3] == b[1:3] and in_order(a[3], b[3], slack)
    if kinds == ("matrix", "matrix"):
        return len(a[1]) == len(b[1]) and all(in_order(x, y, slack) for x, y in zip(a[1], b[1]))
    if kinds == ("rel", "rel"):
        return a[1] == b[1] and equal(a[2], b[2], slack) and equal(a[3], b[3], slack)
    if "base" in kinds:                          # the question names the base, so it may be left out
        return a[0] == "num" and a[1] == b[1]
    if set(kinds) & {"set", "union", "tuple", "matrix", "rel", "text"}:
        return False
    return any(scalar(x, y, slack) for x in meanings(a) for y in meanings(b))


def whole(tree: tuple) -> tuple:
    """A matrix written as nested brackets is a matrix, a list of intervals their union, a set of one thing that thing."""
    if tree[0] == "set" and len(tree[1]) == 1:
        return whole(tree[1][0])
    if tree[0] == "tuple" and tree[1:3] == ("[", "]") and all(row[0] == "tuple" and row[1:3] == ("[", "]") for row in tree[3]):
        return ("matrix", tuple(row[3] for row in tree[3])) if len({len(row[3]) for row in tree[3]}) == 1 else tree
    endless = lambda x: x[0] == "tuple" and ("const", "oo") in (x[3][-1], x[3][0][-1])
    if tree[0] == "list" and len(tree[1]) > 1 and any(map(endless, tree[1])):
        return ("union", tree[1])
    return tree


def in_order(a: tuple, b: tuple, slack) -> bool:
    """Item by item."""
    return len(a) == len(b) <= MAX_ITEMS and all(equal(x, y, slack) for x, y in zip(a, b))


def collection(a: tuple, b: tuple, slack) -> bool:
    """Lists, sets and unions in any order; a list written as a tuple, or the other way round, in its order."""
    if "tuple" in (a[0], b[0]):
        items = [tree[3] if tree[0] == "tuple" else tree[1] for tree in (a, b)]
        return not (a[0] == b[0]) and in_order(*items, slack)
    if not {a[0], b[0]} <= {"list", "set", "union"} or len(a[1]) != len(b[1]) or len(a[1]) > MAX_ITEMS:
        return False
    left = list(b[1])
    for x in a[1]:
        match = next((i for i, y in enumerate(left) if equal(x, y, slack)), None)
        if match is None:
            return False
        left.pop(match)
    return True


def equation(a: tuple, b: tuple, slack) -> bool:
    """Two equations: one a constant multiple of the other. One: its right side, where its left one is only a name."""
    if a[0] == b[0]:
        if equal(a[1], b[1]) and equal(a[2], b[2], slack):
            return True
        sides = [("add", tree[1], ("neg", tree[2])) for tree in (a, b)]
        kinds = {side[0] for tree in (a, b) for side in tree[1:]}
        plain = not kinds & {"tuple", "set", "list", "union", "matrix", "text", "base", "eq", "rel"}
        return plain and same(*sides, proportional=True)
    named, other = (a, b) if a[0] == "eq" else (b, a)
    for name, value in (named[1:], named[:0:-1]):
        if name[0] == "sym" or name[0] == "mul" and all(part[0] == "sym" for part in name[1:]):
            return equal(value, other, slack) if named is a else equal(other, value, slack)
    return False


def meanings(tree: tuple) -> list[tuple]:
    """A percentage is its number and a hundredth of it, an angle its degrees and its radians."""
    negative = tree[0] == "neg" and tree[1][0] in ("percent", "degree")
    inner = tree[1] if negative else tree
    if inner[0] not in ("percent", "degree"):
        return [tree]
    parts = [inner[1], ("div", inner[1], ("num", Fraction(100))) if inner[0] == "percent" else inner]
    return [("neg", part) if negative else part for part in parts]


def scalar(a: tuple, b: tuple, slack) -> bool:
    """Exactly, where both are rational; else as symbolic.same decides."""
    relative, absolute = slack
    x, y = exact(a), exact(b)
    if x is not None and y is not None:
        if x == y or absolute > 0 and abs(x - y) <= Fraction(absolute):
            return True
        integers = x.denominator == y.denominator == 1
        return not integers and abs(x - y) <= Fraction(relative) * abs(y)
    return same(a, b, relative)
