"""Whether a card computes what it should: each check an error, its bound, and what a wrong answer would show.

Small models of the shape's family are drawn on the CPU, so that every card has the same numbers. An error is
a relative root mean square (common.relative_rms) if not said otherwise.
"""
import dataclasses
from dataclasses import dataclass

import torch

import rl
from bench.common import BOUNDS, TOLD_APART, relative_rms
from bench.peers import transformers_twin
from bench.workload import base_of, batch_of, drawn, fixed_rollout, population, prompts_of, random_model
from generate import Rollout, sample
from lora import Adapters
from model import Base, ModelConfig

LONG = 300                  # tokens of a prompt that fills a page of the cache and begins another
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
        return self.error <= self.bound and (self.control is None or self.control > TOLD_APART * self.error)


def small(shape: ModelConfig, dtype: torch.dtype, device, like: torch.dtype | None = None) -> Base:
    """A base of the same family that a CPU runs in a moment, with the shape's head size and queries a key;
    like: its weights are rounded to this type first."""
    group = shape.num_attention_heads // shape.num_key_value_heads
    cfg = dataclasses.replace(shape, vocab_size=512, hidden_size=256, intermediate_size=512,
                              num_hidden_layers=3, num_attention_heads=2 * group, num_key_value_heads=2,
                              head_dim=shape.head_dim, max_position_embeddings=1024)
    return base_of(random_model(cfg, torch.float32, "cpu").to(like or dtype).to(device, dtype), "small")


def members_on(base: Base) -> Adapters:
    """Four members that are easily told apart."""
    return population(base, 8, 4, std=.1)


def check_sampling(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Tokens drawn from the shape's whole vocabulary, against float64 on the CPU."""
    gen = torch.Generator().manual_seed(0)
    logits, u = torch.randn(64, shape.vocab_size, generator=gen) * 3, torch.rand(64, generator=gen)
    ids, logp = sample(logits.to(device), torch.ones(64, device=device), u.to(device))
    exact = logits.double().log_softmax(-1)
    cdf = exact.exp().cumsum(-1)
    wanted = torch.searchsorted(cdf, u.double()[:, None] * cdf[:, -1:], right=True).squeeze(1)
    differ, others = [(x != wanted).float().mean().item() for x in (ids.cpu(), wanted.roll(1))]
    at = exact.gather(1, ids.cpu()[:, None]).squeeze(1)
    return [Check("sampled tokens against float64 (share that differs)", differ, SHARE, others),
            Check("their log-probabilities", relative_rms(logp, at), 1e-5, relative_rms(logp.roll(1), at))]


@torch.no_grad()
def check_logits(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Our logits against transformers' on the same weights."""
    base = small(shape, dtype, device)
    ids = torch.tensor(prompts_of(base, 4, 40), device=device)
    ours, theirs = base.model.logits(base.model(ids)), transformers_twin(base)(ids).logits
    control = relative_rms(base.model.logits(base.model(ids.roll(1, 0))), theirs)
    return [Check("logits against transformers", relative_rms(ours, theirs), BOUNDS[dtype], control)]


@torch.no_grad()
def forced_logp(base: Base, adapters: Adapters, rollout: Rollout, shift: int = 0) -> torch.Tensor:
    """Log-probabilities of all answer tokens by running rows at once, four at a time; shift: by a wrong
    member."""
    parts = []
    for rows in torch.arange(len(rollout.ids), device=rollout.ids.device).split(4):
        part = rollout.select(rows)
        route = adapters.route((part.member + shift) % adapters.n_members, base.model.embedding.dtype)
        logits = base.model.logits(base.model(part.ids, lora=route)).float()
        logp = logits[:, :-1].log_softmax(-1).gather(2, part.ids[:, 1:, None]).squeeze(2)
        parts.append(logp[part.mask[:, 1:]])
    return torch.cat(parts)


def compare_decoding(name: str, base: Base, adapters: Adapters, rollout: Rollout) -> Check:
    """Log-probabilities of a rollout as it was drawn, against those of its rows run at once."""
    wanted = forced_logp(base, adapters, rollout)
    control = relative_rms(forced_logp(base, adapters, rollout, 1), wanted)
    return Check(name, relative_rms(rollout.logp[rollout.mask], wanted), BOUNDS[base.model.embedding.dtype],
                 control)


def check_decoding(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """Decoding token by token, over more than a page, while rows come and go, against whole rows at once."""
    base = small(shape, dtype, device)
    adapters = members_on(base)
    return [compare_decoding("decode against prefill", base, adapters, drawn(base, adapters, prompt=LONG))]


def check_shape(base: Base, adapters: Adapters, prompt: int, new: int) -> list[Check]:
    """The same on the shape itself, which takes other kernels than a small model; and CUDA graphs."""
    rollout = drawn(base, adapters, prompt=prompt, new=new)
    checks = [compare_decoding("decode against prefill, the shape itself", base, adapters, rollout)]
    if base.graphs:
        plain = drawn(dataclasses.replace(base, graphs=False), adapters, prompt=prompt, new=new)
        T = min(plain.ids.shape[1], rollout.ids.shape[1])
        differ = (plain.ids[:, :T] != rollout.ids[:, :T])[plain.mask[:, :T]].float().mean().item()
        checks.append(Check("CUDA graphs against none (share of tokens that differ)", differ, SHARE))
    return checks


def looped_gradients(base: Base, adapters: Adapters, rollout: Rollout) -> None:
    """Put into .grad what rl.accumulate does, row after row, unpacked, by the loss as it is defined."""
    weight = batch_of(rollout)[1] * rl.token_weight(rollout)
    for p in adapters.parameters():
        p.grad = None
    for i in range(len(rollout.ids)):
        prompt, end = int(rollout.prompt_len[i]), int(rollout.length[i])
        ids = rollout.ids[i:i + 1, :end]
        route = adapters.route(rollout.member[i:i + 1], base.model.embedding.dtype)
        logits = base.model.logits(base.model(ids, lora=route))
        logp = logits[0, prompt - 1:-1].float().log_softmax(-1).gather(1, ids[0, prompt:, None])
        (-weight[i] * logp.sum()).backward()


def gradient(adapters: Adapters, p: int) -> torch.Tensor:
    """All of member p's, in a row, on the CPU."""
    return torch.cat([x.grad[p].detach().flatten().cpu() for x in adapters.parameters()])


def compare_gradients(name: str, ours: list[torch.Tensor], wanted: list[torch.Tensor], bound: float) -> Check:
    """The worst member's error."""
    errors = [relative_rms(x, y) for x, y in zip(ours, wanted)]
    return Check(name, max(errors), bound, relative_rms(ours[0], wanted[1]))


def check_gradients(shape: ModelConfig, dtype: torch.dtype, device) -> list[Check]:
    """The update of several members, packed, in small micro-batches and one that runs checkpointed, against
    rows one by one in float32 on the CPU."""
    def rows(base: Base) -> Rollout:
        rollout = fixed_rollout(base, [0, 0, 0, 3, 3, 3, 1, 1, 1, 1, 1, 1], 11, 30, 3)
        length = rollout.prompt_len + torch.arange(12, device=rollout.ids.device) % 5 * 5 + 3
        return dataclasses.replace(rollout, length=length)

    base, exact = small(shape, dtype, device), small(shape, torch.float32, "cpu", like=dtype)
    ours, wanted = members_on(base), members_on(exact)
    batch, adv = batch_of(rows(base))
    rl.accumulate(base, ours, batch, adv, rl.UpdateConfig(tokens_per_microbatch=40))
    looped_gradients(exact, wanted, rows(exact))
    found, right = [[gradient(x, p) for p in (0, 1, 3)] for x in (ours, wanted)]
    idle = gradient(ours, 2).abs().max().item()
    return [compare_gradients("gradients against float32 on the CPU", found, right, BOUNDS[dtype]),
            Check("gradient of a member without rows (largest number)", idle, 0.0)]


def check_shape_gradients(base: Base, adapters: Adapters, n_tokens: int) -> list[Check]:
    """A micro-batch of so many tokens on the shape itself, against rows one by one in the same type."""
    n = n_tokens // 8
    rollout = fixed_rollout(base, [0, 0, 1, 1, 1, 1, 2, 2], n // 2, n - n // 2, 2)
    batch, adv = batch_of(rollout)
    rl.accumulate(base, adapters, batch, adv, rl.UpdateConfig(tokens_per_microbatch=n_tokens))
    ours = [gradient(adapters, p) for p in range(3)]
    looped_gradients(base, adapters, rollout)
    wanted = [gradient(adapters, p) for p in range(3)]
    bound = 2 * BOUNDS[base.model.embedding.dtype]                  # both are rounded
    return [compare_gradients(f"gradients of {n_tokens} tokens, the shape itself", ours, wanted, bound)]
