"""Grades exercise 1: a case by hand, merged weights, whose gradient, the cost, and the loop's own routing."""
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

P, R, SCALE = 3, 4, 0.5
BATCHES = [[0, 1, 2, -1], [2, -1, 0, 0, 1, -1, 2], [1, 1, 1], [-1, -1], [2], [-1]]


def case(member, T=3, n=10, m=6, dtype=torch.float64):
    """x, W, A, B, member, scale: random numbers, none of them 0."""
    gen = torch.Generator().manual_seed(0)
    shapes = (len(member), T, n), (m, n), (P, R, n), (P, m, R)
    x, W, A, B = (torch.randn(shape, generator=gen, dtype=dtype) for shape in shapes)
    return x, W, A, B, torch.tensor(member), SCALE


def gradients(work, member, rows=slice(None)):
    """Of the sum of these rows' squares, with respect to A and B."""
    x, W, A, B, member, scale = case(member)
    A.requires_grad_()
    B.requires_grad_()
    work.forward(x, W, A, B, member, scale)[rows].square().sum().backward()
    return A.grad, B.grad


def test_by_hand(work):
    """W = 1, x = (3, 1). Member 0: x A = 4, by B (4, 0), half of it (2, 0). Member 1: 2, (0, 4), (0, 2)."""
    x, member = torch.tensor([[[3.0, 1.0]]]).expand(3, 1, 2), torch.tensor([0, 1, -1])
    A = torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]]])
    B = torch.tensor([[[1.0], [0.0]], [[0.0], [2.0]]])
    assert work.forward(x, torch.eye(2), A, B, member, 0.5).tolist() == [[[5, 1]], [[3, 3]], [[3, 1]]]


@pytest.mark.parametrize("member", BATCHES, ids=str)
def test_each_row_is_as_if_merged(work, member):
    x, W, A, B, _, scale = case(member)
    y = work.forward(*case(member))
    assert y.shape == (len(member), 3, 6)
    for i, p in enumerate(member):
        merged = W + scale * B[p] @ A[p] if p >= 0 else W
        assert torch.allclose(y[i], x[i] @ merged.T)


def test_the_gradient_reaches_its_own_member_alone(work):
    """The loss of one member's rows moves that member as if it were alone in the batch, and nobody else."""
    member = [2, -1, 0, 0, 1, -1, 2]
    for p in range(P):
        own = torch.tensor(member) == p
        others_off = [m if m == p else -1 for m in member]
        for mixed, alone in zip(gradients(work, member, own), gradients(work, others_off)):
            assert torch.allclose(mixed[p], alone[p]) and mixed[p].abs().max() > 0
            assert all(mixed[q].abs().max() == 0 for q in range(P) if q != p)


def test_few_products(work):
    """The base's own, and R (n + m) a token for each member: merging anything takes more than that."""
    n = m = 64
    batch = case([0, 2, -1, 1], T=1, n=n, m=m)
    with FlopCounterMode(display=False) as count:
        work.forward(*batch)
    assert count.get_total_flops() <= 2 * 4 * (n * m + P * R * (n + m))


class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do."""
    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_no_loop_over_rows(work):
    """Ten times the rows of the same members are not more operations, only larger ones."""
    batches = [case([2, -1, 0, 1] * times) for times in (1, 10)]
    few, many = Operations(), Operations()
    for counted, batch in zip((few, many), batches):
        with counted:
            work.forward(*batch)
    assert many.n <= few.n + 3


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("member", [[0, 0, 1, 1, 2, 2], [2, 0, -1, 1, 0, -1]], ids=str)
def test_the_loop_does_the_same(work, member, T):
    """A layer of the bundled base, and lora.py in each of its three ways."""
    import lora
    from weights import load_model
    path = "model.layers.1.mlp.down_proj"
    base = load_model(Path(lora.__file__).parent / "micro" / "base", torch.float32)
    W = base.linears()[path].weight
    adapters = lora.Adapters.on(base, P, R, alpha=R * SCALE, targets=("down_proj",))
    m, n = W.shape
    x, _, A, B, rows, scale = case(member, T, n, m, torch.float32)
    for p in range(P):
        adapters.set_factors(p, {name: (A[p], B[p]) for name in adapters.A})
    with torch.no_grad():
        theirs = adapters.route(rows, torch.float32)((path,), [m], x, x @ W.T)
        assert torch.allclose(work.forward(x, W, A, B, rows, scale), theirs, atol=1e-3)
