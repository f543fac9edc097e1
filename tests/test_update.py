"""The update in a world that is not ideal: a rollout that computes otherwise, too little memory, half precision."""
import pytest
import torch
from batches import answer_logp, make_batch, settings

import rl
from rl import Adam


def shifted(base, adapters, batch, size: float = 0.5) -> list[torch.Tensor]:
    """Give the rollout log-probabilities that are off by random numbers; returns those, of each row."""
    gen, off = torch.Generator().manual_seed(3), []
    for i in range(len(batch.reward)):
        answer = slice(int(batch.rollout.prompt_len[i]), int(batch.rollout.length[i]))
        right = answer_logp(base, adapters, batch.rollout, i).detach()
        off.append(size * torch.randn(len(right), generator=gen))
        batch.rollout.logp[i, answer] = right - off[i]
    return off


def gradients(adapters) -> list[torch.Tensor]:
    return [p.grad.clone() for p in adapters.parameters()]


def largest(a, b) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b))


@pytest.mark.parametrize("flags", [{}, dict(algo="cispo"), dict(kl_coef=0.1)])
def test_importance_weights_by_hand(tiny, population, flags):
    """In both epochs min(exp(training - rollout), 1.3) of the first, times the loss but not times the KL."""
    adapters, batch = population(tiny), make_batch(18)
    off = shifted(tiny, adapters, batch)
    cfg = settings(epochs=2, importance_cap=1.3, tokens_per_microbatch=60, **flags)
    adv, adam, before = rl.advantages(batch, cfg), Adam(adapters, [2e-2] * 3), None
    weights = [x.exp().clamp_max(1.3) for x in off]
    capped = torch.cat(off).exp() > 1.3
    assert 0.1 < capped.float().mean() < 0.9
    old = [answer_logp(tiny, adapters, batch.rollout, i).detach() for i in range(18)]
    for epoch in range(2):
        total = torch.zeros(())
        for i in range(18):
            logp = answer_logp(tiny, adapters, batch.rollout, i)
            ratio = (logp - old[i]).exp()
            clipped = ratio.clamp(*(1 + side * float(x) for side, x in zip((-1, 1), cfg.clip.split(","))))
            loss = -torch.minimum(ratio * adv[i], clipped * adv[i])
            if cfg.loss == "cispo":
                loss = -clipped.detach() * adv[i] * logp
            with torch.no_grad():
                plain = answer_logp(tiny, None, batch.rollout, i)
            kl = (plain - logp).exp() - (plain - logp) - 1
            mine = batch.rollout.member == batch.rollout.member[i]
            total = total + (weights[i] * loss + cfg.kl_coef * kl).sum() / batch.rollout.n_tokens[mine].sum()
        by_hand = torch.autograd.grad(total, adapters.parameters())
        found, _ = rl.accumulate(rl.Objective(tiny, adapters, batch, adv, cfg, old=before))
        assert largest(gradients(adapters), by_hand) < 1e-5 < max(x.abs().max() for x in by_hand)
        assert found.sums["capped_frac"] == capped.sum()
        before = found.logp if epoch == 0 else before
        adam.step(torch.ones(3, dtype=torch.bool))


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


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_a_silent_member_is_not_moved_by_its_momentum(tiny, population, kl_coef):
    """Its advantages are 0: it moves only where the KL has a gradient of its own."""
    adapters, batch, cfg = population(tiny), make_batch(18), settings(kl_coef=kl_coef)
    adam, adv = Adam(adapters, [1e-2] * 3), rl.advantages(batch)
    rl.update(rl.Objective(tiny, adapters, batch, adv, cfg), adam)
    before = [x[1].detach().clone() for x in (*adapters.parameters(), *adam.m, *adam.v)]
    told = rl.update(rl.Objective(tiny, adapters, batch, adv.masked_fill(batch.rollout.member == 1, 0.0), cfg), adam)
    after = [x[1] for x in (*adapters.parameters(), *adam.m, *adam.v)]
    same = [torch.equal(x, y) for x, y in zip(before, after)]
    assert not any(same) if kl_coef else all(same)
    assert adam.steps.tolist() == ([2, 2, 2] if kl_coef else [2, 1, 2]) and told["skipped"] == []


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
    ("rl.token_losses", full, ValueError, "a row of .* tokens does not fit into memory: lower --max-new-tokens"),
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
    assert len(tried) == 1 or error is ValueError
