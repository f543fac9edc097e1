"""Solution of exercise 5: learnability, where guessing would do as well less than one time in twenty.

A threshold on p ignores n: of 4 guesses at a coin, 3 are right one time in four.
"""
from math import comb


def reward(correct, n, guess):
    p = correct / n
    luck = sum(comb(n, k) * guess ** k * (1 - guess) ** (n - k) for k in range(correct, n + 1))
    return 4 * p * (1 - p) if luck < 0.05 else 0.0
