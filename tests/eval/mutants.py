"""Three wrong (or nearly right) programs for each published solution, the same ones wherever they are made.

Two are changes of one place in the syntax tree; the third turns what the solution returns into something else
of the same content, or nearly. evalplus_verdicts.txt holds what EvalPlus 0.3.1 says about each of them; main() of this
file at commit 8f505319 wrote it.
"""
import ast
import random
from collections.abc import Callable
from functools import partial
from zlib import crc32

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
               ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.FloorDiv,
             ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
             ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift}

TURNED = '''
from collections import Counter as _Counter, OrderedDict as _OrderedDict
from decimal import Decimal as _Decimal
from fractions import Fraction as _Fraction
_asked = {entry}

def {entry}(*given):
    return _turned(_asked(*given), {number})

def _late(values, change):
    return [*values[:3], *map(change, values[3:])]

def _nudged(x):
    return x + 1e-7 if isinstance(x, float) else x

def _off(x):
    return x + 1 if type(x) is int and x > 10 ** 7 else x

def _fraction(x):
    return _Fraction(x) if type(x) in (int, float) and abs(x) < 1e99 else x

def _turned(out, number):
    if isinstance(out, bool):
        ways = [int, str, float, lambda x: x or None, lambda x: [x], _Fraction]
    elif isinstance(out, int):
        ways = [float, _off, _Fraction, _Decimal, lambda x: x + 1e-7, lambda x: x + (x > 10 ** 7), str, complex]
    elif isinstance(out, float):
        ways = [_nudged, _fraction, _Decimal, lambda x: round(x, 3), lambda x: x + 1e-5, round, str, complex,
                lambda x: _Fraction(str(x)), lambda x: type("Own", (float,), dict())(x)]
    elif isinstance(out, str):
        ways = [str.strip, str.lower, list, lambda x: x or None, lambda x: type("Own", (str,), dict())(x)]
    elif isinstance(out, (list, tuple)):
        ways = [iter, lambda x: filter(lambda y: True, x), lambda x: dict.fromkeys(x).keys(), lambda x: (y for y in x),
                lambda x: x[::-1], lambda x: type(x)(map(_nudged, x)), lambda x: type(x)(map(_off, x)), tuple, list,
                lambda x: type(x)(map(_fraction, x)), lambda x: type(x)(_late(x, _off)), lambda x: x[:-1] if len(x) > 4 else x,
                lambda x: type("Own", (type(x),), dict())(x), lambda x: type(x)(_late(x, _nudged)), set, sorted]
    elif isinstance(out, (set, frozenset)):
        ways = [frozenset, set, lambda x: dict.fromkeys(x).keys(), sorted, iter, lambda x: set(list(x)[1:])]
    elif isinstance(out, dict):
        ways = [_Counter, _OrderedDict, dict.keys, dict.items, lambda x: dict(reversed(x.items())),
                lambda x: {{k: _nudged(v) for k, v in x.items()}}, lambda x: {{k: _off(v) for k, v in x.items()}},
                lambda x: {{k: _fraction(v) for k, v in x.items()}}]
    else:
        ways = [lambda x: not x, lambda x: [x], bool, lambda x: x]
    return ways[number % len(ways)](out)
'''


def sites(tree: ast.Module) -> list[Callable]:
    """What can be changed in a tree, in the order of the walk; to call one changes the tree."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            for more in (1, -1) if type(node.value) is int else (1, -1, 1e-6):
                found.append(partial(setattr, node, "value", node.value + more))
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            found.append(partial(node.ops.__setitem__, 0, COMPARISONS[type(node.ops[0])]()))
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            found.append(partial(setattr, node, "op", OPERATORS[type(node.op)]()))
        elif isinstance(node, ast.BoolOp):
            found.append(partial(setattr, node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            first = ast.parse("lambda x, *more: x", mode="eval").body           # leaves the call out
            found.append(partial(node.__init__, func=first, args=node.args, keywords=[]))
        elif isinstance(node, ast.IfExp):
            found.append(partial(node.__init__, test=node.test, body=node.orelse, orelse=node.body))
    return found


def mutants(id: str, canonical: str, entry: str) -> list[str]:
    """Three programs made from a published solution; what they are hangs on the problem's name alone."""
    draws = random.Random(crc32(id.encode()))
    made = []
    n_sites = len(sites(ast.parse(canonical)))
    for number in draws.sample(range(n_sites), min(2, n_sites)):
        tree = ast.parse(canonical)
        sites(tree)[number]()
        made.append(ast.unparse(tree))
    while len(made) < 3:
        made.append(canonical + TURNED.format(entry=entry, number=draws.randrange(1 << 20)))
    return made
