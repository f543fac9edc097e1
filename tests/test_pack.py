"""Packed lines: states and log-probabilities of separate rows, each answer token once, within the budget."""
import pytest
import torch

from generate import Prompts, SamplingParams, generate
from pack import lines, micro_batches, pack, size

PROMPTS = [[7, 8, 9], [10, 3, 4, 12, 33, 2, 9, 9, 8], [7, 8, 9], [22, 23, 24, 25]]
MEMBERS = [0, 2, 1, 2]                         # two members share a prompt, one member has two


def rollout_of(base, adapters, n: int = 5, max_new_tokens: int = 12):
    keys = [(3, i) for i in range(len(PROMPTS) * n)]
    return generate(base, adapters, Prompts(PROMPTS, MEMBERS, keys), SamplingParams(n=n, max_new_tokens=max_new_tokens))


def packed_logp(base, adapters, p) -> torch.Tensor:
    """Log-probability of each target of a packed batch."""
    route = adapters.route(p.member, torch.float32)
    states = base.model(p.ids, p.positions, p.mask, lora=route).flatten(0, 1)[p.source]
    return base.model.logits(states).log_softmax(-1).gather(1, p.target[:, None]).squeeze(1)


@torch.inference_mode()
@pytest.mark.parametrize("budget", [1, 30, 10 ** 6])
def test_lines_score_as_the_rows_that_were_sampled(any_base, population, budget):
    base, adapters = any_base, population(any_base)
    rollout, seen = rollout_of(base, adapters), []
    for batch in micro_batches(rollout, list(range(20)), budget):
        p = pack(rollout, batch)
        assert (packed_logp(base, adapters, p) - p.logp).abs().max() < 1e-4
        assert torch.equal(rollout.ids[p.row, p.column], p.target)
        seen += zip(p.row.tolist(), p.column.tolist())
        assert (p.mask is None) == (max(map(len, batch)) == 1)
    want = [tuple(place) for place in rollout.mask.nonzero().tolist()]
    assert sorted(seen) == want, "every answer token is trained exactly once"


@torch.inference_mode()
def test_an_answer_does_not_see_the_other(tiny, population):
    """Another token moves nothing in neighbours of the same line, and all that comes behind it in its row."""
    adapters = population(tiny)
    rollout = rollout_of(tiny, adapters)
    i = next(i for i in range(5) if rollout.n_tokens[i] > 2)
    line = list(range(5))
    before = pack(rollout, [line])
    rollout.ids[i, 3] = (rollout.ids[i, 3] + 11) % 61
    after = pack(rollout, [line])
    moved = packed_logp(tiny, adapters, before) - packed_logp(tiny, adapters, after)
    assert moved[before.row != i].abs().max() == 0 and moved[before.row == i].abs().max() > 1e-3


def test_lines_hold_one_member_and_one_prompt_within_the_budget(tiny, population):
    rollout = rollout_of(tiny, population(tiny))
    once = 9 + int((rollout.n_tokens[5:10] - 1).sum())
    assert pack(rollout, [list(range(5, 10))]).ids.shape == (1, once), "five answers to a prompt of nine tokens cost it once"
    assert lines(rollout, list(range(20)), 10 ** 6) == [list(range(i, i + 5)) for i in (0, 5, 10, 15)]
    assert lines(rollout, [19, 3, 18], 10 ** 6) == [[19, 18], [3]]
    for budget in (1, 12, 20, 40):
        out = lines(rollout, list(range(20)), budget)
        assert sorted(i for line in out for i in line) == list(range(20))
        assert all(size(rollout, line) <= budget or len(line) == 1 for line in out)
    for budget in (1, 40, 100):
        batches = micro_batches(rollout, list(range(20)), budget)
        assert sorted(i for batch in batches for line in batch for i in line) == list(range(20))
        for batch in batches:
            longest = max(size(rollout, line) for line in batch)
            assert len(batch) * longest <= budget or len(batch) == 1
            assert pack(rollout, batch).ids.shape == (len(batch), longest)
