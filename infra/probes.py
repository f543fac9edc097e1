"""Absolute measures of a run: tasks that never change, and a base that never learns.

Ratings only compare members with each other. A probe asks every student the anchors (held-out tasks of the kind that the run
plays), students, teachers and the frozen base held-out tasks of kinds that it does not play, and the frozen base the
teachers' current tasks. Greedy accuracy is what counts: what rises only at temperature 1 is sharpening. The first and the last
probe of a run ask all tasks, those in between a share of them, so that probes cost less than a fifth of a run.
"""
import dataclasses
import statistics
from dataclasses import dataclass

from evolve import Member
from lora import Adapters
from selfplay import BASE, PROBE, ProposalRecord, Setup, attempt, mean
from tasks.base import Task
from tasks.prompts import reasoning

FROZEN_BASE = "base"                # its name among the members
CURRENT_ATTEMPTS = 1                # of the frozen ones at each current task: tasks differ more than attempts at one do


@dataclass(frozen=True)
class Answers:
    """One member's answers to the tasks of a probe, task by task."""
    correct: list[bool]
    thinks: list[bool]              # whether the answer shows reasoning before it answers


def answers(s: Setup, slots: dict[str, int], tasks: list[Task], step: int, temperature: float) -> tuple[dict[str, Answers], int]:
    """One attempt at each task by each member (name -> slot, -1 = frozen base), all in one batch; tokens generated."""
    equal = temperature == 0 and not any(B.any() for B in s.adapters.B.values())    # fresh members are the base, bit for bit
    asked = [-1] if equal else list(slots.values())
    done = attempt(s, tasks * len(asked), [slot for slot in asked for _ in tasks], step, PROBE, 1, temperature)
    correct = [verdicts == ["correct"] for verdicts in done.verdicts]
    thinks = [bool(reasoning(text, s.base.prompt_format)) for text in done.texts]
    found = {}
    for i, name in enumerate(slots):
        first = 0 if equal else i * len(tasks)
        own = slice(first, first + len(tasks))
        found[name] = Answers(correct[own], thinks[own])
    return found, int(done.rollout.n_tokens.sum())


def part_of(tasks: list[Task], s: Setup) -> list[Task]:
    """The share of the tasks that is asked where not all are; files hold the sizes in turn."""
    return tasks[:max(1, round(len(tasks) * s.cfg.probe_share))]


def whole(s: Setup, step: int) -> bool:
    """Whether a probe asks all tasks: the first and the last of a run do."""
    return step == 0 or step == s.cfg.steps - 1


def standard_error(found: dict[str, Answers]) -> float | None:
    """Of the members' mean accuracy, over tasks: members answer the same ones, so that a task counts once."""
    by_task = [statistics.fmean(column) for column in zip(*(a.correct for a in found.values()))]
    return statistics.stdev(by_task) / len(by_task) ** .5 if len(by_task) > 1 else None


def probe_anchors(s: Setup, students: dict[str, int], anchors: list[Task], step: int) -> tuple[dict, int]:
    """Every student on the anchors, greedily, and at the first and last probe on a share of them at the run's temperature;
    keys of metrics.jsonl, tokens."""
    if not anchors:
        return {}, 0
    slots, part = students | {FROZEN_BASE: -1}, part_of(anchors, s)
    found, tokens = answers(s, slots, anchors if whole(s, step) else part, step, 0.0)
    base = found.pop(FROZEN_BASE)
    out = dict(anchors_greedy={who: mean(a.correct) for who, a in found.items()}, anchors_greedy_base=mean(base.correct),
               anchors_think={who: mean(a.thinks) for who, a in found.items()}, anchors_think_base=mean(base.thinks),
               anchors_greedy_se=standard_error(found))
    if whole(s, step):
        found, n_tokens = answers(s, slots, part, step, s.cfg.temperature)
        base = found.pop(FROZEN_BASE)
        out |= dict(anchors_sampled={who: mean(a.correct) for who, a in found.items()}, anchors_sampled_base=mean(base.correct))
        tokens += n_tokens
    return out, tokens


def probe_heldout(s: Setup, members: dict[str, int], heldout: list[Task], step: int) -> tuple[dict, int]:
    """Members and frozen base on the kinds of tasks that the run does not play, greedily; keys of metrics.jsonl, tokens."""
    slots, accuracy, thinking, tokens = members | {FROZEN_BASE: -1}, {}, {}, 0
    for kind in dict.fromkeys(task.kind for task in heldout):
        tasks = [task for task in heldout if task.kind == kind]
        asked = tasks if whole(s, step) else part_of(tasks, s)
        found, n_tokens = answers(s, slots, asked, step, 0.0)
        accuracy[kind] = {who: mean(a.correct) for who, a in found.items()}
        thinking[kind] = {who: mean(a.thinks) for who, a in found.items()}
        tokens += n_tokens
    return dict(heldout=accuracy, heldout_think=thinking) if accuracy else {}, tokens


def probe_current(s: Setup, proposed: list[ProposalRecord], step: int, frozen: Adapters | None) -> tuple[dict, int]:
    """The frozen base on the teachers' current tasks, and a student frozen early in the run (slot 0 of `frozen`), beside the
    students of the day; keys of metrics.jsonl, tokens."""
    tasks = [p.task for p in proposed if p.task]
    if not tasks:
        return {}, 0
    slots = [-1] * len(tasks) + ([0] * len(tasks) if frozen else [])
    still = dataclasses.replace(s, adapters=frozen or s.adapters)
    n = min(s.cfg.samples_per_task, CURRENT_ATTEMPTS)
    done = attempt(still, tasks * (2 if frozen else 1), slots, step, BASE, n)
    verdicts = [[verdict == "correct" for verdict in some] for some in done.verdicts]
    rates = [mean(right) for right in verdicts]
    out = dict(base_solve=mean(rates[:len(tasks)]), student_solve=mean(p.solve_rate for p in proposed))
    if frozen:
        out["frozen_solve"] = mean(rates[len(tasks):])
    return out, int(done.rollout.n_tokens.sum())


def probe(s: Setup, members: list[Member], anchors: list[Task], heldout: list[Task], proposed: list[ProposalRecord], step: int,
          frozen: Adapters | None = None) -> dict:
    """All absolute measures of a step, as keys of metrics.jsonl. The frozen base answers the same tasks as the members each
    time: it never changes, but the tasks asked between the first and the last probe are fewer."""
    students = {m.name: m.slot for m in members if m.role == "student"}
    by_slot = {m.slot: m.name for m in members}                  # a single agent is student and teacher: asked once
    everybody = {name: slot for slot, name in sorted(by_slot.items())}
    parts = [probe_anchors(s, students, anchors, step), probe_heldout(s, everybody, heldout, step),
             probe_current(s, proposed, step, frozen)]
    out = {}
    for measured, _ in parts:
        out |= measured
    return out | dict(probe_tokens=sum(tokens for _, tokens in parts))
