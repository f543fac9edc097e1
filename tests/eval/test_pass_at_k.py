"""pass@k: the estimator by hand and by simulation, intervals, tables, longer tasks, the command."""
import ast
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

from eval import stats, summary
from eval.population import heldout
from micro import data, programs
from tasks import TASK_TYPES
from tasks.base import Task
from tasks.prompts import render
from tasks.validation import Limits
from weights import files_hash, save_peft

CPU = ["--device", "cpu", "--workers", "1"]
BY_HAND = {                                        # (answers, right ones, k): 1 - C(n-c, k) / C(n, k)
    (2, 1, 1): Fraction(1, 2), (4, 1, 2): Fraction(1, 2), (4, 2, 2): Fraction(5, 6),
    (5, 1, 3): Fraction(3, 5), (6, 2, 3): Fraction(4, 5), (8, 2, 4): Fraction(11, 14),
    (10, 3, 4): Fraction(5, 6), (16, 1, 8): Fraction(1, 2), (16, 4, 8): Fraction(25, 26),
    (16, 1, 16): Fraction(1), (16, 0, 16): Fraction(0), (3, 3, 1): Fraction(1), (5, 4, 2): Fraction(1),
    (1, 0, 1): Fraction(0)}


def test_pass_at_k_by_hand():
    for (n, c, k), value in BY_HAND.items():
        assert stats.pass_at_k(n, c, k) == pytest.approx(float(value), abs=1e-15), (n, c, k)


def test_pass_at_k_is_the_share_of_sets_with_a_right_answer():
    for n in range(1, 7):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            right = [True] * c + [False] * (n - c)
            sets = [any(some) for some in itertools.combinations(right, k)]
            assert stats.pass_at_k(n, c, k) == pytest.approx(np.mean(sets), abs=1e-15), (n, c, k)


@pytest.mark.parametrize("n, c, k", [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2), (0, 0, 1)])
def test_pass_at_k_refuses_what_it_cannot_estimate(n, c, k):
    with pytest.raises(ValueError, match="--samples draws more"):
        stats.pass_at_k(n, c, k)


# ---- tables ------------------------------------------------------------------------------------------------

def answers(right: dict[str, list[int]], n: int, bench: str = "b", **more) -> list[dict]:
    """Rows of members, given how many of n answers to each item are right."""
    return [dict(bench=bench, id=str(i), member=name, sample=s, correct=s < c, tokens=5, **more)
            for name, counts in right.items() for i, c in enumerate(counts) for s in range(n)]


def test_passes_by_hand():
    rows = answers(dict(S0=[4, 2, 0], S1=[4, 4, 1], T0=[0, 0, 0], base=[1, 1, 1]), 4)
    lines = {line["member"]: line for line in summary.passes(rows)}
    assert list(lines) == ["base", "S0", "S1", "T0", "mean", "mean T", "mean S"]
    assert all(line["k"] == [1, 2, 4] and line["n"] == 3 for line in lines.values())
    assert lines["base"]["pass_at"] == pytest.approx([1 / 4, 1 / 2, 1]) and "minus_base" not in lines["base"]
    assert lines["S0"]["pass_at"] == pytest.approx([1 / 2, (1 + 5 / 6) / 3, 2 / 3])
    assert lines["S1"]["pass_at"] == pytest.approx([3 / 4, 5 / 6, 1])
    assert lines["mean S"]["pass_at"] == pytest.approx([5 / 8, (11 / 18 + 5 / 6) / 2, 5 / 6])
    assert lines["mean S"]["minus_base"] == pytest.approx([3 / 8, (11 / 18 + 5 / 6) / 2 - 1 / 2, -1 / 6])
    assert lines["T0"]["pass_at"] == [0, 0, 0] and lines["T0"]["minus_base_intervals"][2] == [-1, -1]
    low, high = lines["S0"]["intervals"][0]
    assert low < 1 / 2 < high and lines["S0"]["minus_base_intervals"][0][0] == pytest.approx(low - 1 / 4)
    six, = summary.passes(answers(dict(base=[1]), 6))
    assert six["k"] == [1, 2, 4], "powers of two up to n"
    half = answers(dict(base=[1, 1]), 4) + answers(dict(S0=[2]), 4)
    assert [line["n"] for line in summary.passes(half)] == [1, 1], "on the tasks that all have answered"


def test_the_table_fits_a_terminal_and_shows_gains():
    names = ["base", *(f"{role}{i}" for role in "TS" for i in range(4))]
    rng, rows = np.random.default_rng(0), []
    for bench in ("code_o_long", "math"):
        rows += answers({name: rng.integers(17, size=30).tolist() for name in names}, 16, bench)
    table = summary.pass_table(summary.passes(rows)).splitlines()
    assert max(map(len, table)) <= 110 and len(table) == 1 + 2 * (9 + 3)
    assert table[0].split() == ["bench", "n", "member", "@1", "@2", "@4", "@8", "@16", "minus", "base", "@1", "minus", "base", "@16"]
    gain = summary.passes(answers(dict(S0=[16] * 20 + [0] * 20, base=[4] * 40), 16))
    assert " +0.25 (" in summary.pass_table(gain) and summary.pass_table(gain).splitlines()[1].endswith("1.00")


# ---- tasks beyond the base's training, answers that think --------------------------------------------------

def test_long_programs_are_reserved_and_fit_the_context(base):
    context, longest = base.model.cfg.max_position_embeddings, len(programs.N_STATEMENTS) - 1
    test, validation = (heldout.draw(heldout.LONG, split, 12) for split in heldout.SPLITS)
    assert not {i.task.program for i in test} & {i.task.program for i in validation}
    assert sorted({item.size for item in test}) == [7, 8, 9, 10] and longest == 6
    for item in test + validation:
        body = item.task.program.splitlines()[1:-1]
        assert len(body) == item.size and item.task.kind == "code_o" and not item.seen
        assert programs.held_out(item.task.program + "\n")
        x = ast.literal_eval(item.task.inputs[0])
        y, trace = programs.run([line[1:] for line in body], x)
        gold = data.out_answer(programs.Program(tuple(body), x, y, trace))
        n_answer = len(base.tokenizer(gold).input_ids) + 1
        n_prompt = len(render(heldout.asking("micro")(item), "micro", base.tokenizer))
        assert n_answer <= heldout.MICRO_MAX_NEW and n_prompt + heldout.MICRO_MAX_NEW <= context


def test_long_programs_are_no_part_of_the_sums():
    rows = answers(dict(base=[1]), 2, "code_o", size=2, seen=False)
    rows += answers(dict(base=[0]), 2, heldout.LONG, size=7, seen=False)
    rows += answers(dict(base=[0]), 2, "math", size=1, seen=True)
    assert [(row["bench"], row["id"]) for row in heldout.counted(rows)[::2]] == \
        [("code_o", "0"), (heldout.LONG, "0"), ("all", "code_o/0")]
    assert heldout.LONG not in heldout.families_for("micro"), "retention asks what it always did"


def test_thinking_is_read_from_the_text():
    task = Task("code_o", "def f(x):\n x=x+1\n return x", ("1",), ("2",), "", "")
    item = heldout.Item("code_o", "2/1", 2, False, task)
    rows = [dict(bench="code_o", id="2/1", member=name, sample=0, correct=True, tokens=tokens, text=text)
            for name, tokens, text in (("base", 3, "=2"), ("S0", 9, ">2\n=2"), ("S1", 3, "=2"))]
    heldout.note_thinking(rows, [item], "micro")
    assert [row["think"] for row in rows] == [False, True, False]
    lines = {line["member"]: line for line in summary.summarise(rows, 96)}
    assert lines["S0"]["think"] == 1 and lines["mean"]["think"] == 0.5 and lines["mean"]["tokens"] == 6
    assert "think" in summary.table(list(lines.values()))
    untold = [dict(row, text="2\n```") for row in rows]
    for row in untold:
        del row["think"]
    heldout.note_thinking(untold, [item], "direct")
    assert "think" not in untold[0] and "think" not in summary.table(summary.summarise(untold, 96))
    answered = "</think><answer>2</answer>"
    for text, thinks in ((f"I add one.{answered}", True), (answered, False)):
        enveloped = [dict(rows[0], text=text)]
        heldout.note_thinking(enveloped, [item], "base")
        assert TASK_TYPES["code_o"].solve("base", task, Limits.for_format("base")).prefix == "<think>"
        assert enveloped[0]["think"] is thinks, text


# ---- the command -------------------------------------------------------------------------------------------

@pytest.fixture
def two_members(base, micro_base, population, tmp_path):
    """Flags that name two adapters, T0 and S0, which differ from the base a little."""
    adapters = population(base, 2, b_std=0.01)
    for slot, name in enumerate(("T0", "S0")):
        save_peft(adapters, slot, tmp_path / "members" / name, str(micro_base), files_hash(base.path))
    return ["--adapters", str(tmp_path / "members"), *CPU]


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_several_answers_tell_pass_at_k(two_members, tmp_path, capsys):
    flags = [*two_members, "--bench", "code_o,code_o_long", "--limit", "6", "--out", str(tmp_path / "o")]
    assert heldout.main([*flags, "--samples", "2"]) == 0
    first = (tmp_path / "o/answers.jsonl").read_bytes()
    capsys.readouterr()
    assert heldout.main([*flags, "--samples", "4"]) == 0
    told, found = capsys.readouterr().out, json.loads((tmp_path / "o/summary.json").read_text())
    assert (tmp_path / "o/answers.jsonl").read_bytes().startswith(first), "what is on disk is not asked again"
    assert told.startswith("temperature 1") and found["temperature"] == 1 and found["samples"] == 4
    assert max(len(line) for line in told.splitlines() if "every answer" not in line) <= 110
    assert "pass@k: the chance" in told and "minus base @4" in told
    rows = lines_of(tmp_path / "o/answers.jsonl")
    assert len(rows) == (6 + 6) * 3 * 4 and {row["correct"] for row in rows} == {True, False}
    benches = {line["bench"]: line["n"] for line in found["pass_at_k"]}
    assert benches == {"code_o": 5, "code_o_long": 6, "all": 5}
    assert {line["member"] for line in found["pass_at_k"]} == {"base", "T0", "S0", "mean", "mean T", "mean S"}
    shown = {(line["bench"], line["member"]): line for line in found["results"]}
    of_one = [row for row in rows if (row["bench"], row["member"]) == ("code_o_long", "S0")]
    traced = [row["text"].startswith(">") for row in of_one]
    assert shown["code_o_long", "S0"]["think"] == pytest.approx(np.mean(traced))


def test_one_answer_is_greedy_as_ever_and_several_are_not(two_members, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, folder, temperature in (("", "eval-heldout", 0), ("--samples 2", "eval-heldout-t1", 1),
                                       ("--samples 2 --temperature 0.5", "eval-heldout-t0.5", 0.5)):
        assert heldout.main([*two_members, "--limit", "2", "--bench", "logic,math", *words.split()]) == 0
        told = capsys.readouterr().out
        found = json.loads((tmp_path / "out" / folder / "summary.json").read_text())
        assert found["temperature"] == temperature
        assert ("pass_at_k" in found) is bool(words) is ("pass@" in told)
    with pytest.raises(ValueError, match="--samples 2 at temperature 0 .* or one sample"):
        heldout.main([*two_members, "--samples", "2", "--temperature", "0"])
    with pytest.raises(ValueError, match="--limit 1: the base may know .* give 2 or more"):
        heldout.main([*two_members, "--limit", "1", "--bench", "logic"])
    with pytest.raises(SystemExit):
        heldout.main(["--help"])
    assert "0 with one sample, 1 (as in training)" in " ".join(capsys.readouterr().out.split())


def test_wilson_interval():
    """Newcombe 1998, table I: 81/263 and 15/148; and the ends."""
    for right, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert stats.wilson(right, n) == pytest.approx((low, high), abs=1e-4)
    assert stats.wilson(0, 0) == (0, 1) and stats.wilson(20, 20)[1] == 1
