"""Grades exercise 2: a case on paper, the gradient by its formula, what may count, and the loop's own."""
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

N, T, V = 6, 9, 5                       # rows, tokens and vocabulary of the random case


@dataclass
class Rows:
    """What `loss` takes, in its order."""
    logits: Tensor                      # (N, T, V)
    ids: Tensor                         # (N, T)
    prompt_len: Tensor                  # (N,)
    length: Tensor                      # (N,)
    member: Tensor                      # (N,)
    advantage: Tensor                   # (N,)

    def select(self, rows: list[int]) -> "Rows":
        """These rows alone."""
        return Rows(
            self.logits[rows],
            self.ids[rows],
            self.prompt_len[rows],
            self.length[rows],
            self.member[rows],
            self.advantage[rows],
        )


def yours(work: ModuleType, rows: Rows) -> Tensor:
    """Your loss of these rows, with its graph."""
    return work.loss(
        rows.logits,
        rows.ids,
        rows.prompt_len,
        rows.length,
        rows.member,
        rows.advantage,
    )


def value(work: ModuleType, rows: Rows) -> float:
    """Your loss of these rows as a number."""
    return float(yours(work, rows))


def random_rows() -> Rows:
    """Six rows of three members; answers of one token, of many, and one that fills its row."""
    gen = torch.Generator().manual_seed(0)
    prompt_len = torch.tensor([3, 1, 2, 4, 3, 1])
    length = torch.tensor([7, 2, 9, 6, 4, 8])
    member = torch.tensor([0, 2, 0, 1, 2, 0])
    ids = torch.randint(0, V, (N, T), generator=gen)
    is_padding = torch.arange(T) >= length[:, None]
    ids[is_padding] = 0
    logits = torch.randn(N, T, V, generator=gen, dtype=torch.float64)
    advantage = torch.randn(N, generator=gen, dtype=torch.float64)
    return Rows(logits, ids, prompt_len, length, member, advantage)


def test_on_paper(work: ModuleType):
    """Member 0: tokens of 3/4 and 1/2, advantage 2: -2 ln(3/8) / 2. Member 1: 1/4, advantage -1: ln(1/4)."""
    not_scored = [0.9, 0.1]
    p = torch.tensor([
        [[1 / 4, 3 / 4], [1 / 2, 1 / 2], not_scored],
        [[1 / 4, 3 / 4], not_scored, not_scored],
    ])
    rows = Rows(
        logits=p.log(),
        ids=torch.tensor([[0, 1, 0], [1, 0, 0]]),
        prompt_len=torch.tensor([1, 1]),
        length=torch.tensor([3, 2]),
        member=torch.tensor([0, 1]),
        advantage=torch.tensor([2.0, -1.0]),
    )
    assert value(work, rows) == pytest.approx(log(2 / 3))


def test_the_gradient_by_its_formula(work: ModuleType):
    """advantage / n (softmax - 1 at the token) one place before each answer token; 0 elsewhere."""
    rows = random_rows()
    n_tokens = rows.length - rows.prompt_len
    want = torch.zeros(N, T, V, dtype=torch.float64)
    for i in range(N):
        same_member = rows.member == rows.member[i]
        share = rows.advantage[i] / n_tokens[same_member].sum()
        for t in range(rows.prompt_len[i], rows.length[i]):
            token = rows.ids[i, t]
            scores = rows.logits[i, t - 1]
            want[i, t - 1] = share * scores.softmax(0)
            want[i, t - 1, token] -= share
    rows.logits.requires_grad_()
    yours(work, rows).backward()
    got = rows.logits.grad
    wrong = ~torch.isclose(got, want).all(2)                    # (N, T)
    places = wrong.nonzero().tolist()
    assert not places, f"another gradient was expected at these (row, position): {places}"


def test_the_prompt_is_not_trained(work: ModuleType):
    before = value(work, random_rows())
    rows = random_rows()
    in_prompt = torch.arange(T) < rows.prompt_len[:, None]
    rows.ids[in_prompt] = (rows.ids[in_prompt] + 1) % V
    after = value(work, rows)
    assert after == pytest.approx(before), "other tokens in the prompts should not change the loss"


def test_the_end_token_is(work: ModuleType):
    """The last token of each answer, also where it is the only one."""
    before = value(work, random_rows())
    for i in range(N):
        rows = random_rows()
        last = rows.length[i] - 1
        rows.ids[i, last] = (rows.ids[i, last] + 1) % V
        changed = abs(value(work, rows) - before)
        assert changed > 1e-3, f"another last token of answer {i} should change the loss"


def test_padding_is_not(work: ModuleType):
    """Neither what stands there nor what it is given to score, nor how much of it there is."""
    before = value(work, random_rows())
    rows = random_rows()
    behind = torch.arange(T) >= rows.length[:, None]
    rows.ids[behind] = 3
    rows.logits[behind] *= 50
    after = value(work, rows)
    assert after == pytest.approx(before), "what stands behind an answer should not change the loss"
    ids = rows.ids.repeat(1, 2)
    logits = rows.logits.repeat(1, 2, 1)
    wide = replace(rows, ids=ids, logits=logits)
    assert value(work, wide) == pytest.approx(before), "more padding should not change the loss"


def test_all_tokens_of_a_member_count_the_same(work: ModuleType):
    """Member 0 has answers of 4, 7 and 7 tokens. The same rows twice: the same mean."""
    rows = random_rows()
    own = [0, 2, 5]                     # member 0's rows
    together = value(work, rows.select(own))
    twice = value(work, rows.select(own + own))
    assert twice == pytest.approx(together), "the same rows twice should have the same loss"
    a = value(work, rows.select([0]))
    b = value(work, rows.select([2]))
    c = value(work, rows.select([5]))
    want = (4 * a + 7 * b + 7 * c) / 18
    assert together == pytest.approx(want), "the mean should be over 18 tokens, not over 3 rows"


def test_a_row_without_an_advantage_counts_in_the_mean(work: ModuleType):
    """It adds nothing to the sum, and its four tokens are in n: else a member whose rows say little takes
    larger steps."""
    rows = random_rows()
    rows.advantage[0] = 0.0
    b = value(work, rows.select([2]))
    c = value(work, rows.select([5]))
    together = value(work, rows.select([0, 2, 5]))
    want = (7 * b + 7 * c) / 18
    assert together == pytest.approx(want), "the mean should be over all 18 tokens, not over 14"


def test_the_loop_has_the_same_gradient(work: ModuleType):
    """Sampled answers of the bundled base."""
    import rl
    from generate import Prompts, SamplingParams, generate
    from lora import Adapters
    from weights import load_base
    root = Path(rl.__file__).parent
    base = load_base(str(root / "micro" / "base"))
    # Two members with factors of their own.
    gen = torch.Generator().manual_seed(0)
    adapters = Adapters.on(base.model, 2, rank=4, alpha=8)
    parameters = adapters.parameters()
    for factor in parameters:
        factor.data.normal_(0, 0.05, generator=gen)
    # Each answers a prompt of its own four times.
    asked = []
    for number in (3, 12):
        text = f"out\ndef f(x):\n x=x+{number}\n return x\nf(2)\n"
        asked.append(base.tokenizer(text).input_ids)
    keys = [(0, i) for i in range(8)]
    prompts = Prompts(asked, [0, 1], keys)
    sampling = SamplingParams(n=4, max_new_tokens=24)
    rollout = generate(base, adapters, prompts, sampling)
    all_rows = torch.arange(8)
    last = rollout.ids[all_rows, rollout.length - 1]
    ended = torch.isin(last, torch.tensor(base.eos_ids))
    assert ended.any(), "the case needs answers with their end token"
    # The loop's gradient.
    member = rollout.member
    reward = torch.zeros(8)             # nobody looks at it: the advantages are given
    role = torch.ones_like(member)
    kind = torch.zeros_like(member)
    batch = rl.Batch(rollout, reward, member, role, kind)
    advantage = torch.randn(8, generator=gen)
    rl.accumulate(base, adapters, batch, advantage, replace(rl.DEFAULT, kl_coef=0.0))
    theirs = [factor.grad for factor in parameters]
    # Yours.
    route = adapters.route(member, torch.float32)
    hidden = base.model(rollout.ids, lora=route)
    logits = base.model.logits(hidden)
    rows = Rows(
        logits,
        rollout.ids,
        rollout.prompt_len,
        rollout.length,
        member,
        advantage,
    )
    mine = torch.autograd.grad(yours(work, rows), parameters)
    for got, want in zip(mine, theirs):
        largest = float(want.abs().max())
        assert largest > 0
        assert torch.allclose(got, want, atol=1e-4 * largest), \
            "rl.py has another gradient for the same answers"
