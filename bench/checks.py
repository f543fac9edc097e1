"""Whether a card computes what it should: each check an error, its bound, and what a wrong answer would show.

An error is a relative root mean square (`relative_rms`) if not said otherwise.
"""
import dataclasses
from dataclasses import dataclass

import torch

import rl
from bench.workload import batch_of, drawn, fixed_rollout
from generate import Rollout, sample
from lora import Adapters
from model import Base

# What the relative error of two ways to compute the same may be, in a base's type: a few roundings a layer.
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: .05}
CONTROL_RATIO = 5           # a wrong answer's error is at least so many times the right one's
SHARE = .05                 # of tokens that may differ: a rounding may turn a draw, and the rest of its row


@dataclass(frozen=True)
class Check:
    """One comparison. control: the error of a deliberately wrong answer; None where none is made."""
    name: str
    error: float
    bound: float
    control: float | None = None

    @property
    def held(self) -> bool:
        """The right answer is near enough (NaN is not), and a wrong one is told apart from it."""
        apart = self.control is None or self.control > CONTROL_RATIO * self.error
        return self.error <= self.bound and apart


def relative_rms(x: torch.Tensor, wanted: torch.Tensor) -> float:
    """Root mean square of x - wanted, divided by that of wanted; in float64 on the CPU."""
    x, wanted = x.detach().cpu().double(), wanted.detach().cpu().double()
    return ((x - wanted).norm() / wanted.norm()).item()


def sampling(base: Base) -> list[Check]:
    """Tokens drawn from the whole vocabulary, against float64 on the CPU."""
    gen, device = torch.Generator().manual_seed(0), base.model.embedding.device
    logits = torch.randn(64, base.model.cfg.vocab_size, generator=gen) * 3
    u = torch.rand(64, generator=gen)
    ids, logp = sample(logits.to(device), 1.0, u.to(device))
    exact = logits.double().log_softmax(-1)
    cdf = exact.exp().cumsum(-1)
    wanted = torch.searchsorted(cdf, u.double()[:, None] * cdf[:, -1:], right=True).squeeze(1)
    differ, others = [(x != wanted).float().mean().item() for x in (ids.cpu(), wanted.roll(1))]
    at = exact.gather(1, ids.cpu()[:, None]).squeeze(1)
    return [Check("sampled tokens against float64 (share that differs)", differ, SHARE, others),
            Check("their log-probabilities", relative_rms(logp, at), 1e-5, relative_rms(logp.roll(1), at))]


def row_logp(base: Base, adapters: Adapters, rollout: Rollout, i: int, shift: int = 0) -> torch.Tensor:
    """Log-probabilities of row i's answer, run at once and alone; shift: by a wrong member."""
    prompt, end = int(rollout.prompt_len[i]), int(rollout.length[i])
    ids, member = rollout.ids[i:i + 1, :end], (rollout.member[i:i + 1] + shift) % adapters.n_members
    logits = base.model.logits(base.model(ids, lora=adapters.route(member, base.model.embedding.dtype)))
    logp = logits[0, prompt - 1:-1].float().log_softmax(-1)
    return logp.gather(1, ids[0, prompt:, None]).squeeze(1)


def decoding(base: Base, adapters: Adapters, prompt: int, new: int) -> list[Check]:
    """Decoding token by token while rows come and go, against rows run at once; CUDA graphs against none."""
    rollout = drawn(base, adapters, prompt=prompt, new=new)
    with torch.no_grad():
        rows = range(len(rollout.ids))
        wanted, wrong = [torch.cat([row_logp(base, adapters, rollout, i, shift) for i in rows])
                         for shift in (0, 1)]
    error = relative_rms(rollout.logp[rollout.mask], wanted)
    bound = BOUNDS[base.model.embedding.dtype]
    checks = [Check("decoding with refill against rows at once", error, bound, relative_rms(wrong, wanted))]
    if base.graphs:
        plain = drawn(dataclasses.replace(base, graphs=False), adapters, prompt=prompt, new=new)
        T = min(plain.ids.shape[1], rollout.ids.shape[1])
        differ = (plain.ids[:, :T] != rollout.ids[:, :T])[plain.mask[:, :T]].float().mean().item()
        checks.append(Check("CUDA graphs against none (share of tokens that differ)", differ, SHARE))
    return checks


def gradients(base: Base, adapters: Adapters, n_tokens: int) -> list[Check]:
    """A packed micro-batch of three members against row by row by the loss as defined: the worst error."""
    def by_member() -> list[torch.Tensor]:
        parameters = adapters.parameters()
        return [torch.cat([x.grad[p].detach().flatten().cpu() for x in parameters]) for p in range(3)]
    n = n_tokens // 8
    rollout = fixed_rollout(base, [0, 0, 1, 1, 1, 1, 2, 2], n // 2, n - n // 2, 2)
    batch, adv = batch_of(rollout)
    cfg = dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=n_tokens)
    rl.accumulate(rl.Objective(base, adapters, batch, adv, cfg))
    ours, weight = by_member(), adv * rl.token_weight(rollout)
    for p in adapters.parameters():
        p.grad = None
    for i in range(len(rollout.ids)):
        (-weight[i] * row_logp(base, adapters, rollout, i).sum()).backward()
    wanted = by_member()
    error = max(relative_rms(x, y) for x, y in zip(ours, wanted))
    bound = 2 * BOUNDS[base.model.embedding.dtype]                  # both are rounded
    return [Check(f"gradients of {n_tokens} tokens", error, bound, relative_rms(ours[0], wanted[1]))]
