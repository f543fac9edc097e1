"""The numbers of docs/real.md and of the thousand steps are those of docs/results."""
import json
import re
from pathlib import Path

import pytest

from eval.summary import passes, summarise

DOCS = Path(__file__).resolve().parents[2] / "docs"
LAP = 4                                     # steps in which the 16 tasks of a pilot come once


def short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def packed(name: str) -> dict:
    """The run of this name."""
    lines = (DOCS / "results" / "real.jsonl").read_text().splitlines()
    run, = (run for run in map(json.loads, lines) if run["run"] == name)
    return run


ARMS = {                                    # first cell of the page's table: name of the run
    "1e-9, 32, 0": "r32-1e-9",
    "3e-5, 32, 0": "r32-3e-5",
    "1e-4, 32, 0": "r32-1e-4",
    "2e-4, 32, 0": "r32-2e-4",
    "1e-4, 8, 0": "r8-1e-4",
    "3e-5, 32, 1": "r32-3e-5-s1",
    "1e-4, 32, 1": "r32-1e-4-s1",
    "1e-4, 32, 0, `chat`": "chat-1e-4",
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_laps_of_the_pilots(arm):
    rate, rank, seed = arm.split(", ")[:3]
    run = packed(ARMS[arm])
    flags = run["flags"]
    assert (flags["lr"], flags["rank"], flags["seed"]) == (float(rate), int(rank), int(seed))
    steps = run["steps"]

    def laps(of) -> list[str]:
        return [short(sum(map(of, steps[i:i + LAP])) / LAP) for i in range(0, len(steps), LAP)]
    entropy = laps(lambda row: row["entropy"]["S0"])
    said = [", ".join(laps(lambda row: row["solve_rate"])), ", ".join(laps(lambda row: row["malformed"])),
            f"{entropy[0]}, {entropy[2]}", laps(lambda row: row["frac_zero_advantage"])[2]]
    row, = re.findall(rf"^\| {re.escape(arm)} \| (.*?) \|$", (DOCS / "real.md").read_text(), re.MULTILINE)
    cells = row.split(" | ")
    assert [cells[0], cells[1], cells[3], cells[4]] == said


def test_thinking_ends_in_chat():
    steps = packed("chat-1e-4")["steps"]
    think = [row["think"] for row in steps]
    written = [row["tokens_generated"] for row in steps]
    page = (DOCS / "real.md").read_text()
    assert min(think[:4]) > .9 and think[4] == pytest.approx(1 / 3, abs=.03) and think[7:] == [0] * 5
    assert f"({written[3] / 128:.0f} tokens an\nanswer" in page and f"an answer has {(written[11] - written[7]) / 128:.0f} tokens" in page


def test_self_play_on_a_core():
    words = " ".join((DOCS / "real.md").read_text().split())
    for name in "selfplay-0", "slow-teachers":
        steps = packed(name)["steps"]
        assert f"({len(steps)} of 150 steps, {steps[-1]['tokens_generated']:,} tokens)" in words


def on_the_card(part: str, samples: int = 1) -> list[dict]:
    """The answers of a part as rows of answers.jsonl."""
    rows = []
    for line in map(json.loads, (DOCS / "results" / "real-card-answers.jsonl").read_text().splitlines()):
        for i, (letter, tokens) in enumerate(zip(line["verdicts"], line["tokens"], strict=True)):
            if line["part"] == part:
                rows.append(dict(bench=line["bench"], member=line["member"], id=i // samples, sample=i % samples, tokens=tokens,
                                 correct=letter == "c", verdict=dict(c="correct", w="wrong", m="malformed")[letter]))
    return rows


def signed(value: float) -> str:
    words = short(abs(value))
    return words if words == ".00" else f"{'+' if value > 0 else '-'}{words}"


def repeats(member: str) -> list[str]:
    """Inputs of cruxeval-i that are the output given again, (right ones), and other right ones."""
    lines = map(json.loads, (DOCS / "results" / "real-card-answers.jsonl").read_text().splitlines())
    line, = (line for line in lines if (line["part"], line["bench"], line["member"]) == ("crux", "cruxeval-i", member))
    right = [letter == "c" for letter in line["verdicts"]]
    copied = [mark == "1" for mark in line["copied"]]
    n = sum(a and b for a, b in zip(right, copied, strict=True))
    return [f"{sum(copied)} ({n})", str(sum(right) - n)]


def test_the_runs_on_a_card():
    """The table, row by row; tokens; how often given 0 is cut off."""
    page = (DOCS / "real.md").read_text()
    words = " ".join(page.split())
    found = {(line["bench"], line["member"]): line for line in summarise(on_the_card("crux"), 96)}
    written = {}
    for name in "given-0", "given-1", "self-0", "self-1", "preset-0", "single-0", "fixed-0":
        run = packed(name)
        steps, flags = run["steps"], run["flags"]
        cells = [name.replace("-", " ")]
        for bench in "cruxeval-o", "cruxeval-i":
            line = found[bench, name]
            low, high = map(signed, line["minus_base_interval"])
            cells.append(f"{signed(line['minus_base'])} ({low} to {high})")
        cells += repeats(name)
        for key in "valid", "frac_zero_advantage":
            parts = [[row[key] for row in part if key in row] for part in (steps[:10], steps[-10:])]
            cells.append("" if "given" in name and key == "valid" else ", ".join(short(sum(part) / len(part)) for part in parts))
        assert f"| {' | '.join(cells)} |" in page, cells
        assert flags["seed"] == int(name[-1]) and flags["steps"] == 45 and len(steps) == dict([("self-0", 44), ("fixed-0", 43)]).get(name, 45)
        written[name] = f"{steps[-1]['tokens_generated']:,}"
    assert f"| base | | | {' | '.join(repeats('base'))} | | |" in page
    assert f"solves {short(found['cruxeval-o', 'base']['accuracy'])} of `cruxeval-o` and {short(found['cruxeval-i', 'base']['accuracy'])} of" in words
    assert "*given* wrote {given-0} and {given-1} tokens, *self* {self-0} and {self-1}".format_map(written) in words
    assert found["cruxeval-o", "given-0"]["cut"] > .9
    assert f"is right for {sum(row['correct'] for row in on_the_card('repeated output'))} of the 300" in words
    middle, end = (row["heldout_by_type"]["code_i"]["S0"] for row in packed("single-0")["steps"][15::29])
    assert f"{short(middle)} of the 100 held-out inputs at step 15, {short(end)} at the end" in words
    malformed = {name: [short(found[bench, name]["malformed"]) for bench in ("cruxeval-o", "cruxeval-i")] for name in [*written, "base"]}
    assert "answers are malformed in {} and {}, their students' in .00 to .05".format(*malformed.pop("base")) in words
    assert (min(sum(malformed.values(), [])), max(sum(malformed.values(), []))) == (".00", ".05")
    solved = [[row["solve_rate"] for run in ("self-0", "self-1") for row in packed(run)["steps"][part]] for part in (slice(10), slice(-10, None))]
    assert "({}, then {})".format(*(short(sum(rates) / len(rates)) for rates in solved)) in words


def test_what_else_the_students_of_the_card_can():
    words = " ".join((DOCS / "real.md").read_text().split())
    at = {(line["bench"], line["member"]): [short(line["pass_at"][0]), short(line["pass_at"][-1])] for line in passes(on_the_card("sampled", 4))}
    (base, four), (one, one_of_four), (two, two_of_four) = (at["cruxeval-i", name] for name in ("base", "self-0", "self-1"))
    assert f"({one} and {two}, {base}), but of four answers one is right as often ({one_of_four} and {two_of_four}, {four})" in words
    assert "*given* 0: {} and {}.".format(*at["cruxeval-i", "given-0"]) in words
    (base, four), (given, given_of_four) = (at["cruxeval-o", name] for name in ("base", "given-0"))
    assert four == given_of_four and f"has {given} for the base's {base}, and of four {four} as the base" in words
    found = {line["member"]: line for line in summarise(on_the_card("human"), 400)}
    base, first, second, given = (short(found[name]["accuracy"]) for name in ("base", "self-0", "self-1", "given-0"))
    low, high = map(signed, found["self-1"]["minus_base_interval"])
    assert f"base {base}, *self* {first} and {second} ({signed(found['self-1']['minus_base'])}, interval {low} to {high}), *given* 0 {given}" in words
    found = {line["member"]: short(line["accuracy"]) for line in summarise(on_the_card("gsm"), 320)}
    assert "GSM8K (200): base {base}; {self-0}, {self-1}; {given-0}: cannot tell".format_map(found) in words


def test_answers_to_tasks_of_the_test_split():
    """Shares right and malformed, and the two differences with their intervals, from the packed verdicts."""
    rows = []
    for line in map(json.loads, (DOCS / "results" / "real-answers.jsonl").read_text().splitlines()):
        for number, (letter, tokens) in enumerate(zip(line["verdicts"], line["tokens"], strict=True)):
            rows.append(dict(bench=line["bench"], member=line["member"], id=number, tokens=tokens, correct=letter == "c",
                             verdict=dict(c="correct", w="wrong", m="malformed")[letter]))
    found = {(line["bench"], line["member"]): line for line in summarise(rows, 192)}
    words = " ".join((DOCS / "real.md").read_text().split())
    base, student = (found["cruxeval-i", name] for name in ("base", "slow-teachers"))
    low, high = student["minus_base_interval"]
    assert f"solves {short(student['accuracy'])} of `cruxeval-i`, the base {short(base['accuracy'])} (difference +{short(student['minus_base'])}, " \
           f"interval +{short(low)} to +{short(high)}; {short(base['malformed'])} malformed in both)" in words
    assert base["malformed"] == student["malformed"]
    base, student, *pilots = (found["cruxeval-o", name] for name in ("base", "slow-teachers", "r32-1e-4", "r32-1e-4-s1", "r32-3e-5"))
    low, high = student["minus_base_interval"]
    assert f"and {short(student['accuracy'])} of `cruxeval-o`, the base {short(base['accuracy'])} (-{short(-low)} to +{short(high)})" in words
    one, again, slow = (short(line["accuracy"]) for line in pilots)
    assert f"solves {short(base['accuracy'])}, the students of 1e-4 {one} and {again}, that of 3e-5 {slow}" in words
    assert f"{short(base['malformed'])} of the base's answers are malformed, .01 to .03 of theirs" in words
    assert {short(line["malformed"]) for line in pilots} == {".01", ".03"}


def test_a_thousand_steps():
    """Each run's row of the table; the sentences about the falls."""
    page = (DOCS / "advanced" / "drift.md").read_text()
    words = " ".join(page.split())
    for run in map(json.loads, (DOCS / "results" / "thousand.jsonl").read_text().splitlines()):
        arm, seed, *decay = run["run"].split("-")
        heldout, laps = run["heldout"], run["laps"]
        first, last = laps[0], laps[-1]
        cells = [f"{dict(single='`--single`', pair='`--pop 2`', full='`--pop 8`')[arm]}, {'decays' if decay else 'constant'}, {seed}"]
        cells += [short(heldout[str(step)]) for step in (100, 300, 500, 700, 900, 999)]
        cells += [short(max(heldout.values())), str(sum(lap["alarmed"] for lap in laps))]
        for name in "solve_rate", "share":
            cells.append(f"{short(first[name])}, {short(last[name])}")
        cells.insert(-1, f"{first['structures']:,}, {last['structures']:,}")
        assert f"| {' | '.join(cells)} |" in page
        fall = max(heldout.values()) - heldout["999"]
        assert f"{short(fall)} ({arm}{'' if decay else f', {seed}'}" in words, (run["run"], fall)
