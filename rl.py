"""Computes advantages and losses, and updates all members in one pass, each from its own rows.

A step is one gradient step on what was sampled just now. The policy's ratio is 1 then, so the clipped losses
of PPO, GSPO and CISPO have the gradient of -A logp. Algorithms differ in the advantage A of an answer, and in
what a member's loss is divided by, which is its number of tokens unless the table says otherwise:

    reinforce++  2501.03262   reward less the group's mean, whitened over a member's tokens of one role
    rloo         2402.14740   reward less the mean of the group's other rewards
    grpo         2402.03300   reward less the group's mean, over its deviation; every row weighs the same
    dr_grpo      2503.20783   reward less the group's mean; the loss is divided by a constant

A member's loss is a sum over its own tokens, so its step does not depend on who else is in the batch. Adam
(1412.6980) keeps moments, steps, gradient norm and rate apart for each member.
"""
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from common import UserError
from config import Config, resolve_config
from generate import Rollout
from lora import Adapters, AdapterWeights, Route
from model import Base
from ranks import ALONE, Ranks, send

CHUNK = 1 << 25                            # logits that exist at once; a whole batch's would fill a GPU
DEFAULT = resolve_config(Config(), "micro")
BETAS = (0.9, 0.95)                        # Adam's
EPS = 1e-8                                 # Adam's
MAX_NORM = 1.0                             # to which a member's gradient is clipped
CAP = 2.0                                  # largest importance weight, see token_loss


@dataclass
class Batch:
    """Holds what one step learns from: N rows, their rewards, the groups of baselines and whitening."""
    rollout: Rollout
    reward: Tensor                   # (N,) float32
    group: Tensor                    # (N,) rows of one prompt share a number
    role: Tensor                     # (N,) index into evolve.ROLES: with --single a member plays several
    kind: Tensor                     # (N,) index of the task type


# --- advantages ---------------------------------------------------------------------------------------------

def total(x: Tensor, index: Tensor) -> Tensor:
    """Returns the sum of x (N,) over each group (n_groups,). index (N,) is each number's group, from 0 up."""
    n_groups = int(index.max()) + 1
    return x.new_zeros(n_groups).index_add_(0, index, x)


def mean_and_std(
    x: Tensor,                      # (N,) float64
    group: Tensor,                  # (N,) rows with the same number are a group
    weight: Tensor,                 # (N,)
) -> tuple[Tensor, Tensor]:
    """Returns the weighted mean and the standard deviation of x in each row's group, both (N,) float64."""
    _, index = group.unique(return_inverse=True)
    mass = total(weight.to(x.dtype), index).clamp_min(1e-12)
    mean = total(weight * x, index) / mass
    mean = mean[index]                                     # back to (N,)
    var = total(weight * (x - mean) ** 2, index) / mass
    return mean, var[index].sqrt()


def advantages(batch: Batch, cfg: Config = DEFAULT) -> Tensor:
    """Returns one advantage per row (N,) float32, the same for each of its tokens.

    Rows of groups without variance get exactly 0 and take no part in the whitening; with the baseline "none"
    every row takes part. A reward that is not finite makes NaN, and its member takes no step.
    """
    adv = batch.reward.double()
    mean, std = mean_and_std(adv, batch.group, torch.ones_like(adv))
    has_variance = ~(std <= 1e-6)                          # not std > 1e-6, which is false for NaN
    if cfg.baseline == "none":
        has_variance = torch.ones_like(has_variance)
    else:
        adv = adv - mean
    if cfg.baseline == "leave-one-out":                    # r - mean of n - 1 others = (r - mean) n / (n - 1)
        _, index, n = batch.group.unique(return_inverse=True, return_counts=True)
        correction = n / (n - 1).clamp_min(1)              # for each group
        adv = adv * correction[index]
    elif cfg.baseline == "standardized":
        adv = adv / (std + 1e-6)
    else:
        assert cfg.baseline in ("group", "none"), f"--baseline {cfg.baseline} has no case in rl.py: add one"
    adv = adv.masked_fill(~has_variance, 0.0)
    how = cfg.normalize_advantages
    assert how in ("member", "kind", "off"), f"--normalize-advantages {how} has no case in rl.py: add one"
    if how != "off" and has_variance.any():
        adv = whiten(adv, batch, has_variance, how == "kind")
    return adv.float()


def whiten(
    adv: Tensor,                    # (N,)
    batch: Batch,
    rows: Tensor,                   # (N,) bool: who takes part; the others get 0
    by_kind: bool,                  # within each task type, too
) -> Tensor:
    """Returns advantages (N,) with mean 0 and deviation 1 over the answer tokens of each member in each
    role."""
    kind = batch.kind * by_kind                            # 0 for all, unless types count
    table = torch.stack([batch.rollout.member, batch.role, kind], 1)        # (N, 3): equal lines are a group
    _, group = table.unique(dim=0, return_inverse=True)
    n_tokens = batch.rollout.n_tokens * rows
    mean, std = mean_and_std(adv, group, n_tokens)
    adv = (adv - mean) / (std + 1e-6)
    return adv.masked_fill(~rows, 0.0)


def token_weight(rollout: Rollout, cfg: Config) -> Tensor:
    """Returns the weight (N,) of each of a row's tokens in its member's loss, 1 / the mean's denominator. The
    denominator is the member's answer tokens (member), its rows times the row's tokens (row), or its rows
    times max_new_tokens (constant)."""
    _, index = rollout.member.unique(return_inverse=True)
    n_rows = index.bincount()[index]                       # (N,) of the row's member
    if cfg.token_weight == "row":
        return 1.0 / (n_rows * rollout.n_tokens)
    if cfg.token_weight == "constant":
        return 1.0 / (n_rows * cfg.max_new_tokens)
    assert cfg.token_weight == "member", f"--token-weight {cfg.token_weight} has no case in rl.py: add one"
    n_tokens = total(rollout.n_tokens, index)              # for each member
    return 1.0 / n_tokens[index]


# --- lines: one copy of each prompt, its answers behind it --------------------------------------------------
#
#     p p p p a a a b b       a line: prompt p, then answers a and b of one member, each less its last token
#     0 1 2 3 4 5 6 4 5       positions: every answer goes on from the prompt
#
# A token sees the prompt and its own answer up to itself, so states and gradients are those of separate rows.
# Eight proposals of 40 tokens to a prompt of 500 cost 812 tokens instead of 4,312.

Line = list[int]                           # rows of a rollout that share a member and a prompt


@dataclass
class Packed:
    """Holds G lines of T tokens in the order of members, padded on the right, and their M answer tokens."""
    ids: Tensor                      # (G, T) int64
    positions: Tensor                # (G, T)
    mask: Tensor | None              # (G, 1, T, T) true where seen; None = causal: one answer a line
    member: Tensor                   # (G,) on the CPU: adapters are routed there, without a wait
    source: Tensor                   # (M,) index of the state that predicts it, of G T states
    target: Tensor                   # (M,) the answer token
    row: Tensor                      # (M,) its row in the rollout
    column: Tensor                   # (M,) its place in that row
    logp: Tensor                     # (M,) its log-probability in the rollout


def size(rollout: Rollout, line: Line) -> int:
    """Returns the tokens of a line: its prompt, and each answer less the last, which predicts nothing."""
    prompt = rollout.prompt_len[line[0]]
    answers = rollout.n_tokens[line] - 1
    return int(prompt + answers.sum())


def make_lines(
    rollout: Rollout,
    rows: list[int],                # their numbers
    budget: int,                    # tokens of a line
) -> list[Line]:
    """Returns these rows in lines of at most `budget` tokens; a longer row has a line of its own."""
    groups: dict[tuple, list[Line]] = {}                   # lines by member and prompt
    for i in rows:
        prompt = rollout.ids[i, :rollout.prompt_len[i]].tolist()
        key = (int(rollout.member[i]), *prompt)
        group = groups.setdefault(key, [[]])
        last = group[-1]
        if last and size(rollout, [*last, i]) > budget:
            last = []
            group.append(last)
        last.append(i)
    return sum(groups.values(), [])


def micro_batches(
    rollout: Rollout,
    rows: list[int],                # their numbers
    budget: int,                    # padded tokens of a micro-batch
) -> list[list[Line]]:
    """Returns batches of lines of at most `budget` padded tokens, similar lengths together."""
    sized = [(size(rollout, line), line) for line in make_lines(rollout, rows, budget)]
    batches = []
    for n_tokens, line in sorted(sized):                   # the shortest first, then by their rows
        # the latest line is the longest, to which all are padded; one beyond the budget runs alone
        if batches and (len(batches[-1]) + 1) * n_tokens <= budget:
            batches[-1].append(line)
        else:
            batches.append([line])
    return batches


def seen(answer: Tensor) -> Tensor:
    """Returns which keys a query of a line sees (G, 1, T, T): the prompt and its own answer up to itself.
    answer (G, T) is 0 in the prompt, 1, 2, ... in the answers, -1 in the padding."""
    same = answer[:, :, None] == answer[:, None, :]        # (G, query, key)
    prompt = answer[:, None, :] == 0
    causal = torch.ones_like(same).tril()
    allowed = (same | prompt) & causal
    return allowed[:, None]                                # (G, 1, T, T), the same for all heads


def pack(
    rollout: Rollout,
    batch: list[Line],
    device: torch.device | str = "cpu",
) -> Packed:
    """Returns a batch of lines, laid out on the CPU, in the memory of the device."""
    batch = sorted(batch, key=lambda line: int(rollout.member[line[0]]))
    G = len(batch)
    T = max(size(rollout, line) for line in batch)
    row = torch.zeros(G, T, dtype=torch.int64)             # whose token stands there
    position = torch.zeros_like(row)
    answer = torch.full_like(row, -1)                      # 0 = prompt; 1, 2, ... = answers; -1 = padding
    source = []                                            # places of the states that predict
    target_row, column = [], []                            # places of what they predict, in the rollout
    for g, line in enumerate(batch):
        n_prompt = int(rollout.prompt_len[line[0]])
        row[g, :n_prompt] = line[0]
        position[g, :n_prompt] = torch.arange(n_prompt)
        answer[g, :n_prompt] = 0
        at = n_prompt                                             # where the next answer begins
        for number, i in enumerate(line, 1):
            n = int(rollout.n_tokens[i]) - 1               # the last token is predicted, and not read
            places = slice(at, at + n)
            row[g, places] = i
            position[g, places] = torch.arange(n_prompt, n_prompt + n)
            answer[g, places] = number
            first = g * T                                  # place of the line among all states
            source.append(first + n_prompt - 1)                   # the prompt's end predicts the first token
            source += range(first + at, first + at + n)
            target_row += [i] * (n + 1)
            column += range(n_prompt, n_prompt + n + 1)
            at += n
    target_row = torch.tensor(target_row)
    column = torch.tensor(column)
    ids = rollout.ids[row, position] * (answer >= 0)

    put = partial(send, device=device)                     # the processor goes on while a GPU is busy
    mask = None
    if max(map(len, batch)) > 1:
        mask = seen(put(answer))
    return Packed(
        ids=put(ids),
        positions=put(position),
        mask=mask,
        member=rollout.member[row[:, 0]],
        source=put(torch.tensor(source)),
        target=put(rollout.ids[target_row, column]),
        row=put(target_row),
        column=put(column),
        logp=put(rollout.logp[target_row, column]))


# --- loss and gradient --------------------------------------------------------------------------------------

def token_loss(
    adv: Tensor,                     # (M,)
    logp: Tensor,                    # (M,) log-probability of the token
    sampled: Tensor | None,          # (M,) the same in the rollout; None = they are equal
    of_base: Tensor | None,          # (M,) the same of the frozen base; None without --kl-coef
    entropy: Tensor,                 # (M,) 0 without --entropy-coef
    cfg: Config,
) -> Tensor:
    """Returns the loss of each token (M,): -A logp w + kl_coef KL - entropy_coef H.

    w = min(exp(logp - sampled), CAP), without gradient, corrects for a rollout that computes otherwise than
    training does (truncated importance sampling, 2505.24034). KL is Schulman's k3 = r - log r - 1, where r is
    the base's probability over the member's (http://joschu.net/blog/kl-approx.html).
    """
    loss = -adv * logp
    if sampled is not None:
        w = (logp.detach() - sampled).exp()
        loss = loss * w.clamp_max(CAP)
    if of_base is not None:
        log_r = of_base - logp
        loss = loss + cfg.kl_coef * (log_r.exp() - log_r - 1)
    return loss - cfg.entropy_coef * entropy


def score(
    base: Base,
    p: Packed,
    lora: Route | None,
    cfg: Config,
    checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability (M,) float32 of each target, and the entropy (M,) of its distribution, 0
    without --entropy-coef. At most CHUNK logits exist at once. If more are needed, the backward pass computes
    them again."""
    def piece(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = base.model.logits(h).float()
        logp = (logits / cfg.temperature).log_softmax(-1)  # (M, V)
        entropy = torch.zeros_like(y)
        if cfg.entropy_coef:
            entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, y[:, None]).squeeze(1), entropy

    hidden = base.model(p.ids, p.positions, p.mask, lora=lora, checkpointing=checkpointing)
    hidden = hidden.flatten(0, 1)[p.source]                # (G, T, C) -> (M, C)
    n = max(1, CHUNK // base.model.cfg.vocab_size)         # tokens of a chunk
    if len(hidden) <= n:
        return piece(hidden, p.target)
    pieces = []
    for h, y in zip(hidden.split(n), p.target.split(n)):
        pieces.append(checkpoint(piece, h, y, use_reentrant=False))
    logps, entropies = zip(*pieces)
    return torch.cat(logps), torch.cat(entropies)


def accumulate(
    base: Base,
    adapters: Adapters,
    batch: Batch,
    adv: Tensor,                     # (N,)
    cfg: Config = DEFAULT,
    ranks: Ranks = ALONE,
    shows_bar: bool = False,
) -> tuple[Tensor, Tensor]:
    """Puts the gradient of every member's loss into .grad of the stacked factors, summed over all processes.
    A member's loss is the sum over its tokens of token_weight times token_loss. Returns the log-probabilities
    (N, T), 0 in rows that were not trained, and which rows (N,) were trained."""
    n_rows = len(batch.reward)
    shape = tuple(getattr(adv, "shape", ()))
    # a number or a column would be broadcast, and every row would learn something else
    given = f"rl.advantages gave a {type(adv).__name__} of shape {shape} for {n_rows} rows"
    assert shape == (n_rows,), f"{given}: give a Tensor, one number for each row, ({n_rows},)"
    dtype = base.model.embedding.dtype
    always = cfg.kl_coef > 0 or cfg.entropy_coef > 0       # terms with a gradient of their own
    has_gradient = (adv != 0) | always
    trained = (batch.rollout.member >= 0) & has_gradient
    weight = token_weight(batch.rollout, cfg)
    rollout = batch.rollout.to("cpu")                      # rows are packed there
    found = torch.zeros_like(batch.rollout.logp)
    for factor in adapters.parameters():
        factor.grad = torch.zeros_like(factor)
    rows = trained.nonzero().squeeze(1)
    todo = micro_batches(rollout, rows.tolist(), cfg.tokens_per_microbatch)
    own = todo[ranks.rank::ranks.world]
    for lines in tqdm(own, "update", leave=False, disable=not shows_bar):
        p = pack(rollout, lines, adv.device)
        weights = AdapterWeights(adapters, p.member, dtype, trains=True)
        for linear in base.model.fused_linears():
            weights.for_layers(linear.paths, linear.sizes)  # made here: what is checkpointed runs twice
        checkpointing = p.ids.numel() > cfg.tokens_per_microbatch
        lora = weights.route(p.member)
        logp, entropy = score(base, p, lora, cfg, checkpointing)
        sampled = of_base = None
        if dtype != torch.float32:
            sampled = p.logp
        if cfg.kl_coef:
            with torch.no_grad():
                of_base, _ = score(base, p, None, cfg)
        loss = token_loss(adv[p.row], logp, sampled, of_base, entropy, cfg)
        (loss * weight[p.row]).sum().backward()
        weights.add_gradients()
        found[p.row, p.column] = logp.detach()
    gradients = [factor.grad for factor in adapters.parameters()]
    ranks.all_reduce(found, *gradients)
    return found, trained


# --- update -------------------------------------------------------------------------------------------------

def update(
    base: Base,
    adapters: Adapters,
    batch: Batch,
    adv: Tensor,
    adam: "Adam",
    cfg: Config,
    ranks: Ranks = ALONE,
    shows_bar: bool = False,
) -> dict:
    """Takes one optimiser step of every member that has a trained row and a finite gradient. No other member
    is touched, whatever its momentum. Returns the number of trained tokens, gradient norms, the members
    skipped for a gradient that is not finite, and the mean gap of log-probabilities to the rollout's."""
    rollout = batch.rollout
    logp, trained = accumulate(base, adapters, batch, adv, cfg, ranks, shows_bar)
    active = torch.zeros(adapters.n_members, dtype=torch.bool, device=adv.device)
    active[rollout.member[trained]] = True
    norm, skipped = adam.step(active)
    sound = trained & ~skipped[rollout.member]             # rows of the base, member -1, are not trained
    answers = rollout.mask & sound[:, None]                # (N, T)
    gap = (logp - rollout.logp)[answers].abs()
    return dict(
        trained_tokens=int(rollout.n_tokens[sound].sum()),
        train_rollout_logprob_diff=gap.mean().item() if len(gap) else 0.0,
        grad_norm=[round(x, 6) for x in norm.tolist()],
        skipped=skipped.nonzero().squeeze(1).tolist())


def per_member(x: Tensor) -> Tensor:
    """Returns the numbers x (a,) of a members in the shape (a, 1, 1), to scale their factors."""
    return x.float()[:, None, None]


class Adam:
    """Adapts stacked factors. Each member has moments, steps, rate and clipped norm of its own."""

    def __init__(self, adapters: Adapters):
        self.adapters = adapters
        self.m, self.v = [], []                            # one for each factor, in its shape
        for factor in adapters.parameters():
            self.m.append(torch.zeros_like(factor))
            self.v.append(torch.zeros_like(factor))
        self.steps = torch.zeros(adapters.n_members, dtype=torch.int64, device=adapters.device)
        self.lr = torch.zeros(adapters.n_members, device=adapters.device)

    @torch.no_grad()
    def step(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Updates the active members (P,) bool from .grad and clears it; no bit of the others is touched.
        Returns gradient norms before clipping (P,) and who was skipped for a non-finite gradient (P,)."""
        squares = [factor.grad.double().pow(2).sum((1, 2)) for factor in self.adapters.parameters()]
        norm = torch.stack(squares).sum(0).sqrt()          # (P,)
        finite = norm.isfinite()
        a = (active & finite).nonzero().squeeze(1)         # numbers of the members that take a step
        self.steps[a] += 1
        b1, b2 = BETAS
        t = self.steps[a].double()
        clip = (MAX_NORM / (norm[a] + 1e-6)).clamp_max(1.0)
        scale = per_member(clip)
        lr_hat = per_member(self.lr[a] / (1 - b1 ** t))    # with Adam's bias corrections
        root_hat = per_member((1 - b2 ** t).rsqrt())
        for factor, m, v in zip(self.adapters.parameters(), self.m, self.v):
            g = factor.grad[a] * scale
            m[a] = m[a].lerp(g, 1 - b1)
            v[a] = v[a].lerp(g * g, 1 - b2)
            root = v[a].sqrt() * root_hat
            factor[a] -= lr_hat * m[a] / (root + EPS)
            factor.grad = None
        return norm, active & ~finite

    def reset(self, slot: int) -> None:
        """Forgets a member's moments and steps, because the child in its slot starts fresh."""
        for x in (*self.m, *self.v):
            x[slot].zero_()
        self.steps[slot] = 0

    def state_dict(self, slot: int) -> dict[str, Tensor]:
        """Returns a member's moments as flat named tensors for safetensors; its steps lie beside them."""
        state = {}
        for i, (m, v) in enumerate(zip(self.m, self.v)):
            state[f"m.{i}"] = m[slot]
            state[f"v.{i}"] = v[slot]
        return state

    def load_state_dict(self, slot: int, state: dict[str, Tensor]) -> None:
        """Reads what state_dict returned into a member."""
        own = self.state_dict(slot)
        if state.keys() != own.keys():
            raise UserError("these are the moments of another population")
        for name, x in own.items():
            x.copy_(state[name])
