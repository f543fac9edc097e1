"""eval.math: answers are cut out and compared as values, files are found and checked, runs resume."""
import gzip
import hashlib
import json
import operator
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from eval import answering, common, fetch, stats
from eval.math import __main__ as math, data, grading, symbolic
from eval.math.expression import read
from eval.math.grading import extract, grade
from weights import load_base, save_peft, weights_hash

HERE = Path(__file__).resolve().parent
PAIRS = [json.loads(line) for line in (HERE / "math_pairs.jsonl").read_text().splitlines()]
SHARED = HERE.parents[2] / "shared" / "evaldata"


# ---------------------------------------------------------------- grading

def test_hand_checked_pairs():
    """[answer, gold, equal?]; every one was decided by hand, not by the grader."""
    assert len(PAIRS) >= 150 and 0.2 < sum(not equal for *_, equal in PAIRS) / len(PAIRS) < 0.8
    wrong = [(answer, gold, equal) for answer, gold, equal in PAIRS if grade(answer, gold) is not equal]
    assert not wrong, wrong


@pytest.mark.parametrize("text, answer", [
    ("The answer is $5$.", "5"), ("So it is \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
    ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
    ("\\boxed{5}\n...\n\\boxed{6}", "6"), ("\\boxed{\\boxed{7}}", "7"), ("\\boxed 5.", "5"),
    ("\\fbox{8}", "8"),
    ("we get \\boxed{12", ""), ("\\boxed{1} and \\boxed{2}", "1, 2"), ("$\\boxed{1}$, $\\boxed{2}$", "1, 2"),
    ("\\boxed{a_{1}^{2}}", "a_{1}^{2}"), ("**Answer:** 42", "42"), ("#### 2,125", "2,125"),
    ("<think>\\boxed{3}</think> The answer is 4.", "4"), ("<answer>\\boxed{7}</answer>", "7"),
    ("<think>x</think><answer> 12 </answer>", "12"), ("<answer>The answer is 3/4.</answer>", "3/4"),
    ("Therefore, the answer is **18 dollars**.", "18 dollars"),
    ("The final answer is $\\frac{3}{4}$ because of this", "\\frac{3}{4}"),
    ("The answer is 3.5. I hope it is correct.", "3.5"),
    ("Final Answer: The final answer is $[2,5)$. I hope it is correct.", "[2,5)"),
    ("The answer to the question is 10", "10"),
    ("answer = 7", "7"), ("so we get\n42", "42"), ("x = 5", "x = 5"), ("The answer is \\(\\pi\\).", "\\pi"),
    ("The answer is $5$ cm.", "5 cm"), ("I do not know.", ""), ("", ""), ("First we add 3 and 4 and", "")])
def test_the_last_statement_is_the_answer(text, answer):
    assert extract(text) == answer


HOSTILE = ["9^9^9^9", "(" * 100_000, "{" * 5000, "\\boxed{" * 20_000, "\\frac" * 5000, "1" * 100_000,
           "1" * 1999, "x^" * 500 + "1", "-" * 1900, "9" + "!" * 30, "10^{10^{10}}", "\\sqrt{" * 100,
           "a," * 900, "\x00\ud800", "1/0", "0^0", "0/0", "\\infty-\\infty", "2^{2000}^{2000}",
           "((2^{2000})^{2000})^{2000}", "\\tan(\\pi/2)", "1e999", "1e-999", "((x^{2000})^{2000})^{2000}",
           "answer is " * 20_000, "$" * 100_000, "\\begin{pmatrix}" * 100, "x" * 1999, "|" * 1000,
           "\\pm" * 50 + "1", "\\log 0", "\\sqrt[0]{2}", "0.\\overline{0}", "٣", "Ⅷ", "((((9!)!)!)!)",
           "__import__('os').system('true')", "\\text{" * 300, "1,000" * 300, " " * 100_000, "\\boxed{}" * 50,
           "\\\\" * 900, "&" * 900, "\\left" * 300, "<answer>" * 10_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_neither_raises_nor_takes_long(text):
    start = time.perf_counter()
    extract(text)
    extract(f"\\boxed{{{text}}}")
    for gold in ("3", "\\sqrt{2}", "x^2"):
        assert grade(text, gold) is False and grade(gold, text) is False
    assert isinstance(grade(f"{text}+0", text), bool)
    assert time.perf_counter() - start < 30, text[:40]


def test_random_mathematics_never_raises():
    rng, parts = random.Random(0), [*"0123456789+-*/^_(){}[]|,.;:=<>!%$&x ", "\\frac", "\\sqrt", "\\pm",
                                    "\\pi", "\\left", "\\{", "\\}", "\\\\", "\\cup", "\\sin", "\\le",
                                    "\\begin{pmatrix}", "\\end{pmatrix}", "\\text{cm}", "\\in", "\\infty",
                                    "\\log", "^\\circ", "\\boxed{", "\\overline{3}", "and"]
    for _ in range(1000):
        text = "".join(rng.choices(parts, k=rng.randrange(1, 14)))
        extract(text), read(text), grading.readings(text), grading.strip_unit(text)
        grade(text, "3"), grade("x^2", text)


def test_a_worker_that_hangs_is_killed_and_replaced():
    worker = symbolic.Worker()
    two, root = ("num", 2), ("root", ("num", 2), ("num", 2))
    assert worker.ask(dict(a=("mul", root, root), b=two, relative=0, proportional=False), 30)
    before = worker.process
    with pytest.raises(symbolic.Late):
        worker.ask(dict(a=root, b=root, relative=0, proportional=False), 0.0)
    assert before.poll() is not None
    assert not worker.ask(dict(a=root, b=two, relative=0, proportional=False), 30)
    assert worker.process is not before and worker.n_late == 1
    before, worker.left_s = worker.process, 0.0
    with pytest.raises(symbolic.Late):
        worker.ask(dict(a=root, b=two, relative=0, proportional=False), 30)
    assert before.poll() is not None, "many slow questions of one answer end as one"
    worker.left_s = 30.0
    with pytest.raises(symbolic.Died):
        worker.ask(dict(a=("set", two), b=two, relative=0, proportional=False), 30)
    assert worker.n_late == 2, "a crash is not called late"
    worker.close()


@pytest.mark.parametrize("text", ["1+\\{\\}", "3+2_{3}", "0.\\overline{3}_1", "P(1,2)", "2\\cdot(1,2)",
                                  "x^{\\{\\}}", "\\sqrt{[1,2)}", "-\\{1,2\\}", "\\sin(1,2)",
                                  "2\\begin{pmatrix}1&2\\end{pmatrix}"])
def test_what_is_no_scalar_does_not_reach_the_worker(text):
    """These raised IndexError or ValueError, or ended the worker with a KeyError that was called late."""
    n_late = symbolic.WORKER.n_late
    for other in ("3", "x^2", "1+\\{1\\}", "P(1,3)", "x=3", "(1,2)"):
        for answer, gold in ((text, other), (other, text), (f"x={text}", f"y={other}")):
            assert grade(answer, gold) is False
    assert grade(text, text.replace("2", " 2 ")) and symbolic.WORKER.n_late == n_late


def test_slack_is_for_numbers_that_are_not_whole():
    assert grade("6.67", "6.674", 0.01) and not grade("6.5", "6.674", 0.01)
    assert grade("\\sqrt{2}", "1.414", 0.01)
    assert not grade("1001", "1000", 0.01) and grade("2.03", "2", absolute=0.05) and not grade("2.03", "2")


# ---------------------------------------------------------------- files

def write(path: Path, rows: list[dict], packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_list = ".json" in path.suffixes and ".jsonl" not in path.name
    text = json.dumps(rows) if is_list else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("bench, file, row, question, gold", [
    ("aime24", "aime24.jsonl", dict(id=60, problem="Q", solution="S", answer="204", url="u"), "Q", "204"),
    ("aime24", "AIME_2024/train.json", dict(ID="2024-I-1", Problem="Q", Solution="S", Answer=204),
     "Q", "204"),
    ("aime24", "aime24/test.jsonl", dict(problem="Q", solution="so \\boxed{204}"), "Q", "204"),
    ("aime25", "aime25.jsonl.gz", dict(problem="Q", answer="70", id="0"), "Q", "70"),
    ("amc23", "amc23.jsonl", dict(id=0, problem="Q", answer=27.0, url="u"), "Q", "27"),
    ("amc23", "amc23_test.jsonl", dict(id=0, question="Q", answer="27.0", url="u"), "Q", "27.0"),
    ("math500", "MATH-500/test.jsonl",
     dict(problem="Q", solution="\\boxed{9}", answer="p - q", subject="A", level=2, unique_id="test/1.json"),
     "Q", "p - q"),
    ("minerva", "minerva_math/test.jsonl",
     dict(problem="Q", solution="It is $\\boxed{4.5e33}$ erg.", type="T", idx=0), "Q", "4.5e33"),
    ("minerva", "minervamath.jsonl", dict(question="Q", answer="4.5e33"), "Q", "4.5e33"),
    ("gsm8k", "gsm8k.jsonl.gz", dict(question="Q", answer="16 - 3 = <<16-3=13>>13\n#### 1,300"),
     "Q", "1,300"),
    ("olympiadbench", "olympiadbench/test.jsonl",
     dict(id=1606, question="Q", solution=["long"], final_answer=["$2$, $-2$"], error=None),
     "Q", "$2$, $-2$"),
    ("olympiadbench", "OE_TO_maths_en_COMP.json",
     dict(id=1, question="Q", solution=["s"], final_answer=["1.5"], error="0.1"), "Q", "1.5")])
def test_published_formats(tmp_path, capsys, bench, file, row, question, gold):
    write(tmp_path / file, [row], packed=file.endswith(".gz"))
    item, = data.load(bench, tmp_path)[0]
    assert (item.question, item.gold) == (question, gold)
    assert math.main(["--self-test", "--data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == {bench: dict(n=1, right=1, read=1)} and "not an edition" in err
    if row.get("error"):
        for answer, right in ("1.55", True), ("1.7", False):
            assert grade(answer, item.gold, item.relative, item.absolute) is right


@pytest.mark.parametrize("content, complaint", [
    (b"", "is empty"), (b"{\"problem\": \"Q\"", "not valid JSON"), (b"[1]\n", "expected an object"),
    (b"{\"text\": \"Q\"}\n", "found the fields text"),
    (gzip.compress(b"{}" * 1000)[:-20], "damaged gzip"), (b"\xff\xfe{}\n", "cannot be read")])
def test_damaged_files_are_named(tmp_path, content, complaint):
    (tmp_path / "aime24.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as error:
        data.load("aime24", tmp_path)
    said = str(error.value)
    assert "aime24.jsonl" in said and ("fetch" in said or "published" in said)


def test_missing_files_say_how_to_get_them(tmp_path):
    for call in (lambda: fetch.locate("gsm8k", tmp_path), lambda: fetch.locate("gsm8k", cache=tmp_path)):
        with pytest.raises(ValueError, match="https://raw.githubusercontent.com/openai/grade-school-math"):
            call()
    with pytest.raises(ValueError, match="no such directory"):
        fetch.here(tmp_path / "nowhere")


def test_fetched_files_are_checked(tmp_path, monkeypatch, capsys):
    """From file:// addresses: a known hash is compared at once, an unknown one from the second time on."""
    source, cache = write(tmp_path / "there.jsonl", [dict(problem="Q", answer="1")]), tmp_path / "cache"
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    for expected in (sha, ""):
        monkeypatch.setitem(fetch.FILES, "amc23", fetch.Published(source.as_uri(), expected, 1, ("amc23",)))
        fetch.main(["amc23", "--cache", str(cache)])
        assert data.load("amc23", cache=cache)[0][0].gold == "1"
        (cache / "amc23.jsonl").write_text('{"problem": "Q", "answer": "2"}\n')
        with pytest.raises(ValueError, match=f"expected {sha}: it is damaged or was changed"):
            data.load("amc23", cache=cache)
        (cache / "amc23.jsonl").unlink()
    assert f"SHA-256 {sha} is trusted from now on" in capsys.readouterr().err
    monkeypatch.setitem(fetch.FILES, "amc23", fetch.Published(source.as_uri(), "0" * 64, 1, ("amc23",)))
    with pytest.raises(ValueError, match="the download was cut off or the file has changed"):
        fetch.fetch("amc23", cache)
    assert not list(cache.glob("amc23*"))
    with pytest.raises(ValueError, match="could not be fetched"):
        nowhere = fetch.Published((tmp_path / "no").as_uri(), "", 1, ("amc23",))
        monkeypatch.setitem(fetch.FILES, "amc23", nowhere)
        fetch.fetch("amc23", cache)
    with pytest.raises(ValueError, match="no such benchmark"):
        fetch.main(["amc32"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published files in ../shared/evaldata")
def test_gold_answers_of_published_sets_are_right(capsys):
    assert math.main(["--self-test", "--data", str(SHARED)]) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["math500"] == dict(n=500, right=500, read=500)
    assert counts["gsm8k"]["right"] == 1319 and counts["aime24"]["n"] == 30


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published files in ../shared/evaldata")
def test_worked_solutions_of_published_sets_are_right():
    """The boxes of MATH-500's own solutions, and no gold answer is right for a question with another one."""
    rows = list(fetch.rows(fetch.here(SHARED)["math500"]))
    assert all(grade(extract(row["solution"]), row["answer"]) for row in rows)
    golds, rng = sorted({row["answer"] for row in rows}), random.Random(1)
    pairs = [rng.sample(golds, 2) for _ in range(300)]
    assert not [(a, b) for a, b in pairs if grade(a, b)]


# ---------------------------------------------------------------- statistics

def test_wilson_interval():
    """Newcombe 1998, table I: 81/263 and 15/148; and the ends."""
    for right, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                (1, 29, 0.0061, 0.1718)):
        assert stats.wilson(right, n) == pytest.approx((low, high), abs=1e-4)
    assert stats.wilson(0, 0) == (0, 1) and stats.wilson(20, 20)[1] == 1


def test_paired_bootstrap():
    rng = np.random.default_rng(0)
    assert stats.paired_bootstrap(np.zeros(50)) == (0, 0)
    difference = rng.integers(-1, 2, 400).astype(float)
    low, high = stats.paired_bootstrap(difference)
    half = 1.96 * difference.std() / 20
    assert (low, high) == pytest.approx((difference.mean() - half, difference.mean() + half), abs=0.012)
    assert stats.paired_bootstrap(difference) == (low, high), "the same draws in every run"


# ---------------------------------------------------------------- whole runs

@pytest.fixture
def questions(tmp_path):
    folder = tmp_path / "data"
    sums = [dict(id=i, problem=f"What is {i} + {i}?", answer=str(2 * i)) for i in range(4)]
    write(folder / "aime24.jsonl", sums)
    write(folder / "gsm8k.jsonl", [dict(question="One and one?", answer="#### 2")])
    return folder


def test_a_run_with_two_adapters_resumes(members, questions, tmp_path, capsys):
    flags = ["--run", str(members), "--data", str(questions), "--max-new-tokens", "6", "--samples", "2",
             "--temperature", "1", "--device", "cpu", "--rollout-batch", "10"]
    assert math.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "whole/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 5 * 3 * 2 and {row["member"] for row in rows} == {"T0", "S0", "base"}
    assert all(row["tokens"] <= 6 for row in rows)
    assert all(row["correct"] is False and {"answer", "gold", "text"} <= set(row) for row in rows)
    texts = {name: [row["text"] for row in rows if row["member"] == name] for name in ("T0", "S0", "base")}
    assert len({str(t) for t in texts.values()}) == 3, "each member answers for itself"
    summary = json.loads((tmp_path / "whole/summary.json").read_text())["results"]
    assert [(line["bench"], line["member"], line["n"]) for line in summary[:3]] == \
        [("aime24", "base", 4), ("aime24", "T0", 4), ("aime24", "S0", 4)]
    assert summary[1]["minus_base_interval"] == [0, 0] and "95% interval" in capsys.readouterr().out

    # first fewer questions, then a torn line, then the rest: the same answers as in one go
    part = tmp_path / "part"
    assert math.main([*flags, "--out", str(part), "--limit", "2"]) == 0
    begun = (part / "answers.jsonl").read_bytes()
    (part / "answers.jsonl").write_bytes(begun + b'{"bench": "aime')
    assert math.main([*flags, "--out", str(part)]) == 0
    resumed = (part / "answers.jsonl").read_bytes()
    assert resumed.startswith(begun)
    key = operator.itemgetter("bench", "id", "member", "sample")
    assert sorted(map(json.loads, resumed.splitlines()), key=key) == sorted(rows, key=key)
    with pytest.raises(ValueError, match="answers made otherwise: max_new"):
        math.main([*flags, "--out", str(part), "--max-new-tokens", "7"])
    write(questions / "gsm8k.jsonl", [dict(question="One and two?", answer="#### 3")])
    with pytest.raises(ValueError, match="answers made otherwise: data gsm8k"):
        math.main([*flags, "--out", str(part)])


def test_what_a_user_gets_wrong_is_said(members, bytes_base, questions, tmp_path, capsys):
    adapter = str(members / "step_3" / "S0")
    out = ["--data", str(questions), "--out", str(tmp_path / "o"), "--device", "cpu"]
    with pytest.raises(ValueError, match="did you mean math500"):
        math.main(["--bench", "maths500", *out])
    with pytest.raises(ValueError, match="did you mean olympiadbench"):
        math.main(["--bench", "aime24,olympiad", *out])
    with pytest.raises(ValueError, match="give --base"):
        math.main(out)
    with pytest.raises(ValueError, match="the same answer 3 times"):
        math.main(["--samples", "3", "--adapters", adapter, *out])
    with pytest.raises(ValueError, match="no complete checkpoint"):
        math.main(["--run", str(tmp_path), *out])
    with pytest.raises(ValueError, match="lower --max-new-tokens to at most"):
        math.main(["--adapters", adapter, "--max-new-tokens", "500", *out])
    with pytest.raises(ValueError, match="no chat template"):
        math.main(["--adapters", adapter, "--prompt", "chat", *out])

    other = load_base(str(bytes_base))
    from lora import Adapters
    wider = Adapters.on(other.model, 1, 8, 8)
    save_peft(wider, 0, tmp_path / "wide", str(bytes_base), weights_hash(other.model))
    with pytest.raises(ValueError, match="adapters of one shape share batches"):
        math.main(["--adapters", adapter, str(tmp_path / "wide"), *out])
    save_peft(wider, 0, tmp_path / "foreign", "another/base", "0" * 64)
    with pytest.raises(ValueError, match="was trained on another base"):
        math.main(["--base", str(bytes_base), "--adapters", str(tmp_path / "foreign"), *out])


def test_adapters_are_recognised_at_either_precision(bytes_base, members, tmp_path):
    """Trained at one precision, evaluated at the other; a question is put by the chat template, if any."""
    flags = ["--adapters", str(members / "step_3" / "S0"), "--device", "cpu", "--dtype"]
    parser = common.parser_of("eval.math", "", 8)
    half = common.load(parser.parse_args([*flags, "bfloat16"]))
    assert half.slots == {"S0": 0, "base": -1} and half.base.model.embedding.dtype == torch.bfloat16
    save_peft(half.adapters, 0, tmp_path / "S1", str(bytes_base), half.base_hash)
    flags = ["--adapters", str(tmp_path / "S1"), "--device", "cpu", "--dtype", "float32"]
    full = common.load(parser.parse_args(flags))
    assert full.base_hash != half.base_hash and list(full.slots) == ["S1", "base"]

    def decode(prompt_format: str) -> str:
        return full.base.tokenizer.decode(answering.put("Why?", prompt_format, full.base))

    assert decode("plain") == "Question: Why?\nAnswer:"
    assert decode("envelope").endswith("User: Why?\nAssistant: <think>")
    template = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}END{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}")
    full.base.tokenizer.chat_template = template
    assert decode("chat") == "<user>Why?END<assistant>"
    picked = answering.pick_prompt_format(parser.parse_args([]), full.base)
    assert picked == "plain", "a base that carries its family's template"
    full.base.tokenizer.chat_template = template.replace("END", "{{ eos_token }}")
    assert answering.pick_prompt_format(parser.parse_args([]), full.base) == "chat"


def test_exit_codes(capsys):
    for raised, code in ((ValueError("mend"), 2), (OSError("disk"), 1), (KeyboardInterrupt(), 130)):
        with pytest.raises(SystemExit) as end:
            common.command("eval.math", lambda: (_ for _ in ()).throw(raised))
        assert end.value.code == code
    assert "eval.math: mend" in capsys.readouterr().err


def test_members_of_a_base_in_int8_are_asked_on_it(bytes_base, tmp_path):
    """As their run's config.json says; on the base without int8 they are refused."""
    from lora import Adapters
    base, run = load_base(str(bytes_base), base_dtype="int8"), tmp_path / "run"
    save_peft(Adapters.on(base.model, 1, 4, 8), 0, run / "step_1" / "S0", str(bytes_base), weights_hash(base.model))
    (run / "step_1" / "state.json").write_text("{}")
    (run / "config.json").write_text(json.dumps(dict(base=str(bytes_base), base_dtype="int8")))
    flags = ["--run", str(run), "--device", "cpu"]
    parser = common.parser_of("eval.math", "", 8)
    assert common.load(parser.parse_args(flags)).base_hash == weights_hash(base.model)
    with pytest.raises(ValueError, match="with its --dtype and --base-dtype"):
        common.load(parser.parse_args([*flags, "--base-dtype", "same"]))
