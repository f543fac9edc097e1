"""bench learn: its line, half way, its tasks; and, slowly, that a student on the base learns to think."""
import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import learn

ROOT = Path(learn.__file__).parent.parent


def flags(*words) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    learn.learn_flags(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.mark.parametrize("curve, half", [
    ([(0, .2), (100, .2), (200, .8)], 150),
    ([(0, .2), (100, .8)], 50),
    ([(0, .2), (100, .6), (200, .3), (300, .8)], 75),      # the first time counts
    ([(0, .5), (100, .55)], None),                         # nothing was learned
    ([(0, .5), (100, .3)], None),
])
def test_half_way(curve, half):
    assert learn.attempts_to_half(curve) == half


@pytest.mark.slow
def test_a_few_steps_print_the_line(micro_base):
    words = [sys.executable, "-m", "bench", "learn", "--base", micro_base, "--budget", 32, "--tasks", 4,
             "--samples-per-task", 4, "--evals", 1, "--held-out", 3, "--sizes", 2, 3, "--algo", "gspo",
             "--epochs", 2]
    said = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    table, line = said.stdout.strip().split("\n")[:-1], json.loads(said.stdout.strip().split("\n")[-1])
    assert len(table) == 3 and table[0].startswith("attempts") and table[2].split()[0] == "32"
    assert {"greedy_before", "greedy_after", "attempts_to_half", "think_before", "think_after"} <= set(line)
    assert line["attempts"] == 32 and [attempts for attempts, _ in line["curve"]] == [0, 32]
    assert (line["algo"], line["loss"], line["epochs"]) == ("gspo", "sequence", 2)


def test_rates_are_members_of_one_batch(micro_base):
    """They see the same tasks; one that does not move stays the base."""
    found = learn.learn(flags("--base", micro_base, "--budget", 64, "--tasks", 8, "--samples-per-task", 4,
                              "--evals", 1, "--held-out", 4, "--sizes", 2, 3, "--lr", 1e-9, 1e-2))
    still, moved = found["rates"]
    assert still["greedy_before"] == still["greedy_after"] == moved["greedy_before"]
    assert moved["lr"] == 1e-2 and "greedy_after" not in found


def test_tasks_of_a_file(micro_base, tmp_path):
    """Every fifth is held out and never trained on; the others come in a new order each time round."""
    lines = [json.dumps(dict(program=f"def f(x):\n x=x+{i}\n return x", input="4")) for i in range(10)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    asked = flags("--base", micro_base, "--tasks-file", tmp_path / "tasks.jsonl", "--budget", 8, "--tasks", 2,
                  "--samples-per-task", 4, "--evals", 1)
    assert learn.learn(asked)["attempts"] == 8
    setup = learn.open_setup(asked)
    with setup.sandbox:
        source = learn.source_of(asked, setup)
        held_out = {task.program for _, task in source.held_out}
        laps = [[source.task(lap * 8 + i).program for i in range(8)] for lap in range(2)]
        assert len(held_out) == 2 and not held_out & set(laps[0])
        assert sorted(laps[0]) == sorted(laps[1]) != laps[0] != laps[1]
        (tmp_path / "few.jsonl").write_text("\n".join(lines[:3]))
        with pytest.raises(ValueError, match="at least 10"):
            learn.FileOfTasks(str(tmp_path / "few.jsonl"), setup, 0)


def test_a_style_without_programs_says_so(tiny):
    with pytest.raises(ValueError, match="speaks the base prompt format: pass its tasks with --tasks-file"):
        learn.learn(flags("--base", tiny.path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_student_learns_to_think(micro_base, seed):
    """The sanity check of rl.py: direct at first, thinking and twice as right within 6,400 attempts."""
    words = ["--base", micro_base, "--budget", 6400, "--evals", 4, "--held-out", 20, "--seed", seed]
    found = learn.learn(flags(*words))
    assert found["greedy_before"] < .35 and found["think_before"] < .1
    assert found["think_after"] > .9 and found["greedy_after"] > .6, found
