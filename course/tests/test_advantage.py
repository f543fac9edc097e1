"""Grades exercise 3: cases by hand, silent groups, which rows depend on which, the loop's own function."""
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
import torch
from torch import Tensor


@dataclass
class Rows:
    """What `advantages` takes, in its order."""
    reward: Tensor                      # (N,)
    group: Tensor                       # (N,)
    learner: Tensor                     # (N,)
    n_tokens: Tensor                    # (N,)


def yours(work: ModuleType, rows: Rows) -> Tensor:
    """Your advantages of these rows."""
    adv = work.advantages(rows.reward, rows.group, rows.learner, rows.n_tokens)
    return adv.double()


def random_rows(seed: int = 0, n: int = 24) -> Rows:
    """n rows in groups of four; three learners take turns with the groups."""
    gen = torch.Generator().manual_seed(seed)
    group = torch.arange(n) // 4
    reward = torch.rand(n, generator=gen)
    n_tokens = torch.randint(1, 30, (n,), generator=gen).float()
    return Rows(reward, group, group % 3, n_tokens)


def one_group(reward: list[float], n_tokens: list[float]) -> Rows:
    """The rows of one group of one learner."""
    zeros = torch.zeros(len(reward), dtype=torch.int64)
    return Rows(torch.tensor(reward), zeros, zeros, torch.tensor(n_tokens))


def test_by_hand(work: ModuleType):
    """One group of two rows, 1 and 3 tokens: d = (1/2, -1/2), m = -1/4, s^2 = (9/16 + 3/16) / 4 = 3/16."""
    rows = one_group([1.0, 0.0], n_tokens=[1.0, 3.0])
    s = (3 / 16) ** 0.5
    want = [0.75 / s, -0.25 / s]
    got = yours(work, rows)
    assert got.tolist() == pytest.approx(want, rel=1e-4)


def test_a_row_at_its_group_s_mean_is_live(work: ModuleType):
    """One group of 3, 2 and 1 tokens: d = (1/2, 0, -1/2), m = 1/6, s^2 = (3/9 + 2/36 + 4/9) / 6 = 5/36."""
    rows = one_group([1.0, 0.5, 0.0], n_tokens=[3.0, 2.0, 1.0])
    root = 5 ** 0.5
    want = [2 / root, -1 / root, -4 / root]
    got = yours(work, rows)
    assert got.tolist() == pytest.approx(want, rel=1e-4)


def test_a_prompt_that_pays_more_is_no_merit(work: ModuleType):
    rows = random_rows()
    before = yours(work, rows)
    # as if every prompt paid 5 more than the one before it, whatever the answer
    raised = replace(rows, reward=rows.reward + 5 * rows.group)
    after = yours(work, raised)
    assert torch.allclose(after, before, atol=1e-4), \
        "a constant added to all rewards of a group should change no advantage: subtract the group's mean"


def test_silent_groups_get_nothing_and_count_for_nothing(work: ModuleType):
    rows = random_rows()
    silent = rows.group == 3
    rows.reward[silent] = 0.7
    adv = yours(work, rows)
    assert (adv[silent] == 0).all(), f"expected 0 for a group of equal rewards, got {adv[silent].tolist()}"
    rest = ~silent
    others = Rows(
        rows.reward[rest],
        rows.group[rest],
        rows.learner[rest],
        rows.n_tokens[rest],
    )
    alone = yours(work, others)
    assert torch.allclose(alone, adv[rest], atol=1e-6), \
        "the other rows should have the same advantages as without the group of equal rewards"


def test_a_learner_is_white_over_its_tokens(work: ModuleType):
    rows = random_rows()
    adv = yours(work, rows)
    for one in range(3):
        own = adv[rows.learner == one]
        n_tokens = rows.n_tokens[rows.learner == one].double()
        share = n_tokens / n_tokens.sum()
        mean = (share * own).sum()
        variance = (share * (own - mean) ** 2).sum()
        assert abs(mean) < 1e-5, f"over learner {one}'s tokens: expected mean 0, got {mean}"
        assert variance == pytest.approx(1, abs=1e-3), f"of learner {one}'s tokens"


def test_one_learners_luck_is_not_anothers_step(work: ModuleType):
    rows = random_rows()
    others = rows.learner != 1
    before = yours(work, rows)[others]
    rows.reward[~others] *= 100
    after = yours(work, rows)[others]
    assert torch.equal(after, before), \
        "learner 1's rewards times 100 should not change another learner's advantages: whiten each by itself"


@pytest.mark.parametrize("seed", range(5))
def test_the_loop_does_the_same(work: ModuleType, seed: int):
    import rl
    from generate import Rollout
    rows = random_rows(seed)
    # A batch of the loop with these rows: prompts of two tokens, all tokens 0.
    N = len(rows.reward)
    length = rows.n_tokens.long() + 2
    T = int(length.max())
    ids = torch.zeros(N, T, dtype=torch.int64)
    prompt_len = torch.full((N,), 2)
    logp = torch.zeros(N, T)
    rollout = Rollout(ids, prompt_len, length, logp, member=rows.learner)
    zeros = torch.zeros_like(rows.group)
    batch = rl.Batch(rollout, rows.reward, rows.group, zeros, zeros)
    want = rl.advantages(batch)
    got = yours(work, rows).float()
    assert torch.allclose(got, want, atol=1e-5), f"rl.advantages gives\n{want}\nand yours\n{got}"
