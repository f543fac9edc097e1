"""Exercise 3: the advantage of REINFORCE++.

Check it with: python -m pytest course/tests/test_advantage.py

arXiv 2501.03262, with a baseline. N rows (answers) with rewards r; rows of one prompt share a group; rows of
one member in one role share a learner; row i has T_i answer tokens, each of which gets the row's advantage.

    d_i = r_i - mean of r over the rows of i's group              the baseline: was it better than its siblings?
    m   = sum(T_i d_i) / sum(T_i)                                 over the live rows of one learner
    s^2 = sum(T_i (d_i - m)^2) / sum(T_i)                         over the same
    adv_i = (d_i - m) / (s + 1e-6)                                whitened over the learner's tokens

A group whose rewards are all equal (standard deviation at most 1e-6) says nothing: its rows get exactly 0,
and they are not live, which means that they take no part in m and s. It is the group that is live or not: a
row whose reward happens to be its group's mean (d_i = 0) counts like its siblings. Why must the whitening be
per learner, and not over the whole batch?
"""
from torch import Tensor


def advantages(reward: Tensor, group: Tensor, learner: Tensor, n_tokens: Tensor) -> Tensor:
    """The advantages (N,), float32 or float64. reward, n_tokens (N,) floats; group, learner (N,) ints."""
    raise NotImplementedError("exercise 3")
