"""Advantages, loss and the joint update: every member learns from its own rows, all in one pass.

REINFORCE++ with baseline (arXiv 2501.03262): subtract the prompt group's mean, copy to the row's tokens, whiten over the
valid tokens of one member in one role. The loss of a member is the mean over its own valid tokens, so that its step does
not depend on who else is in the batch; gradients of the stacked factors are sums over members, clipped per member.
"""
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from config import ADVANTAGES, NORMALIZE
from generate import Rollout
from lora import Adapters, LoRARouter
from model import Base

CHUNK = 1 << 25                            # logits computed at a time: a 152k vocabulary never exists for a whole batch


@dataclass
class Batch:
    """What one step learns from: N rows with their rewards and the groups that baselines and whitening are taken over."""
    rollout: Rollout
    reward: torch.Tensor                   # (N,) float32
    group: torch.Tensor                    # (N,) rows of one prompt share a number
    role: torch.Tensor                     # (N,) 0 teacher, 1 student: a single agent plays both, and they are whitened apart
    kind: torch.Tensor                     # (N,) index of the task kind


# --- advantages ---------------------------------------------------------------------------------------------------------

def group_mean(x: torch.Tensor, group: torch.Tensor, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean and standard deviation of x (N,) within each row's group (N,), copied to the rows; float64 inside."""
    x, weight = x.double(), (torch.ones_like(x) if weight is None else weight).double()
    _, index = group.unique(return_inverse=True)
    total = lambda y: torch.zeros(int(index.max()) + 1, dtype=torch.float64, device=x.device).index_add_(0, index, y)
    mass = total(weight).clamp_min(1e-12)
    mean = (total(weight * x) / mass)[index]
    var = (total(weight * (x - mean) ** 2) / mass)[index]
    return mean, var.sqrt()


def advantages(batch: Batch, method: str = "reinforce++", normalize_advantages: str = "auto") -> torch.Tensor:
    """One advantage per row (N,) float32, the same for each of its tokens.

    method: reinforce++ and dr_grpo subtract the group's mean; grpo also divides by its standard deviation; rloo subtracts
    the mean of the others (2402.14740). normalize_advantages: over the answer tokens of one member in one role (member; auto for
    reinforce++), per member, role and kind (kind: AZR's TRR++), or not at all (off; auto for the others).
    Rows of groups without variance get exactly 0 and take no part in the whitening. A reward that is not finite makes its
    member's advantages NaN, which `accumulate` reports.
    """
    assert method in ADVANTAGES and normalize_advantages in NORMALIZE, (method, normalize_advantages)
    r = batch.reward
    mean, std = group_mean(r, batch.group)
    has_variance = ~(std <= 1e-6)                                            # NaN counts as has_variance: it must be seen, not silenced
    d = (r.double() - mean).masked_fill(~has_variance, 0.0)
    if method == "grpo":
        d = d / (std + 1e-6)
    if method == "rloo":
        _, index, count = batch.group.unique(return_inverse=True, return_counts=True)
        d = d * (count / (count - 1).clamp_min(1))[index]
    if normalize_advantages == "auto":
        normalize_advantages = "member" if method == "reinforce++" else "off"
    if normalize_advantages != "off" and has_variance.any():
        key = batch.rollout.member * 2 + batch.role
        if normalize_advantages == "kind":
            key = key * (int(batch.kind.max()) + 1) + batch.kind
        mean, std = group_mean(d, key, batch.rollout.n_tokens * has_variance)
        d = ((d - mean) / (std + 1e-6)).masked_fill(~has_variance, 0.0)
    return d.float()


def token_weight(rollout: Rollout, method: str, max_new_tokens: int) -> torch.Tensor:
    """Weight (N,) of each of a row's tokens in its member's loss; the denominator of the mean.

    1 / the member's answer tokens; grpo: 1 / (the member's rows x the row's tokens); dr_grpo: 1 / (rows x max_new_tokens) (2503.20783).
    """
    member_mask = rollout.member[:, None] == rollout.member[None]
    rows, tokens = member_mask.sum(1), (member_mask * rollout.n_tokens[None]).sum(1)
    if method == "grpo":
        return 1.0 / (rows * rollout.n_tokens)
    return 1.0 / (rows * max_new_tokens) if method == "dr_grpo" else 1.0 / tokens


# --- packing ----------------------------------------------------------------------------------------------------------
#
# One copy of each prompt, its answers behind it: what the update runs instead of one row an answer.
#
#     p p p p a a a b b         a line: prompt p, then answers a and b of one member to it, each without its last token
#     0 1 2 3 4 5 6 4 5         positions: every answer goes on from the prompt
#
# A token sees the prompt and its own answer up to itself, so that the states and gradients are those of separate rows. The
# prompt's are computed once: eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.
#
# All functions read single numbers of a rollout: it should lie in the processor's memory, where that makes nobody wait.

Line = list[int]                       # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """G lines of T tokens, padded on the right and ordered by member, and where their M answer tokens are predicted."""
    ids: torch.Tensor                  # (G, T) int64
    positions: torch.Tensor            # (G, T)
    mask: torch.Tensor | None          # (G, 1, T, T) true where a token is seen; None = causal, no line holds two answers
    member: torch.Tensor               # (G,)
    source: torch.Tensor               # (M,) index into the flattened (G T) states
    target: torch.Tensor               # (M,) the answer token
    row: torch.Tensor                  # (M,) its row in the rollout
    logp: torch.Tensor                 # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Tokens of a line."""
    return int(rollout.prompt_len[line[0]] + (rollout.n_tokens[line] - 1).sum())


def lines(rollout: Rollout, rows: list[int], budget: int) -> list[Line]:
    """Put rows of one member and prompt into lines of at most `budget` tokens; a longer row has a line of its own."""
    same: dict[tuple, list[Line]] = {}
    cost = (rollout.n_tokens - 1).tolist()
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        group = same.setdefault((int(rollout.member[i]), *prompt), [[]])
        if group[-1] and len(prompt) + sum(cost[j] for j in group[-1]) + cost[i] > budget:
            group.append([])
        group[-1].append(i)
    return [line for group in same.values() for line in group]


def micro_batches(rollout: Rollout, rows: list[int], budget: int) -> list[list[Line]]:
    """Split rows into batches of lines of at most `budget` padded tokens, similar lengths together; at least one line each."""
    todo, out = sorted((size(rollout, line), line) for line in lines(rollout, rows, budget)), []
    while todo:
        n = 1
        while n < len(todo) and (n + 1) * todo[n][0] <= budget:
            n += 1
        out.append([line for _, line in todo[:n]])
        todo = todo[n:]
    return out


def pack(rollout: Rollout, batch: list[Line], device="cpu") -> Packed:
    """Lay out a batch of lines, on the given device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G, T = len(batch), max(size(rollout, line) for line in batch)
    row, position, answer = (torch.full((G, T), fill) for fill in (0, 0, -1))          # answer: 0 = the prompt, -1 = padding
    source, targets = [], []
    start, end = rollout.prompt_len.tolist(), rollout.length.tolist()
    for g, line in enumerate(batch):
        P = at = start[line[0]]
        row[g, :P], position[g, :P], answer[g, :P] = line[0], torch.arange(P), 0
        for a, i in enumerate(line, 1):
            n = end[i] - P
            here = slice(at, at + n - 1)
            row[g, here], position[g, here], answer[g, here] = i, torch.arange(P, end[i] - 1), a
            source += [g * T + P - 1, *range(g * T + at, g * T + at + n - 1)]      # the prompt's last token predicts the first
            targets += [(i, t) for t in range(P, end[i])]
            at += n - 1
    of, t = torch.tensor(targets).unbind(1)
    ids, answer = rollout.ids[row, position] * (answer >= 0), answer.to(device)
    seen = (answer[:, None] == answer[..., None]) | (answer[:, None] == 0)             # (G, T, T): query, key
    mask = None if max(map(len, batch)) == 1 else (seen & torch.ones_like(seen).tril())[:, None]
    here = ids, position, rollout.member[row[:, 0]], torch.tensor(source), rollout.ids[of, t], of, rollout.logp[of, t]
    ids, position, *rest = (x.to(device) for x in here)
    return Packed(ids, position, mask, *rest)


# --- loss and update -----------------------------------------------------------------------------------------------------

def token_logp(base: Base, hidden: torch.Tensor, target: torch.Tensor, temperature: float, entropy: bool):
    """Log-probability (M,) of target tokens (M,) given hidden states (M, C), and the entropy (M,) or None; float32.

    Works in checkpointed chunks, so that at most CHUNK logits exist at once.
    """
    def piece(h, y):
        logp = (base.model.logits(h).float() / temperature).log_softmax(-1)
        return logp.gather(1, y[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1) if entropy else None

    size = max(1, CHUNK // base.model.cfg.vocab_size)
    if len(target) <= size:
        return piece(hidden, target)
    parts = [checkpoint(piece, h, y, use_reentrant=False) for h, y in zip(hidden.split(size), target.split(size))]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None


class Adam:
    """AdamW without decay over stacked factors, with moments, step counter, gradient norm and rate per member."""

    def __init__(self, adapters: Adapters, lr: list[float], betas=(0.9, 0.95), eps: float = 1e-8, clip: float = 1.0):
        self.params = adapters.parameters()
        device = self.params[0].device
        self.lr, self.betas, self.eps, self.clip = torch.tensor(lr, device=device), betas, eps, clip
        self.m, self.v = [[torch.zeros_like(p, requires_grad=False) for p in self.params] for _ in range(2)]
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step(self, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the active members (P,) bool from .grad and clear it; the others are not touched in any bit.

        Returns gradient norms before clipping (P,) and which members were skipped for a non-finite gradient (P,).
        """
        norm = torch.stack([p.grad.double().pow(2).sum((1, 2)) for p in self.params]).sum(0).sqrt()
        skipped = active & ~norm.isfinite()
        a = (active & norm.isfinite()).nonzero().squeeze(1)
        if len(a):
            self.steps[a] += 1
            wide, (b1, b2), t = lambda x: x.float()[:, None, None], self.betas, self.steps[a].double()
            scale = wide((self.clip / (norm[a] + 1e-6)).clamp_max(1.0))
            lr_hat, root_hat = wide(self.lr[a] / (1 - b1 ** t)), wide((1 - b2 ** t).rsqrt())     # Adam's bias corrections
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
        return {"steps": self.steps, **{f"m.{i}": x for i, x in enumerate(self.m)}, **{f"v.{i}": x for i, x in enumerate(self.v)}}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of state_dict, in place."""
        for name, x in self.state_dict().items():
            x.copy_(state[name])


def token_losses(base: Base, route: LoRARouter, p: Packed, adv: torch.Tensor, temperature: float, kl: float, entropy: float,
                 clip: float, checkpointing: bool = False):
    """Loss of each answer token (M,) of packed rows with advantages (N,), and sums (float64) for the log. Looks at no value.

    -min(ratio adv, clip(ratio) adv) + kl k3 - entropy H; on policy the ratio is 1 in value, so that the gradient is the
    plain policy gradient (PPO, eq. 7).
    """
    states = lambda lora: base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing).flatten(0, 1)[p.source]
    total = lambda x: x.detach().double().sum()
    route.weights.materialize(base.model.fused_linears())                     # outside of what checkpointing computes twice
    logp, H = token_logp(base, states(route), p.target, temperature, bool(entropy))
    ratio, a = (logp - logp.detach()).exp(), adv[p.row]
    loss = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    # the gap: rollout and training compute the same number in two ways
    sums = dict(kl=0.0, entropy=0.0, train_rollout_logprob_diff=total((logp.detach() - p.logp).abs()), trained_tokens=len(p.target))
    if kl:
        with torch.no_grad():
            plain = token_logp(base, states(None), p.target, temperature, False)[0]
        k3 = (plain - logp).exp() - (plain - logp) - 1               # http://joschu.net/blog/kl-approx.html
        loss, sums["kl"] = loss + kl * k3, total(k3)
    if entropy:
        loss, sums["entropy"] = loss - entropy * H, total(H)
    return loss, sums


def accumulate(base: Base, adapters: Adapters, batch: Batch, adv: torch.Tensor, weight: torch.Tensor, *, temperature: float = 1.0,
               kl: float = 0.0, entropy: float = 0.0, clip: float = 0.2, tokens_per_microbatch: int = 8192, rank: int = 0, world: int = 1,
               desc: str = ""):
    """Put the gradient of every member's loss into the stacked factors' .grad, summed over all processes.

    A member's loss is the sum over its tokens of weight (N,) times the token's loss. Rows that cannot contribute are left
    out; a row longer than the budget runs alone and with activation checkpointing. Rows of a member with a non-finite loss
    leave the batch, so that they cannot spoil their neighbours' gradients.
    Returns sums over the trained tokens (kl, entropy, train_rollout_logprob_diff, trained_tokens) and the members (P,) bool with a non-finite loss.
    """
    params, device, rollout = adapters.parameters(), adv.device, batch.rollout.to("cpu")
    member, advantage = rollout.member.tolist(), adv.tolist()

    def sweep(parts: list[list[Line]]):
        """One pass over the micro-batches into fresh .grad: sums for the log, and who (P,) had a loss that is not finite."""
        for p in params:
            p.grad = torch.zeros_like(p)
        stats, nonfinite_members = dict.fromkeys(("kl", "entropy", "train_rollout_logprob_diff", "trained_tokens"), 0.0), set()
        for part in tqdm(parts, desc=desc, leave=False, disable=not desc):
            while part := [line for line in part if member[line[0]] not in nonfinite_members]:      # again without those whose loss broke
                packed = pack(rollout, part, device)
                long = packed.ids.numel() > tokens_per_microbatch             # a row that exceeds the budget alone
                route = adapters.route(packed.member, base.model.embedding.dtype)
                loss, sums = token_losses(base, route, packed, adv, temperature, kl, entropy, clip, checkpointing=long)
                if loss.isfinite().all():
                    (loss * weight[packed.row]).sum().backward()
                    stats = {k: stats[k] + v for k, v in sums.items()}
                    break
                nonfinite_members |= {member[i] for i in packed.row[~loss.isfinite()].tolist()}
        return {k: float(v) for k, v in stats.items()}, torch.tensor([p in nonfinite_members for p in range(adapters.n_members)], device=device)

    rows = [i for i in range(len(adv)) if member[i] >= 0 and (kl or entropy or advantage[i] != 0)]
    parts = micro_batches(rollout, rows, tokens_per_microbatch)[rank::world]
    stats, nonfinite_members = sweep(parts)
    if world > 1:
        for p in params:
            dist.all_reduce(p.grad)
        sums = torch.tensor([*stats.values(), *nonfinite_members.tolist()], dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        stats, nonfinite_members = dict(zip(stats, sums[:len(stats)].tolist())), sums[len(stats):] > 0
    return stats, nonfinite_members


def finish(adam: Adam, batch: Batch, stats: dict, nonfinite_members: torch.Tensor) -> dict:
    """The optimiser step on accumulated gradients: members with rows move, the others are not touched, nor those in `nonfinite_members`.
    A member whose rows all have advantage 0 has a zero gradient and moves by its momentum, as in any Adam.

    Returns trained_tokens; per trained token kl, entropy and train_rollout_logprob_diff, |log-probability in training - in the rollout|;
    grad_norm per member (list) and skipped members (list).
    """
    active = torch.zeros_like(nonfinite_members)
    active[batch.rollout.member[batch.rollout.member >= 0]] = True
    norm, skipped = adam.step(active & ~nonfinite_members)
    tokens = max(1, stats["trained_tokens"])
    return dict(trained_tokens=int(stats["trained_tokens"]), kl=stats["kl"] / tokens, entropy=stats["entropy"] / tokens,
                train_rollout_logprob_diff=stats["train_rollout_logprob_diff"] / tokens, grad_norm=[round(x, 6) for x in norm.tolist()],
                skipped=(skipped | nonfinite_members).nonzero().squeeze(1).tolist())


def update(base: Base, adapters: Adapters, adam: Adam, batch: Batch, adv: torch.Tensor, *, method: str = "reinforce++",
           max_new_tokens: int = 128, **loss) -> dict:
    """`accumulate` and `finish` in one call, where nothing comes in between as it does in train.py; `loss`: see `accumulate`."""
    weight = token_weight(batch.rollout, method, max_new_tokens).float()
    return finish(adam, batch, *accumulate(base, adapters, batch, adv, weight, **loss))
