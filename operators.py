"""Children in LoRA weight space: mutations, crossovers, controls, and how far adapters are from each other.

An operator is a pure function op(parents, gen, **knobs) -> child on lora.Factors, name -> (A (R, in), B (out,
R)), the same rank out as in. It works on the update dW = B A (times alpha/R, the same for all), because
mean(B) mean(A) is not mean(B A), and the same dW has many factorings. Its entry in MUTATIONS or CROSSOVERS,
which "mixed" draws from, or in BY_NAME makes it a value of --evolve.
Shapes: R rank, K = R x parents, n modules of one shape (stacked: the small eigenproblems run as one batch).
"""
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lora import Factors

Parents = list[Factors]         # the fitter first
DEAD = 1e-6  # singular values below this share of the largest are rounding noise of the float32 factors


# --- linear algebra on B A, never forming it ----------------------------------------------------------------

@dataclass(frozen=True)
class Grams:
    """What is left of n modules' factors: with the parents' factors side by side, A (K, in) and B (out, K),
    these are A A^T and B^T B. float64, because a Gram squares the condition."""
    a: Tensor                                 # (n, K, K)
    b: Tensor                                 # (n, K, K)
    R: int

    def of_parent(self, i: int) -> "Grams":
        """Those of the i-th parent's factors alone, with K = R."""
        own = slice(i * self.R, (i + 1) * self.R)
        return Grams(self.a[..., own, own], self.b[..., own, own], self.R)


@dataclass(frozen=True)
class Svd:
    """n modules' dW = U diag(S) V^T, told by the parents' factors: U = B P and V = A^T Q are orthonormal.
    Columns of P and Q of a zero singular value are zero (not completed to a basis). float64."""
    P: Tensor                                 # (n, K, rank)
    S: Tensor                                 # (n, rank), descending
    Q: Tensor                                 # (n, K, rank)

    @property
    def live(self) -> Tensor:
        """Components (n, rank) bool that are more than rounding noise."""
        return self.S > DEAD * self.S.amax(-1, keepdim=True)

    def core(self, S: Tensor) -> Tensor:
        """The matrix (n, K, K) between B and A of this dW with other singular values S (n, rank)."""
        return (self.P * S[..., None, :]) @ self.Q.mT


def inverse_root(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigen-split of Gram matrices (n, k, k) of X: (root, inv), X @ inv orthonormal, X = X @ inv @ root^T."""
    value, vector = torch.linalg.eigh(gram)
    value = value.clamp(min=0)  # near-collinear parents make singular Grams, where Cholesky would fail
    live = value > DEAD ** 2 * value.amax(-1, keepdim=True)         # DEAD is of X, whose square this is
    root = torch.where(live, value, 0).sqrt()
    inverse = torch.where(live, 1 / root, 0)
    return vector * root[..., None, :], vector * inverse[..., None, :]


def core_svd(
    grams: Grams,
    core: Tensor,                                   # (n, K, K), or (K, K) for all
) -> Svd:
    """SVD of B core A, cut to its R leading components. Neither U nor V nor dW is formed:
    the square roots of the Grams leave a K x K problem."""
    # The split of scale between a row of A and its column of B is arbitrary: even it out, or a component with
    # a tiny B and a large A would be taken for noise. One with a zero side contributes nothing: 0 on both.
    a = grams.a.diagonal(dim1=-2, dim2=-1)          # (n, K): squared norms of A's rows and B's columns
    b = grams.b.diagonal(dim1=-2, dim2=-1)
    live = (a > 0) & (b > 0)
    scale_a = torch.where(live, (b / a) ** 0.25, 0)
    scale_b = torch.where(live, (a / b) ** 0.25, 0)
    row_a = scale_a[..., None, :]
    row_b = scale_b[..., None, :]
    column_a = scale_a[..., :, None]
    column_b = scale_b[..., :, None]
    root_a, inv_a = inverse_root(grams.a * row_a * column_a)
    root_b, inv_b = inverse_root(grams.b * row_b * column_b)
    # scale_a is 1 / scale_b, so that evened factors have the core scale_a core scale_b
    core = column_a * core * row_b
    left, S, right_t = torch.linalg.svd(root_b.mT @ core @ root_a)
    leading = slice(grams.R)
    left = left[..., leading]
    right = right_t.mT[..., leading]
    # back from the evened factors to the parents' own
    P = column_b * (inv_b @ left)
    Q = column_a * (inv_a @ right)
    return Svd(P, S[..., leading], Q)


def parent_svd(grams: Grams, i: int) -> Svd:
    """SVD of the i-th parent's own dW, told by all parents' factors: zero in the rows of the others'."""
    R, K = grams.R, grams.a.shape[-1]
    identity = torch.eye(R, dtype=torch.float64)
    own = core_svd(grams.of_parent(i), identity)
    rows = (0, 0, i * R, K - (i + 1) * R)           # F.pad: zeros above and below
    return Svd(F.pad(own.P, rows), own.S, F.pad(own.Q, rows))


def measure(parents: Parents, names: list[str]) -> Grams:
    """The Grams of n modules of one shape. Two buffers serve all of them: fresh memory costs more than the
    products."""
    A, B = parents[0][names[0]]                     # (R, in), (out, R)
    R = len(A)
    K = R * len(parents)
    empty = partial(torch.empty, dtype=torch.float64, device=A.device)
    wide_a = empty(K, A.shape[1])
    wide_b = empty(len(B), K)
    out = empty(2, len(names), K, K)
    for j, name in enumerate(names):
        for i, parent in enumerate(parents):
            own = slice(i * R, (i + 1) * R)
            A, B = parent[name]
            wide_a[own] = A
            wide_b[:, own] = B
        torch.mm(wide_a, wide_a.mT, out=out[0, j])
        torch.mm(wide_b.mT, wide_b, out=out[1, j])
    a, b = out.cpu()  # LAPACK is fast on small matrices, and ties break the same way everywhere
    return Grams(a, b, R)


def by_shape(factors: Factors) -> list[list[str]]:
    """The modules' names in groups of one shape: their small matrices go through LAPACK as one batch."""
    groups = {}
    for name, (A, B) in factors.items():
        groups.setdefault((A.shape, B.shape), []).append(name)
    return list(groups.values())


def rebuilt(
    parents: Parents,
    gen: Generator,
    fn: Callable[[Grams], Svd],                     # the operator, on what the factors leave
) -> Factors:
    """Child whose dW is what fn makes of the parents' Grams, in R components.

    The scale of a component is split evenly over its two factors. One without a singular value gets a zero B
    column and a fresh Kaiming-uniform A row, like a new adapter: zero on both sides would never learn again.
    """
    child = dict.fromkeys(parents[0])               # the parents' order of modules
    for names in by_shape(parents[0]):
        grams = measure(parents, names)
        made = fn(grams)
        root = torch.where(made.live, made.S, 0).sqrt()[..., None, :]
        P = (made.P * root).float().split(grams.R, 1)       # of each parent (n, R, R)
        Q = (made.Q * root).mT.float().split(grams.R, 2)
        for j, name in enumerate(names):
            A = B = 0
            for i, parent in enumerate(parents):
                parent_a, parent_b = parent[name]
                A = A + Q[i][j].to(parent_a) @ parent_a     # (R, in)
                B = B + parent_b @ P[i][j].to(parent_b)     # (out, R)
            dead = ~made.live[j].to(A.device)
            A[dead] = fresh_rows(int(dead.sum()), A.shape[1], gen).to(A)
            child[name] = A, B
    return child


def fresh_rows(n: int, width: int, gen: Generator) -> Tensor:
    """n rows (n, width) of A as a new adapter has them (Kaiming-uniform)."""
    uniform = torch.rand(n, width, generator=gen) * 2 - 1
    return uniform / width ** 0.5


def weighted_sum(
    parents: Parents,
    weights: tuple[float, ...],                     # of each parent
    gen: Generator,
) -> Factors:
    """Child whose dW is the best rank-R approximation of sum of weight * dW over the parents."""
    def fn(grams: Grams) -> Svd:
        of_each = torch.tensor(weights, dtype=torch.float64)
        core = of_each.repeat_interleave(grams.R).diag()    # (K, K): a parent's weight on its R components
        return core_svd(grams, core)
    return rebuilt(parents, gen, fn)


# --- mutations ----------------------------------------------------------------------------------------------

def cayley(
    live: Tensor,                   # (n, R) bool
    angle: float,                   # radians
    gen: Generator,
) -> Tensor:
    """Random rotations (n, R, R), exactly orthogonal, that turn a vector by about `angle`: the Cayley
    transform (I - K)^-1 (I + K) of a skew K. Directions that are not live stay where they are."""
    n, R = live.shape               # modules, components
    noise = torch.randn(n, R, R, generator=gen, dtype=torch.float64).to(live.device)
    skew = noise - noise.mT
    both_live = live[:, :, None] & live[:, None, :]
    size = angle / (8 * R) ** 0.5
    K = skew * size * both_live
    eye = torch.eye(R, dtype=torch.float64, device=live.device)
    return torch.linalg.solve(eye - K, eye + K)


def svd(
    parents: Parents,
    gen: Generator,
    eta: float = 0.1,
    angle: float = 0.1,
) -> Factors:
    """Mutation: singular values times exp(eta z), singular vectors rotated by `angle` rad in their span."""
    def fn(grams: Grams) -> Svd:
        parent = parent_svd(grams, 0)
        P = parent.P @ cayley(parent.live, angle, gen)
        Q = parent.Q @ cayley(parent.live, angle, gen)
        z = torch.randn(parent.S.shape, generator=gen, dtype=parent.S.dtype)
        return Svd(P, parent.S * torch.exp(eta * z), Q)
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
    def fn(grams: Grams) -> Svd:
        parent = parent_svd(grams, 0)
        n_cut = max(1, round(share * grams.R))
        shuffled = torch.rand(parent.S.shape, generator=gen).argsort(-1)
        return Svd(parent.P, parent.S.scatter(-1, shuffled[..., :n_cut], 0), parent.Q)
    return rebuilt(parents, gen, fn)


# --- crossovers: fitter parent first ------------------------------------------------------------------------

def dare(parents: Parents, gen: Generator, p: float = 0.5) -> Factors:
    """Crossover: drop with probability p, rescale by 1/(1-p), average, cut to rank R (DARE, 2311.03099).

    What is dropped are singular components of each parent's dW: dropping elements of dW would leave full
    rank, and of the factors would depend on the factoring. The mean over draws of the sum is the parents'
    midpoint; at the default p = 1/2 a child inherits each component whole or not at all.
    """
    assert 0 <= p < 1, f"dare needs a drop probability in [0, 1), got {p}"

    def fn(grams: Grams) -> Svd:
        core = 0.0
        for i in range(len(parents)):
            parent = parent_svd(grams, i)
            kept = torch.rand(parent.S.shape, generator=gen) >= p
            S = parent.S * kept / (1 - p) / len(parents)
            core = core + parent.core(S)
        return core_svd(grams, core)
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


def leading_of(
    x: Tensor,                      # (..., R)
    y: Tensor,                      # (..., R)
    n: int,
) -> Tensor:
    """The first n components of x and the others of y."""
    return torch.cat([x[..., :n], y[..., n:]], dim=-1)


def svd_mix(parents: Parents, gen: Generator, k: int | None = None) -> Factors:
    """Crossover: k leading singular components of the fitter (default R // 2), the other's from k+1 on."""
    def fn(grams: Grams) -> Svd:
        n = max(1, grams.R // 2) if k is None else k
        fitter = parent_svd(grams, 0)
        other = parent_svd(grams, 1)
        mixed = Svd(
            leading_of(fitter.P, other.P, n),
            leading_of(fitter.S, other.S, n),
            leading_of(fitter.Q, other.Q, n),
        )
        # the two parents' components are not orthogonal to each other: decompose their sum anew
        return core_svd(grams, mixed.core(mixed.S))
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
