"""Random small programs, word problems and puzzles, which micro/data.py puts into the base's words.

A program is `def f(x)` over small ints, lists of small ints and short strings, one statement a line; a second
variable y may hold an intermediate value. A word problem is a story about one number, with its program; a
puzzle is clauses that one assignment of truth values fulfils. Programs run here with exec because this file
wrote them; text from a model goes to verifier.py instead.
"""
import functools
import hashlib
import itertools
import random
import re
from copy import copy
from dataclasses import dataclass

TYPES = ("int", "list", "str")
TYPE_WEIGHTS = (2, 3, 1)
N_STATEMENTS = (0, 16, 18, 19, 18, 16, 13)      # weights of 0..6 statements in what the model solves
P_MID = .45                                     # of a statement of MID; of HARD it is a knob
HELD_OUT = 50                                   # programs whose hash is 0 modulo this are never trained on
D = (1, 9)                                      # a range to draw from, ends included
Q = "ABCD"                                      # letters to draw from


def table(text: str) -> list[tuple]:
    """Statements as (template, what to draw for each of its slots); {a-b} is a range, {Q} a letter."""
    rows = []
    for statement in text.split("; "):
        slots = re.findall(r"{(.+?)}", statement)
        ranges = [Q if slot == "Q" else (int(slot[0]), int(slot[2])) for slot in slots]
        rows.append((re.sub(r"{.+?}", "{}", statement), *ranges))
    return rows


EASY = {
    "list": table("x=x[::-1]; x=sorted(x); x=x[{1-2}:]; x=x[:{2-4}]; x=x[::2]; x=x+[{0-9}]; x=[{0-9}]+x; "
                  "x=len(x); x=max(x); x=min(x); x=x[{0-2}]; x=x[1:]+x[:1]; x=x[:-1]"),
    "int": table("x=x+{1-9}; x=x%{2-9}; x=x//{2-4}; x=[x,{0-9}]; x=abs({1-9}-x); x=[x]*{2-4}; x=x%10"),
    "str": table("x=x[::-1]; x=x[{1-2}:]; x=x[:{2-4}]; x=x+'{Q}'; x='{Q}'+x; x=len(x); x=x[1:]+x[:1]; "
                 "x=x[::2]")}
MID = {
    "list": table("x=[(v+{1-9})%10 for v in x]; x=[v*{2-4}%10 for v in x]; x=[9-v for v in x]; "
                  "x=[v for v in x if v>{1-5}]; x=[v for v in x if v<{4-8}]; x=[v for v in x if v%2==0]; "
                  "x=x+x[:2]; x=x.count({0-9}); if x[0]>{2-7}:x=x[::-1]; if len(x)>{2-4}:x=x[1:]; "
                  "x=[v//2 for v in x]; x=[v%{2-5} for v in x]; x=''.join([chr(65+v) for v in x])"),
    "int": table("x=x*{2-4}; if x>{3-9}:x=x-{1-3}; if x%2==0:x=x//2; x=list(range(x%{4-7})); "
                 "x=[int(c) for c in str(x)]; x='{Q}{Q}'*(x%4)"),
    "str": table("x=x.replace('{Q}','{Q}'); x=''.join(sorted(x)); x=x.count('{Q}'); "
                 "x=[ord(c)-65 for c in x]; if '{Q}' in x:x=x[::-1]; x=x+x[::-1]; x=[x.count(c) for c in x]")}
MID_WITH_Y = {                                  # joins MID once y is assigned, so that y matters
    "list": table("x=[(v+y)%10 for v in x]; x=[(v+y)%10 for v in x]; x=x+[y]; x=[v for v in x if v>y]"),
    "int": table("x=x+y; x=[x,y]; if x>y:x=x-y"),
    "str": table("x=x[y:]; x=[y,len(x)]")}
HARD = {
    "list": table("x=sum(x); x=sum(x)%{3-9}; for i in range({2-4}):x=x[1:]+x[:1]; "
                  "x=sum([v*{2-3} for v in x])%10; x=x[::-1] if x[0]>{2-7} else sorted(x); "
                  "for i in range(len(x)-1):x[i+1]=(x[i]+x[i+1])%10; x=[v*v%{5-9} for v in x]; "
                  "y=sum(x)%10; y=len(x); y=x[0]"),
    "int": table("for i in range({2-4}):x=x*{2-3}%{5-9}; x=x*{2-9}%{5-9}; x=x*2 if x%3==0 else x+{1-9}; "
                 "x=x*x%10; y=x%{3-9}; x=[(x+v)%10 for v in range({3-5})]; x=[v*x%10 for v in range({3-5})]"),
    "str": table("for i in range({2-4}):x=x[1:]+x[:1]; x=x.replace('{Q}','{Q}{Q}'); "
                 "x=x[::-1] if x[0]>'{Q}' else ''.join(sorted(x)); x=sum([ord(c)-65 for c in x]); "
                 "y=len(x); y=x.count('{Q}')")}
# A word problem is a story about one number, told line by line: (line, statement, slots)
STORY = (("gets {}", "x=x+{}", D), ("loses {}", "x=x-{}", D), ("doubles it", "x=x*2"),
         ("gives half away", "x=x//2"), ("buys {} bags of {}", "x=x+{}*{}", (2, 5), (2, 9)),
         ("eats {} a day for {} days", "x=x-{}*{}", (1, 4), (2, 5)),
         ("packs boxes of {}", "x=x//{}", (2, 5)), ("makes {} of each", "x=x*{}", (3, 5)))
NAMES = ("ann", "bob", "tom")
# Clauses about two variables of a puzzle: (text, whether it holds)
CLAUSES = (("{}", lambda a, b: a), ("not {}", lambda a, b: not a), ("{} or {}", lambda a, b: a or b),
           ("not {} or {}", lambda a, b: not a or b), ("not {} or not {}", lambda a, b: not a or not b),
           ("{}=={}", lambda a, b: a == b), ("{}!={}", lambda a, b: a != b))
ALLOWED = {f.__name__: f for f in (len, sum, sorted, max, min, abs, range, list, str, int, ord, chr)}


@dataclass(frozen=True)
class Program:
    """A generated program: statements, one input x, its output y, and what each statement assigned."""
    body: tuple[str, ...]
    x: object
    y: object
    trace: tuple


def literal(value) -> str:
    """A value as the micro prompt format writes it: no spaces, single quotes."""
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def program_text(body) -> str:
    """The program of a sequence of statements; no statement at all is the identity."""
    return "def f(x):\n" + "".join(f" {s}\n" for s in body) + " return x\n"


def held_out(text: str) -> bool:
    """Is this program text reserved for evaluation? The same on every machine, unlike hash()."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % HELD_OUT == 0


@functools.cache
def compiled(statement: str):
    return compile(statement, "f", "exec")


def fits(value, length: int, low: int, high: int) -> bool:
    """Is value an int from low to high, or a string or list of such ints no longer than length?"""
    if isinstance(value, list):
        return len(value) <= length and all(type(v) is int and low <= v <= high for v in value)
    if isinstance(value, str):
        return len(value) <= length
    return type(value) is int and low <= value <= high


def step(statement: str, env: dict):
    """Run one statement in env; the assigned value (a copy), None if it fails or this is too big to write."""
    try:
        exec(compiled(statement), env)
    except (IndexError, ValueError, ZeroDivisionError, TypeError):
        return None
    value = env["y" if statement[0] == "y" else "x"]
    return copy(value) if fits(value, 10, -999, 999) else None


def start(x) -> dict:
    return {"__builtins__": ALLOWED, "x": copy(x)}


def run(body, x) -> tuple[object, tuple] | None:
    """(output, trace) of our own program on x, None where a statement fails. Never for a model's text."""
    env, trace = start(x), []
    for statement in body:
        value = step(statement, env)
        if value is None:
            return None
        trace.append(value)
    return env["x"], tuple(trace)


def random_input(rng: random.Random, type_: str, size: int = 3):
    """An input; lists and strings have 2 to 3 + min(size, 3) items."""
    if type_ == "int":
        return rng.randrange(10) if rng.random() < .5 else rng.randrange(10, 40)
    n = rng.randint(2, 3 + min(size, 3))
    if type_ == "list":
        return [rng.randrange(10) for _ in range(n)]
    return "".join(rng.choice(Q) for _ in range(n))


def random_statement(rng: random.Random, type_: str, has_y: bool, p_hard: float) -> str:
    """A statement for an x of this type."""
    u = rng.random()
    if u < p_hard:
        statements = HARD[type_]
    elif u < p_hard + P_MID:
        statements = MID[type_] + (MID_WITH_Y[type_] if has_y else [])
    else:
        statements = EASY[type_]
    template, *slots = rng.choice(statements)
    return template.format(*[rng.choice(Q) if slot is Q else rng.randint(*slot) for slot in slots])


def grow(rng: random.Random, n: int, x, p_hard: float) -> Program | None:
    """A program of n statements around the input x; None when 40 attempts do not suffice."""
    body, trace = [], []
    has_y, env = False, start(x)
    for _ in range(40):
        if len(body) == n:
            return Program(tuple(body), x, env["x"], tuple(trace))
        statement = random_statement(rng, type(env["x"]).__name__, has_y, p_hard)
        assigns_y = statement[0] == "y"
        if (body and statement == body[-1]) or (assigns_y and (has_y or len(body) == n - 1)):
            continue
        trial = dict(env, x=copy(env["x"]))         # a loop may assign to x's items
        value = step(statement, trial)
        now = trial["x"]
        if value is None or now in ("", []) or not fits(now, 8, 0, 99):
            continue
        if not assigns_y and now == env["x"] and rng.random() < .7:         # mostly none without effect
            continue
        body.append(statement)
        trace.append(value)
        env = trial
        has_y = has_y or assigns_y
    return None


def generate(rng: random.Random, n: int | None = None, type_: str | None = None, p_hard: float | None = None,
             reserved: bool = False) -> Program:
    """A random program of n statements that depends on its input; reserved: a held-out one."""
    n = pick(rng, N_STATEMENTS) if n is None else n
    p_hard = .08 + .05 * n if p_hard is None else p_hard
    while True:
        t = type_ or rng.choices(TYPES, TYPE_WEIGHTS)[0]
        p = grow(rng, n, random_input(rng, t, n), p_hard)
        if p is None or held_out(program_text(p.body)) != reserved:
            continue
        others = [run(p.body, random_input(rng, t, n)) for _ in range(4)]
        if len({literal(o[0]) for o in others if o}) > 1:
            return p


def word_problem(rng: random.Random, n: int, reserved: bool = False) -> tuple[str, Program]:
    """A story of n events about a number, a line each, and the program that computes it."""
    while True:
        first = rng.randint(*D) if rng.random() < .5 else rng.randrange(10, 40)
        lines = [f"{rng.choice(NAMES)} has {first}"]
        body = [f"x={first}"]
        for line, statement, *slots in rng.choices(STORY, k=n):
            values = [rng.randint(*slot) for slot in slots]
            lines.append(line.format(*values))
            body.append(statement.format(*values))
        result = run(body, 0)
        if result is None or not all(0 <= value <= 99 for value in result[1]):
            continue
        rests = [x % int(s.partition("//")[2]) for s, x in zip(body[1:], result[1]) if "//" in s]
        if not any(rests) and held_out("\n".join(lines)) == reserved:
            return "\n".join(f"?{line}" for line in lines), Program(tuple(body), 0, *result)


def puzzle(rng: random.Random, n: int, reserved: bool = False) -> tuple[list[str], tuple[bool, ...]]:
    """Clauses over the first n letters that one assignment alone fulfils, none superfluous, and that one."""
    worlds = list(itertools.product((False, True), repeat=n))
    while True:
        model = rng.choice(worlds)
        clauses = []                                # (text, the worlds in which it holds)
        left = set(worlds)
        for _ in range(4 * n):
            text, holds = CLAUSES[pick(rng, (1, 1, 3, 3, 3, 3, 3))]
            i, j = rng.sample(range(n), 2)
            fits_in = {world for world in worlds if holds(world[i], world[j])}
            if model in fits_in and not left <= fits_in:
                clauses.append((text.format("abcd"[i], "abcd"[j]), fits_in))
                left &= fits_in
            if len(left) == 1:
                break
        for clause in list(clauses):
            others = [other for other in clauses if other is not clause]
            if len(set(worlds).intersection(*(fits_in for _, fits_in in others))) == 1:
                clauses = others
        texts = [text for text, _ in clauses]
        used = set("".join(texts).replace("or", "").replace("not", ""))
        if len(left) == 1 and set("abcd"[:n]) <= used and held_out("\n".join(texts)) == reserved:
            return texts, model


def pick(rng: random.Random, weights) -> int:
    return rng.choices(range(len(weights)), weights)[0]


def fresh_program(key: str) -> tuple[str, tuple[str]]:
    """A random program of 2 to 6 statements and its input, both as text, drawn by the key alone."""
    rng = random.Random(key)
    p = generate(rng, rng.randint(2, 6))
    return program_text(p.body).strip("\n"), (literal(p.x),)


def pairs(rng: random.Random, body, type_: str, k: int) -> list | None:
    """k (input, output) pairs of distinct inputs and at least two outputs, None if 40 draws give none."""
    examples = {}
    for _ in range(40):
        x = random_input(rng, type_, rng.randrange(4))
        result = run(body, x)
        if result and fits(result[0], 8, -99, 99):
            examples[literal(x)] = x, result[0]
        if len(examples) == k:
            return list(examples.values()) if len({literal(y) for _, y in examples.values()}) > 1 else None
    return None
