"""Solution of exercise 4. They learned to give surely what their base gives now and then, and lost some of
what it gives rarely: surer and narrower. What they answer, the base answers, too, in enough attempts."""
from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k). Raises ValueError where it is not defined."""
    if not 0 <= c <= n:
        raise ValueError(f"{c} right answers of {n} are not possible: give c from 0 to n")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} answers is not defined: sample k or more, and k from 1 on")
    all_wrong = comb(n - c, k)
    return 1 - all_wrong / comb(n, k)       # integers of any size; only their quotient is a float
