"""The statistics of comparisons against published values, against other programs, and by simulation."""
import itertools
import math

import numpy as np
import pytest

from eval import stats
from common import UserError

# Heights of crossed and self-fertilised maize in eighths of an inch, 15 pairs: Darwin (1876), as analysed by
# Fisher (1935), The Design of Experiments, sections 17 to 21.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_pass_at_k_is_the_share_of_sets_with_a_right_answer():
    assert stats.pass_at_k(16, 4, 8) == pytest.approx(25 / 26, abs=1e-15)
    for n in range(1, 7):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            sets = [any(drawn) for drawn in itertools.combinations([True] * c + [False] * (n - c), k)]
            assert stats.pass_at_k(n, c, k) == pytest.approx(np.mean(sets), abs=1e-15), (n, c, k)
    for n, c, k in ((4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2), (0, 0, 1)):
        with pytest.raises(UserError, match="--samples draws more"):
            stats.pass_at_k(n, c, k)


def test_sign_flip_counts_every_pattern():
    """For Darwin's maize Fisher counts 863 of the 2^15 patterns with a sum of 314 or more: 1,726 on both sides."""
    assert sum(DARWIN) == 314 and stats.sign_flip(DARWIN) == 1726 / 2 ** 15
    for differences in ([1.0, 2.0, 3.0], [0.3, -0.1, 0.2, 0.05], [-1.0], [0.0, 0.0]):
        sums = [abs(np.dot(signs, differences)) for signs in itertools.product((1, -1), repeat=len(differences))]
        by_hand = np.mean([x >= abs(sum(differences)) - 1e-12 for x in sums])
        assert stats.sign_flip(differences) == pytest.approx(by_hand)
    assert stats.sign_flip([1, 2, 3]) == 0.25 and stats.sign_flip([0.1] * 6) == 2 / 64 and stats.sign_flip([]) == 1
    many = np.random.default_rng(0).normal(0.5, 1, 20)
    z = abs(many.sum()) / np.sqrt((many ** 2).sum())            # nearly normal over sign patterns
    assert stats.sign_flip(many) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)


def test_holm():
    """p adjusted by hand: R's p.adjust(c(.01, .02, .03, .04, .05), "holm") gives .05 .08 .09 .09 .09."""
    assert stats.holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_the_widened_percentiles():
    """Hesterberg (2015): the tail is that of a normal at sqrt(n / (n-1)) t, with t from any table (two-sided
    5%); with many units 2.5% again."""
    for n, t in {3: 4.303, 8: 2.365, 30: 2.045, 121: 1.980}.items():
        tail = 100 * math.erfc(math.sqrt(n / (n - 1)) * t / math.sqrt(2)) / 2
        assert stats.widened(n) == pytest.approx((tail, 100 - tail), abs=2e-3)
    assert stats.widened(100_000)[0] == pytest.approx(2.5, abs=0.001)


def test_the_bootstrap_has_the_spread_of_a_mean():
    """Of many values, of values that repeat, and of columns drawn together."""
    rng = np.random.default_rng(0)
    x, repeated = rng.normal(0.1, 1, (400, 2)), rng.binomial(1, 0.3, 500)
    ends = stats.bootstrap(x)
    for found, column in ((ends[0], x[:, 0]), (ends[1], x[:, 1]), (stats.bootstrap(repeated), repeated)):
        half = 1.96 * column.std() / math.sqrt(len(column))
        assert found == pytest.approx((column.mean() - half, column.mean() + half), abs=0.01)
    assert stats.bootstrap(np.full(9, 0.25)).tolist() == [0.25, 0.25] and (stats.bootstrap(x) == ends).all()


def test_intervals_of_eight_seeds_cover_what_they_say():
    """Widened, 95% intervals of eight seeds cover 92 to 98%, plain percentiles less; three seeds have none."""
    samples = np.random.default_rng(0).normal(0.1, 0.05, (600, 8))
    shares = []
    for percentiles in (stats.widened(8), (2.5, 97.5)):
        low, high = stats.bootstrap(samples.T, percentiles).T
        shares.append(((low <= 0.1) & (0.1 <= high)).mean())
    assert shares[1] < 0.92 <= shares[0] <= 0.98, shares
    assert stats.interval_of_runs(np.ones(4)) is None and stats.interval_of_runs(np.ones(5)) == (1, 1)
