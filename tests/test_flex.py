"""Attention by blocks, as far as a CPU can show it: the same mask, the same outputs, few kernels, and the way back to dense masks.

flex_attention has no backward pass on a CPU: flex.works tries gradients on the card itself, before step 0.
"""
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_mask, flex_attention

import flex
from generate import generate
from pack import micro_batches, pack

G = 3


def packings(seed: int, T: int) -> torch.Tensor:
    """Lines (G, T) of a prompt, some answers and padding, at random."""
    gen, lines = torch.Generator().manual_seed(seed), []
    for _ in range(G):
        cuts = torch.randint(1, T, (4,), generator=gen).sort().values
        place = torch.arange(T)
        answer = (place[:, None] >= cuts[:3]).sum(1)
        lines.append(answer.masked_fill(place >= cuts[3], -1))
    return torch.stack(lines)


def seen(answer: list[int], query: int, key: int) -> bool:
    """What a query of a line sees, in words of pack.py."""
    return key <= query and (answer[key] == 0 or answer[key] == answer[query])


@pytest.mark.parametrize("T", [2, 17, 130, 300])
def test_both_masks_are_what_a_token_may_see(T):
    answer = packings(T, T)
    dense, blocks = flex.dense_mask(answer), flex.block_mask(answer)
    assert torch.equal(create_mask(blocks.mask_mod, G, 1, T, T, device="cpu"), dense)
    for g, line in enumerate(answer.tolist()):
        want = [[seen(line, query, key) for key in range(T)] for query in range(T)]
        assert dense[g, 0].tolist() == want
    listed = blocks.to_dense().bool()                                   # (G, 1, blocks of queries, of keys)
    listed = listed.repeat_interleave(128, 2).repeat_interleave(128, 3)[..., :T, :T]
    assert (listed | ~dense).all(), "a block with something to see is left out"
    assert T < 300 or not listed.all(), "nothing is skipped"


@torch.no_grad()
@pytest.mark.parametrize("T", [1, 60, 200])
def test_outputs_are_those_of_sdpa(T):
    gen = torch.Generator().manual_seed(T)
    q, k, v = (torch.randn(G, heads, T, 16, generator=gen) for heads in (4, 2, 2))
    answer = packings(T, T) if T > 1 else torch.zeros(G, 1, dtype=torch.int64)
    y = flex_attention(q, k, v, block_mask=flex.block_mask(answer), enable_gqa=True)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=flex.dense_mask(answer), enable_gqa=True)
    assert (y - want).abs().max() < 1e-5


@torch.no_grad()
def test_a_model_scores_packed_lines_by_blocks(tiny, population, monkeypatch):
    """From pack to log-probabilities, without the compiler: those of the rollout."""
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    adapters, prompts = population(tiny), [[7, 8, 9], [10, 3, 4, 12, 33, 2, 9, 9, 8], [22, 23, 24, 25]]
    rollout = generate(tiny, adapters, prompts, [0, 2, 1], [(3, i) for i in range(15)], n=5, max_new_tokens=12)
    for batch in micro_batches(rollout, list(range(15)), 100):
        p = pack(rollout, batch, by_blocks=True)
        assert not isinstance(p.mask, torch.Tensor), "the case needs several answers a line"
        states = tiny.model(p.ids, p.positions, p.mask, lora=adapters.route(p.member, torch.float32))
        logp = tiny.model.logits(states.flatten(0, 1)[p.source]).log_softmax(-1).gather(1, p.target[:, None])
        assert (logp.squeeze(1) - p.logp).abs().max() < 1e-4


def test_what_cannot_do_it_is_told_once(tiny, capsys):
    """A CPU, which lacks the backward pass: dense masks, and one note."""
    flex.works.cache_clear()
    for _ in range(2):
        assert not flex.works(4, 2, 8, torch.float32, torch.device("cpu"))
    said = capsys.readouterr().err
    assert said.startswith("note: flex_attention does not work here (") and said.count("\n") == 1
    assert not flex.serves(tiny.model) and capsys.readouterr().err == "", "a CPU is not even tried"


@pytest.mark.slow
@torch.no_grad()
def test_few_kernels_serve_all_shapes():
    """More than the limit of flex.compiled would fall back to a slow one that holds T x T scores."""
    counter = CompileCounter()
    attend = torch.compile(flex_attention, dynamic=True, backend=counter)
    for n, T in [(2, 300), (1, 300), (3, 257), (1, 900), (4, 100), (1, 100), (1, 128), (7, 31), (5, 512), (2, 129)]:
        q, k, v = (torch.randn(n, heads, T, 16) for heads in (4, 2, 2))
        attend(q, k, v, block_mask=flex.block_mask(torch.zeros(n, T, dtype=torch.int64)), enable_gqa=True)
    assert counter.frame_count <= 8
