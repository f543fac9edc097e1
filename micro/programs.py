"""Makes random small programs, word problems and puzzles, which micro/data.py puts into the base's words.

A program is `def f(x)` over small ints, lists of small ints and short strings, one statement a line. A second
variable y may hold an intermediate value. A word problem is a story about one number, with its program. A
puzzle is clauses that one assignment of truth values fulfils. Programs run here with exec because this file
wrote them. Text from a model goes to verifier.py instead.
"""
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from random import Random
from types import CodeType

TYPES = ("int", "list", "str")
TYPE_WEIGHTS = (2, 3, 1)
N_STATEMENTS = (0, 16, 18, 19, 18, 16, 13)      # weights of 0..6 statements in what the model solves
P_MID = .45                                     # of a statement of MID; of HARD it is a knob
HELD_OUT = 50                                   # programs whose hash is 0 modulo this are never trained on
Q = "ABCD"                                      # letters to draw from
Value = int | list | str                        # what a program computes with; lists hold ints


# Statements by the type of x and by how hard they are; {1-9} is a number of this range, {Q} a letter.
EASY = {
    "list": "x=x[::-1]; x=sorted(x); x=x[{1-2}:]; x=x[:{2-4}]; x=x[::2]; x=x+[{0-9}]; x=[{0-9}]+x; "
            "x=len(x); x=max(x); x=min(x); x=x[{0-2}]; x=x[1:]+x[:1]; x=x[:-1]",
    "int": "x=x+{1-9}; x=x%{2-9}; x=x//{2-4}; x=[x,{0-9}]; x=abs({1-9}-x); x=[x]*{2-4}; x=x%10",
    "str": "x=x[::-1]; x=x[{1-2}:]; x=x[:{2-4}]; x=x+'{Q}'; x='{Q}'+x; x=len(x); x=x[1:]+x[:1]; "
            "x=x[::2]"}
MID = {
    "list": "x=[(v+{1-9})%10 for v in x]; x=[v*{2-4}%10 for v in x]; x=[9-v for v in x]; "
            "x=[v for v in x if v>{1-5}]; x=[v for v in x if v<{4-8}]; x=[v for v in x if v%2==0]; "
            "x=x+x[:2]; x=x.count({0-9}); if x[0]>{2-7}:x=x[::-1]; if len(x)>{2-4}:x=x[1:]; "
            "x=[v//2 for v in x]; x=[v%{2-5} for v in x]; x=''.join([chr(65+v) for v in x])",
    "int": "x=x*{2-4}; if x>{3-9}:x=x-{1-3}; if x%2==0:x=x//2; x=list(range(x%{4-7})); "
            "x=[int(c) for c in str(x)]; x='{Q}{Q}'*(x%4)",
    "str": "x=x.replace('{Q}','{Q}'); x=''.join(sorted(x)); x=x.count('{Q}'); "
            "x=[ord(c)-65 for c in x]; if '{Q}' in x:x=x[::-1]; x=x+x[::-1]; x=[x.count(c) for c in x]"}
MID_WITH_Y = {                                  # joins MID once y is assigned, so that y matters
    "list": "x=[(v+y)%10 for v in x]; x=[(v+y)%10 for v in x]; x=x+[y]; x=[v for v in x if v>y]",
    "int": "x=x+y; x=[x,y]; if x>y:x=x-y",
    "str": "x=x[y:]; x=[y,len(x)]",
}
HARD = {
    "list": "x=sum(x); x=sum(x)%{3-9}; for i in range({2-4}):x=x[1:]+x[:1]; "
            "x=sum([v*{2-3} for v in x])%10; x=x[::-1] if x[0]>{2-7} else sorted(x); "
            "for i in range(len(x)-1):x[i+1]=(x[i]+x[i+1])%10; x=[v*v%{5-9} for v in x]; "
            "y=sum(x)%10; y=len(x); y=x[0]",
    "int": "for i in range({2-4}):x=x*{2-3}%{5-9}; x=x*{2-9}%{5-9}; x=x*2 if x%3==0 else x+{1-9}; "
            "x=x*x%10; y=x%{3-9}; x=[(x+v)%10 for v in range({3-5})]; x=[v*x%10 for v in range({3-5})]",
    "str": "for i in range({2-4}):x=x[1:]+x[:1]; x=x.replace('{Q}','{Q}{Q}'); "
            "x=x[::-1] if x[0]>'{Q}' else ''.join(sorted(x)); x=sum([ord(c)-65 for c in x]); "
            "y=len(x); y=x.count('{Q}')"}


# A word problem is a story about one number: the words of each line, and the statement that computes it.
STORY = (
    "gets {1-9}: x=x+{}",
    "loses {1-9}: x=x-{}",
    "doubles it: x=x*2",
    "gives half away: x=x//2",
    "buys {2-5} bags of {2-9}: x=x+{}*{}",
    "eats {1-4} a day for {2-5} days: x=x-{}*{}",
    "packs boxes of {2-5}: x=x//{}",
    "makes {3-5} of each: x=x*{}")
NAMES = ("ann", "bob", "tom")
# Clauses about one or two variables of a puzzle
CLAUSES = ("{}", "not {}", "{} or {}", "not {} or {}", "not {} or not {}", "{}=={}", "{}!={}")
CLAUSE_WEIGHTS = (1, 1, 3, 3, 3, 3, 3)
VARIABLES = "abcd"
ALLOWED = {f.__name__: f for f in (len, sum, sorted, max, min, abs, range, list, str, int, ord, chr)}


@dataclass(frozen=True)
class Program:
    """Holds a generated program: statements, one input x, its output y, and what each statement assigned."""
    body: tuple[str, ...]
    x: Value
    y: Value
    trace: tuple[Value, ...]


def literal(value: Value) -> str:
    """Returns a value as the micro prompt format writes it: no spaces, single quotes."""
    if isinstance(value, str):
        return f"'{value}'"
    return str(value).replace(" ", "")


def program_text(body: Sequence[str]) -> str:
    """Returns the program of a sequence of statements; no statement at all is the identity."""
    lines = [f" {statement}\n" for statement in body]
    return "def f(x):\n" + "".join(lines) + " return x\n"


def held_out(text: str) -> bool:
    """Returns whether a program's text is reserved for evaluation; on every machine alike, unlike hash()."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


@functools.cache
def compiled(statement: str) -> CodeType:
    """Returns the code of a statement, compiled once."""
    return compile(statement, "f", "exec")


def fits(value: object, length: int, low: int, high: int) -> bool:
    """Returns whether a value is an int from low to high, or a string or list of such ints of this length."""
    if isinstance(value, str):
        return len(value) <= length
    if not isinstance(value, list):
        value = [value]
    # True and False are no numbers here.
    return len(value) <= length and all(type(v) is int and low <= v <= high for v in value)


def step(statement: str, env: dict) -> Value | None:
    """Runs one statement in env. Returns a copy of the assigned value, None if it fails or is too big."""
    try:
        exec(compiled(statement), env)
    except (IndexError, ValueError, ZeroDivisionError, TypeError):
        return None
    value = env["y"] if assigns_y(statement) else env["x"]
    if not fits(value, 10, -999, 999):
        return None
    return copy(value)


def assigns_y(statement: str) -> bool:
    """Returns whether a statement assigns y. All others assign x, also those that begin with `if` or
    `for`."""
    return statement[0] == "y"


def start(x: Value) -> dict:
    """Returns the names that a program sees when it begins."""
    return {"__builtins__": ALLOWED, "x": copy(x)}


def run(body: Sequence[str], x: Value) -> tuple[Value, tuple[Value, ...]] | None:
    """Returns (output, trace) of our own program on x, None if a statement fails. Never for a model's
    text."""
    env = start(x)
    trace = []
    for statement in body:
        value = step(statement, env)
        if value is None:
            return None
        trace.append(value)
    return env["x"], tuple(trace)


def random_input(rng: Random, type_: str, size: int = 3) -> Value:
    """Returns an input; lists and strings have 2 to 3 + min(size, 3) items."""
    if type_ == "int":
        return random_int(rng)
    n = rng.randint(2, 3 + min(size, 3))
    if type_ == "list":
        return [rng.randrange(10) for _ in range(n)]
    letters = [rng.choice(Q) for _ in range(n)]
    return "".join(letters)


def random_int(rng: Random, least: int = 0) -> int:
    """Returns a number, as often of one digit as of two, up to 39."""
    if rng.random() < .5:
        return rng.randrange(least, 10)
    return rng.randrange(10, 40)


def filled(rng: Random, text: str) -> str:
    """Returns a text with something drawn in every slot: in {1-9} a number of this range, in {Q} a letter."""
    def drawn(slot: re.Match) -> str:
        if slot[1] == "Q":
            return rng.choice(Q)
        low, high = slot[1].split("-")
        return str(rng.randint(int(low), int(high)))

    return re.sub(r"{([^}]+)}", drawn, text)


def random_statement(rng: Random, type_: str, has_y: bool, p_hard: float) -> str:
    """Returns a statement for an x of this type."""
    u = rng.random()
    if u < p_hard:
        statements = HARD[type_]
    elif u >= p_hard + P_MID:
        statements = EASY[type_]
    elif has_y:
        statements = f"{MID[type_]}; {MID_WITH_Y[type_]}"
    else:
        statements = MID[type_]
    return filled(rng, rng.choice(statements.split("; ")))


def grow(rng: Random, n: int, x: Value, p_hard: float) -> Program | None:
    """Returns a program of n statements around the input x, None if 40 attempts do not suffice."""
    body = []
    trace = []
    env = start(x)
    for _ in range(40):
        if len(body) == n:
            return Program(tuple(body), x, env["x"], tuple(trace))
        has_y = "y" in env
        statement = random_statement(rng, type(env["x"]).__name__, has_y, p_hard)
        gives_y = assigns_y(statement)
        if body and statement == body[-1]:
            continue
        # One y is enough, and after the last statement nobody would read it.
        if gives_y and (has_y or len(body) == n - 1):
            continue
        trial = dict(env, x=copy(env["x"]))         # a loop may assign to x's items
        value = step(statement, trial)
        now = trial["x"]
        if value is None or now in ("", []) or not fits(now, 8, 0, 99):
            continue
        if not gives_y and now == env["x"] and rng.random() < .7:           # mostly none without effect
            continue
        body.append(statement)
        trace.append(value)
        env = trial
    return None


def depends_on_input(rng: Random, p: Program, type_: str, size: int) -> bool:
    """Returns whether the program has different values for four more inputs."""
    seen = set()
    for _ in range(4):
        result = run(p.body, random_input(rng, type_, size))
        if result:
            seen.add(literal(result[0]))
    return len(seen) > 1


def generate(rng: Random, n: int | None = None, p_hard: float | None = None,
             reserved: bool = False) -> Program:
    """Returns a random program of n statements that depends on its input; reserved: a held-out one."""
    if n is None:
        n = pick(rng, N_STATEMENTS)
    if p_hard is None:
        p_hard = .08 + .05 * n
    while True:
        [type_] = rng.choices(TYPES, TYPE_WEIGHTS)
        p = grow(rng, n, random_input(rng, type_, n), p_hard)
        if p is None or held_out(program_text(p.body)) != reserved:
            continue
        if depends_on_input(rng, p, type_, n):
            return p


def divides_evenly(p: Program) -> bool:
    """Returns whether no division of a word problem leaves a rest."""
    for statement, before in zip(p.body[1:], p.trace):
        divisor = statement.partition("//")[2]
        if divisor and before % int(divisor):
            return False
    return True


def word_problem(rng: Random, n: int, reserved: bool = False) -> tuple[str, Program]:
    """Returns a story of n events about a number, a line each, and the program that computes it."""
    while True:
        first = random_int(rng, least=1)
        lines = [f"{rng.choice(NAMES)} has {first}"]
        body = [f"x={first}"]
        for event in rng.choices(STORY, k=n):
            line, statement = filled(rng, event).split(": ")
            lines.append(line)
            body.append(statement.format(*re.findall(r"\d", line)))
        result = run(body, 0)
        if result is None:
            continue
        p = Program(tuple(body), 0, *result)
        if min(p.trace) < 0 or max(p.trace) > 99 or not divides_evenly(p):
            continue
        if held_out("\n".join(lines)) == reserved:
            return "\n".join(f"?{line}" for line in lines), p


World = tuple[bool, ...]                            # the truth values of a puzzle's variables


@functools.cache                                    # a search asks the same few clauses over and over
def holds(clause: str, world: World) -> bool:
    """Returns whether a clause, our own expression in Python, is true in a world."""
    return eval(clause, dict(zip(VARIABLES, world)))


def fulfilling(worlds: Iterable[World], clauses: list[str]) -> set[World]:
    """Returns the worlds in which all the clauses hold."""
    left = set(worlds)
    for clause in clauses:
        left = {world for world in left if holds(clause, world)}
    return left


def random_clause(rng: Random, n: int) -> str:
    """Returns a clause about one or two of the first n variables."""
    text = CLAUSES[pick(rng, CLAUSE_WEIGHTS)]
    return text.format(*rng.sample(VARIABLES[:n], 2))


def clauses_of(rng: Random, model: World, worlds: list[World]) -> list[str] | None:
    """Returns clauses that hold in the model. Each rules out more worlds, until the model alone is left. None
    if enough attempts leave more than it."""
    clauses = []
    left = set(worlds)
    for _ in range(4 * len(model)):
        clause = random_clause(rng, len(model))
        kept = fulfilling(left, [clause])
        if model in kept and kept != left:
            clauses.append(clause)
            left = kept
        if len(left) == 1:
            return clauses
    return None


def needed(worlds: list[World], clauses: list[str]) -> list[str]:
    """Returns the clauses without those that the others make superfluous."""
    for clause in list(clauses):
        others = [other for other in clauses if other != clause]
        if len(fulfilling(worlds, others)) == 1:
            clauses = others
    return clauses


def puzzle(rng: Random, n: int, reserved: bool = False) -> tuple[list[str], World]:
    """Returns clauses over the first n letters, none superfluous, and the one assignment that fulfils
    them."""
    worlds = list(itertools.product((False, True), repeat=n))
    while True:
        model = rng.choice(worlds)
        clauses = clauses_of(rng, model, worlds)
        if clauses is None:
            continue
        texts = needed(worlds, clauses)
        if set(VARIABLES[:n]) <= set("".join(texts)) and held_out("\n".join(texts)) == reserved:
            return texts, model


def pick(rng: Random, weights: Sequence[float]) -> int:
    """Returns a place in `weights`, drawn by them."""
    return rng.choices(range(len(weights)), weights)[0]


def fresh_program(key: str) -> tuple[str, tuple[str]]:
    """Returns a random program of 2 to 6 statements and its input, as text, drawn by the key alone."""
    rng = Random(key)
    p = generate(rng, rng.randint(2, 6))
    return program_text(p.body).strip("\n"), (literal(p.x),)


def pairs(rng: Random, p: Program, k: int) -> list[tuple[Value, Value]] | None:
    """Returns k (input, output) pairs of distinct inputs and at least two outputs, None if 40 draws give
    none."""
    type_ = type(p.x).__name__
    examples = {}
    for _ in range(40):
        x = random_input(rng, type_, rng.randrange(4))
        result = run(p.body, x)
        if result and fits(result[0], 8, -99, 99):
            examples[literal(x)] = (x, result[0])
        if len(examples) == k:
            break
    outputs = {literal(y) for _, y in examples.values()}
    if len(examples) < k or len(outputs) < 2:
        return None
    return list(examples.values())
