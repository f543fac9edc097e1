"""Statistics of evaluation: pass@k, one bootstrap, an exact test, Holm's correction.

A question counts once, as the mean of its samples. Between training runs the run is the unit: its members
and its answers to many questions are nested in it, so that more questions cannot stand in for more seeds.
"""
import itertools
import math
from statistics import NormalDist

import numpy as np

from infra.errors import demand

EXACT_SIGNS = 16                    # seeds up to which every sign pattern is counted
FEWEST_RUNS = 5                     # that have an interval


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of k answers to a question is right, from n answers of which c are right: 1 - C(n-c, k)
    / C(n, k), unbiased (Chen et al. 2021, arXiv 2107.03374, eq. 1). Raises UserError for k > n."""
    demand(0 <= c <= n and 1 <= k <= n, f"pass@{k} from {n} answers, {c} of them right: k must be from 1 to "
           "the number of answers (--samples draws more), and right ones no more than answers")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def covered(answers: list[tuple[int, int]], k: int) -> float:
    """Chance that one of k answers to a question is right, as many of them from each member. answers: of each
    member how many it gave, and how many are right. Unbiased, as members answer independently; of one member
    pass@k. Raises UserError where k is no multiple of the members."""
    share, rest = divmod(k, len(answers))
    demand(rest == 0, f"{k} answers cannot be dealt out evenly to {len(answers)} members")
    all_wrong = 1.0
    for n, right in answers:
        all_wrong *= 1 - pass_at_k(n, right, share)
    return 1 - all_wrong


def bootstrap(
    values: np.ndarray,                 # (n, ...), such as differences
    percentiles: tuple[float, float] = (2.5, 97.5),
) -> np.ndarray:
    """95% percentile interval (..., 2) of the mean of values, by 10,000 draws of items. All columns of a draw
    have the same items."""
    n = len(values)
    items = np.reshape(values, (n, -1)).astype(float)                    # (n, columns)
    # Equal items are drawn as one: most values are 0 or 1, and a benchmark has a thousand of them.
    distinct, counts = np.unique(items, axis=0, return_counts=True)
    if len(distinct) == n:
        distinct = items
    rng = np.random.default_rng(0)
    means = []
    for _ in range(20):
        drawn = rng.multinomial(n, counts / n, size=500)                 # (500, distinct)
        means.append(drawn @ distinct / n)
    means = np.reshape(means, (-1, *np.shape(values)[1:]))               # (10000, ...)
    interval = np.percentile(means, percentiles, axis=0)
    return np.moveaxis(interval, 0, -1)


def widened(n: int) -> tuple[float, float]:
    """The percentiles between which a bootstrap of n units holds 95%: further out than 2.5 and 97.5.

    Hesterberg (2015, The American Statistician 69:371, "expanded percentile interval"): the bootstrap's
    spread is too small by sqrt((n-1)/n), and takes it for known, which Student's t does not. With t =
    sqrt(n-1) tan(a) the density of t is cos(a)^(n-2), summed up here numerically.
    """
    angle = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (n - 2)
    steps = density[1:] + density[:-1]
    below = np.append(0, np.cumsum(steps))
    at_95 = np.interp(0.95, below / below[-1], angle)
    t = math.sqrt(n - 1) * math.tan(at_95)
    wider = math.sqrt(n / (n - 1))
    tail = 100 * NormalDist().cdf(-wider * t)
    return tail, 100 - tail


def interval_of_runs(differences: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of paired differences (S,) over runs; None under FEWEST_RUNS."""
    S = len(differences)
    if S < FEWEST_RUNS:
        return None
    interval = bootstrap(differences, widened(S))
    return tuple(interval.tolist())


def sign_flip(differences: np.ndarray) -> float:
    """Two-sided p of the mean of paired differences (S,) under all 2^S sign patterns (Fisher 1935), never
    under 2 / 2^S; beyond EXACT_SIGNS seeds under 100,000 of them, one of which is the observed."""
    S = len(differences)
    if S <= EXACT_SIGNS:
        patterns = itertools.product((1, -1), repeat=S)                  # the first one is all 1
        signs = np.array(list(patterns))                                 # (2 ** S, S)
    else:
        rng = np.random.default_rng(0)
        signs = rng.choice((1, -1), size=(100_000, S))
        signs[0] = 1
    sums = np.abs(signs @ differences)
    least = sums[0] * (1 - 1e-12)               # a sum that is equal but for rounding counts
    return np.mean(sums >= least)


def holm(p: list[float]) -> list[float]:
    """p-values adjusted for as many comparisons as there are (Holm 1979), in the order given."""
    n = len(p)
    order = np.argsort(p, kind="stable")
    ascending = np.asarray(p)[order]
    n_left = n - np.arange(n)
    steps = np.minimum(1.0, n_left * ascending)
    adjusted = np.empty(n)
    adjusted[order] = np.maximum.accumulate(steps)                       # never below an earlier one
    return adjusted.tolist()
