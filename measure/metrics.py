"""A step's line of metrics.jsonl, its one line on the terminal, and a summary of the run."""
import textwrap
from collections import Counter
from dataclasses import dataclass

import torch

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
class Step:
    """What happened in a step: proposals with their attempts, the batch, its update, matches' lines."""
    proposed: list[ProposalRecord]
    batch: Batch
    adv: torch.Tensor
    update: dict
    matches: list[dict]


def describe(proposed: list[ProposalRecord]) -> dict:
    """What one group of proposals looks like: validity by reason, solve rate, reward, length."""
    valid = [p for p in proposed if p.task]
    rates = [p.solve_rate for p in valid if p.solve_rate is not None]
    outputs = [p.output_size for p in valid]
    verdicts = Counter(verdict for p in valid for verdict in p.verdicts)
    return dict(
        n=len(proposed),
        valid=len(valid) / len(proposed) if proposed else None,
        reasons=dict(Counter(p.reason for p in proposed if p.reason)),
        teacher_reward=mean(p.reward for p in proposed),
        solve_rate=mean(rates),
        solve_0=mean(float(rate == 0) for rate in rates),
        solve_1=mean(float(rate == 1) for rate in rates),
        malformed=verdicts["malformed"] / max(1, verdicts.total()),
        statements=mean(p.statements for p in valid),
        duplicates=mean(float(p.reason == "duplicate") for p in proposed),
        output_chars=mean(chars for chars, _ in outputs),
        output_digits=mean(digits for _, digits in outputs))


def thinking(proposed: list[ProposalRecord], prompt_format: str) -> dict[str, list[bool]]:
    """Whether each text of the step has reasoning in it, by who wrote it."""
    thinks = {}
    for p in proposed:
        for name, texts in [(p.teacher.name, [p.text]), *p.answers.items()]:
            thinks.setdefault(name, []).extend(bool(reasoning(text, prompt_format)) for text in texts)
    return thinks


def equal_rewards(batch: Batch) -> dict[str, float]:
    """Role -> the reward of all its rows, of the roles whose rows were all paid alike."""
    alike = {}
    for number, role in enumerate(ROLES):
        rewards = batch.reward[batch.role == number]
        if len(rewards) > 1 and (rewards == rewards[0]).all():
            alike[role] = rewards[0].item()
    return alike


def measures(cfg, prompt_format: str, adapters: Adapters, state: State, step: Step) -> dict:
    """The step's line of metrics.jsonl, except probes and seconds: overall, per task type and per member."""
    archive = state.archive
    by_kind = {kind: [p for p in step.proposed if p.kind == kind] for kind in cfg.task_types.split(",")}
    baseline = {kind: archive.majority_baseline(kind) for kind in by_kind}
    solved = [p for p in step.proposed if p.solve_rate is not None]
    thinks = thinking(step.proposed, prompt_format)
    of_students = [x for m in members_of(state.members, "student") for x in thinks.get(m.name, [])]
    of_update = {name: step.update[name] for name in OF_UPDATE if name in step.update}
    of_update |= {name: None for name in ("kl", "entropy") if not getattr(cfg, f"{name}_coef")}  # unmeasured
    if alike := equal_rewards(step.batch):
        of_update["equal_rewards"] = alike
    return dict(
        **describe(step.proposed),
        task_types={kind: describe(own) for kind, own in by_kind.items()},
        members=member_measures(cfg, adapters, state, step, thinks),
        unique_structures=len(archive.structures),
        unique_at_64=archive.unique_at_64(),
        majority_baseline=baseline,
        beats_guessing=mean(float(p.solve_rate > baseline[p.kind] + NOISE_MARGIN) for p in solved),
        think=mean(of_students),
        brier=mean(match["brier"] for match in step.matches),
        frac_zero_advantage=(step.adv == 0).float().mean().item(),
        **of_update,
        violations=sum((p.reason == VIOLATION) + p.verdicts.count(VIOLATION) for p in step.proposed),
        sandbox_failures=sum((p.reason == "sandbox_failure") + p.verdicts.count(UNJUDGED)
                             for p in step.proposed),
        tokens_generated=state.totals["generated"],
        tokens_trained=state.totals["trained"])


def mean_cosines(cfg, adapters: Adapters, members: list[Member], step: int) -> dict[str, float | None]:
    """Of each member the mean of its dW's cosines with the others of its role, by name; of a role with more
    than N_COMPARED so many, drawn for the step: all pairs of a thousand cost minutes."""
    cosine, compared = {}, sample_members(cfg, members, step, N_COMPARED)
    for role in ROLES:
        own = members_of(compared, role)
        cosines = adapter_cosines([adapters.factors(m.slot) for m in own])
        for i, m in enumerate(own):
            cosine[m.name] = mean(cosines[i, j].item() for j in range(len(own)) if j != i)
    return cosine


def member_measures(cfg, adapters: Adapters, state: State, step: Step,
                    thinks: dict[str, list[bool]]) -> dict[str, dict]:
    """What the step was for each member, by name; of those that had no match with --matches, the rating."""
    playing = {match[role] for match in step.matches for role in ("teacher", "student")}
    active = [m for m in state.members if m.name in playing or not cfg.matches]
    cosines, rollout = mean_cosines(cfg, adapters, active, state.step), step.batch.rollout
    rates, members = learning_rates(cfg, state.members, state.step), {}
    for m in state.members:
        members[m.name] = dict(role=m.role, mu=m.rating.mu, sigma=m.rating.sigma, lr=rates[m.slot],
                               niche=m.niche)
    proposals, verdicts = {}, {}                                        # by who wrote them
    for p in step.proposed:
        proposals.setdefault(p.teacher.name, []).append(p)
        for name, own in p.attempts.items():
            verdicts.setdefault(name, []).extend(own)
    for m in active:
        rows = (rollout.member == m.slot) & (step.batch.role == ROLES.index(m.role))
        n_tokens = rollout.n_tokens[rows]
        members[m.name] |= dict(
            reward=mean(step.batch.reward[rows].tolist()),
            entropy=-rollout.logp[rows].sum().item() / max(1, n_tokens.sum().item()),
            grad_norm=step.update["grad_norm"][m.slot],
            cosine=cosines.get(m.name),
            think=mean(thinks.get(m.name, [])))
        if m.role == "teacher":
            own = describe(proposals.get(m.name, []))
            del own["teacher_reward"]                                   # is its `reward`
            members[m.name] |= own
        else:
            own = verdicts.get(m.name, [])
            members[m.name] |= dict(n=len(own), solve_rate=solve_rate(own))
    return members


# --- the terminal -------------------------------------------------------------------------------------------

COLUMNS = [("step", 5), ("valid", 6), ("statements", 10), ("solve", 6), ("base", 6), ("heldout", 7),
           ("think", 6), ("reward", 6), ("unique", 6), *((f"best {role[0].upper()}", 12) for role in ROLES),
           ("sec", 6)]
HEADER = " ".join(name.rjust(width) for name, width in COLUMNS)


def line(row: dict) -> str:
    """One aligned line from the dict that goes to metrics.jsonl; a dash where nothing was measured."""
    measured = [row["valid"], row["statements"], row["solve_rate"], row.get("base_solve"),
                mean(row.get("heldout_greedy", {}).values()), row["think"], row["teacher_reward"]]
    best = [max((m["mu"], name) for name, m in row["members"].items() if m["role"] == role) for role in ROLES]
    cells = [str(row["step"]), *("-" if x is None else f"{x:.2f}" for x in measured),
             str(row["unique_structures"]), *(f"{name} {mu:.1f}" for mu, name in best),
             f"{sum(row['seconds'].values()):.1f}"]
    notes = []
    if row["births"]:
        notes.append("born " + textwrap.shorten(" ".join(row["births"]), 40, placeholder=" ..."))
    if row["skipped"]:
        notes.append(f"skipped slots {row['skipped']}")
    if row["sandbox_failures"]:
        notes.append(f"{row['sandbox_failures']} left out: the sandbox failed")
    aligned = " ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    return aligned + ("  " + ", ".join(notes) if notes else "")


def summary(rows: list[dict]) -> str:
    """What the first and the last probe of a run measured, and what it cost, in words."""
    probes, out = [row for row in rows if row.get("heldout_greedy")], []
    if len(probes) > 1:
        first, last = (mean(row["heldout_greedy"].values()) for row in (probes[0], probes[-1]))
        out.append(f"step {probes[0]['step']} to {probes[-1]['step']}: students solve {first:.2f} to "
                   f"{last:.2f} of the held-out tasks, greedily (ratings are relative and show no progress)")
    n_born = sum(len(row["births"]) for row in rows)
    out.append(f"{rows[-1]['unique_structures']} distinct program structures, {n_born} members replaced, "
               f"{rows[-1]['tokens_generated']:,} tokens generated, {rows[-1]['tokens_trained']:,} trained")
    return "\n".join(out)
