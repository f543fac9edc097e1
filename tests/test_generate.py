"""Rollouts: cached equals uncached, draws depend on the row's key alone, end tokens end rows and belong to them."""
import copy
import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from varlen import varlen_reference

from generate import Rollout, SamplingParams, draw, draw_by_blocks, generate, sample, uniforms
from infra.gpu import CUDAGraphRunner
from weights import closing_table

PROMPTS = [[7, 8, 9], [10, 3, 4, 12, 33, 2], [40], [22, 23, 24, 25]]


def keys_for(n_rows: int, step: int = 0) -> list[tuple[int, ...]]:
    return [(11, step, i) for i in range(n_rows)]


def rows_of(rollout: Rollout) -> list[list[int]]:
    """Prompt and answer of each row as lists."""
    return [ids[:k] for ids, k in zip(rollout.ids.tolist(), rollout.length.tolist())]


@torch.inference_mode()
def rescored(base, adapters, rollout: Rollout, temperature: list[float]) -> list[torch.Tensor]:
    """The answer tokens' log-probabilities of each row, from one uncached pass over the row alone."""
    out = []
    for ids, start, p, temp in zip(rows_of(rollout), rollout.prompt_len.tolist(), rollout.member.tolist(), temperature):
        route = adapters.route(torch.tensor([p]), torch.float32) if adapters is not None else None
        logits = base.model.logits(base.model(torch.tensor([ids]), lora=route))[0, start - 1:-1]
        out.append((logits / (temp or 1.0)).log_softmax(-1).gather(1, torch.tensor(ids[start:])[:, None]).squeeze(1))
    return out


def assert_logp_holds(base, adapters, rollout: Rollout, temperature: list[float]) -> None:
    for i, want in enumerate(rescored(base, adapters, rollout, temperature)):
        a, b = int(rollout.prompt_len[i]), int(rollout.length[i])
        assert (rollout.logp[i, a:b] - want).abs().max() < 1e-4
        assert rollout.logp[i, :a].abs().sum() == 0 and rollout.logp[i, b:].abs().sum() == 0
    assert torch.equal(rollout.mask.sum(1), rollout.n_tokens)


def test_cached_equals_uncached(tiny, population):
    """Mixed members, left padding, per-row temperatures, rows that leave early: the recorded logp is the model's own."""
    adapters = population(tiny, 3)
    temp = [1.0, 0.7, 0.0, 1.3] * 3
    rollout = generate(tiny, adapters, PROMPTS, [0, 2, -1, 1], keys_for(12), SamplingParams(n=3, temperature=temp, max_new_tokens=40))
    assert rollout.n_tokens.min() < 20 and rollout.n_tokens.max() > 30, "the case needs rows that leave early"
    assert_logp_holds(tiny, adapters, rollout, temp)
    assert_logp_holds(tiny, None, generate(tiny, None, PROMPTS, [-1] * 4, keys_for(4), SamplingParams(max_new_tokens=40)), [1.0] * 4)


def test_cached_equals_uncached_on_other_architectures(other, population):
    """The same for Llama, Mistral and Qwen3; Mistral's window of 6 slots is far shorter than its left-padded rows."""
    adapters = population(other, 3)
    temp = [1.0, 0.7, 0.0, 1.3] * 3 + [1.0] * 3
    rollout = generate(other, adapters, PROMPTS + [[9] * 11], [0, 2, -1, 1, 0], keys_for(15), SamplingParams(n=3, temperature=temp, max_new_tokens=40))
    assert rollout.n_tokens.max() > 30, "the case needs long rows"
    assert len(set(rollout.n_tokens.tolist())) > 3, "the case needs rows that leave early"
    assert_logp_holds(other, adapters, rollout, temp)


def test_on_the_micro_base(base, population):
    adapters = population(base, 2, rank=8, alpha=16, b_std=0.01)
    texts = ("propose out list\n", "out\ndef f(x):\n return x\nf(12)\n")
    prompts = [base.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    rollout = generate(base, adapters, prompts, [0, 1], keys_for(8), SamplingParams(n=4, max_new_tokens=64))
    assert_logp_holds(base, adapters, rollout, [1.0] * 8)


def test_attempts_equal_separate_calls(tiny, population):
    """n attempts share one prefill of the prompt; their tokens are those of n calls with the same keys."""
    adapters, keys = population(tiny), keys_for(20)
    shared = generate(tiny, adapters, PROMPTS, [0, 1, 2, -1], keys, SamplingParams(n=5, max_new_tokens=24))
    alone = [generate(tiny, adapters, [PROMPTS[i // 5]], [[0, 1, 2, -1][i // 5]], [keys[i]], SamplingParams(max_new_tokens=24)) for i in range(20)]
    assert rows_of(shared) == [row for one in alone for row in rows_of(one)]
    assert len({tuple(row) for row in rows_of(shared)}) > 12, "attempts must differ from each other"
    for i, one in enumerate(alone):
        assert (shared.logp[i, :one.logp.shape[1]] - one.logp[0]).abs().max() < 1e-4


def test_draws_do_not_depend_on_the_batch(tiny, population):
    """The same key, prompt and member among other neighbours, in another order, gives the same row."""
    adapters, keys = population(tiny), keys_for(4)
    first = rows_of(generate(tiny, adapters, PROMPTS, [0, 1, 2, -1], keys, SamplingParams(max_new_tokens=24)))
    order = [2, 0, 3, 1]
    second = generate(tiny, adapters, [[50, 51]] + [PROMPTS[i] for i in order], [1] + [[0, 1, 2, -1][i] for i in order],
                      [(99, 0, 0)] + [keys[i] for i in order], SamplingParams(max_new_tokens=24))
    assert rows_of(second)[1:] == [first[i] for i in order]
    other = generate(tiny, adapters, PROMPTS, [0, 1, 2, -1], keys_for(4, step=1), SamplingParams(max_new_tokens=24))
    assert rows_of(other) != first, "another step draws anew"


def test_global_random_state_does_not_matter(tiny):
    torch.manual_seed(0)
    first = rows_of(generate(tiny, None, PROMPTS, [-1] * 4, keys_for(4), SamplingParams(max_new_tokens=24)))
    torch.manual_seed(1)
    np.random.seed(1)
    assert rows_of(generate(tiny, None, PROMPTS, [-1] * 4, keys_for(4), SamplingParams(max_new_tokens=24))) == first


def test_uniforms_are_keyed():
    assert np.array_equal(uniforms((1, 2, 3), 5), uniforms((1, 2, 3), 9)[:5]), "a longer limit keeps the beginning"
    assert len({uniforms(key, 1)[0] for key in [(1, 2, 3), (1, 3, 2), (1, 2, 4), (0, 2, 3)]}) == 4


@pytest.mark.parametrize("rollout_batch", [1, 3, 5, 12, 1000])
def test_batching_and_compaction_change_nothing(tiny, population, rollout_batch):
    """Rows that end leave the batch; with one prompt at a time there is nobody to leave, and the rows are the same."""
    adapters = population(tiny)
    prompts, member, keys = PROMPTS * 3, [0, 1, 2, -1] * 3, keys_for(24)
    want = generate(tiny, adapters, prompts, member, keys, SamplingParams(n=2, max_new_tokens=60))
    got = generate(tiny, adapters, prompts, member, keys, SamplingParams(n=2, max_new_tokens=60, rollout_batch=rollout_batch))
    assert len(set(want.n_tokens.tolist())) > 8, "the case needs rows that end at different times"
    assert rows_of(got) == rows_of(want) and torch.equal(got.member, want.member)
    assert (got.logp - want.logp).abs().max() < 1e-4


def test_finished_rows_stop_costing(tiny):
    """Rows that the model is run on, counted at its embedding: at most 4/3 of the live ones, once the batch has shrunk."""
    seen = []
    hook = tiny.model.model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[:2])))
    rollout = generate(tiny, None, PROMPTS * 8, [-1] * 32, keys_for(32), SamplingParams(max_new_tokens=60))
    hook.remove()
    assert seen[0] == (32, 6) and all(T == 1 for _, T in seen[1:])
    for t, (n_rows, _) in enumerate(seen[1:], 1):
        live = int((rollout.n_tokens > t).sum())
        assert live <= n_rows < 4 / 3 * live + 1, (t, n_rows, live)
    assert seen[-1][0] < 32 and len(seen) == rollout.n_tokens.max()


def test_waiting_prompts_take_the_places_of_ended_rows(tiny):
    """Of 8 places at least 3/4 are busy until nobody waits, and prompts are run as places come free, never all at once."""
    seen = []
    hook = tiny.model.model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[:2])))
    rollout = generate(tiny, None, PROMPTS * 12, [-1] * 48, keys_for(48), SamplingParams(max_new_tokens=60, rollout_batch=8))
    hook.remove()
    steps = [B for B, T in seen if T == 1]
    admitted = [B for B, T in seen if T > 1]
    assert max(steps) == 8 and max(admitted) <= 8 and sum(admitted) >= 36 and len(admitted) > 6
    assert int(rollout.n_tokens.sum()) > .7 * sum(steps), "the rows that the model ran were mostly rows that still answered"


@pytest.mark.parametrize("rollout_batch", [8, 48])
@pytest.mark.parametrize("kernel", [None, varlen_reference])
def test_looking_seldom_changes_nothing(tiny, population, monkeypatch, rollout_batch, kernel):
    """On a GPU one looks every eighth step who has ended; rows that wait meanwhile stay as they are. In pages, as for CUDA graphs,
    one step serves until the batch has half its size."""
    args, steps = (population(tiny), PROMPTS * 12, [0, 1, 2, -1] * 12, keys_for(48)), []
    sampling = SamplingParams(max_new_tokens=30, rollout_batch=rollout_batch)
    want = generate(tiny, *args, sampling)
    monkeypatch.setattr("generate.PATIENCE", {"cpu": 8})
    monkeypatch.setattr("generate.CUDAGraphRunner", lambda step, as_graph: steps.append(step) or step)
    got = generate(tiny, *args, sampling, kernel=kernel)
    assert rows_of(got) == rows_of(want) and (got.logp - want.logp).abs().max() < 1e-4
    assert 1 <= len(steps) <= 4 if kernel else not steps, "a recording for each size of the batch, whoever comes and goes"


@pytest.mark.parametrize("error, goes_on", [(RuntimeError("an op that waits"), False), (torch.OutOfMemoryError("full"), True)])
def test_a_step_that_cannot_be_recorded_is_run(monkeypatch, capsys, error, goes_on):
    """Every call computes, the note gives the first reason, and only lack of memory lets the next step try again."""
    for name in ("can_record", "pool", "stream", "n_recorded", "n_failed"):
        monkeypatch.setattr(CUDAGraphRunner, name, getattr(CUDAGraphRunner, name))
    done, tried = [], []

    class Graph:
        def capture_begin(self, *args, **kwargs):
            tried.append(self)

        def capture_end(self):
            raise RuntimeError("ended in error")

    def step():
        if len(tried) > step.n_tried:
            step.n_tried = len(tried)
            raise error
        done.append(1)

    step.n_tried = 0
    for name, pretence in dict(CUDAGraph=Graph, MemPool=lambda: SimpleNamespace(id=(0, 1)), Stream=object, synchronize=lambda: None,
                               empty_cache=lambda: None, stream=lambda s: nullcontext(), current_device=lambda: 0).items():
        monkeypatch.setattr(torch.cuda, name, pretence)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *args: None, raising=False)
    for _ in range(2):
        runner = CUDAGraphRunner(step, as_graph=True)
        for _ in range(5):
            runner()
    assert len(done) == 10 and len(tried) == 1 + goes_on and CUDAGraphRunner.can_record is goes_on
    assert capsys.readouterr().err.count(f"none could be recorded: {error}") == len(tried)


@pytest.mark.parametrize("V", [5, 512, 513, 5000])
@pytest.mark.parametrize("peaked", [1.0, 5.0])
def test_a_draw_by_blocks_is_the_draw_by_one_running_sum(V, peaked):
    gen = torch.Generator().manual_seed(V)
    weight = (peaked * torch.randn(2000, V, generator=gen)).softmax(-1)
    u = torch.rand(2000, generator=gen)
    u[:3] = torch.tensor([0.0, 1 - 2 ** -24, 0.5])
    drawn = draw_by_blocks(weight, u)
    assert torch.equal(drawn, draw(weight, u)) and (weight.gather(1, drawn[:, None]) > 0).all()
    assert draw_by_blocks(torch.full((2, V), torch.nan), u[:2]).max() < V


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_change_nothing(tiny, population, dtype):
    """float32 has a dense cache, bfloat16 pages, on cards for which torch has the kernel."""
    base, adapters = dataclasses.replace(tiny, model=copy.deepcopy(tiny.model).cuda().to(dtype)), population(tiny)
    for factors in adapters.A, adapters.B:
        factors.update({path: x.detach().cuda() for path, x in factors.items()})
    args = adapters, PROMPTS * 12, [0, 1, 2, -1] * 12, keys_for(48)
    want = generate(base, *args, SamplingParams(max_new_tokens=60, rollout_batch=24))
    got = generate(dataclasses.replace(base, graphs=True), *args, SamplingParams(max_new_tokens=60, rollout_batch=24))
    assert rows_of(got) == rows_of(want) and (got.logp - want.logp).abs().max() < 1e-4


def test_the_prompt_is_run_once_for_all_attempts(tiny):
    seen = []
    hook = tiny.model.model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape[:2])))
    generate(tiny, None, PROMPTS, [-1] * 4, keys_for(64), SamplingParams(n=16, max_new_tokens=1))
    hook.remove()
    assert seen == [(4, 6)], "one pass over four prompts, and none after the last token"


def test_end_tokens(tiny):
    """Either end id ends a row and is its last token; a row without one is cut at the limit."""
    rollout = generate(tiny, None, PROMPTS, [-1] * 4, keys_for(160), SamplingParams(n=40, max_new_tokens=40))
    last = {}
    for ids, start in zip(rows_of(rollout), rollout.prompt_len.tolist()):
        answer = ids[start:]
        assert not set(answer[:-1]) & {1, 5}, "nothing follows an end token"
        assert len(answer) == 40 or answer[-1] in (1, 5)
        last[answer[-1] if answer[-1] in (1, 5) else "cut"] = True
    assert set(last) == {1, 5, "cut"}, f"the case needs all three ends, it has {set(last)}"
    for answer, ids, start in zip(rollout.answers(tiny.eos_ids), rows_of(rollout), rollout.prompt_len.tolist()):
        assert answer == [t for t in ids[start:] if t not in (1, 5)]


def test_an_end_token_in_the_prompt_ends_nothing(tiny):
    rollout = generate(tiny, None, [[1, 7, 5]], [-1], keys_for(1), SamplingParams(max_new_tokens=12))
    assert rollout.prompt_len.item() == 3 and rows_of(rollout)[0][:3] == [1, 7, 5] and rollout.n_tokens.item() >= 1
    assert not rollout.mask[0, :3].any(), "masks come from lengths, not from token identity"


def test_greedy_row_is_argmax(tiny, population):
    adapters = population(tiny)
    rollout = generate(tiny, adapters, PROMPTS, [0, 1, 2, -1], keys_for(8), SamplingParams(n=2, temperature=[0.0, 1.0] * 4, max_new_tokens=20))
    again = generate(tiny, adapters, PROMPTS, [0, 1, 2, -1], keys_for(8, step=5), SamplingParams(n=2, temperature=[0.0, 1.0] * 4, max_new_tokens=20))
    assert rows_of(rollout)[::2] == rows_of(again)[::2], "greedy rows use no draws"
    assert rows_of(rollout)[1::2] != rows_of(again)[1::2]
    for i in range(0, 8, 2):
        ids = torch.tensor([rows_of(rollout)[i]])
        with torch.inference_mode():
            best = tiny.model.logits(tiny.model(ids, lora=adapters.route(rollout.member[i:i + 1], torch.float32))).argmax(-1)
        start = int(rollout.prompt_len[i])
        assert torch.equal(best[0, start - 1:-1], ids[0, start:])


def test_too_long_prompt(tiny):
    limit = tiny.model.cfg.max_position_embeddings
    assert limit == 128
    with pytest.raises(ValueError, match="121 tokens and an answer of 8 exceed the base's context of 128.*--max-new-tokens"):
        generate(tiny, None, [[7], [7] * 121], [-1, -1], keys_for(2), SamplingParams(max_new_tokens=8))
    assert generate(tiny, None, [[7] * 120], [-1], keys_for(1), SamplingParams(max_new_tokens=8)).length.item() <= 128, "exactly full is allowed"


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> tuple[float, int]:
    """Pearson's statistic and degrees of freedom; cells that expect fewer than five are pooled."""
    n = counts.sum()
    rare = p * n < 5
    pool = lambda x: torch.cat((x[~rare], x[rare].sum()[None])) if rare.any() else x
    seen, expected = pool(counts.double()), pool(p.double()) * n
    keep = expected > 0
    return ((seen - expected)[keep] ** 2 / expected[keep]).sum().item(), int(keep.sum()) - 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_agree_with_softmax(tiny, population, temperature):
    n, adapters = 6000, population(tiny)
    rollout = generate(tiny, adapters, [[7, 8, 9]], [1], keys_for(n), SamplingParams(n=n, temperature=temperature, max_new_tokens=1, rollout_batch=n))
    with torch.inference_mode():
        route = adapters.route(torch.tensor([1]), torch.float32)
        p = (tiny.model.logits(tiny.model(torch.tensor([[7, 8, 9]]), lora=route)[0, -1]) / temperature).softmax(-1)
    statistic, df = chi_square(rollout.ids[:, 3].bincount(minlength=61), p)
    assert df > 5 and statistic < df + 4 * (2 * df) ** 0.5, (statistic, df)
    wrong, df = chi_square(rollout.ids[:, 3].bincount(minlength=61), (p + 0.02).div((p + 0.02).sum()))
    assert wrong > df + 4 * (2 * df) ** 0.5, "the bound must be able to fail"


def test_sample_never_draws_the_impossible():
    """The ends of [0, 1): u that rounds to 1 in float32 must not fall behind the last possible token."""
    logits = torch.tensor([[-torch.inf, 0.3, 1.0, -torch.inf, 0.2, -torch.inf, -torch.inf]])
    for u in (0.0, 1e-12, 0.5, 1 - 2 ** -24, 1 - 2 ** -30, 1.0):
        ids, logp = sample(logits, torch.ones(1), torch.tensor([u]))
        assert ids.item() in (1, 2, 4) and logp.isfinite().all(), (u, ids)
    many = torch.randn(2000, 61, generator=torch.Generator().manual_seed(0)) * 5
    many[:, 50:] = -torch.inf
    ids, logp = sample(many, torch.ones(2000), torch.full((2000,), 1 - 2 ** -24))
    assert ids.max() < 50 and logp.isfinite().all()


def test_scores_that_are_not_numbers_raise_nothing():
    """A member that has broken down must not end the run of the others: its rows get some token, the others their own."""
    logits = torch.randn(6, 61, generator=torch.Generator().manual_seed(0))
    u, temperature = torch.full((6,), 0.4), torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    want = sample(logits, temperature, u)[0]
    broken = logits.clone()
    broken[[0, 2]], broken[5, 3] = torch.nan, torch.inf
    ids = sample(broken, temperature, u)[0]
    assert torch.equal(ids[[1, 3, 4]], want[[1, 3, 4]]) and ids.min() >= 0 and ids.max() < 61


def test_select_and_cat(tiny):
    a = generate(tiny, None, PROMPTS[:2], [-1, -1], keys_for(2), SamplingParams(max_new_tokens=30))
    b = generate(tiny, None, PROMPTS[2:], [-1, -1], keys_for(2, step=3), SamplingParams(max_new_tokens=5))
    both = Rollout.cat([a, b])
    assert rows_of(both) == rows_of(a) + rows_of(b) and torch.equal(both.mask.sum(1), both.n_tokens)
    back = both.select(torch.tensor([3, 0]))
    assert rows_of(back) == [rows_of(b)[1], rows_of(a)[0]] and back.ids.shape[1] == back.length.max()


class Pieces:
    """As much of a tokenizer as closing_table reads."""

    def __init__(self, *pieces: str):
        self.pieces = pieces

    def get_vocab(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces)}


def test_a_closing_tag_is_found_in_whatever_tokens_it_is_written():
    """As the tokenizers of Qwen and Llama cut it: with brackets before it, with lines or a new tag behind it."""
    tag = "</answer>"
    tokenizer = Pieces("<", "/", "</", "]</", "answer", "ans", "wer", "an", "swer", ">", ">\n", "><", "r>", tag, "<<", "</an",
                       "Ċ", "Ġanswer", "x", "Ġ", "é", f"[1]{tag}<think>", "beyond")
    n = len(tokenizer.pieces) - 1
    table = closing_table(tokenizer, tag, n, "cpu")
    assert table.shape == (len(tag) + 1, n), "a model may have fewer tokens than its tokenizer"
    rng, n_found = np.random.default_rng(0), 0
    for _ in range(3000):
        text, matched = "", 0
        for token in rng.integers(0, n, 8).tolist():
            text += tokenizer.pieces[token]
            matched = int(table[matched, token])
            beginnings = [k for k in range(len(tag)) if text.endswith(tag[:k])]
            assert matched == (len(tag) if tag in text else max(beginnings)), text
        split_up = tag in text and not any(tag in piece and piece in text for piece in tokenizer.pieces[:n] if piece != tag)
        n_found += split_up
    assert n_found > 30, "the case needs tags of several tokens"


def test_rows_end_where_the_closing_text_is_complete(tiny, population):
    """A model that never ends by itself: every row is the one that runs on, up to the token that completes "3w4"."""
    runs_on, adapters = dataclasses.replace(tiny, eos_ids=()), population(tiny, 3)
    asked = dict(n=6, max_new_tokens=40, rollout_batch=12)
    closing = closing_table(tiny.tokenizer, "3w4", 61, "cpu")
    whole = generate(runs_on, adapters, PROMPTS, [0, 2, -1, 1], keys_for(24), SamplingParams(**asked))
    ended = generate(runs_on, adapters, PROMPTS, [0, 2, -1, 1], keys_for(24), SamplingParams(**asked, closing=closing))
    n_ended = 0
    for long, short, start in zip(rows_of(whole), rows_of(ended), whole.prompt_len.tolist()):
        assert len(long) == start + 40
        text = ["".join(f"w{i}" for i in long[start:end]) for end in range(start + 1, start + 41)]
        n_tokens = next((k for k, words in enumerate(text, 1) if "3w4" in words), 40)
        assert short == long[:start + n_tokens]
        n_ended += n_tokens < 40
    assert 3 < n_ended < 24, "the case needs rows that end and rows that are cut off"
    assert_logp_holds(runs_on, adapters, ended, [1.0] * 24)
    both = generate(tiny, adapters, PROMPTS, [0, 2, -1, 1], keys_for(24), SamplingParams(**asked, closing=closing))
    assert (both.n_tokens <= ended.n_tokens).all() and (both.n_tokens < ended.n_tokens).any(), "end tokens still end rows"
