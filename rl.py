"""Advantages, loss and the joint update: every member learns from its own rows, all in one pass.

The loss is PPO's (1707.06347) with a baseline from the prompt's group in place of a critic. Where algorithms
differ is a choice of its own in UpdateConfig; config.ALGORITHMS says what each chooses:

    reinforce++  2501.03262   reward less the group's mean, whitened over a member's tokens of one role
    rloo         2402.14740   reward less the mean of the group's others
    grpo         2402.03300   divided by the group's deviation; rows count the same, however long
    dr_grpo      2503.20783   grpo without both: no deviation, a constant for the row's length
    gspo         2507.18071   grpo with one ratio for a whole answer
    dapo         2503.14476   grpo with a mean over tokens, and clipped later upwards
    cispo        2506.13585   a clipped ratio as the weight of every token: PPO's clip drops tokens

A member's loss is a sum over its own tokens: its step does not depend on who else is in the batch.
"""
from dataclasses import dataclass, fields, replace

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from generate import Rollout
from infra.precision import wide
from lora import Adapters, LoRARouter
from model import Base

CHUNK = 1 << 25                            # logits that exist at once: a whole batch's would fill a GPU
SUMS = ("trained_tokens", "kl", "entropy", "train_rollout_logprob_diff", "clip_frac", "approx_kl")


@dataclass(frozen=True)
class UpdateConfig:
    """What the update reads of a run's Config, by the same names. The defaults are REINFORCE++, one epoch."""
    baseline: str = "group"                # group: its mean; leave-one-out: the mean of the others; none
    scale_rewards: str = "none"            # group: divide by the group's standard deviation; none
    normalize_advantages: str = "member"   # whiten by member and role; kind: by task type too; off
    token_weight: str = "member"           # member, row or constant: see the function of this name
    ratio: str = "token"                   # new / old probability of a token, or of the answer: sequence
    loss: str = "clip"                     # PPO's, or cispo
    clip_low: float = 0.2                  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.2
    epochs: int = 1                        # optimiser steps on one batch; in the first the ratio is 1
    kl_coef: float = 0.0                   # of the KL to the bare base
    entropy_coef: float = 0.0
    temperature: float = 1.0               # that the rows were sampled at
    max_new_tokens: int = 128              # the constant in token_weight
    tokens_per_microbatch: int = 8192

    @classmethod
    def of(cls, cfg) -> "UpdateConfig":
        """Of a config.Config that resolve_config has filled in."""
        return cls(**{f.name: getattr(cfg, f.name) for f in fields(cls)})


@dataclass
class Batch:
    """What one step learns from: N rows, their rewards, and the groups of baselines and whitening."""
    rollout: Rollout
    reward: torch.Tensor                   # (N,) float32
    group: torch.Tensor                    # (N,) rows of one prompt share a number
    role: torch.Tensor                     # (N,) number of the role: a single agent plays all, whitened apart
    kind: torch.Tensor                     # (N,) index of the task type


# --- advantages ---------------------------------------------------------------------------------------------

def group_mean(x: torch.Tensor, group: torch.Tensor, weight: torch.Tensor | None = None):
    """Weighted mean and standard deviation of x (N,) in each row's group (N,), for each row; in float64."""
    x = x.to(wide(x.device))
    weight = torch.ones_like(x) if weight is None else weight.to(x.dtype)
    _, index = group.unique(return_inverse=True)
    n_groups = int(index.max()) + 1

    def total(y):
        return x.new_zeros(n_groups).index_add_(0, index, y)

    mass = total(weight).clamp_min(1e-12)
    mean = (total(weight * x) / mass)[index]
    var = (total(weight * (x - mean) ** 2) / mass)[index]
    return mean, var.sqrt()


def advantages(batch: Batch, cfg: UpdateConfig = UpdateConfig()) -> torch.Tensor:
    """One advantage per row (N,) float32, the same for each of its tokens.

    Rows of groups without variance get exactly 0 and take no part in the whitening, unless there is neither
    baseline nor scale. A reward that is not finite makes NaN, which `accumulate` reports.
    """
    mean, std = group_mean(batch.reward, batch.group)
    adv = batch.reward.to(mean.dtype)
    has_variance = ~(std <= 1e-6) | (cfg.baseline == cfg.scale_rewards == "none")      # true for NaN
    if cfg.baseline != "none":
        adv = adv - mean
    if cfg.baseline == "leave-one-out":                    # r - mean of n - 1 others = (r - mean) n / (n - 1)
        _, index, n = batch.group.unique(return_inverse=True, return_counts=True)
        adv = adv * (n / (n - 1).clamp_min(1))[index]
    if cfg.scale_rewards == "group":
        adv = adv / (std + 1e-6)
    adv = adv.masked_fill(~has_variance, 0.0)
    if cfg.normalize_advantages != "off" and has_variance.any():
        columns = [batch.rollout.member, batch.role]
        if cfg.normalize_advantages == "kind":
            columns.append(batch.kind)
        _, group = torch.stack(columns, 1).unique(dim=0, return_inverse=True)
        mean, std = group_mean(adv, group, batch.rollout.n_tokens * has_variance)
        adv = ((adv - mean) / (std + 1e-6)).masked_fill(~has_variance, 0.0)
    return adv.float()


def token_weight(rollout: Rollout, cfg: UpdateConfig = UpdateConfig()) -> torch.Tensor:
    """Weight (N,) of each of a row's tokens in its member's loss: 1 / the mean's denominator. That is the
    member's answer tokens (member), rows x the row's tokens (row), or rows x max_new_tokens (constant)."""
    member_mask = rollout.member[:, None] == rollout.member[None]
    rows = member_mask.sum(1)
    if cfg.token_weight == "row":
        return 1.0 / (rows * rollout.n_tokens)
    if cfg.token_weight == "constant":
        return 1.0 / (rows * cfg.max_new_tokens)
    return 1.0 / (member_mask * rollout.n_tokens[None]).sum(1)


# --- packing ------------------------------------------------------------------------------------------------
#
# One copy of each prompt, its answers behind it: what the update runs instead of one row an answer.
#
#     p p p p a a a b b       a line: prompt p, then answers a and b of one member, each less its last token
#     0 1 2 3 4 5 6 4 5       positions: every answer goes on from the prompt
#
# A token sees the prompt and its own answer up to itself, so that states and gradients are those of separate
# rows. Eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.

Line = list[int]                           # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """G lines of T tokens, padded on the right, by member, and where their M answer tokens are predicted."""
    ids: torch.Tensor                      # (G, T) int64
    positions: torch.Tensor                # (G, T)
    mask: torch.Tensor | None              # (G, 1, T, T) true where seen; None = causal: one answer a line
    member: torch.Tensor                   # (G,)
    source: torch.Tensor                   # (M,) index into the flattened (G T) states
    target: torch.Tensor                   # (M,) the answer token
    row: torch.Tensor                      # (M,) its row in the rollout
    column: torch.Tensor                   # (M,) its place in that row
    logp: torch.Tensor                     # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Tokens of a line."""
    return int(rollout.prompt_len[line[0]] + (rollout.n_tokens[line] - 1).sum())


def lines(rollout: Rollout, rows: list[int], budget: int) -> list[Line]:
    """Put rows of one member and prompt into lines of at most `budget` tokens, a longer row into its own."""
    groups: dict[tuple, list[Line]] = {}                   # lines by member and prompt
    cost = (rollout.n_tokens - 1).tolist()
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        group = groups.setdefault((int(rollout.member[i]), *prompt), [[]])
        used = len(prompt) + sum(cost[j] for j in group[-1])
        if group[-1] and used + cost[i] > budget:
            group.append([])
        group[-1].append(i)
    return sum(groups.values(), [])


def micro_batches(rollout: Rollout, rows: list[int], budget: int) -> list[list[Line]]:
    """Split rows into batches of lines of at most `budget` padded tokens, similar lengths together."""
    todo = sorted((size(rollout, line), line) for line in lines(rollout, rows, budget))
    out = []
    while todo:
        n = 1                                              # a line beyond the budget runs alone
        while n < len(todo) and (n + 1) * todo[n][0] <= budget:
            n += 1
        out.append([line for _, line in todo[:n]])
        todo = todo[n:]
    return out


def pack(rollout: Rollout, batch: list[Line], device="cpu") -> Packed:
    """Lay out a batch of lines, on the given device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G, T = len(batch), max(size(rollout, line) for line in batch)
    row, position = torch.zeros(2, G, T, dtype=torch.int64)
    answer = torch.full((G, T), -1)                        # 0 = prompt; 1, 2, ... = answers; -1 = padding
    source, targets = [], []
    for g, line in enumerate(batch):
        P = at = int(rollout.prompt_len[line[0]])
        row[g, :P] = line[0]
        position[g, :P] = torch.arange(P)
        answer[g, :P] = 0
        for a, i in enumerate(line, 1):
            n = int(rollout.n_tokens[i]) - 1               # the last token is predicted, and not read
            here = slice(at, at + n)
            row[g, here] = i
            position[g, here] = torch.arange(P, P + n)
            answer[g, here] = a
            source += [g * T + P - 1, *range(g * T + at, g * T + at + n)]      # the prompt predicts the first
            targets += [(i, t) for t in range(P, P + n + 1)]
            at += n
    of, t = torch.tensor(targets).unbind(1)
    ids, answer = rollout.ids[row, position] * (answer >= 0), answer.to(device)
    seen = (answer[:, None] == answer[..., None]) | (answer[:, None] == 0)             # (G, T, T): query, key
    mask = None if max(map(len, batch)) == 1 else (seen & torch.ones_like(seen).tril())[:, None]
    here = ids, position, rollout.member[row[:, 0]], torch.tensor(source), rollout.ids[of, t], of, t
    ids, position, *rest = (x.to(device) for x in (*here, rollout.logp[of, t]))
    return Packed(ids, position, mask, *rest)


# --- loss and update ----------------------------------------------------------------------------------------

def token_logp(base: Base, hidden: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool):
    """Log-probability (M,) of target tokens (M,) given states (M, C), and entropy (M,) or None; float32.
    Works in checkpointed chunks, so that at most CHUNK logits exist at once."""
    def piece(h, y):
        logp = (base.model.logits(h).float() / temperature).log_softmax(-1)
        H = -(logp.exp() * logp).sum(-1) if entropy else None
        return logp.gather(1, y[:, None]).squeeze(1), H

    n = max(1, CHUNK // base.model.cfg.vocab_size)
    if len(target) <= n:
        return piece(hidden, target)
    parts = [checkpoint(piece, h, y, use_reentrant=False) for h, y in zip(hidden.split(n), target.split(n))]
    logp = torch.cat([part[0] for part in parts])
    return logp, torch.cat([part[1] for part in parts]) if entropy else None


class Adam:
    """AdamW without decay over stacked factors; moments, steps, gradient norm and rate per member."""

    def __init__(self, adapters: Adapters, lr: list[float], betas=(0.9, 0.95), eps=1e-8, clip=1.0):
        self.params = adapters.parameters()
        device = self.params[0].device
        self.lr = torch.tensor(lr, device=device)
        self.betas, self.eps, self.clip = betas, eps, clip
        self.m, self.v = [[torch.zeros_like(p, requires_grad=False) for p in self.params] for _ in range(2)]
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step(self, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the active members (P,) bool from .grad and clear it; no bit of the others is touched.

        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,).
        """
        dtype = wide(self.lr.device)
        norm = torch.stack([p.grad.to(dtype).pow(2).sum((1, 2)) for p in self.params]).sum(0).sqrt()
        skipped = active & ~norm.isfinite()
        a = (active & norm.isfinite()).nonzero().squeeze(1)
        if len(a):
            self.steps[a] += 1
            b1, b2 = self.betas
            t = self.steps[a].to(dtype)
            scale = (self.clip / (norm[a] + 1e-6)).clamp_max(1.0).float()[:, None, None]
            lr_hat = (self.lr[a] / (1 - b1 ** t)).float()[:, None, None]       # with Adam's bias corrections
            root_hat = (1 - b2 ** t).rsqrt().float()[:, None, None]
            for p, m, v in zip(self.params, self.m, self.v):
                g = p.grad[a] * scale
                m[a] = m[a].lerp(g, 1 - b1)
                v[a] = v[a].lerp(g * g, 1 - b2)
                p[a] -= lr_hat * m[a] / (v[a].sqrt() * root_hat + self.eps)
        for p in self.params:
            p.grad = None
        return norm, skipped

    def reset(self, p: int) -> None:
        """Forget member p's moments and steps: a replaced member starts fresh."""
        for x in (*self.m, *self.v):
            x[p].zero_()
        self.steps[p] = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Flat named tensors for safetensors."""
        first = {f"m.{i}": x for i, x in enumerate(self.m)}
        return {"steps": self.steps} | first | {f"v.{i}": x for i, x in enumerate(self.v)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of state_dict, in place."""
        for name, x in self.state_dict().items():
            x.copy_(state[name])


def policy_loss(logp: torch.Tensor, old: torch.Tensor, p: Packed, adv: torch.Tensor, cfg: UpdateConfig):
    """Loss of each token (M,) from its log-probability now and when sampled; whether its ratio is clipped.

    clip: -min(ratio A, clip(ratio) A) (PPO, eq. 7). cispo: -clip(ratio) A logp, the ratio without gradient
    (MiniMax-M1, eq. 4). A sequence's ratio is the geometric mean of its tokens' (GSPO, eq. 7).
    """
    log_ratio = logp - old
    if cfg.ratio == "sequence":
        zeros = torch.zeros_like(adv)                      # index_add has no fixed order on a GPU
        total = zeros.index_put((p.row,), log_ratio, accumulate=True)
        n_tokens = zeros.index_put((p.row,), torch.ones_like(log_ratio), accumulate=True)
        log_ratio = (total / n_tokens)[p.row]
    ratio, A = log_ratio.exp(), adv[p.row]
    clipped = ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high)
    if cfg.loss == "cispo":
        return -clipped.detach() * A * logp, ratio != clipped
    return -torch.minimum(ratio * A, clipped * A), ratio != clipped


def token_losses(base: Base, route: LoRARouter, p: Packed, adv: torch.Tensor, cfg: UpdateConfig,
                 on_policy: bool = True, checkpointing: bool = False):
    """Loss and log-probability (M,) of the answer tokens of packed rows with advantages (N,), and SUMS.

    policy_loss + kl_coef k3 - entropy_coef H. on_policy: nothing moved since the rows were sampled, the ratio
    is 1, the gradient the plain policy gradient; else p.logp is from then. Looks at no value.
    """
    def states(lora):
        hidden = base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing)
        return hidden.flatten(0, 1)[p.source]

    def k3(log_ratio):                                     # http://joschu.net/blog/kl-approx.html
        return log_ratio.exp() - log_ratio - 1

    route.weights.materialize(base.model.fused_linears())  # outside of what checkpointing computes twice
    logp, H = token_logp(base, states(route), p.target, cfg.temperature, bool(cfg.entropy_coef))
    now = logp.detach()
    loss, clipped = policy_loss(logp, now if on_policy else p.logp, p, adv, cfg)
    if on_policy:                                          # rollout and training compute the same in two ways
        terms = dict(train_rollout_logprob_diff=(now - p.logp).abs())
    else:
        terms = dict(clip_frac=clipped, approx_kl=k3(now - p.logp))
    if cfg.kl_coef:
        with torch.no_grad():
            plain = token_logp(base, states(None), p.target, cfg.temperature, False)[0]
        terms["kl"] = k3(plain - logp)
        loss = loss + cfg.kl_coef * terms["kl"]
    if cfg.entropy_coef:
        terms["entropy"] = H
        loss = loss - cfg.entropy_coef * H
    sums = {name: x.detach().to(wide(x.device)).sum() for name, x in terms.items()}
    return loss, now, dict.fromkeys(SUMS, 0.0) | sums | dict(trained_tokens=len(now))


def accumulate(base: Base, adapters: Adapters, batch: Batch, adv: torch.Tensor, cfg=UpdateConfig(), *,
               old: torch.Tensor | None = None, rank: int = 0, world: int = 1, desc: str = ""):
    """Put the gradient of every member's loss into the stacked factors' .grad, summed over all processes.

    A member's loss is the sum over its tokens of token_weight times the token's loss. Rows that cannot
    contribute are left out; one beyond the budget runs alone and checkpointed. A member with a non-finite
    loss leaves the batch, lest it spoil its neighbours'. old (N, T): log-probabilities when sampled, if the
    policy has moved since. Returns SUMS of all trained tokens, the members (P,) bool with a non-finite loss,
    and the log-probabilities (N, T) of those tokens that this process trained.
    """
    rollout = (batch.rollout if old is None else replace(batch.rollout, logp=old)).to("cpu")
    weight, logp = token_weight(batch.rollout, cfg), torch.zeros_like(batch.rollout.logp)
    member, advantage = rollout.member.tolist(), adv.tolist()
    every_row = cfg.kl_coef or cfg.entropy_coef
    rows = [i for i in range(len(adv)) if member[i] >= 0 and (every_row or advantage[i] != 0)]
    for p in adapters.parameters():
        p.grad = torch.zeros_like(p)
    sums, nonfinite = dict.fromkeys(SUMS, 0.0), set()
    parts = micro_batches(rollout, rows, cfg.tokens_per_microbatch)[rank::world]
    for part in tqdm(parts, desc=desc, leave=False, disable=not desc):
        while part := [line for line in part if member[line[0]] not in nonfinite]:
            packed = pack(rollout, part, adv.device)
            is_long = packed.ids.numel() > cfg.tokens_per_microbatch
            route = adapters.route(packed.member, base.model.embedding.dtype)
            loss, now, found = token_losses(base, route, packed, adv, cfg, old is None, is_long)
            if loss.isfinite().all():
                (loss * weight[packed.row]).sum().backward()
                logp[packed.row, packed.column] = now
                sums = {name: sums[name] + found[name] for name in SUMS}
                break
            nonfinite |= {member[i] for i in packed.row[~loss.isfinite()].tolist()}
    sums = torch.tensor([*map(float, sums.values())], dtype=wide(adv.device), device=adv.device)
    broken = torch.tensor([float(p in nonfinite) for p in range(adapters.n_members)], device=adv.device)
    if world > 1:
        for x in (sums, broken, *(p.grad for p in adapters.parameters())):
            dist.all_reduce(x)
    return dict(zip(SUMS, sums.tolist())), broken > 0, logp


def update(base: Base, adapters: Adapters, adam: Adam, batch: Batch, adv: torch.Tensor, cfg=UpdateConfig(),
           first=None, **where) -> dict:
    """cfg.epochs optimiser steps: members with rows move, by momentum alone where all advantages are 0;
    others are not touched, nor from then on is one whose loss or gradient is not finite.

    first: what `accumulate` returned for the first epoch, if it was called; where: its rank, world and desc.
    Returns trained_tokens and skipped members of all epochs; of the first, grad_norm per member and means per
    token of kl, entropy and train_rollout_logprob_diff, |log-probability in training - in rollout|; of the
    last, if there are several, clip_frac and approx_kl, both against the policy before the first.
    """
    sums, broken, logp = first or accumulate(base, adapters, batch, adv, cfg, **where)
    has_rows = torch.zeros_like(broken)
    has_rows[batch.rollout.member[batch.rollout.member >= 0]] = True
    norm, skipped = adam.step(has_rows & ~broken)
    skipped = skipped | broken
    last, trained = sums, sums["trained_tokens"]
    for _ in range(1, cfg.epochs):
        last, broken, _ = accumulate(base, adapters, batch, adv, cfg, old=logp, **where)
        skipped |= broken
        skipped |= adam.step(has_rows & ~skipped)[1]
        trained += last["trained_tokens"]
    means = {name: sums[name] / max(1, sums["trained_tokens"]) for name in SUMS[1:4]}
    if cfg.epochs > 1:
        means |= {name: last[name] / max(1, last["trained_tokens"]) for name in SUMS[4:]}
    return dict(trained_tokens=int(trained), **means, grad_norm=[round(x, 6) for x in norm.tolist()],
                skipped=skipped.nonzero().squeeze(1).tolist())
