"""Children in LoRA weight space: mutations, crossovers, controls, and how far adapters are from each other.

An operator is a pure function op(parents, gen, **knobs) -> child on lora.Factors, name -> (A (R, in), B (out,
R)), the same rank out as in. It works on the update dW = B A (times alpha/R, the same for all), because
mean(B) mean(A) is not mean(B A), and the same dW has many factorings. Its entry in MUTATIONS or CROSSOVERS,
which "mixed" draws from, or in BY_NAME makes it a value of --evolve.
Shapes: R rank, K = R x parents, or the module's width where that is less.
"""
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lora import Factors

Parents = list[Factors]         # the fitter first
DEAD = 1e-6  # singular values below this share of the largest are rounding noise of the float32 factors


# --- linear algebra on B A, never forming it ----------------------------------------------------------------

@dataclass(frozen=True)
class Basis:
    """Orthonormal columns that span what one module's factors of all parents can reach. In it the dW of a
    parent, or of their child, is left core right^T with a small matrix `core` (K, K)."""
    left: Tensor                    # (out, K) float32, where the factors are
    right: Tensor                   # (in, K)


def in_common(parents: list[tuple[Tensor, Tensor]]) -> tuple[Basis, list[Tensor]]:
    """The basis of the parents' factors A (R, in) and B (out, R) of one module, and each one's core (K, K).
    Cores are float64 on the CPU: LAPACK is fast on small matrices, and ties break the same way everywhere."""
    A = torch.cat([a for a, _ in parents])                      # (K, in)
    B = torch.cat([b for _, b in parents], dim=1)               # (out, K)
    # QR's error is that of each column by itself: how A and B share the scale of a component does not matter.
    right, of_a = torch.linalg.qr(A.T)                          # A^T = right of_a
    left, of_b = torch.linalg.qr(B)
    R = len(parents[0][0])
    cores = []
    for own_a, own_b in zip(of_a.cpu().split(R, dim=1), of_b.cpu().split(R, dim=1)):
        cores.append(own_b.double() @ own_a.double().T)         # B A = left (own_b own_a^T) right^T
    return Basis(left, right), cores


@dataclass(frozen=True)
class Svd:
    """R components of a core, U diag(S) V^T with orthonormal U and V. Fewer where the module is narrower."""
    U: Tensor                       # (K, R)
    S: Tensor                       # (R,)
    V: Tensor                       # (K, R)

    @property
    def live(self) -> Tensor:
        """Components (R,) bool that are more than rounding noise."""
        return self.S > DEAD * self.S.amax()

    @property
    def core(self) -> Tensor:
        """The matrix (K, K) that these components make."""
        return (self.U * self.S) @ self.V.T

    def part(self, which: slice | Tensor) -> "Svd":
        """Some of the components: a slice of them, or where a mask (R,) is true."""
        return Svd(self.U[:, which], self.S[which], self.V[:, which])


def svd_of(core: Tensor, R: int) -> Svd:
    """The best approximation of a core by R components (Eckart-Young)."""
    U, S, Vt = torch.linalg.svd(core, full_matrices=False)
    return Svd(U, S, Vt.T).part(slice(R))


def factored(basis: Basis, child: Svd, R: int, gen: Generator) -> tuple[Tensor, Tensor]:
    """Factors A (R, in) and B (out, R) of a child, told in its parents' basis.

    The scale of a component is split evenly over its two factors. One without a singular value gets a zero B
    column and a fresh Kaiming-uniform A row, like a new adapter: zero on both sides would never learn again.
    """
    live = child.part(child.live)
    root = live.S.sqrt()
    right = (live.V * root).to(basis.right)
    left = (live.U * root).to(basis.left)
    A = right.T @ basis.right.T                                 # (live, in)
    B = basis.left @ left                                       # (out, live)
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
    """The child whose dW is what fn makes of its parents' dW, in R components."""
    child = {}
    for name, (A, _) in parents[0].items():
        R = len(A)
        basis, cores = in_common([parent[name] for parent in parents])
        child[name] = factored(basis, fn(cores, R), R, gen)
    return child


def weighted_sum(
    parents: Parents,
    weights: tuple[float, ...],                     # of each parent
    gen: Generator,
) -> Factors:
    """Child whose dW is the best rank-R approximation of sum of weight * dW over the parents."""
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
    """A random rotation (R, R), exactly orthogonal, that turns a vector by about `angle`: the Cayley
    transform (I - W)^-1 (I + W) of a skew W. Directions that are not live stay where they are."""
    R = len(live)
    drawn = torch.randn(R, R, generator=gen, dtype=torch.float64)
    size = angle / (8 * R) ** 0.5
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
    """Mutation: singular values times exp(eta z), singular vectors rotated by `angle` rad in their span."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        parent = svd_of(cores[0], R)
        U = parent.U @ cayley(parent.live, angle, gen)
        V = parent.V @ cayley(parent.live, angle, gen)
        z = torch.randn(parent.S.shape, generator=gen, dtype=parent.S.dtype)
        return Svd(U, parent.S * torch.exp(eta * z), V)
    return rebuilt(parents, gen, fn)


def jitter(
    x: Tensor,
    scale: float,
    gen: Generator,
    otherwise: Tensor,
) -> Tensor:
    """x plus Gaussian noise of scale * its own standard deviation, or that of `otherwise` where x is zero."""
    model = x if x.any() else otherwise
    std = model.std(correction=0)
    z = torch.randn(x.shape, generator=gen).to(x)           # drawn on the CPU: the same on every device
    return x + scale * std * z


def noise(parents: Parents, gen: Generator, scale: float = 0.1) -> Factors:
    """Mutation: Gaussian noise on A and B, `scale` times the tensor's standard deviation, A's for a B that
    is zero, so that adapters that never learned can leave the base."""
    child = {}
    for name, (A, B) in parents[0].items():
        child[name] = jitter(A, scale, gen, B), jitter(B, scale, gen, A)
    return child


def layers(
    parents: Parents,
    gen: Generator,
    scale: float = 0.3,
    share: float = 1 / 3,
) -> Factors:
    """Mutation: as `noise`, stronger, on a random third of the modules; the others stay bit for bit."""
    names = list(parents[0])
    n_hit = max(1, round(share * len(names)))
    hit = torch.randperm(len(names), generator=gen)[:n_hit]
    chosen = {}
    for i in sorted(hit.tolist()):                          # noise is drawn in the order of the modules
        chosen[names[i]] = parents[0][names[i]]
    return copy(parents, gen) | noise([chosen], gen, scale)


def mask(parents: Parents, gen: Generator, share: float = 0.3) -> Factors:
    """Mutation: a random 30% of each module's singular components start anew (zero B, fresh A)."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        parent = svd_of(cores[0], R)
        n_cut = max(1, round(share * R))
        shuffled = torch.rand(parent.S.shape, generator=gen).argsort()
        S = parent.S.clone()
        S[shuffled[:n_cut]] = 0
        return Svd(parent.U, S, parent.V)
    return rebuilt(parents, gen, fn)


# --- crossovers: fitter parent first ------------------------------------------------------------------------

def dare(parents: Parents, gen: Generator, p: float = 0.5) -> Factors:
    """Crossover: drop with probability p, rescale by 1/(1-p), average, cut to rank R (DARE, 2311.03099).

    What is dropped are singular components of each parent's dW: dropping elements of dW would leave full
    rank, and of the factors would depend on the factoring. The mean over draws of the sum is the parents'
    midpoint; at the default p = 1/2 a child inherits each component whole or not at all.
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
    """Block of a module ("model.layers.7.mlp.up_proj" -> "7"); one outside the blocks is its own."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return match.group(1) if match else name


def layerwise(parents: Parents, gen: Generator) -> Factors:
    """Crossover: each transformer block as a whole from one parent; both parents give at least one."""
    blocks = list(dict.fromkeys(map(block_of, parents[0])))         # each once, in the model's order
    coin = torch.randint(2, (len(blocks),), generator=gen)
    if len(blocks) > 1 and coin.min() == coin.max():        # a copy: flip one block
        i = torch.randint(len(blocks), (1,), generator=gen)
        coin[i] = 1 - coin[i]
    giver = dict(zip(blocks, coin.tolist()))                # block -> 0 or 1
    child = {}
    for name in parents[0]:
        A, B = parents[giver[block_of(name)]][name]
        child[name] = A.clone(), B.clone()
    return child


def svd_mix(parents: Parents, gen: Generator, k: int | None = None) -> Factors:
    """Crossover: k leading singular components of the fitter (default R // 2), the other's from k+1 on."""
    def fn(cores: list[Tensor], R: int) -> Svd:
        n = max(1, R // 2) if k is None else k
        leading = svd_of(cores[0], n)
        rest = svd_of(cores[1], R).part(slice(n, None))
        # the two parents' components are not orthogonal to each other: decompose their sum anew
        return svd_of(leading.core + rest.core, R)
    return rebuilt(parents, gen, fn)


def extrapolate(
    parents: Parents,
    gen: Generator,
    low: float = 1.0,
    high: float = 1.5,
) -> Factors:
    """Crossover: worse + eta (better - worse) in dW space, one eta in U(low, high) per child."""
    u = torch.rand((), generator=gen, dtype=torch.float64).item()
    eta = low + (high - low) * u
    return weighted_sum(parents, (eta, 1 - eta), gen)


def add(parents: Parents, gen: Generator, share: float = 0.7) -> Factors:
    """Crossover: `share` of each parent's dW, summed and cut to rank R (task arithmetic, 2212.04089)."""
    return weighted_sum(parents, (share, share), gen)


# --- controls -----------------------------------------------------------------------------------------------

def copy(parents: Parents, gen: Generator) -> Factors:
    """Control: the parent, bit for bit."""
    return {name: (A.clone(), B.clone()) for name, (A, B) in parents[0].items()}


def mean(parents: Parents, gen: Generator) -> Factors:
    """Control: the parents' midpoint in dW space."""
    return weighted_sum(parents, (0.5, 0.5), gen)


class Operator(NamedTuple):
    """fn(parents: list of n_parents Factors, gen: CPU Generator, **knobs) -> Factors."""
    fn: Callable[..., Factors]
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
EXACT = ("svd_mix", *BY_NAME)       # these draw nothing: of the same parents they make the same child


def n_children(mode: str, n_parents: int) -> float:
    """How many different children n_parents can have in an evolve mode; inf where its operators draw."""
    if mode not in EXACT:
        return math.inf
    return max(1, math.comb(n_parents, OPERATORS[mode].n_parents))


# --- distances ----------------------------------------------------------------------------------------------

def dw_inner(members: list[Factors]) -> Tensor:
    """Inner products (P, P) of the members' dW over all modules, float64 on the CPU; without alpha / R. <B A,
    B' A'> = sum((B^T B') * (A A'^T)): only R x R products; 0 with a fresh member."""
    P = len(members)
    total = 0.0
    for name in members[0]:
        A = torch.cat([m[name][0] for m in members])                # (P R, in)
        B = torch.cat([m[name][1] for m in members], dim=1)         # (out, P R)
        R = A.shape[0] // P
        products = (A @ A.T).double() * (B.T @ B).double()          # (P R, P R)
        of_pairs = products.view(P, R, P, R).sum((1, 3))            # (P, P)
        total = total + of_pairs.cpu()
    return total


def dw_norm(factors: Factors) -> float:
    """Frobenius norm of one member's dW over all modules (without the scale alpha / R)."""
    square = dw_inner([factors]).item()
    return max(square, 0.0) ** 0.5                  # rounding can make it negative


@torch.no_grad()
def adapter_cosines(members: list[Factors]) -> Tensor:
    """Cosines (P, P) of the members' dW: 1 = the same update up to scale; 0 with a fresh member."""
    inner = dw_inner(members)
    norm = inner.diagonal().clamp(min=0).sqrt()
    both = norm[:, None] * norm[None, :]            # (P, P)
    cosine = torch.where(both > 0, inner / both, 0)
    return cosine.clamp(-1, 1)                      # rounding can pass 1
