"""Grades exercise 1: a case by hand, merged weights, whose gradient, the cost, and the loop's own routing."""
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

P, R, SCALE = 3, 4, 0.5
# the members of a batch's rows, -1 for the base
BATCHES = [
    [0, 1, 2, -1],
    [2, -1, 0, 0, 1, -1, 2],
    [1, 1, 1],
    [-1, -1],
    [2],
    [-1],
]


@dataclass
class Batch:
    """What `forward` takes, in its order."""
    x: Tensor                           # (N, T, n)
    W: Tensor                           # (m, n)
    A: Tensor                           # (P, R, n)
    B: Tensor                           # (P, m, R)
    member: Tensor                      # (N,)
    scale: float = SCALE


def yours(work: ModuleType, batch: Batch) -> Tensor:
    """Your output for a batch."""
    return work.forward(
        batch.x,
        batch.W,
        batch.A,
        batch.B,
        batch.member,
        batch.scale,
    )


def random_batch(
    member: list[int],                  # of each row
    T: int = 3,
    n: int = 10,
    m: int = 6,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Rows of these members; all numbers are random, and none is 0."""
    gen = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen, dtype=dtype)

    x = randn(len(member), T, n)
    W = randn(m, n)
    A = randn(P, R, n)
    B = randn(P, m, R)
    return Batch(x, W, A, B, torch.tensor(member))


def gradients(
    work: ModuleType,
    member: list[int],                  # of each row
    rows: Tensor,                       # (N,) bool: those with a loss
) -> tuple[Tensor, Tensor]:
    """The gradients of A and B where the loss is the sum of the squares of these rows' outputs."""
    batch = random_batch(member)
    batch.A.requires_grad_()
    batch.B.requires_grad_()
    y = yours(work, batch)
    y[rows].square().sum().backward()
    return batch.A.grad, batch.B.grad


def test_by_hand(work: ModuleType):
    """W = 1, x = (3, 1). Member 0: x A = 4, by B (4, 0), half of it (2, 0). Member 1: 2, (0, 4), (0, 2)."""
    token = torch.tensor([3.0, 1.0])
    A0 = torch.tensor([[1.0, 1.0]])                             # (R, n) = (1, 2)
    B0 = torch.tensor([[1.0], [0.0]])                           # (m, R) = (2, 1)
    A1 = torch.tensor([[1.0, -1.0]])
    B1 = torch.tensor([[0.0], [2.0]])
    batch = Batch(
        x=token.expand(3, 1, 2),                                # the same row three times
        W=torch.eye(2),
        A=torch.stack([A0, A1]),
        B=torch.stack([B0, B1]),
        member=torch.tensor([0, 1, -1]),
        scale=0.5,
    )
    first, second, of_base = yours(work, batch).tolist()
    assert first == [[5, 1]]
    assert second == [[3, 3]]
    assert of_base == [[3, 1]]


@pytest.mark.parametrize("member", BATCHES, ids=str)
def test_each_row_is_as_if_merged(work: ModuleType, member: list[int]):
    batch = random_batch(member)
    y = yours(work, batch)
    assert y.shape == (len(member), 3, 6)
    for i, p in enumerate(member):
        merged = batch.W
        if p >= 0:
            update = batch.B[p] @ batch.A[p]
            merged = batch.W + SCALE * update
        want = batch.x[i] @ merged.T
        assert torch.allclose(y[i], want), f"row {i}, of member {p}: expected\n{want}\ngot\n{y[i]}"


def test_the_gradient_reaches_its_own_member_alone(work: ModuleType):
    """The loss of one member's rows moves that member as if it were alone in the batch, and nobody else."""
    member = [2, -1, 0, 0, 1, -1, 2]
    all_rows = torch.ones(len(member), dtype=torch.bool)
    for p in range(P):
        own_rows = torch.tensor(member) == p
        others_off = [m if m == p else -1 for m in member]
        mixed = gradients(work, member, own_rows)
        alone = gradients(work, others_off, all_rows)           # the base's rows move nobody
        for name, got, want in zip("AB", mixed, alone):
            assert got[p].abs().max() > 0, f"member {p}'s {name} got no gradient from its own rows"
            assert torch.allclose(got[p], want[p]), \
                f"member {p}'s {name} should have the same gradient as without the others' rows"
            for q in range(P):
                if q != p:
                    largest = got[q].abs().max()
                    assert largest == 0, f"member {q}'s {name} got a gradient from member {p}'s rows"


def test_few_products(work: ModuleType):
    """The base's own, and R (n + m) a token for each member: merging anything takes more than that."""
    n = m = 64
    member = [0, 2, -1, 1]
    n_tokens = len(member)
    batch = random_batch(member, 1, n, m)
    with FlopCounterMode(display=False) as count:
        yours(work, batch)
    of_token = n * m + P * R * (n + m)
    enough = 2 * n_tokens * of_token                            # a product and its sum are two operations
    assert count.get_total_flops() <= enough, "too many products: take (x A^T) B^T and not x (B A)^T"


class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do."""
    n = 0

    def __torch_dispatch__(
        self,
        func: Callable,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ):
        self.n += 1
        return func(*args, **(kwargs or {}))


def n_operations(work: ModuleType, member: list[int]) -> int:
    """How many operations of PyTorch a batch takes."""
    batch = random_batch(member)
    with Operations() as counted:
        yours(work, batch)
    return counted.n


def test_no_loop_over_rows(work: ModuleType):
    """Ten times the rows of the same members are not more operations, only larger ones."""
    member = [2, -1, 0, 1]
    few = n_operations(work, member)
    many = n_operations(work, member * 10)
    assert many <= few + 3, "ten times the rows should take as many operations: no loop over rows"


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("member", [
    [0, 0, 1, 1, 2, 2],
    [2, 0, -1, 1, 0, -1],
], ids=str)
def test_the_loop_does_the_same(work: ModuleType, member: list[int], T: int):
    """A layer of the bundled base, and lora.py in each of its three ways."""
    import lora
    from weights import load_model
    path = "model.layers.1.mlp.down_proj"
    root = Path(lora.__file__).parent
    base = load_model(root / "micro" / "base", torch.float32)
    W = base.linears()[path].weight
    m, n = W.shape
    batch = random_batch(member, T, n, m, torch.float32)
    batch.W = W
    alpha = R * SCALE
    adapters = lora.Adapters.on(base, P, R, alpha, targets=("down_proj",))
    for p in range(P):
        factors = batch.A[p], batch.B[p]
        adapters.set_factors(p, dict.fromkeys(adapters.A, factors))
    with torch.no_grad():
        of_base = batch.x @ W.T
        routed = adapters.route(batch.member, torch.float32)
        want = routed((path,), [m], batch.x, of_base)
        got = yours(work, batch)
    assert torch.allclose(got, want, atol=1e-3), "lora.py has another output for the same rows and factors"
