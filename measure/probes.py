"""Absolute measures of a run: tasks that never change, and a base that never learns.

Ratings only compare members with each other. A probe asks, greedily and the same tasks each time, every
student and the frozen base the held-out tasks of the types that the run plays, and all members and the base
those of unseen task types; the base also, sampled, the teachers' current tasks.
"""
import statistics
from collections import Counter

import selfplay
from evolve import ROLES, Member, members_of
from selfplay import BASE, PROBE, Attempts, ProposalRecord, Setup, attempt, make_rng, mean, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

FROZEN_BASE = "base"                # its name among the members


def answers(s: Setup, slots: dict[str, int], tasks: list[Task], step: int) -> tuple[dict, dict, Attempts]:
    """One greedy attempt at each task by each member (name -> slot, -1 = frozen base), in one batch: by name,
    task by task, whether it is correct (None: the sandbox failed on it) and whether it shows reasoning.
    Fresh members are the base, bit for bit: it alone is asked."""
    all_equal = not any(B.any() for _, B in s.adapters.masters.values())
    asked = [-1] if all_equal else list(slots.values())
    by_row = [slot for slot in asked for _ in tasks]
    done = attempt(s, tasks * len(asked), by_row, step, PROBE, 1, 0.0)
    correct = [solve_rate(verdicts) for verdicts in done.verdicts]
    thinks = [bool(reasoning(text, s.base.prompt_format)) for text in done.texts]
    first = {name: 0 if all_equal else i * len(tasks) for i, name in enumerate(slots)}
    own = {name: slice(i, i + len(tasks)) for name, i in first.items()}
    return ({name: correct[rows] for name, rows in own.items()},
            {name: thinks[rows] for name, rows in own.items()}, done)


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


def by_type(tasks: list[Task], members: dict[str, list]) -> dict[str, dict[str, float | None]]:
    """Task type -> name -> mean of what it has for the tasks of this type."""
    return {kind: {name: mean(x for x, task in zip(own, tasks) if task.kind == kind)
                   for name, own in members.items()} for kind in sorted({task.kind for task in tasks})}


def standard_error(correct: dict[str, list]) -> float | None:
    """Of the members' mean accuracy, over tasks: members answer the same ones, so that a task counts once."""
    by_task = [mean(column) for column in zip(*correct.values())]
    by_task = [share for share in by_task if share is not None]
    return statistics.stdev(by_task) / len(by_task) ** .5 if len(by_task) > 1 else None


def probe_heldout(s: Setup, students: dict[str, int], tasks: list[Task], step: int) -> tuple[dict, Attempts]:
    """Every student and the frozen base on the held-out tasks; keys of a row, the answers."""
    correct, _, done = answers(s, students | {FROZEN_BASE: -1}, tasks, step)
    types, shares = by_type(tasks, correct), {name: mean(own) for name, own in correct.items()}
    base, own = shares.pop(FROZEN_BASE), {name: correct[name] for name in students}
    return dict(heldout_greedy={name: share for name, share in shares.items() if share is not None},
                heldout_greedy_base=base, heldout_greedy_se=standard_error(own), heldout_n=len(tasks),
                heldout_by_type=types), done


def probe_unseen(s: Setup, members: dict[str, int], tasks: list[Task], step: int) -> tuple[dict, Attempts]:
    """Members and frozen base on the task types that the run does not play; keys of a row, the answers."""
    correct, thinks, done = answers(s, members | {FROZEN_BASE: -1}, tasks, step)
    return dict(unseen=by_type(tasks, correct), unseen_think=by_type(tasks, thinks),
                unseen_n=dict(Counter(task.kind for task in tasks))), done


def probe_current(s: Setup, valid: list[ProposalRecord], step: int) -> tuple[dict, Attempts]:
    """The frozen base on the teachers' valid tasks, whose base_rate it sets; keys of a row, the answers."""
    done = attempt(s, [p.task for p in valid], [-1] * len(valid), step, BASE, 1)
    for p, verdicts in zip(valid, done.verdicts):
        p.base_rate = solve_rate(verdicts)
    return dict(base_solve=mean(p.base_rate for p in valid),
                student_solve=mean(p.solve_rate for p in valid)), done


def probe(s: Setup, members: list[Member], heldout: list[Task], unseen: list[Task],
          proposed: list[ProposalRecord], step: int) -> dict:
    """All absolute measures of a step as keys of metrics.jsonl; {} where no probe is due."""
    every = s.cfg.probe_every
    if not every or (step % every and step != s.cfg.steps - 1):
        return {}
    asked = sample_members(s.cfg, members, step, selfplay.N_PROBED)
    players = s.adapters.here
    s.adapters.page_in(m.slot for m in asked)
    students = {m.name: m.slot for m in members_of(asked, "student")}
    by_slot = {m.slot: m.name for m in asked}                   # an adapter in several roles is asked once
    everybody = {name: slot for slot, name in sorted(by_slot.items())}
    valid = [p for p in proposed if p.task]
    parts = [probe_heldout(s, students, heldout, step) if heldout else None,
             probe_unseen(s, everybody, unseen, step) if unseen else None,
             probe_current(s, valid, step) if valid else None]
    s.adapters.page_in(players.tolist())
    out = dict(probe_tokens=0, probe_failures=0)
    for measured, done in filter(None, parts):
        out |= measured
        out["probe_tokens"] += int(done.rollout.n_tokens.sum())
        out["probe_failures"] += sum(verdicts.count(UNJUDGED) for verdicts in done.verdicts)
    return out
