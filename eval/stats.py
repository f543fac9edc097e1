"""Computes intervals, an exact test over seeds and Holm's correction.

A question counts once, as the mean of its samples. Between training runs the run is the unit: the members
of a run and their answers to many questions are nested in it, so more questions cannot stand in for more
seeds.
"""
import itertools
import math

import numpy as np

FEWEST_RUNS = 5                     # seeds below which there is no interval
# The .975 quantile of Student's t with 4, 5, 6, ... degrees of freedom.
T = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
     2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


def bootstrap(values: np.ndarray) -> np.ndarray:
    """Returns the 95% percentile interval (2,) of the mean of values (n,), by 2,000 draws of n values."""
    drawn = np.random.default_rng(0).choice(values, (2000, len(values)))
    return np.percentile(drawn.mean(1), (2.5, 97.5))


def interval_of_runs(differences: np.ndarray) -> tuple[float, float] | None:
    """Returns Student's 95% interval of the mean of paired differences (S,) over S seeds; None for too few
    seeds. The bootstrap of so few values would be too narrow."""
    S = len(differences)
    if S < FEWEST_RUNS:
        return None
    t = T[min(S - FEWEST_RUNS, len(T) - 1)]
    half = t * np.std(differences, ddof=1) / math.sqrt(S)
    middle = np.mean(differences)
    return middle - half, middle + half


def sign_flip(differences: np.ndarray) -> float:
    """Returns the two-sided p of the mean of paired differences (S,) under all 2^S sign patterns (Fisher
    1935); beyond 16 seeds under 2^16 that are drawn."""
    S = len(differences)
    if S > 16:
        patterns = np.random.default_rng(0).choice((1, -1), (1 << 16, S))
        patterns[0] = 1                         # what was seen
    else:
        patterns = np.array(list(itertools.product((1, -1), repeat=S)))     # the first one is all 1
    sums = np.abs(patterns @ differences)
    least = sums[0] * (1 - 1e-12)               # a sum that is equal but for rounding counts
    return np.mean(sums >= least)


def holm(p: list[float]) -> list[float]:
    """Returns the p-values adjusted for as many comparisons as there are (Holm 1979), in the order given."""
    adjusted = [0.0] * len(p)
    largest = 0.0                               # an adjusted value is never below an earlier one
    for place, i in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, (len(p) - place) * p[i])
        adjusted[i] = min(1.0, largest)
    return adjusted
