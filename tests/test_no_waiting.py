"""What a GPU would be given, without a GPU: tensors on torch's meta device have a shape, a type and a device but no numbers.
Mixing devices raises, and so does looking at a value, which would make the processor wait and a CUDA graph impossible."""
import copy
import dataclasses

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

import rl
from generate import Answers, Rollout, DecodeBatch
from attention import KVCache, PagedCache
from lora import Adapters, AdapterWeights
from model import Base, Model, ModelConfig
from pack import micro_batches, pack

V, L = 64, 12                                # words and tokens of an answer
CONFIG = ModelConfig(vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False)


def to_meta(x):
    """The same object with a tensor on the meta device in the place of each of its tensors."""
    if isinstance(x, torch.Tensor):
        return x.detach().to("meta").requires_grad_(x.requires_grad)
    if isinstance(x, torch.nn.Module):
        return x.to("meta")
    if isinstance(x, (list, tuple)):
        return type(x)(map(to_meta, x))
    if isinstance(x, dict):
        return {key: to_meta(value) for key, value in x.items()}
    if type(x).__module__ in ("attention", "lora", "model", "generate", "rl", "pack"):
        x = copy.copy(x)
        for name, value in vars(x).items():
            object.__setattr__(x, name, to_meta(value))
    return x


@pytest.fixture
def five():
    """A base in bfloat16 and five members on it."""
    base = Base(Model(CONFIG).to(torch.bfloat16).requires_grad_(False), None, (1, 5), "base", None)
    return base, Adapters.on(base.model, 5, 8, 16.0)


@pytest.mark.parametrize("member", [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [4, 2, 2, -1, 0, 1, 3, 3, 2, 0], [0] * 10, [-1] * 10])
@pytest.mark.parametrize("dense", [0, 16])
def test_a_step_of_decoding(five, monkeypatch, member, dense):
    """Any routing, by any of the three products: what a CUDA graph is to hold."""
    monkeypatch.setattr("lora.DENSE", dense)                                 # 0: ragged rows go to grouped_mm
    base, adapters = five
    number = lambda: torch.zeros(10, dtype=torch.int64)
    rows = DecodeBatch(KVCache.empty(CONFIG, 10, 40, torch.bfloat16, "cpu"), *(number() for _ in range(5)))
    closing = torch.zeros(3, V, dtype=torch.uint8) if dense else None
    answers = Answers.begin(torch.ones(10), torch.zeros(10, L + 1), tuple(range(32)), closing)
    base, route, rows, answers = map(to_meta, (base, adapters.route(torch.tensor(member), torch.bfloat16), rows, answers))
    before = [rows.token, rows.t, rows.position, *rows.cache.keys, answers.ids, answers.length, answers.n_matched]
    with torch.inference_mode():
        rows.step(base, answers, route, 32)
    after = [rows.token, rows.t, rows.position, *rows.cache.keys, answers.ids, answers.length, answers.n_matched]
    assert all(x is y and x.is_meta for x, y in zip(before, after)), "a graph writes where it wrote when it was recorded"


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("sliding_layers", [(), (1,)])
def test_a_step_that_serves_while_rows_come_and_go(five, dense, sliding_layers):
    """What a CUDA graph holds by default: torch's own kernel for pages, or a dense cache at its full width, and a route that is made
    in the step."""
    base, adapters = five
    cfg, bf16 = dataclasses.replace(CONFIG, sliding_layers=sliding_layers, sliding_window=9), torch.bfloat16
    base.model.cfg = cfg
    cache = KVCache.empty(cfg, 10, 40, bf16, "cpu") if dense else PagedCache(cfg, 10, 400, 21, bf16, "cpu", varlen_attn)
    rows = DecodeBatch.idle(cache, 10, L, "cpu")
    answers = Answers.begin(torch.ones(10), torch.zeros(10, L + 1), tuple(range(32)))
    weights = AdapterWeights(adapters, torch.arange(5), torch.bfloat16)
    base, weights, rows, answers = map(to_meta, (base, weights, rows, answers))
    before = [rows.member, rows.token, rows.t, rows.position, *rows.cache.keys, answers.ids, answers.logp, answers.length]
    with torch.inference_mode():
        rows.step(base, answers, weights, 40 if dense else None)
    after = [rows.member, rows.token, rows.t, rows.position, *rows.cache.keys, answers.ids, answers.logp, answers.length]
    assert all(x is y and x.is_meta for x, y in zip(before, after)), "a graph writes where it wrote when it was recorded"


@pytest.mark.parametrize("member", [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [4, 2, 2, 2, 0, 1, 3, 3, 2, 0]])
@pytest.mark.parametrize("checkpointing, attempts", [(False, 2), (True, 1)])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_losses_and_gradients(five, member, checkpointing, attempts, ratio):
    """From packed rows to the gradients of the stacked factors."""
    base, adapters = five
    ids = (torch.arange(10 * 30).view(10, 30) % V)[torch.arange(10) // attempts * attempts]
    full = lambda k: torch.full((10,), k)
    rollout = Rollout(ids, full(18), full(30), torch.zeros(10, 30), torch.tensor(member))
    packed = pack(rollout, micro_batches(rollout, list(range(10)), 10 ** 6)[0])
    assert (packed.mask is not None) == (attempts > 1)
    own = packed.member                                                      # routes are made on the processor
    base, adapters, packed = map(to_meta, (base, adapters, packed))
    whole = AdapterWeights(adapters, rollout.member, torch.bfloat16)
    whole.materialize(base.model.fused_linears())
    leaves = whole.leaves(own)
    route = leaves.route(own)
    for p in adapters.parameters():
        p.grad = torch.zeros_like(p)
    cfg = rl.UpdateConfig(kl_coef=.1, entropy_coef=.1, importance_cap=2.0, ratio=ratio)
    old = None if ratio == "token" else packed.logp
    loss, logp, sums = rl.token_losses(base, route, packed, torch.zeros(10, device="meta"), cfg, old, checkpointing)
    loss.sum().backward()
    leaves.add_gradients()
    names = ["capped_frac"] if old is None else ["capped_frac", "clip_frac", "approx_kl"]
    assert all(x.is_meta for x in (loss, logp, *(sums[name] for name in ["kl", "entropy", *names])))
    assert all(p.grad.is_meta for p in adapters.parameters())
    assert all(x.grad.is_meta for factors in leaves.made.values() for x in factors)


def test_the_device_that_has_no_numbers_can_fail():
    x = torch.zeros(3, device="meta")
    for wrong in (lambda: int(x.max()), lambda: x + torch.ones(3), lambda: x.nonzero()):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wrong()
