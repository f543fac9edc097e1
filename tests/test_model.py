"""The model's own products: scores in float32 from half precision, weights in int8. tests/test_weights.py compares it
with transformers, tests/test_generate.py its cached with its uncached passes."""
import pytest
import torch
import torch.nn.functional as F
from batches import make_batch, settings
from factors import gen

import rl
from model import Float32Product, Int8Product, Model, ModelConfig, quantize
from weights import load_base


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_float32_on_a_gpu(monkeypatch, tied):
    """torch's product has no CPU version: its shape and type are seen on the meta device, its numbers here."""
    dtype = torch.bfloat16
    cfg = ModelConfig(97, 32, 48, 1, 4, 2, tie_word_embeddings=tied)
    model = Model(cfg).to(dtype).requires_grad_(False)
    hidden = torch.randn(2, 5, 32, generator=gen(0)).to(dtype)
    on_gpu = hidden.to("meta").requires_grad_()
    logits = Model(cfg).to(dtype).to("meta").requires_grad_(False).logits(on_gpu)
    assert logits.shape == (2, 5, 97) and logits.dtype == torch.float32 and model.logits(hidden).dtype == dtype
    logits.sum().backward()
    assert on_gpu.grad.shape == hidden.shape and on_gpu.grad.dtype == dtype

    weight = model.embedding if tied else model.lm_head.weight
    monkeypatch.setattr(torch, "mm", lambda h, W, out_dtype: h.to(out_dtype) @ W.to(out_dtype))
    h = hidden.flatten(0, 1).requires_grad_()
    ours = Float32Product.apply(h, weight)
    ours.logsumexp(-1).sum().backward()
    exact = hidden.flatten(0, 1).float().requires_grad_()
    wanted = F.linear(exact, weight.float())
    wanted.logsumexp(-1).sum().backward()
    assert torch.equal(ours, wanted) and (h.grad - exact.grad).abs().max() < 0.01 * exact.grad.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_off_by_half_a_step_at_most(dtype):
    """1% more where bfloat16 rounds the scale down and the largest number is cut off. Rows of zeros stay zero."""
    weight = torch.randn(33, 47, generator=gen(0)).to(dtype)
    weight[3], weight[4, 1:] = 0, 0
    q, scale = quantize(weight)
    assert q.dtype == torch.int8 and scale.dtype == dtype and scale.shape == (33,) and not q[3].any()
    weight = weight.float()
    step = weight.abs().amax(1, keepdim=True) / 127
    off = (q.float() * scale.float()[:, None] - weight).abs()
    assert (off <= step * (0.501 if dtype == torch.float32 else 1.01)).all()


def test_int8_keeps_no_matrix_for_its_gradient():
    """The backward pass keeps integers and scales alone."""
    q, scale = quantize(torch.randn(7, 5, generator=gen(1)))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        Int8Product.apply(torch.ones(2, 3, 5, requires_grad=True), q, scale, None)
    assert {(t.dtype, t.shape) for t in saved} == {(torch.int8, (7, 5)), (torch.float32, (7,))}


def test_members_gradients_on_an_int8_base_are_those_on_its_matrices(tiny, population):
    """With activations kept, and computed again."""
    int8, plain = (load_base(str(tiny.path), int8=flag) for flag in (True, False))
    with torch.no_grad():
        for path, layer in plain.model.linears().items():
            own = int8.model.linears()[path]
            layer.weight.copy_(own.weight * own.scale[:, None])
    batch = make_batch(18)
    for budget in (10 ** 6, 4):
        grads = []
        for base in (int8, plain):
            adapters = population(base)
            rl.accumulate(base, adapters, batch, batch.reward, settings(tokens_per_microbatch=budget))
            grads.append(torch.cat([p.grad.flatten() for p in adapters.parameters()]))
        assert grads[0].abs().max() > 1e-3 and (grads[0] - grads[1]).abs().max() < 1e-5
