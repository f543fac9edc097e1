"""eval.answering: rows end where their format says, calls of many batches give the same answers, kills lose little."""
import dataclasses
import json
from collections import Counter
from dataclasses import dataclass

import pytest

from eval import answering, common
from eval.code import __main__ as code
from eval.code.problems import Problem
from eval.math import __main__ as math
from eval.math.grading import extract
from run.checkpoint import RunDir
from tasks.prompts import FORMATS


@dataclass(frozen=True)
class Item:
    bench: str
    id: str


ITEMS = [Item("sums", str(i)) for i in range(12)]


def judge(answers):
    return [dict(correct=len(text) % 2 == 0) for _, text in answers]


@pytest.fixture(scope="module")
def population(members):
    return common.load(common.parser_of("eval.math", "", 8).parse_args(["--run", str(members), "--device", "cpu"]))


def flags(*more: str):
    return common.parser_of("eval.math", "", 24).parse_args(["--temperature", "1", "--rollout-batch", "6", *more])


def ask_all(population, out, args, prompt_format="plain", judge=judge):
    """All rows, as answers.jsonl in `out` has them afterwards."""
    run = RunDir(out)
    return answering.answer_all(population, ITEMS, lambda item: f"What is {item.id} + 1?", judge, args, run,
                                common.saved_answers(run), prompt_format)


# ---------------------------------------------------------------- the end of an answer

def test_rows_of_the_envelope_end_at_its_closing_text(population, tmp_path, monkeypatch):
    args = flags("--max-new-tokens", "60")
    whole = [row["text"] for row in ask_all(population, tmp_path / "whole", args, "envelope")]
    printable = Counter(c for text in whole for c in text[:30] if "!" <= c <= "~")
    closing, n = printable.most_common(1)[0]
    assert n > 5 and answering.closing_text("envelope") == "</answer>"
    assert answering.closing_text("plain") == "" == answering.closing_text("chat")
    monkeypatch.setitem(FORMATS, "base", dataclasses.replace(FORMATS["base"], closing=closing))
    ended = ask_all(population, tmp_path / "ended", args, "envelope")
    for text, row in zip(whole, ended, strict=True):
        first, tag, _ = text.partition(closing)
        assert row["text"] == first + tag
    assert sum(row["tokens"] < 60 for row in ended) > n / 2, "what is not written costs nothing"


RUNS_ON = ("It is 3 + 4.</think> <answer>{}</answer>\nUser: What is 4 + 5?\nAssistant: <think>It is 9.</think> "
           "<answer>{}</answer>\nThe answer is $\\boxed{{11}}$.")


def test_the_first_answer_in_the_envelope_counts():
    assert extract(RUNS_ON.format("7", "9")) == "7"
    assert extract(RUNS_ON.format("\\boxed{7}? No, \\boxed{8}", "9")) == "8", "of one answer the last box"
    assert extract(RUNS_ON.format("The answer is 7.", "9")) == "7"
    first, other = "def f(x):\n    return x", "def f(x):\n    y = x\n    return y + 1"
    text = RUNS_ON.format(f"\n```python\n{first}\n```\n", f"\n```python\n{other}\n```\n")
    for bench in ("mbpp+", "livecodebench5"):
        assert code.program(Problem(bench, "1", "Write f.", "f"), text, "envelope").strip() == first


# ---------------------------------------------------------------- calls, kills

@pytest.fixture
def calls(monkeypatch):
    """How many rows each call of generate was given."""
    sizes, generate = [], answering.generate

    def counting(base, adapters, prompts, member, keys, *rest, **more):
        sizes.append(len(keys))
        return generate(base, adapters, prompts, member, keys, *rest, **more)

    monkeypatch.setattr(answering, "generate", counting)
    return sizes


def test_a_call_is_so_many_tokens_and_the_answers_stay(population, tmp_path, calls, monkeypatch):
    args = flags("--samples", "2")
    rows = ask_all(population, tmp_path / "one", args)
    assert len(rows) == 12 * 3 * 2 and calls == [72], "little is asked at once"
    for n_tokens, wanted in ((6 * 24 * 2, [12] * 6), (6 * 24 * 3 - 1, [12] * 6), (6 * 24 * 5, [30, 30, 12]), (1, [6] * 12)):
        calls.clear()
        monkeypatch.setattr(answering, "CALL_TOKENS", n_tokens)
        assert ask_all(population, tmp_path / str(n_tokens), args) == rows and calls == wanted
        calls.clear()
        assert ask_all(population, tmp_path / str(n_tokens), args) == rows and not calls


def test_after_a_kill_the_remaining_calls_are_the_same(population, tmp_path, monkeypatch):
    """Each with the same rows: where the last bits hang on the batch, the answers are those of a run that was not killed."""
    asked, generate, n_judged = [], answering.generate, 0

    def noting(base, adapters, prompts, member, keys, *rest, **more):
        asked.append(keys)
        return generate(base, adapters, prompts, member, keys, *rest, **more)

    def failing(answers):
        nonlocal n_judged
        n_judged += len(answers)
        if n_judged > 20:
            raise RuntimeError("the sandbox has ended")
        return judge(answers)

    monkeypatch.setattr(answering, "generate", noting)
    monkeypatch.setattr(answering, "CALL_TOKENS", 6 * 24 * 2)
    rows, whole = ask_all(population, tmp_path / "whole", flags()), list(asked)
    assert [len(keys) for keys in whole] == [12, 12, 12]
    asked.clear()
    with pytest.raises(RuntimeError, match="sandbox"):
        ask_all(population, tmp_path / "killed", flags(), judge=failing)
    assert asked == whole[:2] and len((tmp_path / "killed/answers.jsonl").read_text().splitlines()) == 12
    asked.clear()
    assert ask_all(population, tmp_path / "killed", flags()) == rows and asked == whole[1:]
    texts = [(tmp_path / name / "answers.jsonl").read_bytes() for name in ("whole", "killed")]
    assert texts[0] == texts[1]


# ---------------------------------------------------------------- --against

def test_the_other_answers_are_read_once(members, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    data.mkdir()
    sums = [json.dumps(dict(id=i, problem=f"What is {i} + {i}?", answer=str(2 * i))) for i in range(3)]
    (data / "aime24.jsonl").write_text("\n".join(sums))
    common_flags = ["--run", str(members), "--data", str(data), "--device", "cpu", "--max-new-tokens", "4"]
    assert math.main([*common_flags, "--out", str(tmp_path / "other")]) == 0
    read, rows = [], RunDir.rows

    def counting(self, name, size):
        read.append(self.path.name)
        return rows(self, name, size)

    monkeypatch.setattr(RunDir, "rows", counting)
    assert math.main([*common_flags, "--out", str(tmp_path / "mine"), "--against", str(tmp_path / "other")]) == 0
    assert read == ["other"], "nothing of our own was there to read"
    summary = json.loads((tmp_path / "mine/summary.json").read_text())
    assert [line["difference"] for line in summary["differences"]] == [0.0] * len(summary["results"])
    with pytest.raises(ValueError, match="those answers were made otherwise: max_new"):
        math.main([*common_flags[:-1], "5", "--out", str(tmp_path / "more"), "--against", str(tmp_path / "other")])
    assert not (tmp_path / "more/answers.jsonl").exists(), "said before hours of work"
    with pytest.raises(ValueError, match="no answers.jsonl there nor in its eval-math/"):
        math.main([*common_flags, "--out", str(tmp_path / "more"), "--against", str(tmp_path)])
