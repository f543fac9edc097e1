"""Exercise 8: a crossover of two LoRA adapters.

Check it with: python -m pytest course/tests/test_crossover.py

An adapter changes a weight by dW = B A, with A (R, n) and B (m, R) of rank R (Hu et al. 2021, section 4.1).
The child wanted here is the midpoint of its parents: the best approximation of rank R, in the Frobenius norm,
of

    M = (B1 A1 + B2 A2) / 2

which is the truncated singular value decomposition of M (Eckart & Young 1936). Two traps. The mean of the
factors is not the factors of the mean: mean(B) mean(A) contains B1 A2, which no parent has; and the same dW
has many factorings, so that the child must depend on the products alone. And M itself is m x n, far too large
at 7B: it has rank 2R at most, with

    M = [B1 B2] [A1; A2] / 2        [B1 B2] = Q_b R_b (QR)        [A1; A2]^T = Q_a R_a (QR)

so that an SVD of the small R_b R_a^T / 2 (2R x 2R) is enough. Share each singular value evenly between the
two factors.
"""
from torch import Tensor

Factors = tuple[Tensor, Tensor]         # A (R, n), B (m, R)


def midpoint(parent1: Factors, parent2: Factors) -> Factors:
    """The child's factors, of the parents' rank R."""
    raise NotImplementedError("exercise 8")
