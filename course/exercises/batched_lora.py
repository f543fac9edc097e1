"""Exercise 1: one batch, many adapters.

Check it with: python -m pytest course/tests/test_batched_lora.py

LoRA (Hu et al. 2021, arXiv 2106.09685, section 4.1) leaves a weight W (m, n) as it is and learns an update
B A of small rank R, with A (R, n) and B (m, R). P members stack their factors: A (P, R, n), B (P, m, R). Row
i of a batch has T tokens and belongs to member p = member[i], or to the bare base where member[i] = -1:

    y_i = x_i W^T + scale (x_i A_p^T) B_p^T             scale = alpha / R
    y_i = x_i W^T                                       where member[i] = -1

All rows go through together, in any order, without a Python loop over rows (Punica, arXiv 2310.18547, serves
many adapters this way). Two traps:

    1. In PyTorch index -1 is the last member, not nobody.
    2. The brackets count: (x A^T) B^T takes R (n + m) products a token, whereas B A alone takes R n m and is
       as large as W. A test counts the products.

A merged weight W + scale B A is as large as W, and using it costs no more than using W. Why does a population
not merge?
"""
from torch import Tensor


def forward(x: Tensor, W: Tensor, A: Tensor, B: Tensor, member: Tensor, scale: float) -> Tensor:
    """y (N, T, m). x (N, T, n), W (m, n), A (P, R, n), B (P, m, R), member (N,) int64, -1 = the base."""
    raise NotImplementedError("exercise 1")
