"""Grades exercise 4: every choice of k counted out, many answers, no bias, and the project's own function."""
from itertools import combinations
from math import comb

import pytest


def plug_in(n, c, k):
    return 1 - (1 - c / n) ** k


def expected(estimate, n, p, k):
    """Its mean over all outcomes of n answers that are right with probability p."""
    return sum(comb(n, c) * p ** c * (1 - p) ** (n - c) * estimate(n, c, k) for c in range(n + 1))


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_choice_counted_out(work, n):
    for c in range(n + 1):
        answers = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            chosen = [any(drawn) for drawn in combinations(answers, k)]
            assert work.pass_at_k(n, c, k) == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize("n, p, k", [(8, 0.1, 4), (16, 0.02, 16), (16, 0.3, 2), (50, 0.05, 10)])
def test_no_bias(work, n, p, k):
    truth = 1 - (1 - p) ** k
    assert expected(work.pass_at_k, n, p, k) == pytest.approx(truth)
    assert expected(plug_in, n, p, k) < truth - 0.005, "the case must tell them apart"


@pytest.mark.parametrize("n, c, k", [(4, 0, 5), (4, 2, 5), (4, 2, 0), (4, -1, 2), (4, 5, 2), (0, 0, 1)])
def test_what_nobody_can_know(work, n, c, k):
    with pytest.raises(ValueError):
        work.pass_at_k(n, c, k)


def test_the_project_does_the_same(work):
    from eval import stats
    for n in (1, 4, 16, 200):
        for k in {1, n // 2 or 1, n}:
            for c in range(n + 1):
                assert work.pass_at_k(n, c, k) == pytest.approx(stats.pass_at_k(n, c, k), abs=1e-9)
