"""The update in a world that is not ideal: a rollout that computes otherwise, too little memory, half precision."""
import pytest
import torch
from batches import make_batch, pick, settings, shifted

import rl
from common import UserError
from rl import Adam


def largest(a, b) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b))


def test_the_gap_is_told(tiny, population):
    """Of the rows that were trained: member 1 is silent, and its rows are off by much."""
    adapters, batch = population(tiny), make_batch(18)
    off = shifted(tiny, adapters, batch)
    adv = rl.advantages(batch).masked_fill(batch.rollout.member == 1, 0.0)
    batch.rollout.logp[batch.rollout.member == 1] = -50.0
    told = rl.update(rl.Objective(tiny, adapters, batch, adv, settings(importance_cap=1.0)), Adam(adapters, [1e-3] * 3))
    own = torch.cat([x for i, x in enumerate(off) if batch.rollout.member[i] != 1])
    size = own.abs().sort().values
    want = dict(diff=size.mean(), p99=size[(len(size) - 1) * 99 // 100])
    for name, x in want.items():
        assert told[f"train_rollout_logprob_{name}"] == pytest.approx(x.item(), abs=1e-5), name
    assert "clip_frac" not in told, "in the first epoch nothing is clipped"
    assert told["capped_frac"] == pytest.approx((own > 0).float().mean().item(), abs=0.05)


@pytest.mark.parametrize("kl_coef, rows, moves", [(0.0, True, False), (0.1, True, True), (0.1, False, False)])
def test_a_member_with_nothing_to_learn_is_not_moved_by_its_momentum(tiny, population, kl_coef, rows, moves):
    """Without rows no bit of it changes; with advantages of 0 it moves only where the KL has a gradient of its own."""
    adapters, batch, cfg = population(tiny), make_batch(18), settings(kl_coef=kl_coef)
    adam, adv = Adam(adapters, [1e-2] * 3), rl.advantages(batch)
    rl.update(rl.Objective(tiny, adapters, batch, adv, cfg), adam)
    before = [x.detach().clone() for x in (*adapters.parameters(), *adam.m, *adam.v)]
    mine = batch.rollout.member == 1
    adv = adv.masked_fill(mine, 0.0)
    if not rows:
        others = (~mine).nonzero().squeeze(1)
        batch, adv = pick(batch, others), adv[others]
    told = rl.update(rl.Objective(tiny, adapters, batch, adv, cfg), adam)
    for x, y in zip(before, (*adapters.parameters(), *adam.m, *adam.v)):
        assert [torch.equal(x[p], y[p]) for p in range(3)] == [False, not moves, False]
    assert adam.steps.tolist() == [2, 1 + moves, 2] and told["skipped"] == []


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


def short_of_memory(most: int, when: str = "forward"):
    """rl.token_losses where more than `most` tokens at once fail, unless checkpointed."""
    losses = rl.token_losses

    def limited(o, route, p, checkpointing):
        loss, logp, sums = losses(o, route, p, checkpointing)
        if p.ids.numel() > most and not checkpointing:
            if when == "forward":
                full()
            loss.register_hook(full)
        return loss, logp, sums

    return limited


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("most", [40, 5])
def test_what_does_not_fit_is_split(tiny, population, monkeypatch, capsys, when, most):
    """Nothing is learned twice or lost; the next epoch begins with what fits. 5 tokens: rows run checkpointed."""
    adapters, batch, other = population(tiny), make_batch(18), population(tiny)
    cfg = settings(epochs=2, tokens_per_microbatch=160)
    adv = rl.advantages(batch)
    want = rl.update(rl.Objective(tiny, other, batch, adv, cfg), Adam(other, [1e-3] * 3))
    assert capsys.readouterr().err == "" and want["tokens_per_microbatch"] == 160
    monkeypatch.setattr(rl, "token_losses", short_of_memory(most, when))
    told = rl.update(rl.Objective(tiny, adapters, batch, adv, cfg), Adam(adapters, [1e-3] * 3))
    said = capsys.readouterr().err.splitlines()
    assert 1 <= len(said) <= 6 and all("does not fit into memory" in line for line in said), said
    assert said[-1].endswith(f"--tokens-per-microbatch is {told['tokens_per_microbatch']} from now on")
    assert told["tokens_per_microbatch"] <= most and told["trained_tokens"] == want["trained_tokens"]
    assert largest(adapters.parameters(), other.parameters()) < 1e-5


@pytest.mark.parametrize("where, fails, error, words", [
    ("rl.token_losses", full, UserError, "a row of .* tokens does not fit into memory: lower --max-new-tokens"),
    ("rl.token_losses", lambda *_: torch.ones(2) @ torch.ones(3), RuntimeError, "size"),
    ("lora.AdapterWeights.add_gradients", full, torch.OutOfMemoryError, "CUDA out of memory")])
def test_what_no_split_mends_ends_the_run(tiny, population, monkeypatch, where, fails, error, words):
    """Where gradients are added half of them may have been: again would add that half twice."""
    adapters, batch, tried = population(tiny), make_batch(), []

    def fails_once(*args):
        tried.append(args)
        return fails(*args)

    monkeypatch.setattr(where, fails_once)
    with pytest.raises(error, match=words):
        rl.accumulate(rl.Objective(tiny, adapters, batch, rl.advantages(batch), settings()))
    assert len(tried) == 1 or error is UserError
