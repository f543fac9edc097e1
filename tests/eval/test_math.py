"""eval.math: published rows become questions, math-verify grades in a process that may die, MMLU's letter is read."""
import io
import json
import tarfile
from importlib.util import find_spec

import pytest
from tiny_run import rows

from common import UserError
from eval import math
from eval.answer import Item
from tasks.prompts import Prompt

needs_grader = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs math-verify: pip install -r requirements-eval.txt")


def verdicts(judge, pairs):
    return [row["verdict"] for row in judge([(Item("gsm8k", "0", Prompt(""), gold), text) for text, gold in pairs])]


@needs_grader
def test_answers_that_were_checked_by_hand(monkeypatch):
    """And an answer that takes too long is wrong, and ends the process that grades; the next one is graded."""
    right = [("\\boxed{0.5}", "\\frac{1}{2}"), ("\\boxed{-2, 1}", "1,-2"), ("The answer is $27$.", "27.0"), ("#### 1,300", "1,300"),
             ("\\boxed{\\frac{\\sqrt{3}}{3}}", "\\frac{1}{\\sqrt{3}}"), ("\\boxed{4500}", "It is $\\boxed{4.5 \\times 10^3}$ erg."),
             ("\\boxed{3} </think> It is $\\boxed{4}$.", "4")]
    wrong = [("\\boxed{(1,2)}", "(2,1)"), ("\\boxed{3.14159}", "\\pi"), ("I do not know.", "3"), ("", "3"), ("<think>\\boxed{3}", "3")]
    judge = math.Judge("chat")
    assert verdicts(judge, right) == ["correct"] * len(right) and verdicts(judge, wrong) == ["wrong"] * len(wrong)
    monkeypatch.setattr(math, "LIMIT_S", 0.0)
    assert verdicts(judge, right[:1]) == ["wrong"] and judge.pool is None
    monkeypatch.undo()
    assert verdicts(judge, right[:1]) == ["correct"]
    judge.close()


def test_rows_as_they_are_published():
    for bench, row, question, gold in (
            ("gsm8k", dict(question="Q?", answer="So 2+2=4.\n#### 1,300"), "Q?", "1,300"),
            ("math500", dict(problem="Q?", solution="No.", answer="\\frac12", unique_id="test/3.json"), "Q?", "\\frac12"),
            ("amc23", dict(id=0, question="Q?", answer=27.0), "Q?", "27.0"),
            ("minerva", dict(problem="Q?", solution="So $\\boxed{9}$.", idx=3), "Q?", "So $\\boxed{9}$."),
            ("olympiadbench", dict(id=7, question="Q?", final_answer=["$2$"], solution=["long"]), "Q?", "$2$")):
        item = math.item_of(bench, 5, row, "")
        assert item.gold == gold and item.prompt.user.startswith(question + "\n\nPlease reason step by step")
        assert item.id == "5"


def archive(path):
    """mmlu.tar with two subjects of two questions."""
    with tarfile.open(path, "w") as tar:
        for split, n in (("dev", 6), ("test", 2), ("val", 1)):
            for subject in ("anatomy", "world_history"):
                text = "".join(f'"{subject}, {split} {i}?",one,"two, 2",three,four,{"ABCD"[i % 4]}\n' for i in range(n)).encode()
                entry = tarfile.TarInfo(f"data/{split}/{subject}_{split}.csv")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))


def test_mmlu_mixes_the_subjects_and_takes_the_letter_that_is_written(tmp_path, reader):
    archive(tmp_path / "mmlu.tar")
    items = math.mmlu(str(tmp_path), "<think>")
    items = {item.id: item for item in items}
    assert {id: item.gold for id, item in items.items()} == {"anatomy/0": "A", "anatomy/1": "B", "world_history/0": "A", "world_history/1": "B"}
    asked = items["world_history/0"].prompt
    assert asked.user.endswith("world_history, test 0?\nA. one\nB. two, 2\nC. three\nD. four")
    assert "about world history" in asked.user and asked.turns[2][1] == "C" and len(asked.turns) == 5
    judge = math.Judge("chat")
    for text, verdict in (("A", "correct"), ("The answer is **A**.", "correct"), ("B. two", "wrong"), ("None", "malformed"), ("", "malformed")):
        assert [row["verdict"] for row in judge([(items["anatomy/0"], text)])] == [verdict], text
    math.main(["--base", str(reader), "--data", str(tmp_path), "--limit", "3", "--max-new-tokens", "4", "--out", str(tmp_path / "o")])
    answers = rows(tmp_path / "o", "answers")
    assert [row["verdict"] for row in answers] == ["malformed"] * 3 and answers[0]["gold"] in "AB"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    (tmp_path / "aime24.jsonl").write_text(json.dumps(dict(problem="?", answer="1")) + "\n")
    monkeypatch.setattr(math, "find_spec", lambda name: None)
    for words, match in (([], "pip install -r requirements-eval.txt"), (["--bench", "aime25"], "--bench aime25, .*: files are there of aime24; .* aime25"),
                         (["--bench", "aime"], "--bench aime, .*: files are there of aime24")):
        with pytest.raises(UserError, match=match):
            math.main(["--base", str(tmp_path), "--data", str(tmp_path), *words])
