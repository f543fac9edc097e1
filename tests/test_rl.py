"""The joint update equals a loop over members; members without rows, and broken ones, change nothing else."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from batches import make_batch, pick, settings

import rl
from config import ALGORITHMS
from generate import Prompts, SamplingParams, generate
from ranks import Ranks
from lora import TARGETS, Adapters
from model import Base
from pack import pack
from rl import Adam
from weights import load_model, save_peft, weights_hash

ENDS = (1, 5)


def gradients(base, adapters, batch, algo="reinforce++", adv=None, where=None, **flags):
    """The stacked gradients by path, and of accumulate its sums and the members with a non-finite loss."""
    cfg = settings(algo, **flags)
    adv = rl.advantages(batch, cfg) if adv is None else adv
    found, broken = rl.accumulate(rl.Objective(base, adapters, batch, adv, cfg), **(where or {}))
    grads = {}
    for path in adapters.A:
        grads |= {f"{path}.A": adapters.A[path].grad, f"{path}.B": adapters.B[path].grad}
    return grads, found.sums, broken


def learn(base, adapters, adam, batch, algo="reinforce++", adv=None, **flags) -> dict:
    """One update with these flags."""
    cfg = settings(algo, **flags)
    adv = rl.advantages(batch, cfg) if adv is None else adv
    return rl.update(rl.Objective(base, adapters, batch, adv, cfg), adam)


def state_of(adapters, adam) -> dict:
    """Copies of all numbers that an update may change."""
    lists = dict(p=adapters.parameters(), m=adam.m, v=adam.v, steps=[adam.steps])
    return {f"{name}.{i}": x.detach().clone() for name, some in lists.items() for i, x in enumerate(some)}


def largest(a: dict, b: dict, member=slice(None)) -> float:
    return max((a[name][member].double() - b[name][member].double()).abs().max().item() for name in a)


def looped(tiny, adapters, batch, cfg, directory) -> tuple[dict, dict]:
    """The gradients by peft and transformers: member by member, row by row unpadded, the loss written out; the sums of KL and entropy."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    adv, rollout, grads, sums = rl.advantages(batch, cfg), batch.rollout, {}, dict(kl=0.0, entropy=0.0)
    for p in range(adapters.n_members):
        save_peft(adapters, p, directory / str(p), str(tiny.path))
        reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)
        reference = peft.PeftModel.from_pretrained(reference, directory / str(p), is_trainable=True).eval()
        rows = (rollout.member == p).nonzero().squeeze(1).tolist()
        n_tokens = sum(int(rollout.n_tokens[i]) for i in rows)
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
            sums["kl"] += kl.sum().item() if cfg.kl_coef else 0
            sums["entropy"] += H.sum().item() if cfg.entropy_coef else 0
            token = -adv[i] * logp + cfg.kl_coef * kl - cfg.entropy_coef * H
            loss = loss + token.sum() / n_tokens
        loss.backward()
        for name, x in reference.named_parameters():
            if x.grad is not None:
                path = name.removeprefix("base_model.model.").removesuffix(".default.weight")
                grads.setdefault(path.replace(".lora_", "."), []).append(x.grad)
    return {name: torch.stack(x) for name, x in grads.items()}, sums


@pytest.mark.parametrize("targets", [TARGETS, ("k_proj", "gate_proj", "down_proj")])
@pytest.mark.parametrize("flags", [{}, dict(temperature=0.7, kl_coef=0.2, entropy_coef=0.05)])
def test_joint_gradient_equals_the_loop_over_peft_members(tiny, population, tmp_path, flags, targets):
    adapters, batch, frozen = population(tiny, targets=targets), make_batch(18), weights_hash(tiny.model)
    want, told = looped(tiny, adapters, batch, settings(**flags), tmp_path)
    got, sums, _ = gradients(tiny, adapters, batch, **flags)
    assert sums == pytest.approx(sums | told, rel=1e-4)
    assert set(got) == set(want) and len(got) == 2 * 2 * len(targets)
    assert weights_hash(tiny.model) == frozen and all(p.grad is None for p in tiny.model.parameters())
    assert largest(got, want) < 1e-5
    assert min(x[p].abs().max() for x in want.values() for p in range(3)) > 1e-4, "not in the case"


@pytest.mark.parametrize("flags", [{}, dict(kl_coef=0.2, entropy_coef=0.05, temperature=0.8)])
def test_micro_batches_and_chunks_of_logits_do_not_change_the_gradient(tiny, population, monkeypatch, flags):
    adapters, batch = population(tiny), make_batch(30, member=(0, 1, 2, -1))
    want, sums, _ = gradients(tiny, adapters, batch, tokens_per_microbatch=10 ** 6, **flags)
    assert sums["trained_tokens"] == batch.rollout.n_tokens[batch.rollout.member >= 0].sum(), "rows of the base train nobody"
    for budget, chunk in ((1, rl.CHUNK), (40, rl.CHUNK), (100, 61 * 5)):
        monkeypatch.setattr(rl, "CHUNK", chunk)
        got, same, _ = gradients(tiny, adapters, batch, tokens_per_microbatch=budget, **flags)
        assert largest(got, want) < 1e-6 and same == pytest.approx(sums, rel=1e-4)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_step_does_not_depend_on_the_others(tiny, population, algo):
    """Member 1 alone, and in a batch with other members: the same gradient and the same two steps."""
    batch = make_batch(30)
    own = pick(batch, (batch.rollout.member == 1).nonzero().squeeze(1))
    mixed, alone = population(tiny), population(tiny)
    a, b = (gradients(tiny, x, y, algo)[0] for x, y in ((mixed, batch), (alone, own)))
    assert largest(a, b, 1) < 1e-6 and all(x[[0, 2]].abs().max() == 0 for x in b.values())
    states = []
    for adapters, part in ((mixed, batch), (alone, own)):
        adam = Adam(adapters, [1e-4] * 3)
        learn(tiny, adapters, adam, part, algo, epochs=2)
        states.append(state_of(adapters, adam))
    assert largest(*states, 1) < 1e-6


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
@pytest.mark.parametrize("algo, epochs", [("reinforce++", 1), ("gspo", 2)])
@pytest.mark.parametrize("budget", [30, 10 ** 6])
def test_a_broken_member_is_skipped_unnoticed_by_others(tiny, population, damage, algo, epochs, budget):
    batch, broken, whole = make_batch(18), population(tiny), population(tiny)
    if damage.startswith("reward"):
        batch.reward[(batch.rollout.member == 1).nonzero()[0]] = float(damage.split()[1])
    cfg = settings(algo)
    adv = rl.advantages(batch, cfg)
    if damage == "forward":
        break_forward(broken)
    if damage == "backward":
        break_backward(broken)
        adv[batch.rollout.member == 1] *= 1e6
        packed = pack(batch.rollout, [[i] for i in range(18)])
        objective = rl.Objective(tiny, broken, batch, adv, cfg, None)
        finite, _, _ = rl.token_losses(objective, broken.route(packed.member, torch.float32), packed)
        assert finite.isfinite().all(), "the case: a finite loss with a broken gradient"
    adam, other = Adam(broken, [1e-4] * 3), Adam(whole, [1e-4] * 3)
    before = state_of(broken, adam)
    stats = learn(tiny, broken, adam, batch, algo, adv, tokens_per_microbatch=budget, epochs=epochs)
    assert stats["skipped"] == [1] and adam.steps.tolist() == [epochs, 0, epochs]
    after = state_of(broken, adam)
    assert all(torch.equal(before[name][1], after[name][1]) for name in before)
    own = pick(batch, (batch.rollout.member != 1).nonzero().squeeze(1))
    assert learn(tiny, whole, other, own, algo, epochs=epochs)["skipped"] == []
    assert largest(after, state_of(whole, other), [0, 2]) < 1e-6
    assert all(x.grad is None for x in broken.parameters())


def test_a_member_that_breaks_later_keeps_its_first_step(tiny, population, monkeypatch):
    """Its loss is finite in the first of three epochs only: one step of three, and it is told of."""
    adapters, batch, losses = population(tiny), make_batch(18), rl.token_losses
    adam = Adam(adapters, [1e-3] * 3)

    def broken_later(o, route, p, checkpointing):
        loss, logp, sums = losses(o, route, p, checkpointing)
        own = batch.rollout.member[p.row] == 1
        return loss if o.old is None else loss.masked_fill(own, float("nan")), logp, sums

    monkeypatch.setattr(rl, "token_losses", broken_later)
    assert learn(tiny, adapters, adam, batch, epochs=3)["skipped"] == [1]
    assert adam.steps.tolist() == [3, 1, 3]


def test_adam_equals_adamw_of_each_member(tiny, population):
    """Random gradients of very different size, members resting in turn: torch's AdamW and clipping. Who is reset starts fresh."""
    adapters, gen, lr = population(tiny), torch.Generator().manual_seed(0), [1e-2, 3e-3, 1e-3]
    adam = Adam(adapters, lr)
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
            want = torch.nn.utils.clip_grad_norm_(copies[i], 1.0).item()
            assert norm[i].item() == pytest.approx(want, rel=1e-4) and not skipped[i]
            theirs[i].step()
    for k, p in enumerate(adapters.parameters()):
        assert max((p[i] - copies[i][k]).abs().max() for i in range(3)) < 1e-6
    before = state_of(adapters, adam)
    adam.reset(1)
    for name, x in state_of(adapters, adam).items():
        assert torch.equal(x[[0, 2]], before[name][[0, 2]]) and (name[0] == "p" or (x[1] == 0).all() and before[name][1].any())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_two_armed_bandit(tiny, algo):
    """Generate, pay, update: member 0 is paid for a first token below 31, member 1 for others: both learn."""
    adapters = Adapters.on(tiny.model, 2, rank=4, alpha=8)
    for p in range(2):
        adapters.init_member(p, torch.Generator().manual_seed(p))
    adam, n, paid = Adam(adapters, [1e-2] * 2), 32, []
    ones = torch.ones(2 * n, dtype=torch.int64)
    for step in range(40):
        prompts = Prompts([[7, 8, 9]] * 2, [0, 1], [(3, step, i) for i in range(2 * n)])
        rollout = generate(tiny, adapters, prompts, SamplingParams(n=n, max_new_tokens=2))
        low = rollout.ids[torch.arange(2 * n), rollout.prompt_len] < 31
        reward = (low == (rollout.member == 0)).float()
        learn(tiny, adapters, adam, rl.Batch(rollout, reward, rollout.member, ones, 0 * ones), algo, max_new_tokens=2)
        paid.append(reward.view(2, n).mean(1))
    first, last = torch.stack(paid[:5]).mean(0), torch.stack(paid[-5:]).mean(0)
    assert first.max() < 0.7 and last.min() > 0.9, (first, last)


FLAGS = dict(algo="gspo", kl_coef=0.1, entropy_coef=0.01, tokens_per_microbatch=60, epochs=2)


def first_gradient_and_two_steps(base, factors, batch, rank=0, world=1) -> tuple:
    """What one process finds out and tells, and the factors after two epochs."""
    adapters = Adapters.on(base.model, 3, 4, 8)
    for p, member in enumerate(factors):
        adapters.set_factors(p, member)
    where = dict(ranks=Ranks(rank, world, torch.device("cpu")))
    grads, sums, broken = gradients(base, adapters, batch, where=where, **FLAGS)
    cfg, adam = settings(**FLAGS), Adam(adapters, [1e-3] * 3)
    told = rl.update(rl.Objective(base, adapters, batch, rl.advantages(batch, cfg), cfg), adam, **where)
    return grads, sums, broken, told, {str(i): p.detach() for i, p in enumerate(adapters.parameters())}


def share_of_the_work(rank: int, directory: str, base_path) -> None:
    """One of two processes: its share of a healthy and of a broken batch; it writes down what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=2)
    base = Base(load_model(base_path, torch.float32), None, ENDS, "base", base_path)
    results, losses = [], rl.token_losses

    def limited(o, route, p, *rest):
        """Of the second process in the last case: its share does not fit into memory."""
        if p.ids.numel() > 20 and rank == 1 and len(results) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses(o, route, p, *rest)

    rl.token_losses = limited
    for factors, batch in torch.load(f"{directory}/work.pt", weights_only=False):
        results.append(first_gradient_and_two_steps(base, factors, batch, rank, 2))
    torch.save(results, f"{directory}/process_{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tiny, population, tmp_path):
    """And the same factors after two epochs: each process keeps the log-probabilities of its own rows."""
    healthy, broken, batch = population(tiny), population(tiny), make_batch(24)
    break_forward(broken)
    work = [([adapters.factors(p) for p in range(3)], batch) for adapters in (healthy, broken, healthy)]
    torch.save(work, tmp_path / "work.pt")
    mp.spawn(share_of_the_work, (str(tmp_path), tiny.path), nprocs=2)
    mine, theirs = (torch.load(tmp_path / f"process_{rank}.pt", weights_only=False) for rank in range(2))
    for case, (factors, _) in enumerate(work):
        grads, sums, bad, told, after = first_gradient_and_two_steps(tiny, factors, batch)
        assert largest(mine[case][0], grads, ~bad) < 1e-5 and mine[case][1] == pytest.approx(sums, rel=1e-4)
        assert torch.equal(mine[case][2], bad) and mine[case][3]["skipped"] == told["skipped"]
        assert mine[case][3]["trained_tokens"] == told["trained_tokens"]
        budgets = [results[case][3]["tokens_per_microbatch"] for results in (mine, theirs)]
        assert budgets[0] == budgets[1] and (budgets[0] < 60) == (case == 2), "split by one, agreed on by both"
        for name in ("approx_kl", "train_rollout_logprob_p99", "train_rollout_logprob_diff"):
            assert mine[case][3][name] == pytest.approx(told[name], rel=1e-3)
        assert largest(mine[case][4], after, ~bad) < 1e-5
        for index in (0, 4):
            assert all(torch.equal(x, theirs[case][index][name]) for name, x in mine[case][index].items())
        assert bad.tolist() == [False, case == 1, False]
