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
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from config import Config, resolve_config, spelled
from generate import Rollout
from infra.distributed import ALONE, Ranks
from infra.errors import UserError, demand
from lora import Adapters, AdapterWeights, Route
from model import Base
from pack import Packed, micro_batches, pack

CHUNK = 1 << 25                            # logits that exist at once: a whole batch's would fill a GPU
DEFAULT = resolve_config(Config(), "micro")  # REINFORCE++, one epoch
BETAS = (0.9, 0.95)                        # of Adam
EPS = 1e-8                                 # of Adam
MAX_NORM = 1.0                             # to which a member's gradient is clipped
# What is summed over the trained tokens of a pass, in this order, to be reported as means
SUMS = ("trained_tokens", "kl", "entropy", "capped_frac", "clip_frac", "approx_kl")


@dataclass
class Batch:
    """What one step learns from: N rows, their rewards, and the groups of baselines and whitening."""
    rollout: Rollout
    reward: Tensor                   # (N,) float32
    group: Tensor                    # (N,) rows of one prompt share a number
    role: Tensor                     # (N,) number of the role: a single agent plays all, whitened apart
    kind: Tensor                     # (N,) index of the task type


def no_case(name: str, cfg: Config, where: str) -> str:
    """What is said of a value that config.py allows and no function of this file knows: without a case it
    would compute what the default does, and nobody would notice."""
    return f"{spelled(name)} {getattr(cfg, name)} has no case in {where}: add one there"


# --- advantages ---------------------------------------------------------------------------------------------

def total(x: Tensor, index: Tensor) -> Tensor:
    """The sum of x (N,) over each group (n_groups,); index (N,): the groups, numbered without gaps."""
    n_groups = int(index.max()) + 1
    return x.new_zeros(n_groups).index_add_(0, index, x)


def mean_and_std(
    x: Tensor,                       # (N,) float64
    group: Tensor,                   # (N,) rows with the same number are a group
    weight: Tensor,                  # (N,)
) -> tuple[Tensor, Tensor]:
    """The weighted mean and the standard deviation of x in each row's group, both (N,) float64."""
    _, index = group.unique(return_inverse=True)           # the groups, numbered without gaps
    mass = total(weight.to(x.dtype), index).clamp_min(1e-12)
    mean = total(weight * x, index) / mass
    mean = mean[index]                                     # back to (N,)
    var = total(weight * (x - mean) ** 2, index) / mass
    return mean, var[index].sqrt()


def advantages(batch: Batch, cfg: Config = DEFAULT) -> Tensor:
    """One advantage per row (N,) float32, the same for each of its tokens. Rows of groups without variance
    get exactly 0 and take no part in the whitening; with the baseline "none" every row takes part. A reward
    that is not finite makes NaN, which `accumulate` reports."""
    adv = batch.reward.double()
    mean, std = mean_and_std(adv, batch.group, torch.ones_like(adv))
    has_variance = ~(std <= 1e-6)                          # not std > 1e-6, which is false for NaN
    if cfg.baseline == "none":
        has_variance = torch.ones_like(has_variance)
    else:
        adv = adv - mean
    if cfg.baseline == "leave-one-out":                    # r - mean of n - 1 others = (r - mean) n / (n - 1)
        _, index, n = batch.group.unique(return_inverse=True, return_counts=True)
        correction = n / (n - 1).clamp_min(1)              # of each group
        adv = adv * correction[index]
    elif cfg.baseline == "standardized":
        adv = adv / (std + 1e-6)
    else:
        assert cfg.baseline in ("group", "none"), no_case("baseline", cfg, "rl.advantages")
    adv = adv.masked_fill(~has_variance, 0.0)
    how = cfg.normalize_advantages
    assert how in ("member", "kind", "off"), no_case("normalize_advantages", cfg, "rl.advantages")
    if how != "off" and has_variance.any():
        adv = whiten(adv, batch, has_variance, how == "kind")
    return adv.float()


def whiten(
    adv: Tensor,                           # (N,)
    batch: Batch,
    rows: Tensor,                          # (N,) bool: which rows take part; the others get 0
    by_kind: bool,
) -> Tensor:
    """Advantages (N,) with mean 0 and deviation 1 over the answer tokens of each member in each role, and
    with by_kind in each task type, too."""
    columns = [batch.rollout.member, batch.role]
    if by_kind:
        columns.append(batch.kind)
    table = torch.stack(columns, 1)                        # (N, 2 or 3): equal lines are a group
    _, group = table.unique(dim=0, return_inverse=True)
    n_tokens = batch.rollout.n_tokens * rows
    mean, std = mean_and_std(adv, group, n_tokens)
    adv = (adv - mean) / (std + 1e-6)
    return adv.masked_fill(~rows, 0.0)


def token_weight(rollout: Rollout, cfg: Config = DEFAULT) -> Tensor:
    """Weight (N,) of each of a row's tokens in its member's loss: 1 / the mean's denominator. That is the
    member's answer tokens (member), rows x the row's tokens (row), or rows x max_new_tokens (constant)."""
    _, index = rollout.member.unique(return_inverse=True)
    rows = index.bincount()[index]                         # (N,) how many rows the row's member has
    if cfg.token_weight == "row":
        return 1.0 / (rows * rollout.n_tokens)
    if cfg.token_weight == "constant":
        return 1.0 / (rows * cfg.max_new_tokens)
    assert cfg.token_weight == "member", no_case("token_weight", cfg, "rl.token_weight")
    tokens = total(rollout.n_tokens, index)                # of each member
    return 1.0 / tokens[index]


# --- loss ---------------------------------------------------------------------------------------------------

def token_logp(
    base: Base,
    hidden: Tensor,                  # (M, C)
    target: Tensor,                  # (M,)
    temperature: float,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability (M,) of the target tokens given the states, and entropy (M,) or None; float32.
    Works in checkpointed chunks, so that at most CHUNK logits exist at once."""
    def piece(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = base.model.logits(h).float()
        logp = (logits / temperature).log_softmax(-1)      # (M, V)
        H = None
        if entropy:
            H = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, y[:, None]).squeeze(1), H

    n = max(1, CHUNK // base.model.cfg.vocab_size)         # tokens of a chunk
    if len(target) <= n:
        return piece(hidden, target)
    logps, entropies = [], []
    for h, y in zip(hidden.split(n), target.split(n)):
        logp, H = checkpoint(piece, h, y, use_reentrant=False)
        logps.append(logp)
        entropies.append(H)
    return torch.cat(logps), torch.cat(entropies) if entropy else None


def answer_mean(
    x: Tensor,                             # (M,)
    p: Packed,
    n_rows: int,
) -> Tensor:
    """For each answer token the mean of x (M,) over the tokens of its answer."""
    zeros = x.new_zeros(n_rows)
    # index_put: index_add has no fixed order on a GPU
    total = zeros.index_put((p.row,), x, accumulate=True)
    n_tokens = zeros.index_put((p.row,), torch.ones_like(x), accumulate=True)
    return (total / n_tokens)[p.row]


def policy_loss(
    logp: Tensor,                    # (M,) now
    old: Tensor,                     # (M,) before the first epoch, computed as now: not p.logp
    p: Packed,
    adv: Tensor,                     # (N,)
    cfg: Config,
) -> tuple[Tensor, Tensor]:
    """Loss of each token (M,), and whether its ratio is clipped (M,).

    clip: -min(ratio A, clip(ratio) A) (PPO, eq. 7). sequence: the same with the geometric mean of an answer's
    ratios (GSPO, eq. 7). cispo: -clip(ratio) A logp, the ratio without gradient (MiniMax-M1, eq. 4).
    """
    log_ratio = logp - old
    if cfg.loss == "sequence":
        log_ratio = answer_mean(log_ratio, p, len(adv))
    ratio = log_ratio.exp()
    A = adv[p.row]
    low, high = cfg.clip
    clipped = ratio.clamp(1 - low, 1 + high)
    is_clipped = ratio != clipped
    if cfg.loss == "cispo":
        return -clipped.detach() * A * logp, is_clipped
    assert cfg.loss in ("clip", "sequence"), no_case("loss", cfg, "rl.policy_loss")
    return -torch.minimum(ratio * A, clipped * A), is_clipped


def k3(log_ratio: Tensor) -> Tensor:
    """Schulman's estimate of a KL divergence, never negative (http://joschu.net/blog/kl-approx.html)."""
    return log_ratio.exp() - log_ratio - 1


def states(
    o: "Objective",
    lora: Route | None,                    # None = of the frozen base
    p: Packed,
    checkpointing: bool,
) -> Tensor:
    """The states (M, C) from which the model predicts the answer tokens."""
    hidden = o.base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing)
    return hidden.flatten(0, 1)[p.source]                  # (G, T, C) -> (M, C)


def token_losses(
    o: "Objective",
    route: Route,
    p: Packed,
    checkpointing: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and log-probability (M,) of the answer tokens of packed rows, and SUMS as a vector.

    policy_loss times the importance weight + kl_coef k3 - entropy_coef H. In the first epoch the ratio is 1,
    the gradient the plain policy gradient. The weight, min(exp(old - p.logp), importance_cap), corrects
    for a rollout that computes otherwise than training does (truncated importance sampling, 2505.24034).
    """
    base, cfg = o.base, o.cfg
    hidden = states(o, route, p, checkpointing)
    logp, H = token_logp(base, hidden, p.target, cfg.temperature, bool(cfg.entropy_coef))
    now = logp.detach()
    old = now                              # in the first epoch: nothing has been updated yet
    if o.old is not None:
        old = o.old[p.row, p.column]
    loss, clipped = policy_loss(logp, old, p, o.adv, cfg)
    # name of SUMS -> (M,); what this configuration does not compute stays 0
    terms = dict.fromkeys(SUMS, torch.zeros_like(now))
    terms["trained_tokens"] = torch.ones_like(now)
    terms["clip_frac"] = clipped
    terms["approx_kl"] = k3(now - old)
    if cfg.importance_cap:
        weight = (old - p.logp).exp()
        terms["capped_frac"] = weight > cfg.importance_cap
        loss = loss * weight.clamp_max(cfg.importance_cap)
    if cfg.kl_coef:
        with torch.no_grad():
            hidden = states(o, None, p, checkpointing)
            plain, _ = token_logp(base, hidden, p.target, cfg.temperature, False)
        terms["kl"] = k3(plain - logp)
        loss = loss + cfg.kl_coef * terms["kl"]
    if cfg.entropy_coef:
        terms["entropy"] = H
        loss = loss - cfg.entropy_coef * H

    sums = []
    for term in terms.values():
        sums.append(term.detach().double().sum())
    return loss, now, torch.stack(sums)


# --- gradient -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Objective:
    """What is differentiated: every member's loss, the sum over its tokens of token_weight times the loss."""
    base: Base
    adapters: Adapters
    batch: Batch
    adv: Tensor                      # (N,)
    cfg: Config = DEFAULT
    old: Tensor | None = None        # (N, T) log-probabilities before the first epoch; None in it

    def __post_init__(self):
        n_rows = len(self.batch.reward)
        shape = tuple(getattr(self.adv, "shape", ()))
        # a number or a column would be broadcast, and every row would learn something else
        assert shape == (n_rows,), (f"rl.advantages gave a {type(self.adv).__name__} of shape {shape} for "
                                    f"{n_rows} rows: give a Tensor, one number for each row, ({n_rows},)")

    @property
    def contributing(self) -> Tensor:
        """Rows (N,) bool with a gradient: a member's with an advantage, or with a KL or entropy term."""
        always = bool(self.cfg.kl_coef or self.cfg.entropy_coef)        # these terms have a gradient
        is_members = self.batch.rollout.member >= 0        # not the frozen base's
        return is_members & ((self.adv != 0) | always)


@dataclass
class Tally:
    """What a pass over a batch computes beside the gradient, summed over all processes."""
    logp: Tensor                     # (N, T) log-probabilities of the trained tokens, elsewhere 0
    n_nonfinite: Tensor              # (P,) tokens of each member whose loss is not finite
    tokens_per_microbatch: int             # what fits into memory: as asked, or less
    sums: dict[str, float]                 # SUMS

    def mean(self, *names: str) -> dict[str, float]:
        """Means of some of SUMS over the trained tokens."""
        n = max(1, self.sums["trained_tokens"])
        return {name: self.sums[name] / n for name in names}


def halved(n_tokens: int, budget: int, e: torch.OutOfMemoryError) -> int:
    """The next budget after so many tokens did not fit. Raises UserError where nothing can be split."""
    if n_tokens > budget:                  # one row alone, for which the budget had no place either
        raise UserError(f"a row of {n_tokens} tokens does not fit into memory: lower --max-new-tokens, "
                         "--rank or --pop, or pass --dtype bfloat16; see --plan") from e
    print(f"note: a micro-batch of {n_tokens} tokens does not fit into memory: --tokens-per-microbatch is "
          f"{n_tokens // 2} from now on", file=sys.stderr, flush=True)
    return n_tokens // 2


def accumulate(
    o: Objective,
    ranks: Ranks = ALONE,
    desc: str = "",                        # title of a progress bar
) -> tuple[Tally, Tensor]:
    """Put the gradient of every member's loss into the stacked factors' .grad, summed over all processes.

    Rows that cannot contribute are left out. Where members have a non-finite loss, all is done again without
    them, lest they spoil their neighbours' gradients.
    Returns the last pass's Tally and the members (P,) bool that were left out.
    """
    rows = o.contributing
    budget = o.cfg.tokens_per_microbatch
    broken = torch.zeros(o.adapters.n_members, dtype=torch.bool, device=o.adv.device)
    while True:
        tally = one_pass(o, rows, budget, ranks, desc)
        newly_broken = tally.n_nonfinite > 0
        if not newly_broken.any():
            return tally, broken
        broken |= newly_broken
        # the base's member is -1, the last one's place: none of its rows contributes
        rows &= ~broken[o.batch.rollout.member]
        budget = tally.tokens_per_microbatch


def one_pass(
    o: Objective,
    rows: Tensor,                          # (N,) bool: which of them to learn from
    budget: int,                           # padded tokens of a micro-batch
    ranks: Ranks,
    desc: str,
) -> Tally:
    """`accumulate` of the given rows. The processor waits for a GPU only when it is through. Where
    a micro-batch does not fit into memory, all that is left is split by half the budget."""
    rollout = o.batch.rollout.to("cpu")                    # rows are packed there
    numbers = rows.nonzero().squeeze(1).tolist()
    weight = token_weight(o.batch.rollout, o.cfg)
    device = o.adv.device
    parameters = o.adapters.parameters()
    for factor in parameters:
        factor.grad = torch.zeros_like(factor)
    all_logp = torch.zeros_like(o.batch.rollout.logp)
    n_nonfinite = torch.zeros(o.adapters.n_members, device=device)
    totals = torch.zeros(len(SUMS), dtype=torch.float64, device=device)

    todo = micro_batches(rollout, numbers, budget)[ranks.rank::ranks.world]
    with tqdm(total=len(todo), desc=desc, leave=False, disable=not desc) as bar:
        while todo:
            p = pack(rollout, todo[0], device)
            n_padded = p.ids.numel()
            try:
                done = backward(o, p, weight, checkpointing=n_padded > budget)
            except torch.OutOfMemoryError as e:
                budget = halved(n_padded, budget, e)
                left = sum(todo, [])                # lines of rows
                todo = micro_batches(rollout, sum(left, []), budget)
                continue
            # Outside of the try: where memory ends in here, half of the gradients may have been added, and to
            # split the micro-batch would add them once more. It ends the run.
            done.weights.add_gradients()
            all_logp[p.row, p.column] = done.logp
            member = o.batch.rollout.member[p.row]                              # (M,) of each token
            n_nonfinite.index_add_(0, member, (~done.loss.isfinite()).float())
            totals += done.sums
            todo.pop(0)
            bar.update()
    gradients = [factor.grad for factor in parameters]
    ranks.all_reduce(totals, n_nonfinite, all_logp, *gradients)
    budget = ranks.all_reduce_min(budget)
    return Tally(all_logp, n_nonfinite, budget, dict(zip(SUMS, totals.tolist())))


@dataclass
class Backward:
    """What a micro-batch's backward pass leaves."""
    weights: AdapterWeights                # with gradients, not yet added to those of the pass
    loss: Tensor                     # (M,)
    logp: Tensor                     # (M,)
    sums: Tensor                     # (len(SUMS),)


def backward(
    o: Objective,
    p: Packed,
    weight: Tensor,                        # (N,) of each of a row's tokens
    checkpointing: bool,
) -> Backward:
    """Forward and backward pass of a micro-batch. Never waits for a GPU."""
    weights = AdapterWeights(o.adapters, p.member, o.base.model.embedding.dtype, trains=True)
    for linear in o.base.model.fused_linears():
        weights.for_layers(linear.paths, linear.sizes)            # outside of what is checkpointed
    loss, logp, sums = token_losses(o, weights.route(p.member), p, checkpointing)
    (loss * weight[p.row]).sum().backward()
    return Backward(weights, loss.detach(), logp, sums)


# --- update -------------------------------------------------------------------------------------------------

def gap(
    logp: Tensor,                          # (N, T) in training
    rollout: Rollout,
    rows: Tensor,                          # (N,) bool: which were trained
) -> dict[str, float]:
    """How much log-probabilities in training differ from the rollout's: mean, 99th percentile."""
    trained = rollout.mask & rows[:, None]                 # (N, T)
    difference = (logp - rollout.logp)[trained]
    size = difference.abs().double().cpu()
    size = size.sort().values
    if len(size) == 0:                     # nothing was trained
        size = torch.zeros(1)
    place = (len(size) - 1) * 99 // 100
    return dict(
        train_rollout_logprob_diff=size.mean().item(),
        train_rollout_logprob_p99=size[place].item(),
    )


def update(
    o: Objective,
    adam: "Adam",
    first_epoch: tuple[Tally, Tensor] | None = None,
    ranks: Ranks = ALONE,
    desc: str = "",
) -> dict:
    """cfg.epochs optimiser steps. A member without a row that contributes is not touched, whatever its
    momentum. A member whose loss or gradient is not finite is not touched, either, from that epoch on.

    first_epoch: what `accumulate` returned, where it was called before. Returns trained_tokens and
    skipped members of all epochs and the tokens_per_microbatch that fit; of the first epoch, grad_norm per
    member, `gap` and means per token of kl, entropy and capped_frac; of the last, if there are several,
    clip_frac and approx_kl, both against the policy before the first.
    """
    tally, broken = first_epoch or accumulate(o, ranks, desc)
    rollout, rows = o.batch.rollout, o.contributing
    active = torch.zeros_like(broken)                      # (P,)
    active[rollout.member[rows]] = True
    figures = gap(tally.logp, rollout, rows & ~broken[rollout.member])
    figures |= tally.mean("kl", "entropy", "capped_frac")
    norm, failed = adam.step(active & ~broken)
    skipped = broken | failed
    n_trained = tally.sums["trained_tokens"]

    old = tally.logp                       # of the policy that wrote the rollout: the ratio's denominator
    for _ in range(1, o.cfg.epochs):
        cfg = replace(o.cfg, tokens_per_microbatch=tally.tokens_per_microbatch)
        tally, broken = accumulate(replace(o, cfg=cfg, old=old), ranks, desc)
        skipped |= broken
        _, failed = adam.step(active & ~skipped)
        skipped |= failed
        n_trained += tally.sums["trained_tokens"]
    if o.cfg.epochs > 1:
        figures |= tally.mean("clip_frac", "approx_kl")
    return dict(
        trained_tokens=int(n_trained),
        **figures,
        tokens_per_microbatch=tally.tokens_per_microbatch,
        grad_norm=[round(x, 6) for x in norm.tolist()],
        skipped=skipped.nonzero().squeeze(1).tolist(),
    )


def per_member(x: Tensor) -> Tensor:
    """A number for each member (a,), laid out to scale that member's factor in a stack (a, ...)."""
    return x.float()[:, None, None]


class Adam:
    """Adam over stacked factors; moments, steps, gradient norm, clipped to MAX_NORM, and rate per member. The
    moments m and v (P, ...) lie where the masters are: a step takes those of the members that it moves."""

    def __init__(self, adapters: Adapters, lr: list[float]):    # lr: of each member
        self.adapters = adapters
        self.lr = torch.tensor(lr, device=adapters.device)
        self.m, self.v = [], []            # of each factor, A and B of a layer side by side
        for pair in adapters.masters.values():
            for master in pair:
                self.m.append(torch.zeros_like(master))
                self.v.append(torch.zeros_like(master))
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=adapters.device)

    def gradient_norms(self) -> Tensor:
        """The norm (P,) float64 of each member's gradient over all factors; 0 for one that is not here."""
        norm = torch.zeros_like(self.steps, dtype=torch.float64)
        squares = []                       # of each factor, (k,) for the k members here
        for factor in self.adapters.parameters():
            square = factor.grad.double().pow(2)
            squares.append(square.sum((1, 2)))
        norm[self.adapters.here] = torch.stack(squares).sum(0).sqrt()
        return norm

    @torch.no_grad()
    def step(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Update the active members (P,) bool from .grad and clear it; no bit of the others is touched.
        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,)."""
        norm = self.gradient_norms()
        finite = norm.isfinite()
        skipped = active & ~finite
        moved = (active & finite).nonzero().squeeze(1)      # numbers of the members that take a step
        if len(moved):
            self.steps[moved] += 1
            self.move(moved, norm[moved])
            self.adapters.write_back(moved)
        for factor in self.adapters.parameters():
            factor.grad = None
        return norm, skipped

    def move(self, a: Tensor, norm: Tensor) -> None:
        """Adam's step of the a members whose numbers (a,) and gradient norms (a,) are given."""
        b1, b2 = BETAS
        t = self.steps[a].double()
        clipping = MAX_NORM / (norm + 1e-6)
        scale = per_member(clipping.clamp_max(1.0))
        lr_hat = per_member(self.lr[a] / (1 - b1 ** t))                    # with Adam's bias corrections
        root_hat = per_member((1 - b2 ** t).rsqrt())
        rows = self.adapters.rows(a)       # where these members are in the factors, and home in the moments
        home = a.to(self.m[0].device)
        for factor, m, v in zip(self.adapters.parameters(), self.m, self.v):
            g = factor.grad[rows] * scale
            mean = m[home].to(g).lerp(g, 1 - b1)
            square = v[home].to(g).lerp(g * g, 1 - b2)
            factor[rows] -= lr_hat * mean / (square.sqrt() * root_hat + EPS)
            m[home] = mean.to(m)
            v[home] = square.to(v)

    def reset(self, slot: int) -> None:
        """Forget a member's moments and steps: who replaces it starts fresh."""
        for x in (*self.m, *self.v):
            x[slot].zero_()
        self.steps[slot] = 0

    def state_dict(self, slot: int) -> dict[str, Tensor]:
        """A member's moments, as flat named tensors for safetensors; its steps are beside them."""
        state = {}
        for i, (m, v) in enumerate(zip(self.m, self.v)):
            state[f"m.{i}"] = m[slot]
            state[f"v.{i}"] = v[slot]
        return state

    def load_state_dict(self, slot: int, state: dict[str, Tensor]) -> None:
        """Inverse of state_dict. Raises UserError for other names or shapes, and numbers not finite."""
        own = self.state_dict(slot)
        demand(state.keys() == own.keys(), f"moments are {', '.join(state) or 'none'}")
        for name, x in own.items():
            given = state[name]
            demand(given.shape == x.shape and given.isfinite().all(),
                   f"{name} is {tuple(given.shape)}, not finite numbers {tuple(x.shape)}")
            x.copy_(given)
