"""Grades exercise 3: a case by hand, silent groups, whose numbers may depend on whose, and the loop's own function."""
import pytest
import torch


def case(seed=0, n=24):
    gen = torch.Generator().manual_seed(seed)
    group = torch.arange(n) // 4
    return (torch.rand(n, generator=gen), group, group % 3, torch.randint(1, 30, (n,), generator=gen).float())


def test_by_hand(work):
    """One group of two rows, 1 and 3 tokens: d = (1/2, -1/2), m = -1/4, s^2 = (9/16 + 3/16) / 4 = 3/16."""
    adv = work.advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([1.0, 3.0]))
    assert adv.tolist() == pytest.approx([0.75 / 0.1875 ** 0.5, -0.25 / 0.1875 ** 0.5], rel=1e-4)


def test_a_row_at_its_group_s_mean_is_live(work):
    """One group of 3, 2 and 1 tokens: d = (1/2, 0, -1/2), m = 1/6, s^2 = (3/9 + 2/36 + 4/9) / 6 = 5/36."""
    adv = work.advantages(torch.tensor([1.0, 0.5, 0.0]), torch.zeros(3).long(), torch.zeros(3).long(), torch.tensor([3.0, 2.0, 1.0]))
    assert adv.tolist() == pytest.approx([2 / 5 ** 0.5, -1 / 5 ** 0.5, -4 / 5 ** 0.5], rel=1e-4)


def test_a_prompt_that_pays_more_is_no_merit(work):
    reward, group, learner, n = case()
    raised = reward + 5 * group
    assert torch.allclose(work.advantages(raised, group, learner, n), work.advantages(reward, group, learner, n), atol=1e-4)


def test_silent_groups_get_nothing_and_count_for_nothing(work):
    reward, group, learner, n = case()
    reward[group == 3] = 0.7
    adv = work.advantages(reward, group, learner, n)
    rest = group != 3
    assert (adv[group == 3] == 0).all()
    alone = work.advantages(reward[rest], group[rest], learner[rest], n[rest])
    assert torch.allclose(alone.double(), adv[rest].double(), atol=1e-6)


def test_a_learner_is_white_over_its_tokens(work):
    reward, group, learner, n = case()
    adv = work.advantages(reward, group, learner, n).double()
    for one in range(3):
        own, tokens = adv[learner == one], n[learner == one].double()
        mean = (own * tokens).sum() / tokens.sum()
        assert abs(mean) < 1e-5 and ((own - mean) ** 2 * tokens).sum() / tokens.sum() == pytest.approx(1, abs=1e-3)


def test_one_learners_luck_is_not_anothers_step(work):
    reward, group, learner, n = case()
    loud = torch.where(learner == 1, reward * 100, reward)
    a, b = work.advantages(reward, group, learner, n), work.advantages(loud, group, learner, n)
    assert torch.equal(a[learner != 1], b[learner != 1])


@pytest.mark.parametrize("seed", range(5))
def test_the_loop_does_the_same(work, seed):
    import rl
    from generate import Rollout
    reward, group, learner, n = case(seed)
    length = n.long() + 2
    rollout = Rollout(torch.zeros(len(n), int(length.max()), dtype=torch.int64), torch.full((len(n),), 2), length,
                      torch.zeros(len(n), int(length.max())), learner)
    batch = rl.Batch(rollout, reward, group, torch.zeros_like(group), torch.zeros_like(group))
    assert torch.allclose(work.advantages(reward, group, learner, n).float(), rl.advantages(batch), atol=1e-5)
