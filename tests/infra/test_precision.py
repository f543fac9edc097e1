"""Number formats of the base: int8 weights and their error, and what --dtype auto takes on which device."""
import dataclasses
import json
import weakref

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import rl
import weights
from generate import Rollout
from infra.precision import linear, pick_dtype, quantize
from model import Base
from weights import load_base, load_model, weights_hash

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(scope="module")
def int8_base(micro_base):
    return load_base(str(micro_base), int8=True)


# --- int8 ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(8, 16), (1, 1), (5, 7), (33, 1), (1, 47)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_is_off_by_half_a_step_at_most(shape, dtype):
    """Of any shape; 1% more where the scale was rounded down and the largest number is cut off."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q, scale = quantize(weight, dtype)
    assert q.dtype == torch.int8 and q.shape == shape and scale.dtype == dtype and scale.shape == shape[:1]
    step = weight.abs().amax(1, keepdim=True) / 127
    assert (q.float() * scale.float()[:, None] - weight).abs().le(step * 1.01).all()
    if dtype == torch.float32:
        assert (q * scale[:, None] - weight).abs().le(step * .5001).all()


def test_rows_of_zeros_stay_zero():
    q, scale = quantize(torch.tensor([[0.0, 0.0], [1e-45, 0.0], [1.0, -1.0]]), torch.bfloat16)
    assert q.tolist() == [[0, 0], [0, 0], [127, -127]] and scale.isfinite().all()


@pytest.mark.parametrize("bias", [False, True])
def test_output_and_gradient_are_those_of_the_matrix(bias):
    """... which autograd does not keep: of what is saved nothing but the scale is a fraction."""
    gen = torch.Generator().manual_seed(1)
    q, scale = quantize(torch.randn(7, 5, generator=gen), torch.float32)
    b = torch.randn(7, generator=gen) if bias else None
    x = torch.randn(2, 3, 5, generator=gen, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = linear(x, q, scale, b)
    assert {(t.dtype, t.shape) for t in saved} == {(torch.int8, (7, 5)), (torch.float32, (7,))}
    want = F.linear(x, q * scale[:, None], b)
    assert torch.equal(y, want)
    grad = torch.randn(2, 3, 7, generator=gen)
    assert torch.equal(*(torch.autograd.grad(out, x, grad)[0] for out in (y, want)))


def logits_of(base: Base, text: str) -> torch.Tensor:
    """Logits (T, V) of a text, less their mean, which no probability depends on."""
    with torch.inference_mode():
        ids = torch.tensor([base.tokenizer(text)["input_ids"]])
        logits = base.model.logits(base.model(ids))[0].float()
    return logits - logits.mean(-1, keepdim=True)


def test_logits_of_the_micro_base(base, int8_base, micro_base):
    """docs/own-base.md states the error."""
    rows = [json.loads(row) for row in (micro_base / "heldout.jsonl").read_text().splitlines()]
    both = [[logits_of(one, row["program"]) for row in rows[:100]] for one in (base, int8_base)]
    a, b = map(torch.cat, both)
    error = float((a - b).square().sum() / a.square().sum()) ** .5
    same = float((a.argmax(-1) == b.argmax(-1)).float().mean())
    assert .001 < error < .02 and same > .96, (error, same)


def test_loading_holds_one_matrix_at_a_time(micro_base, monkeypatch):
    """Else the peak would be that of the base without int8."""
    seen = []

    def watch(weight, dtype):
        assert all(earlier() is None for earlier in seen), "an earlier layer's matrix is still there"
        seen.append(weakref.ref(weight))
        return quantize(weight, dtype)

    monkeypatch.setattr(weights, "quantize", watch)
    model = load_model(micro_base, torch.float32, int8=True)
    assert len(seen) == len(model.linears()) == 28 and not any(p.requires_grad for p in model.parameters())
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert {name for name, dtype in kinds.items() if dtype == torch.int8} == {f"{path}.weight" for path in model.linears()}


def test_a_damaged_matrix_is_named(micro_base, tmp_path):
    for file in micro_base.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][3, 2] = float("nan")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.up_proj.weight holds numbers that are not finite"):
        load_model(tmp_path, torch.float32, int8=True)


def test_members_gradients_are_those_on_the_matrices(base, int8_base, population):
    """An update on the int8 base against one on a base whose weights are what int8 stands for; also checkpointed."""
    plain = load_base(str(base.path))
    with torch.no_grad():
        for path, layer in plain.model.linears().items():
            own = int8_base.model.linears()[path]
            layer.weight.copy_(own.weight * own.scale[:, None])
    gen = torch.Generator().manual_seed(2)
    n = 8
    ids = torch.randint(3, 300, (n, 24), generator=gen)
    numbers = torch.full((n,), 6), torch.full((n,), 24)
    rollout = Rollout(ids, *numbers, torch.zeros(n, 24), torch.arange(n) % 3)
    group = torch.arange(n)
    batch = rl.Batch(rollout, torch.randn(n, generator=gen), group, 0 * group, 0 * group)
    before = weights_hash(int8_base.model)
    for budget in (8192, 16):
        grads = []
        for one in (int8_base, plain):
            adapters = population(one)
            rl.accumulate(rl.Objective(one, adapters, batch, batch.reward, dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=budget)))
            grads.append(torch.cat([p.grad.flatten() for p in adapters.parameters()]))
        assert grads[0].abs().max() > 1e-3 and (grads[0] - grads[1]).abs().max() < 1e-5
    assert weights_hash(int8_base.model) == before


# --- --dtype ------------------------------------------------------------------------------------------------

@pytest.fixture
def card(monkeypatch):
    """Pretend that there is a card, with or without bfloat16; a function of that."""
    def put(native: bool):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "H200" if native else "Tesla T4")
        monkeypatch.setattr(torch.cuda, "device", lambda device: torch.inference_mode())
    return put


@pytest.mark.parametrize("native, asked, given", [(True, "auto", "bfloat16"), (True, "bfloat16", "bfloat16"), (True, "float32", "float32"),
                                                  (True, "int8", "bfloat16"), (False, "auto", "float32"), (False, "int8", "float32")])
def test_a_card_is_asked_what_it_has(card, native, asked, given):
    card(native)
    assert pick_dtype(asked, CUDA) == given


def test_bfloat16_on_a_card_without_it_is_refused(card):
    card(False)
    with pytest.raises(ValueError, match="--dtype bfloat16: Tesla T4 does not have it; leave --dtype out"):
        pick_dtype("bfloat16", CUDA)
