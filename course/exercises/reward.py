"""Exercise 5: a teacher's reward that resists noise.

Check it with: python -m pytest course/tests/test_reward.py

Paying a teacher 4 p (1 - p), p = correct / n, for a task that its student solved in `correct` of n attempts
(learnability; rewards.py) invites it to farm noise: a task whose answer is a coin has p near 1/2 forever,
nobody learns anything from it, and it pays best of all. `guess` is known: how often the most frequent answer
of the archive would be right.

Write a reward in [0, 1] that pays for tasks of medium difficulty, but next to nothing where the successes may
well be luck. What the test wants, with B a binomial draw of n attempts:

    1. 0 where nobody or everybody succeeded
    2. B ~ Bin(n, guess), guess .1, .25, .5, n = 4, 8, 16: paid 0.05 on average at most    no farming
    3. B ~ Bin(8, 1/2), guess .05: paid 0.5 on average at least    open tasks still pay,
       and B ~ Bin(16, .6), guess .25: the same                    also where one can guess in part
    4. never more for a task that is easier to guess
    5. guess .05: more where half of the attempts succeeded than where all but one did    medium is best

A threshold on p (`--teacher-reward noise-proof`) meets 1, 3, 4 and 5. Why not 2? A hint: how likely are so
many successes by luck? In rewards.py a reward is a function of one Outcome: there yours is asked as
reward(outcome.n_correct, outcome.n_attempts, outcome.majority_baseline).
"""


def reward(correct: int, n: int, guess: float) -> float:
    """In [0, 1]: `correct` of n attempts succeeded; guess, in [0, 1), is the chance of guessing right."""
    raise NotImplementedError("exercise 5")
