"""Statistics of evaluation: pass@k, intervals, paired differences, exact tests, the seeds a comparison needs.

A question counts once, as the mean of its samples. Between training runs the run is the unit: its members
and its answers to many questions are nested in it, so that more questions cannot stand in for more seeds.
"""
import functools
import itertools
import math
from statistics import NormalDist

import numpy as np

EXACT_SIGNS = 16                    # seeds up to which every sign pattern is counted
DRAWS = 10_000                      # of every bootstrap
FEWEST_RUNS = 5                     # that have an interval
SIMULATED_SEEDS = 10                # up to which the power of the exact test is simulated
DRAWN_TOGETHER = 500                # of these: what is in memory at a time
ANGLES = 100_001                    # steps of the integral under Student's t


# ---- one run -----------------------------------------------------------------------------------------------

def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k answers to a question is right, from n answers of which c are right.

    Unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1): 1 - C(n-c, k) / C(n, k), the share of all sets of k
    of the n answers that hold a right one; computed as 1 minus the product over i < k of (n-c-i) / (n-i), so
    that nothing overflows. The plug-in 1 - (1 - c/n)^k is, in the mean, too low for k > 1.
    Raises ValueError for k > n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} from {n} answers, {c} of them right: k must be from 1 to the number of "
                         "answers (--samples draws more), and right ones no more than answers")
    if k > n - c:
        return 1.0                                # fewer wrong answers than k: every set holds a right one
    all_wrong = 1.0
    for i in range(k):
        all_wrong *= (n - c - i) / (n - i)
    return 1.0 - all_wrong


def wilson(right: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927), 95%; (0, 1) for n = 0. right: also a sum of shares."""
    if n == 0:
        return 0.0, 1.0
    p = right / n
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(max(p * (1 - p), 0.0) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def paired_bootstrap(differences: np.ndarray, n_draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of the mean of paired differences (n,), items drawn with replacement."""
    return stratified_bootstrap([differences], n_draws, seed)


def stratified_bootstrap(strata: list[np.ndarray], n_draws: int = DRAWS,
                         seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of the mean of the strata's means, items drawn with replacement within each.

    The strata (subjects, say) are those that there are: the interval says nothing of others.
    """
    rng = np.random.default_rng(seed)
    means = np.zeros(n_draws)
    for stratum in strata:
        n = len(stratum)
        values, counts = np.unique(stratum, return_counts=True)
        means += rng.multinomial(n, counts / n, size=n_draws) @ values / n      # how often each is drawn
    low, high = np.percentile(means / len(strata), [2.5, 97.5])
    return float(low), float(high)


def bootstrap_columns(values: np.ndarray, n_draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """95% percentile intervals (..., 2) of the means over items of values (n, ...).

    One draw of n items with replacement serves all columns, so that a hundred cost little more than one.
    Where all items have the same value (all solved, say), the interval has no width, as that of any
    bootstrap.
    """
    rng = np.random.default_rng(seed)
    n = len(values)
    columns = values.reshape(n, -1)
    means = []
    for start in range(0, n_draws, DRAWN_TOGETHER):
        weights = rng.multinomial(n, np.full(n, 1 / n), size=min(DRAWN_TOGETHER, n_draws - start))
        means.append(weights @ columns / n)
    ends = np.percentile(np.concatenate(means), [2.5, 97.5], axis=0)
    return ends.T.reshape(*values.shape[1:], 2)


# ---- several runs ------------------------------------------------------------------------------------------

def t_quantile(share: float, freedom: int) -> float:
    """The value below which a share (.5 to 1) of Student's t with so many degrees of freedom lies.

    With t = sqrt(freedom) tan(a) the density is cos(a)^(freedom-1), which is summed up numerically.
    """
    angle = np.linspace(0, math.pi / 2, ANGLES)
    density = np.cos(angle) ** (freedom - 1)
    below = np.append(0, np.cumsum(density[1:] + density[:-1]))
    return math.sqrt(freedom) * math.tan(np.interp(2 * share - 1, below / below[-1], angle))


@functools.cache
def widened(n: int) -> tuple[float, float]:
    """The percentiles between which a bootstrap of n units holds 95%: further out than 2.5 and 97.5.

    Hesterberg (2015, The American Statistician 69:371, "expanded percentile interval"): the bootstrap's
    spread is too small by sqrt((n-1)/n), and takes it for known, which Student's t does not.
    """
    if n < 2:
        return 0.0, 100.0
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile(0.975, n - 1))
    return 100 * tail, 100 * (1 - tail)


@functools.lru_cache(maxsize=4)
def draws(n_outer: int, n_items: int, n_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap weights of outer units (n_draws, n_outer) and items (n_draws, n_items): shares of a row."""
    rng = np.random.default_rng(seed)
    outer = rng.multinomial(n_outer, np.full(n_outer, 1 / n_outer), size=n_draws) / n_outer
    items = rng.multinomial(n_items, np.full(n_items, 1 / n_items), size=n_draws) / n_items
    return outer, items


def item_effects(x: np.ndarray) -> np.ndarray:
    """What each item of x (S, n) adds to the mean (n,), shrunk to the variance that items have of their own.

    An item's mean over S runs also holds a part of what is left when runs and items are taken out, which the
    runs' means hold already. Counted twice it would make intervals a third too wide (Owen 2007, "The
    pigeonhole bootstrap").
    """
    S, n = x.shape
    effect = x.mean(0) - x.mean()
    if S == 1 or n == 1:
        return effect
    rest = x - x.mean(1, keepdims=True) - effect
    of_items = S * (effect ** 2).sum() / (n - 1)
    of_rest = (rest ** 2).sum() / ((S - 1) * (n - 1))
    return effect * math.sqrt(max(0.0, 1 - of_rest / of_items)) if of_items else effect


def drawn_means(x: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """Means (n_draws,) of x (S, n), its rows drawn with replacement, and the effects of its columns.

    There are items enough: their part is narrowed by as much as `widened` percentiles will widen it.
    """
    S, n = x.shape
    outer, items = draws(S, n, n_draws, seed)
    wider = NormalDist().inv_cdf(widened(S)[1] / 100) / NormalDist().inv_cdf(0.975) if S > 1 else 1.0
    return outer @ x.mean(1) + items @ item_effects(x) / wider


def hierarchical_bootstrap(differences: np.ndarray, n_draws: int = DRAWS,
                           seed: int = 0) -> tuple[float, float]:
    """95% interval of the mean of differences (S, n): S runs on n shared items, both drawn with replacement.

    The items are crossed with the runs (every run answers all). The percentiles are `widened` for S runs;
    n = 1 is a bootstrap over runs alone.
    """
    low, high = np.percentile(drawn_means(differences, n_draws, seed), widened(len(differences)))
    return float(low), float(high)


def interval_of(x: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of differences (S, n) over runs and items; None under FEWEST_RUNS, where a
    bootstrap's would hold the truth in three of four experiments."""
    return hierarchical_bootstrap(x) if len(x) >= FEWEST_RUNS else None


def ratio_bootstrap(top: np.ndarray, bottom: np.ndarray, n_draws: int = DRAWS,
                    seed: int = 0) -> tuple[float, float]:
    """95% interval of mean(top) / mean(bottom), both (D, n) and paired, as in `hierarchical_bootstrap`.

    (nan, nan) where the bottom is 0 in a draw.
    """
    above = drawn_means(top, n_draws, seed)
    below = drawn_means(bottom, n_draws, seed)
    if not (below > 0).all():
        return math.nan, math.nan
    low, high = np.percentile(above / below, widened(len(top)))
    return float(low), float(high)


def sign_flip(differences: np.ndarray, n_draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of the mean of paired differences (S,) under all 2^S sign patterns (Fisher 1935).

    Never under 2 / 2^S. Exact for up to EXACT_SIGNS seeds, beyond by drawn patterns (the observed one among
    them).
    """
    S = len(differences)
    if S == 0:
        return 1.0
    if S <= EXACT_SIGNS:
        signs = np.array(list(itertools.product((1, -1), repeat=S)))
    else:
        drawn = np.random.default_rng(seed).choice((1, -1), size=(n_draws, S))
        signs = np.vstack((np.ones(S), drawn))
    sums = np.abs(signs @ np.asarray(differences, float))
    return float((sums >= sums[0] * (1 - 1e-12)).mean())


def holm(p: list[float]) -> list[float]:
    """p-values adjusted for as many comparisons as there are (Holm 1979), in the order given."""
    order = sorted(range(len(p)), key=p.__getitem__)
    out = [0.0] * len(p)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        out[i] = worst
    return out


@functools.cache
def least_effect(S: int, power: float, level: float) -> float:
    """The mean, in standard deviations, that `sign_flip` finds in S normal differences with this power.

    By bisection over 2,000 simulated experiments.
    """
    noise = np.random.default_rng(S).normal(size=(2000, S))
    signs = np.array(list(itertools.product((1, -1), repeat=S)))[:2 ** (S - 1)]     # the others mirror them
    low, high = 0.0, 8.0
    for _ in range(12):
        effect = (low + high) / 2
        sums = np.abs((noise + effect) @ signs.T)
        p = (sums >= sums[:, :1] * (1 - 1e-12)).mean(1)
        low, high = (low, effect) if (p < level).mean() >= power else (effect, high)
    return high


def seeds_needed(effect: float, spread: float, power: float = 0.8, level: float = 0.05) -> int:
    """Pairs of runs with which `sign_flip` finds a difference of `effect` at p < level with this power.

    spread: standard deviation of the differences of single seeds. Simulated where few suffice, by Guenther's
    formula (1981) of the paired t-test beyond.
    """
    z = NormalDist().inv_cdf
    fewest = math.ceil(math.log2(2 / level))
    for S in range(fewest, SIMULATED_SEEDS + 1):
        if effect >= spread * least_effect(S, power, level):
            return S
    a, b = z(1 - level / 2), z(power)
    return max(SIMULATED_SEEDS + 1, math.ceil(((a + b) * spread / effect) ** 2 + a * a / 2))
