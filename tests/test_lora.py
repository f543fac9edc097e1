"""Adapters: any routing equals each member alone, no member changes another, a fresh member equals the base.
tests/test_weights.py compares members with PEFT."""
import pytest
import torch
from batches import logits, tokens
from factors import gen

from lora import TARGETS, Adapters, AdapterWeights


@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "v_proj", "gate_proj", "o_proj")])
@pytest.mark.parametrize("n_members, rank, member, way", [
    (3, 4, [0, 0, 1, 1, 2, 2], "equal"), (3, 4, [1, 1, 2, 2], "equal"), (3, 4, [2, 0, -1, 1, 0, -1], "dense grouped"),
    (3, 3, [2, 0, -1, 1, 0], "dense looped"), (20, 3, [*range(20), -1], "dense looped"), (20, 4, [*range(20), 3, -1, 3], "grouped")])
def test_every_product_computes_the_same(tiny, n_members, rank, member, way, targets, in_graph, T):
    """Equal, ragged, unordered, of many members, of a rank that groups cannot take: each row as alone, by the product that is cheapest, and
    by the dense one, which looks at no value. With factors side by side between zeros and for each layer apart."""
    adapters, ids, rows = Adapters.on(tiny.model, n_members, rank, 8, targets), tokens(len(member), T), torch.tensor(member)
    for i, p in enumerate(adapters.parameters()):
        p.data.normal_(0, 0.1, generator=gen(i))
    weights, plain = AdapterWeights(adapters, rows, torch.float32, in_graph), logits(tiny.model, ids)
    alone = torch.cat([logits(tiny.model, ids[i:i + 1], adapters, [p]) for i, p in enumerate(member)])
    routes = [weights.static_route(rows)]
    if not in_graph:
        routes.append(weights.route(rows, one_token=T == 1))
        assert routes[1].product.func.__name__ == way.split()[0 if T == 1 else -1]
    for lora in routes:
        with torch.inference_mode():
            mixed = tiny.model.logits(tiny.model(ids, lora=lora))
        assert (mixed - alone).abs().max() < 1e-4
        assert torch.equal(mixed[rows < 0], plain[rows < 0]), "rows of the base, bit for bit"
    if in_graph:
        n_kept = sum(A.numel() + sum(B.numel() for _, B in Bs) for A, Bs in filter(None, weights.made.values()))
        assert n_kept == sum(x.numel() for x in adapters.parameters()) * len(set(member) - {-1}) // n_members, "no zeros are kept"


BROKEN = {"A NaN": ("A", float("nan")), "B NaN": ("B", float("nan")), "A infinite": ("A", float("inf")), "B infinite": ("B", -float("inf")),
          "A as large as a number can be": ("A", 3e38), "B as large as a number can be": ("B", 3e38)}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("rank, member, ways", [
    (4, [0, 0, 1, 1, 2, 2], "equal equal dense"), (4, [2, 0, -1, 1, 0, -1, 1], "grouped dense dense"), (3, [2, 0, -1, 1, 0], "looped dense dense")])
def test_no_member_changes_another_or_the_base(tiny, population, rank, member, ways, broken):
    """Whatever member 1 holds, the others' rows and gradients are what they are beside a sound one, bit for bit; its own are not finite."""
    which, number = BROKEN[broken]
    rows, ids = torch.tensor(member), tokens(len(member), 7)
    others, own = rows != 1, torch.tensor([0, 2])

    def outcome(adapters) -> tuple[list, list]:
        """Logits by every product, in and out of a graph; gradients by that of training."""
        values, gradients = [], []
        for one_token, in_graph, static in ((False, False, False), (True, False, False), (False, False, True), (False, True, True)):
            x = ids[:, :1] if one_token else ids
            factors = AdapterWeights(adapters, rows, torch.float32, in_graph)
            route = factors.static_route(rows) if static else factors.route(rows, one_token)
            with torch.no_grad():
                values.append(tiny.model.logits(tiny.model(x, lora=route)))
            if in_graph:
                continue
            name = route.product.func.__name__
            assert name == ways.split()[one_token + 2 * static], name
            if name == "dense":
                continue
            factors = AdapterWeights(adapters, rows, torch.float32, trains=True)
            for p in adapters.parameters():
                p.grad = torch.zeros_like(p)
            route = factors.route(rows, one_token)
            tiny.model.logits(tiny.model(x, lora=route)).square().sum().backward()
            factors.add_gradients()
            gradients.append((one_token, [p.grad for p in adapters.parameters()]))
        return values, gradients

    adapters = population(tiny, rank=rank)
    sound_values, sound_gradients = outcome(adapters)
    for factor in getattr(adapters, which).values():
        factor.data[1].view(-1)[5:9] = number
    values, gradients = outcome(adapters)
    for value, sound, T in zip(values, sound_values, (7, 1, 7, 7)):
        assert torch.equal(value[others], sound[others]) and not value[~others].isfinite().all()
        assert torch.equal(value[rows < 0], logits(tiny.model, ids[:, :T])[rows < 0])
    names = [path for path in adapters.A for _ in "AB"]
    for (one_token, factors), (_, sound) in zip(gradients, sound_gradients):
        for name, x, y in zip(names, factors, sound):
            assert torch.equal(x[own], y[own]), name
            # the softmax of one score is 1 whatever the score is: of a single token q and k have no gradient
            if not (one_token and name.endswith(("q_proj", "k_proj"))):
                assert y[own].abs().max() > 0, name
        assert not all(x[1].isfinite().all() for x in factors)


def test_fresh_member_equals_the_base_bit_for_bit(tiny):
    """And is keyed by its generator alone, with PEFT's bound."""
    adapters, ids = Adapters.on(tiny.model, 3, rank=16, alpha=8), tokens()
    for p in range(3):
        torch.rand(7)
        adapters.init_member(p, gen(p // 2))
    assert torch.equal(logits(tiny.model, ids, adapters, [0, 1, 2, -1, 0]), logits(tiny.model, ids))
    for A in adapters.A.values():
        assert torch.equal(A[0], A[1]) and not torch.equal(A[0], A[2]) and A.abs().max() <= A.shape[2] ** -0.5
    reference = torch.nn.init.kaiming_uniform_(torch.empty(16, 48), a=5 ** 0.5)
    assert abs(adapters.A["model.layers.0.mlp.down_proj"][0].std() / reference.std() - 1) < 0.1
    assert adapters.route(torch.tensor([-1, -1]), torch.float32) is None, "a batch of base rows costs nothing"
