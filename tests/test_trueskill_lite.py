"""Ratings: the published package as reference, the far tails, and the shared protocol."""
import math
import random

import pytest

from trueskill_lite import RATINGS, Elo, Rating, TrueSkill, child_rating

ENV = TrueSkill()


def near(rating, mu, sigma, tolerance=1e-4):
    return abs(rating.mu - mu) < tolerance and abs(rating.sigma - sigma) < tolerance


def test_equals_the_trueskill_package_on_500_matches():
    reference = pytest.importorskip("trueskill")
    rng = random.Random(0)
    for i in range(500):
        p_draw = rng.choice([0.02, 0.1, 0.5])
        ours, theirs = TrueSkill(p_draw=p_draw), reference.TrueSkill(draw_probability=p_draw)
        a, b = (Rating(rng.uniform(0, 50), rng.uniform(0.5, 9)) for _ in "ab")
        draw = i % 3 == 0
        expected = reference.rate_1vs1(*(theirs.create_rating(r.mu, r.sigma) for r in (a, b)), drawn=draw, env=theirs)
        for got, want in zip(ours.rate(a, b, draw), expected):
            assert near(got, want.mu, want.sigma), f"match {i}: {a} {b} draw={draw}: {got} != {want}"


@pytest.mark.parametrize("mu", [1e2, 1e3, 1e6])
@pytest.mark.parametrize("draw", [False, True])
def test_impossible_results_underflow_to_finite_ratings(mu, draw):
    for a, b in ((Rating(0, 0.5), Rating(mu, 0.5)), (Rating(mu, 0.5), Rating(0, 0.5))):
        for before, after in zip((a, b), ENV.rate(a, b, draw)):
            assert math.isfinite(after.mu) and 0 < after.sigma <= before.sigma + 1e-2
    upset, favourite = ENV.rate(Rating(0, 0.5), Rating(mu, 0.5), draw)
    assert upset.mu > 0 and favourite.mu < mu


def test_no_draw_margin_is_a_legal_environment():
    env = TrueSkill(p_draw=0.0)
    a, b = env.rate(Rating(30, 4), Rating(20, 4), draw=True)
    assert 20 < b.mu <= a.mu < 30


@pytest.mark.parametrize("name", RATINGS)
def test_protocol(name):
    env = RATINGS[name]()
    strong = weak = env.new()
    assert env.p_win(strong, weak) == pytest.approx(0.5)
    for _ in range(20):
        strong, weak = env.rate(strong, weak)
    assert env.p_win(strong, weak) > 0.7 and env.fitness(strong) > env.fitness(weak)
    assert env.p_win(strong, weak) + env.p_win(weak, strong) == pytest.approx(1.0)
    drawn, met = env.rate(strong, weak, draw=True)
    assert drawn.mu < strong.mu and met.mu > weak.mu, "a draw pulls the two together"
    with pytest.raises(AttributeError):
        strong.mu = 0.0


def test_elo_values():
    a, b = Elo().rate(Rating(1500, 0), Rating(1500, 0))
    assert (a.mu, b.mu) == (1516, 1484)
    assert Elo().p_win(Rating(1900, 0), Rating(1500, 0)) == pytest.approx(10 / 11)
    assert Elo().p_win(Rating(1e6, 0), Rating(-1e6, 0)) == 1.0


@pytest.mark.parametrize("name", RATINGS)
def test_child_rating(name):
    env = RATINGS[name]()
    a, b = env.rate(env.new(), env.new())
    child = child_rating(env, [a, b])
    assert child.mu == pytest.approx((a.mu + b.mu) / 2)
    assert (a.sigma < child.sigma <= env.new().sigma) if name == "trueskill" else child.sigma == 0
    assert child_rating(env, [env.new()]).sigma == env.new().sigma, "never wider than a new player"
