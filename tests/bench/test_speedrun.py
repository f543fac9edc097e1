"""The speedrun counts tokens until the students' mean is at the goal, and until the best one is."""
import argparse
import json

import train
from bench import speedrun


def rows(*accuracies: list[float] | None) -> list[dict]:
    """Steps of 100 tokens each, with 30 more for a probe where there is one."""
    out, total = [], 0
    for step, students in enumerate(accuracies):
        total += 100 + (30 if students else 0)
        row = dict(step=step, tokens_generated=total)
        if students:
            row |= dict(probe_tokens=30, heldout_greedy={f"S{i}": x for i, x in enumerate(students)})
        out.append(row)
    return out


def test_both_numbers_by_hand(monkeypatch, tmp_path, capsys):
    """The best is there after two steps, the mean, by copies of the best, after four: tokens of probes are not counted."""
    run = rows([0.2, 0.2], None, [0.2, 0.8], None, [0.8, 0.8], None)
    assert speedrun.tokens_before(run, "best") == 200 and speedrun.tokens_before(run, "mean") == 400
    assert speedrun.tokens_before(run[:4], "mean") is None
    assert speedrun.tokens_before(rows([0.9, 0.9]), "mean") == 0, "a base that is there already has spent nothing"
    seen = []

    def main(cfg, enough):
        for row in run:
            seen.append(row["step"])
            if enough(row):
                return

    monkeypatch.setattr(train, "main", main)
    figures = speedrun.speedrun(argparse.Namespace(seeds=2, out=tmp_path, train=[]))
    assert seen == 2 * [0, 1, 2, 3, 4], "a run ends where the mean is at the goal, not where the best is"
    assert figures["mean"] == dict(tokens={0: 400, 1: 400}, reached=2, mean_of_seeds=400) and figures["best"]["mean_of_seeds"] == 200
    assert json.dumps(figures) and "seed 0: mean 400 tokens, best 200 tokens" in capsys.readouterr().out
