"""Exercise 4: pass@k without bias.

Check it with: python -m pytest course/tests/test_pass_at_k.py

pass@k is the chance that at least one of k sampled answers to a question is right (Chen et al. 2021, arXiv
2107.03374, section 2.1). Of n >= k answers c were right. Each choice of k of the n is an equally good look at
the question, and in C(n-c, k) of the C(n, k) choices all are wrong:

    pass@k = 1 - C(n-c, k) / C(n, k)            C(a, k) = 0 where a < k: every choice holds a right answer

Averaged over draws of n answers that are right with probability p each, this is exactly 1 - (1-p)^k. Traps:

    1. The plug-in 1 - (1 - c/n)^k is too low on average, for k > 1: a power is convex.
    2. Factorials of n = 1000 do not fit a float: take Python's integers, or a product of factors below 1.
    3. For k > n the formula says 1 even if no answer was right, where really nothing is known: raise a
       ValueError, as for k < 1, c < 0 and c > n.

Trained models beat their base at k = 1 and lose to it at large k (arXiv 2504.13837). What did they learn?
"""


def pass_at_k(n: int, c: int, k: int) -> float:
    """pass@k, in [0, 1], of n sampled answers of which c were right; 1 <= k <= n."""
    raise NotImplementedError("exercise 4")
