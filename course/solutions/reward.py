"""Solution of exercise 5: learnability, where guessing would do as well less than one time in twenty.

A threshold on p ignores n: of 4 guesses at a coin, 3 are right one time in four.
"""
from math import comb


def luck(correct: int, n: int, guess: float) -> float:
    """Probability that n guesses are right at least `correct` times."""
    total = 0.0
    for k in range(correct, n + 1):
        of_one_order = guess ** k * (1 - guess) ** (n - k)
        total += comb(n, k) * of_one_order
    return total


def reward(correct: int, n: int, guess: float) -> float:
    """4 p (1 - p), or 0 where luck explains the successes."""
    if luck(correct, n, guess) >= 0.05:
        return 0.0
    p = correct / n
    return 4 * p * (1 - p)
