"""Each algorithm's advantages, weights and gradients equal the formulas of its paper, in plain loops."""
from dataclasses import replace

import pytest
import torch
from batches import LENGTH, answer_logp, make_batch, pick, settings, shifted

import config
import rl
from config import ALGORITHMS
from generate import Rollout
from rl import Adam

# As in the papers, but no ratio of CISPO comes to 5 here, and all of GSPO leave so narrow an interval.
INTERVALS = {"gspo": (0.9, 1.2), "dapo": (0.8, 1.28), "cispo": (0.0, 1.2)}
OTHER_CLIPS = {"gspo": dict(clip=(0.1, 0.2)), "cispo": dict(clip=(1, 0.2))}


def hand_batch() -> rl.Batch:
    """Member 0 plays both roles, member 1 is a student; group 1 is silent."""
    reward = torch.tensor([1.0, 0.0, 0.0, 0.7, 0.7, 0.7, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4])
    n_tokens = torch.tensor([3, 1, 2, 9, 1, 1, 4, 2, 2, 5, 1, 2, 3, 1])
    member, role = torch.tensor([0] * 9 + [1] * 2 + [0] * 3), torch.tensor([1] * 11 + [0] * 3)
    ids, prompt_len = torch.zeros(14, 12, dtype=torch.int64), torch.full((14,), 2)
    rollout = Rollout(ids, prompt_len, 2 + n_tokens, torch.zeros(14, 12), member)
    return rl.Batch(rollout, reward, group, role, torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [0] * 3))


def unwhitened(batch: rl.Batch, algo: str) -> list[float]:
    """Each row's reward against its group, by the papers."""
    out = []
    all_rewards, groups = batch.reward.double().tolist(), batch.group.tolist()
    for r, g in zip(all_rewards, groups):
        rewards = [x for x, h in zip(all_rewards, groups) if h == g]
        n, mean = len(rewards), sum(rewards) / len(rewards)
        std = (sum((x - mean) ** 2 for x in rewards) / n) ** 0.5
        if algo in ("reinforce++", "dr_grpo"):
            out.append(r - mean)
        elif algo == "rloo":
            out.append(r - (sum(rewards) - r) / (n - 1))
        else:
            out.append((r - mean) / (std + 1e-6))
    return out


def whitened(batch: rl.Batch, d: list[float], by_kind: bool = False) -> list[float]:
    """d less its mean, over its deviation, both of the answer tokens of one member in one role (and kind)."""
    kinds = batch.kind.tolist() if by_kind else [0] * len(d)
    keys = list(zip(batch.rollout.member.tolist(), batch.role.tolist(), kinds))
    silent = [len(batch.reward[batch.group == g].unique()) == 1 for g in batch.group]
    out = [0.0] * len(d)
    for key in set(keys):
        rows = [i for i in range(len(d)) if keys[i] == key and not silent[i]]
        tokens = []
        for i in rows:
            tokens += [d[i]] * int(batch.rollout.n_tokens[i])
        tokens = torch.tensor(tokens, dtype=torch.float64)
        for i in rows:
            out[i] = ((d[i] - tokens.mean()) / (tokens.std(correction=0) + 1e-6)).item()
    return out


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("normalize", config.NORMALIZE)
def test_advantages_by_hand(algo, normalize):
    """Against the group; and every token of a row counts once: mean 0 and deviation 1 over the tokens of one member in one role."""
    batch = hand_batch()
    adv = rl.advantages(batch, settings(algo, normalize_advantages=normalize))
    want = unwhitened(batch, algo)
    if normalize != "off":
        want = whitened(batch, want, by_kind=normalize == "kind")
    assert adv.tolist() == pytest.approx(want, abs=1e-5) and (adv[batch.group == 1] == 0).all()


def test_without_baseline_the_advantage_is_the_reward():
    """In silent groups too, whose reward says something where nothing is taken from it."""
    batch = hand_batch()
    plain = settings(baseline="none", normalize_advantages="off")
    assert torch.equal(rl.advantages(batch, plain), batch.reward)
    whole = rl.advantages(batch, replace(plain, normalize_advantages="member"))
    rows = (batch.rollout.member == 0) & (batch.role == 1)
    tokens = batch.reward[rows].repeat_interleave(batch.rollout.n_tokens[rows])
    want = (batch.reward[rows] - tokens.mean()) / tokens.std(correction=0)
    assert whole[rows].tolist() == pytest.approx(want.tolist(), abs=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("normalize", config.NORMALIZE)
@pytest.mark.parametrize("silent", [0.0, 0.1, 1.0])
def test_groups_without_variance_are_exactly_zero(algo, normalize, silent):
    """Also where the float mean of equal numbers is not that number; the others do not notice them."""
    batch, cfg = make_batch(60, member=(0, 1), roles=2), settings(algo, normalize_advantages=normalize)
    quiet = torch.isin(batch.group, torch.tensor([1, 4, 11, 15]))
    batch.reward[quiet] = silent
    adv = rl.advantages(batch, cfg)
    assert (adv[quiet] == 0).all() and (adv[~quiet] != 0).all()
    without = rl.advantages(pick(batch, (~quiet).nonzero().squeeze(1)), cfg)
    assert (adv[~quiet] - without).abs().max() < 1e-6
    batch.reward[:] = silent
    assert (rl.advantages(batch, cfg) == 0).all()


def loss_by_hand(cfg, base, adapters, rollout: Rollout, adv: list[float], old: list[torch.Tensor], weights: list[torch.Tensor]):
    """Sum of the members' losses as in the papers; old: log-probabilities of each row's tokens before."""
    low, high = INTERVALS.get(cfg.algo, (0.8, 1.2))
    total = torch.zeros(())
    for p in range(3):
        rows = (rollout.member == p).nonzero().squeeze(1).tolist()
        divisor = sum(int(rollout.n_tokens[i]) for i in rows)
        for i in rows:
            logp = answer_logp(base, adapters, rollout, i)
            with torch.no_grad():
                plain = answer_logp(base, None, rollout, i)
            kl = (plain - logp).exp() - (plain - logp) - 1
            ratio = (logp - old[i]).exp()
            if cfg.algo == "gspo":
                ratio = (logp - old[i]).mean().exp().expand(len(logp))
            clipped = ratio.clamp(low, high)
            gain = torch.min(ratio * adv[i], clipped * adv[i])
            if cfg.algo == "cispo":
                gain = clipped.detach() * adv[i] * logp
            if cfg.algo in ("grpo", "gspo"):
                divisor = len(logp) * len(rows)
            if cfg.algo == "dr_grpo":
                divisor = LENGTH * len(rows)
            total = total + (cfg.kl_coef * kl - weights[i] * gain).sum() / divisor
    return total


CAPPED = [("reinforce++", dict(importance_cap=1.3, kl_coef=0.1)), ("cispo", dict(importance_cap=1.3))]


@pytest.mark.parametrize("algo, flags", [(algo, {}) for algo in ALGORITHMS] + CAPPED)
def test_two_epochs_by_hand(tiny, population, algo, flags):
    """In the second epoch the policy has moved, some ratios are clipped; `update` takes the same two steps and tells of it.
    With a cap, min(exp(training - rollout), 1.3) of the first epoch times the loss but not times the KL."""
    adapters, other, batch = population(tiny), population(tiny), make_batch(24)
    cfg = settings(algo, epochs=2, tokens_per_microbatch=60, **OTHER_CLIPS.get(algo, {}), **flags)
    adam, off = Adam(adapters, [2e-2] * 3), shifted(tiny, adapters, batch)
    weights = [x.exp().clamp_max(1.3) if flags else torch.ones(len(x)) for x in off]
    n_capped = sum(int((x.exp() > 1.3).sum()) for x in off) if flags else 0
    adv, d = rl.advantages(batch, cfg), unwhitened(batch, algo)
    want = whitened(batch, d) if algo == "reinforce++" else d
    assert adv.tolist() == pytest.approx(want, abs=1e-5)
    with torch.no_grad():
        old = [answer_logp(tiny, adapters, batch.rollout, i) for i in range(24)]
    sampled = None
    for epoch in range(2):
        loss = loss_by_hand(cfg, tiny, adapters, batch.rollout, want, old, weights)
        by_hand = torch.autograd.grad(loss, adapters.parameters())
        found, _ = rl.accumulate(rl.Objective(tiny, adapters, batch, adv, cfg, old=sampled))
        for factor, grad in zip(adapters.parameters(), by_hand):
            assert (factor.grad - grad).abs().max() < 1e-5
        assert max(grad.abs().max() for grad in by_hand) > 1e-2 and found.sums["capped_frac"] == n_capped
        if epoch == 0:
            assert found.sums["clip_frac"] == found.sums["approx_kl"] == 0
            sampled = found.logp
        after = torch.cat([answer_logp(tiny, adapters, batch.rollout, i).detach() for i in range(24)])
        log_ratio = after - torch.cat(old)
        adam.step(torch.ones(3, dtype=torch.bool))
    assert 0 < found.sums["clip_frac"] < found.sums["trained_tokens"]
    told = rl.update(rl.Objective(tiny, other, batch, adv, cfg), Adam(other, [2e-2] * 3))
    assert all(torch.equal(x, y) for x, y in zip(adapters.parameters(), other.parameters()))
    assert told["trained_tokens"] == 2 * len(log_ratio)
    assert told["approx_kl"] == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item(), rel=1e-3)
    if algo == "reinforce++":
        assert told["clip_frac"] == pytest.approx(((log_ratio.exp() - 1).abs() > 0.2).double().mean().item())
