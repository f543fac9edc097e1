"""eval.code: programs are cut out of answers, published formats are read, tests are judged as benchmarks judge them."""
import base64
import gzip
import json
import pickle
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_run import rows, write

from common import UserError
from eval import code
from eval.answer import NOT_PLAIN, Item
from eval.code import (
    Problem,
    alike,
    call_text,
    equal,
    live_tests,
    printed_alike,
    problem_of,
    program_of,
    tolerance,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")

# ---- programs ----------------------------------------------------------------------------------------------

SOLUTION = "import math\n\nLIMIT = 3\n\ndef helper(x):\n    return x + 1\n\ndef f(x):\n    return helper(x)"
ADD = Problem("humaneval+", "x", "", "f")


@pytest.mark.parametrize("text", [
    f"{code.BEGIN}{SOLUTION}\n", f"Sure! Here:\n\n```\n{SOLUTION}\n```\nIt adds one: f(1) = 2.",
    f"{SOLUTION}\n\nThis works because of arithmetic (it does", f"{SOLUTION}\n\nif __name__ == '__main__':\n    print(f(2))",
    f"```python\nx = [\n```\nOops. Again:\n```python\n{SOLUTION}\nassert f(1) == 2\nprint(f(1))\n```",
    f"So. <answer> ```python\n{SOLUTION}\n``` </answer>", f"<answer> {SOLUTION} </answer>"])
def test_the_program_is_cut_out(text):
    assert program_of(text, ADD).replace("\n", "") == SOLUTION.replace("\n", "")


def test_whole_programs_are_the_last_block_and_nothing_hostile_raises():
    live = Problem("livecodebench", "x", "", None)
    assert program_of("First:\n```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```\n", live) == "print(2)"
    assert program_of("print(3)", live) == "print(3)"
    for text in ("", "No idea.", "(" * 9999, "```python\n" * 2000, "\ud800def f(x): return 1", "if x:\n" * 99, "'''" * 4000, "\0", "x = 0x" + "F" * 5000):
        assert "def f" not in program_of(text, ADD), text[:20]


# ---- files -------------------------------------------------------------------------------------------------

HUMAN = dict(task_id="HumanEval/0", prompt="def add(x, y):\n    \"\"\"Adds.\"\"\"\n", entry_point="add",
             canonical_solution="    return x + y\n", base_input=[[1, 2], [3, 4]], plus_input=[[0.1, 0.2], [-1, float("inf")]], atol=0)
MBPP = dict(task_id="Mbpp/9", prompt='"""\nPairs.\n"""\n', assertion="\nassert pairs([(1, 2)], 3) == 1", atol=0, entry_point="pairs",
            base_input=[[[[3, 4], [4, 3]], 7]], plus_input={}, canonical_solution="def pairs(a, n):\n    return len(set(a))\n")


def packed(tests):
    """Private tests as LiveCodeBench publishes them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def live_row(id, tests, name="", kind="stdin"):
    cases = [dict(input=given, output=wanted, testtype=kind) for given, wanted in tests]
    return dict(question_content="Add.", question_id=id, starter_code="class Solution:\n    def add(self, a, b):\n" if name else "",
                public_test_cases=json.dumps(cases[:1]), private_test_cases=packed(cases[1:]),
                metadata=json.dumps(dict(func_name=name) if name else {}))


LIVE = [live_row("abc1_a", [("1 2\n", "3\n"), ("2 2", "4"), ("0 0", "0")]),
        live_row("3001", [("[1, 2]\n3", "[1, 2, 3]"), ("[]\n1", "[1]")], "add", "functional")]


def test_published_formats(tmp_path):
    add = problem_of("humaneval+", HUMAN)
    assert add.inputs == ("1, 2", "3, 4", "0.1, 0.2", "-1, 1e999") and add.canonical.startswith("def add")
    assert problem_of("mbpp+", MBPP).inputs == ("[(3, 4), (4, 3)], 7",), "tuples as in the assertion that is shown"
    assert alike([1, [2, [3, [4]]]], (1, (2, (3,)))) == (1, (2, (3, (4,)))) and alike([[1], [2]], [(0,)]) == [(1,), (2,)]
    assert alike("2j", 1j) == 2j and alike("J", 1) == "J" and alike([[1, 2]], [[1]]) == [[1, 2]]
    assert call_text([(1,), float("inf"), -float("inf"), "it's inf"]) == '(1,), 1e999, -1e999, "it\'s inf"'
    script, function = (problem_of("livecodebench", row) for row in LIVE)
    assert script.entry is None and live_tests(script) == [("1 2\n", "3\n"), ("2 2", "4"), ("0 0", "0")]
    assert live_tests(function) == [("[1, 2], 3", "[1, 2, 3]"), ("[], 1", "[1]")]
    evil = base64.b64encode(zlib.compress(pickle.dumps(Path("/")))).decode()
    with pytest.raises(pickle.UnpicklingError, match="names pathlib"):
        live_tests(replace(script, packed=(evil,)))


# ---- judging -----------------------------------------------------------------------------------------------

def verdict(wide, problem, program):
    """(verdict, why) of a program."""
    row, = code.judge(wide, "chat", [(Item(problem.bench, problem.id, None, problem), f"```python\n{program}\n```")])
    assert row["task_id"] == problem.id
    return row["verdict"], row["why"]


def test_programs_are_judged_by_what_they_return(wide):
    add = problem_of("humaneval+", HUMAN)
    for program, found in {
            add.canonical: ("correct", ""), "def add(x, y):\n    return y + x + 1e-9 * (x == 0.1)": ("correct", ""),
            "def add(x, y):\n    return x + y if x >= 1 else 0": ("wrong", "input 2: another value"),
            "def add(x, y): raise KeyError": ("wrong", "input 0: error: KeyError"), "x = 1": ("malformed", "no program"),
            "import os\ndef add(x, y): return os.fork()": ("wrong", "input 0: violation"), "": ("malformed", "no program"),
            "class E:\n    def __eq__(self, o): return True\ndef add(x, y): return E()": ("wrong", "input 0: unsupported: value of type E"),
            }.items():
        ours = verdict(wide, add, program)
        assert ours[0] == found[0] and ours[1].startswith(found[1]), (program, ours)
    for canonical, entry in (("def f(x):\n    return object()", "f"), ("def find_zero(x):\n    return x", "find_zero")):
        own = Problem("humaneval+", "HumanEval/9", "", entry, canonical, ("1",))
        assert verdict(wide, own, canonical) == (NOT_PLAIN, ""), "EvalPlus has the word"


def test_a_tolerance_once_taken_stays(wide):
    """EvalPlus 0.3.1 sets it at the first value of floats for all inputs after it, of the base or of the plus inputs."""
    for first, n_base, found in (("0.5", 0, "correct"), ("1", 0, "wrong"), ("0.5", 1, "wrong")):
        half = Problem("humaneval+", "HumanEval/9", "", "f", "def f(x):\n    return x if x < 2 else [x, .5]", (first, "2"), n_base)
        assert verdict(wide, half, "def f(x):\n    return x if x < 2 else [x, .5 + 1e-9]")[0] == found


@pytest.mark.parametrize("out, gold, atol, right", [
    (1.0, 1, 0, True), (1 + 1e-7, 1.0, 0, True), (1, 1.0000001, 0, False), ([1.0, 2.0], [1.0, 2.0000001], 0, True),
    ((1.0,), [1.0], 0, False), ([1.0], [1.0, 1.0], 0, False), ("a", "b", 1e-6, False), (float("inf"), 1.0, 0, False),
    ([[1.0]], [[1.0000001]], 0, False), ([[1.0]], [[1.0000001]], 1e-6, True), (10**400, 10**400 + 1, 1e-6, False),
    ([1.0, "a"], [1.0000001, "a"], 1e-6, False), (1j, 1j + 1e-9, 1e-6, True), ([[1.0], 2.0], [[1.0], 2.1], 1e-6, False)])
def test_nearness_is_that_of_evalplus(out, gold, atol, right):
    """evalplus/eval/__init__.py, 0.3.1: what is near of the very same type, from floats on."""
    assert equal(out, gold, tolerance(gold, atol)) is right


def test_livecodebench(wide):
    script, function = (problem_of("livecodebench", row) for row in LIVE)
    main = "def main():\n    print(sum(map(float, sys.stdin.read().split())), '\\n')\nif __name__ == '__main__':\n    main()"
    for program in ("a, b = map(int, input().split())\nprint(a + b)", main, "print(sum(map(int, open('/dev/stdin').read().split())))\nexit()"):
        assert verdict(wide, script, program)[0] == "correct", program
    for program in ("print(3)", "input(", "print(open('/etc/passwd').read())", "print('3 x')"):
        assert verdict(wide, script, program)[0] == "wrong", program
    for program in ("class Solution:\n    def add(self, a: List[int], b: int) -> List[int]: return a + [b]", "def add(a, b): return (*a, b)"):
        assert verdict(wide, function, program)[0] == "correct", program
    assert verdict(wide, function, "class Solution: pass")[0] == "wrong"
    assert printed_alike("1.0 2\n x ", "1.00 2.0\nx\n") and printed_alike("nan", "nan") and not printed_alike("1\n2", "1 2")
    for word in ("sNaN", "nan", "1e99999999999999999999", "0x1", ""):
        assert not printed_alike(word, "1") and not printed_alike("1", word)


# ---- the command -------------------------------------------------------------------------------------------

def test_the_command(tmp_path, reader):
    (tmp_path / "HumanEvalPlus.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMAN).encode()))
    write(tmp_path / "MbppPlus.jsonl", [MBPP, dict(MBPP, task_id="Mbpp/10")])
    flags = ["--base", str(reader), "--max-new-tokens", "8", "--device", "cpu", "--out", str(tmp_path / "out"), "--data"]
    code.main([*flags, str(tmp_path), "--limit", "1"])
    answers = rows(tmp_path / "out", "answers")
    assert {(row["task_id"], row["solution"], row["verdict"]) for row in answers} == {
        (id, "", "malformed") for id in ("HumanEval/0", "Mbpp/9")}, "a random model writes none"
    assert answers[0]["text"].startswith("<think>"), "the envelope's opening counts"
    for words, match in ((["--bench", "livecodebench"], "files are there of humaneval[+], mbpp[+]; .* livecodebench"), (["--bench", "mbpp"], "--bench mbpp, .*: files are there of humaneval"),):
        with pytest.raises(UserError, match=match):
            code.main([*flags, str(tmp_path), *words])
    write(tmp_path / "MbppPlus.jsonl", [MBPP])
    with pytest.raises(UserError, match=r"made otherwise \(MbppPlus.jsonl\)"):
        code.main([*flags, str(tmp_path)])
