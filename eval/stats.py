"""Statistics: pass@k, Wilson's interval, one bootstrap, an exact test over seeds.

A question counts once, as the mean of its samples. Between training runs the run is the unit: its members and its answers
to many questions are nested in it, so that more questions cannot stand in for more seeds.
"""
import itertools
import math

import numpy as np


def wilson(right: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    p, z2 = right / n, z * z / n
    middle, half = p + z2 / 2, z * math.sqrt(p * (1 - p) / n + z2 / (4 * n))
    return (middle - half) / (1 + z2), (middle + half) / (1 + z2)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of k answers to a question is right, from n answers of which c are right, unbiased
    (2107.03374, eq. 1)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap(values: np.ndarray) -> np.ndarray:
    """95% percentile interval (2,) of the mean of values (n,), by 10,000 draws of items."""
    rng = np.random.default_rng(0)
    means = [rng.choice(values, (500, len(values))).mean(1) for _ in range(20)]
    return np.percentile(np.concatenate(means), (2.5, 97.5))


def sign_flip(differences: np.ndarray) -> float:
    """Two-sided p of the mean of paired differences (S,) under all 2^S sign patterns (Fisher 1935)."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    sums = np.abs(signs @ differences)
    return float(np.mean(sums >= sums[0] * (1 - 1e-12)))
