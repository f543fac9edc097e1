"""Solution of exercise 4. They learned to give surely what their base gives now and then, and lost some of
what it gives rarely: surer and narrower. What they answer, the base answers, too, in enough attempts."""
from math import comb


def pass_at_k(n, c, k):
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} of {n} answers, {c} of them right, is not defined: sample k or more")
    return 1 - comb(n - c, k) / comb(n, k)            # integers of any size; only their quotient is a float
