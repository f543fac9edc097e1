"""Held-out tasks: two splits without a common program, pass@k by hand, the command."""
import json

import numpy as np
import pytest
from tiny_run import rows as rows_of

from eval import stats, summary
from eval.population import heldout
from common import UserError
from measure.shares import wilson
from micro import programs
from tasks.rendering import render
from weights import files_hash, save_peft

CPU = ["--device", "cpu", "--workers", "1"]


def answers(right: dict[str, list[int]], n: int, bench: str = "b") -> list[dict]:
    """Rows of members, given how many of n answers to each item are right."""
    return [dict(bench=bench, id=f"2/{i}", member=name, sample=s, correct=s < c, tokens=5)
            for name, counts in right.items() for i, c in enumerate(counts) for s in range(n)]


def test_no_program_is_in_both_splits_nor_in_the_training_text(base):
    context = base.model.cfg.max_position_embeddings
    for family in heldout.FAMILIES:
        test, validation = (heldout.draw(family, split, 2) for split in heldout.SPLITS)
        texts = [{item.task.message or item.task.program for item in items} for items in (test, validation)]
        assert not texts[0] & texts[1]
        fewer = heldout.draw(family, "test", 1)
        assert fewer == test[:len(fewer)] and len(fewer) == len(heldout.FAMILIES[family][1])
        for item in test + validation:
            if family.startswith("code"):
                reserved = item.task.program + "\n"
            elif family == "math":
                reserved = "\n".join(line[1:] for line in item.task.message.splitlines())
            else:
                continue
            assert heldout.is_seen(item.bench, item.id) or programs.held_out(reserved), item
            prompt = heldout.examiner(None, "micro")[0](item)
            assert len(render(prompt, "micro", base.tokenizer).ids) + heldout.MAX_NEW_TOKENS <= context
    assert [i.id for i in heldout.draw("logic", "test", 2)] == ["2/0", "3/0", "4/0", "2/1", "3/1", "4/1"]
    assert [heldout.is_seen("logic", i) for i in ("2/0", "3/0")] == [True, False] == [heldout.is_seen("math", i) for i in ("1/9", "10/1")]


def test_the_members_mean():
    mine = answers(dict(base=[1, 1, 0, 0], S0=[1, 1, 1, 0], S1=[1, 0, 0, 0]), 1)
    found = {line["member"]: line for line in summary.summarise(mine, 9)}
    assert list(found) == ["base", "S0", "S1", "mean"]
    assert found["mean"]["accuracy"] == 0.5 and found["mean"]["minus_base"] == 0
    assert found["S0"]["minus_base"] == 0.25 and found["mean"]["interval"] == wilson(2, 4)
    both = summary.with_means({name: np.array([x]) for name, x in {"T0": 0.0, "o/step_3/S0": 1.0, "S1": 0.5, "base": 1.0}.items()})
    assert list(both)[0] == "base" and {name: both[name].item() for name in list(both)[-3:]} == {"mean": 0.5, "mean T": 0.0, "mean S": 0.75}


def test_a_question_counts_for_all_or_for_nobody():
    """One on which the sandbox failed for somebody is nobody's, so that every member has the same questions."""
    rows = answers(dict(base=[1, 1], S0=[2, 0]), 2)
    rows[-1]["correct"] = None
    left = summary.comparable(rows)
    assert [row["id"] for row in left] == ["2/0"] * 4 and [line["n"] for line in summary.passes(left)] == [1, 1]


def test_passes_by_hand():
    rows = answers(dict(S0=[4, 2, 0], S1=[4, 4, 1], T0=[0, 0, 0], base=[1, 1, 1]), 4)
    lines = {line["member"]: line for line in summary.passes(rows)}
    assert list(lines) == ["base", "S0", "S1", "T0", "mean", "mean T", "mean S"]
    assert all(line["k"] == [1, 2, 4] and line["n"] == 3 for line in lines.values())
    assert lines["base"]["pass_at"] == pytest.approx([1 / 4, 1 / 2, 1]) and "minus_base" not in lines["base"]
    assert lines["S0"]["pass_at"] == pytest.approx([1 / 2, (1 + 5 / 6) / 3, 2 / 3])
    assert lines["mean S"]["pass_at"] == pytest.approx([5 / 8, (11 / 18 + 5 / 6) / 2, 5 / 6])
    assert lines["mean S"]["minus_base"] == pytest.approx([3 / 8, (11 / 18 + 5 / 6) / 2 - 1 / 2, -1 / 6])
    assert lines["T0"]["pass_at"] == [0, 0, 0] and lines["T0"]["minus_base_intervals"][2] == [-1, -1]
    low, high = lines["S0"]["intervals"][0]
    assert low < 1 / 2 < high and lines["S0"]["minus_base_intervals"][0][0] == pytest.approx(low - 1 / 4)


def test_coverage_by_hand():
    """Two students, of four answers to each of three questions so many right: one answer of each, or two of one."""
    assert stats.covered([(4, 2), (4, 1)], 2) == pytest.approx(1 - 1 / 2 * 3 / 4)
    assert stats.covered([(4, 2)], 2) == stats.pass_at_k(4, 2, 2) and stats.covered([(4, 2), (4, 1)], 4) == pytest.approx(1 - 1 / 6 * 1 / 2)
    with pytest.raises(UserError, match="3 answers cannot be dealt out evenly to 2 members"):
        stats.covered([(4, 2), (4, 1)], 3)
    rows = answers(dict(S0=[4, 2, 0], S1=[0, 2, 1], T0=[4, 4, 4], base=[1, 1, 1]), 4)
    (line,) = summary.coverage(rows)
    alone = [(1 + 5 / 6 + 0) / 3, (0 + 5 / 6 + 1 / 2) / 3]
    assert (line["k"], line["n"], line["best"]) == (2, 3, "S0"), "teachers and the base do not count"
    assert line["members"] == pytest.approx((1 + 3 / 4 + 1 / 4) / 3) and line["best_one"] == pytest.approx(alone[0])
    assert line["one"] == pytest.approx(sum(alone) / 2) and line["minus_best"][0] < line["members"] - line["best_one"] < line["minus_best"][1]
    assert summary.coverage(answers(dict(S0=[1], S1=[1]), 1)) == [] == summary.coverage(answers(dict(S0=[1, 1], base=[0, 0]), 4))


# ---- the command -------------------------------------------------------------------------------------------

@pytest.fixture
def two_members(base, micro_base, population, tmp_path):
    """Flags that name two adapters, T0 and S0, which differ from the base a little."""
    adapters = population(base, 2, b_std=0.01)
    for slot, name in enumerate(("T0", "S0")):
        save_peft(adapters, slot, tmp_path / "members" / name, str(micro_base), files_hash(base.path))
    return ["--adapters", str(tmp_path / "members"), *CPU]


def test_heldout_goes_on(two_members, tmp_path, capsys):
    out = tmp_path / "o"
    flags = [*two_members, "--bench", "code_o,logic", "--out", str(out)]
    assert heldout.main([*flags, "--limit", "6"]) == 0
    assert "minus base" in capsys.readouterr().out
    first = rows_of(out, "answers")
    assert len(first) == (6 + 6) * 3 and {r["verdict"] for r in first} <= {"correct", "wrong", "malformed"}
    found = json.loads((out / "summary.json").read_text())
    assert [line["n"] for line in found["results"] if line["member"] == "mean S"] == [5, 4, 9], "of size 1 (logic: 2) none"
    assert any(line["accuracy"] > 0 for line in found["results"]), "the micro base solves some of these"
    assert [row["id"] for row in rows_of(out, "items")[:6]] == [f"{size}/0" for size in range(1, 7)]
    assert heldout.main([*flags, "--limit", "8"]) == 0
    assert rows_of(out, "answers")[:len(first)] == first, "what is on disk is not generated again"
    with pytest.raises(UserError, match="made otherwise: temperature"):
        heldout.main([*flags, "--temperature", "1", "--limit", "2"])
    with pytest.raises(UserError, match="made otherwise: data code_o"):   # of another split
        heldout.main([*flags, "--split", "validation", "--limit", "2"])


def test_several_answers_tell_pass_at_k(two_members, tmp_path, capsys):
    flags = [*two_members, "--bench", "code_o,code_o_long", "--limit", "6", "--out", str(tmp_path / "o")]
    assert heldout.main([*flags, "--samples", "2"]) == 0
    first = (tmp_path / "o/answers.jsonl").read_bytes()
    assert heldout.main([*flags, "--samples", "4"]) == 0
    found, rows = json.loads((tmp_path / "o/summary.json").read_text()), rows_of(tmp_path / "o", "answers")
    assert (tmp_path / "o/answers.jsonl").read_bytes().startswith(first), "what is on disk is not asked again"
    assert found["temperature"] == 1 and found["samples"] == 4 and "pass@k: the chance" in capsys.readouterr().out
    assert len(rows) == (6 + 6) * 3 * 4 and {row["correct"] for row in rows} == {True, False}
    lines = {(line["bench"], line["member"]): line for line in found["pass_at_k"]}
    assert found["coverage"] == [], "of one student there is none"
    assert [lines[bench, "base"]["n"] for bench in ("code_o", "code_o_long", "all")] == [5, 6, 11]
    of_one = [row["correct"] for row in rows if row["bench"] == "code_o_long" and row["member"] == "base"]
    assert lines["code_o_long", "base"]["pass_at"][0] == pytest.approx(np.mean(of_one))


def test_what_a_user_gets_wrong_in_heldout_is_said(two_members, tmp_path, tiny):
    out = ["--out", str(tmp_path / "o")]
    for words, match in (("--bench code_0", "did you mean code_o"), (f"--run {tmp_path}", "no complete checkpoint there"),
                         ("--samples 2 --temperature 0", "--samples 2 at temperature 0 .* or one sample")):
        with pytest.raises(UserError, match=match):
            heldout.main([*two_members, *words.split(), *out])
    with pytest.raises(UserError, match="--bench math: its questions are written in the micro prompt format"):
        heldout.main(["--base", str(tiny.path), "--bench", "math", *CPU, *out])
    assert not (tmp_path / "o/answers.jsonl").exists(), "said before the work, not after it"
