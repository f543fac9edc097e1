"""Grades exercise 5 by expectation over all outcomes, not by a formula: any reward that resists noise passes."""
from math import comb

import pytest

import rewards


def paid(reward, n, p, guess):
    """Expected reward of a task that each of n attempts solves with probability p."""
    return sum(comb(n, k) * p ** k * (1 - p) ** (n - k) * reward(k, n, guess) for k in range(n + 1))


def test_between_0_and_1_and_nothing_for_the_trivial(work):
    for n in (1, 2, 4, 8, 16):
        for guess in (0, 0.05, 0.25, 0.5, 0.9):
            assert all(0 <= work.reward(k, n, guess) <= 1 for k in range(n + 1))
            assert work.reward(0, n, guess) == 0 == work.reward(n, n, guess)


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("guess", [0.1, 0.25, 0.5])
def test_guessing_does_not_pay(work, n, guess):
    assert paid(work.reward, n, guess, guess) <= 0.05


def test_open_tasks_still_pay(work):
    assert paid(work.reward, 8, 0.5, 0.05) >= 0.5


@pytest.mark.parametrize("n", [8, 16])
def test_medium_difficulty_is_paid_best(work, n):
    """A constant for whatever is no luck would not tell a teacher which way to go."""
    assert work.reward(n // 2, n, 0.05) > work.reward(n - 1, n, 0.05)


def test_never_more_where_guessing_is_easier(work):
    for n in (4, 8, 16):
        for k in range(n + 1):
            got = [work.reward(k, n, guess / 20) for guess in range(20)]
            assert got == sorted(got, reverse=True)


def test_the_loops_own_rewards_would_not_do(work):
    """Learnability pays for a coin, and a threshold on p alone still pays for luck: yours must do better than both."""
    def learnability(correct, n, guess):
        return rewards.learnability(rewards.Outcome(correct / n))

    def threshold(correct, n, guess):
        return rewards.noise_proof(rewards.Outcome(correct / n, majority_baseline=guess))

    assert paid(work.reward, 4, 0.5, 0.5) < paid(threshold, 4, 0.5, 0.5) < paid(learnability, 4, 0.5, 0.5)
