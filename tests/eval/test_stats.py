"""The statistics of comparisons against published values, against other programs, and by simulation."""
import itertools
import math

import numpy as np
import pytest

from eval import stats

# Heights of crossed and self-fertilised maize in eighths of an inch, 15 pairs: Darwin (1876), as analysed by
# Fisher (1935), The Design of Experiments, sections 17 to 21.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_sign_flip_gives_fisher_s_count_for_darwin_s_maize():
    """Fisher counts 863 of the 2^15 sign patterns with a sum of 314 or more, so 1,726 on both sides."""
    assert sum(DARWIN) == 314
    assert stats.sign_flip(DARWIN) == 1726 / 2 ** 15


def test_sign_flip_counts_every_pattern():
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


def test_student_s_t_and_the_widened_percentiles():
    """Two-sided 5% points of Student's t, as in any table; Hesterberg (2015): the tail is that of a normal at
    sqrt(n / (n-1)) t; with many units 2.5% again."""
    for freedom, value in {1: 12.706, 2: 4.303, 7: 2.365, 29: 2.045, 120: 1.980}.items():
        assert stats.t_quantile(0.975, freedom) == pytest.approx(value, abs=0.0006)
    low, high = stats.widened(8)
    tail = math.erfc(math.sqrt(8 / 7) * 2.364624 / math.sqrt(2)) / 2
    assert low == pytest.approx(100 * tail, rel=1e-3) and high == pytest.approx(100 - low)
    assert stats.widened(100_000)[0] == pytest.approx(2.5, abs=0.001)


def test_the_bootstrap_has_the_spread_of_a_mean():
    """Of many values, of values that repeat, of columns drawn together, and of strata drawn apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(0.1, 1, (400, 2))
    ends = stats.bootstrap([x])
    for column in range(2):
        half = 1.96 * x[:, column].std() / 20
        by_hand = x[:, column].mean() - half, x[:, column].mean() + half
        assert ends[column] == pytest.approx(by_hand, abs=0.01)
        assert ends[column] == pytest.approx(stats.paired_bootstrap(x[:, column]), abs=0.01)
    shares = rng.binomial(1, 0.3, 500)
    half = 1.96 * shares.std() / math.sqrt(500)
    assert stats.paired_bootstrap(shares) == pytest.approx((shares.mean() - half, shares.mean() + half), abs=0.006)
    parts = [rng.normal(0, 1, 100), rng.normal(1, 3, 400)]
    half = 1.96 * math.sqrt(parts[0].var() / 100 + parts[1].var() / 400) / 2
    middle = (parts[0].mean() + parts[1].mean()) / 2
    assert stats.bootstrap(parts) == pytest.approx((middle - half, middle + half), abs=0.02)
    assert stats.paired_bootstrap(np.full(9, 0.25)) == (0.25, 0.25) and (stats.bootstrap([x]) == ends).all()


def coverage(samples: np.ndarray, mean: float, percentiles: tuple[float, float]) -> float:
    """Share of the samples (experiments, S) whose bootstrap interval over seeds holds the true mean."""
    low, high = stats.bootstrap([samples.T], percentiles).T
    return ((low <= mean) & (mean <= high)).mean()


def test_intervals_of_eight_seeds_cover_what_they_say():
    """Widened, 95% intervals cover 93 to 97%, and plain percentiles 88 to 90%.

    Not where one seed in four is an outlier on the same side: then eight seeds often hold none, no bootstrap
    can know of it, and the interval covers 90% (plain: 88%). docs/ablations.md says so.
    """
    rng = np.random.default_rng(0)
    early, late = rng.uniform(0.2, 0.7, (2, 600, 8))           # discoveries at any time
    mixed = np.where(rng.random((600, 8)) < 0.25, 0.3, 0.0) + rng.normal(0, 0.05, (600, 8))
    for samples, mean, least in ((rng.normal(0.1, 0.05, (600, 8)), 0.1, 0.92), (early - late, 0.0, 0.92),
                                 (mixed, 0.075, 0.86)):
        wide, plain = (coverage(samples, mean, ends) for ends in (stats.widened(8), (2.5, 97.5)))
        assert plain < wide and least <= wide <= 0.98, (plain, wide)
    three = coverage(rng.normal(0, 1, (600, 3)), 0, stats.widened(3))
    assert three < 0.81, "so fewer than five seeds have none"
    assert stats.interval_of_runs(np.ones(4)) is None and stats.interval_of_runs(np.ones(5)) == (1, 1)


def test_the_same_arm_under_six_names_is_seldom_shown():
    """2,000 null experiments of six contrasts with one `full` over eight seeds: at most 5% show anything."""
    rng = np.random.default_rng(5)
    signs = np.array(list(itertools.product((1, -1), repeat=8)))
    shown = 0
    for _ in range(2000):
        area = rng.normal(0.5, 0.08, (7, 8))
        sums = np.abs((area[0] - area[1:]) @ signs.T)           # (6, 256), as `sign_flip` counts them
        p = (sums >= sums[:, :1] * (1 - 1e-12)).mean(1)
        shown += min(stats.holm(p.tolist())) < 0.05
    assert p[0] == stats.sign_flip(area[0] - area[1])
    assert shown / 2000 <= 0.05, shown
