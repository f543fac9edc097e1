"""Grades exercise 5 by expectation over all outcomes: any reward that resists noise passes."""
from collections.abc import Callable
from math import comb
from types import ModuleType

import pytest

import rewards


def paid(
    reward: Callable,                   # (correct, n, guess) -> float
    n: int,
    p: float,
    guess: float,
) -> float:
    """Expected reward of a task that each of n attempts solves with probability p."""
    mean = 0.0
    for correct in range(n + 1):
        of_one_order = p ** correct * (1 - p) ** (n - correct)
        chance = comb(n, correct) * of_one_order
        mean += chance * reward(correct, n, guess)
    return mean


def test_between_0_and_1_and_nothing_for_the_trivial(work: ModuleType):
    for n in (1, 2, 4, 8, 16):
        for guess in (0, 0.05, 0.25, 0.5, 0.9):
            for correct in range(n + 1):
                got = work.reward(correct, n, guess)
                assert 0 <= got <= 1, f"{correct} of {n} correct, guess {guess}"
            assert work.reward(0, n, guess) == 0, "where nobody succeeded"
            assert work.reward(n, n, guess) == 0, "where everybody succeeded"


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("guess", [0.1, 0.25, 0.5])
def test_guessing_does_not_pay(work: ModuleType, n: int, guess: float):
    got = paid(work.reward, n, guess, guess)
    assert got <= 0.05, f"all successes are luck: 0.05 at most should be paid on average, not {got:.3f}"


def test_open_tasks_still_pay(work: ModuleType):
    got = paid(work.reward, 8, 0.5, 0.05)
    assert got >= 0.5, f"half of the attempts succeed, not by luck: 0.5 or more should be paid, not {got:.3f}"


def test_what_can_be_guessed_in_part_pays_too(work: ModuleType):
    got = paid(work.reward, 16, 0.6, 0.25)
    assert got >= 0.5, f"far more succeed than by luck: 0.5 or more should be paid, not {got:.3f}"


@pytest.mark.parametrize("n", [8, 16])
def test_medium_difficulty_is_paid_best(work: ModuleType, n: int):
    """Paid the same for whatever is no luck, a teacher would not learn which tasks are better."""
    medium = work.reward(n // 2, n, 0.05)
    easy = work.reward(n - 1, n, 0.05)
    assert medium > easy, f"{n // 2} of {n} should be paid more than {n - 1} of {n}"


def test_never_more_where_guessing_is_easier(work: ModuleType):
    guesses = [i / 20 for i in range(20)]
    for n in (4, 8, 16):
        for correct in range(n + 1):
            got = [work.reward(correct, n, guess) for guess in guesses]
            assert got == sorted(got, reverse=True), f"{correct} of {n} correct: should fall as guess rises"


def test_the_loops_own_rewards_would_not_do(work: ModuleType):
    """Learnability pays for a coin, and a threshold on p alone still pays for luck: yours must do better than
    both."""
    def learnability(correct: int, n: int, guess: float) -> float:
        return rewards.learnability(rewards.Outcome(correct / n))

    def threshold(correct: int, n: int, guess: float) -> float:
        return rewards.noise_proof(rewards.Outcome(correct / n, majority_baseline=guess))

    # each for a task whose answer is a coin
    yours = paid(work.reward, 4, 0.5, 0.5)
    of_threshold = paid(threshold, 4, 0.5, 0.5)
    of_learnability = paid(learnability, 4, 0.5, 0.5)
    assert yours < of_threshold < of_learnability
