"""Absolute measures of a run: tasks that never change, and a base that never learns.

Ratings only compare members with each other. A probe asks, greedily and the same tasks each time, every
student and the frozen base the held-out tasks of the types that the run plays, and all members and the base
those of unseen task types; the base also, sampled, the teachers' current tasks.
"""
import statistics
from collections import Counter
from dataclasses import dataclass, field

import selfplay
from config import Config
from evolve import ROLES, Member, members_of
from selfplay import BASE_RATE, PROBE, Attempts, ProposalRecord, Setup, attempt, make_rng, mean, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

def probe_due(cfg: Config, step: int) -> bool:
    """Whether a step has a probe: every --probe-every steps, and the last one."""
    if not cfg.probe_every:
        return False
    return step % cfg.probe_every == 0 or step == cfg.steps - 1


FROZEN_BASE = "base"                # its name among the members


@dataclass
class Answers:
    """Attempts of several members at the same tasks: by name, one entry a task."""
    done: Attempts
    correct: dict[str, list[float | None]] = field(default_factory=dict)    # None: the sandbox failed on it
    thinks: dict[str, list[bool]] = field(default_factory=dict)             # whether it shows reasoning


def ask_greedily(s: Setup, names: dict[int, str], tasks: list[Task], step: int) -> Answers:
    """One greedy attempt at each task by each member (slot -> name, -1 = frozen base), in one batch."""
    # fresh members are the base, bit for bit: it alone is asked
    all_equal = not any(B.any() for _, B in s.adapters.masters.values())
    asked = [-1] if all_equal else list(names)
    by_row = []
    for slot in asked:
        by_row += [slot] * len(tasks)
    done = attempt(s, tasks * len(asked), by_row, step, PROBE, 1, 0.0)
    correct = list(map(solve_rate, done.verdicts))
    thinks = []
    for text in done.texts:
        thinks.append(bool(reasoning(text, s.base.prompt_format)))
    found = Answers(done)
    first = 0
    for name in names.values():
        own = slice(first, first + len(tasks))
        found.correct[name] = correct[own]
        found.thinks[name] = thinks[own]
        if not all_equal:
            first += len(tasks)
    return found


def sample_members(cfg: Config, members: list[Member], step: int, n: int) -> list[Member]:
    """Members, role by role: of a role with more than n so many, drawn for this step."""
    chosen = []
    for number, role in enumerate(ROLES):
        own = members_of(members, role)
        if len(own) > n:
            drawn = make_rng(cfg.seed, step, PROBE, number).sample(own, n)
            own = sorted(drawn, key=own.index)
        chosen += own
    return chosen


def by_type(tasks: list[Task], members: dict[str, list]) -> dict[str, dict[str, float | None]]:
    """Task type -> name -> mean of what it has for the tasks of this type."""
    table = {}
    for kind in sorted({task.kind for task in tasks}):
        table[kind] = {}
        for name, own in members.items():
            table[kind][name] = mean(x for x, task in zip(own, tasks) if task.kind == kind)
    return table


def standard_error(correct: dict[str, list]) -> float | None:
    """Of the members' mean accuracy, over tasks: members answer the same ones, so that a task counts once."""
    by_task = []
    for column in zip(*correct.values()):       # what all members made of one task
        share = mean(column)
        if share is not None:
            by_task.append(share)
    if len(by_task) < 2:
        return None
    return statistics.stdev(by_task) / len(by_task) ** .5


def probe_heldout(s: Setup, students: dict[int, str], tasks: list[Task],
                  step: int) -> tuple[dict, Attempts]:
    """Every student and the frozen base on the held-out tasks; keys of a row, the answers."""
    found = ask_greedily(s, students | {-1: FROZEN_BASE}, tasks, step)
    types = by_type(tasks, found.correct)
    of_base = mean(found.correct.pop(FROZEN_BASE))
    greedy = {}
    for name, own in found.correct.items():
        share = mean(own)
        if share is not None:
            greedy[name] = share
    row = dict(
        heldout_greedy=greedy,
        heldout_greedy_base=of_base,
        heldout_greedy_se=standard_error(found.correct),
        heldout_n=len(tasks),
        heldout_by_type=types)
    return row, found.done


def probe_unseen(s: Setup, members: dict[int, str], tasks: list[Task],
                 step: int) -> tuple[dict, Attempts]:
    """Members and frozen base on the task types that the run does not play; keys of a row, the answers."""
    found = ask_greedily(s, members | {-1: FROZEN_BASE}, tasks, step)
    row = dict(
        unseen=by_type(tasks, found.correct),
        unseen_think=by_type(tasks, found.thinks),
        unseen_n=Counter(task.kind for task in tasks))
    return row, found.done


def probe_current(s: Setup, valid: list[ProposalRecord], step: int) -> tuple[dict, Attempts]:
    """The frozen base on the teachers' valid tasks, whose base_rate it sets; keys of a row, the answers."""
    tasks = [p.task for p in valid]
    done = attempt(s, tasks, [-1] * len(tasks), step, BASE_RATE, 1)
    of_base, of_students = [], []
    for p, verdicts in zip(valid, done.verdicts):
        p.base_rate = solve_rate(verdicts)
        of_base.append(p.base_rate)
        of_students.append(p.solve_rate)
    return dict(base_solve=mean(of_base), student_solve=mean(of_students)), done


def probe(s: Setup, members: list[Member], heldout: list[Task], unseen: list[Task],
          proposed: list[ProposalRecord], step: int) -> dict:
    """All absolute measures of a step as keys of metrics.jsonl; {} where no probe is due."""
    if not probe_due(s.cfg, step):
        return {}
    asked = sample_members(s.cfg, members, step, selfplay.N_PROBED)
    players = s.adapters.here                   # they come back to the device when the probe is over
    s.adapters.to_device(m.slot for m in asked)
    students, everybody = {}, {}                # slot -> name
    for m in asked:
        everybody[m.slot] = m.name              # an adapter in several roles is asked once
        if m.role == "student":
            students[m.slot] = m.name
    valid = [p for p in proposed if p.task]
    parts = []
    if heldout:
        parts.append(probe_heldout(s, students, heldout, step))
    if unseen:
        parts.append(probe_unseen(s, everybody, unseen, step))
    if valid:
        parts.append(probe_current(s, valid, step))
    s.adapters.to_device(players.tolist())
    row = dict(probe_tokens=0, probe_failures=0)
    for measured, done in parts:
        row |= measured
        row["probe_tokens"] += int(done.rollout.n_tokens.sum())
        for verdicts in done.verdicts:
            row["probe_failures"] += verdicts.count(UNJUDGED)
    return row
