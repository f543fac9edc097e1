"""Makes children in LoRA weight space: mutations, crossovers, controls; and measures how adapters differ.

An operator is a pure function op(parents, gen, **knobs) -> child on lora.Factors, which hold A (R, in) and
B (out, R) by a module's name. The child has its parents' rank. Operators work on the update dW = B A (times
alpha/R, equal for all), because mean(B) mean(A) is not mean(B A), and because one dW has many factorings.
An entry in MUTATIONS or CROSSOVERS, which "mixed" draws from, or in BY_NAME makes an operator a value of
--evolve. In shapes R is the rank, and K is R times the number of parents, or the module's width if less.
"""
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lora import Factors

Parents = list[Factors]         # the fitter first
DEAD = 1e-6     # singular values below this share of the largest are rounding noise of the float32 factors


# --- linear algebra on B A, never forming it ----------------------------------------------------------------

def in_common(parents: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Returns orthonormal columns left (out, K) and right (in, K) that span all parents' factors A (R, in)
    and B (out, R) of one module, and a core (K, K) for each parent, whose dW is left core right^T. Cores are
    float64 on the CPU, where LAPACK is fast on small matrices and ties break in one way on every machine."""
    As, Bs = zip(*parents)
    A = torch.cat(As)                                           # (K, in)
    B = torch.cat(Bs, dim=1)                                    # (out, K)
    # QR rounds each column by itself, so it does not matter how A and B share a component's scale.
    right, of_a = torch.linalg.qr(A.T)                          # A^T = right of_a
    left, of_b = torch.linalg.qr(B)
    R = len(As[0])
    own_as = of_a.cpu().split(R, dim=1)
    own_bs = of_b.cpu().split(R, dim=1)
    cores = []
    for own_a, own_b in zip(own_as, own_bs):
        cores.append(own_b.double() @ own_a.double().T)         # B A = left (own_b own_a^T) right^T
    return left, right, cores


@dataclass(frozen=True)
class Svd:
    """Holds R components of a core, or fewer in a narrow module. The core is U diag(S) V^T, U and V
    orthonormal."""
    U: Tensor                       # (K, R)
    S: Tensor                       # (R,)
    V: Tensor                       # (K, R)

    @property
    def live(self) -> Tensor:
        """Returns which components (R,) are more than rounding noise."""
        return self.S > DEAD * self.S.amax()

    @property
    def core(self) -> Tensor:
        """Returns the matrix (K, K) that the components make."""
        return (self.U * self.S) @ self.V.T

    def part(self, which: slice | Tensor) -> "Svd":
        """Returns some of the components: a slice of them, or those where a mask (R,) is true."""
        return Svd(self.U[:, which], self.S[which], self.V[:, which])


def svd_of(core: Tensor, R: int) -> Svd:
    """Returns the best approximation of a core by R components (Eckart-Young)."""
    U, S, Vt = torch.linalg.svd(core, full_matrices=False)
    whole = Svd(U, S, Vt.T)
    return whole.part(slice(R))


def factored(
    left: Tensor,                   # (out, K)
    right: Tensor,                  # (in, K)
    child: Svd,                     # of the core between them
    R: int,
    gen: Generator,
) -> tuple[Tensor, Tensor]:
    """Returns the factors A (R, in) and B (out, R) of a child.

    The scale of a component is split evenly over its two factors. A component without a singular value gets
    a zero B column and a fresh Kaiming-uniform A row, like a new adapter, because zeros on both sides would
    never learn again.
    """
    live = child.part(child.live)
    root = live.S.sqrt()
    A = (live.V * root).to(right).T @ right.T                   # (live, in)
    B = left @ (live.U * root).to(left)                         # (out, live)
    n_dead = R - len(A)
    width = A.shape[1]
    uniform = torch.rand(n_dead, width, generator=gen) * 2 - 1
    fresh = uniform / width ** 0.5                              # rows of A as a new adapter has them
    return torch.cat([A, fresh.to(A)]), F.pad(B, (0, n_dead))


def rebuilt(
    parents: Parents,
    gen: Generator,
    fn: Callable[[list[Tensor], int], Svd],         # the operator: (the parents' cores of a module, R)
) -> Factors:
    """Returns the child whose dW is what fn makes of its parents' dW, in R components."""
    child = {}
    for name, (A, _) in parents[0].items():
        R = len(A)
        left, right, cores = in_common([parent[name] for parent in parents])
        made = fn(cores, R)
        child[name] = factored(left, right, made, R, gen)
    return child


def weighted_sum(
    parents: Parents,
    weights: tuple[float, ...],                     # one for each parent
    gen: Generator,
) -> Factors:
    """Returns the child whose dW is the best rank-R approximation of the sum of weight * dW."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        total = sum(map(torch.mul, cores, weights))
        return svd_of(total, R)
    return rebuilt(parents, gen, fn)


# --- mutations ----------------------------------------------------------------------------------------------

def cayley(
    live: Tensor,                   # (R,) bool
    angle: float,                   # radians
    gen: Generator,
) -> Tensor:
    """Returns a random rotation (R, R) that turns a vector by about `angle` and is exactly orthogonal: the
    Cayley transform (I - W)^-1 (I + W) of a skew W. Directions that are not live stay where they are."""
    R = len(live)
    drawn = torch.randn(R, R, generator=gen, dtype=torch.float64)
    size = angle / (8 * R) ** 0.5       # |W v| is about angle / 2 then, and the transform doubles it
    W = (drawn - drawn.T) * size
    W = W * live[:, None] * live
    eye = torch.eye(R, dtype=torch.float64)
    return torch.linalg.solve(eye - W, eye + W)


def svd(
    parents: Parents,
    gen: Generator,
    eta: float = 0.1,
    angle: float = 0.1,
) -> Factors:
    """Multiplies singular values by exp(eta z), and rotates singular vectors in their span."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        parent = svd_of(cores[0], R)
        U = parent.U @ cayley(parent.live, angle, gen)
        V = parent.V @ cayley(parent.live, angle, gen)
        z = torch.randn(parent.S.shape, generator=gen, dtype=parent.S.dtype)
        S = parent.S * torch.exp(eta * z)
        return Svd(U, S, V)
    return rebuilt(parents, gen, fn)


def jitter(
    x: Tensor,
    scale: float,
    gen: Generator,
    otherwise: Tensor,
) -> Tensor:
    """Returns x plus Gaussian noise of scale * its own standard deviation, or that of `otherwise` if
    x is zero."""
    like = x if x.any() else otherwise
    std = like.std(correction=0)
    z = torch.randn(x.shape, generator=gen).to(x)           # drawn on the CPU: the same on every device
    return x + scale * std * z


def noise(
    parents: Parents,
    gen: Generator,
    scale: float = 0.1,             # standard deviation of the noise over the tensor's
) -> Factors:
    """Adds Gaussian noise to A and B. A zero B takes A's standard deviation, so that an adapter that never
    learned can leave the base."""
    child = {}
    for name, (A, B) in parents[0].items():
        new_A = jitter(A, scale, gen, B)
        new_B = jitter(B, scale, gen, A)
        child[name] = new_A, new_B
    return child


def layers(
    parents: Parents,
    gen: Generator,
    scale: float = 0.3,
    share: float = 1 / 3,
) -> Factors:
    """Adds noise to a random share of the modules. The others stay bit for bit."""
    names = list(parents[0])
    n_hit = max(1, round(share * len(names)))
    hit = torch.randperm(len(names), generator=gen)[:n_hit]
    chosen = {}
    for i in sorted(hit.tolist()):                          # noise is drawn in the order of the modules
        chosen[names[i]] = parents[0][names[i]]
    changed = noise([chosen], gen, scale)
    return copy(parents, gen) | changed


def mask(
    parents: Parents,
    gen: Generator,
    share: float = 0.3,
) -> Factors:
    """Lets a random share of each module's singular components start anew (zero B, fresh A)."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        parent = svd_of(cores[0], R)
        n_cut = max(1, round(share * R))
        shuffled = torch.rand(parent.S.shape, generator=gen).argsort()
        S = parent.S.clone()
        S[shuffled[:n_cut]] = 0
        return Svd(parent.U, S, parent.V)
    return rebuilt(parents, gen, fn)


# --- crossovers: fitter parent first ------------------------------------------------------------------------

def dare(
    parents: Parents,
    gen: Generator,
    p: float = 0.5,                 # with which a component is dropped
) -> Factors:
    """Drops singular components of each parent's dW with probability p, multiplies the others by 1/(1-p),
    averages the parents and cuts the mean to rank R (after DARE, 2311.03099).

    DARE drops elements of dW, which would leave full rank. If elements of A and B were dropped, the child
    would depend on how dW is factored. The mean over draws is the parents' midpoint. At p = 1/2 a child
    inherits each component whole or not at all, because the factors 2 and 1/2 cancel.
    """
    assert 0 <= p < 1, f"dare needs a drop probability in [0, 1), got {p}"

    def fn(cores: list[Tensor], R: int) -> Svd:
        child = torch.zeros_like(cores[0])
        for core in cores:
            parent = svd_of(core, R)
            kept = torch.rand(parent.S.shape, generator=gen) >= p
            S = parent.S * kept / (1 - p) / len(cores)
            child += Svd(parent.U, S, parent.V).core
        return svd_of(child, R)
    return rebuilt(parents, gen, fn)


def block_of(name: str) -> str:
    """Returns a module's block: "7" of "model.layers.7.mlp.up_proj"."""
    return re.search(r"layers\.(\d+)\.", name)[1]


def layerwise(parents: Parents, gen: Generator) -> Factors:
    """Takes each transformer block as a whole from one parent; both parents give at least one."""
    blocks = list(dict.fromkeys(map(block_of, parents[0])))         # each once, in the model's order
    coin = torch.randint(2, (len(blocks),), generator=gen)
    if len(blocks) > 1 and coin.min() == coin.max():        # a copy of one parent, so flip one block
        i = torch.randint(len(blocks), (1,), generator=gen)
        coin[i] = 1 - coin[i]
    giver = dict(zip(blocks, coin.tolist()))                # block -> 0 or 1
    inherited = {}
    for name in parents[0]:
        inherited[name] = parents[giver[block_of(name)]][name]
    return copy([inherited], gen)


def svd_mix(
    parents: Parents,
    gen: Generator,
    k: int | None = None,           # None: R // 2
) -> Factors:
    """Takes the k leading singular components of the fitter parent, and the other's from k + 1 on."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        n = max(1, R // 2) if k is None else k
        leading = svd_of(cores[0], n)
        rest = svd_of(cores[1], R).part(slice(n, None))
        total = leading.core + rest.core
        return svd_of(total, R)         # because one parent's components are not orthogonal to the other's
    return rebuilt(parents, gen, fn)


def extrapolate(
    parents: Parents,
    gen: Generator,
    low: float = 1.0,
    high: float = 1.5,
) -> Factors:
    """Goes beyond the fitter parent: dW is other + eta (fitter - other), with eta drawn from U(low, high)."""
    u = torch.rand((), generator=gen, dtype=torch.float64).item()
    eta = low + (high - low) * u
    return weighted_sum(parents, (eta, 1 - eta), gen)


def add(
    parents: Parents,
    gen: Generator,
    share: float = 0.7,
) -> Factors:
    """Sums `share` of each parent's dW and cuts to rank R (task arithmetic, 2212.04089)."""
    return weighted_sum(parents, (share, share), gen)


# --- controls -----------------------------------------------------------------------------------------------

def copy(parents: Parents, gen: Generator) -> Factors:
    """Returns the parent, bit for bit."""
    child = {}
    for name, (A, B) in parents[0].items():
        child[name] = A.clone(), B.clone()
    return child


def mean(parents: Parents, gen: Generator) -> Factors:
    """Returns the parents' midpoint in dW space."""
    return weighted_sum(parents, (0.5, 0.5), gen)


class Operator(NamedTuple):
    """Names an operator's function and the number of its parents."""
    fn: Callable[..., Factors]      # (parents, gen on the CPU, **knobs) -> child
    n_parents: int


MUTATIONS = {
    "svd": Operator(svd, 1),
    "layers": Operator(layers, 1),
    "mask": Operator(mask, 1),
    "noise": Operator(noise, 1),
}
CROSSOVERS = {
    "dare": Operator(dare, 2),
    "layerwise": Operator(layerwise, 2),
    "svd_mix": Operator(svd_mix, 2),
    "extrapolate": Operator(extrapolate, 2),
}
# not in "mixed"
BY_NAME = {
    "copy": Operator(copy, 1),
    "mean": Operator(mean, 2),
    "add": Operator(add, 2),
}
OPERATORS = MUTATIONS | CROSSOVERS | BY_NAME


# --- distances ----------------------------------------------------------------------------------------------

def dw_inner(members: list[Factors]) -> Tensor:
    """Returns the inner products (P, P) of the members' dW over all modules, float64 on the CPU, without
    alpha/R. R x R products are enough, because <B A, B' A'> = sum((B^T B') * (A A'^T))."""
    P = len(members)
    total = 0.0
    for name in members[0]:
        As, Bs = zip(*[m[name] for m in members])
        A = torch.cat(As)                                           # (P R, in)
        B = torch.cat(Bs, dim=1)                                    # (out, P R)
        R = len(As[0])
        products = (A @ A.T).double() * (B.T @ B).double()          # (P R, P R)
        of_pairs = products.view(P, R, P, R).sum((1, 3))            # (P, P)
        total = total + of_pairs.cpu()
    return total


def dw_norm(factors: Factors) -> float:
    """Returns the Frobenius norm of one member's dW over all modules, without alpha/R."""
    square = dw_inner([factors]).item()
    return max(square, 0.0) ** 0.5                  # rounding can make it negative


@torch.no_grad()
def adapter_cosines(members: list[Factors]) -> Tensor:
    """Returns the cosines (P, P) of the members' dW: 1 for one direction, 0 with a fresh member."""
    inner = dw_inner(members)
    norm = inner.diagonal().clamp(min=0).sqrt()
    both = norm[:, None] * norm[None, :]            # (P, P)
    cosine = torch.where(both > 0, inner / both, 0)
    return cosine.clamp(-1, 1)                      # rounding can pass 1
