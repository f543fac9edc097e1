"""What of an answer is judged: its fences, the block that counts, and the literal or program in it. Each answer has the verdict
that its type's contract (docs/verifier.md) gives it."""
import pytest
from proposals import CHAT, judge, made, read
from small_tokenizers import FAMILIES

from common import Refused
from generate import closing_table
from sandbox.values import encode
from tasks import TASK_TYPES, judge_answers
from tasks.base import UNJUDGED, VIOLATION, Proposal, Task, TaskType
from tasks.code import close
from tasks.literals import canonical_arguments, read_blocks, stated_inputs, value_of
from tasks.prompts import FORMATS, show
from verifier import Verdict

DOC = 'def f(x):\n    """Turn a list around.\n\n    ```python\n    f([1, 2])  # [2, 1]\n    ```\n    """\n    return x[::-1]'
NOTE = "def f(x):\n    # in Markdown: ```\n    return x[::-1]"


@pytest.mark.parametrize("text, blocks", [
    ("```Py\nx\n```\n```python3 {.line}\ny\n```\n```{.python}\nz\n```", [("python", c) for c in "xyz"]),
    ("~~~python\nx\n```\n~~~", [("python", "x\n```")]), ("````\n```\nx\n```\n````", [("", "```\nx\n```")]),
    (f"```python\n{DOC}\n```", [("python", DOC)]), (f"```python title='a'\n{NOTE}\n```", [("python", NOTE)]),
    ("1. So:\n   ```python\n   def f(x):\n       return x\n   ```", [("python", "def f(x):\n    return x")]),
    ("- ```input\n  [1,\n   2]\n  ```", [("input", "[1,\n 2]")]),
    ("> ```python\n> def f(x):\n>\n>     return x\n> ```\n> So.", [("python", "def f(x):\n\n    return x")]),
    ("```python\nx\n```input\n5", [("python", "x\n```input\n5")]), ("```\nx```\ny", [("", "x```\ny")]),     # neither stands alone
    ("```output [1, 2]```", []), ("```\n\n```\nx", []), ("```a\r\nx\r\n```\r\n", [("a", "x")]),
    ("```python\nx", [("python", "x")])])
def test_fences_are_read_as_markdown_has_them(text, blocks):
    assert read_blocks(text) == blocks


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_at_once_ends_with_a_fence_that_stands_alone(family):
    """The closing text of `direct`, in whatever tokens it is written."""
    tokenizer, closing = FAMILIES[family](), FORMATS["direct"].solve.closing
    table = closing_table(tokenizer, closing, len(tokenizer), "cpu")
    for text, ends in ((f"{NOTE}\n```\n", True), (f"{DOC}\n    ```\n", False), ("x ```\ny", False), ("5\n```\nSo", True)):
        matched = 0
        for token in tokenizer(text, add_special_tokens=False).input_ids:
            matched = int(table[matched, token])
        assert (matched == len(closing)) == ends, text


# --- which block counts, and what it may hold ---------------------------------------------------------------

EVENS = "def f(x):\n    return [v for v in x if v % 2 == 0]"
FUN = made("code_f", EVENS, *[(f"[{i}, {i + 1}, {i + 2}]", [v for v in (i, i + 1, i + 2) if v % 2 == 0]) for i in range(10)])
OUT, INP = (made(kind, EVENS, ("[1, 2, 4]", [2, 4])) for kind in ("code_o", "code_i"))
ADDED = made("code_i", "def f(a, b=7):\n    return a + b", ("2, 3", 5))
PAIR = made("code_o", "def f(x):\n    return x, x", ("1", (1, 1)))
SUM = Task("math", "def f():\n    return 27", ("",), ("27",), "How many?", "key")
PUZZLE = Task("logic", "def f(a, b):\n    return a and (not b)", ("",), ('{"t":[true,false]}',), "", "key")
FUNCTION, USAGE = f"```python\n{EVENS}\n```\n", "```python\nprint(f([0, 1, 2]))  # [0, 2]\n```\n"

ANSWERS = [
    # a program, and what models show behind it
    (FUN, FUNCTION + "Example usage:\n" + USAGE, "correct"),
    (FUN, FUNCTION + "```python\ndef test():\n    assert f([1]) == []\n\ntest()\n```", "correct"),
    (FUN, FUNCTION + "Or:\n```python\ndef f(x):\n    return x\n```", "wrong"),              # the last program
    (FUN, FUNCTION.replace("python", "") + USAGE, "correct"),                               # a block under the name asked for is no program
    (FUN, FUNCTION + "```python\nf(\n```", "correct"), (FUN, FUNCTION[:-4], "correct"),    # the fence is never closed
    (FUN, "```python\nfrom operator import itemgetter as f\n```", "wrong"),
    (FUN, FUNCTION.replace("def f", "def evens"), "malformed"), (FUN, EVENS, "malformed"),
    # values
    (OUT, "```output\n[2, 4]\n```\nas\n```output\nx % 2\n```\nsays", "correct"), (OUT, "```input\n[2, 4]\n```", "malformed"),
    (OUT, "```\n[4]\n```\nso\n```\n[2, 4]\n```\nby\n```python\nx % 2 == 0\n```", "correct"),
    (OUT, "```output\n[1]\n```\nWait, no.\n```output\n[2,4]", "correct"), (OUT, "The output is [2, 4].", "malformed"),
    (OUT, "```output\nx = [2, 4]\n```", "malformed"), (OUT, "```output\n0x" + "f" * 990 + "\n```", "malformed"), (OUT, "```output\n'\\ud800'\n```", "malformed"), (OUT, "```output\n[2, 4]" + " " * 5000 + "1\n```", "malformed"),
    (PAIR, "```output\n1, 1\n```", "correct"), (PAIR, "```output\n[1, 1]\n```", "wrong"), (PAIR, "```output\n1), (1\n```", "malformed"),
    # arguments
    (INP, "```input\n[2, 4]\n```\nwhich gives\n```output\n[2, 4, 6]\n```", "correct"), (INP, "```output\n[2, 4]\n```", "malformed"),
    (INP, "```input\nf([2, 4])\n```", "correct"), (INP, "```input\n7\n```", "wrong"), (INP, "```input\n```", "malformed"),
    (ADDED, "```input\n-2\n```", "correct"), (ADDED, "```input\n(1, 4)\n```", "wrong"), (ADDED, "```input\n1) or (True\n```", "malformed"),
    # numbers and truth values
    (SUM, "```answer\n27\n```\nas\n```output\n9\n```", "correct"), (SUM, "\\boxed{27}\n```\n9\n```", "correct"),
    (SUM, "\\boxed{9}\n```answer\n27\n```", "correct"), (SUM, "```answer\nNUMBER\n```\n\\boxed{27}", "correct"),
    (SUM, "```answer\n54/2\n```", "correct"), (SUM, "```answer\n2,700\n```", "wrong"), (SUM, "```answer\n#### 27\n```", "malformed"),
    (PUZZLE, "```answer\na = True\nb = False\n```\nCheck:\n```python\na and not b\n```", "correct"),
    (PUZZLE, "```answer\nb = False\na = True\n```", "correct"), (PUZZLE, "```answer\nTrue, True\n```", "wrong"),
    *((PUZZLE, f"```answer\n{text}\n```", "malformed") for text in ("a = True", "a = True\na = False", "True, False, True", "7, 1")),
    (SUM, "<think>So \\boxed{27}, or", "malformed"), (OUT, "<think>```output\n[9]\n```</think>\n```output\n[2, 4]\n```", "correct")]


@pytest.mark.parametrize("prompt_format", ["chat", "direct", "base"])
def test_the_last_block_that_is_an_answer_counts(sandbox, prompt_format):
    form, rows = "{}", ANSWERS
    if prompt_format == "base":
        form, rows = "<think>So.</think> <answer>\n{}\n</answer>", [row for row in ANSWERS if "<think>" not in row[1] and row[1] != EVENS]
    found = [(judge(sandbox, task, prompt_format, form.format(text))[0], want, text) for task, text, want in rows]
    assert not [row for row in found if row[0] != row[1]]


@pytest.mark.parametrize("task, prompt_format, text, verdict", [
    (OUT, "chat", "<answer>[2, 4]</answer>", "correct"), (OUT, "base", "<think>So</think>\n```output\n[2, 4]\n```", "malformed"),
    # there the row ends, and what follows is a conversation with oneself
    (OUT, "base", "<think>so <answer>[1]</answer> or</think><answer>[2, 4]</answer>", "wrong"),
    (OUT, "base", "<think>so</think> <answer>[2, 4]</answer>\nUser: 2 + 2?\nAssistant: <answer>4</answer>", "correct"),
    (OUT, "micro", ">[2,4]\n=[2,4]", "correct"), (OUT, "micro", "=[1,2]", "wrong"),
    *((OUT, "micro", text, "malformed") for text in ("[2,4]", ">[2,4]\n", "=", "==[2,4]")),
    (INP, "micro", "<[2,4]\n=[2,4]", "correct"), (FUN, "micro", EVENS, "correct"), (FUN, "micro", f"{EVENS}\nf([1])", "malformed"),
    (SUM, "micro", ">27\n=27", "correct"), (PUZZLE, "micro", "=1,0", "correct"), (PUZZLE, "micro", "=1", "malformed")])
def test_every_format_has_its_envelope(sandbox, task, prompt_format, text, verdict):
    assert judge(sandbox, task, prompt_format, text) == [verdict]


# --- programs run as they stand -----------------------------------------------------------------------------

TURN = made("code_f", "def f(x):\n    return x[::-1]", *[(repr([i, 7]), [7, i]) for i in range(8)])
BODY = "def f(x):\n    return x[::-1]\n"
PROGRAMS = {
    "imports that it does not need": "import os, sys, random, json\nimport numpy as np\n" + BODY,
    "reads input under its guard": BODY + "\nif __name__ == '__main__':\n    print(f(eval(input('list: '))))",
    "a dunder": "def f(x):\n    '''Works with __class__.'''\n    return x.__class__(x.__reversed__())",
    "long": BODY + "# " + "so it is " * 3000,
    "state": "turned = {}\n\ndef f(x):\n    turned[len(turned)] = x[::-1]\n    return turned[len(turned) - 1]",
    "bound again": "def f(x):\n    return x\nf = (lambda g: lambda x: g(x[::-1]))(f)", "in an if": "if True:\n    " + BODY.replace("\n", "\n    ").rstrip()}
WRONG = {"bound to another": BODY + "f = len", "fails first": "assert False\n" + BODY, "by heart": f"def f(x):\n    return { {i: [7, i] for i in range(4)} }[x[0]]",
         "equal to all": "class A(list):\n    def __eq__(self, other): return True\ndef f(x):\n    return A()"}


@pytest.mark.parametrize("programs, verdict", [(PROGRAMS, "correct"), (WRONG, "wrong")])
def test_a_program_runs_as_it_stands(sandbox, programs, verdict):
    found = judge(sandbox, TURN, "chat", *(f"```python\n{program}\n```" for program in programs.values()))
    assert dict(zip(programs, found)) == dict.fromkeys(programs, verdict)


@pytest.mark.parametrize("program", ["", "print(f(1))", "x = 1", "def g():\n    f = 1", "class A:\n    def f(self): pass", "def f(", "f\n" * 60_000])
def test_what_binds_no_f_is_malformed(sandbox, program):
    assert judge(sandbox, TURN, "chat", f"```python\n{program}\n```") == ["malformed"]


@pytest.mark.parametrize("value, gold, is_close", [
    (0.1 + 0.2, 0.3, True), (0.30000031, 0.3, False), (1, 1.0000001, True), (1e-17, 0.0, True), (1e-7, 0.0, False), (10**400, 1.5, False),
    ("1.5", 1.5, False), (float("nan"), 1.5, False), (1.5 + 1e-9j, 1.5 + 0j, True), (3.0000001, 3, False),
    ([1, (0.1 + 0.2,)], [1, (0.3,)], True), ([0.3], (0.3,), False), ([0.3, 0.3], [0.3], False), ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
    ({"b": 0.3}, {"a": 0.3}, False), ({0.1 + 0.2, "x"}, {0.3, "x"}, True), ({0.4, "x"}, {0.3, "x"}, False)])
def test_floats_of_a_program_need_not_be_met_to_the_last_bit(value, gold, is_close):
    assert close(value, gold) == is_close


def test_only_programs_are_judged_with_a_tolerance(sandbox):
    """A sum that is rounded once, while every gold was rounded twice; a value and an input stay exact."""
    pairs = [(repr([.1 * n, .2 * n, .3 * n]), .1 * n + .2 * n + .3 * n) for n in (2 ** i for i in range(8))]
    answer = "```python\nimport math\ndef f(x):\n    return math.fsum(x)\n```"
    assert judge(sandbox, made("code_f", "def f(x):\n    return sum(x)", *pairs), "chat", answer) == ["correct"]
    out, given = (made(kind, "def f(x):\n    return x + .2", (".1", .1 + .2)) for kind in ("code_o", "code_i"))
    assert judge(sandbox, out, "chat", "```output\n.3\n```", f"```output\n{.1 + .2}\n```") == ["wrong", "correct"]
    assert judge(sandbox, given, "chat", "```input\n.0999999999\n```", "```input\n.1\n```") == ["wrong", "correct"]


def test_only_hidden_pairs_are_graded(sandbox):
    wrong_on_shown = "```python\ndef f(x):\n    return x[::-1] if x[0] > 3 else 0\n```"
    assert judge(sandbox, TURN, "chat", wrong_on_shown) == ["correct"]
    short = made("code_f", BODY, ("[1]", [1]), ("[1, 2]", [2, 1]), ("[4, 2]", [2, 4]))
    assert TaskType().n_shown(short, CHAT) == 1 and judge(sandbox, short, "chat", wrong_on_shown) == ["wrong"]


def test_what_the_sandbox_failed_on_is_unjudged_and_what_is_forbidden_is_told():
    """One wrong output decides, whatever failed beside it; answers that are equal run once."""
    hidden, failed, lost = 4, (None, "sandbox failure"), (None, "error: KeyError")
    for claims, verdict in (([failed] * hidden, UNJUDGED), ([failed, lost] * 2, "wrong"), ([(None, "violation"), lost] * 2, VIOLATION)):
        outputs, errors = zip(*claims)
        run = lambda asked: [Verdict("ok", outputs, errors)] * (len(asked) == 1)
        assert judge_answers([TURN], [["p", None, "p"]], CHAT, run) == [[verdict, "malformed", verdict]]
    run = lambda asked: [Verdict("ok", (None,), ("sandbox failure",)) for _ in asked]
    assert judge_answers([OUT, INP], [["1"], ["1"]], CHAT, run) == [["wrong"], [UNJUDGED]], "a literal needs no sandbox"


# --- literals -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, arguments", [
    ("2, 3,", "2, 3"), ("(2, 3)", "(2, 3)"), ("f(2, 3)  # 5", "2, 3"), ("`f(2, 3)`", "2, 3"), ("'f(1)'", "'f(1)'"), ("f(')')", "')'"), ("", ""),
    *((text, None) for text in ("1) or (True", "1), f(2", "f(1)\nf(2)", "f(f(1))", "*[1, 2]", "f(**{'a': 1})", "b=3", "__import__('os')", "{[1]}", "[", "\ud800"))])
def test_arguments_are_literals_between_the_brackets_of_a_call(text, arguments):
    if arguments is None:
        with pytest.raises(Refused):
            canonical_arguments(text)
    else:
        assert canonical_arguments(text) == arguments


@pytest.mark.parametrize("text, value", [
    ("1, 2", (1, 2)), ("`[1]`  ", [1]), ("[1]  # one", [1]), ("1+2j", 1 + 2j), ("set()", set()), ("'a' 'b'", "ab"),
    *((text, None) for text in ("", "x = 1", "f(1)", "1\n2", "...", "1 + 1", "[*[1]]", "{{}: 1}", "1), (2", "[" * 30 + "]" * 30, "\0", "9" * 400 + "+1j"))])
def test_a_value_is_what_python_reads(text, value):
    if value is None:
        with pytest.raises(Refused):
            value_of(text)
    else:
        assert value_of(text) == value


@pytest.mark.parametrize("value, may", [
    ([frozenset({1}), frozenset()], True), ({frozenset({1})}, False), ([{(frozenset("a"), 2): 3}], False),
    (eval("[" * 24 + "]" * 24), True), (eval("[" * 25 + "]" * 25), False), ((1 + 2j, -0.0, b"x", -5, None), True)])
def test_a_gold_can_be_answered(sandbox, value, may):
    """What is shown of a gold is read as an answer, and is then right; or there is no task."""
    kind, proposal = TASK_TYPES["code_o"], Proposal("code_o", "def f(x):\n    return x", ("1",))
    verdict = Verdict("ok", (encode(value),), (None,))
    if may:
        task = kind.make(proposal, verdict, CHAT, "key")
        assert judge(sandbox, task, "chat", f"```output\n{show(value)}\n```") == ["correct"]
    else:
        with pytest.raises(Refused):
            kind.make(proposal, verdict, CHAT, "key")


def test_calls_of_an_induction_proposal_are_its_inputs():
    assert stated_inputs("f(1, 2)  # usual\n# unusual\nf(0)\nf(1,2)") == {"1, 2": "f(1, 2)  # usual", "0": "f(0)", "": "# unusual"}
    text = "```python\n" + "\n".join(f"f([{i}, {i}])" for i in range(12)) + "\n```"
    assert read("code_f", text, few_shot=[OUT]).inputs == tuple(f"[{i}, {i}]" for i in range(10))
