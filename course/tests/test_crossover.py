"""Grades exercise 8: the best approximation, whatever the factoring, without M itself, as the loop's own."""
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

R, WIDTH, OUT = 4, 24, 16
Factors = tuple[Tensor, Tensor]         # A (R, WIDTH), B (OUT, R)


def randn(n_rows: int, n_columns: int, gen: torch.Generator) -> Tensor:
    """A random matrix."""
    return torch.randn(n_rows, n_columns, generator=gen, dtype=torch.float64)


def parent(seed: int) -> Factors:
    """A parent of random factors."""
    gen = torch.Generator().manual_seed(seed)
    A = randn(R, WIDTH, gen)
    B = randn(OUT, R, gen)
    return A, B


def dw(adapter: Factors) -> Tensor:
    """How the adapter changes the weight."""
    A, B = adapter
    return B @ A


def test_best_approximation_of_the_midpoint(work: ModuleType):
    """Eckart & Young: what is left is exactly the smaller singular values."""
    first, second = parent(0), parent(1)
    middle = (dw(first) + dw(second)) / 2
    child = work.midpoint(first, second)
    left = middle - dw(child)
    values = torch.linalg.svdvals(middle)
    least = values[R:].norm()
    assert left.norm().item() == pytest.approx(least.item(), rel=1e-6), \
        "the child should be as near to M as rank R allows"


def test_the_factoring_does_not_matter(work: ModuleType):
    A, B = parent(0)
    # The same product of other factors: B mix and mix^-1 A.
    gen = torch.Generator().manual_seed(9)
    mix = randn(R, R, gen)
    again = torch.linalg.solve(mix, A), B @ mix
    child = work.midpoint((A, B), parent(1))
    child_again = work.midpoint(again, parent(1))
    want = dw(child)
    got = dw(child_again)
    assert torch.allclose(got, want, atol=1e-7), \
        "a parent with the same B A in other factors should have the same child: work on the products"


class Largest(TorchDispatchMode):
    """Notes the largest tensor that PyTorch makes."""
    n = 0

    def __torch_dispatch__(
        self,
        func: Callable,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ):
        made = func(*args, **(kwargs or {}))
        parts = made if isinstance(made, (tuple, list)) else [made]
        for part in parts:
            if isinstance(part, Tensor):
                self.n = max(self.n, part.numel())
        return made


def test_the_whole_matrix_is_never_made(work: ModuleType):
    first, second = parent(0), parent(1)
    with Largest() as made:
        work.midpoint(first, second)
    assert made.n < OUT * WIDTH, "M itself is far too large at 7B: nothing of m x n may be made"


def test_both_factors_carry_the_same_share(work: ModuleType):
    A, B = work.midpoint(parent(0), parent(1))
    rows = A.norm(dim=1)
    columns = B.norm(dim=0)
    assert torch.allclose(rows, columns, rtol=1e-6), \
        f"A's rows have the norms {rows} and B's columns {columns}: both should be roots of singular values"


def test_the_loop_does_the_same(work: ModuleType):
    import operators
    parents = []
    for seed in (0, 1):
        A, B = parent(seed)
        parents.append({"layer": (A.float(), B.float())})
    gen = torch.Generator().manual_seed(0)
    theirs = operators.mean(parents, gen)
    want = dw(theirs["layer"])
    child = work.midpoint(parent(0), parent(1))
    got = dw(child).float()
    assert torch.allclose(got, want, atol=1e-4), "operators.mean has another child"
