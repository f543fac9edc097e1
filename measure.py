"""What people study of a run: the measures of a step, probes of what never changes, alarms; what the terminal says.

Ratings only compare members with each other. A probe asks, greedily and the same tasks each time, every student and the
frozen base the held-out tasks of the types that the run plays, and all members those of unseen types; and the base,
sampled, the teachers' current tasks.
"""
import statistics
from collections import Counter

import torch

from common import visible
from config import Config
from evolve import ROLES, learning_rates, members_of
from operators import adapter_cosines
from rewards import NOISE_MARGIN
from rl import Batch
from run import State
from selfplay import BASE_RATE, PROBE, Attempts, ProposalRecord, Setup, attempt, mean, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

BASE = "base"                       # the frozen base's name among the members
WINDOW = 5                          # steps: alarms look at means over the latest, against the first


# --- probes -------------------------------------------------------------------------------------------------

def probe_due(cfg: Config, step: int) -> bool:
    """Whether a step has a probe: every --probe-every steps, and the last one."""
    return cfg.probe_every > 0 and (step % cfg.probe_every == 0 or step == cfg.steps - 1)


def ask(s: Setup, slots: dict[str, int], tasks: list[Task], step: int) -> tuple[dict, dict, Attempts]:
    """One greedy attempt at each task by each member (name -> slot) in one batch: whether it is right, None where
    the sandbox failed, and whether it shows reasoning, both by name; the attempts."""
    # fresh members are the base, bit for bit: it alone is asked
    untrained = not any(B.any() for B in s.adapters.B.values())
    asked = [-1] if untrained else list(slots.values())
    done = attempt(s, tasks * len(asked), [slot for slot in asked for _ in tasks], step, PROBE, 1, 0.0)
    right = [solve_rate(verdicts) for verdicts in done.verdicts]
    thinks = [bool(reasoning(text, s.base.prompt_format)) for text in done.texts]
    n = len(tasks)
    correct, thinking = {}, {}
    for i, name in enumerate(slots):
        own = slice(0, n) if untrained else slice(i * n, (i + 1) * n)
        correct[name], thinking[name] = right[own], thinks[own]
    return correct, thinking, done


def by_type(tasks: list[Task], columns: dict[str, list]) -> dict[str, dict[str, float | None]]:
    """Task type -> name -> mean of what it has for the tasks of this type."""
    table = {}
    for kind in sorted({task.kind for task in tasks}):
        table[kind] = {name: mean(x for x, task in zip(own, tasks) if task.kind == kind)
                       for name, own in columns.items()}
    return table


def probe(s: Setup, state: State, proposed: list[ProposalRecord], step: int) -> dict:
    """All absolute measures of a step as keys of metrics.jsonl; {} where no probe is due."""
    if not probe_due(s.cfg, step):
        return {}
    everybody = {m.name: m.slot for m in state.members}
    students = {m.name: m.slot for m in members_of(state.members, "student")}
    row, rollouts = {}, []
    if state.heldout:
        correct, _, done = ask(s, students | {BASE: -1}, state.heldout, step)
        rollouts.append(done.rollout)
        row["heldout_by_type"] = by_type(state.heldout, correct)
        row["heldout_greedy_base"] = mean(correct.pop(BASE))
        row["heldout_greedy"] = {name: mean(own) for name, own in correct.items()}
        row["heldout_n"] = len(state.heldout)
    if state.unseen:
        correct, thinks, done = ask(s, everybody | {BASE: -1}, state.unseen, step)
        rollouts.append(done.rollout)
        row["unseen"], row["unseen_think"] = by_type(state.unseen, correct), by_type(state.unseen, thinks)
        row["unseen_n"] = Counter(task.kind for task in state.unseen)
    valid = [p for p in proposed if p.task]
    if valid:
        done = attempt(s, [p.task for p in valid], [-1] * len(valid), step, BASE_RATE, 1)
        rollouts.append(done.rollout)
        for p, verdicts in zip(valid, done.verdicts):
            p.base_rate = solve_rate(verdicts)
        row["base_solve"] = mean(p.base_rate for p in valid)
        row["student_solve"] = mean(p.solve_rate for p in valid)
    row["probe_tokens"] = sum(int(rollout.n_tokens.sum()) for rollout in rollouts)
    return row


def heldout_mean(row: dict) -> float | None:
    """Returns the students' mean accuracy on held-out tasks in a line of metrics.jsonl; None without a probe."""
    return mean(row.get("heldout_greedy", {}).values())


def is_best(probes: dict, history: list[dict]) -> bool:
    """Whether a step's probe is the highest of the run so far; history: the lines of the steps before."""
    own = heldout_mean(probes)
    return own is not None and all(own > before for row in history if (before := heldout_mean(row)) is not None)


# --- a step's line of metrics.jsonl -------------------------------------------------------------------------

def describe(proposed: list[ProposalRecord]) -> dict:
    """What one group of proposals looks like: validity by reason, solve rate, reward, length."""
    valid = [p for p in proposed if p.task]
    rates = [p.solve_rate for p in valid if p.solve_rate is not None]
    reasons = Counter(p.reason for p in proposed if p.reason)
    verdicts = Counter(verdict for p in valid for verdict in p.verdicts)
    return dict(
        n=len(proposed),
        valid=len(valid) / max(1, len(proposed)),
        reasons=dict(reasons),
        teacher_reward=mean(p.reward for p in proposed),
        solve_rate=mean(rates),
        solve_0=rates.count(0) / max(1, len(rates)),
        solve_1=rates.count(1) / max(1, len(rates)),
        malformed=verdicts["malformed"] / max(1, verdicts.total()),
        statements=mean(p.statements for p in valid),
        duplicates=reasons["duplicate"] / max(1, len(proposed)),
        output_chars=mean(p.output_size[0] for p in valid))


def measures(s: Setup, state: State, proposed: list[ProposalRecord], batch: Batch, adv: torch.Tensor,
             update: dict, matches: list[dict]) -> dict:
    """The step's line of metrics.jsonl, less the probes and what train.py adds: overall, per task type and per
    member."""
    cfg, archive = s.cfg, state.archive
    thinks = {}                         # by who wrote it: whether a text shows reasoning
    for p in proposed:
        for name, texts in [(p.teacher.name, [p.text]), *p.answers.items()]:
            thinks.setdefault(name, []).extend(bool(reasoning(text, s.base.prompt_format)) for text in texts)
    baseline = {kind: archive.majority_baseline(kind) for kind in cfg.task_types}
    members, rates = {}, learning_rates(cfg, state.members, state.step)
    for number, role in enumerate(ROLES):
        own = members_of(state.members, role)
        cosines = adapter_cosines([s.adapters.factors(m.slot) for m in own]).tolist()       # (P, P)
        for i, m in enumerate(own):
            mine = (batch.rollout.member == m.slot) & (batch.role == number)
            tokens = max(1, batch.rollout.n_tokens[mine].sum().item())
            row = members[m.name] = dict(
                role=role, mu=m.rating.mu, sigma=m.rating.sigma, lr=rates[m.slot],
                reward=mean(batch.reward[mine].tolist()),
                entropy=-batch.rollout.logp[mine].sum().item() / tokens,
                grad_norm=update["grad_norm"][m.slot],
                cosine=mean(cosines[i][:i] + cosines[i][i + 1:]),
                think=mean(thinks.get(m.name, [])))
            if role == "teacher":
                row |= describe([p for p in proposed if p.teacher is m])
            else:
                row["solve_rate"] = solve_rate([v for p in proposed for v in p.attempts.get(m.name, [])])
    of_students = [x for m in members_of(state.members, "student") for x in thinks.get(m.name, [])]
    return dict(
        **describe(proposed),
        task_types={kind: describe([p for p in proposed if p.kind == kind]) for kind in cfg.task_types},
        members=members,
        unique_structures=len(archive.structures),
        unique_at_64=archive.unique_at_64(),
        majority_baseline=baseline,
        beats_guessing=mean(p.solve_rate > baseline[p.kind] + NOISE_MARGIN for p in proposed
                            if p.solve_rate is not None),
        think=mean(of_students),
        brier=mean(match["brier"] for match in matches),
        frac_zero_advantage=(adv == 0).float().mean().item(),
        train_rollout_logprob_diff=update["train_rollout_logprob_diff"],
        skipped=update["skipped"],
        sandbox_failures=sum((p.reason == "sandbox_failure") + p.verdicts.count(UNJUDGED) for p in proposed),
        tokens_generated=state.totals["generated"],
        tokens_trained=state.totals["trained"])


# --- alarms -------------------------------------------------------------------------------------------------

def alarms(rows: list[dict]) -> dict[str, str]:
    """What is going wrong, by the run's lines of metrics.jsonl so far: name -> sentence (docs/runs.md)."""
    found = {}
    latest = rows[-WINDOW:]
    if len(latest) < WINDOW:
        return found
    unique, most = mean(row["unique_at_64"] for row in latest), max(row["unique_at_64"] for row in rows)
    if unique < most / 2:
        found["collapse"] = f"distinct structures among 64 tasks fell from {most:.1f} to {unique:.1f}"
    unsolved = mean(row["solve_0"] for row in latest)
    guess = mean(max(row["majority_baseline"].values()) for row in latest)
    if unsolved > 0.5:
        found["gaming"] = f"nobody solves {unsolved:.0%} of the tasks"
    elif guess > 0.3 and rows[-1]["unique_structures"] > 64:
        found["gaming"] = f"one output is right for {guess:.0%} of a type's latest tasks"
    probes = [(mean(row["heldout_greedy"].values()), row["heldout_n"]) for row in rows if row.get("heldout_greedy")]
    if len(probes) > 1 and probes[0][0] - probes[-1][0] > (1 / probes[0][1]) ** 0.5:
        found["forgetting"] = f"accuracy on held-out tasks fell from {probes[0][0]:.2f} to {probes[-1][0]:.2f}"
    if all(row["frac_zero_advantage"] == 1 for row in latest):
        found["flat"] = "every advantage was 0 for five steps: rewards differ in no group, and nobody learns (--show 3)"
    return found


# --- the terminal -------------------------------------------------------------------------------------------

WIDTHS = dict(step=5, valid=6, statements=10, solve=6, base=6, heldout=7, think=6, reward=6, unique=6)
WIDTHS |= {f"best {role[0].upper()}": 12 for role in ROLES} | dict(sec=6)
HEADER = " ".join(name.rjust(width) for name, width in WIDTHS.items())


def line(row: dict) -> str:
    """One aligned line from the dict that goes to metrics.jsonl; a dash where nothing was measured."""
    heldout = mean(row.get("heldout_greedy", {}).values())
    cells = [str(row["step"])]
    for x in (row["valid"], row["statements"], row["solve_rate"], row.get("base_solve"), heldout, row["think"],
              row["teacher_reward"]):
        cells.append("-" if x is None else f"{x:.2f}")
    cells.append(str(row["unique_structures"]))
    for role in ROLES:
        mu, name = max((m["mu"], name) for name, m in row["members"].items() if m["role"] == role)
        cells.append(f"{name} {mu:.1f}")
    cells.append(f"{sum(row['seconds'].values()):.1f}")
    born = f"  born {' '.join(row['births'])}" if row["births"] else ""
    return " ".join(map(str.rjust, cells, WIDTHS.values())) + born


def format_task(row: dict) -> str:
    """One line of tasks.jsonl as text for people: who wrote what, who tried, what the verifier said."""
    rate = row.get("solve_rate")
    fate = f"refused: {row['reason']}" if row["reason"] else "not tried" if rate is None else f"solved {rate:.2f}"
    out = [f"  step {row['step']} {row['teacher']} {row['kind']}  {fate}, reward {row['reward']:.2f}"]
    out += [row[key] for key in ("text", "message", "program") if row.get(key)]
    out += map(" -> ".join, zip(row.get("inputs", ()), row.get("outputs", ())))
    for student, verdicts in row.get("attempts", {}).items():
        alike = Counter(zip(verdicts, map(str.strip, row["answers"][student])))     # equal answers are shown once
        for (verdict, text), n in alike.most_common():
            out.append(f"{student} {verdict} x{n}  {text.replace(chr(10), ' / ')[-160:]}")
    return visible("\n".join(out)).replace("\n", "\n    ")


def summary(rows: list[dict]) -> str:
    """What the first and the last probe of a run measured, and what it cost, in words."""
    means = [mean(row["heldout_greedy"].values()) for row in rows if row.get("heldout_greedy")]
    told = f"students solve {means[0]:.2f}, at the end {means[-1]:.2f} of the held-out tasks\n" if means else ""
    return (f"{told}{rows[-1]['unique_structures']} distinct program structures, "
            f"{sum(len(row['births']) for row in rows)} members replaced, {rows[-1]['tokens_generated']:,} tokens generated")


def spent(rows: list[dict]) -> list[int]:
    """Tokens generated by the end of each step, without those of probes, which train nobody."""
    out, probed = [], 0
    for row in rows:
        probed += row.get("probe_tokens", 0)
        out.append(row["tokens_generated"] - probed)
    return out
