"""Operators in weight space: on trained, fresh and near-collinear parents; distances between adapters."""
import pytest
import torch
from factors import RANK, fresh, gen, trained

from operators import OPERATORS, adapter_cosines, cayley, core_svd, dw_inner, dw_norm


def collinear(factors, seed=9, scale=1e-5):
    g = gen(seed)
    return {n: (A * (1 + scale * torch.randn(A.shape, generator=g)), B * (1 + scale * torch.randn(B.shape, generator=g)))
            for n, (A, B) in factors.items()}


def low_rank_svd(A, B, rank=None):
    """U, S, V of B A in float64, from its Gram matrices alone."""
    A, B = A.double(), B.double()
    P, S, Q = core_svd(A @ A.T, B.T @ B, torch.eye(len(A), dtype=torch.float64), rank)
    return B @ P, S, A.T @ Q


def rebalanced(factors):
    """The same dW in other factors: SVD-balanced and then rotated."""
    child = {}
    for n, (A, B) in factors.items():
        U, S, V = low_rank_svd(A, B)
        A, B = (S.sqrt()[:, None] * V.T).float(), (U * S.sqrt()).float()
        Q = torch.linalg.qr(torch.randn(RANK, RANK, generator=gen(6)))[0]
        child[n] = (Q.T @ A, B @ Q)
    return child


def dw(factors):
    return {n: B.double() @ A.double() for n, (A, B) in factors.items()}


def distance(a, b):
    """|dW_a - dW_b| / |dW_b|, the largest over modules."""
    a, b = dw(a), dw(b)
    return max(((a[n] - b[n]).norm() / b[n].norm()).item() for n in b)


def parents_for(name, make):
    return [make(seed) for seed in (1, 2)[:OPERATORS[name].n_parents]]


# --- operators ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rank", [None, 4])
def test_low_rank_svd_equals_dense_svd(rank):
    for A, B in trained(1).values():
        U, S, V = low_rank_svd(A, B, rank)
        k = rank or RANK
        dense = B.double() @ A.double()
        u, s, vt = torch.linalg.svd(dense)
        assert torch.allclose(S, s[:k], rtol=1e-9)
        assert torch.allclose(U * S @ V.mT, u[:, :k] * s[:k] @ vt[:k], atol=1e-10)
        for X in (U, V):
            assert torch.allclose(X.mT @ X, torch.eye(k, dtype=torch.float64), atol=1e-9)


def test_low_rank_svd_of_deficient_and_badly_scaled_factors():
    A, B = torch.randn(6, 30, generator=gen(1)), torch.randn(20, 6, generator=gen(2))
    A[3], B[:, 4] = A[2], 0.0  # rank 4 of 6
    scale = torch.tensor([1e-6, 1e5, 1.0, 1.0, 1.0, 1e-3])  # the same B A, split unevenly
    U, S, V = low_rank_svd(A * scale[:, None], B / scale)
    dense = torch.linalg.svdvals(B.double() @ A.double())[:6]
    assert torch.allclose(S, dense, rtol=1e-5, atol=1e-5) and (S > 1e-5).sum() == 4
    assert torch.allclose(U * S @ V.mT, B.double() @ A.double(), atol=1e-4)


@pytest.mark.parametrize("kind", ["trained", "fresh", "collinear", "one fresh"])
@pytest.mark.parametrize("name", OPERATORS)
def test_children_are_sound(name, kind):
    a = trained(1)
    parents = {"trained": [a, trained(2)], "fresh": [fresh(1), fresh(2)], "collinear": [a, collinear(a)],
               "one fresh": [a, fresh(2)]}[kind][:OPERATORS[name].n_parents]
    before = [{n: (A.clone(), B.clone()) for n, (A, B) in p.items()} for p in parents]
    child = OPERATORS[name].fn(parents, gen())
    assert list(child) == list(parents[0])
    for n, (A, B) in child.items():
        assert A.shape == parents[0][n][0].shape and B.shape == parents[0][n][1].shape and A.dtype == B.dtype == torch.float32
        assert torch.isfinite(A).all() and torch.isfinite(B).all()
        dead = (A.abs().amax(1) == 0) & (B.abs().amax(0) == 0)
        assert not dead.any(), f"{name} on {kind} parents: {n} has components without a gradient"
        if kind == "fresh" and name == "noise":
            assert 0.05 < B.std() / A.std() < 0.2, "an update that is zero moves"
        elif kind == "fresh" and name != "layers":
            assert (B == 0).all() and (A.abs().amax(1) > 1e-3).all()
        assert all(A.data_ptr() != p[n][0].data_ptr() for p in parents), "a child shares no storage with its parents"
    for p, q in zip(parents, before):  # operators are pure
        assert all(torch.equal(p[n][i], q[n][i]) for n in p for i in (0, 1))


@pytest.mark.parametrize("name", OPERATORS)
def test_same_seed_same_child(name):
    first, again, other = (OPERATORS[name].fn(parents_for(name, trained), gen(seed)) for seed in (3, 3, 4))
    equal = lambda a, b: all(torch.equal(a[n][i], b[n][i]) for n in a for i in (0, 1))
    assert equal(first, again) and equal(first, other) == (name in ("copy", "mean", "add", "svd_mix"))


@pytest.mark.parametrize("name,knobs", [("layerwise", {}), ("svd_mix", {}), ("svd_mix", {"k": 1}), ("extrapolate", {}),
                                        ("mean", {}), ("add", {"share": 0.5}), ("dare", {"p": 0.0})])
def test_crossovers_see_only_the_product(name, knobs):
    a, b = trained(1), trained(2)
    cross = lambda *parents: OPERATORS[name].fn(list(parents), gen(), **knobs)
    assert distance(cross(a, rebalanced(a)), a) < 1e-4
    assert distance(cross(rebalanced(a), a), a) < 1e-4
    assert distance(cross(rebalanced(a), rebalanced(b)), cross(a, b)) < 1e-4
    assert distance(cross(a, collinear(a)), a) < 1e-2


def test_dare_keeps_the_parent_in_expectation_and_sees_only_the_product():
    a, b = trained(1), trained(2)
    dare = OPERATORS["dare"].fn
    assert distance(dare([rebalanced(a), rebalanced(b)], gen()), dare([a, b], gen())) < 1e-4
    one = {n: a[n] for n in list(a)[:2]}
    mean = {n: 0.0 for n in one}
    for seed in range(200):
        child = dw(OPERATORS["dare"].fn([one, one], gen(seed), p=0.4))
        mean = {n: mean[n] + child[n] / 200 for n in mean}
    for n, want in dw(one).items():
        assert (mean[n] - want).norm() / want.norm() < 0.1
    with pytest.raises(ValueError, match="drop probability"):
        OPERATORS["dare"].fn([one, one], gen(), p=1.0)


def test_dare_and_mean_are_at_the_parents_scale():
    a, b = trained(1), trained(2)
    midpoint = {}
    for n in a:
        u, s, vt = torch.linalg.svd((dw(a)[n] + dw(b)[n]) / 2)
        midpoint[n] = ((s[:RANK, None] * vt[:RANK]).float(), u[:, :RANK].float())
    for child in (OPERATORS["mean"].fn([a, b], gen()), OPERATORS["dare"].fn([a, b], gen(), p=0.0)):
        assert distance(child, midpoint) < 1e-5


def test_add_is_the_best_of_its_rank_near_a_share_of_both():
    a, b = trained(1), trained(2)
    child = OPERATORS["add"].fn([a, b], gen())
    for n in a:
        u, s, vt = torch.linalg.svd(0.7 * (dw(a)[n] + dw(b)[n]))
        assert torch.allclose(dw(child)[n], u[:, :RANK] * s[:RANK] @ vt[:RANK], atol=1e-5)


def test_extrapolate_leaves_the_worse_parent_behind():
    a, b = trained(1), trained(2)
    child = OPERATORS["extrapolate"].fn([a, b], gen(), low=1.5, high=1.5)
    assert adapter_cosines([child, a])[0, 1] > 0.8 and adapter_cosines([child, b])[0, 1] < 0
    assert distance(OPERATORS["extrapolate"].fn([a, b], gen(), low=1.0, high=1.0), a) < 1e-5


def test_svd_mutation_is_exactly_orthogonal_and_keeps_the_spectrum():
    live = torch.tensor([[True] * 5 + [False]])
    Q = cayley(live, 0.5, gen())
    assert torch.allclose(Q.mT @ Q, torch.eye(6, dtype=torch.float64), atol=1e-12)
    assert torch.equal(Q[0, 5], torch.eye(6, dtype=torch.float64)[5]), "a direction that is not live stays unmixed"
    a = trained(1)
    child = OPERATORS["svd"].fn([a], gen(), eta=0.0, angle=0.3)
    for n in a:
        want = low_rank_svd(*a[n])[1]
        assert torch.allclose(low_rank_svd(*child[n])[1], want, rtol=1e-5, atol=1e-7 * want[0].item())
    assert 0.02 < distance(child, a) < 1
    assert distance(OPERATORS["svd"].fn([a], gen(), eta=0.0, angle=0.0), a) < 1e-5


def test_cayley_turns_by_about_the_angle():
    Q = cayley(torch.ones(64, 32, dtype=torch.bool), 0.1, gen())
    turned = Q.diagonal(dim1=-2, dim2=-1).clamp(-1, 1).acos().square().mean().sqrt()
    assert turned.item() == pytest.approx(0.1, rel=0.1)


def test_factors_come_out_balanced():
    for name in ("svd", "mask", "dare", "svd_mix", "extrapolate", "mean"):
        for A, B in OPERATORS[name].fn(parents_for(name, trained), gen()).values():
            row, column = A.norm(dim=1), B.norm(dim=0)
            assert torch.allclose(row[column > 0], column[column > 0], rtol=1e-4)


def test_mask_cuts_30_percent_of_the_components():
    a = trained(1)
    for n, (A, B) in OPERATORS["mask"].fn([a], gen()).items():
        zero = (B == 0).all(0)
        assert zero.sum() == round(0.3 * RANK) and (A[zero].abs().amax(1) > 1e-2).all()
        kept, spectrum = low_rank_svd(A, B)[1][:int((~zero).sum())], low_rank_svd(*a[n])[1]
        assert all(((spectrum - s).abs() / s).min() < 1e-4 for s in kept)


def test_layers_touches_a_third_and_noise_everything():
    a = trained(1)
    changed = lambda child: sum(not torch.equal(child[n][0], a[n][0]) for n in a)
    assert changed(OPERATORS["layers"].fn([a], gen())) == round(len(a) / 3)
    child = OPERATORS["noise"].fn([a], gen(), scale=0.1)
    assert changed(child) == len(a)
    for n in a:
        for old, new in zip(a[n], child[n]):
            assert ((new - old).std() / old.std()).item() == pytest.approx(0.1, rel=0.25)


def test_layerwise_takes_whole_blocks_and_both_parents():
    a, b = trained(1), trained(2)
    for seed in range(40):
        child, giver = OPERATORS["layerwise"].fn([a, b], gen(seed)), {}
        for n in child:
            source = next(i for i, p in enumerate((a, b)) if all(map(torch.equal, child[n], p[n])))
            giver.setdefault(n.split(".")[2], set()).add(source)
        assert all(len(g) == 1 for g in giver.values()) and set.union(*giver.values()) == {0, 1}


@pytest.mark.parametrize("name", OPERATORS)
def test_rank_one(name):
    parents = [{n: (A[:1], B[:, :1]) for n, (A, B) in p.items()} for p in parents_for(name, trained)]
    assert all(A.shape[0] == 1 and torch.isfinite(B @ A).all() for A, B in OPERATORS[name].fn(parents, gen()).values())


# --- distances --------------------------------------------------------------------------------------------------------

def test_cosines_and_norms_equal_the_dense_ones():
    members = [trained(1), trained(2), OPERATORS["noise"].fn([trained(1)], gen()), fresh(4)]
    flat = [torch.cat([x.flatten() for x in dw(m).values()]) for m in members]
    cosines = adapter_cosines(members)
    for i, x in enumerate(flat):
        assert dw_norm(members[i]) == pytest.approx(x.norm().item(), rel=1e-5)
        for j, y in enumerate(flat):
            want = (x @ y / (x.norm() * y.norm())).item() if x.norm() * y.norm() > 0 else 0.0
            assert cosines[i, j].item() == pytest.approx(want, abs=1e-5)
    assert torch.allclose(dw_inner(members), dw_inner(members).T)
