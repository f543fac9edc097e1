"""A step's line of metrics.jsonl, its one line on the terminal, and a summary of the run."""
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass

import torch

from config import Config
from evolve import ROLES, Member, learning_rates, members_of
from lora import Adapters
from measure.probes import sample_members
from operators import adapter_cosines
from rewards import NOISE_MARGIN
from rl import Batch
from run.checkpoint import State
from selfplay import ProposalRecord, mean, solve_rate
from tasks.base import UNJUDGED, VIOLATION
from tasks.prompts import reasoning

# Taken from rl.update; clip_frac and approx_kl exist from two epochs on.
OF_UPDATE = ("kl", "entropy", "train_rollout_logprob_diff", "train_rollout_logprob_p99", "capped_frac",
             "clip_frac", "approx_kl", "skipped")
N_COMPARED = 64                     # members of a role whose updates are all compared with each other


# --- metrics.jsonl ------------------------------------------------------------------------------------------

@dataclass
class StepRecord:
    """What happened in a step: proposals with their attempts, the batch, its update, matches' lines."""
    proposed: list[ProposalRecord]
    batch: Batch
    adv: torch.Tensor
    update: dict
    matches: list[dict]


def share(n: int, of: int) -> float | None:
    """n / of; None where `of` is 0."""
    return n / of if of else None


def describe(proposed: list[ProposalRecord]) -> dict:
    """What one group of proposals looks like: validity by reason, solve rate, reward, length."""
    reasons, verdicts = Counter(), Counter()
    rewards, rates = [], []                             # rates: of valid ones that were judged
    statements, chars, digits = [], [], []              # of valid ones
    for p in proposed:
        rewards.append(p.reward)
        if p.reason:
            reasons[p.reason] += 1
        if p.task:
            verdicts.update(p.verdicts)
            statements.append(p.statements)
            n_chars, n_digits = p.output_size
            chars.append(n_chars)
            digits.append(n_digits)
            if p.solve_rate is not None:
                rates.append(p.solve_rate)
    return dict(
        n=len(proposed),
        valid=share(len(statements), len(proposed)),
        reasons=dict(reasons),
        teacher_reward=mean(rewards),
        solve_rate=mean(rates),
        solve_0=share(rates.count(0), len(rates)),
        solve_1=share(rates.count(1), len(rates)),
        malformed=verdicts["malformed"] / max(1, verdicts.total()),
        statements=mean(statements),
        duplicates=share(reasons["duplicate"], len(proposed)),
        output_chars=mean(chars),
        output_digits=mean(digits))


def thinking(proposed: list[ProposalRecord], prompt_format: str) -> defaultdict[str, list[bool]]:
    """Whether each text of the step has reasoning in it, by who wrote it."""
    thinks = defaultdict(list)
    for p in proposed:
        for name, texts in [(p.teacher.name, [p.text]), *p.answers.items()]:
            for text in texts:
                thinks[name].append(bool(reasoning(text, prompt_format)))
    return thinks


def equal_rewards(batch: Batch) -> dict[str, float]:
    """Role -> the reward of all its rows, of the roles whose rows were all paid alike."""
    alike = {}
    for number, role in enumerate(ROLES):
        rewards = batch.reward[batch.role == number]
        if len(rewards) > 1 and (rewards == rewards[0]).all():
            alike[role] = rewards[0].item()
    return alike


def update_measures(cfg: Config, done: StepRecord) -> dict:
    """What the update says of itself; a term without weight in the loss is not measured: None."""
    row = {}
    for name in OF_UPDATE:
        if name in done.update:
            row[name] = done.update[name]
    if not cfg.kl_coef:
        row["kl"] = None
    if not cfg.entropy_coef:
        row["entropy"] = None
    alike = equal_rewards(done.batch)
    if alike:
        row["equal_rewards"] = alike
    return row


def n_with(proposed: list[ProposalRecord], reason: str, verdict: str) -> int:
    """The number of proposals that were refused for this reason, plus that of attempts with this verdict."""
    n = 0
    for p in proposed:
        n += (p.reason == reason) + p.verdicts.count(verdict)
    return n


def measures(cfg: Config, prompt_format: str, adapters: Adapters, state: State, done: StepRecord) -> dict:
    """The step's line of metrics.jsonl, less the probes and what train.conclude adds: overall, per task type
    and per member."""
    archive = state.archive
    described, baseline = {}, {}
    for kind in cfg.task_types:
        own = [p for p in done.proposed if p.kind == kind]
        described[kind] = describe(own)
        baseline[kind] = archive.majority_baseline(kind)

    beats_guessing = []
    for p in done.proposed:
        if p.solve_rate is not None:
            beats_guessing.append(p.solve_rate > baseline[p.kind] + NOISE_MARGIN)
    thinks = thinking(done.proposed, prompt_format)
    of_students = []
    for m in members_of(state.members, "student"):
        of_students += thinks[m.name]
    return dict(
        **describe(done.proposed),
        task_types=described,
        members=member_measures(cfg, adapters, state, done, thinks),
        unique_structures=len(archive.structures),
        unique_at_64=archive.unique_at_64(),
        majority_baseline=baseline,
        beats_guessing=mean(beats_guessing),
        think=mean(of_students),
        brier=mean(match["brier"] for match in done.matches),
        frac_zero_advantage=(done.adv == 0).float().mean().item(),
        **update_measures(cfg, done),
        violations=n_with(done.proposed, VIOLATION, VIOLATION),
        sandbox_failures=n_with(done.proposed, "sandbox_failure", UNJUDGED),
        tokens_generated=state.totals["generated"],
        tokens_trained=state.totals["trained"])


def mean_cosines(cfg: Config, adapters: Adapters, members: list[Member],
                 step: int) -> dict[str, float | None]:
    """Of each member the mean of its dW's cosines with the others of its role, by name; of a role with more
    than N_COMPARED so many, drawn for the step: all pairs of a thousand cost minutes."""
    cosine = {}
    compared = sample_members(cfg, members, step, N_COMPARED)
    for role in ROLES:
        own = members_of(compared, role)
        cosines = adapter_cosines([adapters.factors(m.slot) for m in own]).tolist()         # (P, P)
        for i, m in enumerate(own):
            cosine[m.name] = mean(cosines[i][:i] + cosines[i][i + 1:])
    return cosine


def member_measures(cfg: Config, adapters: Adapters, state: State, done: StepRecord,
                    thinks: defaultdict[str, list[bool]]) -> dict[str, dict]:
    """What the step was for each member, by name; of those that had no match with --matches, the rating."""
    members = {}
    rates = learning_rates(cfg, state.members, state.step)
    for m in state.members:
        members[m.name] = dict(
            role=m.role,
            mu=m.rating.mu,
            sigma=m.rating.sigma,
            lr=rates[m.slot],
            niche=m.niche)
    playing = set()
    for match in done.matches:
        playing |= {match["teacher"], match["student"]}
    active = [m for m in state.members if m.name in playing or not cfg.matches]
    cosines = mean_cosines(cfg, adapters, active, state.step)
    proposals, verdicts = defaultdict(list), defaultdict(list)          # by who wrote them
    for p in done.proposed:
        proposals[p.teacher.name].append(p)
        for name, own in p.attempts.items():
            verdicts[name] += own
    for m in active:
        row = members[m.name]
        row |= learned(m, done)
        row["cosine"] = cosines.get(m.name)
        row["think"] = mean(thinks[m.name])
        if m.role == "teacher":
            row |= describe(proposals[m.name])
            del row["teacher_reward"]                   # is its `reward`
        else:
            row["n"] = len(verdicts[m.name])
            row["solve_rate"] = solve_rate(verdicts[m.name])
    return members


def learned(m: Member, done: StepRecord) -> dict:
    """What a member's rows in its role were paid, how sure it was of them, and what they did to it."""
    rollout = done.batch.rollout
    own = (rollout.member == m.slot) & (done.batch.role == ROLES.index(m.role))
    n_tokens = rollout.n_tokens[own].sum().item()
    return dict(
        reward=mean(done.batch.reward[own].tolist()),
        entropy=-rollout.logp[own].sum().item() / max(1, n_tokens),
        grad_norm=done.update["grad_norm"][m.slot])


def spent(rows: list[dict]) -> list[int]:
    """Tokens generated by the end of each step, without those of probes, which train nobody."""
    out, probed = [], 0
    for row in rows:
        probed += row.get("probe_tokens", 0)
        out.append(row["tokens_generated"] - probed)
    return out


# --- the terminal -------------------------------------------------------------------------------------------

WIDTHS = dict(                      # of the columns, in characters
    step=5,
    valid=6,
    statements=10,
    solve=6,
    base=6,
    heldout=7,
    think=6,
    reward=6,
    unique=6)
for role in ROLES:
    WIDTHS[f"best {role[0].upper()}"] = 12
WIDTHS["sec"] = 6
HEADER = " ".join(name.rjust(width) for name, width in WIDTHS.items())


def line(row: dict) -> str:
    """One aligned line from the dict that goes to metrics.jsonl; a dash where nothing was measured."""
    measured = [
        row["valid"],
        row["statements"],
        row["solve_rate"],
        row.get("base_solve"),
        mean(row.get("heldout_greedy", {}).values()),
        row["think"],
        row["teacher_reward"]]
    cells = [str(row["step"])]
    for x in measured:
        cells.append("-" if x is None else f"{x:.2f}")
    cells.append(str(row["unique_structures"]))
    for role in ROLES:
        own = [(m["mu"], name) for name, m in row["members"].items() if m["role"] == role]
        mu, name = max(own)
        cells.append(f"{name} {mu:.1f}")
    cells.append(f"{sum(row['seconds'].values()):.1f}")
    aligned = []
    for cell, width in zip(cells, WIDTHS.values(), strict=True):
        aligned.append(cell.rjust(width))

    notes = []
    if row["births"]:
        notes.append("born " + textwrap.shorten(" ".join(row["births"]), 40, placeholder=" ..."))
    if row["skipped"]:
        notes.append(f"skipped slots {row['skipped']}")
    if row["sandbox_failures"]:
        notes.append(f"{row['sandbox_failures']} left out: the sandbox failed")
    if notes:
        aligned.append(" " + ", ".join(notes))
    return " ".join(aligned)


def summary(rows: list[dict]) -> str:
    """What the first and the last probe of a run measured, and what it cost, in words."""
    told = ""
    probes = [row for row in rows if row.get("heldout_greedy")]
    if len(probes) > 1:
        first, last = probes[0], probes[-1]
        before, after = mean(first["heldout_greedy"].values()), mean(last["heldout_greedy"].values())
        told = (f"step {first['step']} to {last['step']}: students solve {before:.2f} to {after:.2f} of "
                "the held-out tasks, greedily (ratings are relative and show no progress)\n")
    n_born = sum(len(row["births"]) for row in rows)
    last = rows[-1]
    return (f"{told}{last['unique_structures']} distinct program structures, {n_born} members replaced, "
            f"{last['tokens_generated']:,} tokens generated, {last['tokens_trained']:,} trained")
