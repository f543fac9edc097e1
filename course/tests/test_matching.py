"""Grades exercise 7: probabilities by hand, the floor, certain results, and how often the loop draws whom."""
import random
from collections import Counter

import pytest

MODES = ("pfsp", "hard", "uniform")


def test_by_hand(work):
    assert work.probabilities([0.5, 0.1, 0.9], floor=0) == pytest.approx([0.25 / 0.43, 0.09 / 0.43, 0.09 / 0.43])
    assert work.probabilities([0.5, 0.1, 0.9], "hard", floor=0) == pytest.approx([0.25 / 1.07, 0.81 / 1.07, 0.01 / 1.07])
    assert work.probabilities([0.5, 0.1, 0.9], "uniform", floor=0) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("mode", MODES)
def test_they_are_probabilities_and_the_floor_holds(work, mode):
    rng = random.Random(0)
    for _ in range(50):
        p, floor = [rng.random() for _ in range(rng.randint(1, 8))], rng.random()
        got = work.probabilities(p, mode, floor)
        assert len(got) == len(p) and sum(got) == pytest.approx(1) and min(got) >= floor / len(p) - 1e-12


@pytest.mark.parametrize("p", [[0.0, 1.0], [1.0, 1.0, 1.0], [0.0]])
def test_certain_results(work, p):
    assert work.probabilities(p) == pytest.approx([1 / len(p)] * len(p))


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_draws_as_often(work, mode):
    import evolve
    p, rng = [0.5, 0.1, 0.95], random.Random(0)
    teacher = evolve.Member("T0", "teacher", 0, None)
    students = [evolve.Member(f"S{i}", "student", i, None) for i in range(3)]

    def p_beats(teacher, student):
        return p[student.slot]

    drawn = Counter(evolve.match([teacher], students, p_beats, mode, 0.1, rng)[0][1].slot for _ in range(5_000))
    assert [drawn[i] / 5_000 for i in range(3)] == pytest.approx(work.probabilities(p, mode, 0.1), abs=0.03)
