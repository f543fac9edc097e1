"""eval.code: programs are cut out of answers, files are read, tests are judged as benchmarks judge them."""
import base64
import gzip
import json
import pickle
import sys
import time
import zlib
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval import fetch
from eval.code import __main__ as code
from eval.code import suites
from eval.code.problems import SETS, Problem, call_text, live_tests, problem_of, restore, unpack
from eval.code.programs import complete, extract
from common import UserError
from sandbox.lenient import digest
from verifier import Verdict

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata"
SOLUTION = "import math\n\n\ndef helper(x):\n    return x + 1\n\n\ndef f(x):\n    return helper(x)"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    "time limits for programs that hang"
    monkeypatch.setattr(suites, "LIVE_S", 0.5)
    monkeypatch.setattr(suites, "LEAST_S", 0.5)


# ---- programs ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text", [f"```python\n{SOLUTION}\n```", f"Sure! Here:\n\n```\n{SOLUTION}\n```\nIt adds one: f(1) = 2.",
    f"Here is the function f.\n{SOLUTION}\n\nThis works because of arithmetic (it does",
    (f"```python\nx = [\n```\nOops. Again:\n```python\n{SOLUTION}\n```\n"
     "```python\nassert f(1) == 2\nassert f(2) == 3\n" + "print(f(1))\n" * 30 + "```"),
    f"{SOLUTION}\n\nif __name__ == '__main__':\n    print(f(2))", f"def f(x):\n    'Adds one.'\n\n{SOLUTION}",
    f"{SOLUTION}\n\ndef f(x):\n    return 0", f"<b>\n{SOLUTION}\n</b>",
    "1. So:\n" + "\n".join(f"   {line}" for line in f"```python\n{SOLUTION}\n```".split("\n")), f"~~~python\n{SOLUTION}\n~~~"])
def test_the_program_is_cut_out(text):
    assert [line for line in extract(text, "f").split("\n") if line] == [line for line in SOLUTION.split("\n") if line]


def test_what_the_entry_needs_is_kept():
    source = "from typing import List\nLIMIT: int = 3\nA, B = 1, 2\n" \
             "@decorate\ndef f(x):\n    swap(x)\n    return A + LIMIT\ndef swap(x):\n    x[0] = C.y\n" \
             "class C:\n    y = 1\ndef decorate(g):\n    return g\nunused = 4\nf = f"
    kept = extract(source, "f")
    for part in ("List", "LIMIT", "A, B", "@decorate", "def swap", "class C", "def decorate"):
        assert part in kept
    assert "unused" not in kept
    for text, entry in ("def g(x):\n    return 1", "f"), ("", "f"), ("No idea.", "f"), ("\n \n", None):
        assert extract(text, entry) == ""


def test_completions_end_where_something_else_begins_and_whole_programs_are_the_last_fence():
    prompt, more = 'def f(x):\n    """Adds one."""\n', "    return x + 1\n\n\ndef g(x):\n    pass"
    assert complete(prompt, more, "humaneval+") == prompt + "    return x + 1\n\n"
    assert complete(prompt, "    return 1\nprint(f(1))", "mbpp+") == prompt + "    return 1"
    script = "n = int(input())\nprint(n)"
    text = f"First idea:\n```python\nprint(1)\n```\nBetter:\n```python\n{script}\n```\nDone.\n```\nnot python at all\n```"
    assert extract(text, None) == script and extract(script, None) == script


def test_the_first_program_in_the_envelope_counts():
    text = "</think> <answer>\n```python\n{}\n```\n</answer>\nUser: Again.\n<answer>\n```python\ndef f(x):\n    y = 1\n    return y\n```\n</answer>"
    for bench in ("mbpp+", "livecodebench"):
        assert code.program(Problem(bench, "1", "Write f.", "f"), text.format("def f(x):\n    return x"), "envelope").strip() == "def f(x):\n    return x"


def test_what_is_kept_is_the_answers_own_text():
    head = "@wraps(\n    str)\n@other\ndef f(x):\n    return 0x" + "f" * 3600
    text = f"unused = 2\nimport os\nfrom functools import wraps\nother = \\\n    str\n{head}\n"
    kept = extract(text, "f")
    assert kept == text.partition("\n")[2].rstrip("\n") and extract(text.replace("\n", "\r\n"), "f") == kept


HOSTILE = ["(" * 100_000, "```python\n" * 20_000, "def f(x):\n" * 10_000, "x = 1\n" * 17_000 + "(", "'''" * 40_000,
           "\ud800def f(x): return 1", "if x:\n" + " if x:\n" * 999, "\n".join(f"x{i} = (" for i in range(9999)), "\\\n" * 50_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_neither_raises_nor_takes_long(text):
    start = time.process_time()
    for entry in "f", None:
        assert isinstance(extract(text, entry), str)
        assert isinstance(extract(f"```python\n{text}\n```", entry), str)
    complete(text, text, "mbpp+")
    assert time.process_time() - start < 10


# ---- files -------------------------------------------------------------------------------------------------

HUMAN = dict(task_id="HumanEval/0", prompt="def add(x, y):\n    \"\"\"Adds.\"\"\"\n", entry_point="add",
             canonical_solution="    return x + y\n", test="", contract="", base_input=[[1, 2], [3, 4]],
             plus_input=[[0.1, 0.2], [-1, float("inf")]], atol=0)
MBPP = [dict(task_id="Mbpp/2", prompt='"""\nShared elements.\nassert ...\n"""\n', atol=0,
             entry_point="similar_elements", base_input=[[[3, 4], [4, 3]]], plus_input=[[[1, 2, 3], [3, 2]]],
             canonical_solution="def similar_elements(a, b):\n    return tuple(set(a) & set(b))\n"),
        dict(task_id="Mbpp/737", prompt='"""\nVowel?\n"""\n', entry_point="check_str", atol=0,
             base_input=[["annie"], ["dawood"]], plus_input={},
             canonical_solution="import re\ndef check_str(s):\n    return re.match('[aeiou]', s)\n")]


def packed(tests: list[dict]) -> str:
    """Private tests as LiveCodeBench publishes them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def live_row(id: str, tests: list[tuple[str, str]], name: str = "", kind: str = "stdin") -> dict:
    cases = [dict(input=given, output=wanted, testtype=kind) for given, wanted in tests]
    return dict(question_title="t", question_content="Add.", platform="atcoder", question_id=id,
                starter_code="class Solution:\n    def add(self, a, b):\n        " if name else "",
                public_test_cases=json.dumps(cases[:1]), private_test_cases=packed(cases[1:]),
                metadata=json.dumps(dict(func_name=name) if name else {}))


LIVE = [live_row("abc1_a", [("1 2\n", "3\n"), ("2 2", "4"), ("0 0", "0")]),
        live_row("3001", [("[1, 2]\n3", "[1, 2, 3]"), ("[]\n1", "[1]")], "add", "functional")]


def write(path: Path, rows: list[dict]) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, some in (("HumanEvalPlus.jsonl.gz", [HUMAN]), ("MbppPlus.jsonl", MBPP), ("livecodebench1.jsonl", LIVE)):
        write(folder / name, some)
    monkeypatch.setitem(fetch.FILES, "livecodebench", fetch.FILES["livecodebench"][:1])
    return folder


def load(name: str, data: Path) -> list[Problem]:
    return fetch.load(Namespace(bench=name, data=str(data), limit=0), SETS, problem_of)[0]


def test_published_formats(data):
    add, = load("humaneval+", data)
    assert add.base == ("1, 2", "3, 4") and add.plus == ("0.1, 0.2", "-1, 1e999")
    assert add.entry == "add"
    shared, vowel = load("mbpp+", data)
    assert shared.base == ("(3, 4), (4, 3)",) and vowel.plus == ()
    script, function = load("livecodebench", data)
    assert script.entry is None and live_tests(script) == (("1 2\n", "2 2", "0 0"), ["3\n", "4", "0"])
    assert function.entry == "add" and live_tests(function) == (("[1, 2], 3", "[], 1"), ["[1, 2, 3]", "[1]"])
    assert restore("Mbpp/124", ["1", "2j"]) == [1.0, 2j]
    assert restore("Mbpp/580", [[1, [2, [3]]]]) == [(1, (2, (3,)))] and restore("Mbpp/999", [[1]]) == [[1]]
    assert call_text([(1,), float("inf"), {"a": [float("-inf")]}, "it's inf"]) == '(1,), 1e999, {\'a\': [-1e999]}, "it\'s inf"'


@pytest.mark.parametrize("name, row, says", [
    ("humaneval+", dict(task_id="x"), "it lacks 'prompt'"), ("humaneval+", dict(HUMAN, plus_input=[3]), "'plus_input' has a call 3"),
    ("livecodebench", dict(LIVE[0], private_test_cases="AAAA"), "tests cannot be unpacked")])
def test_bad_files_are_named(data, name, row, says):
    path = data / ("livecodebench1.jsonl" if name == "livecodebench" else "HumanEvalPlus.jsonl.gz")
    write(path, [row])
    with pytest.raises(UserError, match=f"{path.name}, line 1: .*{says}"):
        load(name, data)


class Deed:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_private_tests_hold_no_classes(tmp_path):
    tests = [dict(input="1", output="2", testtype="stdin")]
    assert unpack(packed(tests)) == unpack(json.dumps(tests)) == [dict(input="1", output="2")]
    for evil in Deed(tmp_path / "unpickled"), print, Path("/"), {1, 2}, object():
        with pytest.raises(UserError, match="cannot be unpacked"):
            unpack(base64.b64encode(zlib.compress(pickle.dumps(evil))).decode())
    raws = b"no zlib", zlib.compress(b"garbage"), zlib.compress(b"\x80\x04K\x01Q.")           # the last: a persistent id
    for text in "", "[", "[1]", "not base64!", packed(tests)[:-8], *(base64.b64encode(raw).decode() for raw in raws):
        with pytest.raises(UserError, match="cannot be unpacked"):
            unpack(text)
    assert not (tmp_path / "unpickled").exists()


# ---- judging -----------------------------------------------------------------------------------------------

def verdict(wide, problem: Problem, program: str) -> tuple[bool, bool, str]:
    suite, = suites.suites(wide, [problem])
    found, = suites.verify(wide, [(suite, program)])
    return found["base"], found["plus"], found["why"]


def test_base_and_plus(wide, data):
    add, = load("humaneval+", data)
    assert verdict(wide, add, add.canonical) == (True, True, "")
    within = "def add(x, y):\n    return y + x + 1e-9 * (x == 0.1)"                    # floats within 1e-6
    assert verdict(wide, add, within) == (True, True, "")
    partly = "def add(x, y):\n    return x + y if x >= 1 else 0"
    assert verdict(wide, add, partly) == (True, False, "plus input 0: wrong value")
    slow = "def add(x, y):\n    while x == 3: pass\n    return x + y"
    assert verdict(wide, add, slow) == (False, False, "base input 1: timeout")
    equal_to_all = "class E:\n    def __eq__(self, o): return True\ndef add(x, y): return E()"
    for program, why in {"": "no program",
                         "def add(x, y): return x - y": "base input 0: wrong value", "import os\nos._exit(0)": "base input 0: exit",
                         "def add(x, y): raise KeyError": "base input 0: error: KeyError: ", "def sub(x): return 1": "base input 0: error: NameError",
                         equal_to_all: "base input 0: unsupported: value of type E",
                         "import os\ndef add(x, y): return os.fork()": "base input 0: violation",
                         "def add(x, y): return 'x' * 10**7": "base input 0: too big"}.items():
        found = verdict(wide, add, program)
        assert found[:2] == (False, False) and found[2].startswith(why), found


def test_special_oracles(wide, data):
    shared, vowel = load("mbpp+", data)
    assert verdict(wide, shared, "def similar_elements(a, b): return sorted(set(a) & set(b))[::-1]") == (True, True, "")
    for program in (vowel.canonical, "def check_str(s): return s[0] in 'aeiou'", "def check_str(s): return 'yes' if s[0] == 'a' else None"):
        assert verdict(wide, vowel, program) == (True, True, ""), program
    assert verdict(wide, vowel, "def check_str(s): return True")[0] is False
    zero = Problem("humaneval+", "HumanEval/32", "", "find_zero", "def find_zero(xs): return -xs[0] / xs[1]", ("[1, 2]",), atol=1e-4)
    assert verdict(wide, zero, "def find_zero(xs): return -0.50001")[0]
    assert not verdict(wide, zero, "def find_zero(xs): return -0.51")[0]
    pyramid, digits = (Problem("mbpp+", "x", "", name, atol=0.1) for name in ("surface_Area", "digit_distance_nums"))
    assert suites.agrees(pyramid, "3, 4", 35, 33, 0) and not suites.agrees(pyramid, "3, 4", 36, 33, 0)
    assert suites.agrees(digits, "7, 123", 7, 0, 0) and not suites.agrees(digits, "7, 123", 6, 0, 0)


def problem(bench: str, entry: str, canonical: str, base: tuple[str, ...], plus: tuple[str, ...] = ()) -> Problem:
    return Problem(bench, "x", "", entry, canonical, base, plus)


def test_the_tolerance_begins_at_the_first_float_of_each_part(wide):
    """An empty list is no float, and what follows in the other part knows nothing of it (evalplus/eval/__init__.py)."""
    ints = problem("humaneval+", "f", "def f(xs): return xs", ("[]", "[1000000000]"), ("[1000000000]", "[0.5]"))
    off = "def f(xs): return [x + (x > 10 ** 8) for x in xs]"
    assert verdict(wide, ints, off) == (False, False, "base input 1: wrong value")
    floats = problem("humaneval+", "f", "def f(x): return x", ("0.5", "1000000000"), ("1000000000", "0.5", "1000000000"))
    assert verdict(wide, floats, "def f(x): return x + (x > 10 ** 8)") == (True, False, "plus input 0: wrong value")
    near = "def f(x, seen=[]):\n    seen.append(x)\n    return x + (x > 10 ** 8 and 0.5 in seen)"
    assert verdict(wide, floats, near) == (True, True, ""), "from the first float on, also of integers"


@pytest.mark.parametrize("made", ["(x for x in s)", "filter(None, s)", "dict.fromkeys(s).keys()", "dict.fromkeys(s)", "map(int, s)", "frozenset(s)"])
def test_where_the_order_is_free_any_iterable_answers(wide, data, made):
    shared, _ = load("mbpp+", data)
    assert verdict(wide, shared, f"def similar_elements(a, b):\n    s = set(a) & set(b)\n    return {made}") == (True, True, "")
    assert not verdict(wide, shared, f"def similar_elements(a, b):\n    s = set(a)\n    return {made}")[1]


@pytest.mark.parametrize("returned, right", [
    ("Fraction(1, 2)", True), ("Decimal('0.5')", True), ("complex(0.5)", True), ("type('F', (float,), {})(0.5)", True), ("Fraction(1, 3)", False),
    ("0.5 + 1e-9", True), ("Fraction(0.5 + 1e-9)", False), ("type('F', (float,), {})(0.5 + 1e-9)", False), ("Decimal('inf')", False), ("(0.5,)", False)])
def test_numbers_of_other_classes_are_equal_and_never_near(wide, returned, right):
    """EvalPlus takes what is == of any type, and what is near of the very same type alone."""
    half = problem("humaneval+", "f", "def f(x): return x / 2", ("1",))
    program = f"from fractions import Fraction\nfrom decimal import Decimal\ndef f(x): return {returned}"
    assert verdict(wide, half, program)[0] is right


def test_keys_equal_a_set_and_chained_maps_a_dictionary_and_fractions_are_near_within_a_list(wide):
    members = problem("mbpp+", "f", "def f(xs): return set(xs)", ("[1, 2]",))
    assert verdict(wide, members, "def f(xs): return dict.fromkeys(xs).keys()")[0]
    assert not verdict(wide, members, "def f(xs): return dict.fromkeys(xs)")[0]
    table = problem("mbpp+", "f", "def f(x): return {x: 1, 2: 2}", ("1",))
    assert verdict(wide, table, "from collections import ChainMap\ndef f(x): return ChainMap({x: 1}, {2: 2})")[0]
    thirds = problem("mbpp+", "f", "def f(x): return [x / 3, x / 7]", ("1",))
    assert verdict(wide, thirds, "from fractions import Fraction\ndef f(x): return [Fraction(x, 3), Fraction(x, 7)]")[0]


def test_programs_may_have_any_names(wide):
    """What is put after a program takes nothing from it, and recursion goes through the program's own function."""
    named = problem("humaneval+", "f", "def f(n): return [n]", ("3",))
    program = "type = tuple = list = set = isinstance = None\n_answer = out = 1\ndef f(n): return f(n - 1) if n > 9 else [n * _answer]"
    assert verdict(wide, named, program)[2] == ""


def test_no_input_is_left_out_because_its_value_is_big(wide):
    """Ten megabytes, of which the program reports a hash."""
    big = problem("humaneval+", "f", "def f(n): return ['abcdefgh' * 1000] * n + [n]", ("2",), ("1200",))
    assert verdict(wide, big, big.canonical) == (True, True, "")
    assert verdict(wide, big, "def f(n): return ['abcdefgh' * 1000] * n + [float(n)]") == (True, True, ""), "2.0 == 2"
    own = "class Own(list): pass\ndef f(n): return Own(['abcdefgh' * 1000] * n + [n])"
    assert verdict(wide, big, own) == (True, True, ""), "of another type, and equal"
    for wrong in ("+ [n + (n > 2)]", "[n > 2:] + [n]", "+ ([n] if n == 2 else [[n]])"):
        found = verdict(wide, big, f"def f(n): return (['abcdefgh' * 1000] * n){wrong}")
        assert found[:2] == (True, False) and found[2].startswith("plus input 0: too big: "), wrong


@pytest.mark.parametrize("a, b, alike", [
    ([1, 0], [True, 0.0], True), ([-1], [-2], False), ((1, 2), [1, 2], False), (["ab", "c"], ["a", "bc"], False), ({1: 2, 3: 4}, {3: 4.0, 1: 2}, True),
    ({1, 2}, frozenset({2.0, 1}), True), ([[1], 2], [[1, 2]], False), ("1", 1, False), (None, 0, False), (0.5, 0.5 + 0j, True), (b"a", "a", False),
    (2 ** 61, 1, False), (["\ud800"], ["\ud801"], False), ({"a": 1}, {"a": 2}, False), ([()], [[]], False)])
def test_a_digest_is_that_of_all_equal_values(a, b, alike):
    assert (digest(a) == digest(b)) is alike is (a == b)


COLLIDING = f"[{(1 << 61) - 1} * (i + 1) for i in range(32000)]"          # one hash for all


def test_values_of_one_hash_do_not_stall_the_comparison(wide, data):
    shared, _ = load("mbpp+", data)
    suite, = suites.suites(wide, [shared])
    start = time.process_time()
    found, = suites.verify(wide, [(suite, f"def similar_elements(a, b): return {COLLIDING}")])
    assert found["why"] == "base input 0: wrong value" and time.process_time() - start < 2
    for out, right in ([3, 4.0, 4], True), ((4, 3), True), ([3], False), ([3, 4, 5], False), ("", False):
        assert suites.agrees(shared, "", out, (3, 4), 0) is right, out
    assert suites.same_set([], ()) and not suites.agrees(shared, "", [[3], [4]], (3, 4), 0)


@pytest.mark.parametrize("out, expected, atol, right", [
    (1.0, 1, 0, True), (1 + 1e-7, 1.0, 1e-6, True), (1, 1.0000001, 1e-6, False), ([1.0, 2.0], [1.0, 2.0000001], 1e-6, True),
    ((1.0,), [1.0], 1e-6, False), ([1.0], [1.0, 1.0], 1e-6, False), ("a", "b", 1e-6, False), (float("inf"), 1.0, 1e-6, False),
    ([[1.0]], [[1.0000001]], 1e-6, True), (10**400, 10**400 + 1, 1e-6, False), ([1.0, "a"], [1.0000001, "a"], 1e-6, False),
    ({1: 1.0}, {1: 1.0000001}, 1e-6, False), (1j, 1j + 1e-9, 1e-6, True), ([[1.0], 2.0], [[1.0], 2.1], 1e-6, False)])
def test_closeness(out, expected, atol, right):
    assert suites.agrees(Problem("humaneval+", "x", "", "f"), "", out, expected, atol) is right


def test_livecodebench(wide, data):
    script, function = load("livecodebench", data)
    main = ("def main():\n    print(sum(map(float, sys.stdin.read().split())), '\\n')\n"
            "if __name__ == '__main__':\n    main()")
    for program in ("a, b = map(int, input().split())\nprint(a + b)", main, "print(sum(map(int, input().split())))\nexit()"):
        assert verdict(wide, script, program) == (True, True, ""), program
    for program in ("print(3)", "print(3)\nprint(4)", "input(", "while True: pass", "print(open('/etc/passwd').read())", "print('3 x')"):
        assert verdict(wide, script, program)[0] is False, program
    for program in ("class Solution:\n    def add(self, a: List[int], b: int) -> List[int]: return a + [b]", "def add(a, b): return (*a, b)"):
        assert verdict(wide, function, program) == (True, True, ""), program
    for program in "class Solution:\n    def add(self, a, b): return a", "class Solution: pass":
        assert not verdict(wide, function, program)[0], program
    assert suites.printed_alike("1.0 2\n x ", "1.00 2.0\nx\n")
    for word in ("sNaN", "-snan123", "nan", "1e99999999999999999999", "0x1"):
        assert not suites.printed_alike(word, "1") and not suites.printed_alike("1", word)
    assert not verdict(wide, script, "print('sNaN')")[0]
    assert not suites.printed_alike("1\n2", "1 2") and not suites.printed_alike("", "1")


# ---- the command -------------------------------------------------------------------------------------------

def test_self_test(data, capsys):
    assert code.main(["--self-test", "--data", str(data), "--bench", ",".join(SETS)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == {"humaneval+": dict(n=1, right=1), "mbpp+": dict(n=2, right=2)}
    wrong = dict(HUMAN, canonical_solution="    return x + y if x < 3 else 1 // 0\n")
    write(data / "HumanEvalPlus.jsonl.gz", [wrong])
    assert code.main(["--self-test", "--data", str(data), "--bench", "humaneval+"]) == 1
    out = capsys.readouterr()
    assert "HumanEval/0: the published answer does not pass" in out.err
    assert json.loads(out.out.splitlines()[-1])["humaneval+"]["right"] == 0


def test_a_run_is_answered_and_judged(data, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(code, "program", lambda problem, text, prompt_format: problem.canonical if text else "")
    argv = ["--base", str(tiny.path), "--data", str(data), "--max-new-tokens", "4", "--out", str(tmp_path / "out")]
    assert code.main([*argv, "--bench", "mbpp+"]) == 0
    lines = json.loads((tmp_path / "out" / "summary.json").read_text())["results"]
    assert [(line["bench"], line["accuracy"]) for line in lines] == [("mbpp", 1), ("mbpp+", 1)], "by the base tests and by all"
    assert "mbpp+  base" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not here")
@pytest.mark.parametrize("name", ["humaneval+", "mbpp+"])
def test_published_solutions_pass(name, monkeypatch):
    monkeypatch.undo()
    assert code.main(["--self-test", "--data", str(SHARED), "--bench", name]) == 0


def test_a_sandbox_that_fails_on_a_canonical_solution_ends_the_command():
    """Without it nobody knows what is right."""
    problem = Problem("mbpp+", "Mbpp/1", "", "f", "def f(x):\n    return x", ("1",), ("2", "3"))
    failing = SimpleNamespace(run=lambda jobs: [Verdict("sandbox failure", (None,), ("sandbox failure",), 0.0) for _ in jobs])
    with pytest.raises(OSError, match="the sandbox failed on the solution of Mbpp/1"):
        suites.suites(failing, [problem])
