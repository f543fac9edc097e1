"""CRUXEval as tasks of self-play: what becomes of a row, its two splits, the benchmark, and a run's held-out tasks."""
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from eval import summary
from eval.code.__main__ import main
from common import UserError
from run import held_out
from sandbox.values import decode
from tasks import TASK_TYPES, cruxeval
from tasks.base import SPLITS, split_of
from tasks.programs import Limits
from weights import files_hash, save_peft

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata" / "cruxeval.jsonl"
ROWS = [("def f(x):\n    return x+1", "4", "5"), ("def f(d, k):\n    return d.get(k)", "dict(a=1), 'a'", "1"),
        ("def f(d):\n    return len(d)", "dict()", "0"), ("def f(g, x):\n    return g(x)", "lambda x: [x], 2", "[2]"),
        ("n = [1, 2]\ndef f(x):\n    return x[::-1]", "n[:]", "[2, 1]"), ("def f():\n    return {1: (2,)}", "", "{1: (2,)}"),
        ("def f(x):\n    return x*2", "'a' * 3", "'aaaaaa'"), ("def f(x):\n    return x-1", "4", "3"),
        ("def f(x):\n    return x*3", "2", "6"), ("def f(x):\n    return x*5", "2", "10")]
ROWS = [dict(code=code, input=given, output=output, id=f"sample_{i}") for i, (code, given, output) in enumerate(ROWS)]


def write(path: Path, rows: list[dict] = ROWS) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_inputs_that_are_expressions_are_evaluated_once(sandbox):
    asked = []

    def run(jobs):
        asked.extend(jobs)
        return sandbox.run(jobs)
    tasks = cruxeval.tasks_of(ROWS, "code_o", "exact", run)
    assert [task.inputs[0] for task in tasks.values()] == [
        "4", "{'a': 1}, 'a'", "{}", "lambda x: [x], 2", "[1, 2]", "", "'aaa'", "4", "2", "2"]
    assert [decode(task.outputs[0]) for task in tasks.values()] == [5, 1, 0, [2], [2, 1], {1: (2,)}, "aaaaaa", 3, 6, 10]
    assert len(asked) == 1 + 5, "the golds together, and each expression"
    inverse = cruxeval.tasks_of(ROWS, "code_i", "exact", sandbox.run)
    assert tasks.keys() - inverse.keys() == {"sample_3", "sample_5"}, "no literal answers these"
    limits = Limits.for_format("direct")
    for task in inverse.values():                   # the published input is an answer
        job, = TASK_TYPES["code_i"].answer_jobs(task, [task.inputs[0]], limits)
        assert TASK_TYPES["code_i"].judge(task, [task.inputs[0]], sandbox.run([job]), limits) == ["correct"]
    with pytest.raises(UserError, match="sample_0 has an output that cannot be read"):
        cruxeval.tasks_of([ROWS[0] | dict(output="open('x')")], "code_o", "exact", sandbox.run)


def test_an_expression_that_is_hostile_is_shown_as_it_is_written(sandbox):
    rows = [ROWS[0] | dict(input=text) for text in ("__import__('os').fork()", "open('/etc/passwd')", "(lambda: 0)()\n    while True: pass")]
    for row in rows:
        (task,) = cruxeval.tasks_of([row], "code_o", "exact", sandbox.run).values()
        assert task.inputs == (row["input"],)


def test_splits_have_no_program_in_common():
    text = "\n".join(map(json.dumps, ROWS))
    parts = [cruxeval.rows_of(text, split) for split in SPLITS]
    assert sorted(row["id"] for part in parts for row in part) == sorted(row["id"] for row in ROWS) and all(parts)
    assert all(split_of(row["code"]) == split for split, part in zip(SPLITS, parts) for row in part)
    assert cruxeval.rows_of(text) == ROWS and cruxeval.rows_of(text + "\n{}") == cruxeval.rows_of("no file of it") == []


def test_a_population_is_asked_as_in_training(base, micro_base, population, sandbox, tmp_path, capsys):
    write(tmp_path / "cruxeval.jsonl")
    adapters = population(base, 2)
    for slot, name in enumerate(("S0", "S1")):
        save_peft(adapters, slot, tmp_path / "step_1" / name, str(micro_base), files_hash(base.path))
    command = ["--base", str(micro_base), "--adapters", str(tmp_path / "step_1"), "--data", str(tmp_path), "--device", "cpu",
               "--bench", "cruxeval-o,cruxeval-i", "--workers", "1", "--split"]
    for split in SPLITS:
        assert main([*command, split, "--out", str(tmp_path / split)]) == 0
    answers = {split: [json.loads(line) for line in (tmp_path / split / "answers.jsonl").open()] for split in SPLITS}
    ids = {split: {row["id"] for row in rows} for split, rows in answers.items()}
    assert not ids["test"] & ids["validation"] and len(ids["test"] | ids["validation"]) == 10
    n = Counter((row["bench"], row["member"]) for rows in answers.values() for row in rows)
    assert n == {(f"cruxeval-{end}", name): count for end, count in (("o", 10), ("i", 8)) for name in ("S0", "S1", "base")}
    task = cruxeval.tasks_of(ROWS, "code_o", "exact", sandbox.run)["sample_0"]
    asked = TASK_TYPES["code_o"].solve("micro", task, Limits.for_format("micro"))
    assert asked.user == "out\ndef f(x):\n    return x+1\nf(4)\n"
    assert json.loads((tmp_path / "test" / "config.json").read_text())["prompt"] == "task micro"
    with pytest.raises(UserError, match="in a command of their own"):
        main([*command[:6], "--bench", "cruxeval-o,mbpp+"])
    with pytest.raises(UserError, match="--prompt plain"):
        main([*command, "test", "--prompt", "plain"])


def test_malformed_answers_are_told_apart_from_wrong_ones():
    """Where verdicts tell it: what rises early in a run is often the form alone."""
    rows = []
    for member, verdicts in dict(base=["malformed", "malformed"], S0=["correct", "malformed"], S1=["wrong", "correct"]).items():
        for number, verdict in enumerate(verdicts):
            rows.append(dict(bench="cruxeval-o", id=str(number), member=member, sample=0, tokens=9, correct=verdict == "correct",
                             verdict=verdict))
    told = {line["member"]: (line["accuracy"], line["malformed"]) for line in summary.summarise(rows, 99)}
    assert told == {"base": (0, 1), "S0": (.5, .5), "S1": (.5, 0), "mean": (.5, .25)}
    without = [{name: value for name, value in row.items() if name != "verdict"} for row in rows]
    assert "malformed" not in summary.summarise(without, 99)[0]


def test_a_run_holds_out_the_validation_split(setup, tmp_path, monkeypatch):
    s = setup(task_types="code_o", n_heldout=2)
    path = write(tmp_path / "some.jsonl")
    validation = [row for row in ROWS if split_of(row["code"]) == "validation"]
    tasks = held_out(replace(s, cfg=replace(s.cfg, heldout=str(path))))
    assert [(task.kind, task.program) for task in tasks] == [
        ("code_o", validation[0]["code"]), ("code_o", validation[1]["code"]), ("code_i", validation[0]["code"])]
    named = replace(s, cfg=replace(s.cfg, heldout="cruxeval"))
    monkeypatch.setattr(cruxeval, "FILE", path)
    assert held_out(named) == tasks
    monkeypatch.setattr(cruxeval, "FILE", tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="python -m eval.code --self-test --bench cruxeval-o"):
        held_out(named)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="needs the published file in ../shared/evaldata")
def test_every_published_answer_passes(capsys):
    words = ["--self-test", "--data", str(SHARED.parent), "--split", "all", "--bench"]
    assert main([*words, ",".join(cruxeval.KINDS)]) == 0
    assert json.loads(capsys.readouterr().out) == {"cruxeval-o": dict(n=800, right=800), "cruxeval-i": dict(n=796, right=796)}
