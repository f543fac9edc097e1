"""Operators in weight space: on trained, fresh and near-collinear parents; distances between adapters."""
import copy

import pytest
import torch
from factors import RANK, fresh, gen, same, trained

from operators import OPERATORS, adapter_cosines, cayley, dw_norm


def made(name, parents, seed=0, **knobs):
    return OPERATORS[name].fn(parents[:OPERATORS[name].n_parents], gen(seed), **knobs)


def collinear(factors):
    g = gen(9)
    return {n: tuple(x * (1 + 1e-5 * torch.randn(x.shape, generator=g)) for x in pair) for n, pair in factors.items()}


def svd(M):
    """U, S, V of the best approximation of rank RANK."""
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return U[:, :RANK], S[:RANK], Vh[:RANK].T


def dw(factors):
    return {n: B.double() @ A.double() for n, (A, B) in factors.items()}


def refactored(factors):
    """The same dW in other factors: rotated, and with other scales."""
    skew = 1e3 ** torch.linspace(-1, 1, RANK)
    Q = torch.linalg.qr(torch.randn(RANK, RANK, generator=gen(6)))[0]
    return {n: ((Q.T @ A) * skew[:, None], (B @ Q) / skew) for n, (A, B) in factors.items()}


def distance(a, b):
    """|dW_a - dW_b| / |dW_b|, the largest over modules; of factors, or dW by name."""
    a, b = (x if torch.is_tensor(next(iter(x.values()))) else dw(x) for x in (a, b))
    return max(((a[n] - b[n]).norm() / b[n].norm()).item() for n in b)


ONE, TWO = trained(1), trained(2)
STAYS = "svd mask dare layerwise svd_mix extrapolate mean add copy"     # what makes no update of none
PARENTS = {"trained": [ONE, TWO], "fresh": [fresh(1), fresh(2)], "collinear": [ONE, collinear(ONE)],
           "rank one": [{n: (A[:1], B[:, :1]) for n, (A, B) in p.items()} for p in (ONE, TWO)]}


@pytest.mark.parametrize("kind", PARENTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_children_are_sound(name, kind):
    """Pure, of the seed alone, finite, of the parents' shape, without a component that gets no gradient."""
    parents = PARENTS[kind]
    before = copy.deepcopy(parents)
    child = made(name, parents, 3)
    assert same(child, made(name, parents, 3)) and all(map(same, parents, before))
    for n, (A, B) in child.items():
        assert [A.shape, B.shape] == [x.shape for x in parents[0][n]] and A.dtype == B.dtype == torch.float32
        assert A.isfinite().all() and B.isfinite().all() and (A.abs().amax(1) + B.abs().amax(0) > 0).all()
        assert all(A.data_ptr() != p[n][0].data_ptr() for p in parents), "a child shares no storage with its parents"
        if kind == "fresh" and name == "noise":
            assert 0.05 < B.std() / A.std() < 0.2, "an update that is zero moves"
        elif kind == "fresh" and name in STAYS:
            assert (B == 0).all() and (A.abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("name, knobs", [("layerwise", {}), ("svd_mix", {}), ("extrapolate", {}), ("mean", {}), ("add", {"share": 0.5}), ("dare", {"p": 0.0})])
def test_crossovers_see_only_the_product(name, knobs):
    assert distance(made(name, [ONE, refactored(ONE)], **knobs), ONE) < 1e-4
    assert distance(made(name, [refactored(ONE), refactored(TWO)], **knobs), made(name, [ONE, TWO], **knobs)) < 1e-4
    assert distance(made(name, [ONE, collinear(ONE)], **knobs), ONE) < 1e-2


@pytest.mark.parametrize("name, share, knobs", [("mean", 0.5, {}), ("dare", 0.5, {"p": 0.0}), ("add", 0.7, {})])
def test_sums_are_the_best_of_their_rank(name, share, knobs):
    a, b, best = dw(ONE), dw(TWO), {}
    for n in a:
        U, S, V = svd(share * (a[n] + b[n]))
        best[n] = U * S @ V.T
    assert distance(made(name, [ONE, TWO], **knobs), best) < 1e-5


def test_dare_keeps_the_parent_in_expectation():
    one = {n: ONE[n] for n in list(ONE)[:2]}
    children = [dw(made("dare", [one, one], seed, p=0.4)) for seed in range(200)]
    assert distance({n: sum(child[n] for child in children) / 200 for n in one}, one) < 0.1


def test_svd_mix_takes_leading_and_other_components():
    best = {}
    for n in ONE:
        (U, S, V), (U2, S2, V2) = svd(dw(ONE)[n]), svd(dw(TWO)[n])
        best[n] = U[:, :2] * S[:2] @ V[:, :2].T + U2[:, 2:] * S2[2:] @ V2[:, 2:].T
    assert distance(made("svd_mix", [ONE, TWO], k=2), best) < 1e-5


def test_extrapolate_leaves_the_worse_parent_behind():
    child = made("extrapolate", [ONE, TWO], low=1.5, high=1.5)
    assert adapter_cosines([child, ONE])[0, 1] > 0.8 and adapter_cosines([child, TWO])[0, 1] < 0
    assert distance(made("extrapolate", [ONE, TWO], low=1.0, high=1.0), ONE) < 1e-5


def test_svd_mutation_is_exactly_orthogonal_and_keeps_the_spectrum():
    eye = torch.eye(6, dtype=torch.float64)
    Q = cayley(torch.tensor([True] * 5 + [False]), 0.5, gen())
    assert torch.allclose(Q.T @ Q, eye, atol=1e-12) and torch.equal(Q[5], eye[5]), "a direction that is not live stays unmixed"
    child = made("svd", [ONE], eta=0.0, angle=0.3)
    for M, turned_M in zip(dw(ONE).values(), dw(child).values()):
        want = svd(M)[1]
        assert torch.allclose(svd(turned_M)[1], want, rtol=1e-5, atol=1e-6 * want[0].item())
    assert 0.02 < distance(child, ONE) < 1 and distance(made("svd", [ONE], eta=0.0, angle=0.0), ONE) < 1e-5


def test_mask_cuts_30_percent_of_the_components():
    for n, (A, B) in made("mask", [ONE]).items():
        zero = (B == 0).all(0)
        assert zero.sum() == round(0.3 * RANK) and (A[zero].abs().amax(1) > 1e-2).all()
        spectrum = svd(dw(ONE)[n])[1]
        for s in svd(B.double() @ A.double())[1][:RANK - zero.sum()]:
            assert ((spectrum - s).abs() / s).min() < 1e-4


def test_layers_touches_a_third_and_noise_everything():
    few, everything = made("layers", [ONE]), made("noise", [ONE], scale=0.1)
    assert sum(not same({n: few[n]}, ONE) for n in ONE) == round(len(ONE) / 3)
    for old, new in ((ONE[n][i], everything[n][i]) for n in ONE for i in (0, 1)):
        assert ((new - old).std() / old.std()).item() == pytest.approx(0.1, rel=0.25)


def test_layerwise_takes_whole_blocks_and_both_parents():
    for seed in range(9):
        child = made("layerwise", [ONE, TWO], seed)
        givers = {(n.split(".")[2], [same({n: child[n]}, p) for p in (ONE, TWO)].index(True)) for n in child}
        assert len(givers) == 5 and {giver for _, giver in givers} == {0, 1}


def test_cosines_and_norms_equal_the_dense_ones():
    members = [ONE, TWO, made("noise", [ONE]), fresh(4)]
    flat = torch.stack([torch.cat([x.flatten() for x in dw(m).values()]) for m in members])
    assert list(map(dw_norm, members)) == pytest.approx(flat.norm(dim=1).tolist(), rel=1e-5)
    unit = torch.nn.functional.normalize(flat)
    assert torch.allclose(adapter_cosines(members), unit @ unit.T, atol=1e-5)
