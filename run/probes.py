"""Absolute measures of a run: tasks that never change, and a base that never learns.

Ratings only compare members with each other. A probe asks, greedily and the same tasks each time, every
student the held-out tasks of the types that the run plays, all members and the frozen base those of unseen
task types, and the frozen base the teachers' current tasks.
"""
import statistics
from collections import Counter
from dataclasses import dataclass

from evolve import ROLES, Member, members_of
from selfplay import BASE, PROBE, Attempts, ProposalRecord, Setup, attempt, make_rng, mean, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

N_PROBED = 32                       # members of a role that a probe asks, at most
FROZEN_BASE = "base"                # its name among the members


@dataclass(frozen=True)
class Answers:
    """One member's answers to the tasks of a probe, task by task."""
    correct: list[float | None]     # 1, 0, or None: the sandbox failed on it, no share counts it
    thinks: list[bool]              # whether the answer shows reasoning before it answers


def answers(s: Setup, slots: dict[str, int], tasks: list[Task],
            step: int) -> tuple[dict[str, Answers], Counter]:
    """One greedy attempt at each task by each member (name -> slot, -1 = frozen base), in one batch; its
    cost. Fresh members are the base, bit for bit: it alone is asked."""
    all_equal = not any(B.any() for _, B in s.adapters.masters.values())
    asked = [-1] if all_equal else list(slots.values())
    by_row = [slot for slot in asked for _ in tasks]
    done = attempt(s, tasks * len(asked), by_row, step, PROBE, 1, 0.0)
    correct = [solve_rate(verdicts) for verdicts in done.verdicts]
    thinks = [bool(reasoning(text, s.base.prompt_format)) for text in done.texts]
    by_name = {}
    for i, name in enumerate(slots):
        first = 0 if all_equal else i * len(tasks)
        own = slice(first, first + len(tasks))
        by_name[name] = Answers(correct[own], thinks[own])
    return by_name, cost_of(done)


def cost_of(done: Attempts) -> Counter:
    """Tokens of a probe's answers, and on how many the sandbox failed."""
    n_failed = sum(verdicts.count(UNJUDGED) for verdicts in done.verdicts)
    return Counter(probe_tokens=int(done.rollout.n_tokens.sum()), probe_failures=n_failed)


def sample_members(cfg, members: list[Member], step: int, n: int) -> list[Member]:
    """Members, role by role: of a role with more than n so many, drawn for this step."""
    chosen = []
    for number, role in enumerate(ROLES):
        own = members_of(members, role)
        if len(own) > n:
            drawn = make_rng(cfg.seed, step, PROBE, number).sample(range(len(own)), n)
            own = [own[i] for i in sorted(drawn)]
        chosen += own
    return chosen


def accuracies(members: dict[str, Answers]) -> dict[str, float]:
    """Share of the judged tasks that each solved, by name; nothing of those for whom none was judged."""
    shares = {name: mean(a.correct) for name, a in members.items()}
    return {name: share for name, share in shares.items() if share is not None}


def standard_error(members: dict[str, Answers]) -> float | None:
    """Of the members' mean accuracy, over tasks: members answer the same ones, so that a task counts once."""
    by_task = [mean(column) for column in zip(*(a.correct for a in members.values()))]
    by_task = [share for share in by_task if share is not None]
    return statistics.stdev(by_task) / len(by_task) ** .5 if len(by_task) > 1 else None


def probe_heldout(s: Setup, students: dict[str, int], heldout: list[Task], step: int) -> tuple[dict, Counter]:
    """Every student and the frozen base on the held-out tasks; keys of metrics.jsonl, cost."""
    if not heldout:
        return {}, Counter()
    members, cost = answers(s, students | {FROZEN_BASE: -1}, heldout, step)
    kinds = sorted({task.kind for task in heldout})
    out = {}
    if len(kinds) > 1:
        out["heldout_by_type"] = {
            kind: {name: mean(x for x, task in zip(a.correct, heldout) if task.kind == kind)
                   for name, a in members.items()} for kind in kinds}
    base = members.pop(FROZEN_BASE)
    out |= dict(heldout_greedy=accuracies(members), heldout_greedy_base=mean(base.correct),
                heldout_n=len(heldout), heldout_think={name: mean(a.thinks) for name, a in members.items()},
                heldout_greedy_se=standard_error(members))
    return out, cost


def probe_unseen(s: Setup, members: dict[str, int], unseen: list[Task], step: int) -> tuple[dict, Counter]:
    """Members and frozen base on the task types that the run does not play; keys of metrics.jsonl, cost."""
    out, cost = dict(unseen={}, unseen_think={}, unseen_n={}), Counter()
    for kind in dict.fromkeys(task.kind for task in unseen):
        tasks = [task for task in unseen if task.kind == kind]
        by_name, more = answers(s, members | {FROZEN_BASE: -1}, tasks, step)
        cost.update(more)
        out["unseen"][kind] = accuracies(by_name)
        out["unseen_think"][kind] = {name: mean(a.thinks) for name, a in by_name.items()}
        out["unseen_n"][kind] = len(tasks)
    return out if unseen else {}, cost


def probe_current(s: Setup, proposed: list[ProposalRecord], step: int) -> tuple[dict, Counter]:
    """The frozen base on the teachers' current tasks, whose base_rate it sets; keys, cost."""
    valid = [p for p in proposed if p.task]
    if not valid:
        return {}, Counter()
    done = attempt(s, [p.task for p in valid], [-1] * len(valid), step, BASE, 1)
    rates = [solve_rate(verdicts) for verdicts in done.verdicts]
    for p, rate in zip(valid, rates):
        p.base_rate = rate
    return dict(base_solve=mean(rates), student_solve=mean(p.solve_rate for p in proposed)), cost_of(done)


def probe(s: Setup, members: list[Member], heldout: list[Task], unseen: list[Task],
          proposed: list[ProposalRecord], step: int) -> dict:
    """All absolute measures of a step as keys of metrics.jsonl; {} where no probe is due."""
    every = s.cfg.probe_every
    if not every or (step % every and step != s.cfg.steps - 1):
        return {}
    asked = sample_members(s.cfg, members, step, N_PROBED)
    players = s.adapters.here
    s.adapters.page_in(m.slot for m in asked)
    students = {m.name: m.slot for m in members_of(asked, "student")}
    by_slot = {m.slot: m.name for m in asked}                   # an adapter in several roles is asked once
    everybody = {name: slot for slot, name in sorted(by_slot.items())}
    parts = [probe_heldout(s, students, heldout, step), probe_unseen(s, everybody, unseen, step),
             probe_current(s, proposed, step)]
    out, total = {}, Counter(probe_tokens=0)
    for measured, cost in parts:
        out |= measured
        total.update(cost)
    s.adapters.page_in(players.tolist())
    return out | total
