"""Adapters: any routing equals each member alone, a fresh member equals the base, and PEFT reads what we write."""
import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_base import cut, edit_json

import evolve
import weights
from eval.common import stack
from common import UserError
from lora import TARGETS, Adapters, AdapterWeights
from weights import load_peft, save_peft, weights_hash

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def tokens(n_rows: int = 5, T: int = 11, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 61, (n_rows, T), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def logits(base, ids, adapters=None, member=None) -> torch.Tensor:
    route = adapters.route(torch.tensor(member), base.model.embedding.dtype) if adapters is not None else None
    return base.model.logits(base.model(ids, lora=route))


def same(one: dict, other: dict) -> bool:
    """Whether two members' factors are equal bit for bit."""
    return all(torch.equal(x, y) for path in one for x, y in zip(one[path], other[path], strict=True))


def merged(base, adapters: Adapters, p: int):
    """A copy of the model with member p's update added into the weights."""
    model = copy.deepcopy(base.model)
    with torch.no_grad():
        for path, (A, B) in adapters.factors(p).items():
            model.linears()[path].weight += adapters.scale * B @ A
    return model.fuse()


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
        p.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(i))
    weights, plain = AdapterWeights(adapters, rows, torch.float32, in_graph), logits(tiny, ids)
    alone = torch.cat([logits(tiny, ids[i:i + 1], adapters, [p]) for i, p in enumerate(member)])
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
            names = [name for name, pair in adapters.masters.items() for _ in pair]
            gradients.append((one_token, {(name, i): p.grad for i, (name, p) in enumerate(zip(names, adapters.parameters()))}))
        return values, gradients

    adapters = population(tiny, rank=rank)
    sound_values, sound_gradients = outcome(adapters)
    for factor in getattr(adapters, which).values():
        factor.data[1].view(-1)[5:9] = number
    values, gradients = outcome(adapters)
    for value, sound, T in zip(values, sound_values, (7, 1, 7, 7)):
        assert torch.equal(value[others], sound[others]) and not value[~others].isfinite().all()
        assert torch.equal(value[rows < 0], logits(tiny, ids[:, :T])[rows < 0])
    for (one_token, factors), (_, sound) in zip(gradients, sound_gradients):
        for (name, i), y in sound.items():
            assert torch.equal(factors[name, i][own], y[own]), name
            # the softmax of one score is 1 whatever the score is: of a single token q and k have no gradient
            if not (one_token and name.endswith(("q_proj", "k_proj"))):
                assert y[own].abs().max() > 0, name
        assert not all(x[1].isfinite().all() for x in factors.values())


def test_fresh_member_equals_the_base_bit_for_bit(tiny):
    """And is keyed by its generator alone, with PEFT's bound."""
    adapters, ids = Adapters.on(tiny.model, 3, rank=16, alpha=8), tokens()
    for p in range(3):
        torch.rand(7)
        adapters.init_member(p, torch.Generator().manual_seed(p // 2))
    assert torch.equal(logits(tiny, ids, adapters, [0, 1, 2, -1, 0]), logits(tiny, ids))
    for A in adapters.A.values():
        assert torch.equal(A[0], A[1]) and not torch.equal(A[0], A[2]) and A.abs().max() <= A.shape[2] ** -0.5
    reference = torch.nn.init.kaiming_uniform_(torch.empty(16, 48), a=5 ** 0.5)
    assert abs(adapters.A["model.layers.0.mlp.down_proj"][0].std() / reference.std() - 1) < 0.1
    assert adapters.route(torch.tensor([-1, -1]), torch.float32) is None, "a batch of base rows costs nothing"


@torch.inference_mode()
def test_peft_loads_what_we_save(any_base, population, tmp_path):
    """Mixed rows equal merged weights and PEFT's logits, with adapters on every linear layer."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adapters, ids, member = population(any_base), tokens(), [0, 1, -1, 2, 1]
    assert len(adapters.A) == 7 * any_base.model.cfg.num_hidden_layers
    mixed = logits(any_base, ids, adapters, member)
    for p in range(3):
        rows = [i for i, m in enumerate(member) if m == p]
        model = merged(any_base, adapters, p)
        assert (mixed[rows] - model.logits(model(ids[rows]))).abs().max() < 1e-4
        save_peft(adapters, p, tmp_path / f"member_{p}", str(any_base.path), weights_hash(any_base.model))
        reference = transformers.AutoModelForCausalLM.from_pretrained(any_base.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, tmp_path / f"member_{p}").eval()
        theirs = reference(ids[rows]).logits
        assert (mixed[rows] - theirs).abs().max() < 1e-4
        assert (theirs - logits(any_base, ids[rows])).abs().max() > 1e-2, "peft must have applied something"


@torch.inference_mode()
def test_peft_makes_the_child_that_add_makes(tiny, population, tmp_path):
    """crossing.md: a weighted sum of two updates, cut to their rank, is PEFT's add_weighted_adapter by its SVD."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adapters, ids = population(tiny), tokens()
    for p in range(2):
        save_peft(adapters, p, tmp_path / str(p), str(tiny.path), weights_hash(tiny.model))
    evolve.cross([tmp_path / "0", tmp_path / "1"], "add", tmp_path / "child")
    load_peft(adapters, 2, tmp_path / "child")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, tmp_path / "0", adapter_name="one").eval()
    parent = model(ids).logits
    model.load_adapter(tmp_path / "1", "two")
    model.add_weighted_adapter(["one", "two"], [0.7, 0.7], "child", combination_type="svd", svd_rank=adapters.rank)
    model.set_adapter("child")
    ours, theirs = logits(tiny, ids, adapters, [2] * len(ids)), model(ids).logits
    assert (ours - theirs).abs().max() < 1e-3 < 1e-2 < (ours - parent).abs().max()


def test_we_load_what_peft_saves(any_base, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(any_base.path, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(TARGETS), task_type="CAUSAL_LM", init_lora_weights=False)
    reference = peft.get_peft_model(reference, config).eval()
    reference.save_pretrained(tmp_path)
    adapters, ids = Adapters.on(any_base.model, 2, 4, 8), tokens()
    load_peft(adapters, 1, tmp_path)
    with torch.inference_mode():
        assert (logits(any_base, ids, adapters, [1] * 5) - reference(ids).logits).abs().max() < 1e-4


@pytest.fixture
def by_peft(tiny, tmp_path):
    """by_peft(**config) -> directory and logits of an adapter as PEFT saves it and reads it back, on a base that PEFT loads anew."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")

    def fresh():
        return transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)

    def make(before=None, keep=lambda model, directory: model.save_pretrained(directory), **config):
        torch.manual_seed(3)
        how = dict(r=4, lora_alpha=8, target_modules=list(TARGETS), task_type="CAUSAL_LM") | config
        model = peft.get_peft_model(fresh(), peft.LoraConfig(**how)).eval()
        if before:
            model.save_pretrained(before)
            edit_json(before / CONFIG, init_lora_weights=True)          # PEFT's own advice: else it would begin again
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora_" in name:
                    p.add_(torch.randn_like(p) * 0.05)
        keep(model, tmp_path / "adapter")
        with torch.inference_mode():
            return tmp_path / "adapter", peft.PeftModel.from_pretrained(fresh(), tmp_path / "adapter").eval()(tokens()).logits
    return make


PLAIN_CONFIGS = [
    dict(), dict(init_lora_weights="gaussian"), dict(init_lora_weights="orthogonal"), dict(init_lora_weights=False), dict(lora_dropout=0.5),
    dict(target_modules="all-linear"), dict(target_modules=r".*layers\.\d\.(self_attn\.(q|o)|mlp\.up)_proj"),
    dict(target_modules=["layers.0.mlp.up_proj", "model.layers.1.self_attn.k_proj"]), dict(layers_to_transform=[1]),
    dict(exclude_modules=["up_proj", "v_proj"]), dict(fan_in_fan_out=True), dict(lora_alpha=2.5, r=3)]
NOT_PLAIN = [
    dict(init_lora_weights="pissa"), dict(init_lora_weights="pissa_niter_4"), dict(init_lora_weights="olora"), dict(use_dora=True), dict(use_rslora=True),
    dict(lora_bias=True), dict(rank_pattern={"q_proj": 8}), dict(alpha_pattern={"q_proj": 80}), dict(alora_invocation_tokens=[7, 8]),
    dict(modules_to_save=["lm_head"]), dict(trainable_token_indices=[3, 4]), dict(bias="all"), dict(bias="lora_only"),
    dict(target_modules=[*TARGETS, "lm_head"]), dict(target_modules=[*TARGETS, "embed_tokens"])]


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", PLAIN_CONFIGS, ids=str)
def test_what_peft_saves_is_read_by_its_tensors(tiny, by_peft, config):
    """Whatever way of saying which layers; an evaluation computes what PEFT computes."""
    directory, theirs = by_peft(**config)
    found = stack(tiny, "", {"S0": directory})
    ours = logits(tiny, tokens(), found.adapters, [0] * 5)
    assert (ours - theirs).abs().max() < 1e-4 < 1e-2 < (theirs - logits(tiny, tokens())).abs().max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", NOT_PLAIN, ids=str)
def test_what_peft_would_compute_otherwise_is_refused(tiny, by_peft, config):
    """In one sentence, by an evaluation, by --init and by `python -m evolve`."""
    directory, _ = by_peft(**config)
    for read in (lambda: stack(tiny, "", {"S0": directory}), lambda: load_peft(Adapters.on(tiny.model, 1, 4, 8), 0, directory),
                 lambda: evolve.cross([directory, directory], "add", directory / "child")):
        with pytest.raises(UserError, match="no plain LoRA|no factor of a plain LoRA|covers lm_head") as refused:
            read()
        assert "\n" not in str(refused.value)


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [dict(init_lora_weights="pissa"), dict(init_lora_weights="olora"), dict(use_dora=True), dict(use_rslora=True)], ids=str)
def test_pefts_way_out_leads_here(tiny, by_peft, tmp_path, config):
    """What the sentence of a refusal advises makes an adapter that is read, of twice the rank or of a rank that one chooses."""
    import peft
    before = tmp_path / "before"
    converted = [lambda model, d: model.save_pretrained(d, path_initial_model_for_weight_conversion=str(before)),
                 lambda model, d: peft.save_as_lora(d, model, 4)]["init_lora_weights" not in config]
    directory, theirs = by_peft(before, converted, **config)
    assert weights.read_peft(directory)[0]["r"] == (8 if "init_lora_weights" in config else 4)
    ours = logits(tiny, tokens(), stack(tiny, "", {"S0": directory}).adapters, [0] * 5)
    assert (ours - theirs).abs().max() < 1e-3 < 1e-2 < (theirs - logits(tiny, tokens())).abs().max()


def test_an_untouched_configuration_is_plain(tmp_path):
    """Every key of the installed PEFT: what it writes of its own accord is admitted, and all else that it may write is not."""
    peft = pytest.importorskip("peft")
    written = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM").to_dict() | {"peft_type": "LORA"}
    weights.check_plain(tmp_path, written)
    assert weights.ANY | set(weights.PLAIN) <= set(written), "a key that PEFT does not have"
    for name in set(written) - weights.ANY:
        assert not written[name] or written[name] in weights.PLAIN[name], name
        with pytest.raises(UserError, match=f"no plain LoRA.* its {name} is 'on'.*PEFT can make it plain"):
            weights.check_plain(tmp_path, written | {name: "on"})


def test_round_trip_is_exact(tiny, population, tmp_path):
    adapters, other = population(tiny), Adapters.on(tiny.model, 2, 4, 8)
    save_peft(adapters, 2, tmp_path, str(tiny.path), "hash")
    load_peft(other, 0, tmp_path, "hash")
    assert same(adapters.factors(2), other.factors(0))
    assert all(B[1].abs().sum() == 0 for B in other.B.values()), "the neighbour was touched"
    with pytest.raises(UserError, match="not finite: take an earlier one"):
        other.set_factors(1, {path: (A, B * float("nan")) for path, (A, B) in adapters.factors(2).items()})


def change(directory, edit) -> None:
    """Change an adapter's tensors, of which the last layer's A and B are given."""
    file = directory / "adapter_model.safetensors"
    tensors, (A, B) = load_file(file), (f"base_model.model.model.layers.1.mlp.up_proj.lora_{x}.weight" for x in "AB")
    edit(tensors, A, B)
    save_file(tensors, file)


UNREADABLE = "not a readable PEFT adapter"
REFUSED = {
    "no configuration": (lambda d: (d / CONFIG).unlink(), UNREADABLE), "no tensors": (lambda d: (d / TENSORS).unlink(), UNREADABLE),
    "an empty configuration": (lambda d: cut(d / CONFIG, 0), UNREADABLE), "empty tensors": (lambda d: cut(d / TENSORS, 0), UNREADABLE),
    "half a configuration": (lambda d: cut(d / CONFIG, 0.6), UNREADABLE), "half the tensors": (lambda d: cut(d / TENSORS, 0.6), UNREADABLE),
    "another method": (lambda d: edit_json(d / CONFIG, peft_type="IA3"), "no plain LoRA.* its peft_type is 'IA3'"),
    "no method": (lambda d: (d / CONFIG).write_text('{"r": 4, "lora_alpha": 8}'), "lacks peft_type LORA"),
    "a key of tomorrow": (lambda d: edit_json(d / CONFIG, use_whatever=dict(strength=1)), "no plain LoRA.* its use_whatever"),
    "no rank": (lambda d: edit_json(d / CONFIG, r=None), "rank r is None"), "rank 0": (lambda d: edit_json(d / CONFIG, r=0), "rank r is 0"),
    "a negative rank": (lambda d: edit_json(d / CONFIG, r=-4), "rank r is -4"), "a rank in words": (lambda d: edit_json(d / CONFIG, r="4"), "rank r is '4'"),
    "half a rank": (lambda d: edit_json(d / CONFIG, r=4.0), "rank r is 4.0"), "a true rank": (lambda d: edit_json(d / CONFIG, r=True), "rank r is True"),
    "alpha NaN": (lambda d: edit_json(d / CONFIG, lora_alpha=float("nan")), "lora_alpha is nan, not a finite number"),
    "alpha infinite": (lambda d: edit_json(d / CONFIG, lora_alpha=-float("inf")), "lora_alpha is -inf"),
    "alpha of 400 digits": (lambda d: edit_json(d / CONFIG, lora_alpha=10 ** 400), "lora_alpha is 1000"),
    "alpha in words": (lambda d: edit_json(d / CONFIG, lora_alpha="8"), "lora_alpha is '8'"),
    "no factors": (lambda d: change(d, lambda tensors, A, B: tensors.clear()), "holds no factors"),
    "a flat factor": (lambda d: change(d, lambda tensors, A, B: tensors.update({A: tensors[A].flatten()})), "lora_A.weight .128,. is no factor of rank 4"),
    "whole numbers": (lambda d: change(d, lambda tensors, A, B: tensors.update({A: tensors[A].to(torch.int8)})), "lora_A.weight .* is no factor of rank 4"),
    "names without PEFT's": (lambda d: change(d, lambda tensors, A, B: tensors.update({A.removeprefix("base_model."): tensors.pop(A)})), "no factor of a plain LoRA as PEFT"),
    "fused layers": (lambda d: change(d, lambda tensors, A, B: tensors.update({A.replace("up_proj", "qkv_proj"): tensors[A].clone()})), "covers .*qkv_proj, but members"),
    "a head with adapters": (lambda d: change(d, lambda tensors, A, B: tensors.update({"base_model.model.lm_head.lora_A.weight": tensors[A].clone()})),
                             "covers lm_head, but members can cover only q_proj"),
    "a head": (lambda d: change(d, lambda tensors, A, B: tensors.update({"base_model.model.lm_head.weight": tensors[A].clone()})), "lm_head.weight is no factor"),
    "another rank": (lambda d: edit_json(d / CONFIG, r=2), "no factor of rank 2, which adapter_config.json says"),
    "another alpha": (lambda d: edit_json(d / CONFIG, lora_alpha=16), "takes --rank 4 --alpha 16"),
    "no B": (lambda d: change(d, lambda tensors, A, B: tensors.pop(B)), "up_proj has lora_A without its partner"),
    "no A": (lambda d: change(d, lambda tensors, A, B: tensors.pop(A)), "up_proj has lora_B without its partner"),
    "a layer less": (lambda d: change(d, lambda tensors, A, B: [tensors.pop(A), tensors.pop(B)]), "other layers"),
    "narrow factors": (lambda d: change(d, lambda tensors, A, B: tensors.update({A: tensors[A][:2].clone()})), "lora_A.weight .2, 32. is no factor of rank 4"),
    "of a wider base": (lambda d: change(d, lambda tensors, A, B: tensors.update({A: tensors[A].repeat(1, 2)})), "another rank or base"),
    "infinite": (lambda d: change(d, lambda tensors, A, B: tensors[A].view(-1)[3].fill_(float("inf"))), "does not fit.*not finite")}


@pytest.mark.parametrize("damage, words", REFUSED.values(), ids=REFUSED.keys())
def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(tiny, population, tmp_path, damage, words):
    adapters = population(tiny)
    before = adapters.factors(0)
    save_peft(population(tiny, seed=4), 0, tmp_path, str(tiny.path))
    damage(tmp_path)
    with pytest.raises(UserError, match=words):
        load_peft(adapters, 0, tmp_path)
    assert same(before, adapters.factors(0)), "half an adapter was written"
    if words not in ("takes --rank 4 --alpha 16", "other layers", "another rank or base"):       # two such adapters fit each other
        with pytest.raises(UserError, match=words):
            evolve.cross([tmp_path, tmp_path], "add", tmp_path / "child")


def test_an_adapter_of_another_base(tiny, population, tmp_path):
    adapters = population(tiny)
    save_peft(adapters, 0, tmp_path, str(tiny.path), "hash of its base")
    with pytest.raises(UserError, match="another base"):
        load_peft(adapters, 0, tmp_path, base_hash="hash of ours")
    for known in ("hash of its base", ""):                 # a hash that nobody knows cannot be compared
        load_peft(adapters, 0, tmp_path, base_hash=known)
