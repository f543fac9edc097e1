"""Are two expressions the same function? Decided by numbers and sympy, in a process that can be killed.

    same(a, b)  --JSON line, trees of expression.py-->  python -m eval.math.symbolic  --true | false-->

A worker that does not answer in time is killed and replaced. It builds sympy objects node by node from the
tree; no text is parsed there. `exact` does the rational part, at once and in this process.
"""
import atexit
import json
import math
import operator
import select
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

TIME_S, START_S = 5.0, 60.0             # of one question; of importing sympy on a busy machine
GRADE_S = 15.0                          # of all questions that one answer asks
MAX_BITS, MAX_FACTORIAL = 20_000, 500   # of an exact number; n of n!
MAX_SIZE = 200_000                      # bits of a number that the worker meets
DIGITS, AGREE = 60, 45                  # working precision; agreeing digits that mean equal at a point
MAX_MEMORY = 2 << 30
LEAVES = ("num", "sym", "const")
OPERATIONS = ("fn", "root", "neg", "add", "mul", "div", "pow", "log", "fact", "binom", "percent", "degree")


# ---- exact rationals --------------------------------------------------------------------------------------

def exact(tree: tuple) -> Fraction | None:
    """The value of a tree that is rational by arithmetic alone; None for others and for too long numbers."""
    kind, parts = tree[0], tree[1:]
    if kind == "num":
        return tree[1]
    if kind not in ("add", "mul", "div", "pow", "neg", "fact", "binom", "percent"):
        return None
    values = [exact(part) for part in parts]
    if None in values or max(map(length, values)) > MAX_BITS:
        return None
    a, b = values[0], values[-1]
    if kind in ("fact", "binom"):
        if any(v.denominator != 1 or not 0 <= v <= MAX_FACTORIAL for v in values):
            return None
        return Fraction(math.factorial(int(a)) if kind == "fact" else math.comb(int(a), int(b)))
    if kind == "pow":
        if b.denominator != 1 or abs(b) * length(a) > MAX_BITS or a == 0 and b <= 0:
            return None
        return a ** int(b)
    if kind == "div":
        return a / b if b else None
    return {"add": a + b, "mul": a * b, "neg": -a, "percent": a / 100}[kind]


def length(x: Fraction) -> int:
    """Bits of numerator and denominator."""
    return abs(x.numerator).bit_length() + x.denominator.bit_length()


def is_scalar(tree: tuple) -> bool:
    """Whether a tree is numbers, symbols and operations on them alone: no set, tuple, text ... inside."""
    parts = [part for part in tree[1:] if isinstance(part, tuple)]
    return tree[0] in LEAVES or tree[0] in OPERATIONS and all(map(is_scalar, parts))


def bits(tree: tuple) -> float:
    """An upper estimate of the size of a scalar tree's value, in bits; symbols count as small numbers."""
    kind, parts = tree[0], tree[1:]
    if kind in LEAVES:
        return length(tree[1]) if kind == "num" else 2
    sizes = [bits(part) for part in parts if isinstance(part, tuple)]
    largest = 2.0 ** min(sizes[-1], 60)
    if kind == "pow":
        return max(sizes[0], 1) * largest
    if kind in ("fact", "binom") or parts[0] in ("exp", "sinh", "cosh"):
        return max(sizes) * 2.0 ** min(max(sizes), 60)
    return sum(sizes) + 1


def symbols_of(tree: tuple) -> set[str]:
    """Names of the symbols of a scalar tree."""
    if tree[0] == "sym":
        return {tree[1]}
    return set().union(*[symbols_of(part) for part in tree[1:] if isinstance(part, tuple)])


# ---- the parent's side ------------------------------------------------------------------------------------

class Late(Exception):
    """The worker did not answer in time and was killed."""


class Died(Exception):
    """The worker ended before it answered: an error of ours, or of the libraries that it uses."""


class Worker:
    """One persistent process that answers questions in turn; replaced when it hangs (n_late times) or dies.

    left_s: seconds that it may still take in all, which whoever asks several questions sets.
    """

    def __init__(self):
        self.process, self.n_late, self.left_s = None, 0, math.inf

    def start(self) -> None:
        """Starts the process. Raises OSError where it does not get ready."""
        self.close()
        self.process = subprocess.Popen([sys.executable, "-m", "eval.math.symbolic"], text=True,
                                        cwd=Path(__file__).resolve().parents[2], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self.line(START_S) != "ready":
            self.close()
            raise OSError(f"the symbolic worker ({sys.executable} -m eval.math.symbolic) does not start: is "
                          "sympy installed?")

    def ask(self, question: dict, time_s: float = TIME_S) -> bool:
        """The answer to one question. Raises Late for none within time_s seconds, Died, OSError."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        begun, time_s = time.monotonic(), min(time_s, self.left_s)
        try:
            self.process.stdin.write(json.dumps({**question, "time_s": time_s}, default=str) + "\n")
            self.process.stdin.flush()
            answer = self.line(time_s)
        except BrokenPipeError:
            answer = ""
        self.left_s -= time.monotonic() - begun
        if answer in ("true", "false"):
            return answer == "true"
        self.close()
        if answer is not None:
            raise Died
        self.n_late += 1
        raise Late

    def line(self, time_s: float) -> str | None:
        """The next line of the worker, "" when it is gone, None when it is late."""
        ready = time_s > 0 and select.select([self.process.stdout], [], [], time_s)[0]
        return self.process.stdout.readline().strip() if ready else None

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.process = None


WORKER = Worker()
atexit.register(WORKER.close)


def same(a: tuple, b: tuple, relative: float = 0.0, proportional: bool = False) -> bool:
    """Whether two trees are scalars that are equal for all values of their symbols; on doubt, False.

    relative: also true for two numbers that differ by at most this share of b. proportional: whether one is a
    constant multiple of the other, not zero (two forms of one equation). Raises Late and Died.
    """
    if a == b:
        return True
    if not (is_scalar(a) and is_scalar(b)) or max(bits(a), bits(b)) > MAX_SIZE:
        return False
    return WORKER.ask(dict(a=a, b=b, relative=relative, proportional=proportional))


# ---- the worker's side ------------------------------------------------------------------------------------

def build(tree: tuple, make: dict):
    """The value of a tree in the arithmetic `make`: a dict from kinds to functions of the parts' values."""
    kind, parts = tree[0], tree[1:]
    if kind in LEAVES:
        return make[kind](parts[0])
    if kind == "fn":
        return make[parts[0]](build(parts[1], make))
    return make[kind](*[build(part, make) for part in parts])


def arithmetic(lib, leaf: dict, named: dict) -> dict:
    """What each kind of node means in sympy or mpmath; leaf, named: where these differ."""
    make = dict(add=operator.add, mul=operator.mul, div=operator.truediv, neg=operator.neg, pow=operator.pow,
                root=lambda a, n: a ** (1 / n), percent=lambda a: a / 100,
                degree=lambda a: a * leaf["const"]("pi") / 180, ln=lib.log, fact=lib.factorial,
                binom=lib.binomial, arcsin=lib.asin, arccos=lib.acos, arctan=lib.atan)
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "log", "floor"):
        make[name] = getattr(lib, name)
    return make | leaf | named


def numeric(tree: tuple, point: dict):
    """Value of a tree at a point (symbol -> mpmath number), perhaps complex.

    Raises ValueError, ArithmeticError, TypeError.
    """
    import mpmath
    constants = dict(pi=mpmath.pi, e=mpmath.e, i=mpmath.mpc(0, 1), oo=mpmath.inf)

    def number(text: str):
        value = Fraction(text)
        return mpmath.mpf(value.numerator) / value.denominator

    leaf = dict(num=number, sym=point.__getitem__, const=lambda name: +constants[name])
    value = build(tree, arithmetic(mpmath, leaf, dict(abs=abs, ceil=mpmath.ceil)))
    if not mpmath.isfinite(value):
        raise ValueError("not finite")
    return value


def algebraic(tree: tuple):
    """The sympy expression of a tree."""
    import sympy
    constants = dict(pi=sympy.pi, e=sympy.E, i=sympy.I, oo=sympy.oo)
    leaf = dict(num=sympy.Rational, sym=sympy.Symbol, const=constants.__getitem__)
    return build(tree, arithmetic(sympy, leaf, dict(abs=sympy.Abs, ceil=sympy.ceiling)))


def points(symbols: list[str]) -> list[dict]:
    """Places to compare at: values of either sign, the same in every run."""
    import random
    import mpmath
    rng, places = random.Random("points"), []
    for sign in [1, -1] * 5 if symbols else [1]:
        millionths = [sign * rng.randrange(10 ** 6, 3 * 10 ** 6) for _ in symbols]
        places.append({name: mpmath.mpf(n) / 10 ** 6 for name, n in zip(symbols, millionths)})
    return places


def decide(a: tuple, b: tuple, relative: float, proportional: bool) -> bool:
    """Equal at every point where both are defined (three of ten at least), and not refuted by sympy."""
    import mpmath
    mpmath.mp.dps = DIGITS
    symbols, pairs = sorted(symbols_of(a) | symbols_of(b)), []
    for point in points(symbols):
        try:
            pairs.append((numeric(a, point), numeric(b, point)))
        except (ValueError, ArithmeticError, TypeError):
            continue
    if len(pairs) < (3 if symbols else 1):
        return False
    floor, share = mpmath.mpf(10) ** (5 - DIGITS), mpmath.mpf(10) ** -AGREE
    if proportional:
        x0, y0 = pairs[0]
        if not symbols or abs(x0) < floor or abs(y0) < floor:
            return False
        pairs = [(x * y0, y * x0) for x, y in pairs]
    elif not symbols:
        share = max(share, mpmath.mpf(relative))
    if any(abs(x - y) > max(floor, share * abs(y)) for x, y in pairs):
        return False
    if symbols or relative:
        return True
    difference = algebraic(a) - algebraic(b)
    return not (difference.is_Rational and difference != 0)      # numbers that differ beyond the digits above


def json_tuple(tree):
    """Lists of JSON as the tuples they were."""
    return tuple(map(json_tuple, tree)) if isinstance(tree, list) else tree


def serve() -> None:
    """Answers one JSON question a line until the input ends. An alarm ends it even if its parent is gone."""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    two = ("num", Fraction(2))
    half = ("div", ("num", 1), two)
    decide(("root", two, two), ("pow", two, half), 0.0, False)      # imports all that sympy puts off
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        signal.alarm(math.ceil(question.pop("time_s")) + 1)
        a, b = json_tuple(question.pop("a")), json_tuple(question.pop("b"))
        try:
            answer = decide(a, b, **question)
        except (ValueError, ArithmeticError, TypeError, AttributeError, NotImplementedError, RecursionError,
                MemoryError):
            answer = False
        signal.alarm(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
