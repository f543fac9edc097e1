"""Is a model's answer right? It is cut out of the text, then compared with the gold answer as a value.

    extract(text) -> "\\frac{1}{2}"        last \\boxed, <answer> tag, "#### ", closing sentence, or last line
    grade("0.5", "\\frac{1}{2}") -> True   by rationals, intervals, sets, matrices, equations, symbolic.same

Rules of taste, all in `equal`: an item of a list may stand in any order, one of a tuple not; "x = 5" is 5;
50% is 50 and 1/2, 30 degrees is 30 and pi/6; a unit may be left out but must not differ; an irrational is not
its decimals. No text makes these functions raise; `grade` does where the symbolic worker dies (Died).
"""
import re
from fractions import Fraction

from eval.math.expression import read
from eval.math.symbolic import GRADE_S, WORKER, Late, exact, same
from tasks.prompts import first_answer

MAX_ANSWER, MAX_ITEMS = 2000, 30        # characters compared, items of a list
TAIL = 4000                             # characters that are searched for a closing sentence
SENTENCE = re.compile(r"\banswer\s*(?:to\s[^.\n:]{1,80}?)?(?:\*\*|__)?\s*"
                      r"(?:(?:is|are|equals|would be|must be|should be|will be)\b|[:=])\s*(?:\*\*|__)?[:\s]*"
                      r"(?:(?:therefore|thus|then|simply|just|indeed|equal to|given by)\b[,\s]*)?", re.I)
BRACKETS = ("tuple", "[", "]")
# the first name stands for the unit
UNITS = """in inch inches, ft foot feet, yd yard yards, mi mile miles, mm millimeter millimeters,
    cm centimeter centimeters, m meter meters metre metres, km kilometer kilometers, day days, week weeks,
    s sec secs second seconds, min mins minute minutes, h hr hrs hour hours, month months, year years,
    g gram grams, kg kilogram kilograms, lb lbs pound pounds, oz ounce ounces, dollar dollars usd, cent cents,
    euro euros, mph, deg degree degrees, unit units, ml milliliter milliliters, l liter liters,
    j joule joules, w watt watts, n newton newtons, k kelvin, percent"""
UNITS = {name: names.split()[0] for names in UNITS.split(",") for name in names.split()}
FILLER = set("square sq cubic cu of per a an the in each total people students ways times points apples eggs "
             "books".split())
POWER = r"(?:\^\s*\{?(?P<power>[23])\}?)?\s*[.]?$"
TEXTUAL = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|hbox)\s*\{(?P<words>[^{}]*)\}\s*" + POWER)
WORDS = re.compile(r"(?<=[\d})\s%])\s*(?P<words>[A-Za-z]+(?:[ /]+[A-Za-z]+)*)\s*" + POWER)
# between boxes of one answer
JOINED = re.compile(r"[\s$]*(?:,|,?\s*(?:and|or)\b|,?\s*\\text\{\s*(?:and|or)\s*\})[\s$]*")


# ---- cutting the answer out -------------------------------------------------------------------------------

def boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of the text's last few \\boxed{...} and \\fbox{...}; none of what is cut off."""
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
    """Content of the last box; of boxes joined by commas or "and", of all, for lists boxed by item."""
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
    """What a closing sentence goes on with: a formula between dollars, else the words to its end."""
    line = line.strip().strip("*_ ")
    if m := re.match(r"\$+(?P<formula>[^$]+)\$+(?P<unit>\s*[A-Za-z%]+)?", line):
        rest = (m["unit"] or "").strip()
        return m["formula"].strip() + (f" {rest}" if rest.lower() in UNITS or rest == "%" else "")
    if m := re.match(r"\\[(\[](?P<formula>.+?)\\[)\]]", line):
        return m["formula"].strip()
    end = r"[.;](?:\s|$)|,\s*(?:because|since|as|which|so)\b|\s(?:because|since)\b"
    return re.split(end, line)[0].strip().strip("*_ `\"")


def closing(text: str) -> str:
    """What the last sentence of the kind "the answer is ..." says; "" without one."""
    heads = list(SENTENCE.finditer(text))
    return sentence(text[heads[-1].end():].partition("\n")[0]) if heads else ""


def extract(text: str) -> str:
    """The final answer that a text states, as written; "" without one. Text after </think> counts first.

    In the R1 envelope it is the first one: what follows </answer> are questions of the model's own.
    """
    text = first_answer(text)
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


# ---- comparing --------------------------------------------------------------------------------------------

def bare(text: str) -> str:
    """Text without spaces and typography, for comparison as written; words in lower case."""
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    signs = r"\\(?:text|mbox|mathrm|textbf|textrm)\b|\\left|\\right|\\[,!;: ]|[\s${}]|\\displaystyle"
    text = re.sub(signs, "", text).rstrip(".")
    return text.lower() if re.fullmatch(r"[A-Za-z]{2,}", text) else text


def strip_unit(text: str) -> tuple[str, tuple | None]:
    """The text without currency sign and trailing unit, and (unit, power) where one is known."""
    text, unit = text.strip(), None
    if m := re.search(r"\\\$|^-?\s*\$(?=[\d.,]+$)|[€£]", text):
        text = text.replace(m[0], m[0].rstrip("\\$€£"))
        unit = ({"€": "euro", "£": "sterling"}.get(m[0], "dollar"), 1)
    if text.count("$") >= 2:
        text = text.replace("$", " ").strip()
    for pattern, value in (TEXTUAL, r"\w"), (WORDS, r"\d|\\pi|\\sqrt"):
        tail = text[-200:]
        m = pattern.search(tail)
        before = text[:len(text) - len(tail) + m.start()] if m else ""
        words = re.findall(r"[A-Za-z]+", m["words"].lower()) if m else []
        if not re.search(value, before) or not words or "and" in words or "or" in words:
            continue
        if pattern is WORDS and any(word not in UNITS and word not in FILLER for word in words):
            continue
        power = int(m["power"] or 1)
        if {"square", "sq"} & set(words):
            power = 2
        elif {"cubic", "cu"} & set(words):
            power = 3
        known = [UNITS[word] for word in words if word in UNITS]
        if known == ["percent"]:
            return before + r"\%", unit
        return before.strip(), (" ".join(known), power) if known and known != ["unit"] else unit
    return text, unit


def readings(text: str) -> list[tuple]:
    """Trees that a text may mean: with and without commas for thousands, units as such and as symbols."""
    found = []
    if text.count("$") == 2:
        text = text.strip().strip("$").strip()
    for form in dict.fromkeys((strip_unit(text)[0], text)):
        found += [read(form), read(form, thousands=False)]
    return [tree for tree in dict.fromkeys(found) if tree is not None]


def grade(answer: str, gold: str, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether an answer (as `extract` gives it) equals the gold one, or differs by the given share or amount.

    What cannot be read is compared as written; what takes too long is wrong.
    """
    if not answer.strip() or len(answer) > MAX_ANSWER:
        return False
    if bare(answer) == bare(gold):
        return True
    ours, theirs = strip_unit(answer)[1], strip_unit(gold)[1]
    if ours and theirs and ours != theirs:
        return False
    WORKER.left_s = GRADE_S
    try:
        return any(equal(a, b, (relative, absolute)) for b in readings(gold) for a in readings(answer))
    except Late:
        return False


def equal(a: tuple, b: tuple, slack: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether answer tree a means the same as gold tree b; slack: (relative, absolute) difference."""
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
    """Nested brackets are a matrix, a list of endless intervals is their union, a set of one thing that."""
    if tree[0] == "set" and len(tree[1]) == 1:
        return whole(tree[1][0])
    if tree[:3] == BRACKETS and all(row[:3] == BRACKETS for row in tree[3]):
        rows = tuple(row[3] for row in tree[3])
        return ("matrix", rows) if len(set(map(len, rows))) == 1 else tree
    if tree[0] == "list" and len(tree[1]) > 1 and any(map(is_endless, tree[1])):
        return ("union", tree[1])
    return tree


def is_endless(tree: tuple) -> bool:
    """Whether a tree is an interval that ends at infinity."""
    return tree[0] == "tuple" and ("const", "oo") in (tree[3][-1], tree[3][0][-1])


def in_order(a: tuple, b: tuple, slack) -> bool:
    """Item by item."""
    return len(a) == len(b) <= MAX_ITEMS and all(equal(x, y, slack) for x, y in zip(a, b))


def collection(a: tuple, b: tuple, slack) -> bool:
    """Lists, sets and unions in any order; a list and a tuple in the tuple's order."""
    if "tuple" in (a[0], b[0]):
        return in_order(a[-1], b[-1], slack)
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
    """Two equations: one a constant multiple of the other. One: its value, where its other side is a name."""
    if a[0] == b[0]:
        if equal(a[1], b[1]) and equal(a[2], b[2], slack):
            return True
        left, right = [("add", tree[1], ("neg", tree[2])) for tree in (a, b)]
        return same(left, right, proportional=True)
    named = a if a[0] == "eq" else b
    for name, value in (named[1:], named[:0:-1]):
        if name[0] == "sym" or name[0] == "mul" and all(part[0] == "sym" for part in name[1:]):
            return equal(value, b, slack) if named is a else equal(a, value, slack)
    return False


def meanings(tree: tuple) -> list[tuple]:
    """A percentage is its number and a hundredth of it, an angle its degrees and its radians."""
    negative = tree[0] == "neg" and tree[1][0] in ("percent", "degree")
    inner = tree[1] if negative else tree
    if inner[0] not in ("percent", "degree"):
        return [tree]
    return [("neg", inner[1]), tree] if negative else [inner[1], tree]


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
