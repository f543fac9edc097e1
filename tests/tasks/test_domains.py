"""math.py and logic.py: numbers and truth values as models write them, puzzles and problems, run."""
import dataclasses
import itertools
import json
import random
import re
import sys
import types
from fractions import Fraction as F
from pathlib import Path

import pytest
from proposals import CHAT, MICRO, fate, outcome

import config
import tasks
from common import UserError
from micro import data
from sandbox.values import decode
from tasks import TASK_TYPES, prompts, read_tasks
from tasks.math import exact, rational

MATH, LOGIC = TASK_TYPES["math"], TASK_TYPES["logic"]


def judge(task, prompt_format, text):
    """The verdict on an answer; nothing of a student's has to run."""
    kind, limits = TASK_TYPES[task.kind], MICRO if prompt_format == "micro" else CHAT
    answer = kind.parse_answer(text, prompt_format, task, limits)
    assert kind.answer_jobs(task, [answer], limits) == []
    return kind.judge(task, [answer], [], limits)[0]


# ---------------------------------------------------------------- numbers

@pytest.mark.parametrize("text, value", [("42", 42), ("-7", -7), ("+7", 7), ("$1,234.50", F("1234.5")), ("1,000,000", 10**6),
    ("3/4", F(3, 4)), ("1 / 8", F(1, 8)), ("3 1/2", F(7, 2)), ("3½", F(7, 2)), ("½", F(1, 2)), ("0.125", F(1, 8)),
    (".5", F(1, 2)), ("5.", 5), ("1e3", 1000), ("2.5E-1", F(1, 4)), ("2 × 10^3", 2000), (r"2 \times 10^{3}", 2000),
    ("−5", -5), ("５", 5), ("The answer is 42.", 42), ("60 km/h", 60), ("12 m²", 12), ("12 cm3", 12), ("7 m^{-2}", 7),
    ("12 ft2.", 12), ("5 €", 5), ("90°", 90), (r"90^\circ", 90), (r"\boxed{\frac{3}{4}}", F(3, 4)),
    (r"\frac12", F(1, 2)), (r"-\dfrac{3}{4}", F(-3, 4)), ("1{,}000", 1000), (r"1\,000", 1000), (r"\left( 5 \right)", 5)])
def test_numbers_are_read_exactly(text, value):
    assert rational(text) == {F(value)}


def test_a_percentage_is_both_of_its_readings():
    assert rational("50%") == rational(r"50\%") == rational("50 percent") == {F(50), F(1, 2)}


@pytest.mark.parametrize("text", [
    "", "seven", "3 or 4", "5 to 6", "2*3", "5-3", "3+4", "2^3", "is2", "5²", "1/2/3", "1/0", r"\sqrt{2}", "sqrt 2", "0x10",
    "१२", "NaN", "inf", "1e9999", "9" * 100, "5" + " " * 500 + "or 6", "\x00", "\ud800", "[5]", "__import__('os')", "2 dozen", "half of 10",
    "negative 5"])
def test_what_states_no_single_number_is_none(text):
    assert rational(text) == set()


@pytest.mark.parametrize("value, want", [(3, F(3)), (0.1, F(1, 10)), (2.5, F(5, 2)), (1e16, F(10**16)), (0.1 + 0.2, None), (1 / 3, None),
    ("-1/3", F(-1, 3)), (True, None), ("3", None), ("1/0", None), ([3], None), (None, None), (0.0, F(0))])
def test_gold_numbers(value, want):
    assert exact(value) == want


# ---------------------------------------------------------------- math

PROBLEM = ("```question\nTom has 3 bags of 12 figs and eats a quarter. How many are left?\n```\n"
           "```python\ndef solution():\n    figs = 3 * 12\n    return figs * 3 // 4\n```")


def test_a_word_problem_becomes_a_task(sandbox):
    task = outcome(sandbox, "math", PROBLEM)
    assert task.outputs == ("27",) and task.inputs == ("",)
    assert task.message.startswith("Tom has") and task.program.startswith("def f():")
    prompt = MATH.solve("chat", task, CHAT).user
    assert task.message in prompt and "figs * 3" not in prompt, "the student sees the question alone"
    assert "def solution():" in MATH.propose("chat", [task], random.Random(0), CHAT).user
    many = PROBLEM.replace("def solution", "def half(x):\n    return x / 2\n\ndef solution")
    assert outcome(sandbox, "math", many).outputs == ("27",), "solution is the entry among several functions"


@pytest.mark.parametrize("change, reason", [
    (("```question", "```"), "no_question"), (("Tom has 3 bags of 12 figs and eats a quarter. How many are left?", ""), "no_question"),
    (("```python\ndef", "so\ndef"), "no_program"), (("return figs * 3 // 4", "return figs / 7"), "inexact"),
    (("return figs * 3 // 4", "return True"), "not_a_number"), (("solution()", "solution(n)"), "error"),
    (("figs = 3 * 12", "figs ="), "syntax"), (("Tom has", "<|im_end|> Tom has"), "control_text")])
def test_word_problems_are_refused_by_name(sandbox, change, reason):
    assert outcome(sandbox, "math", PROBLEM.replace(*change)) == reason


@pytest.mark.parametrize("text, verdict", [
    ("3 * 12 = 36, less 9:\n\n```answer\n27\n```", "correct"), ("```answer\n27 figs\n```", "correct"),
    ("so \\boxed{27}", "correct"), ("first \\boxed{36}, then \\boxed{\\frac{54}{2}}", "correct"),
    ("<answer>27.0</answer>", "correct"), ("```\n27\n```", "correct"), ("```answer\n27%\n```", "correct"),
    ("```answer\n26\n```", "wrong"), ("```answer\n36 - 9\n```", "malformed"),
    ("It is 27.", "malformed"), ("", "malformed"), ("```answer\nNUMBER\n```", "malformed")])
def test_numbers_deserve_their_verdicts(sandbox, text, verdict):
    assert judge(outcome(sandbox, "math", PROBLEM), "chat", text) == verdict


# ---------------------------------------------------------------- logic

CODE = "```input\n5\n```\n```python\ndef f(x):\n    return x + 1\n```"
THEOREM = ("```metamath\nh $e |- p $. k $e |- ( p -> q ) $. x $p |- ( r -> q ) $= wq wr wp wq h k mp a1i $.\n```")
PUZZLE = "```constraints\nann or bob\nnot ann or cid\nann != bob\nnot cid\n```"


def test_a_puzzle_becomes_a_task(sandbox):
    task = outcome(sandbox, "logic", PUZZLE)
    assert task.program.startswith("def f(ann, bob, cid):") and LOGIC.variables(task) == ["ann", "bob", "cid"]
    assert task.outputs == ('{"t":[false,true,false]}',)
    prompt = LOGIC.solve("chat", task, CHAT).user
    assert "not ann or cid\nann != bob" in prompt and "each variable as `name = True`" in prompt
    assert "not ann or cid\n" in LOGIC.propose("chat", [task], random.Random(0), CHAT).user
    numbered = PUZZLE.replace("ann or bob", "1. ann or bob").replace("not cid\n", "- not cid\n")
    assert outcome(sandbox, "logic", numbered).outputs == task.outputs
    twice = PUZZLE.replace("not cid\n", "not cid\nann or bob\n")
    assert outcome(sandbox, "logic", twice) == task, "a line that comes twice is one"
    nested = outcome(sandbox, "logic", "```constraints\n(a and b) and not (c or c)\n```")
    assert nested.outputs == ('{"t":[true,true,false]}',)


@pytest.mark.parametrize("lines, reason", [
    ("a or b", "several_models"), ("a != b\na == b", "no_model"), ("a or c\nb == c == a or c", "several_models"),
    *((f"a\n{line}", "not_logic") for line in ("b + 1", "b < c", "True", "b = c", "[b for b in a]", "__import__('os')", "b if a else c")),
    ("a\nb implies c", "syntax"), ("a", "variables"), ("\n".join("abcdefg"), "variables"), ("a\n" + "not " * 60 + "b", "too_deep"),
    ("\n".join(map(" or ".join, itertools.permutations("abcdef", 4))), "too_long")])
def test_puzzles_are_refused_by_name(sandbox, lines, reason):
    assert outcome(sandbox, "logic", f"```constraints\n{lines}\n```") == reason


@pytest.mark.parametrize("text, verdict", [
    ("```answer\nann = False\nbob = True\ncid = False\n```", "correct"), ("```answer\nbob: true, ann: false, cid: 0\n```", "correct"),
    ("```answer\n{'ann': False, 'bob': True, 'cid': False}\n```", "correct"), ("<answer>(False, True, False)</answer>", "correct"),
    ("```answer\nann is false, bob is true and cid is false\n```", "correct"),
    ("```answer\n- **ann** = False\n- **bob** = True\n- **cid** = False\n```", "correct"),
    ("```answer\nTrue, True, False\n```", "wrong"), ("```answer\nFalse, True\n```", "malformed"),
    ("```answer\nFalse, True, False, True\n```", "malformed"), ("```answer\nann = False, ann = True, cid = 0\n```", "malformed"),
    ("```answer\nFalse, not False, False\n```", "malformed"), ("```answer\n7, 1, 0\n```", "malformed"),
    ("bob is the one", "malformed"), ("", "malformed")])
def test_assignments_deserve_their_verdicts(sandbox, text, verdict):
    assert judge(outcome(sandbox, "logic", PUZZLE), "chat", text) == verdict


# ---------------------------------------------------------------- both

def test_the_micro_protocol_is_that_of_the_training_data(sandbox):
    """What a teacher writes, shown to a student; test_micro.py has the teacher's side."""
    rng = random.Random(5)
    for _ in range(30):
        written = data.example(rng, "propose math").answer
        task = outcome(sandbox, "math", written, "micro")
        questions = [line for line in written.split("\n") if line.startswith("?")]
        assert MATH.solve("micro", task, MICRO).user == "\n".join(["math", *questions, ""])
        assert judge(task, "micro", f">1\n={task.outputs[0]}") == "correct" and judge(task, "micro", "=-1") == "wrong"
        written = data.example(rng, "propose logic").answer
        task = outcome(sandbox, "logic", written, "micro")
        asked = LOGIC.solve("micro", task, MICRO).user
        assert sorted(asked.split("\n")[1:-1]) == sorted(written.split("\n")) and asked.startswith("logic\n")
        gold = "=" + ",".join(str(int(value)) for value in decode(task.outputs[0]))
        assert judge(task, "micro", gold) == "correct" and judge(task, "micro", gold[:-1]) == "malformed"
    for name in "math", "logic":
        solved = data.example(rng, name)
        assert solved.prompt.startswith(f"{name}\n") and solved.answer.rpartition("\n")[2].startswith("=")


def test_a_run_s_rows_are_tasks_again(sandbox, tmp_path):
    """Every type's row of tasks.jsonl gives the proposal back, and that the same task."""
    texts = ("math", PROBLEM), ("logic", PUZZLE), ("code_o", CODE), ("proof", THEOREM)
    tasks = [outcome(sandbox, name, text) for name, text in texts]
    rows = [json.dumps(dataclasses.asdict(task) | {"reason": "", "attempts": {}}) for task in tasks]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join([*rows, json.dumps({"kind": "code_o", "reason": "syntax"})]))
    assert [fate(sandbox, proposal, CHAT) for proposal in read_tasks(file)] == tasks


# ---------------------------------------------------------------- the task type that docs/change-it.md adds

@pytest.fixture
def sortwords(monkeypatch):
    """The page's example, each part in the file that it names, for one test: its source by file."""
    page = (Path(config.__file__).parent / "docs" / "change-it.md").read_text(encoding="utf-8")
    block, = re.findall(r"^```python\n(# tasks/prompts.py, .*?)^```", page, re.M | re.S)
    parts = {}
    for file, lines in re.findall(r"^# tasks/(\w+)\.py, .*?\n(.*?)(?=^# |\Z)", block, re.M | re.S):
        parts[file] = parts.get(file, "") + lines           # a file may be changed in two places
    for table in (prompts.TEMPLATES, TASK_TYPES):
        monkeypatch.setitem(table, "sortwords", None)       # what the example writes there is taken back
    words = types.ModuleType("tasks.words")
    monkeypatch.setitem(sys.modules, "tasks.words", words)
    exec(parts["prompts"], vars(prompts))
    exec(parts["words"], vars(words))
    exec(parts["__init__"], dict(vars(tasks)))
    return parts


def test_the_pages_task_type_is_played(sortwords, sandbox):
    kind, others = TASK_TYPES["sortwords"], "apple pear kiwi date lime sloe"
    given = "plum fig apple pear kiwi date lime sloe"
    written = given, f"fig plum {others}", f"Fig Plum {others}", "one", f"fig 2 {others}"
    task, other, again, *refused = [
        outcome(sandbox, "sortwords", f"<answer>\n```words\n{words}\n```\n</answer>", "base") for words in written]
    gold = sorted(given.split())
    assert decode(task.outputs[0]) == gold and refused == ["syntax"] * 2
    assert task.key != other.key == again.key, "the same words again are a duplicate, other words are not"
    asked = f"Sort these words: {given}\n\n"
    thinks = kind.solve("base", task, CHAT)
    assert thinks.user == f"{asked}Think in a few short lines. Then write a block named `answer` with them, one a line.\n"
    assert thinks.turns == (("Sort these words: fig pear date\n\n" + thinks.user.removeprefix(asked),
                             "<think> d, f, p </think> <answer>\n```answer\ndate\nfig\npear\n```\n</answer>"),)
    assert kind.solve("direct", task, CHAT) == prompts.Prompt(f"{asked}Give them, one a line.\n", "```answer\n", closing="```")
    proposal = kind.propose("base", [task], random.Random(0), CHAT).user
    assert any(f"about {topic}" in proposal for topic in kind.topics)
    said = {"\n".join(gold): "correct", " ".join(gold): "correct", gold[0]: "wrong", given: "wrong"}
    assert [judge(task, "chat", f"```answer\n{text}\n```") for text in said] == list(said.values())
    assert judge(task, "chat", "I do not know.") == "malformed"


def test_a_kind_without_template_is_refused_before_the_run(sortwords):
    said = "--task-types sortwords: prompts.py has no template of it for the micro prompt format"
    with pytest.raises(UserError, match=said):
        config.resolve_config(config.Config(task_types=("code_o", "sortwords")), "micro")
