"""Held-out tasks, CRUXEval and cross-play: splits without a common program, put and judged as in training."""
from collections import Counter

import numpy as np
import pytest
from tiny_run import SIZES, play, rows, write

from common import UserError
from eval import crossplay, heldout
from micro import programs
from sandbox.values import decode
from tasks import cruxeval, judge_answers
from tasks.base import SPLITS, split_of
from tasks.programs import Limits

ROWS = [("def f(x):\n    return x+1", "4", "5"), ("def f(d, k):\n    return d.get(k)", "dict(a=1), 'a'", "1"),
        ("def f(g, x):\n    return g(x)", "lambda x: [x], 2", "[2]"), ("def f():\n    return {1: (2,)}", "", "{1: (2,)}"),
        ("def f(x):\n    return x*2", "'a' * 3", "'aaaaaa'"), ("def f(x):\n    return x-1", "4", "3"), ("def f(x):\n    return x*5", "2", "10")]
ROWS = [dict(code=code, input=given, output=output, id=f"sample_{i}") for i, (code, given, output) in enumerate(ROWS)]


def test_no_program_is_in_both_splits_nor_in_the_training_text():
    for family in heldout.FAMILIES:
        test, validation = (heldout.draw(family, split, 24) for split in SPLITS)
        texts = [{task.message or task.program for _, task in tasks} for tasks in (test, validation)]
        assert not texts[0] & texts[1] and heldout.draw(family, "test", 5) == test[:5], "fewer are the first"
        for id, task in test + validation:
            if family.startswith("code"):
                assert programs.held_out(task.program + "\n"), id
            elif family == "math":
                assert programs.held_out("\n".join(line[1:] for line in task.message.splitlines())), id
    assert [id for id, _ in heldout.draw("logic", "test", 4)] == ["3/0", "4/0", "3/1", "4/1"], "those that the base knows are left out"


def test_a_limit_counts_what_it_says_and_tasks_of_one_s_own_are_asked(run, tmp_path):
    flags = ["--run", str(run), "--device", "cpu", "--out"]
    heldout.main([*flags, str(tmp_path / "a"), "--bench", "code_o,logic", "--limit", "7"])
    answers = rows(tmp_path / "a", "answers")
    assert Counter((row["bench"], row["member"]) for row in answers) == dict.fromkeys(
        [(bench, name) for bench in ("code_o", "logic") for name in ("T0", "S0", "S1", "base")], 7)
    assert {row["verdict"] for row in answers} <= {"correct", "wrong", "malformed"} and any(row["correct"] for row in answers)
    programs_of_mine = [f"def f(x):\n x+={i}\n return x" for i in range(6)]
    mine = tmp_path / "mine.jsonl"
    write(mine, [dict(kind="code_o", program=text, input="2") for text in programs_of_mine])
    for split in SPLITS:
        heldout.main([*flags, str(tmp_path / split), "--tasks", str(mine), "--split", split])
        asked = {int(row["id"]) for row in rows(tmp_path / split, "answers")}
        assert asked == {i for i, text in enumerate(programs_of_mine, 1) if split_of(text) == split} and asked
    for words, match in ((["--bench", "code_0"], "--bench code_0: give some of code_o"), (["--split", "test"], "made otherwise .*split")):
        with pytest.raises(UserError, match=match):
            heldout.main([*flags, str(tmp_path / "validation"), *words])


def test_cruxeval_s_expressions_are_evaluated_once(sandbox):
    asked = []

    def run(jobs):
        asked.extend(jobs)
        return sandbox.run(jobs)
    tasks = cruxeval.tasks_of(ROWS, "code_o", "exact", run)
    assert [task.inputs[0] for task in tasks.values()] == ["4", "{'a': 1}, 'a'", "lambda x: [x], 2", "", "'aaa'", "4", "2"]
    assert [decode(task.outputs[0]) for task in tasks.values()] == [5, 1, [2], {1: (2,)}, "aaaaaa", 3, 10]
    assert len(asked) == 3, "each expression, and no literal"
    inverse = cruxeval.tasks_of(ROWS, "code_i", "exact", sandbox.run)
    assert tasks.keys() - inverse.keys() == {"sample_2", "sample_3"}, "no literal answers these"
    hostile = [ROWS[0] | dict(input=text) for text in ("__import__('os').fork()", "open('/etc/passwd')")]
    for row in hostile:
        task, = cruxeval.tasks_of([row], "code_o", "exact", sandbox.run).values()
        assert task.inputs == (row["input"],), "shown as it is written"
    with pytest.raises(UserError, match="sample_0 has an output that cannot be read"):
        cruxeval.tasks_of([ROWS[0] | dict(output="open('x')")], "code_o", "exact", sandbox.run)
    assert cruxeval.rows_of("no file of it") == []


def test_cruxeval_is_asked_as_in_training(run, tmp_path):
    write(tmp_path / "cruxeval.jsonl", ROWS)
    seen = Counter()
    for split in SPLITS:
        heldout.main(["--adapters", str(run / "step_3/S0"), "--device", "cpu", "--tasks", str(tmp_path / "cruxeval.jsonl"), "--split", split,
                      "--out", str(tmp_path / split)])
        seen += Counter((row["bench"], row["id"]) for row in rows(tmp_path / split, "answers"))
    assert seen == {(bench, row["id"]): 2 for bench in cruxeval.KINDS for row in ROWS
                    if bench == "cruxeval-o" or row["id"] not in ("sample_2", "sample_3")}


@pytest.mark.slow
def test_every_published_answer_passes(published, sandbox):
    """Of code_i the inputs; of code_o the outputs are the golds."""
    rows = cruxeval.rows_of((published / "cruxeval.jsonl").read_text())
    tasks = list(cruxeval.tasks_of(rows, "code_i", "exact", sandbox.run).values())
    verdicts = judge_answers(tasks, [[task.inputs[0]] for task in tasks], Limits.for_format("direct"), sandbox.run)
    wrong = [row for row, verdict in zip(tasks, verdicts) if verdict != ["correct"]]
    assert len(rows) == 800 and len(tasks) == 796
    assert ["shift_jis" in task.inputs[0] for task in wrong] == [True], "the sandbox knows no such codec"


# ---- cross-play --------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_crossplay_on_a_run(micro_base, run, tmp_path, capsys):
    path = play(base=micro_base, out=tmp_path / "grown", steps=3, evolve_every=1, grace=0, save_every=2, keep=9, device="cpu", **SIZES)
    flags = ["--run", str(path), "--tasks", "4", "--out", str(tmp_path / "o"), "--device", "cpu"]
    capsys.readouterr()
    crossplay.main(flags)
    told, answers = capsys.readouterr().out, rows(tmp_path / "o", "answers")
    assert len(answers) == 3 * 4 * (1 + 3 * 2) * 2, "to 4 tasks of each of 3 generations the base and 2 students of each answer twice"
    assert {row["member"].partition("/")[0] for row in answers} == {"base", "0", "2", "3"}
    own = [row["correct"] for row in answers if row["bench"] == "2" and row["member"].startswith("3/")]
    first, *_, last = told.splitlines()
    assert first.split() == ["students", "T@0", "T@2", "T@3"]
    assert float(last.split()[2]) == pytest.approx(np.mean(own), abs=5e-4)
    write(tmp_path / "o/answers.jsonl", answers[:8])
    crossplay.main(flags)
    assert capsys.readouterr().out == told, "resumed: the same"
    with pytest.raises(UserError, match="--keep 1000"):
        crossplay.main(["--run", str(run)])
