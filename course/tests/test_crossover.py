"""Grades exercise 8: the best approximation, whatever the factoring, and the loop's own operator."""
import pytest
import torch

R, WIDTH, OUT = 4, 24, 16


def parent(seed):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(R, WIDTH, generator=gen, dtype=torch.float64), torch.randn(OUT, R, generator=gen, dtype=torch.float64)


def dw(adapter):
    A, B = adapter
    return B @ A


def test_best_approximation_of_the_midpoint(work):
    """Eckart & Young: what is left is exactly the smaller singular values."""
    middle = (dw(parent(0)) + dw(parent(1))) / 2
    left = (middle - dw(work.midpoint(parent(0), parent(1)))).norm().item()
    assert left == pytest.approx(torch.linalg.svdvals(middle)[R:].norm().item(), rel=1e-6)


def test_the_factoring_does_not_matter(work):
    (A, B), mix = parent(0), torch.randn(R, R, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    again = torch.linalg.solve(mix, A), B @ mix
    assert torch.allclose(dw(work.midpoint(again, parent(1))), dw(work.midpoint((A, B), parent(1))), atol=1e-7)


def test_both_factors_carry_the_same_share(work):
    A, B = work.midpoint(parent(0), parent(1))
    assert torch.allclose(A.norm(dim=1), B.norm(dim=0), rtol=1e-6)


def test_the_loop_does_the_same(work):
    import operators
    single = lambda adapter: {"x": tuple(factor.float() for factor in adapter)}
    theirs = operators.mean([single(parent(0)), single(parent(1))], torch.Generator().manual_seed(0))["x"]
    assert torch.allclose(dw(work.midpoint(parent(0), parent(1))).float(), dw(theirs), atol=1e-4)
