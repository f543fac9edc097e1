"""complexity.py: known programs, properties of the structural hash, and texts that try to hurt the parser."""
import time

import pytest

from common import Refused
from tasks.programs import count_statements, parse, structural_hash

LOOP = '''
def f(items, limit=3):
    """Counts."""
    # how many are large
    total = 0
    for item in items:
        if item > limit and item % 2 == 0 or item == 0:
            total += 1

    return total
'''


@pytest.mark.parametrize("source, statements", [
    ("def f(x):\n return x", 0), ("def f(x):\n x=x[::-1]\n if x[0]>2:x=x[1:]\n return x", 2),
    (LOOP, 2),                                             # for, if, and, or
    ("def f(x):\n return [v for v in x if v if v>1]", 0),  # comprehension and two ifs
    ("def f(a):\n if a==1: return 1\n elif a==2: return 2\n else: return 3", 1), ("def f(): 'doc'", 0), ("", 0),
])
def test_known_programs(source, statements):
    assert count_statements(source) == statements


@pytest.mark.parametrize("program, same", [
    (LOOP, LOOP.replace("items", "a").replace("item", "b").replace("total", "n").replace("limit", "k")),        # renaming
    (LOOP, LOOP.replace("% 2", "% 7").replace("= 0\n", "= 9\n").replace("=3", "=99")),                          # constants
    (LOOP, LOOP.replace('"""Counts."""', "")),                                                                  # docstring
    (LOOP, LOOP.replace("# how many are large", "").replace("\n\n", "\n")),                                     # layout
    (LOOP, LOOP.replace("(items, limit=3):", "(items: list[int], limit: int = 3) -> int:")),                    # annotations
    (LOOP, LOOP.replace("total = 0", "total: int = 0").replace("def f", "def count")),
    ("def f(x):\n return x+3", "def f(x):\n return x+-3"), ("import math as m\ndef f(x):\n return m.pi", "import math\ndef f(x):\n return math.pi"),
    ("def g(a):\n return a\ndef f(x):\n return g(a=x)", "def h(b):\n return b\ndef f(x):\n return h(b=x)"),
    ("def f(key):\n return sorted(key, key=abs)", "def f(x):\n return sorted(x, key=abs)"),
    ("def f(x):\n def g():\n  nonlocal x\n  x=1\n g()\n return x", "def f(y):\n def h():\n  nonlocal y\n  y=5\n h()\n return y"),
    ("def f(x):\n try:\n  return x[0]\n except IndexError as e:\n  return 1",
     "def f(y):\n try:\n  return y[0]\n except IndexError as err:\n  return 2"),
])
def test_hash_ignores(program, same):
    assert program != same and structural_hash(program) == structural_hash(same)


@pytest.mark.parametrize("program, other", [
    (LOOP, LOOP.replace("+=", "-=")), (LOOP, LOOP.replace(">", "<")), (LOOP, LOOP.replace(" and ", " or ")),
    (LOOP, LOOP.replace("== 0:", "== '':")), (LOOP, LOOP.replace("return total", "return item")),
    ("def f(x):\n return len(x)", "def f(x):\n return max(x)"), ("def f(x):\n return x.count(1)", "def f(x):\n return x.index(1)"),
    ("def f(a,b):\n return a-b", "def f(a,b):\n return b-a"),
    ("def f(x):\n return x+1", "def f(x):\n return x+1.0"), ("def f(x):\n return x+1", "def f(x):\n return x+True"),
    ("def f(x):\n return x[1:]", "def f(x):\n return x[:1]"),
    ("from math import ceil as g\ndef f(x):\n return g(x)", "from math import floor as g\ndef f(x):\n return g(x)"),
])
def test_hash_keeps(program, other):
    assert program != other and structural_hash(program) != structural_hash(other)


HOSTILE = ["[" * 2000, "{(" * 12, "(lambda:" * 24, "-" * 3000 + "x", "not " * 1500 + "x", "x" + ".a" * 3500, "x" + "[0]" * 2500,
           "f" + "()" * 3500, "x" + "+x" * 3900, "a if b else " * 600 + "c", "x=" * 3900 + "1", "lambda:" * 900 + "0", "a" * 10**6,
           "if x:\n" + "".join(" " * i + "if x:\n" for i in range(1, 120)), "\0", "\ud800", "x = '\ud800'", "\\", "f'{" * 20,
           "1" * 5000, "9**9**9**9", "\n" * 7999, "\ufeffx", "x\x0c", "match x:\n case " + "[" * 24, "# coding: rot13\nx", "0777",
           "@" * 3000, "a:=" * 1000, "await x", "return", "global x", "(" * 7999]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_end_quickly_and_by_name(source):
    start = time.process_time()
    for function in (count_statements, structural_hash, parse):
        try:
            function(source)
        except Refused as error:
            assert str(error).split(":")[0] in ("too_long", "too_deep", "syntax")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("joint", [" ", "\\\n", "\\\r", "\\\r\n", " # a'b\n", "# ((\r", "\n\f"])
@pytest.mark.parametrize("word", ["-", "not", "- +", "not -", "await", "(", "["])
def test_nesting_is_seen_however_its_lines_end(word, joint):
    """Sixty of a word that nests, each followed by what Python reads as white space."""
    with pytest.raises(Refused, match="too_deep"):
        parse(f"x = ({(word + joint + ' ') * 60}1")


@pytest.mark.parametrize("before", ["#\r", "#\r\n", "'a'#\r", "'''\r'''", "# it's\r", "x = 'a\\\r\n'\r"])
def test_what_ends_a_comment_for_python_ends_it_for_the_guard(before):
    with pytest.raises(Refused, match="too_deep"):
        parse(before + "(" * 199)
    assert parse(f"{before}\rx = '{'(' * 199}'  # {'(' * 199}")


@pytest.mark.parametrize("prefix", ["f", "F", "rf", "fR", "Rf"])
@pytest.mark.parametrize("quote", ["'", '"', "'''", '"""'])
@pytest.mark.parametrize("inside", ["{(" + "(" * 40, "{" * 40, "{" + "[{(" * 10 + "1" + ")}]" * 10 + "}", ")" * 40 + "{" + "(" * 30 + "1" + ")" * 30 + "}",
                                    "{1:{1:" * 20, "{lambda: " + "(lambda: " * 30])
def test_brackets_in_f_strings_nest(prefix, quote, inside):
    """Also those that close for the eye alone: what stands outside of the braces is text."""
    for closing in (quote, "") if len(quote) == 1 else (quote,):
        with pytest.raises(Refused, match="too_deep"):
            parse(f"x = {prefix}{quote}{inside}{closing}")
    assert parse(f"x = b{quote}{inside}{quote}, {quote}{inside}{quote}"), "other strings are text"


def test_ordinary_f_strings_are_read():
    parse("def f(x):\n    return f'{x[0]}, {x[1]:>{x[2]}} {{}} ' + f\"{f'{x}'}\" + rf'\\{x}' + '([{' * 9")
