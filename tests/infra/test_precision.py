"""Number formats of the base: int8 weights and their error, and what --dtype auto takes on which device."""
import dataclasses
import shutil
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from batches import make_batch
from safetensors.torch import load_file, save_file
from tiny_run import rows

import rl
import weights
from common import UserError
from common import linear, quantize
from ranks import pick_dtype
from weights import load_base, load_model, weights_hash


@pytest.fixture(scope="module")
def int8_base(micro_base):
    return load_base(str(micro_base), int8=True)


@pytest.mark.parametrize("shape", [(8, 16), (1, 1), (5, 7), (33, 1), (1, 47)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_is_off_by_half_a_step_at_most(shape, dtype):
    """Of any shape; 1% more where the scale was rounded down and the largest number is cut off."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    q, scale = quantize(weight, dtype)
    assert q.dtype == torch.int8 and q.shape == shape and scale.dtype == dtype and scale.shape == shape[:1]
    step, part = weight.abs().amax(1, keepdim=True) / 127, .5001 if dtype == torch.float32 else 1.01
    assert (q.float() * scale.float()[:, None] - weight).abs().le(step * part).all()


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


@torch.inference_mode()
def test_logits_of_the_micro_base(base, int8_base, micro_base):
    """docs/own-base.md states the error; of logits less their mean, which no probability depends on."""
    texts = [base.tokenizer(row["program"], return_tensors="pt")["input_ids"] for row in rows(micro_base, "heldout")[:100]]
    a, b = [torch.cat([one.model.logits(one.model(ids))[0] for ids in texts]) for one in (base, int8_base)]
    a, b = [x - x.mean(-1, keepdim=True) for x in (a, b)]
    error = float((a - b).norm() / a.norm())
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
    shutil.copy(micro_base / "config.json", tmp_path)
    state = load_file(micro_base / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][3, 2] = float("nan")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.layers.1.mlp.up_proj.weight holds numbers that are not finite"):
        load_model(tmp_path, torch.float32, int8=True)


def test_members_gradients_are_those_on_the_matrices(base, int8_base, population):
    """An update on the int8 base against one on a base whose weights are what int8 stands for; also checkpointed."""
    plain = load_base(str(base.path))
    with torch.no_grad():
        for path, layer in plain.model.linears().items():
            own = int8_base.model.linears()[path]
            layer.weight.copy_(own.weight * own.scale[:, None])
    batch, before = make_batch(8), weights_hash(int8_base.model)
    for budget in (8192, 4):
        grads = []
        for one in (int8_base, plain):
            adapters = population(one)
            rl.accumulate(rl.Objective(one, adapters, batch, batch.reward, dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=budget)))
            grads.append(torch.cat([p.grad.flatten() for p in adapters.parameters()]))
        assert grads[0].abs().max() > 1e-3 and (grads[0] - grads[1]).abs().max() < 1e-5
    assert weights_hash(int8_base.model) == before


@pytest.mark.parametrize("native, asked, given", [(True, "auto", "bfloat16"), (True, "bfloat16", "bfloat16"), (True, "float32", "float32"),
                                                  (True, "int8", "bfloat16"), (False, "auto", "float32"), (False, "int8", "float32"),
                                                  (False, "bfloat16", None)])
def test_a_card_is_asked_what_it_has(monkeypatch, native, asked, given):
    """None: refused, as the card emulates it only."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    refused = pytest.raises(UserError, match="--dtype bfloat16: Tesla T4 does not have it; leave --dtype out")
    with nullcontext() if given else refused:
        assert pick_dtype(asked, torch.device("cuda:0")) == given
