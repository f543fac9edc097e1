"""Decoding by pages equals decoding with a dense cache, and a kernel that errs is not believed."""
import inspect

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn
from varlen import needs_pages, varlen_reference

from attention import Pages, attend, check_kernel, paged_kernel
from generate import Prompts, SamplingParams, generate
from model import ModelConfig

PROMPTS = [[7, 8, 9], [10, 3, 4, 12, 33, 2], [40], [22, 23, 24, 25], [9] * 11, [5, 6, 7, 8, 9, 10, 11, 12]]
MEMBER = [0, 2, -1, 1, 0, 1]
HEADS = ModelConfig(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)


def test_pages_give_the_same_rows(any_base, population, monkeypatch):
    """Pages of 4 tokens and a dense cache: with members, without adapters, and with some that no row has."""
    monkeypatch.setattr("attention.PAGE", 4)
    adapters, keys = population(any_base), [(11, 0, i) for i in range(12)]
    sampling = SamplingParams(2, max_new_tokens=30, rollout_batch=8)
    for lora, member in ((adapters, MEMBER), (None, [-1] * 6), (adapters, [-1] * 6)):
        args = any_base, lora, Prompts(PROMPTS, member, keys), sampling
        dense = generate(*args)
        with monkeypatch.context() as patch:
            patch.setattr("generate.paged_kernel", lambda *args: varlen_reference)
            paged = generate(*args)
        assert torch.equal(dense.ids, paged.ids) and torch.equal(dense.length, paged.length) and dense.n_tokens.max() > 20
        assert (dense.logp - paged.logp).abs().max() < 1e-5


@needs_pages
def test_torch_takes_our_call():
    """The arguments fit torch's own signature, and its meta function gives their shape."""
    calls = []

    def kernel(*args, **options):
        calls.append((args, options))
        return torch.zeros_like(args[0])

    table, ones = torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
    q, pool = torch.zeros(3, 4, 1, 16, dtype=torch.bfloat16), torch.zeros(5, 256, 2, 16, dtype=torch.bfloat16)
    attend(q, pool, pool, Pages(kernel, table, ones))
    (args, options), = calls
    inspect.signature(varlen_attn).bind(*args, **options)
    meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in args]
    named = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    y = varlen_attn(*meta, **named)
    assert y.shape == (3, 4, 16) and y.is_meta and y.dtype == torch.bfloat16


def forgets_rows(query, *args, **options):
    """As torch 2.13 with several splits: only the first sequence is written."""
    y = varlen_reference(query, *args, **options)
    y[1:] = torch.nan
    return y


def sees_too_much(*args, seqused_k, **options):
    return varlen_reference(*args, seqused_k=(seqused_k + 1).int(), **options)


def test_a_kernel_is_believed_when_it_agrees_with_sdpa():
    args = HEADS, torch.float32, torch.device("cpu")
    check_kernel(varlen_reference, *args)
    for wrong in (forgets_rows, sees_too_much):
        with pytest.raises(RuntimeError, match="it is off by .* in a row of"):
            check_kernel(wrong, *args)


def test_without_a_kernel_the_cache_is_dense(monkeypatch, capsys):
    """On a CPU silently; where torch's is missing or errs, noted once for the whole process."""
    paged_kernel.cache_clear()
    gpu = HEADS, torch.bfloat16, torch.device("cuda")
    assert paged_kernel(*gpu[:-1], torch.device("cpu")) is None and not capsys.readouterr().err

    def refuse(kernel, *args):
        raise TypeError("varlen_attn() got an unexpected keyword argument 'block_table'")

    monkeypatch.setattr("attention.check_kernel", refuse)
    assert [paged_kernel(*gpu), paged_kernel(*gpu)] == [None, None]
    assert capsys.readouterr().err.count("dense cache: varlen_attn() got an unexpected") == 1
    paged_kernel.cache_clear()
