"""Grades exercise 6: published values, symmetries, and the far tails."""
import math
import random
from types import ModuleType

import pytest

NEW = (25.0, 25 / 3)                    # mu and sigma of a player whom nobody has seen


def near(mu: float, sigma: float):
    """A rating that equals this one to three digits behind the point."""
    return pytest.approx((mu, sigma), abs=1e-3)


def test_published_values(work: ModuleType):
    winner, loser = work.rate(NEW, NEW)
    assert winner == near(29.396, 7.171)                        # trueskill.org's example of a first match
    assert loser == near(20.604, 7.171)
    for rating in work.rate(NEW, NEW, draw=True):
        assert rating == near(25.0, 6.458)
    upset, favourite = work.rate((20, 3), (30, 3))
    assert upset == near(22.382, 2.775)
    assert favourite == near(27.618, 2.775)


def test_the_more_uncertain_moves_more_and_both_grow_surer(work: ModuleType):
    winner, loser = work.rate((25, 8), (25, 2), tau=0)
    mu_w, sigma_w = winner
    mu_l, sigma_l = loser
    up = mu_w - 25
    down = 25 - mu_l
    assert up / down == pytest.approx(16), "the means should move as the variances, 64 to 4"
    assert sigma_w < 8
    assert sigma_l < 2


def test_a_draw_brings_players_together_in_either_order(work: ModuleType):
    strong = (30, 5)
    weak = (20, 3)
    high, low = work.rate(strong, weak, draw=True)
    assert 30 > high[0] > low[0] > 20, "a draw should bring the means nearer to each other, in the same order"
    low_again, high_again = work.rate(weak, strong, draw=True)
    assert low_again == pytest.approx(low)
    assert high_again == pytest.approx(high)


@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("mu", [1e2, 1e3, 1e6])
def test_great_surprises_stay_finite(work: ModuleType, mu: float, draw: bool):
    upset, favourite = work.rate((0, 0.5), (mu, 0.5), draw)
    for number in upset + favourite:
        assert math.isfinite(number), f"mu and sigma should be finite: {upset}, {favourite}"
    assert upset[0] > 0, "the surprise should raise the weaker player's mean"
    assert favourite[0] < mu, "the surprise should lower the stronger player's mean"


@pytest.mark.parametrize("mu", [1e3, 1e5])
def test_who_is_greatly_surprised_is_surer_afterwards(work: ModuleType, mu: float):
    """In the far tail w tends to 1, v to e - t. s_w = 64.007, c^2 = 2 (25/6)^2 + 64.007 + 1.007 = 99.736."""
    s_w = 64.007
    share = s_w / 99.736
    variance = s_w * (1 - share)                                # w = 1
    upset, _ = work.rate((0, 8), (mu, 1))
    assert upset[1] == pytest.approx(variance ** 0.5, abs=5e-3)                     # 4.79
    assert upset[0] == pytest.approx(mu * share, rel=5e-3)


def random_rating(rng: random.Random) -> tuple[float, float]:
    """mu and sigma of some player."""
    mu = rng.uniform(0, 50)
    sigma = rng.uniform(0.5, 9)
    return mu, sigma


def test_the_published_package_says_the_same(work: ModuleType):
    package = pytest.importorskip("trueskill")
    work.rate(NEW, NEW)                 # a stub fails here and not at the first random match
    rng = random.Random(0)
    for i in range(200):
        a = random_rating(rng)
        b = random_rating(rng)
        draw = i % 2 == 0
        theirs = package.rate_1vs1(package.Rating(*a), package.Rating(*b), draw)
        yours = work.rate(a, b, draw=draw)
        assert len(yours) == 2
        for rating, their in zip(yours, theirs):
            want = (their.mu, their.sigma)
            assert rating == pytest.approx(want, abs=1e-4), f"winner {a}, loser {b}, draw {draw}"
