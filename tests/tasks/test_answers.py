"""What of an answer is judged: its fences, the block that counts, and the literal or program in this block, each with the verdict of a
fair reader."""
import ast

import pytest
from proposals import CHAT, judge, outcome

from common import Refused
from sandbox.values import decode, encode
from tasks import TASK_TYPES
from tasks.base import Reject, Task
from tasks.programs import callable_as_f
from tasks.literals import read_blocks
from tasks.literals import canonical_arguments, stated_inputs, value_text
from tasks.prompts import show
from tasks.programs import check_value
from verifier import Job, Verdict


def made(kind: str, program: str, *pairs, message: str = "") -> Task:
    """A task whose gold is given. pairs: (argument text, output value)."""
    return Task(kind, program, tuple(text for text, _ in pairs), tuple(encode(value) for _, value in pairs), message, "key")


# ---------------------------------------------------------------- fences

@pytest.mark.parametrize("text, blocks", [
    ("```python\nx\n```", [("python", "x")]), ("```Py\nx\n```\n```python3 {.line}\ny\n```\n```{.python}\nz\n```", [("python", c) for c in "xyz"]),
    ("~~~python\nx\n```\n~~~", [("python", "x\n```")]), ("````\n```\nx\n```\n````", [("", "```\nx\n```")]),
    ("1. So:\n   ```python\n   def f(x):\n       return x\n   ```", [("python", "def f(x):\n    return x")]),
    ("- ```input\n  [1,\n   2]\n  ```", [("input", "[1,\n 2]")]), ("\t```\n\tx\n\t\ty\n\t```", [("", "x\n\ty")]),
    ("  ```\n  x = '''\ny'''\n  ```", [("", "x = '''\ny'''")]),                # a line has less indentation than the fence
    ("```python\nx\n```input\n5", [("python", "x"), ("input", "5")]), ("```\nx```\ny", [("", "x")]),
    ("```output [1, 2]```", [("output", "[1, 2]")]), ("```[1, 2]```", [("", "[1, 2]")]), ("```\n\n```\nx", []), ("x ``` y", []), ("", []),
    ("```a\r\nx\r\n```\r\n", [("a", "x")])])
def test_fences_are_read_as_markdown_has_them(text, blocks):
    assert read_blocks(text) == blocks


# ---------------------------------------------------------------- which block counts

EVENS = "def f(x):\n    return [v for v in x if v % 2 == 0]"
FUN = made("code_f", EVENS, *[(f"[{i}, {i + 1}, {i + 2}]", [v for v in (i, i + 1, i + 2) if v % 2 == 0]) for i in range(10)])
OUT = made("code_o", EVENS, ("[1, 2, 4]", [2, 4]))
INP = made("code_i", EVENS, ("[1, 2, 4]", [2, 4]))
SUM = Task("math", "def f():\n    return 27", ("",), ("27",), "How many?", "key")
PUZZLE = Task("logic", "def f(a, b):\n    return a and (not b)", ("",), ('{"t":[true,false]}',), "", "key")
FUNCTION, USAGE = f"```python\n{EVENS}\n```\n", "```python\nprint(f([0, 1, 2]))  # [0, 2]\n```\n"
INDENTED = "\n".join(f"   {line}" for line in FUNCTION.split("\n"))

ANSWERS = [
    # a program, and what models show behind it
    (FUN, FUNCTION + "Example usage:\n" + USAGE, "correct"), (FUN, FUNCTION + "```python\nassert f([1]) == []\n```", "correct"),
    (FUN, FUNCTION + "Output:\n```\n[0, 2]\n```", "correct"), (FUN, FUNCTION + "```bash\npython f.py\n```", "correct"),
    (FUN, FUNCTION + "```python\ndef test():\n    assert f([1]) == []\n\ntest()\n```", "correct"),
    (FUN, "```python\nx = [1, 2]\nprint(x[::2])\n```\nSo:\n" + FUNCTION, "correct"), (FUN, "1. It is\n" + INDENTED, "correct"),
    (FUN, FUNCTION + "Or:\n```python\ndef f(x):\n    return x\n```", "wrong"),              # the last program
    (FUN, FUNCTION.replace("python", "") + USAGE, "correct"),                               # a block under the name asked for is no program
    (FUN, FUNCTION + "For instance:\n```python\ndef square(x):\n    return x * x\n```", "correct"), (FUN, FUNCTION + "```python\nf(\n```", "correct"),
    (FUN, "```python\nf = lambda x: [v for v in x if v % 2 == 0]\n```", "correct"),
    (FUN, "```python\ndef is_even(n):\n    return n % 2 == 0\n\ndef evens(x):\n    return list(filter(is_even, x))\n```", "correct"),
    (FUN, "```python\nfrom operator import itemgetter as f\n```", "wrong"), (FUN, USAGE, "malformed"),
    # values
    (OUT, "```output\n[2, 4]\n```\nbecause of\n```python\n[v for v in x]\n```", "correct"),
    (OUT, "```output\n[2, 4]\n```\nas\n```output\nx % 2\n```\nsays", "correct"), (OUT, "```input\n[2, 4]\n```", "malformed"),
    (OUT, "Step 1:\n```\n[4]\n```\nso\n```\n[2, 4]\n```\nby\n```python\nx % 2 == 0\n```", "correct"),
    (OUT, "   - It is\n     ```output\n     [2,\n      4]\n     ```", "correct"),
    # arguments
    (INP, "```input\n[2, 4]\n```\nwhich gives\n```output\n[2, 4, 6]\n```", "correct"), (INP, "```output\n[2, 4]\n```", "malformed"),
    (INP, "```\n[2, 4]\n```\nwhich gives\n```output\n5\n```", "correct"), (INP, f"```python\n{EVENS}\n\nprint(f([2, 4]))\n```", "correct"),
    # numbers and truth values
    (SUM, "```python\nprint(36 - 9)\n```\nSo \\boxed{27}.", "correct"), (SUM, "```python\na = 36\nb = 9\n```\nSo \\boxed{27}.", "correct"),
    (SUM, "\\boxed{27}\n```\n9\n```", "correct"), (SUM, "```answer\n27\n```\nas\n```output\n9\n```", "correct"), (OUT, "\\boxed{[2, 4]}", "malformed"),
    (SUM, "```answer\nNUMBER\n```\n\\boxed{27}", "correct"), (SUM, "```output\n27\n```", "correct"),
    (SUM, "<think>So \\boxed{27}, or", "malformed"),
    (SUM, "```answer\n27\n```\nCheck:\n```python\nassert 36 - 9 == 27\n```", "correct"), (SUM, "\\boxed{9}\n```answer\n27\n```", "correct"),
    (PUZZLE, "```answer\na = True\nb = False\n```\nCheck:\n```python\na and not b\n```", "correct")]


@pytest.mark.parametrize("prompt_format", ["chat", "direct", "base"])
def test_the_last_block_that_can_be_an_answer_counts(sandbox, prompt_format):
    form = "<think>So.</think> <answer>\n{}\n</answer>" if prompt_format == "base" else "{}"
    found = [(judge(sandbox, task, prompt_format, form.format(text))[0], want, text) for task, text, want in ANSWERS
             if not (prompt_format == "base" and "boxed" in text)]
    assert not [row for row in found if row[0] != row[1]]


# ---------------------------------------------------------------- programs run as they stand

VOWELS = made("code_f", "def f(s):\n    return sum(c in 'aeiouAEIOU' for c in s)",
              *[(repr(word), sum(c in "aeiouAEIOU" for c in word)) for word in "apple Egg sky Iron Ohm audio UFO tree Ant xyz".split()])
PROGRAMS = [
    "LETTERS = set('aeiou')\nLETTERS.update('AEIOU')\ndef f(s):\n    return sum(c in LETTERS for c in s)",
    "table = {}\ndef fill():\n    for c in 'aeiouAEIOU':\n        table[c] = 1\nfill()\ndef f(s):\n    return sum(table.get(c, 0) for c in s)",
    "def f(s):\n    return sum(c in 'aeiou' for c in s)\nf = (lambda g: lambda s: g(s.lower()))(f)",
    "def f(s):\n    return sum(c in f.letters for c in s)\nf.letters = 'aeiouAEIOU'",
    "def count(s: str) -> int:\n    '''Counts.'''\n    # vowels\n    return sum(c in 'aeiouAEIOU' for c in s)\nprint(count('a'))",
    "def f(s):\n    return sum(c in 'aeiouAEIOU' for c in s)\nif __name__ == '__main__':\n    f = len",
    "def f(s):\n    return sum(c in 'aeiouAEIOU' for c in s)\nf = len",
    "letters = list('aeiouAEIOU')\nletters.clear()\ndef f(s):\n    return sum(c in letters for c in s)",
    "def f(s):\n    return sum(c in 'aeiouAEIOU' for c in s)\nassert f('sky') == 1",
    "def f(s: Unknown):\n    return sum(c in 'aeiouAEIOU' for c in s)\nprint(Unknown)"]


def in_python(program: str, task: Task) -> bool:
    """Whether Python finds a program of ours right."""
    names = {"__name__": "program"}
    try:
        exec(program, names)
        f = names.get("f") or names["count"]
        return all(f(ast.literal_eval(given)) == decode(output) for given, output in zip(task.inputs, task.outputs))
    except (NameError, AssertionError):
        return False


def test_programs_are_judged_as_python_runs_them(sandbox):
    right = [in_python(program, VOWELS) for program in PROGRAMS]
    assert right == [True] * 6 + [False] * 4
    found = judge(sandbox, VOWELS, "chat", *(f"```python\n{program}\n```" for program in PROGRAMS))
    assert found == [{True: "correct", False: "wrong"}[is_right] for is_right in right]


def test_a_program_is_changed_by_its_last_line_at_most():
    for program in PROGRAMS:
        added = "" if "count" not in program else "\nf = count"
        assert callable_as_f(program) == program + added
    for usage in "print(f(1))", "x = 1", "def g():\n    return f(1)", "class A:\n    def f(self): pass", "def f(":
        with pytest.raises(Refused, match="no_entry|syntax"):
            callable_as_f(usage)


# ---------------------------------------------------------------- arguments

TWO = "def f(a, b=7, *, c=0):\n    return a + b"


@pytest.mark.parametrize("text, arguments", [
    ("2, 3", "2, 3"), ("f(2, 3)", "2, 3"), ("2, 3,", "2, 3"), ("(2, 3)", "(2, 3)"), ("a=2, b=3", "2, 3"), ("f(b=3, a=2)", "2, 3"), ("2, b=3", "2, 3"),
    ("a = 2\nb = 3", "2, 3"), ("a: int = 2\nb: int = 3", "2, 3"), ("a, b = 2, 3", "2, 3"), ("f(2, 3)  # 5", "2, 3"), ("print(f(2, 3))", "2, 3"),
    ("f(2, 3) == 5", "2, 3"), ("assert f(2, 3) == 5", "2, 3"), ("f(2,\n  3);", "2, 3"), ("`f(2, 3)`", "2, 3"), ("x = 2\ny = 3\nprint(f(x, y))", "2, 3"),
    ("x = [2]\nresult = f(x, b=x)", "[2], [2]"), ("a = 2", "2"), ("size = 2, count = 3", "2, 3"), ("\u22122, 3", "-2, 3"), ("'\u2212'", "'\u2212'"),
    ("'f(1)'", "'f(1)'"), ("'a = 1'", "'a = 1'"), ("f(')')", "')'"), (TWO + "\nf(2)", "2"), ("{'a': set()}, -1", "{'a': set()}, -1"),
    # what states no arguments, or more than one call
    ("1) or (True", ""), ("1), f(2", ""), ("f(1)\nf(2)", ""), ("f(f(1))", ""), ("f(1) == f(2)", ""), ("*[1, 2]", ""), ("**{'a': 1}", ""), ("f(**{'a': 1})", ""),
    ("f(a)", ""), ("a = b\nf(a)", ""), ("b=3", ""), ("2, a=3", ""), ("2, d=3", ""), ("c=3", ""), ("a=1, d=3", ""), ("c=3, a=1", ""), ("[1] * 3", ""), ("range(3)", ""),
    ("a = 1\n2", ""), ("__import__('os')", ""), ("f(__import__('os'))", ""), ("{[1]}", ""), ("{**{}}", ""), ("# nothing", ""), ("", ""), ("f()", ""),
    ("x: 2", ""), ("[", ""), ("\ud800", "")])
def test_arguments_are_read_in_the_ways_models_write_them(text, arguments):
    assert canonical_arguments(text, TWO) == arguments


def test_a_gap_is_filled_by_the_parameters_default():
    assert canonical_arguments("1, z=3", "def f(x, y=-2, z=0):\n    return x") == "1, -2, 3"
    assert canonical_arguments("1, z=3", "def f(x, y=[0] * 2, z=0):\n    return x") == ""
    assert canonical_arguments("x=1", "def f(**named):\n    return named") == canonical_arguments("x=1", "f = abs") == ""


def test_arguments_deserve_their_verdicts(sandbox):
    task = made("code_i", TWO, ("2, 3", 5))
    texts = {"f(a=1, b=4)": "correct", "a = 1\nb = 4": "correct", "f(1, 4)  # 5": "correct", "f(a=-2)": "correct", "print(f(1, 4))": "correct",
             "a = 1": "wrong", "f(a=1, b='4')": "wrong", "f(a=1, b=2 + 2)": "malformed", "f(a=1, e=4)": "malformed"}
    assert judge(sandbox, task, "chat", *(f"```input\n{text}\n```" for text in texts)) == list(texts.values())


@pytest.mark.parametrize("block, inputs", [
    ("numbers = [1, 2, 3], k = 2", ("[1, 2, 3], 2",)), ("numbers = [1, 2, 3]\nk = 2", ("[1, 2, 3], 2",)), ("f(k=2, numbers=[1])  # one", ("[1], 2",)),
    ("   [1, 2], 1", ("[1, 2], 1",)), ("numbers = [1] * 3, k = 2", "not_literal"), ("k = 2", "not_literal")])
def test_proposals_may_name_their_arguments(sandbox, block, inputs):
    program = "def f(numbers, k):\n    return numbers[k:] + numbers[:k]"
    text = f"1. First:\n   ```input\n   {block}\n   ```\n```python\n{program}\n```"
    found = outcome(sandbox, "code_o", text.replace("\nk", "\n   k"))
    assert (found.inputs if isinstance(found, Task) else found) == inputs


def test_calls_of_an_induction_proposal_may_name_their_arguments():
    body = "f(1, b=2)  # usual\n# unusual\nprint(f(a=0))\nf(1, 2)\nf(b=3, a=4)"
    assert stated_inputs(body, TWO) == {"1, 2": "1, 2", "0": "0", "4, 3": "4, 3"}
    assert stated_inputs("a = 1\nb = 2", TWO) == {"1, 2": "1, 2"} and stated_inputs(" ? ", TWO) == {"?": "?"}
    text = "```python\n" + "\n".join(f"f({i}, b={i})" for i in range(10)) + "\n```"
    proposal = TASK_TYPES["code_f"].parse_proposal(text, "chat", [made("code_o", TWO, ("1", 8))], CHAT)
    assert proposal.inputs == tuple(f"{i}, {i}" for i in range(10))


# ---------------------------------------------------------------- values

@pytest.mark.parametrize("text, value", [
    ("'hello',", "('hello',)"), ("1,", "(1,)"), ("1, 2", "(1, 2)"), ("(1)", "1"), ("`[1]`  ", "[1]"), ("[1]  # one", "[1]"), ("\u22125", "-5"), ("'\u22125'", "'\u22125'"),
    ("1+2j", "1 + 2j"), ("set()", "set()"), ("{(1, 2): {3}}", "{(1, 2): {3}}"), ("'a' 'b'", "'ab'")])
def test_a_value_is_what_python_reads(text, value):
    assert value_text(text) == value


@pytest.mark.parametrize("text", ["", "# 1", "x", "x = 1", "f(1)", "1\n2", "...", "1 + 1", "[*[1]]", "{**{}}", "{[1]}", "{{}: 1}", "{(1, [2]): 3}", "{set()}",
                                  "1), (2", "0x" + "f" * 4000, "[" * 30 + "]" * 30, "\0", "\ud800"])
def test_what_is_no_literal_is_no_value(text):
    with pytest.raises(Refused):
        value_text(text)


def test_a_trailing_comma_makes_a_tuple(sandbox):
    word, one = made("code_o", "def f(x):\n    return x", ("'hello'", "hello")), made("code_o", "def f(x):\n    return x,", ("1", (1,)))
    assert judge(sandbox, word, "chat", *(f"```output\n{text}\n```" for text in ("'hello',", "'hello'", "('hello')"))) == ["wrong", "correct", "correct"]
    assert judge(sandbox, one, "chat", *(f"```output\n{text}\n```" for text in ("1,", "(1,)", "1"))) == ["correct", "correct", "wrong"]


@pytest.mark.parametrize("value, may", [
    (frozenset({1}), True), ([frozenset({1}), frozenset()], True), ({1: (frozenset("a"),)}, True), ({frozenset({1})}, False), ({frozenset(): 1}, False),
    ({(1, frozenset("a"))}, False), ([{(frozenset("a"), 2): 3}], False), (eval("[" * 24 + "]" * 24), True), (eval("[" * 25 + "]" * 25), False),
    ((1 + 2j, -0.0, b"x", -5, None), True)])
def test_a_gold_can_be_answered(sandbox, value, may):
    """What is shown of a gold is read as an answer, and is then right; or there is no task."""
    found = Reject.unless(check_value, value, CHAT)
    assert (found is None) == may, found
    if may:
        assert judge(sandbox, made("code_o", "def f(x):\n    return x", ("1", value)), "chat", f"```output\n{show(value)}\n```") == ["correct"]
    proposal = TASK_TYPES["code_o"].parse_proposal("```input\n1\n```\n```python\ndef f(x):\n    return x\n```", "chat", [], CHAT)
    task = TASK_TYPES["code_o"].accept(proposal, Verdict("ok", (encode(value),), (None,), 0.0), CHAT, "key")
    assert isinstance(task, Task) == may


def test_only_the_sandbox_evaluates(sandbox):
    """Each text is a call of something; nothing of it runs, there or here."""
    texts = ["f(print('ran'))", "a=print('ran')", "a = [].append\nf(a(1))", "print(f(exit()))"]
    assert judge(sandbox, made("code_i", TWO, ("2, 3", 5)), "chat", *(f"```input\n{text}\n```" for text in texts)) == ["malformed"] * 4
    verdict, = sandbox.run([Job(TWO, ("1, b=4",))])
    assert verdict.errors == ("not a literal",), "the sandbox takes no keywords: they have been put in order before"
