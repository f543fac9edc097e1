"""The joint update equals a loop over members; members without rows, silent groups and broken members change nothing else."""
from dataclasses import replace
from math import ceil

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import config
import rl
from generate import Rollout, generate
from infra.weights import load_model, save_peft, weights_hash
from lora import Adapters
from model import Base
from rl import pack

ENDS = (1, 5)


def make_batch(n_rows: int = 12, member=(0, 1, 2), seed: int = 0, answer=(1, 9), roles: int = 1) -> rl.Batch:
    """Random rows in groups of three per prompt, the groups dealt to the members in turn; rewards without silent groups."""
    gen = torch.Generator().manual_seed(seed)
    group = torch.arange(n_rows) // 3
    prompt_len = torch.randint(2, 7, (ceil(n_rows / 3),), generator=gen)[group]
    length = prompt_len + torch.randint(*answer, (n_rows,), generator=gen)
    ids, t = torch.randint(0, 61, (n_rows, int(length.max())), generator=gen), torch.arange(int(length.max()))
    ids = torch.where(t < prompt_len[:, None], ids[group * 3], ids).masked_fill(t >= length[:, None], 0)
    rollout = Rollout(ids, prompt_len, length, torch.zeros(ids.shape), torch.tensor(member)[group % len(member)])
    reward = torch.rand(n_rows, generator=gen)
    return rl.Batch(rollout, reward, group, group % roles, torch.randint(0, 3, (n_rows,), generator=gen))


def pick(batch: rl.Batch, rows: torch.Tensor) -> rl.Batch:
    """The given rows of a batch."""
    return rl.Batch(batch.rollout.select(rows), batch.reward[rows], batch.group[rows], batch.role[rows], batch.kind[rows])


def gradients(base, adapters, batch, method="reinforce++", adv=None, **loss):
    """The stacked gradients by path, and what accumulate returns."""
    adv = rl.advantages(batch, method) if adv is None else adv
    out = rl.accumulate(base, adapters, batch, adv, rl.token_weight(batch.rollout, method, 16).float(), **loss)
    return {f"{path}.{x}": factor[path].grad for path in adapters.A for x, factor in (("A", adapters.A), ("B", adapters.B))}, out


def state_of(adapters, adam) -> dict:
    """Copies of all numbers that an update may change."""
    numbers = {f"p.{i}": p for i, p in enumerate(adapters.parameters())} | adam.state_dict()
    return {name: x.detach().clone() for name, x in numbers.items()}


def largest(a: dict, b: dict, member=slice(None)) -> float:
    return max((a[name][member].double() - b[name][member].double()).abs().max().item() for name in a)


# -- advantages ------------------------------------------------------------------------------------------------------

def hand_batch() -> rl.Batch:
    """Member 0 plays both roles, member 1 is a student; group 1 is silent."""
    reward = torch.tensor([1.0, 0.0, 0.0, 0.7, 0.7, 0.7, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4])
    n_tokens = torch.tensor([3, 1, 2, 9, 1, 1, 4, 2, 2, 5, 1, 2, 3, 1])
    member, role = torch.tensor([0] * 9 + [1] * 2 + [0] * 3), torch.tensor([1] * 11 + [0] * 3)
    rollout = Rollout(torch.zeros(14, 12, dtype=torch.int64), torch.full((14,), 2), 2 + n_tokens, torch.zeros(14, 12), member)
    return rl.Batch(rollout, reward, group, role, torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [0] * 3))


def by_hand(batch: rl.Batch, method: str) -> list[float]:
    out = []
    for i, g in enumerate(batch.group.tolist()):
        rewards = [r for r, h in zip(batch.reward.double().tolist(), batch.group.tolist()) if h == g]
        r, n, mean = batch.reward.double()[i].item(), len(rewards), sum(rewards) / len(rewards)
        std = (sum((x - mean) ** 2 for x in rewards) / n) ** 0.5
        out.append({"reinforce++": r - mean, "dr_grpo": r - mean, "grpo": (r - mean) / (std + 1e-6),
                    "rloo": r - (sum(rewards) - r) / (n - 1)}[method])
    return out


@pytest.mark.parametrize("method", config.ADVANTAGES)
def test_baseline_by_hand(method):
    batch = hand_batch()
    assert rl.advantages(batch, method, "off").tolist() == pytest.approx(by_hand(batch, method), abs=1e-6)


@pytest.mark.parametrize("method", config.ADVANTAGES)
@pytest.mark.parametrize("normalize_advantages", ["member", "kind"])
def test_whitening_by_hand(method, normalize_advantages):
    """Every token of a row counts once: mean 0 and standard deviation 1 over the tokens of one member in one role (and kind)."""
    batch, d = hand_batch(), by_hand(hand_batch(), method)
    adv = rl.advantages(batch, method, normalize_advantages).tolist()
    key = list(zip(batch.rollout.member.tolist(), batch.role.tolist(), batch.kind.tolist() if normalize_advantages == "kind" else [0] * 14))
    live = [g != 1 for g in batch.group.tolist()]
    for k in set(key):
        rows = [i for i in range(14) if key[i] == k and live[i]]
        tokens = torch.tensor([d[i] for i in rows for _ in range(batch.rollout.n_tokens[i])], dtype=torch.float64)
        for i in rows:
            assert adv[i] == pytest.approx(((d[i] - tokens.mean()) / (tokens.std(correction=0) + 1e-6)).item(), abs=1e-5)
        after = torch.tensor([adv[i] for i in rows for _ in range(batch.rollout.n_tokens[i])], dtype=torch.float64)
        assert abs(after.mean()) < 1e-5 and abs(after.std(correction=0) - 1) < 1e-4
    assert all(a == 0 for a, alive in zip(adv, live) if not alive)


def test_auto_whitens_for_reinforce_alone():
    batch = hand_batch()
    assert torch.equal(rl.advantages(batch), rl.advantages(batch, "reinforce++", "member"))
    for method in ("grpo", "dr_grpo", "rloo"):
        assert torch.equal(rl.advantages(batch, method), rl.advantages(batch, method, "off"))


@pytest.mark.parametrize("method", config.ADVANTAGES)
@pytest.mark.parametrize("normalize_advantages", config.NORMALIZE)
@pytest.mark.parametrize("silent", [0.0, 0.1, 1.0])
def test_groups_without_variance_are_exactly_zero(method, normalize_advantages, silent):
    """Also where the float mean of equal numbers is not that number; and the others do not notice that they were there."""
    batch = make_batch(60, member=(0, 1), roles=2)
    quiet = torch.isin(batch.group, torch.tensor([1, 4, 11, 15]))
    batch.reward[quiet] = silent
    adv = rl.advantages(batch, method, normalize_advantages)
    assert (adv[quiet] == 0).all() and (adv[~quiet] != 0).all()
    without = rl.advantages(pick(batch, (~quiet).nonzero().squeeze(1)), method, normalize_advantages)
    assert (adv[~quiet] - without).abs().max() < 1e-6
    batch.reward[:] = silent
    assert (rl.advantages(batch, method, normalize_advantages) == 0).all()


def test_roles_and_members_are_never_pooled():
    """Scaling one member's rewards in one role, or shifting them, changes nothing anywhere."""
    batch = make_batch(36, member=(0, 1), roles=2)
    batch.role = batch.group // 2 % 2
    scaled = batch.reward * torch.where((batch.rollout.member == 1) & (batch.role == 0), 100.0, 1.0) + 3
    assert len({(m, r) for m, r in zip(batch.rollout.member.tolist(), batch.role.tolist())}) == 4
    assert (rl.advantages(batch) - rl.advantages(replace(batch, reward=scaled))).abs().max() < 1e-4


@pytest.mark.parametrize("method", config.ADVANTAGES)
def test_token_weights_sum_to_the_stated_mean(method):
    rollout = make_batch(30).rollout
    weight = rl.token_weight(rollout, method, max_new_tokens=16)
    for p in range(3):
        own = rollout.member == p
        total = (weight * rollout.n_tokens)[own].sum().item()
        want = rollout.n_tokens[own].sum().item() / (16 * own.sum().item()) if method == "dr_grpo" else 1.0
        assert total == pytest.approx(want, rel=1e-5)
        if method == "grpo":                               # every row counts the same, however long
            assert (weight * rollout.n_tokens)[own].tolist() == pytest.approx([1 / own.sum().item()] * int(own.sum()))
        else:
            assert len(weight[own].unique()) == 1, "every token counts the same"


# -- gradients -------------------------------------------------------------------------------------------------------

def looped(tiny, adapters, batch, method, directory, temperature=1.0, kl=0.0, entropy=0.0) -> dict:
    """The gradients by peft and transformers: member by member, row by row without padding, the loss written out."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adv, rollout, grads = rl.advantages(batch, method), batch.rollout, {}
    for p in range(adapters.n_members):
        save_peft(adapters, p, directory / str(p), str(tiny.path))
        reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, directory / str(p), is_trainable=True).eval()
        rows = (rollout.member == p).nonzero().squeeze(1).tolist()
        n_tokens, loss = sum(int(rollout.n_tokens[i]) for i in rows), torch.zeros(())
        for i in rows:
            start, end = int(rollout.prompt_len[i]), int(rollout.length[i])
            ids = rollout.ids[i:i + 1, :end]
            score = lambda: (reference(ids).logits[0, start - 1:-1] / temperature).log_softmax(-1)
            all_logp = score()
            logp = all_logp.gather(1, ids[0, start:, None])[:, 0]
            with torch.no_grad(), reference.disable_adapter():
                plain = score().gather(1, ids[0, start:, None])[:, 0]
            H = -(all_logp.exp() * all_logp).sum(-1)
            token = -adv[i] * logp + kl * ((plain - logp).exp() - (plain - logp) - 1) - entropy * H
            mean = {"grpo": token.mean() / len(rows), "dr_grpo": token.sum() / 16 / len(rows)}
            loss = loss + mean.get(method, token.sum() / n_tokens)
        loss.backward()
        for name, x in reference.named_parameters():
            if x.grad is not None:
                path, factor = name.removeprefix("base_model.model.").removesuffix(".default.weight").split(".lora_")
                grads.setdefault(f"{path}.{factor}", []).append(x.grad)
    return {name: torch.stack(x) for name, x in grads.items()}


@pytest.mark.parametrize("method, loss", [
    ("reinforce++", {}), ("grpo", {}), ("dr_grpo", {}), ("rloo", {}),
    ("reinforce++", dict(temperature=0.7, kl=0.2, entropy=0.05))])
def test_joint_gradient_equals_the_loop_over_peft_members(tiny, population, tmp_path, method, loss):
    adapters, batch = population(tiny), make_batch(18)
    want = looped(tiny, adapters, batch, method, tmp_path, **loss)
    got, _ = gradients(tiny, adapters, batch, method, **loss)
    assert set(got) == set(want) and len(got) == 2 * 14
    assert largest(got, want) < 1e-5
    assert min(x[p].abs().max() for x in want.values() for p in range(3)) > 1e-4, "every factor of every member is in the case"


@pytest.mark.parametrize("loss", [{}, dict(kl=0.2, entropy=0.05)])
def test_micro_batches_do_not_change_the_gradient(tiny, population, loss):
    adapters, batch = population(tiny), make_batch(30)
    want, (stats, _) = gradients(tiny, adapters, batch, tokens_per_microbatch=10 ** 6, **loss)
    for budget in (1, 40, 100):
        got, (same, _) = gradients(tiny, adapters, batch, tokens_per_microbatch=budget, **loss)
        assert largest(got, want) < 1e-6 and same == pytest.approx(stats, rel=1e-4)


@pytest.mark.parametrize("entropy", [False, True])
def test_chunked_logp_equals_unchunked(tiny, population, monkeypatch, entropy):
    gen = torch.Generator().manual_seed(0)
    hidden, target = torch.randn(17, 32, generator=gen), torch.randint(0, 61, (17,), generator=gen)
    weight = torch.randn(2, 17, generator=gen)

    def scored():
        h = hidden.clone().requires_grad_()
        logp, H = rl.token_logp(tiny, h, target, 0.8, entropy)
        assert (H is None) == (not entropy)
        ((weight[0] * logp).sum() + ((weight[1] * H).sum() if entropy else 0)).backward()
        return logp, H if entropy else logp, h.grad

    want = scored()
    whole, _ = gradients(tiny, population(tiny), make_batch(), entropy=0.1)
    monkeypatch.setattr(rl, "CHUNK", 61 * 5)
    assert all((x - y).abs().max() < 1e-5 for x, y in zip(scored(), want))
    pieces, _ = gradients(tiny, population(tiny), make_batch(), entropy=0.1)
    assert largest(pieces, whole) < 1e-6


def test_the_end_token_is_trained(tiny, population):
    """A row that is nothing but its end token: it counts, its gradient is not zero, and a step makes it likelier."""
    adapters, batch = population(tiny, 2), make_batch(6, member=(0, 1), answer=(1, 2))
    rollout = batch.rollout
    rollout.ids[torch.arange(6), rollout.prompt_len] = torch.tensor([1, 5, 1, 5, 1, 5])
    assert (rollout.n_tokens == 1).all()

    @torch.inference_mode()
    def end_logp():
        scores = tiny.model.logits(tiny.model(rollout.ids, lora=adapters.route(rollout.member, torch.float32)))
        return scores[torch.arange(6), rollout.prompt_len - 1].log_softmax(-1).gather(1, rollout.ids[rollout.mask][:, None])

    before, adam = end_logp(), rl.Adam(adapters, [1e-2] * 2)
    for _ in range(3):
        stats = rl.update(tiny, adapters, adam, batch, torch.ones(6))
        assert stats["trained_tokens"] == 6 and min(stats["grad_norm"]) > 0
    assert (end_logp() > before + 0.05).all(), (before, end_logp())


def test_the_end_token_of_a_rollout_is_counted(tiny, population):
    """Masks come from lengths: end tokens and zeros inside an answer are trained, the same ids in prompt and padding not."""
    adapters = population(tiny, 2)
    rollout = generate(tiny, adapters, [[1, 7, 0], [5, 9]], [0, 1], [(0, i) for i in range(12)], n=6, max_new_tokens=30)
    ended = sum(rollout.ids[i, int(rollout.length[i]) - 1].item() in ENDS for i in range(12))
    assert ended > 3, "the case needs rows that end"
    batch = rl.Batch(rollout, torch.rand(12), torch.arange(12) // 6, torch.zeros(12).long(), torch.zeros(12).long())
    stats = rl.update(tiny, adapters, rl.Adam(adapters, [0.0] * 2), batch, torch.ones(12))
    assert stats["trained_tokens"] == rollout.n_tokens.sum() == sum(len(a) for a in rollout.answers(tiny.eos_ids)) + ended
    longer = replace(rollout, length=(rollout.length - 1).maximum(rollout.prompt_len + 1))
    without, _ = gradients(tiny, adapters, replace(batch, rollout=longer), adv=torch.ones(12))
    assert largest(gradients(tiny, adapters, batch, adv=torch.ones(12))[0], without) > 1e-4


def test_kl_and_entropy_are_logged_per_token(tiny, population):
    adapters, batch = Adapters.on(tiny.model, 3, 4, 8), make_batch()
    stats = rl.update(tiny, adapters, rl.Adam(adapters, [0.0] * 3), batch, rl.advantages(batch), kl=0.1, entropy=0.1)
    assert stats["kl"] == pytest.approx(0, abs=1e-6) and 0 < stats["entropy"] < torch.tensor(61.0).log()
    adapters = population(tiny)
    stats = rl.update(tiny, adapters, rl.Adam(adapters, [0.0] * 3), batch, rl.advantages(batch), kl=0.1)
    assert stats["kl"] > 1e-3 and stats["entropy"] == 0


# -- who is touched --------------------------------------------------------------------------------------------------

def test_a_member_without_rows_is_bit_identical(tiny, population):
    """Factors, both moments and the step counter, also when it has momentum that would carry it on."""
    adapters = population(tiny)
    adam = rl.Adam(adapters, [1e-2] * 3)
    rl.update(tiny, adapters, adam, make_batch(), rl.advantages(make_batch()))
    before, base_before = state_of(adapters, adam), weights_hash(tiny.model)
    batch = make_batch(member=(0, 2), seed=1)
    for _ in range(3):
        rl.update(tiny, adapters, adam, batch, rl.advantages(batch), kl=0.1)
    after = state_of(adapters, adam)
    assert all(torch.equal(before[name][1], after[name][1]) for name in before)
    assert all(not torch.equal(before[name][p], after[name][p]) for name in before for p in (0, 2))
    assert adam.steps.tolist() == [4, 1, 4]
    assert weights_hash(tiny.model) == base_before, "the base is frozen"


@pytest.mark.parametrize("method", config.ADVANTAGES)
def test_a_step_does_not_depend_on_the_others(tiny, population, method):
    """Member 1 alone, and in a batch with other members: the same gradient and the same step."""
    batch = make_batch(30)
    own = pick(batch, (batch.rollout.member == 1).nonzero().squeeze(1))
    mixed, alone = population(tiny), population(tiny)
    a, b = (gradients(tiny, x, y, method)[0] for x, y in ((mixed, batch), (alone, own)))
    assert largest(a, b, 1) < 1e-6 and all(x[[0, 2]].abs().max() == 0 for x in b.values())
    states = []
    for adapters, part in ((mixed, batch), (alone, own)):
        adam = rl.Adam(adapters, [1e-4] * 3)
        rl.update(tiny, adapters, adam, part, rl.advantages(part, method), method=method, max_new_tokens=16)
        states.append(state_of(adapters, adam))
    assert largest(*states, 1) < 1e-6


def test_base_rows_train_nobody(tiny, population):
    batch = make_batch(12, member=(0, -1, 1))
    own = pick(batch, (batch.rollout.member >= 0).nonzero().squeeze(1))
    adapters = population(tiny)
    a, (stats, _) = gradients(tiny, adapters, batch, kl=0.1)
    assert largest(a, gradients(tiny, adapters, own, kl=0.1)[0]) < 1e-6 and stats["trained_tokens"] == own.rollout.n_tokens.sum()
    all_base = replace(batch, rollout=replace(batch.rollout, member=torch.full((12,), -1)))
    assert all(x.abs().max() == 0 for x in gradients(tiny, adapters, all_base)[0].values())


@torch.no_grad()
def break_forward(adapters) -> None:
    """Finite factors whose product is not: member 1's scores are not numbers."""
    for layer in ("gate_proj", "up_proj"):
        adapters.B[f"model.layers.0.mlp.{layer}"][1] *= 1e30


@torch.no_grad()
def break_backward(adapters) -> None:
    """B A is 0, so scores and loss are finite; the gradient of A is a product with the largest numbers there are."""
    adapters.A["model.layers.1.self_attn.v_proj"][1] = 0
    adapters.B["model.layers.1.self_attn.v_proj"][1] = 1e38


@pytest.mark.parametrize("damage", ["reward nan", "reward inf", "forward", "backward"])
@pytest.mark.parametrize("method", ["reinforce++", "grpo"])
@pytest.mark.parametrize("budget", [30, 10 ** 6])
def test_a_broken_member_is_skipped_and_the_others_do_not_notice(tiny, population, damage, method, budget):
    batch, broken, whole = make_batch(18), population(tiny), population(tiny)
    if damage.startswith("reward"):
        batch.reward[(batch.rollout.member == 1).nonzero()[0]] = float(damage.split()[1])
    adv = rl.advantages(batch, method)
    if damage == "forward":
        break_forward(broken)
    if damage == "backward":
        break_backward(broken)
        adv[batch.rollout.member == 1] *= 1e6
        packed = pack(batch.rollout, [[i] for i in range(18)])
        finite, _ = rl.token_losses(tiny, broken.route(packed.member, torch.float32), packed, adv, 1.0, 0.0, 0.0, 0.2)
        assert finite.isfinite().all(), "the case: a finite loss with a broken gradient"
    adam, other = rl.Adam(broken, [1e-4] * 3), rl.Adam(whole, [1e-4] * 3)
    before = state_of(broken, adam)
    stats = rl.update(tiny, broken, adam, batch, adv, method=method, max_new_tokens=16, tokens_per_microbatch=budget)
    assert stats["skipped"] == [1] and adam.steps.tolist() == [1, 0, 1]
    after = state_of(broken, adam)
    assert all(torch.equal(before[name][1], after[name][1]) for name in before)
    own = pick(batch, (batch.rollout.member != 1).nonzero().squeeze(1))
    assert rl.update(tiny, whole, other, own, rl.advantages(own, method), method=method, max_new_tokens=16)["skipped"] == []
    assert largest(after, state_of(whole, other), [0, 2]) < 1e-6
    assert all(x.grad is None for x in broken.parameters())


# -- the optimiser ---------------------------------------------------------------------------------------------------

def test_adam_equals_adamw_of_each_member(tiny, population):
    """Random gradients of very different size, members resting in turn, against torch's AdamW and its norm clipping."""
    adapters, gen, lr = population(tiny), torch.Generator().manual_seed(0), [1e-2, 3e-3, 1e-3]
    adam = rl.Adam(adapters, lr, clip=1.0)
    copies = [[p[i].detach().clone().requires_grad_() for p in adapters.parameters()] for i in range(3)]
    theirs = [torch.optim.AdamW(copies[i], lr=lr[i], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0) for i in range(3)]
    for step in range(12):
        size = torch.tensor([1e-4, 1e-2, 1.0])[torch.randperm(3, generator=gen)]
        active = torch.tensor([step % 3 != i for i in range(3)])
        for k, p in enumerate(adapters.parameters()):
            p.grad = torch.randn(p.shape, generator=gen) * (size * active)[:, None, None]
            for i in range(3):
                copies[i][k].grad = p.grad[i].clone()
        norm, skipped = adam.step(active)
        for i in active.nonzero().squeeze(1).tolist():
            assert torch.nn.utils.clip_grad_norm_(copies[i], 1.0).item() == pytest.approx(norm[i].item(), rel=1e-4)
            theirs[i].step()
        assert not skipped.any()
    assert adam.steps.tolist() == [8, 8, 8]
    assert max((p[i] - copies[i][k]).abs().max().item() for i in range(3) for k, p in enumerate(adapters.parameters())) < 1e-6


def test_adam_state_travels_and_resets(tiny, population):
    adapters = population(tiny)
    adam, other = rl.Adam(adapters, [1e-3] * 3), rl.Adam(population(tiny), [1e-3] * 3)
    rl.update(tiny, adapters, adam, make_batch(), rl.advantages(make_batch()))
    other.load_state_dict({name: x.clone() for name, x in adam.state_dict().items()})
    assert all(torch.equal(x, y) for x, y in zip(adam.state_dict().values(), other.state_dict().values()))
    other.reset(1)
    for name, x in other.state_dict().items():
        assert (x[1] == 0).all() and torch.equal(x[[0, 2]], adam.state_dict()[name][[0, 2]])


# -- learning --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("method", config.ADVANTAGES)
def test_two_armed_bandit(tiny, method):
    """Generate, pay, update: member 0 is paid for a first token below 31, member 1 for one above; both must learn it."""
    adapters = Adapters.on(tiny.model, 2, rank=4, alpha=8)
    for p in range(2):
        adapters.init_member(p, torch.Generator().manual_seed(p))
    adam, n, paid = rl.Adam(adapters, [1e-2] * 2), 32, []
    for step in range(40):
        keys = [(3, step, i) for i in range(2 * n)]
        rollout = generate(tiny, adapters, [[7, 8, 9]] * 2, [0, 1], keys, n=n, max_new_tokens=2)
        low = rollout.ids[torch.arange(2 * n), rollout.prompt_len] < 31
        reward = (low == (rollout.member == 0)).float()
        batch = rl.Batch(rollout, reward, rollout.member, torch.ones(2 * n).long(), torch.zeros(2 * n).long())
        rl.update(tiny, adapters, adam, batch, rl.advantages(batch, method), method=method, max_new_tokens=2)
        paid.append(reward.view(2, n).mean(1))
    first, last = torch.stack(paid[:5]).mean(0), torch.stack(paid[-5:]).mean(0)
    assert first.max() < 0.7 and last.min() > 0.9, (first, last)


# -- processes -------------------------------------------------------------------------------------------------------

def share_of_the_work(rank: int, directory: str, base_path) -> None:
    """One of two processes: its share of a healthy and of a broken batch; process 0 writes down what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=2)
    base = Base(load_model(base_path, torch.float32), None, ENDS, "base", base_path)
    results = []
    for factors, batch in torch.load(f"{directory}/work.pt", weights_only=False):
        adapters = Adapters.on(base.model, 3, 4, 8)
        for p, member in enumerate(factors):
            adapters.set_factors(p, member)
        grads, (stats, bad) = gradients(base, adapters, batch, kl=0.1, entropy=0.01, tokens_per_microbatch=60, rank=rank, world=2)
        results.append((grads, stats, bad))
    torch.save(results, f"{directory}/process_{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_gradient_of_one(tiny, population, tmp_path):
    healthy, broken, batch = population(tiny), population(tiny), make_batch(24)
    break_forward(broken)
    torch.save([([x.factors(p) for p in range(3)], batch) for x in (healthy, broken)], tmp_path / "work.pt")
    mp.spawn(share_of_the_work, (str(tmp_path), tiny.path), nprocs=2)
    first, second = (torch.load(tmp_path / f"process_{rank}.pt", weights_only=False) for rank in range(2))
    for adapters, mine, theirs in zip((healthy, broken), first, second):
        want, (stats, bad) = gradients(tiny, adapters, batch, kl=0.1, entropy=0.01)
        assert largest(mine[0], want, ~bad) < 1e-5 and all(torch.equal(mine[0][name], theirs[0][name]) for name in want)
        assert mine[1] == pytest.approx(stats, rel=1e-4) and torch.equal(mine[2], bad) and torch.equal(theirs[2], bad)
    assert bad.tolist() == [False, True, False]
