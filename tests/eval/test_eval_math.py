"""eval.math and eval.fetch: files are found and checked, math-verify grades in a process that may die, runs resume."""
import gzip
import hashlib
import json
import operator
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from eval import fetch, grader, math
from eval.grader import Grader, final

SHARED = Path(__file__).resolve().parents[3] / "shared" / "evaldata"
needs_grader = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs math-verify: pip install -r requirements-eval.txt")
needs_files = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published files in ../shared/evaldata")


@pytest.fixture(scope="module")
def graded():
    """grade(text, gold) by one process."""
    with closing(Grader()) as process:
        yield process.grade


def load(bench: str, data: Path, limit: int = 0):
    return fetch.load(Namespace(bench=bench, data=str(data), limit=limit), math.SETS, math.item_of)


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@needs_grader
@pytest.mark.parametrize("answer, gold, equal", [
    ("\\boxed{0.5}", "\\frac{1}{2}", True), ("\\boxed{-2, 1}", "1,-2", True), ("\\boxed{(1,2)}", "(2,1)", False),
    ("\\boxed{\\frac{\\sqrt{3}}{3}}", "\\frac{1}{\\sqrt{3}}", True), ("\\boxed{3.14159}", "\\pi", False),
    ("so \\boxed{1}.\nNo, \\boxed{1234}.", "\\$1,\\!234", True), ("The answer is $27$.", "27.0", True), ("#### 1,300", "1,300", True),
    ("\\boxed{4500}", "It is $\\boxed{4.5 \\times 10^3}$ erg.", True), ("\\boxed{3} </think> It is $\\boxed{4}$.", "4", True),
    ("<answer>7</answer>\nUser: And 9?\n<answer>9</answer>", "7", True), ("I do not know.", "3", False), ("", "3", False)])
def test_hand_checked_answers(graded, answer, gold, equal):
    verdict = graded(answer, gold)
    assert verdict["correct"] is equal and "grader_error" not in verdict, verdict


@needs_grader
@pytest.mark.parametrize("text", ["(" * 100_000, "\\boxed{" * 2000, "1" * 100_000, "\x00\ud800", "1/0", "\\boxed{\\tan(\\pi/2)}",
                                  "$" * 100_000, "__import__('os').system('touch /tmp/graded')"], ids=range(8))
def test_hostile_text_is_wrong(graded, text):
    assert graded(text, "3")["correct"] is False and not Path("/tmp/graded").exists()


@needs_grader
def test_a_grader_with_less_memory_than_it_wants(monkeypatch):
    """Under `ulimit -v`, as schedulers of clusters set it; and what a grader that does not start says."""
    few = f"ulimit -v 2000000; exec {sys.executable} \"$@\""
    started = subprocess.Popen
    monkeypatch.setattr(grader.subprocess, "Popen", lambda words, **more: started(["sh", "-c", few, *words], **more))
    with closing(Grader()) as process:
        assert process.grade("\\boxed{4}", "4") == dict(correct=True, answer="4")
    monkeypatch.setattr(grader.subprocess, "Popen", lambda words, **more: started(["sh", "-c", "echo no sympy >&2"], **more))
    with pytest.raises(OSError, match="does not start: no sympy"):
        Grader().grade("4", "4")


@needs_grader
def test_an_answer_that_stalls_or_kills_the_grader_ends_nothing():
    with closing(Grader()) as process:
        assert process.grade("\\boxed{2}", "2")["correct"]
        first, start = process.process, time.monotonic()
        late = process.grade("\\boxed{(x+y+z)^{400}}", "x^2", limit_s=2)
        assert late == dict(correct=False, answer="", grader_error="no verdict within 2 s") and time.monotonic() - start < 20
        assert first.poll() is not None and process.grade("\\boxed{2}", "2")["correct"], "another one goes on"
        process.process.kill()
        process.process.wait()
        assert "grader_error" in process.grade("\\boxed{2}", "2")
    assert process.process is None


def test_without_math_verify_or_a_process_the_reason_is_said(tmp_path, monkeypatch):
    write(tmp_path / "aime24.jsonl", [dict(problem="Q", answer="1")])
    monkeypatch.setitem(sys.modules, "math_verify", None)                  # the import is blocked
    with pytest.raises(ValueError, match="pip install -r requirements-eval.txt"):
        math.main(["--self-test", "--bench", "aime24", "--data", str(tmp_path)])
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
    rows = [json.loads(line) for line in gzip.open(SHARED / "math500.jsonl.gz")][:30]
    assert all(graded(row["solution"], row["answer"])["correct"] for row in rows)


# ---------------------------------------------------------------- files

@pytest.mark.parametrize("bench, row, gold", [
    ("aime24", dict(id=60, problem="Q", solution="S", answer="204"), "204"), ("amc23", dict(id=0, question="Q", answer=27.0), "27.0"),
    ("math500", dict(problem="Q", solution="\\boxed{9}", answer="p - q", unique_id="test/1.json"), "p - q"),
    ("minerva", dict(problem="Q", solution="It is $\\boxed{4.5}$ erg.", idx=0), "It is $\\boxed{4.5}$ erg."),
    ("gsm8k", dict(question="Q", answer="16 - 3 = <<16-3=13>>13\n#### 1,300"), "1,300"),
    ("olympiadbench", dict(id=1606, question="Q", solution=["long"], final_answer=["$2$, $-2$"]), "$2$, $-2$")])
def test_published_formats(tmp_path, capsys, bench, row, gold):
    write(tmp_path / f"{bench}.jsonl.gz", [row, row])
    [item], hashes = load(bench, tmp_path, 1)
    assert (item.bench, item.question, item.gold) == (bench, "Q", gold) and len(hashes[f"{bench}.jsonl"]) == 64
    assert item.id == str(row.get("unique_id", row.get("id", row.get("idx", 0)))) and "not an edition of" in capsys.readouterr().err


@pytest.mark.parametrize("content, complaint", [
    (b"{\"problem\": \"Q\"", "line 1.*JSONDecodeError"), (b"[1]\n", "line 1"), (b"{\"text\": \"Q\"}\n", "no answer"),
    (b"{\"problem\": \"Q\", \"answer\": \"1\"}\n\xff\xfe{}\n", "line 2")])
def test_damaged_files_are_named(tmp_path, content, complaint):
    (tmp_path / "aime24.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=rf"aime24.jsonl, (?=.*it is fetched again).*{complaint}"):
        load("aime24", tmp_path)
    (tmp_path / "math500.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(ValueError, match="math500.jsonl.gz is not there or damaged"):
        load("math500", tmp_path)


def test_missing_files_are_fetched_and_checked(tmp_path, monkeypatch):
    source, data = write(tmp_path / "there.jsonl.gz", [dict(problem="Q", answer="1")]), tmp_path / "data"

    def publish(url: str, *sha: str) -> None:
        monkeypatch.setitem(fetch.FILES, "amc23", [dict(file="amc23.jsonl", url=url, sha256=sha)])

    publish(source.as_uri(), hashlib.sha256(gzip.decompress(source.read_bytes())).hexdigest())
    assert load("amc23", data)[0][0].gold == "1" and (data / "amc23.jsonl.gz").exists()
    source.unlink()
    assert load("amc23", data)[0][0].gold == "1", "is there"
    (data / "amc23.jsonl.gz").unlink()
    write(source, [dict(problem="Q", answer="2")])
    for url, complaint in ((source.as_uri(), "another file than we know"), ((tmp_path / "no").as_uri(), "amc23.jsonl is not there .* put file://")):
        publish(url, "0" * 64)
        with pytest.raises(ValueError, match=complaint):
            load("amc23", data)
    assert not list(data.glob("amc23*"))
    published = [known for files in fetch.FILES.values() for known in files]
    assert len(published) == 15 and all(len(sha) == 64 for known in published for sha in known["sha256"])


@needs_grader
def test_a_run_with_two_adapters_resumes(members, tmp_path, capsys):
    data = tmp_path / "data"
    write(data / "aime24.jsonl", [dict(id=i, problem=f"What is {i} + {i}?", answer=str(2 * i)) for i in range(4)])
    write(data / "gsm8k.jsonl", [dict(question="One and one?", answer="#### 2")])
    flags = ["--run", str(members), "--data", str(data), "--bench", "aime24,gsm8k", "--max-new-tokens", "6", "--samples", "2", "--temperature", "1", "--device", "cpu",
             "--rollout-batch", "10"]
    assert math.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 3 * 2 and all(row["correct"] is False and row["tokens"] <= 6 and {"answer", "gold", "text"} <= set(row) for row in rows)
    texts = {name: [row["text"] for row in rows if row["member"] == name] for name in ("T0", "S0", "base")}
    assert len({str(t) for t in texts.values()}) == 3, "each member answers for itself"
    summary, told = json.loads((tmp_path / "whole/summary.json").read_text()), capsys.readouterr().out
    assert [(line["bench"], line["member"], line["n"]) for line in summary["results"][:2]] == [("aime24", "base", 4), ("aime24", "T0", 4)]
    assert "minus base interval" in told and "minus base @2" in told and summary["pass_at_k"][0]["pass_at"] == [0, 0]

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
