"""Grades exercise 2: a case on paper, the gradient by its formula, what may count, and the loop's own."""
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import pytest
import torch


@dataclass
class Rows:
    """What the loss takes, in its order."""
    logits: torch.Tensor
    ids: torch.Tensor
    prompt_len: torch.Tensor
    length: torch.Tensor
    member: torch.Tensor
    advantage: torch.Tensor

    def select(self, rows):
        return Rows(*(value[rows] for value in vars(self).values()))


def value(work, rows):
    return float(work.loss(*vars(rows).values()))


def case(V=5, T=9):
    """Six rows of three members; answers of one token, of many, and one that fills its row."""
    gen = torch.Generator().manual_seed(0)
    prompt_len, length = torch.tensor([3, 1, 2, 4, 3, 1]), torch.tensor([7, 2, 9, 6, 4, 8])
    ids = torch.randint(0, V, (6, T), generator=gen)
    ids[torch.arange(T) >= length[:, None]] = 0
    logits = torch.randn(6, T, V, generator=gen, dtype=torch.float64)
    advantage = torch.randn(6, generator=gen, dtype=torch.float64)
    return Rows(logits, ids, prompt_len, length, torch.tensor([0, 2, 0, 1, 2, 0]), advantage)


def test_on_paper(work):
    """Member 0: tokens of 3/4 and 1/2, advantage 2: -2 ln(3/8) / 2. Member 1: 1/4, advantage -1: ln(1/4)."""
    p = torch.tensor([[[1 / 4, 3 / 4], [1 / 2, 1 / 2], [0.9, 0.1]], [[1 / 4, 3 / 4], [0.9, 0.1], [0.9, 0.1]]])
    ids, prompt_len, length = torch.tensor([[0, 1, 0], [1, 0, 0]]), torch.tensor([1, 1]), torch.tensor([3, 2])
    rows = Rows(p.log(), ids, prompt_len, length, torch.tensor([0, 1]), torch.tensor([2.0, -1.0]))
    assert value(work, rows) == pytest.approx(log(2 / 3))


def test_the_gradient_by_its_formula(work):
    """advantage / n (softmax - 1 at the token) one place before each answer token; 0 elsewhere."""
    rows, want = case(), torch.zeros(6, 9, 5, dtype=torch.float64)
    n = rows.length - rows.prompt_len
    for i in range(6):
        share = rows.advantage[i] / n[rows.member == rows.member[i]].sum()
        for t in range(rows.prompt_len[i], rows.length[i]):
            want[i, t - 1] = share * rows.logits[i, t - 1].softmax(0)
            want[i, t - 1, rows.ids[i, t]] -= share
    rows.logits.requires_grad_()
    work.loss(*vars(rows).values()).backward()
    assert torch.allclose(rows.logits.grad, want)


def test_the_prompt_is_not_trained(work):
    rows, before = case(), value(work, case())
    in_prompt = torch.arange(9) < rows.prompt_len[:, None]
    rows.ids[in_prompt] = (rows.ids[in_prompt] + 1) % 5
    assert value(work, rows) == pytest.approx(before)


def test_the_end_token_is(work):
    """The last token of each answer, also where it is the only one."""
    before = value(work, case())
    for i in range(6):
        rows = case()
        last = rows.length[i] - 1
        rows.ids[i, last] = (rows.ids[i, last] + 1) % 5
        assert abs(value(work, rows) - before) > 1e-3


def test_padding_is_not(work):
    """Neither what stands there nor what it is given to score, nor how much of it there is."""
    rows, before = case(), value(work, case())
    behind = torch.arange(9) >= rows.length[:, None]
    rows.ids[behind] = 3
    rows.logits[behind] *= 50
    assert value(work, rows) == pytest.approx(before)
    wide = replace(rows, ids=rows.ids.repeat(1, 2), logits=rows.logits.repeat(1, 2, 1))
    assert value(work, wide) == pytest.approx(before)


def test_all_tokens_of_a_member_count_the_same(work):
    """Member 0 has answers of 4, 7 and 7 tokens. The same rows twice: the same mean."""
    rows = case()
    assert value(work, rows.select([0, 2, 5] * 2)) == pytest.approx(value(work, rows.select([0, 2, 5])))
    a, b, c = (value(work, rows.select([i])) for i in (0, 2, 5))
    assert value(work, rows.select([0, 2, 5])) == pytest.approx((4 * a + 7 * b + 7 * c) / 18)


def test_a_row_without_an_advantage_counts_in_the_mean(work):
    """It adds nothing to the sum, and its four tokens are in n: else a member whose rows say little takes larger steps."""
    rows = case()
    rows.advantage[0] = 0.0
    b, c = (value(work, rows.select([i])) for i in (2, 5))
    assert value(work, rows.select([0, 2, 5])) == pytest.approx((7 * b + 7 * c) / 18)


def test_the_loop_has_the_same_gradient(work):
    """Sampled answers of the bundled base. rl.py's loss has another value (PPO's ratio) but this gradient."""
    import rl
    from generate import Prompts, SamplingParams, generate
    from lora import Adapters
    from weights import load_base
    base = load_base(str(Path(rl.__file__).parent / "micro" / "base"))
    gen = torch.Generator().manual_seed(0)
    adapters = Adapters.on(base.model, 2, rank=4, alpha=8)
    for factor in adapters.parameters():
        factor.data.normal_(0, 0.05, generator=gen)
    asked = [base.tokenizer(f"out\ndef f(x):\n x=x+{k}\n return x\nf(2)\n").input_ids for k in (3, 12)]
    rollout = generate(base, adapters, Prompts(asked, [0, 1], [(0, i) for i in range(8)]), SamplingParams(n=4, max_new_tokens=24))
    last = rollout.ids[torch.arange(8), rollout.length - 1]
    assert torch.isin(last, torch.tensor(base.eos_ids)).any(), "the case needs answers with their end token"
    group = rollout.member
    batch = rl.Batch(rollout, torch.zeros(8), group, torch.ones_like(group), torch.zeros_like(group))
    advantage = torch.randn(8, generator=gen)
    rl.accumulate(rl.Objective(base, adapters, batch, advantage))
    theirs = [factor.grad for factor in adapters.parameters()]
    logits = base.model.logits(base.model(rollout.ids, lora=adapters.route(rollout.member, torch.float32)))
    yours = work.loss(logits, rollout.ids, rollout.prompt_len, rollout.length, rollout.member, advantage)
    for mine, want in zip(torch.autograd.grad(yours, adapters.parameters()), theirs):
        assert want.abs().max() > 0 and torch.allclose(mine, want, atol=1e-4 * float(want.abs().max()))
