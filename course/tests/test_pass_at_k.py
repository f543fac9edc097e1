"""Grades exercise 4: every choice of k counted out, many answers, no bias."""
from collections.abc import Callable
from itertools import combinations
from math import comb
from types import ModuleType

import pytest


def plug_in(n: int, c: int, k: int) -> float:
    """The estimate of trap 1."""
    return 1 - (1 - c / n) ** k


def expected(
    estimate: Callable,                 # (n, c, k) -> float
    n: int,
    p: float,
    k: int,
) -> float:
    """An estimate's mean over all outcomes of n answers that are right with probability p."""
    mean = 0.0
    for c in range(n + 1):
        of_one_order = p ** c * (1 - p) ** (n - c)
        chance = comb(n, c) * of_one_order
        mean += chance * estimate(n, c, k)
    return mean


def counted_out(n: int, c: int, k: int) -> float:
    """The share of all choices of k of the n answers, c of them right, that hold a right one."""
    answers = [True] * c + [False] * (n - c)
    found = [any(chosen) for chosen in combinations(answers, k)]
    return sum(found) / len(found)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_choice_counted_out(work: ModuleType, n: int):
    for c in range(n + 1):
        for k in range(1, n + 1):
            want = counted_out(n, c, k)
            got = work.pass_at_k(n, c, k)
            assert got == pytest.approx(want), f"pass@{k} of {n} answers, {c} of them right"


@pytest.mark.parametrize("n, p, k", [
    (8, 0.1, 4),
    (16, 0.02, 16),
    (16, 0.3, 2),
    (50, 0.05, 10),
])
def test_no_bias(work: ModuleType, n: int, p: float, k: int):
    truth = 1 - (1 - p) ** k
    got = expected(work.pass_at_k, n, p, k)
    assert got == pytest.approx(truth), "the mean over all outcomes should be 1 - (1-p)^k"
    biased = expected(plug_in, n, p, k)
    assert biased < truth - 0.005, "the case must tell them apart"


@pytest.mark.parametrize("n, c, k", [
    (4, 0, 5),
    (4, 2, 5),
    (4, 2, 0),
    (4, -1, 2),
    (4, 5, 2),
    (0, 0, 1),
])
def test_what_nobody_can_know(work: ModuleType, n: int, c: int, k: int):
    with pytest.raises(ValueError):
        work.pass_at_k(n, c, k)
