"""Advantages and loss equal the papers' formulas, the joint update a loop over members; a broken member changes nothing else."""
import dataclasses
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import torch
import torch.multiprocessing as mp
from batches import LENGTH, ask, make_batch, one_of_two, pick, settings
from factors import gen
from transformers import AutoModelForCausalLM

import rl
from generate import Rollout
from lora import TARGETS, Adapters
from model import Base
from ranks import ALONE, Ranks
from rl import Adam, make_lines, micro_batches, pack, size
from weights import load_model, save_peft

ALGORITHMS = ("reinforce++", "rloo", "grpo", "dr_grpo")             # whose formulas are written out here
NORMALIZE = ("member", "kind", "off")


def gradients(base, adapters, batch, adv=None, ranks=ALONE, **flags) -> dict:
    """The stacked gradients by path and factor."""
    cfg = settings(**flags)
    rl.accumulate(base, adapters, batch, rl.advantages(batch, cfg) if adv is None else adv, cfg, ranks)
    return {(path, x): getattr(adapters, x)[path].grad for path in adapters.A for x in "AB"}


def learn(base, adapters, adam, batch, adv=None, ranks=ALONE, **flags) -> dict:
    """One update with these flags."""
    cfg = settings(**flags)
    return rl.update(base, adapters, batch, rl.advantages(batch, cfg) if adv is None else adv, adam, cfg, ranks)


def adam_of(adapters, *lr) -> Adam:
    adam = Adam(adapters)
    adam.lr.copy_(torch.tensor(lr or [1e-3] * adapters.n_members))
    return adam


def state_of(adapters, adam) -> dict:
    """Copies of all numbers that an update may change."""
    lists = dict(p=adapters.parameters(), m=adam.m, v=adam.v, steps=[adam.steps])
    return {f"{name}.{i}": x.detach().clone() for name, some in lists.items() for i, x in enumerate(some)}


def largest(a: dict, b: dict, member=slice(None)) -> float:
    return max((a[name][member].double() - b[name][member].double()).abs().max().item() for name in a)


# --- advantages, by hand ------------------------------------------------------------------------------------

def hand_batch() -> rl.Batch:
    """Two members in both roles; group 1 is silent, the last one has two rows."""
    batch = pick(make_batch(42, (0, 1, 0), roles=2), torch.arange(41))
    batch.reward[batch.group == 1] = 0.7
    return batch


def unwhitened(batch: rl.Batch, algo: str) -> list[float]:
    """Each row's reward against its group, by the papers."""
    out = []
    all_rewards, groups = batch.reward.double().tolist(), batch.group.tolist()
    for r, g in zip(all_rewards, groups):
        rewards = [x for x, h in zip(all_rewards, groups) if h == g]
        baseline = (sum(rewards) - r) / (len(rewards) - 1) if algo == "rloo" else fmean(rewards)
        out.append((r - baseline) / (pstdev(rewards) + 1e-6 if algo == "grpo" else 1))
    return out


def whitened(batch: rl.Batch, d: list[float], by_kind: bool = False, with_silent: bool = False) -> list[float]:
    """d less its mean, over its deviation, both of the answer tokens of one member in one role (and kind)."""
    kinds = batch.kind.tolist() if by_kind else [0] * len(d)
    keys = list(zip(batch.rollout.member.tolist(), batch.role.tolist(), kinds))
    out = [0.0] * len(d)
    for key in set(keys):
        rows = [i for i in range(len(d)) if keys[i] == key and (with_silent or batch.group[i] != 1)]
        tokens = [d[i] for i in rows for _ in range(int(batch.rollout.n_tokens[i]))]
        for i in rows:
            out[i] = (d[i] - fmean(tokens)) / (pstdev(tokens) + 1e-6)
    return out


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_advantages_by_hand(algo, normalize):
    """Every token of a row counts once: mean 0 and deviation 1 over the tokens of one member in one role."""
    batch = hand_batch()
    adv = rl.advantages(batch, settings(algo, normalize_advantages=normalize))
    want = unwhitened(batch, algo)
    if normalize != "off":
        want = whitened(batch, want, by_kind=normalize == "kind")
    assert adv.tolist() == pytest.approx(want, abs=1e-5) and (adv[batch.group == 1] == 0).all()


def test_without_baseline_the_advantage_is_the_reward():
    """In silent groups too, whose reward says something where nothing is taken from it."""
    batch, plain = hand_batch(), settings(baseline="none", normalize_advantages="off")
    assert torch.equal(rl.advantages(batch, plain), batch.reward)
    whole = rl.advantages(batch, dataclasses.replace(plain, normalize_advantages="member"))
    assert whole.tolist() == pytest.approx(whitened(batch, batch.reward.tolist(), with_silent=True), abs=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("silent", [0.0, 0.1, 1.0])
def test_groups_without_variance_are_exactly_zero(algo, silent):
    """Also where the float mean of equal numbers is not that number."""
    for normalize in NORMALIZE:
        batch, cfg = make_batch(60, member=(0, 1), roles=2), settings(algo, normalize_advantages=normalize)
        quiet = torch.isin(batch.group, torch.tensor([1, 4, 11, 15]))
        batch.reward[quiet] = silent
        adv = rl.advantages(batch, cfg)
        assert (adv[quiet] == 0).all() and (adv[~quiet] != 0).all()
        batch.reward[:] = silent
        assert (rl.advantages(batch, cfg) == 0).all()


# --- loss and gradient --------------------------------------------------------------------------------------

def test_a_token_is_weighed_by_training_over_rollout():
    """-A logp w with w = min(p / q, 2) that has no gradient, p = 1/2 in training and q = 1/4, 1/8, 1 in the rollout."""
    half = torch.full((3,), 0.5).log().requires_grad_()
    adv, sampled = torch.tensor([1.0, 1.0, -3.0]), torch.tensor([0.25, 0.125, 1.0]).log()
    loss = rl.token_loss(adv, half, sampled, None, torch.zeros(3), settings())
    assert torch.autograd.grad(loss.sum(), half)[0].tolist() == pytest.approx([-2.0, -2.0, 1.5])


@pytest.mark.parametrize("algo, targets", list(zip(ALGORITHMS, [TARGETS, ("k_proj", "gate_proj", "down_proj")] * 2)))
def test_joint_gradient_equals_the_loop_over_peft_members(tiny, population, tmp_path, algo, targets):
    """By peft and transformers, the loss written out: with a temperature, KL and entropy. Rows of the base are among the members'."""
    peft = pytest.importorskip("peft")
    flags = dict(algo=algo, temperature=0.7, kl_coef=0.2, entropy_coef=0.05)
    adapters, batch, cfg, want = population(tiny, targets=targets), make_batch(24, (0, 1, 2, -1)), settings(**flags), {}
    adv, rollout, frozen = rl.advantages(batch, cfg), batch.rollout, [p.clone() for p in tiny.model.parameters()]
    for p in range(3):
        save_peft(adapters, p, tmp_path / str(p), str(tiny.path))
        reference = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, tmp_path / str(p), is_trainable=True).eval()
        rows = (rollout.member == p).nonzero().squeeze(1).tolist()
        loss = torch.zeros(())
        for i in rows:
            start, end = int(rollout.prompt_len[i]), int(rollout.length[i])
            ids = rollout.ids[i:i + 1, :end]

            def score():
                return (reference(ids).logits[0, start - 1:-1] / cfg.temperature).log_softmax(-1)

            all_logp = score()
            logp = all_logp.gather(1, ids[0, start:, None])[:, 0]
            with torch.no_grad(), reference.disable_adapter():
                plain = score().gather(1, ids[0, start:, None])[:, 0]
            kl = (plain - logp).exp() - (plain - logp) - 1
            H = -(all_logp.exp() * all_logp).sum(-1)
            token = -adv[i] * logp + cfg.kl_coef * kl - cfg.entropy_coef * H
            divisors = dict(grpo=len(rows) * len(token), dr_grpo=len(rows) * LENGTH)
            loss = loss + token.sum() / divisors.get(algo, rollout.n_tokens[rows].sum())
        loss.backward()
        for name, x in reference.named_parameters():
            if x.grad is not None:
                path, which = name.removeprefix("base_model.model.").removesuffix(".default.weight").split(".lora_")
                want.setdefault((path, which), []).append(x.grad)
    want = {name: torch.stack(x) for name, x in want.items()}
    for budget, chunk in ((10 ** 6, rl.CHUNK), (100, 61 * 5)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rl, "CHUNK", chunk)
            got = gradients(tiny, adapters, batch, tokens_per_microbatch=budget, **flags)
        assert set(got) == set(want) and len(got) == 2 * 2 * len(targets) and largest(got, want) < 1e-5
    assert min(x[p].abs().max() for x in want.values() for p in range(3)) > 1e-4, "not in the case"
    assert all(torch.equal(x, y) and y.grad is None for x, y in zip(frozen, tiny.model.parameters()))
    norms = [torch.cat([x[p].flatten() for x in want.values()]).norm().item() for p in range(3)]
    assert learn(tiny, adapters, adam_of(adapters), batch, **flags)["grad_norm"] == pytest.approx(norms, rel=1e-3)


def test_half_precision_weighs_tokens_by_training_over_rollout(tiny, population):
    """A rollout that found every token twice as likely halves the gradient. In float32, nothing."""
    half = dataclasses.replace(tiny, model=load_model(tiny.path, torch.bfloat16))
    for base, weight in (half, 0.5), (tiny, 1):
        adapters, batch = population(base), make_batch(18)
        adv = rl.advantages(batch)
        batch.rollout.logp, _ = rl.accumulate(base, adapters, batch, adv)
        plain = gradients(base, adapters, batch, adv)
        batch.rollout.logp -= torch.tensor(0.5).log()
        other = gradients(base, adapters, batch, adv)
        assert sum(x.norm() for x in other.values()) / sum(x.norm() for x in plain.values()) == pytest.approx(weight, rel=0.02 * (base is half))


# --- lines --------------------------------------------------------------------------------------------------

def sampled(base, adapters) -> Rollout:
    """Five answers to each prompt: two members share a prompt, one member has two."""
    return ask(base, adapters, [[7, 8, 9], [10, 3, 4, 12, 33, 2, 9, 9, 8], [7, 8, 9], [22, 23, 24, 25]], [0, 2, 1, 2], n=5, max_new_tokens=12)


@torch.inference_mode()
@pytest.mark.parametrize("budget", [1, 30, 10 ** 6])
def test_lines_score_as_the_rows_that_were_sampled(any_base, population, budget):
    adapters, seen = population(any_base), []
    rollout = sampled(any_base, adapters)
    for batch in micro_batches(rollout, list(range(20)), budget):
        p = pack(rollout, batch)
        logp, entropy = rl.score(any_base, p, adapters.route(p.member, torch.float32), settings())
        assert (logp - p.logp).abs().max() < 1e-4 and not entropy.any()
        assert torch.equal(rollout.ids[p.row, p.column], p.target)
        seen += zip(p.row.tolist(), p.column.tolist())
        assert (p.mask is None) == (max(map(len, batch)) == 1)
    want = [tuple(place) for place in rollout.mask.nonzero().tolist()]
    assert sorted(seen) == want, "every answer token is trained exactly once"


def test_lines_hold_one_member_and_one_prompt_within_the_budget(tiny, population):
    rollout = sampled(tiny, population(tiny))
    once = 9 + int((rollout.n_tokens[5:10] - 1).sum())
    assert pack(rollout, [list(range(5, 10))]).ids.shape == (1, once), "five answers to a prompt of nine tokens cost it once"
    assert make_lines(rollout, list(range(20)), 10 ** 6) == [list(range(i, i + 5)) for i in (0, 5, 10, 15)]
    assert make_lines(rollout, [19, 3, 18], 10 ** 6) == [[19, 18], [3]]
    for budget in (1, 12, 20, 40, 100):
        lines = make_lines(rollout, list(range(20)), budget)
        assert all(size(rollout, line) <= budget or len(line) == 1 for line in lines)
        batches = micro_batches(rollout, list(range(20)), budget)
        assert sorted(line for batch in batches for line in batch) == sorted(lines)
        assert sorted(i for line in lines for i in line) == list(range(20))
        for batch in batches:
            longest = max(size(rollout, line) for line in batch)
            assert len(batch) * longest <= budget or len(batch) == 1
            assert pack(rollout, batch).ids.shape == (len(batch), longest)


# --- members that break, rest or are reset ------------------------------------------------------------------

@torch.no_grad()
def break_forward(adapters) -> None:
    """Finite factors whose product is not: member 1's scores are not numbers."""
    for layer in ("gate_proj", "up_proj"):
        adapters.B[f"model.layers.0.mlp.{layer}"][1] *= 1e30


@torch.no_grad()
def break_backward(adapters) -> None:
    """B A is 0, so scores and loss are finite; the gradient of A is a product with the largest numbers."""
    adapters.A["model.layers.1.self_attn.v_proj"][1] = 0
    adapters.B["model.layers.1.self_attn.v_proj"][1] = 1e38


@pytest.mark.parametrize("damage", ["reward nan", "reward inf", "forward", "backward"])
@pytest.mark.parametrize("budget", [30, 10 ** 6])
def test_a_broken_member_is_skipped_unnoticed_by_others(tiny, population, damage, budget):
    batch, broken, whole = make_batch(18), population(tiny), population(tiny)
    if damage.startswith("reward"):
        batch.reward[(batch.rollout.member == 1).nonzero()[0]] = float(damage.split()[1])
    adv = rl.advantages(batch)
    if damage == "forward":
        break_forward(broken)
    if damage == "backward":
        break_backward(broken)
        adv[batch.rollout.member == 1] *= 1e6
        logp, _ = rl.accumulate(tiny, broken, batch, adv)
        assert logp.isfinite().all(), "the case: a finite loss with a broken gradient"
    adam, other = adam_of(broken), adam_of(whole)
    before = state_of(broken, adam)
    told = learn(tiny, broken, adam, batch, adv, tokens_per_microbatch=budget)
    assert told["skipped"] == [1] and adam.steps.tolist() == [1, 0, 1] and told["train_rollout_logprob_diff"] < 100
    after = state_of(broken, adam)
    assert all(torch.equal(before[name][1], after[name][1]) for name in before)
    sound = (batch.rollout.member != 1).nonzero().squeeze(1)
    assert learn(tiny, whole, other, pick(batch, sound), adv[sound])["skipped"] == []
    assert largest({k: x for k, x in after.items() if k[0] in "ms"}, state_of(whole, other), [0, 2]) < 1e-6
    assert told["trained_tokens"] == batch.rollout.n_tokens[sound].sum() and all(x.grad is None for x in broken.parameters())


@pytest.mark.parametrize("kl_coef, rows, moves", [(0.0, True, False), (0.1, True, True), (0.1, False, False)])
def test_a_member_with_nothing_to_learn_is_not_moved_by_its_momentum(tiny, population, kl_coef, rows, moves):
    """Without rows no bit of it changes; with advantages of 0 it moves only where the KL has a gradient of its own."""
    adapters, batch = population(tiny), make_batch(18)
    adam, adv = adam_of(adapters), rl.advantages(batch)
    learn(tiny, adapters, adam, batch, adv, kl_coef=kl_coef)
    before, mine = state_of(adapters, adam), batch.rollout.member == 1
    adv = adv.masked_fill(mine, 0.0)
    if not rows:
        others = (~mine).nonzero().squeeze(1)
        batch, adv = pick(batch, others), adv[others]
    told = learn(tiny, adapters, adam, batch, adv, kl_coef=kl_coef)
    for name, x in state_of(adapters, adam).items():
        assert [torch.equal(x[p], before[name][p]) for p in range(3)] == [False, not moves, False]
    assert adam.steps.tolist() == [2, 1 + moves, 2] and told["skipped"] == []


def test_the_gap_to_the_rollout_is_told(tiny, population):
    """Of the rows that were trained: member 1 is silent, and its rows are off by much."""
    adapters, batch = population(tiny), make_batch(18)
    silent = batch.rollout.member == 1
    adv = rl.advantages(batch).masked_fill(silent, 0.0)
    logp, _ = rl.accumulate(tiny, adapters, batch, adv)
    off = torch.randn(logp.shape, generator=gen(3)).masked_fill(silent[:, None], 50.0)
    batch.rollout.logp = logp - off
    told = learn(tiny, adapters, adam_of(adapters), batch, adv)
    own = batch.rollout.mask & ~silent[:, None]
    assert told["train_rollout_logprob_diff"] == pytest.approx(off[own].abs().mean().item(), abs=1e-5) and told["trained_tokens"] == own.sum()


def test_adam_equals_adamw_of_each_member(tiny, population):
    """Random gradients of very different size, members resting in turn: torch's AdamW and clipping. Who is reset starts fresh;
    what is saved of a member is read into another."""
    adapters, g, lr = population(tiny), gen(0), [1e-2, 3e-3, 1e-3]
    adam = adam_of(adapters, *lr)
    copies = [[p[i].detach().clone().requires_grad_() for p in adapters.parameters()] for i in range(3)]
    theirs = [torch.optim.AdamW(copies[i], lr=lr[i], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0) for i in range(3)]
    for step in range(12):
        scale = torch.tensor([1e-4, 1e-2, 1.0])[torch.randperm(3, generator=g)]
        active = torch.tensor([step % 3 != i for i in range(3)])
        for k, p in enumerate(adapters.parameters()):
            p.grad = torch.randn(p.shape, generator=g) * (scale * active)[:, None, None]
            for i in range(3):
                copies[i][k].grad = p.grad[i].clone()
        norm, skipped = adam.step(active)
        for i in active.nonzero().squeeze(1).tolist():
            want = torch.nn.utils.clip_grad_norm_(copies[i], 1.0).item()
            assert norm[i].item() == pytest.approx(want, rel=1e-4) and not skipped[i]
            theirs[i].step()
    for k, p in enumerate(adapters.parameters()):
        assert max((p[i] - copies[i][k]).abs().max() for i in range(3)) < 1e-6
    before, saved = state_of(adapters, adam), {name: x.clone() for name, x in adam.state_dict(1).items()}
    adam.reset(1)
    for name, x in state_of(adapters, adam).items():
        assert torch.equal(x[[0, 2]], before[name][[0, 2]]) and (name[0] == "p" or (x[1] == 0).all() and before[name][1].any())
    adam.load_state_dict(2, saved)
    assert all(torch.equal(x[2], before[f"{name}.{i}"][1]) for name in "mv" for i, x in enumerate(getattr(adam, name)))


# --- slips, and several processes ---------------------------------------------------------------------------

def test_an_advantage_is_one_number_for_each_row(tiny, population):
    """A number or a column would be broadcast. A value of a flag that no function knows is told of, too."""
    batch = make_batch(3, member=(0,))
    adv = rl.advantages(batch)
    for slip in (adv[:, None], adv.mean(), adv[1:], None, [0.0, 1.0, 2.0]):
        with pytest.raises(AssertionError, match=r"rl.advantages gave a \w+ of shape .* for 3 rows: give a Tensor"):
            rl.accumulate(tiny, population(tiny), batch, slip)
    for name, compute in dict(baseline=rl.advantages, normalize_advantages=rl.advantages,
                              token_weight=lambda batch, cfg: rl.token_weight(batch.rollout, cfg)).items():
        with pytest.raises(AssertionError, match=f"^--{name.replace('_', '-')} mine has no case in rl.*: add one"):
            cfg = dataclasses.replace(rl.DEFAULT)
            object.__setattr__(cfg, name, "mine")           # as if config.py had it
            compute(batch, cfg)


FLAGS = dict(kl_coef=0.1, entropy_coef=0.01, tokens_per_microbatch=60)


def first_gradient_and_step(base, factors, batch, ranks=ALONE) -> tuple:
    """The gradient, what an update tells, and the factors after it."""
    adapters = Adapters.on(base.model, 3, 4, 8)
    for p, member in enumerate(factors):
        adapters.set_factors(p, member)
    grads = gradients(base, adapters, batch, ranks=ranks, **FLAGS)
    told = learn(base, adapters, adam_of(adapters), batch, ranks=ranks, **FLAGS)
    return grads, told, {str(i): p.detach() for i, p in enumerate(adapters.parameters())}


def share_of_the_work(ranks: Ranks, directory: Path, base_path: Path) -> None:
    """One of two processes: its share of a healthy and of a broken batch; it writes down what came out."""
    base = Base(load_model(base_path, torch.float32), None, (1, 5), "base", base_path)
    results = []
    for factors, batch in torch.load(directory / "work.pt", weights_only=False):
        results.append(first_gradient_and_step(base, factors, batch, ranks))
    torch.save(results, directory / f"process_{ranks.rank}.pt")


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tiny, population, tmp_path):
    """And both hold the same factors after the step, bit for bit."""
    healthy, broken, batch = population(tiny), population(tiny), make_batch(24)
    break_forward(broken)
    work = [([adapters.factors(p) for p in range(3)], batch) for adapters in (healthy, broken)]
    torch.save(work, tmp_path / "work.pt")
    mp.spawn(one_of_two, (share_of_the_work, tmp_path, tmp_path, tiny.path), nprocs=2)
    mine, theirs = (torch.load(tmp_path / f"process_{rank}.pt", weights_only=False) for rank in range(2))
    for case, (factors, _) in enumerate(work):
        grads, told, after = first_gradient_and_step(tiny, factors, batch)
        sound = [0, 2] if case else [0, 1, 2]
        assert largest(mine[case][0], grads, sound) < 1e-5
        assert mine[case][1]["skipped"] == told["skipped"] == [1] * case
        assert mine[case][1]["trained_tokens"] == told["trained_tokens"]
        assert mine[case][1]["train_rollout_logprob_diff"] == pytest.approx(told["train_rollout_logprob_diff"], rel=1e-3)
        assert all(torch.equal(x[sound], theirs[case][2][name][sound]) for name, x in mine[case][2].items())
