"""Advantages, the loss and the joint update: every member learns from its own rows, all in one pass.

A step is one gradient step of REINFORCE++ (2501.03262) on what was sampled just now: the policy's ratio is 1, and the
clipped loss of PPO, GSPO or CISPO has the same gradient. What is left to choose is where algorithms differ then:

    reinforce++  2501.03262   reward less the group's mean, whitened over a member's tokens of one role
    rloo         2402.14740   reward less the mean of the group's others
    grpo         2402.03300   divided by the group's deviation; rows count the same, however long
    dr_grpo      2503.20783   grpo without both: no deviation, a constant for the row's length

A member's loss is a sum over its own tokens: its step does not depend on who else is in the batch. Adam (1412.6980) has
moments, steps, gradient norm and rate of each member.
"""
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from common import demand
from ranks import ALONE, Ranks
from config import Config, resolve_config
from generate import Rollout
from lora import Adapters, AdapterWeights
from model import Base
from pack import Packed, micro_batches, pack

CHUNK = 1 << 25                            # logits that exist at once: a whole batch's would fill a GPU
DEFAULT = resolve_config(Config(), "micro")
BETAS = (0.9, 0.95)                        # of Adam
EPS = 1e-8                                 # of Adam
MAX_NORM = 1.0                             # to which a member's gradient is clipped


@dataclass
class Batch:
    """What one step learns from: N rows, their rewards, and the groups of baselines and whitening."""
    rollout: Rollout
    reward: Tensor                   # (N,) float32
    group: Tensor                    # (N,) rows of one prompt share a number
    role: Tensor                     # (N,) number of the role: a single agent plays all, whitened apart
    kind: Tensor                     # (N,) index of the task type


# --- advantages ---------------------------------------------------------------------------------------------

def total(x: Tensor, index: Tensor) -> Tensor:
    """The sum of x (N,) over each group (n_groups,); index (N,): the groups, numbered without gaps."""
    n_groups = int(index.max()) + 1
    return x.new_zeros(n_groups).index_add_(0, index, x)


def mean_and_std(x: Tensor, group: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted mean and the standard deviation of x (N,) in each row's group, both (N,) float64."""
    _, index = group.unique(return_inverse=True)           # the groups, numbered without gaps
    mass = total(weight.to(x.dtype), index).clamp_min(1e-12)
    mean = (total(weight * x, index) / mass)[index]        # back to (N,)
    var = total(weight * (x - mean) ** 2, index) / mass
    return mean, var[index].sqrt()


def advantages(batch: Batch, cfg: Config = DEFAULT) -> Tensor:
    """One advantage per row (N,) float32, the same for each of its tokens. Rows of groups without variance get
    exactly 0 and take no part in the whitening; with the baseline "none" every row takes part."""
    adv = batch.reward.double()
    mean, std = mean_and_std(adv, batch.group, torch.ones_like(adv))
    has_variance = std > 1e-6
    if cfg.baseline == "none":
        has_variance = torch.ones_like(has_variance)
    else:
        adv = adv - mean
    if cfg.baseline == "leave-one-out":                    # r - mean of n - 1 others = (r - mean) n / (n - 1)
        _, index, n = batch.group.unique(return_inverse=True, return_counts=True)
        adv = adv * (n / (n - 1).clamp_min(1))[index]
    elif cfg.baseline == "standardized":
        adv = adv / (std + 1e-6)
    adv = adv.masked_fill(~has_variance, 0.0)
    if cfg.normalize_advantages != "off" and has_variance.any():
        adv = whiten(adv, batch, has_variance, cfg.normalize_advantages == "kind")
    return adv.float()


def whiten(adv: Tensor, batch: Batch, rows: Tensor, by_kind: bool) -> Tensor:
    """Advantages (N,) with mean 0 and deviation 1 over the answer tokens of each member in each role, and with
    by_kind in each task type, too. rows (N,) bool: which take part; the others get 0."""
    columns = [batch.rollout.member, batch.role]
    if by_kind:
        columns.append(batch.kind)
    _, group = torch.stack(columns, 1).unique(dim=0, return_inverse=True)
    mean, std = mean_and_std(adv, group, batch.rollout.n_tokens * rows)
    return ((adv - mean) / (std + 1e-6)).masked_fill(~rows, 0.0)


def token_weight(rollout: Rollout, cfg: Config = DEFAULT) -> Tensor:
    """Weight (N,) of each of a row's tokens in its member's loss: 1 / the mean's denominator. That is the
    member's answer tokens (member), rows x the row's tokens (row), or rows x max_new_tokens (constant)."""
    _, index = rollout.member.unique(return_inverse=True)
    rows = index.bincount()[index]                         # (N,) how many rows the row's member has
    if cfg.token_weight == "row":
        return 1.0 / (rows * rollout.n_tokens)
    if cfg.token_weight == "constant":
        return 1.0 / (rows * cfg.max_new_tokens)
    return 1.0 / total(rollout.n_tokens, index)[index]


# --- loss and gradient --------------------------------------------------------------------------------------

def token_logp(base: Base, hidden: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Log-probability (M,) float32 of the target tokens (M,) given the states (M, C). Works in checkpointed
    chunks, so that at most CHUNK logits exist at once."""
    def piece(h: Tensor, y: Tensor) -> Tensor:
        logp = (base.model.logits(h).float() / temperature).log_softmax(-1)         # (M, V)
        return logp.gather(1, y[:, None]).squeeze(1)

    n = max(1, CHUNK // base.model.cfg.vocab_size)         # tokens of a chunk
    if len(target) <= n:
        return piece(hidden, target)
    parts = zip(hidden.split(n), target.split(n))
    return torch.cat([checkpoint(piece, h, y, use_reentrant=False) for h, y in parts])


def backward(base: Base, adapters: Adapters, p: Packed, adv: Tensor, weight: Tensor, cfg: Config) -> Tensor:
    """Add a micro-batch's gradient to .grad of the stacked factors; log-probabilities (M,) of its tokens. The
    loss is the sum over tokens of weight times -advantage x logp, plus kl_coef times the KL to the base (k3)."""
    checkpointing = p.ids.numel() > cfg.tokens_per_microbatch

    def states(lora: object) -> Tensor:
        hidden = base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing)
        return hidden.flatten(0, 1)[p.source]              # (G, T, C) -> (M, C)

    weights = AdapterWeights(adapters, p.member, base.model.embedding.dtype, trains=True)
    for linear in base.model.fused_linears():
        weights.for_layers(linear.paths, linear.sizes)     # outside of what is checkpointed
    logp = token_logp(base, states(weights.route(p.member)), p.target, cfg.temperature)
    loss = -adv[p.row] * logp
    if cfg.kl_coef:
        with torch.no_grad():
            of_base = token_logp(base, states(None), p.target, cfg.temperature)
        log_ratio = of_base - logp
        loss = loss + cfg.kl_coef * (log_ratio.exp() - log_ratio - 1)
    (loss * weight[p.row]).sum().backward()
    weights.add_gradients()
    return logp.detach()


def update(base: Base, adapters: Adapters, batch: Batch, adv: Tensor, adam: "Adam", cfg: Config,
           ranks: Ranks = ALONE, desc: str = "") -> dict:
    """One optimiser step of every member with a row that says something; the others are not touched, whatever
    their momentum. Returns trained tokens, gradient norms, members skipped for a gradient that is not finite,
    and how much log-probabilities differ from the rollout's."""
    rollout = batch.rollout
    learns = (rollout.member >= 0) & ((adv != 0) | (cfg.kl_coef > 0))               # (N,)
    weight = token_weight(rollout, cfg)
    on_cpu = rollout.to("cpu")                             # rows are packed there
    logp = torch.zeros_like(rollout.logp)
    for factor in adapters.parameters():
        factor.grad = torch.zeros_like(factor)
    todo = micro_batches(on_cpu, learns.nonzero().squeeze(1).tolist(), cfg.tokens_per_microbatch)
    for lines in tqdm(todo[ranks.rank::ranks.world], desc, leave=False, disable=not desc):
        p = pack(on_cpu, lines, adv.device)
        logp[p.row, p.column] = backward(base, adapters, p, adv, weight, cfg)
    ranks.all_reduce(logp, *[factor.grad for factor in adapters.parameters()])

    active = torch.zeros(adapters.n_members, dtype=torch.bool, device=adv.device)
    active[rollout.member[learns]] = True
    norm, skipped = adam.step(active)
    trained = rollout.mask & learns[:, None]               # (N, T)
    gap = (logp - rollout.logp)[trained].abs()
    return dict(
        trained_tokens=int(trained.sum()),
        train_rollout_logprob_diff=gap.mean().item() if len(gap) else 0.0,
        grad_norm=[round(x, 6) for x in norm.tolist()],
        skipped=skipped.nonzero().squeeze(1).tolist())


class Adam:
    """Adam over stacked factors; moments, steps, gradient norm, clipped to MAX_NORM, and rate per member."""

    def __init__(self, adapters: Adapters):
        self.adapters = adapters
        self.m = [torch.zeros_like(factor) for factor in adapters.parameters()]
        self.v = [torch.zeros_like(factor) for factor in adapters.parameters()]
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=adapters.device)
        self.lr = torch.zeros(adapters.n_members, device=adapters.device)

    @torch.no_grad()
    def step(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Update the active members (P,) bool from .grad and clear it; no bit of the others is touched.
        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,)."""
        squares = [factor.grad.double().pow(2).sum((1, 2)) for factor in self.adapters.parameters()]
        norm = torch.stack(squares).sum(0).sqrt()          # (P,)
        a = (active & norm.isfinite()).nonzero().squeeze(1)            # who takes a step
        self.steps[a] += 1
        b1, b2 = BETAS
        t = self.steps[a].double()
        scale = (MAX_NORM / (norm[a] + 1e-6)).clamp_max(1.0).float()[:, None, None]
        lr_hat = (self.lr[a] / (1 - b1 ** t)).float()[:, None, None]   # with Adam's bias corrections
        root_hat = (1 - b2 ** t).rsqrt().float()[:, None, None]
        for factor, m, v in zip(self.adapters.parameters(), self.m, self.v):
            g = factor.grad[a] * scale
            m[a] = m[a].lerp(g, 1 - b1)
            v[a] = v[a].lerp(g * g, 1 - b2)
            factor[a] -= lr_hat * m[a] / (v[a].sqrt() * root_hat + EPS)
            factor.grad = None
        return norm, active & ~norm.isfinite()

    def reset(self, slot: int) -> None:
        """Forget a member's moments and steps: who replaces it starts fresh."""
        for x in (*self.m, *self.v):
            x[slot].zero_()
        self.steps[slot] = 0

    def state_dict(self, slot: int) -> dict[str, Tensor]:
        """A member's moments, as flat named tensors for safetensors; its steps are beside them."""
        state = {}
        for i, (m, v) in enumerate(zip(self.m, self.v)):
            state[f"m.{i}"], state[f"v.{i}"] = m[slot], v[slot]
        return state

    def load_state_dict(self, slot: int, state: dict[str, Tensor]) -> None:
        """Inverse of state_dict."""
        own = self.state_dict(slot)
        demand(state.keys() == own.keys(), "these are the moments of another population")
        for name, x in own.items():
            x.copy_(state[name])
