"""Ratings: the published package as reference, the far tails, and what children inherit."""
import math
import random

import pytest

from trueskill_lite import Rating, TrueSkill, child_rating

ENV = TrueSkill()
NEW = ENV.new()


def test_equals_the_trueskill_package_on_300_matches():
    reference, rng = pytest.importorskip("trueskill"), random.Random(0)
    assert ENV.p_draw == reference.TrueSkill().draw_probability and NEW == Rating(25, 25 / 3)
    for i in range(300):
        p_draw = rng.choice([0.02, 0.1, 0.5])
        ours, theirs = TrueSkill(p_draw=p_draw), reference.TrueSkill(draw_probability=p_draw)
        a, b = (Rating(rng.uniform(0, 50), rng.uniform(0.5, 9)) for _ in "ab")
        draw = i % 3 == 0
        expected = reference.rate_1vs1(*(theirs.create_rating(r.mu, r.sigma) for r in (a, b)), drawn=draw, env=theirs)
        for got, want in zip(ours.rate(a, b, draw), expected):
            assert (got.mu, got.sigma) == pytest.approx((want.mu, want.sigma), rel=0, abs=1e-4), f"match {i}"


@pytest.mark.parametrize("mu", [1e2, 1e3, 1e6])
@pytest.mark.parametrize("draw", [False, True])
def test_impossible_results_underflow_to_finite_ratings(mu, draw):
    upset, favourite = ENV.rate(Rating(0, 0.5), Rating(mu, 0.5), draw)
    assert 0 < upset.mu < math.inf and -math.inf < favourite.mu < mu and 0 < upset.sigma < 0.51


def test_who_wins_and_what_is_inherited():
    strong, weak = Rating(25 + ENV.beta, 0), Rating(25, 0)
    assert ENV.p_win(strong, weak) == pytest.approx(0.7602, abs=1e-4) == 1 - ENV.p_win(weak, strong)
    assert ENV.fitness(NEW) == 0 and ENV.fitness(Rating(30, 2)) == 24
    child = child_rating(ENV, [Rating(30, 3), Rating(20, 4)])
    assert child.mu == 25 and child.sigma == pytest.approx(math.sqrt(12.5 + (25 / 12) ** 2))
    assert child_rating(ENV, [NEW]).sigma == NEW.sigma, "never wider than a new player"
