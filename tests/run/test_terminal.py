"""Tasks on the terminal: what is logged, and nothing that steers it."""
import io
import re
import sys

import pytest

from run import terminal

ROW = dict(step=3, teacher="T0", kind="code_o", reason="", reward=0.5, id=1, program="def f(x):\n return x", inputs=["7"], outputs=["7"],
           message="", solve_rate=0.5, attempts={"S1": ["correct", "wrong", "wrong", "malformed"]}, answers={"S1": [">7\n=7", "=8", "=8", "?"]})


def test_first_of_each():
    of = [("A", ""), ("A", ""), ("B", "x"), ("B", ""), ("A", "x")]
    rows = [dict(teacher=teacher, reason=reason, i=i) for i, (teacher, reason) in enumerate(of)]
    assert [row["i"] for row in terminal.first_of_each(rows, 4)] == [0, 3, 1, 2]
    assert terminal.first_of_each(rows, 0) == [] and len(terminal.first_of_each(rows, 9)) == 5


def test_a_task():
    plain = terminal.format_task(ROW)
    for words in "solved 0.50, reward 0.50", "    7 -> 7", "S1 wrong x2  =8", "S1 correct  >7 / =7":
        assert words in plain
    refused = dict(step=0, teacher="T0", kind="code_o", reason="syntax", reward=-1.0, text="def")
    assert "refused: syntax" in terminal.format_task(refused)


@pytest.mark.parametrize("bad", ["\x1b[2J\x1b]0;title\x07", "a\rb", "\u202egnp.exe", "\ud800", "\x9b31m", "\u2028"])
def test_no_control_reaches_the_terminal(bad, monkeypatch):
    row = ROW | dict(program=bad, message=bad, inputs=[bad], outputs=[bad], answers={"S1": [bad] * 4})
    steering = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\ud800-\udfff]"
    assert not re.search(steering, terminal.format_task(row))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    terminal.print_safely(terminal.format_task(row))          # an ASCII terminal gets escapes, no error
    assert b"\\u27e8U+" in sys.stdout.buffer.getvalue()
