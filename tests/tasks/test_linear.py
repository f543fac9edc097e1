"""Reading costs time in proportion to the text, whatever a model repeats until its tokens run out."""
import ast
import functools
from collections import Counter

import pytest

from sandbox.values import encode
from tasks import TASK_TYPES, complexity
from tasks.base import Proposal, Task
from tasks.validation import Limits

PROGRAM = "def f(x):\n    return x"
TASK = Task("code_f", PROGRAM, ("1",) * 6, (encode(1),) * 6, "", "key")
MANY = f"def f({', '.join(f'a{i}' for i in range(300))}):\n    return a0"
# a program of TASK's form, and what is repeated
LINES = [(PROGRAM, "x=1"), (PROGRAM, "x=[1, 2, 3]"), (PROGRAM, "f(x)"), (PROGRAM, "print(f([1]))"),
         (PROGRAM, "assert f(x=1) == 2"), (PROGRAM, "1"), (PROGRAM, "[1, 2], 'a'"), (PROGRAM, "set()"),
         (PROGRAM, "f(set(), {1: 2})"), (PROGRAM, "f(1"), (PROGRAM, '"'), (PROGRAM, "\\'"),
         (PROGRAM, "'''"), (PROGRAM, "a and b"), (PROGRAM, "lambda: 1"), (PROGRAM, "- 1"),
         (PROGRAM, "x = 1 # = 2"), (PROGRAM, "=1"), (PROGRAM, "f'{x}'"), (PROGRAM, "# Hint: f"),
         (MANY, "a1=1"), (MANY, "f()"), (PROGRAM, "```input"), (PROGRAM, "```input\n1\n```")]
# what stands around it; LIST is as long as a quarter of the text
WRAPPED = [("micro", "", ""), ("micro", PROGRAM + "\n", "\nf(1)"), ("chat", "```input\n", "\n```"),
           ("chat", "```constraints\n", "\n```"), ("chat", "```python\n" + PROGRAM + "\n", "\n```"),
           ("chat", "```python\n" + PROGRAM + "\nx=[LIST]\n", "\n```")]


@pytest.fixture
def work(monkeypatch):
    """Counts what reading costs whatever the machine: characters that Python parses, and nodes whose children are looked up."""
    done, parse, children = Counter(), ast.parse, ast.iter_child_nodes

    def parsed(source, *more):
        done["characters"] += len(source)
        return parse(source, *more)

    def looked_up(node):
        done["nodes"] += 1
        return children(node)

    monkeypatch.setattr(complexity.ast, "parse", parsed)
    monkeypatch.setattr(ast, "iter_child_nodes", looked_up)
    return done


def readings(program, line, n_chars):
    """Every way in which any kind of task reads a repeated line: a function that does it, and what it is."""
    task = Task("code_f", program, TASK.inputs, TASK.outputs, "", "key")
    for joint in "\n", "":
        repeated = joint.join([line] * (n_chars // len(line + joint)))
        for prompt_format, before, after in WRAPPED:
            limits = Limits.for_format(prompt_format)
            text = before.replace("LIST", "1, " * (n_chars // 12)) + repeated[:n_chars * 3 // 4] + after
            for name in "code_o", "code_i", "code_f", "math", "logic":
                read = functools.partial(cost_of_reading, TASK_TYPES[name], text, prompt_format, task, limits)
                yield read, f"{name} {prompt_format} {before[:30]!r} {joint!r}"


def cost_of_reading(kind, text, prompt_format, task, limits):
    """Parses a text as a proposal and as an answer, with the checks before a run; nothing is kept of before."""
    complexity.tree_of.cache_clear()
    proposal = kind.parse_proposal(text, prompt_format, [task], limits)
    if isinstance(proposal, Proposal):
        kind.check(proposal, limits)
        kind.key(proposal, "structural")
    if kind.name != "logic":                    # its answers need a puzzle
        kind.parse_answer(text, prompt_format, task, limits)


CASES = pytest.mark.parametrize("program, line", [*LINES[:4], *(pytest.param(*case, marks=pytest.mark.slow) for case in LINES[4:])])


@CASES
def test_the_work_on_a_text_is_a_few_times_its_length(program, line, work):
    """A text of 1,000 tokens costs below 20 ms then; in counts, for a timed test would hang on the machine."""
    for n_chars in 1_500, 6_000:
        for read, where in readings(program, line, n_chars):
            work.clear()
            read()
            assert max(work["characters"], work["nodes"]) <= 9 * n_chars + 1_000, (n_chars, where, work)
