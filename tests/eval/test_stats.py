"""The statistics of comparisons against published values, against other programs' numbers, and by simulation."""
import math

import numpy as np
import pytest

from common import wilson
from eval import stats

# Heights of crossed and self-fertilised maize in eighths of an inch, 15 pairs: Darwin (1876), as analysed by
# Fisher (1935), The Design of Experiments, sections 17 to 21.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_wilson():
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, n, low, high in ((81, 263, .2553, .3662), (15, 148, .0624, .1605), (0, 20, 0, .1611), (1, 29, .0061, .1718)):
        assert wilson(right, n) == pytest.approx((low, high), abs=1e-4)


def test_sign_flip_counts_every_pattern():
    """For Darwin's maize Fisher counts 863 of the 2^15 patterns with a sum of 314 or more: 1,726 on both sides."""
    assert sum(DARWIN) == 314 and stats.sign_flip(np.array(DARWIN)) == 1726 / 2 ** 15
    assert stats.sign_flip(np.array([1, 2, 3])) == 0.25 and stats.sign_flip(np.full(6, 0.1)) == 2 / 64
    assert stats.sign_flip(np.zeros(2)) == 1
    assert stats.sign_flip(np.array([*DARWIN, *[0] * 25])) == pytest.approx(1726 / 2 ** 15, abs=.004), "of 40 seeds they are drawn"


def test_holm():
    """R's p.adjust(c(.01, .02, .03, .04, .05), "holm") gives .05 .08 .09 .09 .09."""
    assert stats.holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_the_bootstrap_has_the_spread_of_a_mean():
    rng = np.random.default_rng(0)
    for values in (rng.normal(0.1, 1, 400), rng.binomial(1, 0.3, 500)):
        half = 1.96 * values.std() / math.sqrt(len(values))
        found = stats.bootstrap(values)
        assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert stats.bootstrap(np.full(9, 0.25)).tolist() == [0.25, 0.25]


def test_student_s_interval_over_seeds():
    """Fisher (1935), section 21: the mean of Darwin's differences is 20.93, 95% within .03 and 41.84; of eight seeds
    the interval covers 95%, where the bootstrap covers too few."""
    assert stats.interval_of_runs(np.array(DARWIN)) == pytest.approx((0.03, 41.84), abs=0.01)
    assert stats.interval_of_runs(np.ones(4)) is None and stats.interval_of_runs(np.ones(5)) == (1, 1)
    samples = np.random.default_rng(0).normal(0.1, 0.05, (2000, 8))
    low, high = np.transpose([stats.interval_of_runs(sample) for sample in samples])
    assert 0.93 < np.mean((low <= 0.1) & (0.1 <= high)) < 0.97
