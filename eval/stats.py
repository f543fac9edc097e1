"""Statistics of evaluation: pass@k, one bootstrap, an exact test, Holm's correction.

A question counts once, as the mean of its samples. Between training runs the run is the unit: its members
and its answers to many questions are nested in it, so that more questions cannot stand in for more seeds.
"""
import itertools
import math
from statistics import NormalDist

import numpy as np

EXACT_SIGNS = 16                    # seeds up to which every sign pattern is counted
DRAWS = 10_000                      # of a bootstrap
DRAWN_TOGETHER = 500                # of these: what is in memory at a time
FEWEST_RUNS = 5                     # that have an interval
ANGLES = 100_001                    # steps of the integral under Student's t


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k answers to a question is right, from n answers of which c are right.

    Unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1): 1 - C(n-c, k) / C(n, k), the share of all sets of k
    of the n answers that hold a right one. The plug-in 1 - (1 - c/n)^k is, in the mean, too low for k > 1.
    Raises ValueError for k > n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} from {n} answers, {c} of them right: k must be from 1 to the number of "
                         "answers (--samples draws more), and right ones no more than answers")
    return 1.0 - math.prod((n - c - i) / (n - i) for i in range(k))


def wilson(right: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927), 95%; (0, 1) for n = 0. right: also a sum of shares."""
    if n == 0:
        return 0.0, 1.0
    p = right / n
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(max(p * (1 - p), 0.0) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


# ---- the bootstrap -----------------------------------------------------------------------------------------

def drawn_means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means (DRAWS, ...) of values (n, ...), items drawn with replacement; equal items are drawn as one."""
    n, columns = len(values), values.reshape(len(values), -1)
    distinct, counts = np.unique(columns, axis=0, return_counts=True)
    if len(distinct) == n:
        distinct = columns
    means = []
    for _ in range(DRAWS // DRAWN_TOGETHER):
        times = rng.multinomial(n, counts / n, size=DRAWN_TOGETHER)         # that each is drawn
        means.append(times @ distinct / n)
    return np.concatenate(means).reshape(DRAWS, *values.shape[1:])


def bootstrap(strata: list[np.ndarray], percentiles: tuple[float, float] = (2.5, 97.5),
              seed: int = 0) -> np.ndarray:
    """95% percentile interval (..., 2) of the mean of the means of strata (n, ...), drawn within each.

    All columns of a draw have the same items. The strata (subjects, say) are those that there are: the
    interval says nothing of others. Where all items are alike the interval has no width.
    """
    rng = np.random.default_rng(seed)
    means = sum(drawn_means(np.asarray(values, float), rng) for values in strata) / len(strata)
    return np.moveaxis(np.percentile(means, percentiles, axis=0), 0, -1)


def paired_bootstrap(differences: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean of paired differences (n,) over items."""
    low, high = bootstrap([differences])
    return float(low), float(high)


def t_quantile(share: float, freedom: int) -> float:
    """The value below which a share (.5 to 1) of Student's t with so many degrees of freedom lies.

    With t = sqrt(freedom) tan(a) the density is cos(a)^(freedom-1), which is summed up numerically.
    """
    angle = np.linspace(0, math.pi / 2, ANGLES)
    density = np.cos(angle) ** (freedom - 1)
    below = np.append(0, np.cumsum(density[1:] + density[:-1]))
    return math.sqrt(freedom) * math.tan(np.interp(2 * share - 1, below / below[-1], angle))


def widened(n: int) -> tuple[float, float]:
    """The percentiles between which a bootstrap of n units holds 95%: further out than 2.5 and 97.5.

    Hesterberg (2015, The American Statistician 69:371, "expanded percentile interval"): the bootstrap's
    spread is too small by sqrt((n-1)/n), and takes it for known, which Student's t does not.
    """
    tail = 100 * NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile(0.975, n - 1))
    return tail, 100 - tail


def interval_of_runs(differences: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of paired differences (S,) over runs; None under FEWEST_RUNS, where it would
    hold the truth in three of four experiments."""
    if len(differences) < FEWEST_RUNS:
        return None
    low, high = bootstrap([differences], widened(len(differences)))
    return float(low), float(high)


# ---- tests -------------------------------------------------------------------------------------------------

def sign_flip(differences: np.ndarray, n_draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of the mean of paired differences (S,) under all 2^S sign patterns (Fisher 1935).

    Never under 2 / 2^S. Exact for up to EXACT_SIGNS seeds, beyond by drawn patterns, the observed one first.
    """
    S = len(differences)
    if S <= EXACT_SIGNS:
        signs = np.array(list(itertools.product((1, -1), repeat=S))).reshape(2 ** S, S)
    else:
        drawn = np.random.default_rng(seed).choice((1, -1), size=(n_draws, S))
        signs = np.vstack((np.ones(S), drawn))
    sums = np.abs(signs @ np.asarray(differences, float))
    return float((sums >= sums[0] * (1 - 1e-12)).mean())


def holm(p: list[float]) -> list[float]:
    """p-values adjusted for as many comparisons as there are (Holm 1979), in the order given."""
    order = sorted(range(len(p)), key=p.__getitem__)
    out, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        out[i] = worst
    return out
