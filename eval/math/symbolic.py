"""Are two expressions the same function? Decided by numbers and sympy, in a process of its own that can be killed.

    parent:  same(a, b)  --JSON line, trees of eval/math/expression.py-->  `python -m eval.math.symbolic`  --true | false-->  parent

A worker that does not answer in time is killed and replaced. It builds sympy objects node by node from
the tree; no text is parsed there. `exact` does the rational part, at once and in this process.
"""
import atexit
import json
import math
import select
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

TIME_S, START_S = 5.0, 60.0             # of one question; of importing sympy on a busy machine
MAX_BITS, MAX_SIZE, MAX_FACTORIAL = 20_000, 200_000, 500       # of an exact number; of one that the worker meets; n of n!
DIGITS, AGREE = 60, 45                  # working precision; agreeing digits that mean equal at a point
MAX_MEMORY = 2 << 30


# ---- exact rationals -----------------------------------------------------------------------------------------------------

def exact(tree: tuple) -> Fraction | None:
    """The value of a tree that is rational by arithmetic alone; None for any other, and where numbers would grow too long."""
    kind, parts = tree[0], tree[1:]
    if kind == "num":
        return tree[1]
    if kind not in ("add", "mul", "div", "pow", "neg", "fact", "binom", "percent"):
        return None
    values = [exact(part) for part in parts]
    if None in values or max(abs(v.numerator).bit_length() + v.denominator.bit_length() for v in values) > MAX_BITS:
        return None
    a, b = values[0], values[-1]
    if kind in ("fact", "binom"):
        if any(v.denominator != 1 or not 0 <= v <= MAX_FACTORIAL for v in values):
            return None
        return Fraction(math.factorial(int(a)) if kind == "fact" else math.comb(int(a), int(b)))
    if kind == "pow":
        bits = abs(a.numerator).bit_length() + a.denominator.bit_length()
        if b.denominator != 1 or abs(b) * bits > MAX_BITS or a == 0 and b <= 0:
            return None
        return a ** int(b)
    if kind == "div":
        return a / b if b else None
    return {"add": a + b, "mul": a * b, "neg": -a, "percent": a / 100}[kind]


def bits(tree: tuple) -> float:
    """An upper estimate of the size of a scalar tree's value, in bits; symbols count as small numbers."""
    kind, parts = tree[0], tree[1:]
    if kind == "num":
        return max(abs(tree[1].numerator).bit_length(), tree[1].denominator.bit_length())
    if kind in ("sym", "const"):
        return 2
    sizes = [bits(part) for part in parts if isinstance(part, tuple)]
    largest = 2.0 ** min(sizes[-1], 60)
    if kind == "pow":
        return max(sizes[0], 1) * largest
    if kind in ("fact", "binom") or parts[0] in ("exp", "sinh", "cosh"):
        return max(sizes) * 2.0 ** min(max(sizes), 60)
    return sum(sizes) + 1


def leaves(tree: tuple) -> list[tuple]:
    """Numbers, symbols and constants of a scalar tree."""
    found = [tree]
    for node in found:
        found += [part for part in node[1:] if isinstance(part, tuple)]
    return [node for node in found if node[0] in ("num", "sym", "const")]


# ---- the parent's side ---------------------------------------------------------------------------------------------------

class Late(Exception):
    """The worker did not answer in time and was killed."""


class Worker:
    """One persistent process that answers questions in turn; replaced when it hangs or dies (n_late times)."""

    def __init__(self):
        self.process, self.n_late = None, 0

    def ask(self, question: dict, time_s: float = TIME_S) -> bool:
        """The answer to one question. Raises Late when none comes within time_s seconds, OSError where no worker starts."""
        if self.process is None or self.process.poll() is not None:
            self.close()
            root = Path(__file__).resolve().parents[2]
            self.process = subprocess.Popen([sys.executable, "-m", "eval.math.symbolic"], cwd=root, text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if self.line(START_S) != "ready":
                self.close()
                raise OSError(f"the symbolic worker ({sys.executable} -m eval.math.symbolic) does not start: is sympy installed?")
        try:
            self.process.stdin.write(json.dumps({**question, "time_s": time_s}, default=str) + "\n")
            self.process.stdin.flush()
            answer = self.line(time_s)
        except BrokenPipeError:
            answer = ""
        if answer not in ("true", "false"):
            self.close()
            self.n_late += 1
            raise Late
        return answer == "true"

    def line(self, time_s: float) -> str:
        """The next line of the worker, or "" when it is late or gone."""
        ready, _, _ = select.select([self.process.stdout], [], [], time_s)
        return self.process.stdout.readline().strip() if ready else ""

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


def same(a: tuple, b: tuple, relative: float = 0.0, proportional: bool = False, time_s: float = TIME_S) -> bool:
    """Whether two scalar trees are equal for all values of their symbols; on doubt, False.

    relative: also true for two numbers that differ by at most this share of b. proportional: whether one is a constant multiple
    of the other, not zero (two forms of one equation). Raises Late when that takes longer than time_s seconds.
    """
    if a == b:
        return True
    if max(bits(a), bits(b)) > MAX_SIZE:
        return False
    return WORKER.ask(dict(a=a, b=b, relative=relative, proportional=proportional), time_s)


# ---- the worker's side ---------------------------------------------------------------------------------------------------

def build(tree: tuple, make: dict):
    """The value of a tree in the arithmetic `make`: a dict from kinds to functions of the parts' values."""
    kind, parts = tree[0], tree[1:]
    if kind in ("num", "sym", "const"):
        return make[kind](parts[0])
    if kind == "fn":
        return make[parts[0]](build(parts[1], make))
    return make[kind](*[build(part, make) for part in parts])


def arithmetic(lib, leaf: dict) -> dict:
    """What each kind of node means in sympy or mpmath, which share these names."""
    one = lambda name: getattr(lib, name)
    make = dict(leaf, add=lambda a, b: a + b, mul=lambda a, b: a * b, div=lambda a, b: a / b, neg=lambda a: -a,
                pow=lambda a, b: a ** b, root=lambda a, n: a ** (1 / n), percent=lambda a: a / 100,
                degree=lambda a: a * leaf["const"]("pi") / 180, log=lambda a, *base: one("log")(a, *base), ln=one("log"),
                fact=one("factorial"), binom=one("binomial"), arcsin=one("asin"), arccos=one("acos"), arctan=one("atan"))
    return make | {name: one(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")}


def numeric(tree: tuple, point: dict):
    """Value of a tree at a point (symbol -> mpmath number), perhaps complex. Raises ValueError, ArithmeticError, TypeError."""
    import mpmath
    constants = dict(pi=mpmath.pi, e=mpmath.e, i=mpmath.mpc(0, 1), oo=mpmath.inf)
    leaf = dict(num=lambda text: mpmath.mpf(Fraction(text).numerator) / Fraction(text).denominator, sym=point.__getitem__,
                const=lambda name: +constants[name])
    value = build(tree, arithmetic(mpmath, leaf) | dict(abs=abs, floor=mpmath.floor, ceil=mpmath.ceil))
    if not mpmath.isfinite(value):
        raise ValueError("not finite")
    return value


def algebraic(tree: tuple):
    """The sympy expression of a tree."""
    import sympy
    constants = dict(pi=sympy.pi, e=sympy.E, i=sympy.I, oo=sympy.oo)
    leaf = dict(num=lambda text: sympy.Rational(Fraction(text).numerator, Fraction(text).denominator), sym=sympy.Symbol,
                const=constants.__getitem__)
    return build(tree, arithmetic(sympy, leaf) | dict(abs=sympy.Abs, floor=sympy.floor, ceil=sympy.ceiling))


def points(symbols: list[str]) -> list[dict]:
    """Places to compare at: values of either sign, the same in every run."""
    import random
    import mpmath
    rng = random.Random("points")
    draw = lambda sign: mpmath.mpf(rng.randrange(10 ** 6, 3 * 10 ** 6)) / 10 ** 6 * sign
    return [{name: draw(sign) for name in symbols} for sign in [1, -1] * 5] if symbols else [{}]


def decide(a: tuple, b: tuple, relative: float, proportional: bool) -> bool:
    """Equal at every point where both are defined (at least three of ten, where there are symbols), and not refuted by sympy."""
    import mpmath
    mpmath.mp.dps = DIGITS
    symbols, pairs = sorted({node[1] for tree in (a, b) for node in leaves(tree) if node[0] == "sym"}), []
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
    if not symbols and not proportional:
        share = max(share, mpmath.mpf(relative))
    if any(abs(x - y) > max(floor, share * abs(y)) for x, y in pairs):
        return False
    if symbols or relative:
        return True
    difference = algebraic(a) - algebraic(b)
    return not (difference.is_Rational and difference != 0)      # numbers that differ beyond all the digits compared above


def json_tuple(tree):
    """Lists of JSON as the tuples they were."""
    return tuple(map(json_tuple, tree)) if isinstance(tree, list) else tree


def serve() -> None:
    """Answers one JSON question a line until the input ends. An alarm kills this process even if its parent is gone."""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    two = ("num", Fraction(2))
    decide(("root", two, two), ("pow", two, ("div", ("num", 1), two)), 0.0, False)      # imports all that sympy puts off
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        signal.alarm(math.ceil(question["time_s"]) + 1)
        try:
            answer = decide(json_tuple(question["a"]), json_tuple(question["b"]), question["relative"], question["proportional"])
        except (ValueError, ArithmeticError, TypeError, AttributeError, NotImplementedError, RecursionError, MemoryError):
            answer = False
        signal.alarm(0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
