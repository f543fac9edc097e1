"""What a program's syntax tree says: known programs, properties of the structural hash, texts that try to hurt the parser, and
the work that reading costs."""
import ast
import itertools
import math
from collections import Counter

import pytest
from proposals import made

from common import Refused
from tasks import TASK_TYPES, answer_in, programs
from tasks.complexity import complexity
from tasks.programs import Limits, binds_f, count_statements, parse, structural_hash
from tasks.prompts import Answer

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
    ("def f(x):\n x=x[::-1]\n if x[0]>2:x=x[1:]\n return x", 2), (LOOP, 2), ("def f(a):\n if a==1: return 1\n elif a==2: return 2\n else: return 3", 1),
    ("def f(): 'doc'", 0), ("", 0)])
def test_statements(source, statements):
    assert count_statements(source) == statements


@pytest.mark.parametrize("source, measures", [
    # Module, FunctionDef, Return, BinOp, Name; + on x and 1, each once
    ("def f(x):\n return x+1", dict(lines=2, variables=1, depth=5, cyclomatic=1, halstead=3 * math.log2(3))),
    # forks: for, if, and, or; the deepest: Module FunctionDef For If BoolOp(or) BoolOp(and) Compare BinOp Name.
    # 7 operators: or, and, >, %, ==, ==, + (6 different); 14 operands: item, limit, total, 0, 1, 2 and five larger expressions
    (LOOP, dict(lines=8, variables=4, depth=9, cyclomatic=5, halstead=21 * math.log2(6 + 11))),
    # Module, FunctionDef, Return, ListComp, comprehension, Compare, Name; forks: the loop and its two ifs
    ("def f(x):\n return [-v for v in x if v if v > 1]", dict(lines=2, variables=2, depth=7, cyclomatic=4, halstead=5 * math.log2(4)))])
def test_complexity_is_what_a_hand_counts(source, measures):
    assert complexity(source) == pytest.approx(measures)


@pytest.mark.parametrize("program, same", [
    (LOOP, LOOP.replace("items", "a").replace("item", "b").replace("total", "n").replace("limit", "k")),        # renaming
    (LOOP, LOOP.replace("% 2", "% 7").replace("= 0\n", "= 9\n").replace("=3", "=99")),                          # constants
    (LOOP, LOOP.replace('"""Counts."""', "").replace("# how many are large", "").replace("\n\n", "\n")),        # docstring, layout
    (LOOP, LOOP.replace("(items, limit=3):", "(items: list[int], limit: int = 3) -> int:").replace("def f", "def count")),
    ("def f(x):\n return x+3", "def f(x):\n return x+-3"), ("def g(a):\n return a\ndef f(x):\n return g(a=x)", "def h(b):\n return b\ndef f(x):\n return h(b=x)")])
def test_hash_ignores(program, same):
    assert program != same and structural_hash(program) == structural_hash(same)


@pytest.mark.parametrize("program, other", [
    (LOOP, LOOP.replace("+=", "-=")), (LOOP, LOOP.replace(" and ", " or ")), (LOOP, LOOP.replace("== 0:", "== '':")),
    ("def f(x):\n return x.count(1)", "def f(x):\n return x.index(1)"), ("def f(a,b):\n return a-b", "def f(a,b):\n return b-a"),
    ("def f(x):\n return x[1:]", "def f(x):\n return x[:1]"),
    ("from math import ceil as g\ndef f(x):\n return g(x)", "from math import floor as g\ndef f(x):\n return g(x)")])
def test_hash_keeps(program, other):
    assert program != other and structural_hash(program) != structural_hash(other)


HOSTILE = ["[" * 2000, "{(" * 12, "(lambda:" * 24, "-" * 3000 + "x", "not " * 1500 + "x", "x" + ".a" * 3500, "x" + "[0]" * 2500, "f" + "()" * 3500,
           "x" + "+x" * 3900, "a if b else " * 600 + "c", "x=" * 3900 + "1", "lambda:" * 900 + "0", "a" * 10**6, "\0", "\ud800", "x = '\ud800'", "\\", "f'{" * 20,
           "if x:\n" + "".join(" " * i + "if x:\n" for i in range(1, 120)), "1" * 5000, "9**9**9**9", "\n" * 7999, "\ufeffx", "x\x0c", "# coding: rot13\nx",
           "match x:\n case " + "[" * 24, "0777", "@" * 3000, "a:=" * 1000, "await x", "return", "global x", "(" * 7999]


def test_hostile_texts_end_by_name():
    for source, function in itertools.product(HOSTILE, (count_statements, structural_hash, complexity, binds_f)):
        try:
            function(source)
        except Refused as refused:
            assert refused.reason in ("too_long", "too_deep", "syntax")


@pytest.mark.parametrize("joint", [" ", "\\\n", "\\\r", "\\\r\n", " # a'b\n", "# ((\r", "\n\f"])
def test_nesting_is_seen_however_its_lines_end(joint):
    """Sixty of a word that nests, each followed by what Python reads as white space."""
    for word in ("-", "not", "- +", "not -", "await", "(", "["):
        with pytest.raises(Refused, match="too_deep"):
            parse(f"x = ({(word + joint + ' ') * 60}1")


@pytest.mark.parametrize("before", ["#\r", "#\r\n", "'a'#\r", "'''\r'''", "# it's\r", "x = 'a\\\r\n'\r"])
def test_what_ends_a_comment_for_python_ends_it_for_the_guard(before):
    with pytest.raises(Refused, match="too_deep"):
        parse(before + "(" * 199)
    assert parse(f"{before}\rx = '{'(' * 199}'  # {'(' * 199}")


def test_brackets_in_f_strings_nest():
    """Also those that close for the eye alone: what stands outside of the braces is text."""
    insides = "{(" + "(" * 40, "{" * 40, "{" + "[{(" * 10 + "1" + ")}]" * 10 + "}", ")" * 40 + "{" + "(" * 30 + "1" + ")" * 30 + "}", "{1:{1:" * 20, "{lambda: " + "(lambda: " * 30
    for prefix, quote, inside in itertools.product(("f", "F", "rf", "fR"), ("'", '"', "'''", '"""'), insides):
        for closing in (quote, "") if len(quote) == 1 else (quote,):
            with pytest.raises(Refused, match="too_deep"):
                parse(f"x = {prefix}{quote}{inside}{closing}")
        assert parse(f"x = b{quote}{inside}{quote}, {quote}{inside}{quote}"), "other strings are text"
    parse("def f(x):\n    return f'{x[0]}, {x[1]:>{x[2]}} {{}} ' + f\"{f'{x}'}\" + rf'\\{x}' + '([{' * 9")


# --- reading costs work in proportion to the text, whatever a model repeats until its tokens run out -----------

PROGRAM = "def f(x):\n    return x"
LINES = ("x=1", "print(f([1]))", "[1, 2], 'a'", "f(1", '"', "'''", "a and b", "lambda: 1", "- 1", "x = 1 # = 2", "f'{x}'", "```input\n1\n```", "> ")
WRAPPED = [("micro", "", ""), ("micro", PROGRAM + "\n", "\nf(1)"), ("chat", "```input\n", "\n```"), ("chat", "```constraints\n", "\n```"),
           ("chat", "```python\n" + PROGRAM + "\n", "\n```"), ("chat", "```question\n", "\n```\n```python\n" + PROGRAM + "\n```")]


@pytest.fixture
def work(monkeypatch):
    """Counts what reading costs whatever the machine: characters that Python parses, and nodes whose children are looked up."""
    done, parsing, children = Counter(), ast.parse, ast.iter_child_nodes

    def parsed(source, *more):
        done["characters"] += len(source)
        return parsing(source, *more)

    def looked_up(node):
        done["nodes"] += 1
        return children(node)

    monkeypatch.setattr(ast, "parse", parsed)
    monkeypatch.setattr(ast, "iter_child_nodes", looked_up)
    return done


@pytest.mark.parametrize("line", LINES)
def test_the_work_on_a_text_is_a_few_times_its_length(line, work):
    """Read as a proposal, with the checks before a run, and as an answer; nothing is kept of before."""
    n_chars = 6_000
    for joint, (prompt_format, before, after), name in itertools.product(("\n", ""), WRAPPED, ("code_o", "code_f", "math", "logic")):
        kind, limits, task = TASK_TYPES[name], Limits.for_format(prompt_format), made(name, "def f(x, y):\n    return x and y", *[("1", True)] * 6)
        text = before + joint.join([line] * (n_chars // len(line + joint))) + after
        work.clear()
        programs.tree_of.cache_clear()
        try:
            proposal = kind.read(Answer(text, prompt_format), [task], limits)
            kind.check(proposal, limits)
            kind.key(proposal, "structural")
        except Refused:
            pass
        answer_in(task, text, prompt_format, limits)
        assert max(work["characters"], work["nodes"]) <= 9 * n_chars + 1_000, (name, joint, prompt_format, before, work)
