"""eval.math and eval.fetch: files are found and checked, math-verify grades in a process that may die, runs resume."""
import gzip
import hashlib
import json
import operator
import signal
import subprocess
import sys
from argparse import Namespace
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from eval import fetch, grader, math
from eval.forms import forms
from eval.grader import Grader, final
from common import UserError

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
    ("so \\boxed{1}. " + "But wait, a zero was dropped. " * 3 + "So it is \\boxed{1234}.", "\\$1,\\!234", True), ("The answer is $27$.", "27.0", True), ("#### 1,300", "1,300", True),
    ("\\boxed{4500}", "It is $\\boxed{4.5 \\times 10^3}$ erg.", True), ("\\boxed{3} </think> It is $\\boxed{4}$.", "4", True),
    ("<answer>7</answer>\nUser: And 9?\n<answer>9</answer>", "7", True), ("I do not know.", "3", False), ("", "3", False)])
def test_hand_checked_answers(graded, answer, gold, equal):
    verdict = graded(answer, gold)
    assert verdict["correct"] is equal and "grader_error" not in verdict, verdict


# Golds in the manner of Minerva and OlympiadBench, with three right and two wrong forms of each, written by hand.
FORMS = [
    ("4.7e33", ["4.7 \\times 10^{33}", "47 \\cdot 10^{32} \\text{ erg/s}", "4.7e33"], ["-4.7 \\times 10^{33}", "4.8 \\times 10^{33}"]),
    ("8.9e8", ["890000000", "8.9 \\times 10^{8} \\mathrm{~cm}", "890{,}000{,}000"], ["8.9 \\times 10^{9}", "890"]),
    ("2e-5", ["2 \\times 10^{-5}", "0.00002", "\\frac{1}{50000}"], ["2e - 5", "-0.00002"]),
    ("1e-5", ["10^{-5}", "0.00001", "1e-5"], ["e-5", "0.0000104"]),
    ("1.44e-10", ["1.44 \\times 10^{-10}", "0.000000000144", "14.4 \\times 10^{-11} \\text{ m}"], ["0.000000000145", "-1.44 \\times 10^{-10}"]),
    ("2.91e-19", ["2.91\\times10^{-19}", "E = 2.91 \\times 10^{-19}", "29.1 \\times 10^{-20}"], ["-2.91\\times10^{-19}", "E = -2.91\\times10^{-19}"]),
    ("936", ["9.36 \\times 10^{2}", "936.0", "\\frac{1872}{2}"], ["9.36 \\times 10^{3}", "-936"]),
    ("So $x = \\boxed{-2./3}$, as $\\log f = 3$.", ["-\\frac{2}{3}", "-2/3", "\\frac{-2}{3}"], ["\\frac{2}{3}", "3"]),
    ("With $\\sin \\theta_a = 1$ it is $\\boxed{np.arccos(3/7)}$.", ["\\arccos(3/7)", "\\cos^{-1}\\frac{3}{7}", "\\arccos\\left(\\frac37\\right)"],
     ["\\arccos(7/3)", "\\theta_a"]),
    ("an angle of \\boxed{0.004}^{\\prime \\prime}", ["0.004", "0.004^{\\prime\\prime}", "0.004^\\prime"], ["0.04", "-0.004"]),
    ("$k=\\boxed{\\frac{41}{4} m}$.", ["\\frac{41}{4}m", "\\frac{41m}{4}", "k = 10.25 m"], ["\\frac{41}{4}", "-\\frac{41}{4} m"]),
    ("$\\boxed{\\frac{1}{\\sqrt{3}}c}$", ["\\frac{c}{\\sqrt{3}}", "\\frac{\\sqrt{3}}{3} c", "v = \\frac{c}{\\sqrt{3}}"], ["\\frac{1}{\\sqrt{3}}", "\\frac{c}{3}"]),
    ("$\\boxed{m c^{2}(\\gamma^{2}-1) \\cos ^{2} \\theta}$", ["mc^2(\\gamma^2-1)\\cos^2\\theta", "(\\gamma^2 - 1) m c^2 \\cos^2 \\theta",
     "m c^2 (\\gamma - 1)(\\gamma + 1) \\cos^2 \\theta"], ["mc^2(\\gamma^2+1)\\cos^2\\theta", "2mc^2(\\gamma^2-1)\\cos^2\\theta"]),
    ("\\boxed{\\hbar \\omega(n+1 / 2)-\\frac{E_{0}^{2}}{2 m \\omega^{2}}}", ["\\hbar\\omega\\left(n+\\frac12\\right)-\\frac{E_0^2}{2m\\omega^2}",
     "-\\frac{E_0^2}{2m\\omega^2}+\\left(n+\\frac{1}{2}\\right)\\hbar\\omega", "\\frac{2n+1}{2}\\hbar\\omega-\\frac{E_{0}^{2}}{2m\\omega^{2}}"],
     ["\\hbar\\omega(n+1/2)", "\\hbar\\omega(n+1/2)+\\frac{E_0^2}{2m\\omega^2}"]),
    ("$\\boxed{E_{1},E_{2}}$", ["E_1, E_2", "E_{2}, E_{1}", "E_1 \\text{ and } E_2"], ["E_1", "E_1, E_3"]),
    ("$\\boxed{\\frac{1}{4} E_{1}+\\frac{3}{4} E_{2}}$", ["\\frac{E_1+3E_2}{4}", "0.25E_1+0.75E_2", "\\frac14 E_1+\\frac34 E_2"], ["\\frac{E_1+E_2}{4}", "E_1+3E_2"]),
    ("$\\boxed{y^{\\prime}+k y-k x(t)=0}$", ["\\dot y + ky = kx(t)", "y^{\\prime} = k(x(t) - y)", "y' + ky - kx(t) = 0"], ["y + ky - kx(t) = 0", "y' - ky - kx(t) = 0"]),
    ("$\\boxed{\\frac{dM}{dt}=k M_{\\odot}}$", ["\\frac{dM}{dt} = kM_\\odot", "\\frac{d M}{d t}=M_{\\odot} k", "\\dot{M} = k M_\\odot"],
     ["\\frac{dM}{dt} = -kM_\\odot", "\\frac{dM}{dt} = k"]),
    ("$\\boxed{a \\cos (\\omega t)+$ $\\dot{x}_{0} \\sin (\\omega t)}$.", ["a\\cos(\\omega t)+\\dot{x}_0\\sin(\\omega t)", "\\dot{x}_{0}\\sin\\omega t+a\\cos\\omega t",
     "x = a \\cos(\\omega t) + \\dot{x}_{0} \\sin(\\omega t)"], ["a\\cos(\\omega t)", "a\\cos(\\omega t)-\\dot{x}_0\\sin(\\omega t)"]),
    ("$(-\\infty, 1) \\cup\\{3\\}$.", ["(-\\infty,1)\\cup\\{3\\}", "\\left(-\\infty, 1\\right) \\cup \\{3\\}", "\\{3\\} \\cup (-\\infty, 1)"], ["0", "(-\\infty, 1]\\cup\\{3\\}"]),
    ("$t(0,6]$", ["(0,6]", "t \\in (0, 6]", "\\left(0, 6\\right]"], ["(0,6)", "[0,6]"]),
    ("$f(x)=a x+c$, where $c$ is any integer", ["f(x)=ax+c", "ax+c", "f(x) = c + a x"], ["0", "f(x) = ax - c"]),
    ("$m_{\\max }=n^{2}-n$", ["n^2-n", "m_{\\max} = n(n-1)", "n(n-1)"], ["n^2+n", "m_{\\max} = n^2"]),
    ("$\\boxed{\\lambda_{\\text {ref}} / \\sqrt{3}}$", ["\\lambda_{ref}/\\sqrt3", "\\frac{\\lambda_{\\text{ref}}}{\\sqrt{3}}", "\\frac{\\lambda_{\\mathrm{ref}}}{\\sqrt{3}}"],
     ["\\lambda_{ref}/3", "\\lambda / \\sqrt{3}"]),
    ("$7m$", ["7m", "7 m", "m \\cdot 7"], ["7", "-7m"]),
    ("$59$,$74$", ["59, 74", "74,59", "59 \\text{ and } 74"], ["59", "59, 75"]),
    ("$(0,3),(0,-3),(4,\\frac{5}{2})$", ["(0,3),(0,-3),(4,2.5)", "(4,\\frac52),(0,-3),(0,3)", "\\left(0,-3\\right), (0,3), (4,\\frac{5}{2})"], ["(0,3),(0,-3)", "(3,0),(-3,0),(4,\\frac52)"]),
    ("61.5%", ["61.5\\%", "0.615", "\\frac{123}{200}"], ["6.15", "-61.5\\%"])]


@needs_grader
@pytest.mark.parametrize("gold, right, wrong", FORMS)
def test_a_gold_is_told_apart_from_what_is_not_it(graded, gold, right, wrong):
    assert len(right) == 3 and len(wrong) == 2
    found = {form: graded(f"So it is $\\boxed{{{form}}}$.", gold) for form in [*right, *wrong]}
    assert {form: verdict["correct"] for form, verdict in found.items()} == dict.fromkeys(right, True) | dict.fromkeys(wrong, False), found


@needs_grader
@pytest.mark.parametrize("text, gold, equal", [
    ("\\boxed{3}\n\\boxed{5}", "3,5", True), ("1. \\boxed{(2,3)}\n2. \\boxed{(3,2)}", "(2,3),(3,2)", True), ("\\boxed{3}, \\boxed{5}", "3,5", True),
    ("The solutions are\n\\[ x = \\boxed{3} \\]\nand\n\\[ x = \\boxed{5} \\]", "3,5", True), ("\\boxed{3}\n\\boxed{5}", "5", False)])
def test_several_boxes_are_read_as_math_verify_reads_them(graded, text, gold, equal):
    from math_verify import parse, verify
    assert verify(parse(f"$\\boxed{{{gold}}}$"), parse(text)) is graded(text, gold)["correct"] is equal


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
def test_a_grader_without_a_processor_judges_nobody():
    """Stopped, it uses no CPU time: the answer is asked again by the next evaluation, not wrong."""
    with closing(Grader()) as process:
        process.start()
        process.process.send_signal(signal.SIGSTOP)
        assert process.grade("\\boxed{2}", "2", limit_s=0.05) == dict(correct=None, answer="")


@needs_grader
def test_an_answer_that_stalls_or_kills_the_grader_ends_nothing():
    with closing(Grader()) as process:
        assert process.grade("\\boxed{2}", "2")["correct"]
        first = process.process
        late = process.grade("\\boxed{(x+y+z)^{400}}", "x^2", limit_s=2)
        assert late == dict(correct=False, answer="", grader_error="no verdict within 2 s")
        assert first.poll() is not None and process.grade("\\boxed{2}", "2")["correct"], "another one goes on"
        process.process.kill()
        process.process.wait()
        assert "grader_error" in process.grade("\\boxed{2}", "2")
    assert process.process is None


def test_without_math_verify_or_a_process_the_reason_is_said(tmp_path, monkeypatch):
    write(tmp_path / "aime24.jsonl", [dict(problem="Q", answer="1")])
    monkeypatch.setitem(sys.modules, "math_verify", None)                  # the import is blocked
    with pytest.raises(UserError, match="pip install -r requirements-eval.txt"):
        math.main(["--self-test", "--bench", "aime24", "--data", str(tmp_path)])
    monkeypatch.setattr(grader, "find_spec", lambda name: True)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="does not start"):
        Grader().grade("1", "1")


def test_the_first_answer_in_the_envelope_counts():
    text = "It is 7.</think> <answer>{}</answer>\nUser: What is 4 + 5?\nAssistant: <think>It is 9.</think> <answer>9</answer>"
    assert final(text.format("7")) == "7</answer>" and final("<think>3</think>4") == "4" and len(final("1" * 10 ** 6)) == grader.MAX_CHARS


@pytest.mark.slow
@needs_grader
@needs_files
def test_gold_answers_and_worked_solutions_of_published_sets_are_right(graded, capsys):
    assert math.main(["--self-test", "--data", str(SHARED), "--bench", "aime24"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"aime24": dict(n=30, right=30)}
    rows = [json.loads(line) for line in gzip.open(SHARED / "math500.jsonl.gz")][:30]
    assert all(graded(row["solution"], row["answer"])["correct"] for row in rows)


@needs_grader
def test_the_self_test_names_a_gold_that_cannot_be_answered(tmp_path, capsys):
    golds = ["It is $\\boxed{4.7e33}$ erg.", "\\boxed{(2,-5)}", "\\boxed{59,74}", "$\\boxed{\\frac{41}{4} m}$", "$\\boxed{e_1}$"]
    write(tmp_path / "minerva.jsonl", [dict(problem="Q", solution=gold, idx=i) for i, gold in enumerate(golds)])
    assert math.main(["--self-test", "--data", str(tmp_path), "--bench", "minerva"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1]) == {"minerva": dict(n=5, right=4)}, told.err
    assert "minerva 4: the published answer does not pass" in told.err and "e_1" in told.err


@pytest.mark.parametrize("gold, right, wrong", [
    ("4.5e33", [str(45 * 10**32), "4.5 \\times 10^{33}", f"\\frac{{{9 * 10**33}}}{{2}}"], ["-4.5 \\times 10^{33}", str(46 * 10**32)]),
    ("So $x=\\boxed{-1./3}$.", ["-1/3", "\\dfrac{-1}{3}", "-\\frac{2}{6}"], ["\\dfrac{1}{3}", "\\frac{0}{2}"]),
    ("$3,-7$", ["3, -7", "-7, 3", "6/2,\\; -14/2"], ["3, -6", "3, -7, 1000003"]),
    ("$(2,x)$.", ["\\left(2, x\\right)", "\\left(4/2,\\left(x\\right)\\right)", "\\left(4/2,\\; x\\right)"], ["(3, x)", "(2, x + 1)"]),
    ("$f(x)=2 x$", ["f(x)=2 x", "f(x) = 2 \\left(2 x\\right) / 2", "2 x"], ["f(x) = 2 x + 1", "f(x) = 2 x - 2"]),
    ("$(-\\infty, 1) \\cup\\{3\\}$.", None, ["(-\\infty, 2) \\cup\\{3\\}", "(-\\infty, 1) \\cup\\{5\\}"])])
def test_forms_of_golds(gold, right, wrong):
    found = forms(gold)
    assert len(found[0]) == 3 and found[1] == wrong and right in (None, found[0])


@needs_grader
@pytest.mark.slow
@pytest.mark.parametrize("bench", ["aime24", "amc23", "math500", "minerva", "olympiadbench"])
def test_every_published_gold_is_told_apart(bench, capsys):
    """Takes minutes. Minerva and OlympiadBench are looked for where eval.fetch puts them."""
    folders = [SHARED, Path("~/.cache/nanopopulora").expanduser()]
    found = [folder for folder in folders if list(folder.glob(f"{bench}.jsonl*"))]
    if not found:
        pytest.skip(f"needs {fetch.FILES[bench][0]['url']} in {folders[-1]}")
    assert math.main(["--self-test", "--data", str(found[0]), "--bench", bench]) == 0, capsys.readouterr().err


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
    (b"", "which is empty"), (b"{\"problem\": \"Q\"", "line 1.*JSONDecodeError"), (b"[1]\n", "line 1"), (b"{\"text\": \"Q\"}\n", "no answer"),
    (b"{\"problem\": \"Q\", \"answer\": \"1\"}\n\xff\xfe{}\n", "line 2")])
def test_damaged_files_are_named(tmp_path, content, complaint):
    (tmp_path / "aime24.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=rf"aime24.jsonl, (?=.*it is fetched again).*{complaint}"):
        load("aime24", tmp_path)
    (tmp_path / "math500.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(UserError, match="math500.jsonl.gz is not there or damaged"):
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
        with pytest.raises(UserError, match=complaint):
            load("amc23", data)
    assert not list(data.glob("amc23*"))
    published = [known for files in fetch.FILES.values() for known in files]
    assert len(published) == 16 and all(len(sha) == 64 for known in published for sha in known["sha256"])


@needs_grader
@pytest.mark.slow
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
    with pytest.raises(UserError, match="answers made otherwise: max_new"):
        math.main([*flags, "--out", str(part), "--max-new-tokens", "7"])
    write(data / "gsm8k.jsonl", [dict(question="One and two?", answer="#### 3")])
    with pytest.raises(UserError, match="answers made otherwise: data gsm8k"):
        math.main([*flags, "--out", str(part)])
