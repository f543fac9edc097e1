"""Advantages, loss and the joint update: every member learns from its own rows, all in one pass.

The loss is PPO's (1707.06347) with a baseline from the prompt's group in place of a critic. Where algorithms
differ is a flag of its own; config.ALGORITHMS says what each chooses:

    reinforce++  2501.03262   reward less the group's mean, whitened over a member's tokens of one role
    rloo         2402.14740   reward less the mean of the group's others
    grpo         2402.03300   divided by the group's deviation; rows count the same, however long
    dr_grpo      2503.20783   grpo without both: no deviation, a constant for the row's length
    gspo         2507.18071   grpo with one ratio for a whole answer
    dapo         2503.14476   grpo with a mean over tokens, and clipped later upwards
    cispo        2506.13585   a clipped ratio as the weight of every token: PPO's clip drops tokens

A member's loss is a sum over its own tokens: its step does not depend on who else is in the batch. Adam has
moments, steps, gradient norm and rate of each member (1412.6980).
"""
import sys
from dataclasses import dataclass, replace

import torch
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from config import Config, numbers_of, resolve_config
from generate import Rollout
from infra.distributed import ALONE, Ranks
from infra.errors import UserError, demand
from infra.gpu import send
from lora import Adapters, AdapterWeights, Route
from model import Base
from pack import Packed, micro_batches, pack

CHUNK = 1 << 25                            # logits that exist at once: a whole batch's would fill a GPU
DEFAULT = resolve_config(Config(), "micro")  # REINFORCE++, one epoch
SUMS = ("trained_tokens", "kl", "entropy", "capped_frac", "clip_frac", "approx_kl")


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
    x = x.double()
    weight = torch.ones_like(x) if weight is None else weight.to(x.dtype)
    _, index = group.unique(return_inverse=True)
    n_groups = int(index.max()) + 1

    def total(y):
        return x.new_zeros(n_groups).index_add_(0, index, y)

    mass = total(weight).clamp_min(1e-12)
    mean = (total(weight * x) / mass)[index]
    var = (total(weight * (x - mean) ** 2) / mass)[index]
    return mean, var.sqrt()


def advantages(batch: Batch, cfg: Config = DEFAULT) -> torch.Tensor:
    """One advantage per row (N,) float32, the same for each of its tokens. Rows of groups without variance
    get exactly 0 and take no part in the whitening, unless there is neither baseline nor scale. A reward that
    is not finite makes NaN, which `accumulate` reports."""
    mean, std = group_mean(batch.reward, batch.group)
    adv = batch.reward.to(mean.dtype)
    has_variance = ~(std <= 1e-6) | (cfg.baseline == "none")      # true for NaN
    if cfg.baseline != "none":
        adv = adv - mean
    if cfg.baseline == "leave-one-out":                    # r - mean of n - 1 others = (r - mean) n / (n - 1)
        _, index, n = batch.group.unique(return_inverse=True, return_counts=True)
        adv = adv * (n / (n - 1).clamp_min(1))[index]
    if cfg.baseline == "standardized":
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


def token_weight(rollout: Rollout, cfg: Config = DEFAULT) -> torch.Tensor:
    """Weight (N,) of each of a row's tokens in its member's loss: 1 / the mean's denominator. That is the
    member's answer tokens (member), rows x the row's tokens (row), or rows x max_new_tokens (constant)."""
    _, index = rollout.member.unique(return_inverse=True)
    rows = index.bincount()[index]
    if cfg.token_weight == "row":
        return 1.0 / (rows * rollout.n_tokens)
    if cfg.token_weight == "constant":
        return 1.0 / (rows * cfg.max_new_tokens)
    return 1.0 / torch.zeros_like(index).index_add_(0, index, rollout.n_tokens)[index]


# --- loss ---------------------------------------------------------------------------------------------------

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


def policy_loss(logp: torch.Tensor, old: torch.Tensor, p: Packed, adv: torch.Tensor, cfg: Config):
    """Loss of each token (M,) from its log-probability now and when sampled; whether its ratio is clipped.
    clip: -min(ratio A, clip(ratio) A) (PPO, eq. 7). sequence: the same with the geometric mean of an answer's
    ratios (GSPO, eq. 7). cispo: -clip(ratio) A logp, the ratio without gradient (MiniMax-M1, eq. 4)."""
    log_ratio = logp - old
    if cfg.loss == "sequence":
        zeros = torch.zeros_like(adv)                      # index_add has no fixed order on a GPU
        total = zeros.index_put((p.row,), log_ratio, accumulate=True)
        n_tokens = zeros.index_put((p.row,), torch.ones_like(log_ratio), accumulate=True)
        log_ratio = (total / n_tokens)[p.row]
    ratio, A = log_ratio.exp(), adv[p.row]
    low, high = numbers_of(cfg, "clip")
    clipped = ratio.clamp(1 - low, 1 + high)
    if cfg.loss == "cispo":
        return -clipped.detach() * A * logp, ratio != clipped
    return -torch.minimum(ratio * A, clipped * A), ratio != clipped


def token_losses(o: "Objective", route: Route, p: Packed, checkpointing: bool = False):
    """Loss and log-probability (M,) of the answer tokens of packed rows, and SUMS as a vector.

    policy_loss times the importance weight + kl_coef k3 - entropy_coef H. In the first epoch the ratio is 1,
    the gradient the plain policy gradient. The weight, min(exp(before - p.logp), importance_cap), corrects
    for a rollout that computes otherwise than training does (truncated importance sampling, 2505.24034).
    """
    base, cfg = o.base, o.cfg

    def states(lora):
        hidden = base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing)
        return hidden.flatten(0, 1)[p.source]

    def k3(log_ratio):                                     # http://joschu.net/blog/kl-approx.html
        return log_ratio.exp() - log_ratio - 1

    logp, H = token_logp(base, states(route), p.target, cfg.temperature, bool(cfg.entropy_coef))
    now = logp.detach()
    before = now if o.old is None else o.old[p.row, p.column]
    loss, clipped = policy_loss(logp, before, p, o.adv, cfg)
    terms = {}
    if o.old is not None:
        terms = dict(clip_frac=clipped, approx_kl=k3(now - before))
    if cfg.importance_cap:
        weight = (before - p.logp).exp()
        terms["capped_frac"] = weight > cfg.importance_cap
        loss = loss * weight.clamp_max(cfg.importance_cap)
    if cfg.kl_coef:
        with torch.no_grad():
            plain = token_logp(base, states(None), p.target, cfg.temperature, False)[0]
        terms["kl"] = k3(plain - logp)
        loss = loss + cfg.kl_coef * terms["kl"]
    if cfg.entropy_coef:
        terms["entropy"] = H
        loss = loss - cfg.entropy_coef * H
    terms["trained_tokens"] = torch.ones_like(now)
    none = torch.zeros_like(now)
    sums = [terms.get(name, none).detach().double().sum() for name in SUMS]
    return loss, now, torch.stack(sums)


# --- gradient and update ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Objective:
    """What is differentiated: every member's loss, the sum over its tokens of token_weight times the loss."""
    base: Base
    adapters: Adapters
    batch: Batch
    adv: torch.Tensor                      # (N,)
    cfg: Config = DEFAULT
    old: torch.Tensor | None = None        # (N, T) log-probabilities before the first epoch; None in it

    @property
    def contributing(self) -> torch.Tensor:
        """Rows (N,) bool with a gradient: a member's with an advantage, or with a KL or entropy term."""
        always = bool(self.cfg.kl_coef or self.cfg.entropy_coef)
        return (self.batch.rollout.member >= 0) & ((self.adv != 0) | always)


@dataclass
class Tally:
    """What a pass over a batch computes beside the gradient, summed over all processes."""
    logp: torch.Tensor                     # (N, T) log-probabilities of the trained tokens, elsewhere 0
    n_nonfinite: torch.Tensor              # (P,) tokens of each member whose loss is not finite
    tokens_per_microbatch: int             # what fits into memory: as asked, or less
    sums: dict[str, float]                 # SUMS

    def mean(self, *names: str) -> dict[str, float]:
        """Means of some of SUMS over the trained tokens."""
        return {name: self.sums[name] / max(1, self.sums["trained_tokens"]) for name in names}


def halved(n_tokens: int, budget: int, e: torch.OutOfMemoryError) -> int:
    """The next budget after so many tokens did not fit. Raises UserError where nothing can be split."""
    if n_tokens > budget:
        raise UserError(f"a row of {n_tokens} tokens does not fit into memory: lower --max-new-tokens, "
                         "--rank or --pop, or pass --dtype bfloat16; see --plan") from e
    print(f"note: a micro-batch of {n_tokens} tokens does not fit into memory: --tokens-per-microbatch is "
          f"{n_tokens // 2} from now on", file=sys.stderr, flush=True)
    return n_tokens // 2


def accumulate(o: Objective, ranks: Ranks = ALONE, desc: str = "") -> tuple[Tally, torch.Tensor]:
    """Put the gradient of every member's loss into the stacked factors' .grad, summed over all processes.

    Rows that cannot contribute are left out. Where members have a non-finite loss, all is done again without
    them, lest they spoil their neighbours' gradients. desc: title of a progress bar.
    Returns the last pass's Tally and the members (P,) bool that were left out.
    """
    rows, budget = o.contributing, o.cfg.tokens_per_microbatch
    left_out = torch.zeros(o.adapters.n_members, dtype=torch.bool, device=o.adv.device)
    while True:
        tally = one_pass(o, rows, budget, ranks, desc)
        broken = tally.n_nonfinite > 0
        if not broken.any():
            return tally, left_out
        left_out |= broken
        rows &= ~left_out[o.batch.rollout.member]
        budget = tally.tokens_per_microbatch


def one_pass(o: Objective, rows: torch.Tensor, budget: int, ranks: Ranks, desc: str) -> Tally:
    """`accumulate` of the given rows (N,) bool. The processor waits for a GPU only when it is through. Where
    a micro-batch does not fit into memory, all that is left is split by half the budget."""
    rollout, numbers = o.batch.rollout.to("cpu"), rows.nonzero().squeeze(1).tolist()
    weight, device = token_weight(o.batch.rollout, o.cfg), o.adv.device
    for p in o.adapters.parameters():
        p.grad = torch.zeros_like(p)
    all_logp = torch.zeros_like(o.batch.rollout.logp)
    n_nonfinite = torch.zeros(o.adapters.n_members, device=device)
    totals = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
    todo = micro_batches(rollout, numbers, budget)[ranks.rank::ranks.world]
    with tqdm(total=len(todo), desc=desc, leave=False, disable=not desc) as bar:
        while todo:
            p = pack(rollout, todo[0], device)
            try:
                weights, loss, logp, sums = backward(o, p, weight, p.ids.numel() > budget)
            except torch.OutOfMemoryError as e:
                budget = halved(p.ids.numel(), budget, e)
                todo = micro_batches(rollout, [i for part in todo for line in part for i in line], budget)
                continue
            weights.add_gradients()                 # lack of memory ends the run: half of it may be added
            all_logp[p.row, p.column] = logp
            member = send(p.member, device)[p.source // p.ids.shape[1]]
            n_nonfinite.index_add_(0, member, (~loss.isfinite()).float())
            totals += sums
            todo.pop(0)
            bar.update()
    ranks.all_reduce(totals, n_nonfinite, all_logp, *(p.grad for p in o.adapters.parameters()))
    return Tally(all_logp, n_nonfinite, ranks.all_reduce_min(budget), dict(zip(SUMS, totals.tolist())))


def backward(o: Objective, p: Packed, weight: torch.Tensor, checkpointing: bool) -> tuple:
    """A micro-batch's AdapterWeights, with gradients by weights (N,) of its rows' tokens, and token_losses'
    results, detached. Never waits for a GPU."""
    weights = AdapterWeights(o.adapters, p.member, o.base.model.embedding.dtype, trains=True)
    for linear in o.base.model.fused_linears():
        weights.together(linear.paths, linear.sizes)            # outside of what is checkpointed
    loss, logp, sums = token_losses(o, weights.route(p.member), p, checkpointing)
    (loss * weight[p.row]).sum().backward()
    return weights, loss.detach(), logp, sums


def gap(logp: torch.Tensor, rollout: Rollout, rows: torch.Tensor) -> dict[str, float]:
    """How much log-probabilities (N, T) in training differ from the rollout's: mean, 99th percentile."""
    size = (logp - rollout.logp)[rollout.mask & rows[:, None]].abs().double().cpu().sort().values
    size = size if len(size) else torch.zeros(1)
    return dict(train_rollout_logprob_diff=size.mean().item(),
                train_rollout_logprob_p99=size[(len(size) - 1) * 99 // 100].item())


def update(o: Objective, adam: "Adam", first: tuple | None = None, ranks: Ranks = ALONE,
           desc: str = "") -> dict:
    """cfg.epochs optimiser steps. Members without a row that contributes are not touched, whatever their
    momentum, nor from then on is one whose loss or gradient is not finite.

    first: what `accumulate` returned for the first epoch, if it was called. Returns trained_tokens and
    skipped members of all epochs and the tokens_per_microbatch that fit; of the first epoch, grad_norm per
    member, `gap` and means per token of kl, entropy and capped_frac; of the last, if there are several,
    clip_frac and approx_kl, both against the policy before the first.
    """
    tally, broken = first or accumulate(o, ranks, desc)
    rollout, rows = o.batch.rollout, o.contributing
    active = torch.zeros_like(broken)
    active[rollout.member[rows]] = True
    figures = gap(tally.logp, rollout, rows & ~broken[rollout.member])
    figures |= tally.mean("kl", "entropy", "capped_frac")
    norm, skipped = adam.step(active & ~broken)
    skipped = skipped | broken
    before, n_trained = tally.logp, tally.sums["trained_tokens"]
    for _ in range(1, o.cfg.epochs):
        cfg = replace(o.cfg, tokens_per_microbatch=tally.tokens_per_microbatch)
        tally, broken = accumulate(replace(o, cfg=cfg, old=before), ranks, desc)
        skipped |= broken
        skipped |= adam.step(active & ~skipped)[1]
        n_trained += tally.sums["trained_tokens"]
    if o.cfg.epochs > 1:
        figures |= tally.mean("clip_frac", "approx_kl")
    return dict(trained_tokens=int(n_trained), **figures, tokens_per_microbatch=tally.tokens_per_microbatch,
                grad_norm=[round(x, 6) for x in norm.tolist()], skipped=skipped.nonzero().squeeze(1).tolist())


# --- optimiser ----------------------------------------------------------------------------------------------

class Adam:
    """Adam over stacked factors; moments, steps, gradient norm, clipped to `clip`, and rate per member. The
    moments m and v (P, ...) lie where the masters are: a step takes those of the members that it moves."""

    def __init__(self, adapters: Adapters, lr: list[float], betas=(0.9, 0.95), eps=1e-8, clip=1.0):
        self.adapters = adapters
        self.lr = torch.tensor(lr, device=adapters.device)
        self.betas, self.eps, self.clip = betas, eps, clip
        masters = [master for pair in adapters.masters.values() for master in pair]
        self.m, self.v = [[torch.zeros_like(p, requires_grad=False) for p in masters] for _ in range(2)]
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=adapters.device)

    @torch.no_grad()
    def step(self, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the active members (P,) bool from .grad and clear it; no bit of the others is touched.
        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,)."""
        params = self.adapters.parameters()                                    # of the k members here
        norm = torch.zeros(len(active), dtype=torch.float64, device=active.device)
        squares = torch.stack([p.grad.double().pow(2).sum((1, 2)) for p in params])
        norm[self.adapters.here] = squares.sum(0).sqrt()
        skipped = active & ~norm.isfinite()
        a = (active & norm.isfinite()).nonzero().squeeze(1)
        if len(a):
            self.steps[a] += 1
            b1, b2 = self.betas
            t = self.steps[a].double()
            scale = (self.clip / (norm[a] + 1e-6)).clamp_max(1.0).float()[:, None, None]
            lr_hat = (self.lr[a] / (1 - b1 ** t)).float()[:, None, None]       # with Adam's bias corrections
            root_hat = (1 - b2 ** t).rsqrt().float()[:, None, None]
            rows, home = self.adapters.rows(a), a.to(self.m[0].device)
            for p, m, v in zip(params, self.m, self.v):
                g = p.grad[rows] * scale
                mean = m[home].to(g).lerp(g, 1 - b1)
                square = v[home].to(g).lerp(g * g, 1 - b2)
                p[rows] -= lr_hat * mean / (square.sqrt() * root_hat + self.eps)
                m[home] = mean.to(m)
                v[home] = square.to(v)
            self.adapters.write_back(a)
        for p in params:
            p.grad = None
        return norm, skipped

    def reset(self, p: int) -> None:
        """Forget member p's moments and steps: a replaced member starts fresh."""
        for x in (*self.m, *self.v):
            x[p].zero_()
        self.steps[p] = 0

    def state_dict(self, p: int) -> dict[str, torch.Tensor]:
        """Member p's moments, as flat named tensors for safetensors; its steps are beside them."""
        first = {f"m.{i}": x[p] for i, x in enumerate(self.m)}
        return first | {f"v.{i}": x[p] for i, x in enumerate(self.v)}

    def load_state_dict(self, p: int, state: dict[str, torch.Tensor]) -> None:
        """Inverse of state_dict. Raises UserError for other names or shapes, and numbers not finite."""
        demand(state.keys() == self.state_dict(p).keys(), f"moments are {', '.join(state) or 'none'}")
        for name, x in self.state_dict(p).items():
            demand(state[name].shape == x.shape and state[name].isfinite().all(),
                   f"{name} is {tuple(state[name].shape)}, not finite numbers {tuple(x.shape)}")
            x.copy_(state[name])
