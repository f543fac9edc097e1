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
        sums = []
        for signs in itertools.product((1, -1), repeat=len(differences)):
            sums.append(abs(np.dot(signs, differences)))
        by_hand = np.mean([x >= abs(sum(differences)) - 1e-12 for x in sums])
        assert stats.sign_flip(differences) == pytest.approx(by_hand)
    assert stats.sign_flip([1, 2, 3]) == 0.25 and stats.sign_flip([0.1] * 6) == 2 / 64
    assert stats.sign_flip([]) == 1
    many = np.random.default_rng(0).normal(0.5, 1, 20)
    z = abs(many.sum()) / np.sqrt((many ** 2).sum())            # nearly normal over sign patterns
    assert stats.sign_flip(many) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)


def test_holm():
    """p adjusted by hand: R's p.adjust(c(.01, .02, .03, .04, .05), "holm") gives .05 .08 .09 .09 .09."""
    assert stats.holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_six_contrasts_over_eight_seeds_can_be_shown():
    """The plan's arithmetic: 2/256 = .0078, six times which is .047."""
    p = [stats.sign_flip([0.1 + 0.01 * i for i in range(8)]), *[0.5] * 5]
    assert p[0] == 2 / 256 and stats.holm(p)[0] == pytest.approx(0.046875)


def test_student_s_t_is_that_of_the_tables():
    """Two-sided 5% points of Student's t, as in any table."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 7: 2.365, 29: 2.045, 120: 1.980}
    for freedom, value in table.items():
        assert stats.t_quantile(0.975, freedom) == pytest.approx(value, abs=0.0006)


def test_percentiles_are_widened_as_hesterberg_says():
    """Hesterberg (2015): the tail is that of a normal at sqrt(n / (n-1)) t; with many units 2.5% again."""
    low, high = stats.widened(8)
    tail = math.erfc(math.sqrt(8 / 7) * 2.364624 / math.sqrt(2)) / 2
    assert low == pytest.approx(100 * tail, rel=1e-3) and high == pytest.approx(100 - low)
    assert stats.widened(1) == (0, 100) and stats.widened(100_000)[0] == pytest.approx(2.5, abs=0.001)


def test_scipy_agrees():
    scipy = pytest.importorskip("scipy.stats", reason="scipy is no requirement; where it is, it must agree")
    x = np.random.default_rng(3).normal(0.3, 1, 8)

    def total(values, axis):
        return values.sum(axis)
    theirs = scipy.permutation_test((x,), total, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip(x) == pytest.approx(theirs.pvalue)
    for freedom in (1, 2, 7, 30):
        assert stats.t_quantile(0.975, freedom) == pytest.approx(scipy.t.ppf(0.975, freedom), rel=1e-4)
    theirs = scipy.bootstrap((x,), np.mean, method="percentile", n_resamples=20_000, rng=0)
    ours = np.percentile(stats.drawn_means(x[:, None], 20_000, 0), [2.5, 97.5])
    assert ours == pytest.approx(theirs.confidence_interval, abs=0.05)


# ---- bootstrap ---------------------------------------------------------------------------------------------

def test_hierarchical_bootstrap_has_the_variance_of_crossed_runs_and_items():
    rng = np.random.default_rng(1)
    S, n = 12, 300
    x = 0.1 + rng.normal(0, 0.03, (S, 1)) + rng.normal(0, 0.4, (1, n)) + rng.normal(0, 0.2, (S, n))
    interval = stats.hierarchical_bootstrap(x)
    of_seeds = x.mean(1).var(ddof=1)                            # analysis of variance, by hand
    rest = x - x.mean(0) - x.mean(1)[:, None] + x.mean()
    of_items = x.mean(0).var(ddof=1) - (rest ** 2).sum() / ((S - 1) * (n - 1)) / S
    t = 2.201                                                   # of 11 degrees of freedom, for the seeds' part
    half = math.sqrt(t ** 2 * of_seeds / S + 1.96 ** 2 * of_items / n)
    assert interval == pytest.approx((x.mean() - half, x.mean() + half), abs=0.006)
    items = stats.paired_bootstrap(x.mean(0))
    assert interval[1] - interval[0] > items[1] - items[0], "more than items alone would say"
    assert stats.hierarchical_bootstrap(np.full((3, 5), 0.25)) == (0.25, 0.25)
    assert stats.hierarchical_bootstrap(x) == interval


def test_ratio_bootstrap():
    bottom = np.random.default_rng(0).random((4, 200)) + 0.5
    assert stats.ratio_bootstrap(0.9 * bottom, bottom) == pytest.approx((0.9, 0.9)), "what is common cancels"
    low, high = stats.ratio_bootstrap(np.random.default_rng(1).random((4, 200)) + 0.5, bottom)
    assert low < 1 < high
    assert all(map(math.isnan, stats.ratio_bootstrap(bottom, np.zeros((4, 200)))))


def coverage(samples: np.ndarray, mean: float, percentiles: tuple[float, float]) -> float:
    """Share of the samples (experiments, S) whose bootstrap interval over seeds holds the true mean."""
    outer, _ = stats.draws(samples.shape[1], 1, 2000, 0)
    held = 0
    for part in np.array_split(samples, 20):
        low, high = np.percentile(outer @ part.T, percentiles, axis=0)
        held += int(((low <= mean) & (mean <= high)).sum())
    return held / len(samples)


def spreads(rng: np.random.Generator, n: int, seeds: int) -> dict[str, tuple[np.ndarray, float]]:
    """Plausible spreads of a difference of areas over seeds: samples (n, seeds) and their mean."""
    early, late = rng.uniform(0.2, 0.7, (2, n, seeds))          # discoveries at any time
    mixed = np.where(rng.random((n, seeds)) < 0.25, 0.3, 0.0) + rng.normal(0, 0.05, (n, seeds))
    return {"normal": (rng.normal(0.1, 0.05, (n, seeds)), 0.1), "difference of times": (early - late, 0.0),
            "one in four jumps": (mixed, 0.075)}


def test_intervals_of_eight_seeds_cover_what_they_say():
    """Widened as the plan says, 95% intervals cover 93 to 97%, and plain percentiles 88 to 90%.

    Not where one seed in four is an outlier on the same side: then eight seeds often hold none, no bootstrap
    can know of it, and the interval covers 90% (plain: 88%). docs/ablations.md says so.
    """
    found = {}
    for name, (samples, mean) in spreads(np.random.default_rng(0), 3000, 8).items():
        wide = coverage(samples, mean, stats.widened(8))
        plain = coverage(samples, mean, (2.5, 97.5))
        assert plain < wide, (name, plain, wide)
        found[name] = wide, plain
    assert 0.93 <= found["normal"][0] <= 0.97 and 0.87 <= found["normal"][1] <= 0.92
    assert 0.93 <= found["difference of times"][0] <= 0.97
    assert 0.87 <= found["one in four jumps"][0] <= 0.93


def numbers(rng: np.random.Generator, seeds: int) -> np.ndarray:
    """Differences (seeds, 132) of mean 0 by seed, item and what is left."""
    x = rng.normal(0, 0.05, (seeds, 1)) + rng.normal(0, 0.3, (1, 132))
    return x + rng.normal(0, 0.4, (seeds, 132))


def right_or_wrong(rng: np.random.Generator, seeds: int) -> np.ndarray:
    """Differences of two arms' answers: an item's chance is its own, and hardly differs between the arms."""
    chance = rng.uniform(0.15, 0.85, (1, 132))
    other = chance + rng.normal(0, 0.05, (1, 132)) + rng.normal(0, 0.03, (seeds, 1))
    return (rng.random((seeds, 132)) < other).astype(float) - (rng.random((seeds, 132)) < chance)


@pytest.mark.parametrize("made", [numbers, right_or_wrong])
@pytest.mark.parametrize("seeds, least", [(5, 900), (8, 930)])
def test_intervals_over_seeds_and_items_cover_what_they_say(seeds, least, made):
    """Crossed seeds and items, from simulated experiments one by one; of five seeds alone it is 91%, too."""
    rng = np.random.default_rng(seeds)
    held = 0
    for _ in range(1000):
        low, high = stats.hierarchical_bootstrap(made(rng, seeds), 1000)
        held += low <= 0 <= high
    assert least <= held <= 970, held


def test_fewer_than_five_seeds_have_no_interval():
    """Three seeds' would hold the truth in some 75% of experiments, five hold it in 91%."""
    rng = np.random.default_rng(0)
    for seeds, least, most in ((3, 0.70, 0.80), (5, 0.90, 0.95)):
        held = coverage(rng.normal(0, 1, (2000, seeds)), 0, stats.widened(seeds))
        assert least <= held <= most, (seeds, held)
    assert stats.interval_of(np.ones((4, 1))) is None and stats.interval_of(np.ones((5, 1))) == (1, 1)


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


def test_seeds_needed_agrees_with_power_tables():
    """Paired t-test, two-sided 5%, power 0.8: n = 34, 15, 10 for standardised effects .5, .8, 1 (Cohen)."""
    assert [stats.seeds_needed(effect, 1.0) for effect in (0.5, 0.8)] == [34, 15]
    assert stats.seeds_needed(0.02, 0.0) == 6, "five seeds cannot reach p < 0.05 with signs"
    assert stats.seeds_needed(0.02, 0.0, level=0.05 / 6) == 8


def test_few_seeds_find_what_they_are_said_to_find():
    """The exact test of six to nine seeds has power .8 where seeds_needed says so, from experiments of its own."""
    rng = np.random.default_rng(11)
    for seeds in (6, 7, 9):
        effect = stats.least_effect(seeds, 0.8, 0.05)
        assert stats.seeds_needed(1.001 * effect, 1.0) <= seeds < stats.seeds_needed(0.97 * effect, 1.0)
        found = [stats.sign_flip(x) < 0.05 for x in rng.normal(effect, 1, (1000, seeds))]
        assert 0.76 <= np.mean(found) <= 0.84, (seeds, np.mean(found))
