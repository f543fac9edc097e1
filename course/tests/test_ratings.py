"""Grades exercise 6: published values, symmetries, and the far tails."""
import math
import random

import pytest

NEW = (25.0, 25 / 3)


def near(rating, mu, sigma):
    return rating == pytest.approx((mu, sigma), abs=1e-3)


def test_published_values(work):
    winner, loser = work.rate(NEW, NEW)
    assert near(winner, 29.396, 7.171) and near(loser, 20.604, 7.171)          # trueskill.org's example of a first match
    assert all(near(r, 25.0, 6.458) for r in work.rate(NEW, NEW, draw=True))
    upset, favourite = work.rate((20, 3), (30, 3))
    assert near(upset, 22.382, 2.775) and near(favourite, 27.618, 2.775)


def test_the_more_uncertain_moves_more_and_both_grow_surer(work):
    (a, sigma_a), (b, sigma_b) = work.rate((25, 8), (25, 2), tau=0)
    assert (a - 25) / (25 - b) == pytest.approx(16) and sigma_a < 8 and sigma_b < 2


def test_a_draw_brings_players_together_in_either_order(work):
    high, low = work.rate((30, 5), (20, 3), draw=True)
    assert 30 > high[0] > low[0] > 20
    assert work.rate((20, 3), (30, 5), draw=True) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("mu", [1e2, 1e3, 1e6])
def test_great_surprises_stay_finite(work, mu, draw):
    upset, favourite = work.rate((0, 0.5), (mu, 0.5), draw)
    assert all(map(math.isfinite, upset + favourite)) and upset[0] > 0 and favourite[0] < mu


@pytest.mark.parametrize("mu", [1e3, 1e5])
def test_who_is_greatly_surprised_is_surer_afterwards(work, mu):
    """In the far tail w tends to 1 and v to e - t: s_w = 64.007, c^2 = 2 (25/6)^2 + 64.007 + 1.007 = 99.736."""
    upset, _ = work.rate((0, 8), (mu, 1))
    assert upset[1] == pytest.approx((64.007 * (1 - 64.007 / 99.736)) ** 0.5, abs=5e-3)        # 4.79
    assert upset[0] == pytest.approx(mu * 64.007 / 99.736, rel=5e-3)


def test_the_published_package_says_the_same(work):
    package = pytest.importorskip("trueskill")
    work.rate(NEW, NEW)
    rng = random.Random(0)
    for i in range(200):
        a, b = ((rng.uniform(0, 50), rng.uniform(0.5, 9)) for _ in "ab")
        theirs = package.rate_1vs1(package.Rating(*a), package.Rating(*b), drawn=i % 2 == 0)
        assert work.rate(a, b, draw=i % 2 == 0) == tuple(pytest.approx((r.mu, r.sigma), abs=1e-4) for r in theirs)
