"""Rollouts: cached equals uncached, draws depend on the row's key alone, end tokens end rows and belong to them."""
import dataclasses
import gc
import weakref

import numpy as np
import pytest
import torch
from batches import MEMBER, PROMPTS, ask
from torch.utils._python_dispatch import TorchDispatchMode

from common import UserError
from generate import DecodeBatch, Prompts, Rollout, SamplingParams, closing_table, draw


def rows_of(rollout: Rollout) -> list[list[int]]:
    """Prompt and answer of each row as lists."""
    return [ids[:k] for ids, k in zip(rollout.ids.tolist(), rollout.length.tolist())]


@torch.inference_mode()
def assert_logp_holds(base, adapters, rollout: Rollout, temperature: float = 1.0) -> None:
    """Tokens and their log-probabilities are those of one uncached pass over each row alone, drawn by its key or the likeliest."""
    for i, (ids, start, p) in enumerate(zip(rows_of(rollout), rollout.prompt_len.tolist(), rollout.member.tolist())):
        route = adapters.route(torch.tensor([p]), torch.float32) if adapters is not None else None
        logits = base.model.logits(base.model(torch.tensor([ids]), lora=route))[0, start - 1:-1]
        answer, all_logp = torch.tensor(ids[start:]), (logits / (temperature or 1.0)).log_softmax(-1)
        want = all_logp.gather(1, answer[:, None]).squeeze(1)
        assert (rollout.logp[i, start:len(ids)] - want).abs().max() < 1e-4
        if temperature:
            u = torch.from_numpy(np.random.default_rng((11, 0, i)).random(len(answer)))
            end = all_logp.double().exp().cumsum(-1).gather(1, answer[:, None]).squeeze(1)
            assert (u < end + 1e-4).all() and (u > end - want.double().exp() - 1e-4).all()
        else:
            assert torch.equal(answer, logits.argmax(-1))
        assert rollout.logp[i, :start].abs().sum() == 0 and rollout.logp[i, len(ids):].abs().sum() == 0
    assert torch.equal(rollout.mask.sum(1), rollout.n_tokens)


@pytest.fixture
def passes(tiny):
    """(rows, tokens) of every pass of the model, counted at its embedding."""
    seen = []
    hook = tiny.model.model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[:2])))
    yield seen
    hook.remove()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_cached_equals_uncached(any_base, population, temperature):
    """Mixed members, rows that leave early: the recorded logp is the model's own."""
    adapters = population(any_base, 3)
    rollout = ask(any_base, adapters, PROMPTS + [[9] * 11], MEMBER + [0], n=3, temperature=temperature, max_new_tokens=40)
    assert rollout.n_tokens.max() > 30 and (len(rollout.n_tokens.unique()) > 3 or not temperature), "not in the case"
    assert_logp_holds(any_base, adapters, rollout, temperature)
    assert_logp_holds(any_base, None, ask(any_base, None, max_new_tokens=40))


def test_draws_depend_on_the_key_alone(tiny, population):
    """Among other neighbours, in another order, each attempt in a call of its own, whatever the global state: the same row."""
    adapters, keys = population(tiny), [(11, 0, i) for i in range(20)]
    torch.manual_seed(0)
    shared = ask(tiny, adapters, n=5, max_new_tokens=24)
    assert len({tuple(row) for row in rows_of(shared)}) > 12, "attempts must differ from each other"
    torch.manual_seed(1)
    np.random.seed(1)
    for i in (0, 7, 13, 19):
        one = ask(tiny, adapters, [PROMPTS[i // 5]], [MEMBER[i // 5]], keys=[keys[i]], max_new_tokens=24)
        assert rows_of(one) == [rows_of(shared)[i]] and (shared.logp[i, :one.logp.shape[1]] - one.logp[0]).abs().max() < 1e-4
    order = [2, 0, 3, 1]
    other = ask(tiny, adapters, [[50, 51]] + [PROMPTS[i] for i in order], [1] + [MEMBER[i] for i in order],
                keys=[(99, 0, 0)] + [keys[5 * i] for i in order], max_new_tokens=24)
    assert rows_of(other)[1:] == [rows_of(shared)[5 * i] for i in order]
    assert rows_of(ask(tiny, adapters, n=5, step=1, max_new_tokens=24)) != rows_of(shared), "another step draws anew"
    longer = ask(tiny, adapters, n=5, keys=keys, max_new_tokens=30)
    assert all(ids[:len(own)] == own for ids, own in zip(rows_of(longer), rows_of(shared))), "a longer limit keeps the beginning"


def test_finished_rows_stop_costing(tiny, passes):
    """At most 4/3 of the live rows are run once the batch has shrunk; a prompt is run once for all attempts at it. Waiting
    prompts take the places of ended rows as they come free: of 8 at least 3/4 are busy until nobody waits."""
    rollout = ask(tiny, None, PROMPTS * 8, max_new_tokens=60)
    assert passes[0] == (32, 6) and all(T == 1 for _, T in passes[1:])
    for t, (n_rows, _) in enumerate(passes[1:], 1):
        live = int((rollout.n_tokens > t).sum())
        assert live <= n_rows < 4 / 3 * live + 1, (t, n_rows, live)
    assert passes[-1][0] < 32 and len(passes) == rollout.n_tokens.max()
    passes.clear()
    ask(tiny, None, n=16, max_new_tokens=1)
    assert passes == [(4, 6)], "one pass over four prompts, and none after the last token"
    passes.clear()
    rollout = ask(tiny, None, PROMPTS * 12, max_new_tokens=60, rollout_batch=8)
    steps, admitted = ([B for B, T in passes if (T > 1) == several] for several in (False, True))
    assert max(steps) == 8 and max(admitted) <= 8 and sum(admitted) >= 36 and len(admitted) > 6
    assert int(rollout.n_tokens.sum()) > .7 * sum(steps), "the rows that the model ran were mostly rows that still answered"


@pytest.mark.parametrize("rollout_batch", [pytest.param(1, marks=pytest.mark.slow), 8, 48])
@pytest.mark.parametrize("slots", [0, 8, 256])
def test_refill_and_compaction_change_nothing(tiny, population, monkeypatch, rollout_batch, slots):
    """Rows that end leave the batch, waiting prompts take their places. slots: by the steps that a graph can hold, which look at
    a multiple of so many slots, and seldom at who has ended."""
    adapters, graphs = population(tiny), slots > 0
    monkeypatch.setattr("generate.SLOTS", slots)
    asked = dict(prompts=PROMPTS * 12, member=[0, 1, 2, -1] * 12, max_new_tokens=30)
    want = ask(tiny, adapters, **asked)
    assert len(set(want.n_tokens.tolist())) > 8, "the case needs rows that end at different times"
    got = ask(dataclasses.replace(tiny, graphs=graphs), adapters, rollout_batch=rollout_batch, **asked)
    assert rows_of(got) == rows_of(want) and (got.logp - want.logp).abs().max() < 1e-4
    bare = asked | dict(member=[-1] * 48)
    assert rows_of(ask(dataclasses.replace(tiny, graphs=graphs), adapters, **bare)) == rows_of(ask(tiny, None, **bare))


class Watch(TorchDispatchMode):
    """Notes every operation and the shapes that it makes; raises where a graph would have to look at a value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "_unique2", "is_nonzero"), name
        for x in torch.utils._pytree.tree_leaves(args[1:]) if name in ("index", "index_put", "index_put_") else ():
            assert not isinstance(x, torch.Tensor) or x.dtype != torch.bool or x.dim() == 0, "boolean indexing"
        out = op(*args, **kwargs or {})
        shapes = [(x.shape, x.dtype) for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.seen.append((name, shapes))
        return out


@pytest.mark.parametrize("closing", ["", "3w4"])
@torch.inference_mode()
def test_a_step_of_a_graph_looks_at_no_value(tiny, population, closing):
    """And does the same to tensors of the same shapes whoever has come and gone, while as many slots are looked at."""
    adapters, prompts = population(tiny), Prompts(PROMPTS * 2, MEMBER * 2, [(11, i) for i in range(8)])
    batch = DecodeBatch(dataclasses.replace(tiny, graphs=True), adapters, prompts, SamplingParams(1, 1.0, 30, 4, closing))
    batch.admit([0, 1, 2, 3])
    for _ in range(3):
        batch.advance()
    steps = []
    for newcomer in (None, 4, 5):
        if newcomer:
            batch.t[2] = batch.L
            batch.admit([newcomer])
            batch.advance()
        assert batch.cache.length == 256
        with Watch() as watch:
            batch.step()
        steps.append(watch.seen)
    assert len(steps[0]) > 100 and steps[0] == steps[1] == steps[2]
    assert set(batch.row.tolist()) == {0, 1, 3, 5}


def test_end_tokens(tiny):
    """Either end id ends a row and is its last token; in a prompt it ends nothing; a row without one is cut at the limit."""
    rollout = ask(tiny, None, PROMPTS[:3] + [[1, 7, 5]], n=40, max_new_tokens=40)
    last = set()
    for ids, start, answer in zip(rows_of(rollout), rollout.prompt_len.tolist(), rollout.answers(tiny.eos_ids)):
        assert not set(ids[start:-1]) & {1, 5}, "nothing follows an end token"
        assert len(ids) - start == 40 or ids[-1] in (1, 5)
        last.add(ids[-1] if ids[-1] in (1, 5) else "cut")
        assert answer == [t for t in ids[start:] if t not in (1, 5)]
    assert last == {1, 5, "cut"}, f"the case needs all three ends, it has {last}"
    assert not rollout.mask[120:, :3].any() and rows_of(rollout)[120][:3] == [1, 7, 5]


def test_too_long_prompt(tiny):
    with pytest.raises(UserError, match="121 tokens and an answer of 8 exceed the base's context of 128: lower --max-new-tokens"):
        ask(tiny, None, [[7], [7] * 121], max_new_tokens=8)
    assert ask(tiny, None, [[7] * 120], max_new_tokens=8).length.item() <= 128, "exactly full is allowed"


@pytest.mark.parametrize("V", [5, 513, 5000])
@pytest.mark.parametrize("peaked", [1.0, 5.0])
def test_a_draw_is_that_by_one_running_sum(V, peaked):
    gen = torch.Generator().manual_seed(V)
    weight, u = (peaked * torch.randn(2000, V, generator=gen)).softmax(-1), torch.rand(2000, generator=gen)
    weight[:, [0, -2, -1]] = 0
    u[:4] = torch.tensor([0.0, 1 - 2 ** -24, 0.5, 1.0])
    drawn, cdf = draw(weight, u), weight.cumsum(-1)             # on a CPU summed in float64
    total = cdf[:, -1:]
    at = torch.minimum(u.clamp_max(1 - 2 ** -23)[:, None] * total, total.nextafter(torch.zeros_like(total)))
    assert torch.equal(drawn, torch.searchsorted(cdf, at, right=True).squeeze(1))
    assert (weight.gather(1, drawn[:, None]) > 0).all() and draw(torch.full((2, V), torch.nan), u[:2]).max() < V


def test_a_closing_tag_is_found_in_whatever_tokens_it_is_written():
    """As the tokenizers of Qwen and Llama cut it: with brackets before it, with lines or a new tag behind it."""
    tag = "</answer>"
    pieces = ["<", "/", "</", "]</", "answer", "ans", "wer", "an", "swer", ">", ">\n", "><", "r>", tag, "<<", "</an",
              "Ċ", "Ġanswer", "x", "Ġ", "é", f"[1]{tag}<think>", "beyond"]
    n = len(pieces) - 1
    tokenizer = type("Pieces", (), dict(get_vocab=lambda self: {piece: i for i, piece in enumerate(pieces)}))()
    table = closing_table(tokenizer, tag, n, "cpu")
    assert table.shape == (len(tag) + 1, n), "a model may have fewer tokens than its tokenizer"
    rng, n_found = np.random.default_rng(0), 0
    for _ in range(3000):
        text, matched = "", 0
        for token in rng.integers(0, n, 8).tolist():
            text += pieces[token].replace("Ċ", "\n")
            matched = int(table[matched, token])
            beginnings = [k for k in range(len(tag)) if text.endswith(tag[:k])]
            assert matched == (len(tag) if tag in text else max(beginnings)), text
        n_found += tag in text and not any(tag in piece and piece in text for piece in pieces[:n] if piece != tag)
    assert n_found > 30, "the case needs tags of several tokens"


def test_rows_end_where_the_closing_text_is_complete(tiny, population):
    """A model that never ends by itself: every row is the one that runs on, up to the token that completes "3w4"."""
    runs_on, adapters = dataclasses.replace(tiny, eos_ids=()), population(tiny, 3)
    asked = dict(n=6, max_new_tokens=40, rollout_batch=12)
    whole, ended = ask(runs_on, adapters, **asked), ask(runs_on, adapters, closing="3w4", **asked)
    n_ended = 0
    for long, short, start in zip(rows_of(whole), rows_of(ended), whole.prompt_len.tolist()):
        text = ["".join(f"w{i}" for i in long[start:end]) for end in range(start + 1, start + 41)]
        n_tokens = next((k for k, words in enumerate(text, 1) if "3w4" in words), 40)
        assert short == long[:start + n_tokens]
        n_ended += n_tokens < 40
    assert 3 < n_ended < 24, "the case needs rows that end and rows that are cut off"
    both = ask(tiny, adapters, closing="3w4", **asked)
    assert (both.n_tokens <= ended.n_tokens).all() and (both.n_tokens < ended.n_tokens).any(), "end tokens still end rows"


@pytest.mark.parametrize("graphs", [False, True])
def test_no_cache_outlives_its_call(tiny, population, monkeypatch, graphs):
    """Without the collector of circles: else the next call has two caches."""
    caches = []

    class Noted(DecodeBatch):
        def __init__(self, *args):
            super().__init__(*args)
            caches.append(weakref.ref(self.cache))

    monkeypatch.setattr("generate.DecodeBatch", Noted)
    gc.disable()
    ask(dataclasses.replace(tiny, graphs=graphs), population(tiny), n=2, max_new_tokens=8)
    gc.enable()
    assert len(caches) == 1 and caches[0]() is None


@pytest.mark.parametrize("order, temperature", [([1, 0, 2, -1, 1, 0, 2], 1.0), ([1, 1, 1, 0, 0, 2, -1], 0.0)])
def test_a_broken_member_leaves_no_trace_in_the_places_it_decoded_in(tiny, population, order, temperature):
    """Its NaN lies in the cache when another's row moves in, behind a mask: 0 times NaN. Rows of the same lengths, bit for bit."""
    endless = dataclasses.replace(tiny, eos_ids=())

    def rows(broken: bool) -> Rollout:
        adapters = population(tiny)
        for B in adapters.B.values():
            B.data[1] = float("nan") if broken else B.data[1]
        return ask(endless, adapters, [[3 + i] * (12 - i) for i in range(7)], order, temperature=temperature, max_new_tokens=9, rollout_batch=2)

    sound, seen = rows(False), rows(True)
    others = torch.tensor(order) != 1
    assert torch.equal(seen.ids[others], sound.ids[others]) and torch.equal(seen.logp[others], sound.logp[others])
    assert not seen.logp[~others].isfinite().all() and sound.logp.isfinite().all()
