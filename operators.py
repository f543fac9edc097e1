"""Children in LoRA weight space: mutations, crossovers, controls, and how far adapters are from each other.

An operator is a pure function op(parents, gen, **knobs) -> child on Factors, name -> (A (R, in), B (out, R)),
the same rank out as in. It works on the update dW = B A (times alpha/R, the same for all), because
mean(B) mean(A) is not mean(B A), and the same dW has many factorings. Its entry in MUTATIONS or CROSSOVERS,
which "mixed" draws from, or in BY_NAME makes it a value of --evolve.
Shapes: R rank, K = R x parents, n modules of one shape (stacked: the small eigenproblems run as one batch).
"""
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

DEAD = 1e-6  # singular values below this share of the largest are rounding noise of the float32 factors


# --- linear algebra on B A, never forming it ----------------------------------------------------------------

def inverse_root(gram):
    """Eigen-split of Gram matrices (n, k, k) of X: (root, inv), X @ inv orthonormal, X = X @ inv @ root^T."""
    value, vector = torch.linalg.eigh(gram)
    value = value.clamp(min=0)  # near-collinear parents make singular Grams, where Cholesky would fail
    live = value > DEAD ** 2 * value.amax(-1, keepdim=True)
    root = torch.where(live, value, 0).sqrt()
    return vector * root[..., None, :], vector * torch.where(live, 1 / root, 0)[..., None, :]


def core_svd(gram_a, gram_b, core, rank):
    """SVD of B core A from A A^T, B^T B and core (n, K, K), cut to its `rank` leading components.

    P (n, K, rank), S (n, rank) descending, Q (n, K, rank), all float64, with U = B P and V = A^T Q
    orthonormal and dW = U diag(S) V^T. Neither U nor V nor dW is formed: the square roots of the Grams leave
    a K x K problem. Columns of P and Q of a zero singular value are zero (not completed to a basis).
    """
    # The split of scale between a row of A and its column of B is arbitrary: even it out, or a component with
    # a tiny B and a large A would be taken for noise. One with a zero side contributes nothing: 0 on both.
    a = gram_a.diagonal(dim1=-2, dim2=-1)
    b = gram_b.diagonal(dim1=-2, dim2=-1)
    live = (a > 0) & (b > 0)
    scale_a = torch.where(live, (b / a) ** 0.25, 0)
    scale_b = torch.where(live, (a / b) ** 0.25, 0)
    root_a, inv_a = inverse_root(gram_a * scale_a[..., None, :] * scale_a[..., :, None])
    root_b, inv_b = inverse_root(gram_b * scale_b[..., None, :] * scale_b[..., :, None])
    # scale_a is 1 / scale_b, so that evened factors have the core scale_a core scale_b
    core = scale_a[..., :, None] * core * scale_b[..., None, :]
    left, S, right_t = torch.linalg.svd(root_b.mT @ core @ root_a)
    P = scale_b[..., :, None] * (inv_b @ left[..., :rank])
    Q = scale_a[..., :, None] * (inv_a @ right_t.mT[..., :rank])
    return P, S[..., :rank], Q


def parent_svd(gram_a, gram_b, i, R):
    """SVD of the i-th parent's own dW in the basis of all parents: P (n, K, R), S (n, R), Q (n, K, R)."""
    own = slice(i * R, (i + 1) * R)
    identity = torch.eye(R, dtype=torch.float64)
    P, S, Q = core_svd(gram_a[..., own, own], gram_b[..., own, own], identity, R)
    rows = (0, 0, i * R, gram_a.shape[-1] - (i + 1) * R)
    return F.pad(P, rows), S, F.pad(Q, rows)


def grams(parents, names):
    """A A^T and B^T B (n, K, K) of n modules; A (K, in), B (out, K) are the parents' factors side by side.
    float64, for a Gram squares the condition; two buffers, for fresh memory costs more than the products."""
    first_a, first_b = parents[0][names[0]]
    R = len(first_a)
    K = R * len(parents)
    wide_a = first_a.new_empty(K, first_a.shape[1], dtype=torch.float64)
    wide_b = first_a.new_empty(len(first_b), K, dtype=torch.float64)
    out = first_a.new_empty(2, len(names), K, K, dtype=torch.float64)
    for j, name in enumerate(names):
        for i, p in enumerate(parents):
            own = slice(i * R, (i + 1) * R)
            wide_a[own], wide_b[:, own] = p[name]
        torch.mm(wide_a, wide_a.mT, out=out[0, j])
        torch.mm(wide_b.mT, wide_b, out=out[1, j])
    return out.cpu()  # LAPACK is fast on small matrices, and ties break the same way everywhere


def rebuilt(parents, gen, fn):
    """Child whose dW is B P diag(S) Q^T A, with R components.

    A (n, K, in) and B (n, out, K) are the parents' factors side by side, (P, S, Q) = fn(A A^T, B^T B, R).
    The scale of a component is split evenly over its two factors. One without a singular value gets a zero B
    column and a fresh Kaiming-uniform A row, like a new adapter: zero on both sides would never learn again.
    """
    shapes = {}
    for name, (A, B) in parents[0].items():
        shapes.setdefault((A.shape, B.shape), []).append(name)
    child = dict.fromkeys(parents[0])  # the parents' order of modules
    for ((R, width), _), names in shapes.items():
        P, S, Q = fn(*grams(parents, names), R)
        live = S > DEAD * S.amax(-1, keepdim=True)
        root = torch.where(live, S, 0).sqrt()[..., None, :]
        P = (P * root).float().split(R, 1)          # of each parent (n, R, R)
        Q = (Q * root).mT.float().split(R, 2)
        for j, name in enumerate(names):
            A = sum(q[j].to(p[name][0]) @ p[name][0] for q, p in zip(Q, parents))
            B = sum(p[name][1] @ x[j].to(p[name][1]) for x, p in zip(P, parents))
            dead = ~live[j].to(A.device)
            fresh = (torch.rand(int(dead.sum()), width, generator=gen) * 2 - 1) / width ** 0.5
            A[dead] = fresh.to(A)
            child[name] = A, B
    return child


def weighted_sum(parents, weights, gen):
    """Child whose dW is the best rank-R approximation of sum of weight * dW over the parents."""
    def fn(gram_a, gram_b, R):
        core = torch.tensor(weights, dtype=torch.float64).repeat_interleave(R).diag()
        return core_svd(gram_a, gram_b, core, R)
    return rebuilt(parents, gen, fn)


# --- operators: fitter parent first -------------------------------------------------------------------------

def cayley(live, angle, gen):
    """Random rotations (n, R, R), exactly orthogonal, that turn a vector by about `angle` radians. Cayley
    transform (I - K)^-1 (I + K) of a skew K. Directions not in `live` (n, R) stay where they are."""
    n, R = live.shape
    noise = torch.randn(n, R, R, generator=gen, dtype=torch.float64).to(live.device)
    K = (noise - noise.mT) * (angle / (8 * R) ** 0.5) * (live[:, :, None] & live[:, None, :])
    eye = torch.eye(R, dtype=torch.float64, device=live.device)
    return torch.linalg.solve(eye - K, eye + K)


def svd(parents, gen, eta=0.1, angle=0.1):
    """Mutation: singular values times exp(eta z), singular vectors rotated by `angle` rad in their span."""
    def fn(gram_a, gram_b, R):
        P, S, Q = parent_svd(gram_a, gram_b, 0, R)
        live = S > DEAD * S.amax(-1, keepdim=True)
        P = P @ cayley(live, angle, gen)
        Q = Q @ cayley(live, angle, gen)
        return P, S * torch.exp(eta * torch.randn(S.shape, generator=gen, dtype=S.dtype)), Q
    return rebuilt(parents, gen, fn)


def jitter(x, scale, gen, otherwise):
    """x plus Gaussian noise of scale * its own standard deviation, or that of `otherwise` where x is zero."""
    std = (x if x.any() else otherwise).std(correction=0)
    return x + scale * std * torch.randn(x.shape, generator=gen).to(x)


def noise(parents, gen, scale=0.1):
    """Mutation: Gaussian noise on A and B, `scale` times the tensor's standard deviation, A's for a B that
    is zero, so that adapters that never learned can leave the base."""
    factors = parents[0].items()
    return {name: (jitter(A, scale, gen, B), jitter(B, scale, gen, A)) for name, (A, B) in factors}


def layers(parents, gen, scale=0.3, share=1 / 3):
    """Mutation: as `noise`, stronger, on a random third of the modules; the others stay bit for bit."""
    names = list(parents[0])
    hit = torch.randperm(len(names), generator=gen)[:max(1, round(share * len(names)))]
    chosen = {names[i]: parents[0][names[i]] for i in sorted(hit.tolist())}
    return copy(parents, gen) | noise([chosen], gen, scale)


def mask(parents, gen, share=0.3):
    """Mutation: a random 30% of each module's singular components start anew (zero B, fresh A)."""
    def fn(gram_a, gram_b, R):
        P, S, Q = parent_svd(gram_a, gram_b, 0, R)
        cut = torch.rand(S.shape, generator=gen).argsort(-1)[..., :max(1, round(share * R))]
        return P, S.scatter(-1, cut, 0), Q
    return rebuilt(parents, gen, fn)


def dare(parents, gen, p=0.5):
    """Crossover: drop with probability p, rescale by 1/(1-p), average, cut to rank R (DARE, 2311.03099).

    What is dropped are singular components of each parent's dW: dropping elements of dW would leave full
    rank, and of the factors would depend on the factoring. The mean over draws of the sum is the parents'
    midpoint; at the default p = 1/2 a child inherits each component whole or not at all.
    """
    assert 0 <= p < 1, f"dare needs a drop probability in [0, 1), got {p}"

    def fn(gram_a, gram_b, R):
        """A module's P, S, Q: what is kept of each parent, averaged and cut to rank R."""
        core = 0.0
        for i in range(len(parents)):
            P, S, Q = parent_svd(gram_a, gram_b, i, R)
            kept = torch.rand(S.shape, generator=gen) >= p
            core = core + (P * (S * kept / (1 - p) / len(parents))[..., None, :]) @ Q.mT
        return core_svd(gram_a, gram_b, core, R)
    return rebuilt(parents, gen, fn)


def block_of(name):
    """Block of a module ("model.layers.7.mlp.up_proj" -> "7"); one outside the blocks is its own."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return match.group(1) if match else name


def layerwise(parents, gen):
    """Crossover: each transformer block as a whole from one parent; both parents give at least one."""
    blocks = list(dict.fromkeys(map(block_of, parents[0])))
    coin = torch.randint(2, (len(blocks),), generator=gen)
    if len(blocks) > 1 and coin.min() == coin.max():        # a copy: flip one block
        i = torch.randint(len(blocks), (1,), generator=gen)
        coin[i] = 1 - coin[i]
    giver = dict(zip(blocks, coin.tolist()))
    return {name: tuple(x.clone() for x in parents[giver[block_of(name)]][name]) for name in parents[0]}


def svd_mix(parents, gen, k=None):
    """Crossover: k leading singular components of the fitter (default R // 2), the other's from k+1 on."""
    def fn(gram_a, gram_b, R):
        n = max(1, R // 2) if k is None else k
        fitter = parent_svd(gram_a, gram_b, 0, R)
        other = parent_svd(gram_a, gram_b, 1, R)
        P, S, Q = (torch.cat([x[..., :n], y[..., n:]], dim=-1) for x, y in zip(fitter, other))
        return core_svd(gram_a, gram_b, (P * S[..., None, :]) @ Q.mT, R)
    return rebuilt(parents, gen, fn)


def extrapolate(parents, gen, low=1.0, high=1.5):
    """Crossover: worse + eta (better - worse) in dW space, one eta in U(low, high) per child."""
    eta = low + (high - low) * torch.rand((), generator=gen, dtype=torch.float64).item()
    return weighted_sum(parents, (eta, 1 - eta), gen)


def add(parents, gen, share=0.7):
    """Crossover: `share` of each parent's dW, summed and cut to rank R (task arithmetic, 2212.04089)."""
    return weighted_sum(parents, (share, share), gen)


def copy(parents, gen):
    """Control: the parent, bit for bit."""
    return {name: (A.clone(), B.clone()) for name, (A, B) in parents[0].items()}


def mean(parents, gen):
    """Control: the parents' midpoint in dW space."""
    return weighted_sum(parents, (0.5, 0.5), gen)


class Operator(NamedTuple):
    """fn(parents: list of n_parents Factors, gen: CPU torch.Generator, **knobs) -> Factors."""
    fn: Callable
    n_parents: int


MUTATIONS = {f.__name__: Operator(f, 1) for f in (svd, layers, mask, noise)}
CROSSOVERS = {f.__name__: Operator(f, 2) for f in (dare, layerwise, svd_mix, extrapolate)}
BY_NAME = {"copy": Operator(copy, 1), "mean": Operator(mean, 2), "add": Operator(add, 2)}  # not in "mixed"
OPERATORS = MUTATIONS | CROSSOVERS | BY_NAME
EXACT = ("svd_mix", *BY_NAME)       # these draw nothing: of the same parents they make the same child


def n_children(mode, n_parents):
    """How many different children n_parents can have in an evolve mode; inf where its operators draw."""
    if mode not in EXACT:
        return math.inf
    return max(1, math.comb(n_parents, OPERATORS[mode].n_parents))


# --- distances ----------------------------------------------------------------------------------------------

def dw_inner(members):
    """Inner products (P, P) of the members' dW over all modules, float64 on the CPU; without alpha / R. <B A,
    B' A'> = sum((B^T B') * (A A'^T)): only R x R products; 0 with a fresh member."""
    P, total = len(members), 0.0
    for name in members[0]:
        A = torch.cat([m[name][0] for m in members])                # (P R, in)
        B = torch.cat([m[name][1] for m in members], dim=1)         # (out, P R)
        R = A.shape[0] // P
        total = total + ((A @ A.T).double() * (B.T @ B).double()).view(P, R, P, R).sum((1, 3)).cpu()
    return total


def dw_norm(factors):
    """Frobenius norm of one member's dW over all modules (without the scale alpha / R), float."""
    return max(dw_inner([factors]).item(), 0.0) ** 0.5


@torch.no_grad()
def adapter_cosines(members):
    """Cosines (P, P) of the members' dW: 1 = the same update up to scale; 0 with a fresh member."""
    inner = dw_inner(members)
    norm = inner.diagonal().clamp(min=0).sqrt()
    both = norm[:, None] * norm[None, :]
    return torch.where(both > 0, inner / both, 0).clamp(-1, 1)
