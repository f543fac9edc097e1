"""Operators in weight space: on trained, fresh and near-collinear parents; distances between adapters."""
import pytest
import torch
from factors import RANK, fresh, gen, trained

from operators import OPERATORS, adapter_cosines, cayley, dw_norm


def made(name, parents, seed=0, **knobs):
    return OPERATORS[name].fn(parents[:OPERATORS[name].n_parents], gen(seed), **knobs)


def collinear(factors, scale=1e-5):
    g = gen(9)
    return {n: (A * (1 + scale * torch.randn(A.shape, generator=g)), B * (1 + scale * torch.randn(B.shape, generator=g)))
            for n, (A, B) in factors.items()}


def svd(M):
    """U, S, V of a matrix of rank RANK at most; of others the best approximation of that rank."""
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return U[:, :RANK], S[:RANK], Vh[:RANK].T


def dw(factors):
    return {n: B.double() @ A.double() for n, (A, B) in factors.items()}


def rebalanced(factors):
    """The same dW in other factors: SVD-balanced and then rotated."""
    child = {}
    for n, M in dw(factors).items():
        U, S, V = svd(M)
        Q = torch.linalg.qr(torch.randn(RANK, RANK, generator=gen(6)))[0]
        child[n] = Q.T @ (S.sqrt()[:, None] * V.T).float(), (U * S.sqrt()).float() @ Q
    return child


def distinct(a, b):
    """How many factors differ in a bit."""
    return sum(not torch.equal(x, y) for n in a for x, y in zip(a[n], b[n]))


def distance(a, b):
    """|dW_a - dW_b| / |dW_b|, the largest over modules; b: factors, or dW by name."""
    a, b = dw(a), b if torch.is_tensor(next(iter(b.values()))) else dw(b)
    return max(((a[n] - b[n]).norm() / b[n].norm()).item() for n in b)


ONE, TWO = trained(1), trained(2)
PARENTS = {"trained": [ONE, TWO], "fresh": [fresh(1), fresh(2)], "collinear": [ONE, collinear(ONE)], "one fresh": [ONE, fresh(2)],
           "rank one": [{n: (A[:1], B[:, :1]) for n, (A, B) in p.items()} for p in (ONE, TWO)]}


@pytest.mark.parametrize("kind", PARENTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_children_are_sound(name, kind):
    parents = PARENTS[kind][:OPERATORS[name].n_parents]
    before = [{n: (A.clone(), B.clone()) for n, (A, B) in p.items()} for p in parents]
    child, again, other = (made(name, parents, seed) for seed in (3, 3, 4))
    assert distinct(child, again) == 0 and list(child) == list(parents[0])
    if kind == "trained":
        assert bool(distinct(child, other)) == (name not in ("copy", "mean", "add", "svd_mix")), "the seed decides"
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
    assert not any(map(distinct, parents, before)), "operators are pure"


@pytest.mark.parametrize("name,knobs", [("layerwise", {}), ("svd_mix", {}), ("svd_mix", {"k": 1}), ("extrapolate", {}),
                                        ("mean", {}), ("add", {"share": 0.5}), ("dare", {"p": 0.0})])
def test_crossovers_see_only_the_product(name, knobs):
    assert distance(made(name, [ONE, rebalanced(ONE)], **knobs), ONE) < 1e-4
    assert distance(made(name, [rebalanced(ONE), rebalanced(TWO)], **knobs), made(name, [ONE, TWO], **knobs)) < 1e-4
    skewed = {n: (A * 1e6 ** torch.linspace(-1, 1, RANK)[:, None], B / 1e6 ** torch.linspace(-1, 1, RANK)) for n, (A, B) in ONE.items()}
    assert distance(made(name, [skewed, TWO], **knobs), made(name, [ONE, TWO], **knobs)) < 2e-6 or name == "layerwise"
    assert distance(made(name, [ONE, collinear(ONE)], **knobs), ONE) < 1e-2


def test_dare_keeps_the_parent_in_expectation():
    one = {n: ONE[n] for n in list(ONE)[:2]}
    children = [dw(made("dare", [one, one], seed, p=0.4)) for seed in range(200)]
    for n, want in dw(one).items():
        assert (sum(child[n] for child in children) / 200 - want).norm() / want.norm() < 0.1
    with pytest.raises(AssertionError, match="drop probability"):
        made("dare", [one, one], p=1.0)


@pytest.mark.parametrize("name,share,knobs", [("mean", 0.5, {}), ("dare", 0.5, {"p": 0.0}), ("add", 0.7, {})])
def test_sums_are_the_best_of_their_rank(name, share, knobs):
    a, b, best = dw(ONE), dw(TWO), {}
    for n in a:
        U, S, V = svd(share * (a[n] + b[n]))
        best[n] = U * S @ V.T
    assert distance(made(name, [ONE, TWO], **knobs), best) < 1e-5


def test_extrapolate_leaves_the_worse_parent_behind():
    child = made("extrapolate", [ONE, TWO], low=1.5, high=1.5)
    assert adapter_cosines([child, ONE])[0, 1] > 0.8 and adapter_cosines([child, TWO])[0, 1] < 0
    assert distance(made("extrapolate", [ONE, TWO], low=1.0, high=1.0), ONE) < 1e-5


def test_svd_mutation_is_exactly_orthogonal_and_keeps_the_spectrum():
    g, eye = gen(), torch.eye(6, dtype=torch.float64)
    Q = cayley(torch.tensor([True] * 5 + [False]), 0.5, g)
    assert torch.allclose(Q.T @ Q, eye, atol=1e-12) and torch.equal(Q[5], eye[5]), "a direction that is not live stays unmixed"
    turned = torch.stack([cayley(torch.ones(32, dtype=torch.bool), 0.1, g).diagonal().clamp(-1, 1).acos() for _ in range(64)])
    assert turned.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.1)
    child = made("svd", [ONE], eta=0.0, angle=0.3)
    for M, turned_M in zip(dw(ONE).values(), dw(child).values()):
        want = svd(M)[1]
        assert torch.allclose(svd(turned_M)[1], want, rtol=1e-5, atol=1e-7 * want[0].item())
    assert 0.02 < distance(child, ONE) < 1 and distance(made("svd", [ONE], eta=0.0, angle=0.0), ONE) < 1e-5


def test_mask_cuts_30_percent_of_the_components():
    for n, (A, B) in made("mask", [ONE]).items():
        zero = (B == 0).all(0)
        assert zero.sum() == round(0.3 * RANK) and (A[zero].abs().amax(1) > 1e-2).all()
        kept, spectrum = svd(B.double() @ A.double())[1][:int((~zero).sum())], svd(dw(ONE)[n])[1]
        assert all(((spectrum - s).abs() / s).min() < 1e-4 for s in kept)
        assert torch.allclose(A.norm(dim=1)[~zero], B.norm(dim=0)[~zero], rtol=1e-4), "factors come out balanced"


def test_layers_touches_a_third_and_noise_everything():
    few, all_of_them = made("layers", [ONE]), made("noise", [ONE], scale=0.1)
    assert sum(not torch.equal(few[n][0], ONE[n][0]) for n in ONE) == round(len(ONE) / 3)
    for n in ONE:
        for old, new in zip(ONE[n], all_of_them[n]):
            assert ((new - old).std() / old.std()).item() == pytest.approx(0.1, rel=0.25)


def test_layerwise_takes_whole_blocks_and_both_parents():
    for seed in range(40):
        child, giver = made("layerwise", [ONE, TWO], seed), {}
        for n in child:
            source = next(i for i, p in enumerate((ONE, TWO)) if all(map(torch.equal, child[n], p[n])))
            giver.setdefault(n.split(".")[2], set()).add(source)
        assert all(len(g) == 1 for g in giver.values()) and set.union(*giver.values()) == {0, 1}


def test_cosines_and_norms_equal_the_dense_ones():
    members = [ONE, TWO, made("noise", [ONE]), fresh(4)]
    flat = [torch.cat([x.flatten() for x in dw(m).values()]) for m in members]
    cosines = adapter_cosines(members)
    for i, x in enumerate(flat):
        assert dw_norm(members[i]) == pytest.approx(x.norm().item(), rel=1e-5)
        for j, y in enumerate(flat):
            want = (x @ y / (x.norm() * y.norm())).item() if x.norm() * y.norm() > 0 else 0.0
            assert cosines[i, j].item() == pytest.approx(want, abs=1e-5)
