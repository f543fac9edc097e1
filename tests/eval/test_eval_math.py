"""eval.math and eval.fetch: files are found and checked, math-verify grades in a process that may die, runs resume."""
import gzip
import hashlib
import json
import operator
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from eval import fetch
from eval.math import __main__ as math
from eval.math import grader
from eval.math.grader import Grader, final

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata"
needs_grader = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs math-verify: pip install -r requirements-eval.txt")
needs_files = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published files in ../shared/evaldata")


@pytest.fixture(scope="module")
def graded():
    """grade(text, gold) by one process."""
    with closing(Grader()) as process:
        yield process.grade


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


# ---------------------------------------------------------------- grading

@needs_grader
@pytest.mark.parametrize("answer, gold, equal", [
    ("\\boxed{0.5}", "\\frac{1}{2}", True), ("\\boxed{14/5}", "1\\frac{4}{5}", False), ("\\boxed{-2, 1}", "1,-2", True),
    ("\\boxed{(1,2)}", "(2,1)", False), ("\\boxed{\\frac{\\sqrt{3}}{3}}", "\\frac{1}{\\sqrt{3}}", True), ("\\boxed{3.14159}", "\\pi", False),
    ("so \\boxed{1}.\nNo, \\boxed{1234}.", "\\$1,\\!234", True), ("The answer is $27$.", "27.0", True), ("#### 1,300", "1,300", True),
    ("\\boxed{2, -2}", "$2$, $-2$", True), ("\\boxed{4500}", "It is $\\boxed{4.5 \\times 10^3}$ erg.", True), ("\\boxed{52_8}", "52_8", True),
    ("\\boxed{3} </think> It is $\\boxed{4}$.", "4", True), ("<answer>7</answer>\nUser: And 9?\n<answer>9</answer>", "7", True),
    ("I do not know.", "3", False), ("", "3", False)])
def test_hand_checked_answers(graded, answer, gold, equal):
    found = graded(answer, gold)
    assert found["correct"] is equal and "grader_error" not in found, found


@needs_grader
@pytest.mark.parametrize("text", ["(" * 100_000, "\\boxed{" * 2000, "\\frac" * 500, "1" * 100_000, "\\sqrt{" * 50, "\x00\ud800", "1/0", "0^0",
                                  "\\boxed{\\tan(\\pi/2)}", "answer is " * 5000, "$" * 100_000, "\\begin{pmatrix}" * 50, "\\boxed{}" * 50,
                                  "__import__('os').system('touch /tmp/graded')"], ids=range(14))
def test_hostile_text_is_wrong(graded, text):
    assert graded(text, "3")["correct"] is False and not Path("/tmp/graded").exists()


@needs_grader
def test_an_answer_that_stalls_or_kills_the_grader_ends_nothing():
    with closing(Grader()) as process:
        assert process.grade("\\boxed{2}", "2")["correct"]
        first = process.process
        start = time.monotonic()
        late = process.grade("\\boxed{(x+y+z)^{400}}", "x^2", limit_s=2)
        assert late == dict(correct=False, answer="", grader_error="no verdict within 2 s") and time.monotonic() - start < 20
        assert first.poll() is not None and process.grade("\\boxed{2}", "2")["correct"], "another one goes on"
        process.process.kill()
        process.process.wait()
        assert "grader_error" in process.grade("\\boxed{2}", "2") and process.grade("\\boxed{2}", "2")["correct"]
    assert process.process is None


def test_without_math_verify_the_command_says_how_to_get_it(tmp_path, monkeypatch):
    write(tmp_path / "aime24.jsonl", [dict(problem="Q", answer="1")])
    monkeypatch.setitem(sys.modules, "math_verify", None)                  # the import is blocked
    with pytest.raises(ValueError, match="pip install -r requirements-eval.txt"):
        math.main(["--self-test", "--data", str(tmp_path)])


def test_a_grader_that_does_not_start_is_the_machines_trouble(tmp_path, monkeypatch):
    monkeypatch.setattr(grader, "find_spec", lambda name: True)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="does not start"):
        Grader().grade("1", "1")


def test_the_first_answer_in_the_envelope_counts():
    text = "It is 7.</think> <answer>{}</answer>\nUser: What is 4 + 5?\nAssistant: <think>It is 9.</think> <answer>9</answer>"
    assert final(text.format("7")) == "7</answer>" and final("<think>3</think>4") == "4" and len(final("1" * 10 ** 6)) == grader.MAX_CHARS


@needs_grader
@needs_files
def test_gold_answers_and_worked_solutions_of_published_sets_are_right(graded, capsys):
    assert math.main(["--self-test", "--data", str(SHARED), "--bench", "aime24"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"aime24": dict(n=30, right=30)}
    rows = [json.loads(line) for line in gzip.open(SHARED / "math500.jsonl.gz")][:60]
    assert all(graded(row["solution"], row["answer"])["correct"] for row in rows)
    golds = sorted({row["answer"] for row in rows})
    assert not [pair for pair in zip(golds, golds[1:]) if graded(f"\\boxed{{{pair[0]}}}", pair[1])["correct"]]


# ---------------------------------------------------------------- files

@pytest.mark.parametrize("bench, file, row, gold", [
    ("aime24", "aime24.jsonl", dict(id=60, problem="Q", solution="S", answer="204", url="u"), "204"),
    ("aime25", "aime25.jsonl.gz", dict(problem="Q", answer="70", id="0"), "70"),
    ("amc23", "amc23.jsonl", dict(id=0, question="Q", answer=27.0, url="u"), "27.0"),
    ("math500", "math500.jsonl", dict(problem="Q", solution="\\boxed{9}", answer="p - q", unique_id="test/1.json"), "p - q"),
    ("minerva", "minerva.jsonl", dict(problem="Q", solution="It is $\\boxed{4.5}$ erg.", type="T", idx=0), "It is $\\boxed{4.5}$ erg."),
    ("gsm8k", "gsm8k.jsonl.gz", dict(question="Q", answer="16 - 3 = <<16-3=13>>13\n#### 1,300"), "1,300"),
    ("olympiadbench", "olympiadbench.jsonl", dict(id=1606, question="Q", solution=["long"], final_answer=["$2$, $-2$"], error=None), "$2$, $-2$")])
def test_published_formats(tmp_path, capsys, bench, file, row, gold):
    write(tmp_path / file, [row])
    [item], sha = fetch.load(bench, tmp_path, math.item_of)
    assert (item.bench, item.question, item.gold) == (bench, "Q", gold) and len(sha) == 64
    assert item.id == str(row.get("unique_id", row.get("id", row.get("idx", 0))))
    told = capsys.readouterr().err
    assert "not an edition of" in told and f"holds 1 questions, {bench} as published has {fetch.FILES[bench].n_rows}" in told


@pytest.mark.parametrize("content, complaint", [
    (b"{\"problem\": \"Q\"", "line 1: JSONDecodeError"), (b"[1]\n", "line 1"), (b"{\"text\": \"Q\"}\n", "no answer"),
    (b"{\"problem\": \"Q\", \"answer\": \"1\"}\n\xff\xfe{}\n", "line 2")])
def test_damaged_files_are_named(tmp_path, content, complaint):
    (tmp_path / "aime24.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=rf"aime24.jsonl, .*{complaint}.*python -m eval.fetch aime24"):
        fetch.load("aime24", tmp_path, math.item_of)
    (tmp_path / "math500.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(ValueError, match="math500.jsonl.gz is a damaged gzip"):
        fetch.load("math500", tmp_path, math.item_of)


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match="gsm8k.jsonl is not in .*eval.fetch gsm8k, or download https://raw.githubusercontent.com/openai"):
        fetch.locate("gsm8k", tmp_path)
    with pytest.raises(ValueError, match="run python -m eval.fetch, or say with --data"):
        math.main(["--self-test", "--data", str(tmp_path)])


def test_fetched_files_are_checked(tmp_path, monkeypatch):
    source, data = write(tmp_path / "there.jsonl", [dict(problem="Q", answer="1")]), tmp_path / "data"

    def publish(url: str, *sha: str) -> None:
        monkeypatch.setitem(fetch.FILES, "amc23", fetch.Published("amc23.jsonl", url, 1, list(sha)))

    publish(source.as_uri(), hashlib.sha256(source.read_bytes()).hexdigest())
    fetch.main(["amc23", "--data", str(data)])
    assert fetch.load("amc23", data, math.item_of)[0][0].gold == "1"
    fetch.main(["amc23", "--data", str(data)])                             # is there
    (data / "amc23.jsonl").unlink()
    publish(source.as_uri(), "0" * 64)
    with pytest.raises(ValueError, match="the download was cut off"):
        fetch.fetch("amc23", data)
    publish((tmp_path / "no").as_uri())
    with pytest.raises(ValueError, match="could not be fetched from .* put it there as"):
        fetch.fetch("amc23", data)
    assert not list(data.glob("amc23*"))
    with pytest.raises(ValueError, match="no such benchmark"):
        fetch.main(["amc32"])
    assert len(fetch.FILES) == 15 and all(len(sha) == 64 for known in fetch.FILES.values() for sha in known.sha256)


# ---------------------------------------------------------------- whole runs

@needs_grader
def test_a_run_with_two_adapters_resumes(members, tmp_path, capsys):
    data = tmp_path / "data"
    write(data / "aime24.jsonl", [dict(id=i, problem=f"What is {i} + {i}?", answer=str(2 * i)) for i in range(4)])
    write(data / "gsm8k.jsonl", [dict(question="One and one?", answer="#### 2")])
    flags = ["--run", str(members), "--data", str(data), "--max-new-tokens", "6", "--samples", "2", "--temperature", "1", "--device", "cpu",
             "--rollout-batch", "10"]
    assert math.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 3 * 2 and {row["member"] for row in rows} == {"T0", "S0", "base"}
    assert all(row["correct"] is False and row["tokens"] <= 6 and {"answer", "gold", "text"} <= set(row) for row in rows)
    texts = {name: [row["text"] for row in rows if row["member"] == name] for name in ("T0", "S0", "base")}
    assert len({str(t) for t in texts.values()}) == 3, "each member answers for itself"
    summary = json.loads((tmp_path / "whole/summary.json").read_text())["results"]
    assert [(line["bench"], line["member"], line["n"]) for line in summary[:3]] == [("aime24", "base", 4), ("aime24", "T0", 4), ("aime24", "S0", 4)]
    assert summary[1]["minus_base_interval"] == [0, 0] and "95% interval" in capsys.readouterr().out

    # first fewer questions, then a torn line, then the rest: the same answers as in one go
    part = tmp_path / "part"
    assert math.main([*flags, "--out", str(part), "--limit", "2"]) == 0
    begun = (part / "answers.jsonl").read_bytes()
    (part / "answers.jsonl").write_bytes(begun + b'{"bench": "aime')
    assert math.main([*flags, "--out", str(part)]) == 0
    resumed = (part / "answers.jsonl").read_bytes()
    key = operator.itemgetter("bench", "id", "member", "sample")
    assert resumed.startswith(begun) and sorted(map(json.loads, resumed.splitlines()), key=key) == sorted(rows, key=key)
    with pytest.raises(ValueError, match="answers made otherwise: max_new"):
        math.main([*flags, "--out", str(part), "--max-new-tokens", "7"])
    write(data / "gsm8k.jsonl", [dict(question="One and two?", answer="#### 3")])
    with pytest.raises(ValueError, match="answers made otherwise: data gsm8k"):
        math.main([*flags, "--out", str(part)])
