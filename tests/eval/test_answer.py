"""What all benchmarks share: answers are resumed and keyed, tables count right, what a user gets wrong is said."""
import json
import shutil

import numpy as np
import pytest

from common import UserError, wilson
from eval import answer
from eval.answer import NOT_PLAIN, Item, answer_all, load, open_results, parser, summarise, table
from tasks.base import UNJUDGED
from tasks.prompts import Prompt

ITEMS = [Item("sums", str(i), Prompt(f"out\ndef f(x):\n x+={i}\n return x\nf(4)\n"), i + 4) for i in range(5)]


def judge(asked):
    return [dict(verdict="correct" if text.strip() == f"={item.gold}" else "wrong") for item, text in asked]


def flags(run, out, *more):
    return parser("heldout", "", 24).parse_args(["--run", str(run), "--out", str(out), "--device", "cpu", *more])


def ask(args, judge=judge, items=ITEMS):
    setup, slots = load(args)
    return answer_all(args, open_results(args, "x", setup, slots), setup, slots, items, judge)


def test_answers_go_on_where_they_stopped_and_do_not_depend_on_who_stands_beside(run, tmp_path, monkeypatch):
    """A killed command, resumed in calls of three rows, writes what one call of all writes; so does a member alone."""
    sampled = "--temperature", "1", "--samples", "2"
    whole = ask(flags(run, tmp_path / "whole", *sampled))
    assert len(whole) == 5 * 4 * 2 and {row["member"] for row in whole} == {"T0", "S0", "S1", "base"}
    assert any(row["correct"] for row in whole) and len({row["text"] for row in whole}) > 5
    monkeypatch.setattr(answer, "CALL_BATCHES", 1)
    calls = []

    def failing(asked):
        calls.append(len(asked))
        if len(calls) > 3:
            raise KeyboardInterrupt
        return judge(asked)

    small = flags(run, tmp_path / "killed", *sampled, "--rollout-batch", "6")
    with pytest.raises(KeyboardInterrupt):
        ask(small, failing)
    file = tmp_path / "killed/answers.jsonl"
    assert calls == [6] * 4 and len(file.read_text().splitlines()) == 18
    first, *others = file.read_text().splitlines(True)          # a lost sample, as of a failed sandbox, and half a line
    file.write_text("".join(others) + '{"bench": "sums", "id": "4')
    again = ask(small)

    def place(row):
        return row["id"], row["member"], row["sample"]
    assert sorted(again, key=place) == sorted(whole, key=place)
    alone = parser("heldout", "", 24).parse_args(["--adapters", str(run / "step_3/S1"), "--out", str(tmp_path / "alone"), *sampled])
    assert sorted(ask(alone), key=place) == sorted((r for r in whole if r["member"] in ("S1", "base")), key=place)
    for more, changed in ((("--seed", "3"), "seed"), (("--samples", "1"), "samples"), (("--max-new-tokens", "9"), "max_new_tokens")):
        with pytest.raises(UserError, match=f"made otherwise .*{changed}"):
            ask(flags(run, tmp_path / "whole", *sampled, *more))
    made = tmp_path / "whole/made.json"
    was = made.read_text()
    made.write_text(was.replace('"base_hash": "', '"base_hash": "0'))           # another base, whose member is "base", too
    with pytest.raises(UserError, match=r"made otherwise \(base_hash\)"):
        ask(flags(run, tmp_path / "whole", *sampled))
    made.write_text(was)
    shutil.rmtree(run / "step_3/S0")
    shutil.copytree(run / "step_3/S1", run / "step_3/S0")                      # S0 has learned since
    with pytest.raises(UserError, match=r"made otherwise \(S0\)"):
        ask(flags(run, tmp_path / "whole", *sampled))


def test_a_question_that_does_not_fit_is_named(run, tmp_path):
    long = Item("sums", "long", Prompt("out\n" + " x=1\n" * 300), 1)
    with pytest.raises(UserError, match="sums long has [0-9]+ tokens, which with --max-new-tokens 24 exceed the base's context of 256"):
        ask(flags(run, tmp_path / "o"), items=[*ITEMS, long])


def test_who_answers(run, tmp_path, micro_base):
    """A run is its best checkpoint, names that come twice have their directories, a checkpoint and an adapter go, too."""
    shutil.copytree(run / "step_3", run / "step_5")
    args = flags(run, tmp_path / "o")
    args.adapters = [str(run / "step_3/T0")]
    assert list(load(args)[1]) == [str(run / place) for place in ("step_5/T0", "step_5/S0", "step_5/S1", "step_3/T0")] + ["base"]
    shutil.rmtree(run / "step_5/S1")
    (run / "best").symlink_to("step_5")
    assert list(load(flags(run, tmp_path / "o"))[1]) == ["T0", "S0", "base"]
    for words, match in ((["--adapters", str(micro_base)], "holds no adapter: give a run"), ([], "give --base")):
        with pytest.raises(UserError, match=match):
            load(parser("math", "", 24).parse_args(words))
    (run / "config.json").write_text(json.dumps(dict(prompt_format="direct")))
    for words in (["--run", str(run)], ["--adapters", str(run)]):
        assert load(parser("math", "", 24).parse_args(words))[0].base.prompt_format == "direct", "the run's own"
    with pytest.raises(UserError, match="at temperature 0 are as many times the same answer"):
        ask(flags(run, tmp_path / "o", "--samples", "3"))
    for words in (["--samples", "0"], ["--temperature", "-1"]):
        with pytest.raises(UserError, match="--samples is at least 1"):
            ask(flags(run, tmp_path / "o", *words))


def rows_of(right: dict[str, list[list[str]]]) -> list[dict]:
    """Rows of members, by the letters of each question's verdicts: c, w, m, u, n."""
    words = dict(c="correct", w="wrong", m="malformed", u=UNJUDGED, n=NOT_PLAIN)
    rows = []
    for member, questions in right.items():
        for id, letters in enumerate(questions):
            for sample, letter in enumerate(letters):
                correct = None if letter in "un" else letter == "c"
                rows.append(dict(bench="b", id=str(id), member=member, sample=sample, verdict=words[letter], correct=correct))
    return rows


def test_the_table_by_hand(tmp_path, capsys):
    """Two samples a question; a question that is not judged for one counts for nobody."""
    rows = rows_of(dict(S0=["cc", "cw", "mw", "uc"], S1=["cw", "cc", "ww", "cc"], base=["cw", "ww", "mm", "cc"]))
    found = {line["member"]: line for line in summarise(rows)}
    assert list(found) == ["S0", "S1", "base", "mean S"] and {line["n"] for line in found.values()} == {3}
    assert [found[name]["accuracy"] for name in found] == pytest.approx([3 / 6, 3 / 6, 1 / 6, 3 / 6])
    assert found["S0"]["interval"] == wilson(1.5, 3) and found["base"]["minus_base"] == 0
    assert found["S0"]["minus_base"] == pytest.approx(1 / 3) and found["S0"]["minus_base_interval"][0] >= 0
    assert [found[name]["pass@2"] for name in ("S0", "S1", "base")] == pytest.approx([2 / 3, 2 / 3, 1 / 3])
    assert found["base"]["malformed"] == 2 / 8 and "pass@2" not in found["mean S"]
    lines = table([dict(a=1, b=(0.25, 1.0)), dict(a="xyz", c=np.float64(0.5))]).split("\n")
    assert lines == ["a    b               c", "1    0.250 .. 1.000", "xyz                  0.500"]
    out = answer.RunDir(tmp_path / "o")
    answer.conclude(out, rows + rows_of(dict(S9=["n"])))
    assert "1 questions count for nobody (not plain: give answers.jsonl to EvalPlus): 0" in capsys.readouterr().out
    assert json.loads((tmp_path / "o/summary.json").read_text())[0]["bench"] == "b"
