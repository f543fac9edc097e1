"""The numbers of docs/real.md and of the thousand steps are those of docs/results."""
import json
import re
from pathlib import Path

import pytest

from eval.summary import summarise

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


def test_the_steps_of_self_play():
    """Means of steps of both runs."""
    fast, slow = packed("selfplay-0")["steps"], packed("slow-teachers")["steps"]
    page = (DOCS / "real.md").read_text()
    words = " ".join(page.split())
    assert f"({len(fast)} of 150 steps, {fast[-1]['tokens_generated']:,} tokens)" in words
    assert f"({len(slow)} of 150 steps, {slow[-1]['tokens_generated']:,} tokens)" in words
    for measure, name in (("share of valid proposals", "valid"), ("malformed answers", "malformed"), ("groups without variance", "frac_zero_advantage"),
                          ("students' solve rate on their teachers' tasks", "solve_rate")):
        found = []
        for part in fast[:10], fast[10:20], fast[20:], slow[:10], slow[20:30], slow[40:50]:
            values = [row[name] for row in part if name in row]
            found.append(short(sum(values) / len(values)))
        assert f"| {measure} | {' | '.join(found)} |" in page, (measure, found)


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
        cells = [f"{dict(single='`--single`', pair='`--pop 2`')[arm]}, {'decays' if decay else 'constant'}, {seed}"]
        cells += [short(heldout[str(step)]) for step in (100, 300, 500, 700, 900, 999)]
        cells += [short(max(heldout.values())), str(sum(lap["alarmed"] for lap in laps))]
        for name in "solve_rate", "share":
            cells.append(f"{short(first[name])}, {short(last[name])}")
        cells.insert(-1, f"{first['structures']:,}, {last['structures']:,}")
        assert f"| {' | '.join(cells)} |" in page
        fall = max(heldout.values()) - heldout["999"]
        assert f"{short(fall)} ({arm}" in words, (run["run"], fall)
