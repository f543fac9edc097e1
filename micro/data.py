"""The micro domain: random small programs with the trace of their values, as the text that the micro base is trained on.

    python -m micro.data            # an example of each kind, and the speed of the generator

A program is `def f(x)` over small ints, lists of small ints and short strings, one statement a line; a second variable y
may hold an intermediate value. Beside them stand word problems (a story about one number, with its program) and logic
puzzles (clauses that one assignment of truth values fulfils). The texts below ARE the micro task prompt format: tasks/prompts.py writes the
same. Programs run here with exec because this file wrote them; text from a model goes to verifier.py instead.
"""
import builtins
import functools
import hashlib
import itertools
import random
import time
from dataclasses import dataclass

TYPES = ("int", "list", "str")
TYPE_WEIGHTS = (2, 3, 1)
# Phase 1 learns the skills: nearly every answer that can have a trace has one.
MIXTURE = {"propose": .15, "out": .36, "out direct": .06, "inp": .18, "fun": .10, "args": .06,
           "propose math": .02, "math": .025, "propose logic": .015, "logic": .03, "inp direct": 0, "math direct": 0}
TRACED = ("out", "inp", "math")              # kinds whose answer has a trace, or is given directly
MATH_IN_PHASE_2 = .06                        # stories are rare in phase 1: at that share the habit would not turn in phase 2
N_STATEMENTS = (0, 16, 18, 19, 18, 16, 13)   # weights of 0..6 statements in what the model solves
N_PROPOSED = (0, 50, 27, 12, 6, 3, 2)        # ... in what it proposes: teachers start where the base solves most of it
N_FUN = (0, 50, 33, 17)                      # ... in what it writes from examples
N_ARGS = (8, 34, 26, 16, 9, 4, 3)            # ... in what it writes inputs for; the identity program seeds code_f
P_HARD_PROPOSED = .03
N_VARIABLES = (0, 0, 30, 40, 30)             # ... 2 to 4 variables of a puzzle to solve
N_PROPOSED_VARIABLES = (0, 0, 60, 30, 10)    # ... and to propose
N_SHOWN, N_INPUTS = 4, 8                     # pairs shown in "fun", inputs written in "args"
HELD_OUT = 50                                # programs whose hash is 0 modulo this never enter the training stream

D, Q = (1, 9), "ABCD"                        # a digit, a letter; other pairs in the tables are ranges, ends included
EASY = {
    "list": [("x=x[::-1]",), ("x=sorted(x)",), ("x=x[{}:]", (1, 2)), ("x=x[:{}]", (2, 4)), ("x=x[::2]",), ("x=x+[{}]", (0, 9)),
             ("x=[{}]+x", (0, 9)), ("x=len(x)",), ("x=max(x)",), ("x=min(x)",), ("x=x[{}]", (0, 2)), ("x=x[1:]+x[:1]",),
             ("x=x[:-1]",)],
    "int": [("x=x+{}", D), ("x=x%{}", (2, 9)), ("x=x//{}", (2, 4)), ("x=[x,{}]", (0, 9)), ("x=abs({}-x)", D),
            ("x=[x]*{}", (2, 4)),
            ("x=x%10",)],
    "str": [("x=x[::-1]",), ("x=x[{}:]", (1, 2)), ("x=x[:{}]", (2, 4)), ("x=x+'{}'", Q), ("x='{}'+x", Q), ("x=len(x)",),
            ("x=x[1:]+x[:1]",), ("x=x[::2]",)],
}
MID = {
    "list": [("x=[(v+{})%10 for v in x]", D), ("x=[v*{}%10 for v in x]", (2, 4)), ("x=[9-v for v in x]",),
             ("x=[v for v in x if v>{}]", (1, 5)), ("x=[v for v in x if v<{}]", (4, 8)), ("x=[v for v in x if v%2==0]",),
             ("x=x+x[:2]",), ("x=x.count({})", (0, 9)), ("if x[0]>{}:x=x[::-1]", (2, 7)), ("if len(x)>{}:x=x[1:]", (2, 4)),
             ("x=[v//2 for v in x]",), ("x=[v%{} for v in x]", (2, 5)), ("x=''.join([chr(65+v) for v in x])",)],
    "int": [("x=x*{}", (2, 4)), ("if x>{}:x=x-{}", (3, 9), (1, 3)), ("if x%2==0:x=x//2",), ("x=list(range(x%{}))", (4, 7)),
            ("x=[int(c) for c in str(x)]",), ("x='{}{}'*(x%4)", Q, Q)],
    "str": [("x=x.replace('{}','{}')", Q, Q), ("x=''.join(sorted(x))",), ("x=x.count('{}')", Q), ("x=[ord(c)-65 for c in x]",),
            ("if '{}' in x:x=x[::-1]", Q), ("x=x+x[::-1]",), ("x=[x.count(c) for c in x]",)],
}
MID_WITH_Y = {                               # joins MID once y is assigned, so that y matters
    "list": [("x=[(v+y)%10 for v in x]",)] * 2 + [("x=x+[y]",), ("x=[v for v in x if v>y]",)],
    "int": [("x=x+y",), ("x=[x,y]",), ("if x>y:x=x-y",)],
    "str": [("x=x[y:]",), ("x=[y,len(x)]",)],
}
HARD = {
    "list": [("x=sum(x)",), ("x=sum(x)%{}", (3, 9)), ("for i in range({}):x=x[1:]+x[:1]", (2, 4)),
             ("x=sum([v*{} for v in x])%10", (2, 3)), ("x=x[::-1] if x[0]>{} else sorted(x)", (2, 7)),
             ("for i in range(len(x)-1):x[i+1]=(x[i]+x[i+1])%10",), ("x=[v*v%{} for v in x]", (5, 9)), ("y=sum(x)%10",),
             ("y=len(x)",), ("y=x[0]",)],
    "int": [("for i in range({}):x=x*{}%{}", (2, 4), (2, 3), (5, 9)), ("x=x*{}%{}", (2, 9), (5, 9)),
            ("x=x*2 if x%3==0 else x+{}", D), ("x=x*x%10",), ("y=x%{}", (3, 9)), ("x=[(x+v)%10 for v in range({})]", (3, 5)),
            ("x=[v*x%10 for v in range({})]", (3, 5))],
    "str": [("for i in range({}):x=x[1:]+x[:1]", (2, 4)), ("x=x.replace('{}','{}{}')", Q, Q, Q),
            ("x=x[::-1] if x[0]>'{}' else ''.join(sorted(x))", Q), ("x=sum([ord(c)-65 for c in x])",), ("y=len(x)",),
            ("y=x.count('{}')", Q)],
}
P_MID = .45
# A word problem is a story about one number, told line by line: (line, statement, slots)
STORY = (("gets {}", "x=x+{}", D), ("loses {}", "x=x-{}", D), ("doubles it", "x=x*2"), ("gives half away", "x=x//2"),
         ("buys {} bags of {}", "x=x+{}*{}", (2, 5), (2, 9)), ("eats {} a day for {} days", "x=x-{}*{}", (1, 4), (2, 5)),
         ("packs boxes of {}", "x=x//{}", (2, 5)), ("makes {} of each", "x=x*{}", (3, 5)))
NAMES = ("ann", "bob", "tom")
# Clauses about two variables of a puzzle: (text, whether it holds)
CLAUSES = (("{}", lambda a, b: a), ("not {}", lambda a, b: not a), ("{} or {}", lambda a, b: a or b),
           ("not {} or {}", lambda a, b: not a or b), ("not {} or not {}", lambda a, b: not a or not b),
           ("{}=={}", lambda a, b: a == b), ("{}!={}", lambda a, b: a != b))
ALLOWED = {name: getattr(builtins, name) for name in "len sum sorted max min abs range list str int ord chr".split()}


@dataclass(frozen=True)
class Program:
    """A generated program: statements, one input x, its output y, and the value that each statement assigned."""
    body: tuple[str, ...]
    x: object
    y: object
    trace: tuple


@dataclass(frozen=True)
class Example:
    """One training row; the loss is on the answer and its end token. kind is a key of MIXTURE, n counts statements."""
    kind: str
    n: int
    prompt: str
    answer: str


def habit(thinking: float) -> dict[str, float]:
    """The mixture of phase 2, which takes away the habit of thinking and leaves the skill: of the answers that can have
    a trace, this share has one. Kinds without a trace, and proposals, are as in phase 1."""
    mixture = MIXTURE | {"math": MATH_IN_PHASE_2}
    for kind in TRACED:
        share = mixture[kind] + mixture[f"{kind} direct"]
        mixture |= {kind: share * thinking, f"{kind} direct": share * (1 - thinking)}
    return mixture


# ---------------------------------------------------------------- texts
def literal(value) -> str:
    """A value as the micro prompt format writes it: no spaces, single quotes."""
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def program_text(body) -> str:
    """The program of a sequence of statements; no statement at all is the identity."""
    return "def f(x):\n" + "".join(f" {s}\n" for s in body) + " return x\n"


def call(x) -> str:
    return f"f({literal(x)})"


def propose_prompt(task: str, type_: str) -> str:
    """task: "out" | "inp"; type_: the type of the input, one of TYPES."""
    return f"propose {task} {type_}\n"


def propose_answer(p: Program) -> str:
    return program_text(p.body) + call(p.x)


def out_prompt(text: str, x) -> str:
    return f"out\n{text}{call(x)}\n"


def out_answer(p: Program) -> str:
    """The trace, forwards, then the output."""
    return "".join(f">{literal(v)}\n" for v in p.trace) + f"={literal(p.y)}"


def inp_prompt(text: str, y) -> str:
    return f"inp\n{text}{literal(y)}\n"


def inp_answer(p: Program) -> str:
    """The trace, backwards from the value before the last statement, then the input."""
    return "".join(f"<{literal(v)}\n" for v in p.trace[-2::-1]) + f"={literal(p.x)}"


def fun_prompt(pairs) -> str:
    """pairs: (input, output) values."""
    return "fun\n" + "".join(f"{call(x)}={literal(y)}\n" for x, y in pairs)


def args_prompt(text: str) -> str:
    return f"args\n{text}"


def args_answer(inputs) -> str:
    return "\n".join(map(call, inputs))


def math_prompt(lines) -> str:
    """lines: those of a word problem."""
    return "math\n" + "".join(f"?{line}\n" for line in lines)


def math_answer(p: Program) -> str:
    """The values of x after each line but the first, then the last one."""
    return "".join(f">{v}\n" for v in p.trace[1:]) + f"={p.y}"


def propose_math_answer(lines, p: Program) -> str:
    return "".join(f"?{line}\n" for line in lines) + program_text(p.body).replace("f(x)", "f()").rstrip("\n")


def logic_prompt(clauses) -> str:
    return "logic\n" + "".join(f"{clause}\n" for clause in clauses)


def logic_answer(model) -> str:
    """model: one bool per variable, in alphabetical order."""
    return "=" + ",".join(str(int(value)) for value in model)


def held_out(text: str) -> bool:
    """Is this program text reserved for evaluation? The same on every machine, unlike hash()."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % HELD_OUT == 0


# ---------------------------------------------------------------- execution of our own statements
@functools.lru_cache(maxsize=None)
def compiled(statement: str):
    return compile(statement, "f", "exec")


def type_of(value) -> str:
    return type(value).__name__


def fits(value, length: int, bound: int) -> bool:
    """Is value an int within +-bound, or a string or list of such ints no longer than length?"""
    if isinstance(value, list):
        return len(value) <= length and all(type(v) is int and -bound <= v <= bound for v in value)
    return len(value) <= length if isinstance(value, str) else type(value) is int and -bound <= value <= bound


def presentable(value) -> bool:
    """May x have this value after a statement? At most 8 items and not none of them, numbers from 0 to 99."""
    if isinstance(value, str):
        return 0 < len(value) <= 8
    items = value if isinstance(value, list) else [value]
    return 0 < len(items) <= 8 and all(type(v) is int and 0 <= v <= 99 for v in items)


def step(statement: str, env: dict):
    """Run one statement in env; the assigned value (a copy), or None when it fails or the value is too big to write."""
    try:
        exec(compiled(statement), env)
    except (IndexError, ValueError, ZeroDivisionError, TypeError):
        return None
    value = env["y" if statement[0] == "y" else "x"]
    return (value[:] if type(value) is list else value) if fits(value, 10, 999) else None


def start(x) -> dict:
    return {"__builtins__": ALLOWED, "x": x[:] if type(x) is list else x}


def run(body, x) -> tuple[object, tuple] | None:
    """(output, trace) of our own program on x, or None where a statement fails. Never for text from a model."""
    env, trace = start(x), []
    for statement in body:
        value = step(statement, env)
        if value is None:
            return None
        trace.append(value)
    return env["x"], tuple(trace)


# ---------------------------------------------------------------- generation
def random_input(rng: random.Random, type_: str, size: int = 3):
    """An input; lists and strings have 2 to 3 + min(size, 3) items."""
    if type_ == "int":
        return rng.randrange(10) if rng.random() < .5 else rng.randrange(10, 40)
    n = rng.randint(2, 3 + min(size, 3))
    return [rng.randrange(10) for _ in range(n)] if type_ == "list" else "".join(rng.choice(Q) for _ in range(n))


def random_statement(rng: random.Random, type_: str, has_y: bool, p_hard: float) -> str:
    """A statement for an x of this type."""
    u = rng.random()
    if u < p_hard:
        table = HARD[type_]
    elif u < p_hard + P_MID:
        table = MID[type_] + MID_WITH_Y[type_] if has_y else MID[type_]
    else:
        table = EASY[type_]
    template, *slots = rng.choice(table)
    return template.format(*(rng.choice(s) if s is Q else rng.randint(*s) for s in slots)) if slots else template


def grow(rng: random.Random, n: int, x, p_hard: float) -> Program | None:
    """A program of n statements around the input x, statement by statement; None when 40 attempts do not suffice."""
    body, trace, has_y, env = [], [], False, start(x)
    for _ in range(40):
        if len(body) == n:
            return Program(tuple(body), x, env["x"], tuple(trace))
        statement = random_statement(rng, type_of(env["x"]), has_y, p_hard)
        assigns_y = statement[0] == "y"
        if (body and statement == body[-1]) or (assigns_y and (has_y or len(body) == n - 1)):
            continue
        trial = dict(env, x=env["x"][:]) if type(env["x"]) is list else dict(env)      # a loop may assign to x's items
        value, now = step(statement, trial), trial["x"]
        if value is None or not presentable(now):
            continue
        if not assigns_y and now == env["x"] and rng.random() < .7:                    # mostly no statements without effect
            continue
        body.append(statement)
        trace.append(value)
        env, has_y = trial, has_y or assigns_y
    return None


def generate(rng: random.Random, n: int | None = None, type_: str | None = None, p_hard: float | None = None,
             reserved: bool = False) -> Program:
    """A random program that depends on its input. Knobs: n statements, P(hard statement); reserved draws held-out ones."""
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


def word_problem(rng: random.Random, n: int, reserved: bool = False) -> tuple[list[str], Program]:
    """A story of n events about a number and the program that computes it (x is never read before it is set)."""
    while True:
        first = rng.randint(*D) if rng.random() < .5 else rng.randrange(10, 40)
        lines, body = [f"{rng.choice(NAMES)} has {first}"], [f"x={first}"]
        for line, statement, *slots in rng.choices(STORY, k=n):
            values = [rng.randint(*slot) for slot in slots]
            lines.append(line.format(*values))
            body.append(statement.format(*values))
        result = run(body, 0)
        even = result and all("//" not in s or before % int(s[s.index("//") + 2:]) == 0 for s, before in zip(body[1:], result[1]))
        if even and all(0 <= value <= 99 for value in result[1]) and held_out("\n".join(lines)) == reserved:
            return lines, Program(tuple(body), 0, *result)


def puzzle(rng: random.Random, n: int, reserved: bool = False) -> tuple[list[str], tuple[bool, ...]]:
    """Clauses over the first n letters that exactly one assignment fulfils, none of them superfluous, and that assignment."""
    worlds = list(itertools.product((False, True), repeat=n))
    while True:
        model, clauses, left = rng.choice(worlds), [], worlds
        for _ in range(4 * n):
            (text, holds), (i, j) = CLAUSES[pick(rng, (1, 1, 3, 3, 3, 3, 3))], rng.sample(range(n), 2)
            kept = [w for w in left if holds(w[i], w[j])]
            if model in kept and len(kept) < len(left):
                clauses.append((text.format("abcd"[i], "abcd"[j]), lambda w, f=holds, i=i, j=j: f(w[i], w[j])))
                left = kept
            if len(left) == 1:
                break
        for clause in list(clauses):
            others = [c for c in clauses if c is not clause]
            if sum(all(holds(w) for _, holds in others) for w in worlds) == 1:
                clauses = others
        texts = [text for text, _ in clauses]
        used = set("".join(texts).replace("or", "").replace("not", ""))
        if len(left) == 1 and set("abcd"[:n]) <= used and held_out("\n".join(texts)) == reserved:
            return texts, model


def pick(rng: random.Random, weights) -> int:
    return rng.choices(range(len(weights)), weights)[0]


def pairs(rng: random.Random, body, type_: str, k: int) -> list | None:
    """k (input, output) pairs with distinct inputs and at least two outputs, or None where 40 draws do not give them."""
    found = {}
    for _ in range(40):
        x = random_input(rng, type_, rng.randrange(4))
        result = run(body, x)
        if result and fits(result[0], 8, 99):
            found[literal(x)] = x, result[0]
        if len(found) == k:
            return list(found.values()) if len({literal(y) for _, y in found.values()}) > 1 else None
    return None


def example(rng: random.Random, kind: str | None = None, mixture: dict[str, float] = MIXTURE) -> Example:
    """One row of the training stream: the kind drawn from a mixture (or given), then a fresh program for it."""
    kind = kind or rng.choices(list(mixture), list(mixture.values()))[0]
    task, direct = kind.removesuffix(" direct"), kind.endswith(" direct")
    if kind == "propose":
        p = generate(rng, pick(rng, N_PROPOSED), p_hard=P_HARD_PROPOSED)
        return Example(kind, len(p.body), propose_prompt(rng.choice(("out", "inp")), type_of(p.x)), propose_answer(p))
    if kind in ("fun", "args"):
        return example_of_pairs(rng, kind)
    if task.endswith("math"):
        n = pick(rng, N_PROPOSED if kind.startswith("propose") else N_STATEMENTS)
        lines, p = word_problem(rng, n)
        if task == "math":
            return Example(kind, n, math_prompt(lines), f"={p.y}" if direct else math_answer(p))
        return Example(kind, n, f"{kind}\n", propose_math_answer(lines, p))
    if kind.endswith("logic"):
        n = pick(rng, N_PROPOSED_VARIABLES if kind.startswith("propose") else N_VARIABLES)
        clauses, model = puzzle(rng, n)
        if kind == "logic":
            return Example(kind, n, logic_prompt(clauses), logic_answer(model))
        return Example(kind, n, f"{kind}\n", "\n".join(clauses))
    p = generate(rng)
    text = program_text(p.body)
    if task == "inp":
        answer = f"={literal(p.x)}" if direct else inp_answer(p)
        return Example(kind, len(p.body), inp_prompt(text, p.y), answer)
    answer = f"={literal(p.y)}" if direct else out_answer(p)
    return Example(kind, len(p.body), out_prompt(text, p.x), answer)


def example_of_pairs(rng: random.Random, kind: str) -> Example:
    """The two halves of induction: a program from pairs ("fun"), or inputs for a program ("args")."""
    while True:
        n = pick(rng, N_FUN if kind == "fun" else N_ARGS)
        p = generate(rng, n)
        found = pairs(rng, p.body, type_of(p.x), N_SHOWN if kind == "fun" else N_INPUTS)
        if found and kind == "fun":
            return Example(kind, n, fun_prompt(found), program_text(p.body))
        if found:
            return Example(kind, n, args_prompt(program_text(p.body)), args_answer(x for x, _ in found))


if __name__ == "__main__":
    rng = random.Random(0)
    for kind in MIXTURE:
        e = example(rng, kind)
        print(f"--- {kind}, {e.n} statements\n{e.prompt}{e.answer}")
    began, n = time.perf_counter(), 5000
    for _ in range(n):
        example(rng)
    print(f"--- {n / (time.perf_counter() - began):.0f} examples/s")
