"""Grades exercise 7: probabilities by hand, the floor, certain results, and how often the loop draws whom."""
import random
from collections import Counter
from types import ModuleType

import pytest

MODES = ("pfsp", "hard", "uniform")


def test_by_hand(work: ModuleType):
    p = [0.5, 0.1, 0.9]
    weights = dict(
        pfsp=[0.25, 0.09, 0.09],
        hard=[0.25, 0.81, 0.01],
        uniform=[1, 1, 1],
    )
    for mode, of_mode in weights.items():
        total = sum(of_mode)
        want = [weight / total for weight in of_mode]
        got = work.probabilities(p, mode, floor=0)
        assert got == pytest.approx(want), f"mode {mode}"
    default = work.probabilities(p, floor=0)
    assert default == pytest.approx([0.25 / 0.43, 0.09 / 0.43, 0.09 / 0.43]), "the default mode is pfsp"


@pytest.mark.parametrize("mode", MODES)
def test_they_are_probabilities_and_the_floor_holds(work: ModuleType, mode: str):
    rng = random.Random(0)
    for _ in range(50):
        n = rng.randint(1, 8)
        p = [rng.random() for _ in range(n)]
        floor = rng.random()
        got = work.probabilities(p, mode, floor)
        assert len(got) == n
        assert sum(got) == pytest.approx(1)
        assert min(got) >= floor / n - 1e-12, f"everybody should be drawn with {floor / n} at least"


@pytest.mark.parametrize("p", [
    [0.0, 1.0],
    [1.0, 1.0, 1.0],
    [0.0],
])
def test_certain_results(work: ModuleType, p: list[float]):
    n = len(p)
    got = work.probabilities(p)
    assert got == pytest.approx([1 / n] * n)


@pytest.mark.parametrize("mode", ["pfsp", "uniform"])
def test_the_loop_draws_as_often(work: ModuleType, mode: str):
    """In 5,000 steps of one teacher and three students."""
    import evolve
    p = [0.5, 0.1, 0.95]
    teacher = evolve.Member("T0", "teacher", 0, None)
    students = []
    for i in range(len(p)):
        students.append(evolve.Member(f"S{i}", "student", i, None))

    def p_beats(teacher: evolve.Member, student: evolve.Member) -> float:
        return p[student.slot]

    n_steps = 5_000
    rng = random.Random(0)
    n_drawn = Counter()
    for _ in range(n_steps):
        pairs = evolve.match([teacher], students, p_beats, mode, 0.1, rng)
        _, student = pairs[0]
        n_drawn[student.slot] += 1
    shares = [n_drawn[i] / n_steps for i in range(len(p))]
    got = work.probabilities(p, mode, 0.1)
    assert got == pytest.approx(shares, abs=0.03)
