"""bench learn: its line, its rates; and, slowly, that a student on the base learns to think."""
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


@pytest.mark.slow
def test_a_few_steps_print_the_line(micro_base):
    words = [sys.executable, "-m", "bench", "learn", "--base", micro_base, "--budget", 32, "--tasks", 4, "--evals", 1, "--held-out", 3,
             "--sizes", 2, 3, "--", "--samples-per-task", 4, "--algo", "gspo", "--epochs", 2]
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *table, line = done.stdout.strip().split("\n")
    assert len(table) == 3 and table[0].startswith("attempts") and table[2].split()[0] == "32"
    assert [attempts for attempts, *_ in json.loads(line)["rates"][0]["curve"]] == [0, 32]


def test_rates_are_members_of_one_batch(micro_base):
    """They see the same tasks; one that does not move stays the base."""
    found = learn.learn(flags("--base", micro_base, "--budget", 64, "--tasks", 8, "--evals", 1, "--held-out", 4, "--sizes", 2, 3,
                              "--lr", 1e-9, 1e-2, "--", "--samples-per-task", 4))
    still, moved = [rate["curve"] for rate in found["rates"]]
    assert still[0][1] == still[1][1] == moved[0][1] and still[1] != moved[1]
    assert [rate["lr"] for rate in found["rates"]] == [1e-9, 1e-2]


def test_a_style_without_programs_says_so(tiny):
    with pytest.raises(ValueError, match="speaks the base prompt format: use train.py --tasks"):
        learn.learn(flags("--base", tiny.path, "--", "--max-new-tokens", 32))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_student_learns_to_think(micro_base, seed):
    """The sanity check of rl.py: direct at first, thinking and twice as right within 6,400 attempts."""
    found = learn.learn(flags("--base", micro_base, "--budget", 6400, "--evals", 4, "--held-out", 20, "--seed", seed))
    (_, greedy, think), *_, (_, greedy_after, think_after) = found["rates"][0]["curve"]
    assert greedy < .35 and think < .1 and think_after > .9 and greedy_after > .6, found
