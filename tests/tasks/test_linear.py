"""Reading costs time in proportion to the text, whatever a model repeats until its tokens run out."""
import ast
import itertools
from collections import Counter

import pytest

from sandbox.values import encode
from tasks import TASK_TYPES, complexity
from tasks.base import Proposal, Task
from tasks.programs import Limits

PROGRAM = "def f(x):\n    return x"
MANY = f"def f({', '.join(f'a{i}' for i in range(300))}):\n    return a0"
# what is repeated, beside which program of a task
LINES = [(PROGRAM, line) for line in (
    "x=1", "x=[1, 2, 3]", "f(x)", "print(f([1]))", "assert f(x=1) == 2", "1", "[1, 2], 'a'", "set()", "f(set(), {1: 2})", "f(1",
    '"', "\\'", "'''", "a and b", "lambda: 1", "- 1", "x = 1 # = 2", "=1", "f'{x}'", "# Hint: f", "```input", "```input\n1\n```")]
LINES += [(MANY, "a1=1"), (MANY, "f()")]
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


@pytest.mark.parametrize("program, line", LINES)
def test_the_work_on_a_text_is_a_few_times_its_length(program, line, work):
    """Parsed as a proposal, with the checks before a run, and as an answer; nothing is kept of before. 1,000 tokens cost below
    20 ms then; in counts, for a timed test would hang on the machine."""
    task = Task("code_f", program, ("1",) * 6, (encode(1),) * 6, "", "key")
    kinds = [TASK_TYPES[name] for name in ("code_o", "code_i", "code_f", "math", "logic")]
    for n_chars, joint, wrapping, kind in itertools.product((1_500, 6_000), ("\n", ""), WRAPPED, kinds):
        prompt_format, before, after = wrapping
        repeated = joint.join([line] * (n_chars // len(line + joint)))
        text = before.replace("LIST", "1, " * (n_chars // 12)) + repeated[:n_chars * 3 // 4] + after
        limits = Limits.for_format(prompt_format)
        work.clear()
        complexity.tree_of.cache_clear()
        proposal = kind.parse_proposal(text, prompt_format, [task], limits)
        if isinstance(proposal, Proposal):
            kind.check(proposal, limits)
            kind.key(proposal, "structural")
        if kind.name != "logic":                    # its answers need a puzzle
            kind.parse_answer(text, prompt_format, task, limits)
        assert max(work["characters"], work["nodes"]) <= 9 * n_chars + 1_000, (kind.name, joint, wrapping, n_chars, work)
