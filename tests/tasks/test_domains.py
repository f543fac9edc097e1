"""Word problems and puzzles: what is a task, what is refused and why, answers."""
import itertools
from fractions import Fraction as F

import pytest
from proposals import CHAT, fate, outcome, read

from common import Refused
from sandbox.values import decode
from tasks import TASK_TYPES
from tasks.math import exact, rational, told

LOGIC = TASK_TYPES["logic"]


@pytest.mark.parametrize("text, value", [
    ("+7", 7), ("-$1,234.50", F("-1234.5")), ("1,000,000", 10**6), ("1 / 8", F(1, 8)), (".5", F(1, 2)), ("**7**", 7), ("$7$", 7), (" 7\n", 7),
    *((text, None) for text in ("", "seven", "3 or 4", "5-3", "5²", "1/2/3", "1/0", "0x10", "NaN", "1e99", "7 figs", "7%", "x = 7", "7.", "1,23", "5" + " " * 500, "\ud800",
                                "[5]", "#### 7", "7\n8"))])
def test_an_answer_is_one_number(text, value):
    if value is None:
        with pytest.raises(Refused):
            rational(text)
    else:
        assert rational(text) == value


@pytest.mark.parametrize("value, want", [(3, F(3)), (0.1, F(1, 10)), (1 / 3, None), (1e-9, None), (True, None), ("3", None)])
def test_gold_numbers(value, want):
    assert exact(value) == want


def test_numbers_are_told_in_digits_and_in_words():
    stated = told("Ann buys twenty-five pens, 1,200 sheets, a dozen eggs at $3.60 and three hundred pins at 20% off, in 2 hours.")
    assert {25, 1200, 12, F("3.6"), 300, 20, F(1, 5), 2, 60} <= stated and not {4, 7, 26, 1201} & stated


PROBLEM = "```question\n{}\n```\n```python\ndef f():\n    return {}\n```"


@pytest.mark.parametrize("question, formula, want", [
    ("Ann has 3 apples and Bob has twice as many. How many have they together?", "3 + 3 * 2", 9),
    ("A dozen eggs cost $3.60. What does one cost in cents?", "round(3.60 * 100 / 12)", 30), ("A coat of 80 dollars is 25% off. What does it cost?", "80 * 0.75", 60),
    ("Tom reads a quarter of 40 pages. How many are left?", "40 - 40 * 0.25", 30), ("How long are three hours in minutes?", "3 * 60", 180),
    ("A square has a perimeter of 20 cm. What is its side?", "20 / 4", "not_told"), ("Mean of 4 and 8?", "(4 + 8) / 2", 6),
    ("How many?", "7", "not_told"), ("Ann has 3 apples and Bob has 4. How many have they?", "3 * 4 + 100", "not_told"),
    ("Ann has 5 apples. Bob has more. How many has Bob?", "2", "not_told"), ("Ann has 5 apples. The answer is 7.", "7", "echo"),
    ("Ann has 3 apples and gets 4. She has seven. How many?", "3 + 4", "echo"), ("Ann has 3 apples, gets 4 and loses 4. How many?", "3 + 4 - 4", "echo"),
    ("A third of 5?", "5 / 3", "not_a_number"), ("Is 5 odd?", "5 % 2 == 1", "not_a_number"), ("", "5", "no_question"), ("5?", "1e999 * 5", "not_told"),
    ("x" * 600 + " 5?", "5", "message_too_long")])
def test_a_word_problem_says_what_its_program_needs_and_not_the_answer(sandbox, question, formula, want):
    found = outcome(sandbox, "math", PROBLEM.format(question, formula))
    assert (found if isinstance(found, str) else exact(decode(found.outputs[0]))) == want
    if want in ("not_told", "echo") and "999" not in formula:
        assert not isinstance(fate(sandbox, read("math", PROBLEM.format(question, formula)), CHAT.of_user()), str), "a user may give it"


PUZZLE = "```constraints\nann or bob\nnot ann or cid\nann != bob\nnot cid\n```"


def test_a_puzzle_becomes_a_task(sandbox):
    task = outcome(sandbox, "logic", PUZZLE)
    assert task.program.startswith("def f(ann, bob, cid):")
    assert task.outputs == ('{"t":[false,true,false]}',)
    prompt = LOGIC.solve("chat", task, CHAT).user
    assert "not ann or cid\nann != bob" in prompt and "each variable as `name = True`" in prompt
    numbered = PUZZLE.replace("ann or bob", "1. ann or bob").replace("not cid\n", "- not cid\n")
    assert outcome(sandbox, "logic", numbered).outputs == task.outputs
    assert outcome(sandbox, "logic", PUZZLE.replace("not cid\n", "not cid\nann or bob\n")) == task, "a line that comes twice is one"
    assert outcome(sandbox, "logic", "```constraints\n(a and b) and not (c or c)\n```").outputs == ('{"t":[true,true,false]}',)


@pytest.mark.parametrize("lines, reason", [
    ("a or b", "several_models"), ("a != b\na == b", "no_model"), *((f"a\n{line}", "not_logic") for line in ("b + 1", "b < c", "True", "b = c", "__import__('os')")),
    ("a\nb implies c", "syntax"), ("a", "variables"), ("\n".join("abcdefg"), "variables"), ("a\n" + "not " * 60 + "b", "too_deep"),
    ("\n".join(map(" or ".join, itertools.permutations("abcdef", 4))), "too_long")])
def test_puzzles_are_refused_by_name(sandbox, lines, reason):
    assert outcome(sandbox, "logic", f"```constraints\n{lines}\n```") == reason
