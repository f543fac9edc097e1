"""Whether a card computes what it should: each check an error, its bound, and what a wrong answer would show.

An error is a relative root mean square (`relative_rms`) if not said otherwise.
"""
import dataclasses
from dataclasses import dataclass

import torch

import rl
from attention import paged_kernel
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
    x = x.detach().cpu().double()
    wanted = wanted.detach().cpu().double()
    error = (x - wanted).norm() / wanted.norm()
    return error.item()


def share_that_differs(x: torch.Tensor, wanted: torch.Tensor) -> float:
    """Share of the elements that are not the wanted ones."""
    return (x != wanted).float().mean().item()


def sampling(base: Base) -> list[Check]:
    """Tokens drawn from the whole vocabulary, against float64 on the CPU."""
    gen = torch.Generator().manual_seed(0)
    device = base.model.embedding.device
    V = base.model.cfg.vocab_size
    logits = torch.randn(64, V, generator=gen) * 3                                  # (N, V)
    u = torch.rand(64, generator=gen)
    ids, logp = sample(logits.to(device), 1.0, u.to(device))
    ids = ids.cpu()
    exact = logits.double().log_softmax(-1)
    cdf = exact.exp().cumsum(-1)
    place = u.double()[:, None] * cdf[:, -1:]       # the last sum is 1 but for a rounding
    wanted = torch.searchsorted(cdf, place, right=True).squeeze(1)
    wanted_logp = exact.gather(1, ids[:, None]).squeeze(1)
    # The wrong answers are those of the row before.
    return [
        Check(
            "sampled tokens against float64 (share that differs)",
            error=share_that_differs(ids, wanted),
            bound=SHARE,
            control=share_that_differs(wanted.roll(1), wanted)),
        Check(
            "their log-probabilities",
            error=relative_rms(logp, wanted_logp),
            bound=1e-5,
            control=relative_rms(logp.roll(1), wanted_logp))]


def row_logp(
    base: Base,
    adapters: Adapters,
    rollout: Rollout,
    i: int,
    shift: int = 0,                     # to another member, which is wrong
) -> torch.Tensor:
    """Log-probabilities of row i's answer, run at once and alone."""
    row = rollout.select(torch.tensor([i]))                                 # (1, T), cut to its end
    prompt = int(row.prompt_len)
    member = (row.member + shift) % adapters.n_members
    lora = adapters.route(member, base.model.embedding.dtype)
    hidden = base.model(row.ids, lora=lora)                                 # (1, T, C)
    logits = base.model.logits(hidden)[0, prompt - 1:-1]                    # (T, V), of the answer
    logp = logits.float().log_softmax(-1)
    answer = row.ids[0, prompt:, None]                                      # (T, 1)
    return logp.gather(1, answer).squeeze(1)


@torch.no_grad()
def all_logp(
    base: Base,
    adapters: Adapters,
    rollout: Rollout,
    shift: int = 0,
) -> torch.Tensor:
    """Those of all rows, one after the other."""
    rows = []
    for i in range(len(rollout.ids)):
        rows.append(row_logp(base, adapters, rollout, i, shift))
    return torch.cat(rows)


def decoding(
    base: Base,
    adapters: Adapters,
    prompt: int,                        # tokens of the longest prompt
    new: int,                           # tokens of an answer, at most
) -> list[Check]:
    """Decoding token by token while rows come and go, against rows run at once; CUDA graphs against none."""
    rollout = drawn(base, adapters, prompt=prompt, new=new)
    wanted = all_logp(base, adapters, rollout)
    wrong = all_logp(base, adapters, rollout, shift=1)
    refill = Check(
        "decoding with refill against rows at once",
        error=relative_rms(rollout.logp[rollout.mask], wanted),
        bound=BOUNDS[base.model.embedding.dtype],
        control=relative_rms(wrong, wanted))
    weight = base.model.embedding
    if not base.graphs or paged_kernel(base.model.cfg, weight.dtype, weight.device) is None:
        return [refill]                     # a dense cache is decoded without them
    without = dataclasses.replace(base, graphs=False)
    plain = drawn(without, adapters, prompt=prompt, new=new)
    T = min(plain.ids.shape[1], rollout.ids.shape[1])
    mask = plain.mask[:, :T]
    ours = rollout.ids[:, :T][mask]
    differ = share_that_differs(ours, plain.ids[:, :T][mask])
    return [refill, Check("CUDA graphs against none (share of tokens that differ)", differ, SHARE)]


def take_gradients(adapters: Adapters) -> torch.Tensor:
    """The gradient of all factors, (P, numbers of a member) on the CPU; .grad is empty afterwards."""
    parts = []
    for x in adapters.parameters():
        parts.append(x.grad.flatten(1).cpu())                   # (P, ...)
        x.grad = None
    return torch.cat(parts, 1)


def gradients(base: Base, adapters: Adapters, n_tokens: int) -> list[Check]:
    """A packed micro-batch of three members against row by row by the loss as defined: the worst error."""
    members = [0, 0, 1, 1, 1, 1, 2, 2]
    prompt = n_tokens // len(members) // 2
    new = n_tokens // len(members) - prompt
    rollout = fixed_rollout(base, members, prompt, new, attempts=2)
    batch, adv = batch_of(rollout)
    cfg = dataclasses.replace(rl.DEFAULT, tokens_per_microbatch=n_tokens)
    rl.accumulate(rl.Objective(base, adapters, batch, adv, cfg))
    ours = take_gradients(adapters)
    weight = adv * rl.token_weight(rollout)
    for i in range(len(rollout.ids)):
        logp = row_logp(base, adapters, rollout, i)
        loss = -weight[i] * logp.sum()
        loss.backward()
    wanted = take_gradients(adapters)
    errors = [relative_rms(ours[p], wanted[p]) for p in set(members)]
    return [Check(
        f"gradients of {n_tokens} tokens",
        error=max(errors),
        bound=2 * BOUNDS[base.model.embedding.dtype],               # both are rounded
        control=relative_rms(ours[0], wanted[1]))]
