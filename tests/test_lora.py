"""Adapters: any routing equals each member alone, a fresh member equals the base, and PEFT reads what we write."""
import copy
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from config import TARGETS
from lora import Adapters, AdapterWeights
from rl import Adam
from weights import load_peft, save_peft, weights_hash


def tokens(n_rows: int = 5, T: int = 11, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 61, (n_rows, T), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def logits(base, ids, adapters=None, member=None) -> torch.Tensor:
    route = adapters.route(torch.tensor(member), base.model.embedding.dtype) if adapters is not None else None
    return base.model.logits(base.model(ids, lora=route))


def merged(base, adapters: Adapters, p: int):
    """A copy of the model with member p's update added into the weights."""
    model = copy.deepcopy(base.model)
    with torch.no_grad():
        for path, (A, B) in adapters.factors(p).items():
            model.linears()[path].weight += adapters.scale * B @ A
    return model


@pytest.mark.parametrize("member", [[0, 1, 2, 3, -1], [2, 2, 2, 2, 2], [3, -1, 3, 0, -1], [-1, 1, -1, -1, -1], [3, 2, 1, 0, 0]])
def test_any_routing_equals_alone_and_merged(tiny, population, member):
    adapters, ids = population(tiny, 4), tokens()
    mixed, plain = logits(tiny, ids, adapters, member), logits(tiny, ids)
    for i, p in enumerate(member):
        row = ids[i:i + 1]
        assert (mixed[i:i + 1] - logits(tiny, row, adapters, [p])).abs().max() < 1e-4
        if p >= 0:
            with torch.inference_mode():
                model = merged(tiny, adapters, p)
                assert (mixed[i:i + 1] - model.logits(model(row))).abs().max() < 1e-4
            assert (mixed[i] - plain[i]).abs().max() > 1e-2, "the case must be able to fail: this member is the base"


def test_members_that_are_paged_in_compute_what_they_do_among_all(tiny, population):
    """Logits, gradients and a step of the optimiser, bit for bit; what is not there moves in neither way."""
    whole, ids, member = population(tiny, 6), tokens(5), [4, 1, -1, 1, 2]
    paged = Adapters.on(tiny.model, 6, whole.rank, whole.alpha, paged=True)
    for p in range(6):
        paged.set_factors(p, whole.factors(p))
    before = [paged.factors(p) for p in range(6)]
    paged.page_in([4, 1, 2, 1])
    assert {len(p) for p in paged.parameters()} == {3} and paged.here.tolist() == [1, 2, 4]
    assert torch.equal(logits(tiny, ids, paged, member), logits(tiny, ids, whole, member))
    active, told = torch.tensor([p in (1, 4) for p in range(6)]), []
    for adapters in (paged, whole):
        adam = Adam(adapters, [1e-2] * 6)
        adapters.changed.clear()
        for _ in range(2):
            for p in adapters.parameters():
                p.grad = torch.zeros_like(p)
            route = adapters.route(torch.tensor(member), torch.float32)
            tiny.model.logits(tiny.model(ids, lora=route)).square().sum().backward()
            told.append(adam.step(active)[0])
        told += [adam.steps, *adam.m, *adam.v]
        assert adapters.changed == {1, 4}
    half = len(told) // 2
    assert all(torch.equal(x, y) for x, y in zip(told[:half], told[half:])) and told[0][[1, 4]].min() > 0
    for p in range(6):
        after = paged.factors(p)
        same = [all(torch.equal(x, y) for path in after for x, y in zip(after[path], other[path]))
                for other in (whole.factors(p), before[p])]
        assert same == [True, p not in (1, 4)]
    with pytest.raises(AssertionError, match="page_in those who play"):
        logits(tiny, ids, paged, [3] * 5)
    paged.page_in([3])
    assert torch.equal(logits(tiny, ids, paged, [3] * 5), logits(tiny, ids, whole, [3] * 5))


@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize("n_members, rank, member, way", [
    (3, 4, [0, 0, 1, 1, 2, 2], "equal"), (3, 4, [1, 1, 2, 2], "equal"), (3, 4, [0, 1, 1, 2], "dense grouped"),
    (3, 4, [2, 0, -1, 1, 0, -1], "dense grouped"), (3, 3, [2, 0, -1, 1, 0], "dense"), (20, 4, [*range(20), 3, -1, 3], "grouped")])
def test_every_way_computes_the_same(tiny, population, n_members, rank, member, way, T):
    """Equal, ragged, unordered, of many members, of a rank that groups cannot take: each row as alone, by the way that is due."""
    adapters, ids = population(tiny, n_members, rank=rank), tokens(len(member), T)
    weights = AdapterWeights(adapters, torch.tensor(member), torch.float32)
    route = weights.route(torch.tensor(member), one_token=T == 1)
    with torch.inference_mode():
        mixed = tiny.model.logits(tiny.model(ids, lora=route))
    assert route.product.__name__ == way.split()[0 if T == 1 else -1]
    for i, p in enumerate(member):
        assert (mixed[i:i + 1] - logits(tiny, ids[i:i + 1], adapters, [p])).abs().max() < 1e-4


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("n_members, rank", [(3, 4), (20, 3)])
def test_a_route_that_looks_at_nothing(tiny, population, n_members, rank, joint):
    """As decoding on a card takes it, for any number of members: each row as alone, those of the base bit for bit."""
    adapters, member = population(tiny, n_members, rank=rank), torch.tensor([2, 0, -1, n_members - 1, 0, -1])
    ids, plain = tokens(len(member), 1), logits(tiny, tokens(len(member), 1))
    route = AdapterWeights(adapters, member, torch.float32, joint).static_route(member)
    with torch.inference_mode():
        mixed = tiny.model.logits(tiny.model(ids, lora=route))
    assert torch.equal(mixed[[2, 5]], plain[[2, 5]])
    for i, p in enumerate(member.tolist()):
        assert (mixed[i:i + 1] - logits(tiny, ids[i:i + 1], adapters, [p])).abs().max() < 1e-4
    assert AdapterWeights(adapters, torch.tensor([-1]), torch.float32).static_route(torch.tensor([-1])) is None


@pytest.mark.parametrize("targets", [TARGETS, ("k_proj", "up_proj"), ("q_proj", "v_proj", "gate_proj", "o_proj")])
@pytest.mark.parametrize("member", [[0, 0, 1, 1, 2, 2], [2, 0, -1, 1, 2, -1], [0, 1, 1, 2, 2, 2]])
def test_a_factor_for_each_layer_computes_as_the_joint_one_between_zeros(tiny, targets, member):
    """By every product, without a gradient."""
    adapters = Adapters.on(tiny.model, 3, 4, 8, targets)
    for p in adapters.parameters():
        p.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(p.numel()))
    member = torch.tensor(member)
    weights = [AdapterWeights(adapters, member, torch.float32, joint) for joint in (True, False)]
    for T in (1, 5):
        ids = tokens(len(member), T)
        with torch.inference_mode():
            for make in (lambda w: w.route(member, one_token=T == 1), lambda w: w.static_route(member)):
                joint, apart = [tiny.model(ids, lora=make(w)) for w in weights]
                assert (joint - apart).abs().max() < 1e-5
    for paths, (_, *Bs) in ((paths, made) for paths, made in weights[1].made.items() if made):
        n_columns = sum(B.shape[2] for B in Bs)
        assert n_columns == sum(n for _, _, n in weights[1].columns(paths)), "no zeros are kept"


@pytest.mark.parametrize("n_members, capability, grouped", [(16, (9, 0), True), (16, (8, 0), False), (20, (8, 0), True)])
def test_a_card_whose_grouped_product_waits_takes_the_dense_one_for_few_members(tiny, population, monkeypatch, n_members, capability,
                                                                                 grouped):
    """Before Hopper: 16 members at most."""
    adapters = population(tiny, n_members, rank=8)
    monkeypatch.setattr(AdapterWeights, "device", torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    weights = AdapterWeights(adapters, torch.arange(n_members), torch.bfloat16)
    assert weights.groups is grouped and not AdapterWeights(adapters, torch.arange(n_members), torch.float16).groups


def test_edits_in_place_count_also_in_a_copy_and_on_another_device(tiny):
    """Weights that lie side by side are views."""
    ids, before = tokens(), None
    score = lambda m: m.logits(m(ids))
    before = score(tiny.model)
    for made in (copy.deepcopy(tiny.model), copy.deepcopy(tiny.model).to(torch.float64).float(), copy.deepcopy(tiny.model).fuse()):
        assert torch.equal(score(made), before)
        with torch.no_grad():
            made.model.layers[0].self_attn.k_proj.weight.mul_(2)
        assert made.is_fused and (score(made) - before).abs().max() > 1e-2 and torch.equal(score(tiny.model), before)


def test_routing_on_the_micro_base(base, population):
    adapters, ids, member = population(base, 3, rank=8, alpha=16), tokens(4) % base.model.cfg.vocab_size, [2, -1, 0, 1]
    mixed = logits(base, ids, adapters, member)
    for i, p in enumerate(member):
        assert (mixed[i:i + 1] - logits(base, ids[i:i + 1], adapters, [p])).abs().max() < 1e-4


def test_fresh_member_equals_the_base_bit_for_bit(tiny):
    adapters, ids = Adapters.on(tiny.model, 3, rank=4, alpha=8), tokens()
    for p in range(3):
        adapters.init_member(p, torch.Generator().manual_seed(p))
    assert all(A[p].abs().max() > 0 for A in adapters.A.values() for p in range(3)), "A is drawn: gradients must reach B"
    assert torch.equal(logits(tiny, ids, adapters, [0, 1, 2, -1, 0]), logits(tiny, ids))


def test_base_rows_of_a_mixed_batch_equal_the_base_bit_for_bit(tiny, population):
    adapters, ids = population(tiny), tokens()
    mixed, plain = logits(tiny, ids, adapters, [0, -1, 2, -1, 1]), logits(tiny, ids)
    assert torch.equal(mixed[[1, 3]], plain[[1, 3]]) and not torch.equal(mixed[0], plain[0])
    assert adapters.route(torch.tensor([-1, -1]), torch.float32) is None, "a batch of base rows costs nothing"


def test_a_part_of_the_layers(tiny, population):
    adapters = Adapters.on(tiny.model, 2, 4, 8, targets=("q_proj", "v_proj"))
    assert {path.rsplit(".")[-1] for path in adapters.A} == {"q_proj", "v_proj"} and len(adapters.A) == 4
    assert {path.rsplit(".")[-1] for path in population(tiny).A} == set(TARGETS), "every linear layer by default"
    with pytest.raises(ValueError, match="lm_head is not a linear layer; valid: q_proj"):
        Adapters.on(tiny.model, 2, 4, 8, targets=("q_proj", "lm_head"))


def test_fresh_A_has_the_bound_of_peft(tiny):
    adapters = Adapters.on(tiny.model, 1, rank=16, alpha=16)
    adapters.init_member(0, torch.Generator().manual_seed(0))
    reference = torch.empty(16, 48)
    torch.nn.init.kaiming_uniform_(reference, a=5 ** 0.5)
    A = adapters.A["model.layers.0.mlp.down_proj"][0]
    assert A.shape == reference.shape and abs(A.std() / reference.std() - 1) < 0.1 and A.abs().max() <= 48 ** -0.5


def test_init_is_keyed_by_its_generator_alone(tiny):
    adapters = Adapters.on(tiny.model, 2, rank=4, alpha=8)
    adapters.init_member(0, torch.Generator().manual_seed(3))
    torch.rand(7)                                          # the global generator must not matter
    adapters.init_member(1, torch.Generator().manual_seed(3))
    first, second = adapters.factors(0), adapters.factors(1)
    assert all(torch.equal(x, y) for path in first for x, y in zip(first[path], second[path]))


def test_factors_are_copies_and_come_back_exactly(tiny, population):
    adapters, other = population(tiny), population(tiny, seed=9)
    taken = adapters.factors(1)
    other.set_factors(2, taken)
    adapters.B["model.layers.1.mlp.up_proj"].data[1] += 1
    back = other.factors(2)
    assert all(torch.equal(x, y) for path in taken for x, y in zip(taken[path], back[path]))


def test_set_factors_refuses_and_changes_nothing(tiny, population):
    adapters = population(tiny)
    before, last = adapters.factors(0), list(adapters.A)[-1]
    good = population(tiny, seed=4).factors(0)
    for broken, word in [({**good, last: (good[last][0][:2], good[last][1][:, :2])}, "rank 2"),
                         ({path: good[path] for path in list(good)[1:]}, "other layers"),
                         ({**good, last: (good[last][0] * float("nan"), good[last][1])}, "not finite")]:
        with pytest.raises(ValueError, match=word):
            adapters.set_factors(0, broken)
    after = adapters.factors(0)
    assert all(torch.equal(x, y) for path in before for x, y in zip(before[path], after[path])), "half an adapter was written"


def test_base_hash_sees_no_member(tiny, population):
    before = weights_hash(tiny.model)
    adapters, ids = population(tiny), tokens()
    route = adapters.route(torch.tensor([0, 1, 2, -1, 0]), torch.float32)
    tiny.model.logits(tiny.model(ids, lora=route)).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapters.parameters())
    assert all(p.grad is None for p in tiny.model.parameters())
    assert weights_hash(tiny.model) == before


# -- PEFT directories ------------------------------------------------------------------------------------------------

@torch.inference_mode()
def test_peft_loads_what_we_save(tiny, population, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adapters, ids = population(tiny), tokens()
    for p in range(3):
        save_peft(adapters, p, tmp_path / f"member_{p}", str(tiny.path), weights_hash(tiny.model))
        reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, tmp_path / f"member_{p}").eval()
        ours, theirs = logits(tiny, ids, adapters, [p] * 5), reference(ids).logits
        assert (ours - theirs).abs().max() < 1e-4
        assert (theirs - logits(tiny, ids)).abs().max() > 1e-2, "peft must have applied something"


@torch.inference_mode()
def test_other_architectures_route_and_export(other, population, tmp_path):
    """Adapters on every linear layer of Llama, Mistral and Qwen3: mixed rows equal merged weights and PEFT's logits."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adapters, ids, member = population(other), tokens(), [0, 1, -1, 2, 1]
    assert len(adapters.A) == 7 * other.model.cfg.num_hidden_layers
    mixed = logits(other, ids, adapters, member)
    for p in range(3):
        rows = [i for i, m in enumerate(member) if m == p]
        model = merged(other, adapters, p)
        assert (mixed[rows] - model.logits(model(ids[rows]))).abs().max() < 1e-4
        save_peft(adapters, p, tmp_path / f"member_{p}", str(other.path), weights_hash(other.model))
        reference = transformers.AutoModelForCausalLM.from_pretrained(other.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, tmp_path / f"member_{p}").eval()
        theirs = reference(ids[rows]).logits
        assert (mixed[rows] - theirs).abs().max() < 1e-4
        assert (theirs - logits(other, ids[rows])).abs().max() > 1e-2, "peft must have applied something"


def test_other_architectures_load_what_peft_saves(other, tmp_path):
    test_we_load_what_peft_saves(other, tmp_path)


def test_we_load_what_peft_saves(tiny, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(TARGETS), task_type="CAUSAL_LM", init_lora_weights=False)
    reference = peft.get_peft_model(reference, config).eval()
    reference.save_pretrained(tmp_path)
    adapters, ids = Adapters.on(tiny.model, 2, 4, 8), tokens()
    load_peft(adapters, 1, tmp_path)
    with torch.inference_mode():
        assert (logits(tiny, ids, adapters, [1] * 5) - reference(ids).logits).abs().max() < 1e-4


def test_round_trip_is_exact(tiny, population, tmp_path):
    adapters, other = population(tiny), Adapters.on(tiny.model, 2, 4, 8)
    save_peft(adapters, 2, tmp_path, str(tiny.path), "hash")
    load_peft(other, 0, tmp_path, "hash")
    want, got = adapters.factors(2), other.factors(0)
    assert all(torch.equal(x, y) for path in want for x, y in zip(want[path], got[path]))
    assert all(B[1].abs().sum() == 0 for B in other.B.values()), "the neighbour was touched"


@pytest.fixture
def saved(tiny, population, tmp_path):
    """Member 0 of a population of rank 4 as a PEFT directory; tests then break it."""
    save_peft(population(tiny), 0, tmp_path, str(tiny.path), "hash of its base")
    return tmp_path


def edit(directory, drop: str = "", **changes) -> None:
    file = directory / "adapter_config.json"
    config = {**json.loads(file.read_text()), **changes}
    config.pop(drop, None)
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("keep", [None, 0.0, 0.01, 0.6])
def test_missing_or_truncated_file(tiny, population, saved, name, keep):
    data = (saved / name).read_bytes()
    (saved / name).unlink() if keep is None else (saved / name).write_bytes(data[:int(len(data) * keep)])
    with pytest.raises(ValueError, match="not a readable PEFT adapter"):
        load_peft(population(tiny), 0, saved)


@pytest.mark.parametrize("rank, alpha", [(2, 8), (8, 8), (4, 16)])
def test_another_rank_or_alpha(tiny, population, saved, rank, alpha):
    with pytest.raises(ValueError, match="pass --rank 4 --alpha 8"):
        load_peft(population(tiny, rank=rank, alpha=alpha), 0, saved)


def test_another_base(tiny, population, saved):
    with pytest.raises(ValueError, match="another base"):
        load_peft(population(tiny), 0, saved, base_hash="hash of ours")
    load_peft(population(tiny), 0, saved, base_hash="hash of its base")
    load_peft(population(tiny), 0, saved)                  # a hash that nobody knows cannot be compared


@pytest.mark.parametrize("changes, word", [
    (dict(peft_type="IA3"), "only plain LoRA"), (dict(use_dora=True), "only plain LoRA"),
    (dict(use_rslora=True), "only plain LoRA"), (dict(drop="r"), "rank None"), (dict(r=2), "pass --rank 2")])
def test_another_kind_of_adapter(tiny, population, saved, changes, word):
    edit(saved, **changes)
    with pytest.raises(ValueError, match=word):
        load_peft(population(tiny), 0, saved)


def rewrite(directory, change) -> None:
    file = directory / "adapter_model.safetensors"
    with safe_open(file, framework="pt") as f:
        metadata = f.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata=metadata)


@pytest.mark.parametrize("gone, word", [
    (("layers.1.mlp.up_proj.lora_B.weight",), "no B"), (("layers.1.mlp.up_proj.lora_A.weight",), "other layers"),
    (("layers.1.mlp.up_proj.lora_A.weight", "layers.1.mlp.up_proj.lora_B.weight"), "other layers")])
def test_missing_factor(tiny, population, saved, gone, word):
    rewrite(saved, lambda tensors: [tensors.pop(f"base_model.model.model.{name}") for name in gone])
    with pytest.raises(ValueError, match=word):
        load_peft(population(tiny), 0, saved)


def test_damaged_number(tiny, population, saved):
    rewrite(saved, lambda tensors: next(iter(tensors.values())).view(-1)[3].fill_(float("inf")))
    with pytest.raises(ValueError, match="not finite"):
        load_peft(population(tiny), 0, saved)


@pytest.mark.parametrize("targets", [TARGETS, ("k_proj", "gate_proj", "down_proj")])
@pytest.mark.parametrize("members", [[0, 1, 2, 3], [1, 1, 3, 3], [2, 2, 2, 2]])
def test_gathered_gradients_are_those_of_the_factors(tiny, targets, members):
    """Of two batches one after the other, scaled: what autograd gives through all members' factors at once."""
    adapters = Adapters.on(tiny.model, 4, 4, 8, targets)
    for p in adapters.parameters():
        p.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(p.shape[1]))
    whole = AdapterWeights(adapters, torch.tensor([0, 1, 2, 3]), torch.float32)
    with torch.no_grad():
        whole.materialize(tiny.model.fused_linears())
    want = [torch.zeros_like(p) for p in adapters.parameters()]
    for p in adapters.parameters():
        p.grad = torch.zeros_like(p)
    for seed, member in ((1, torch.tensor(members)), (2, torch.tensor(members).flip(0))):
        ids = torch.randint(61, (4, 7), generator=torch.Generator().manual_seed(seed))
        loss = tiny.model(ids, lora=adapters.route(member, torch.float32)).square().sum()
        for total, grad in zip(want, torch.autograd.grad(loss, adapters.parameters())):
            total += 0.5 * grad
        leaves = whole.leaves(member)
        tiny.model(ids, lora=leaves.route(member)).square().sum().backward()
        leaves.add_gradients(0.5)
    for p, total in zip(adapters.parameters(), want):
        assert (p.grad - total).abs().max() < 1e-5 * total.abs().max().clamp_min(1)
        others = [i for i in range(4) if i not in members]
        assert (p.grad[others] == 0).all() and total.abs().max() > 1e-3
