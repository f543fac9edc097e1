"""Absolute measures of a run: tasks that never change, and a base that never learns.

Ratings only compare members with each other. A probe asks every student the held-out tasks of the types that
the run plays, all members and the frozen base those of unseen task types, and the frozen base the teachers'
current tasks. Greedy accuracy is what counts: what rises only at temperature 1 is sharpening.
"""
import dataclasses
import statistics
from collections import Counter
from dataclasses import dataclass

from evolve import ROLES, Member, members_of
from lora import Adapters
from selfplay import BASE, PROBE, Attempts, ProposalRecord, Setup, attempt, make_rng, mean, solve_rate
from tasks.base import UNJUDGED, Task
from tasks.prompts import reasoning

N_PROBED = 32                       # members of a role that a probe asks, at most
FROZEN_BASE = "base"                # its name among the members
SHARE = 0.2                         # of the micro base's held-out tasks between the first and the last probe
CURRENT_ATTEMPTS = 1                # of the frozen ones at a current task: tasks differ more than attempts do


@dataclass(frozen=True)
class Answers:
    """One member's answers to the tasks of a probe, task by task."""
    correct: list[float | None]     # 1, 0, or None: the sandbox failed on it, no share counts it
    thinks: list[bool]              # whether the answer shows reasoning before it answers
    tokens: list[int]

    def first(self, n: int) -> "Answers":
        """Those to the first n tasks."""
        return Answers(self.correct[:n], self.thinks[:n], self.tokens[:n])


def answers(s: Setup, slots: dict[str, int], tasks: list[Task], step: int,
            temperature: float) -> tuple[dict[str, Answers], Counter]:
    """One attempt at each task by each member (name -> slot, -1 = frozen base), in one batch; its cost.

    Greedily, fresh members are the base, bit for bit: it alone is asked.
    """
    all_equal = temperature == 0 and not any(B.any() for _, B in s.adapters.masters.values())
    asked = [-1] if all_equal else list(slots.values())
    by_row = [slot for slot in asked for _ in tasks]
    done = attempt(s, tasks * len(asked), by_row, step, PROBE, 1, temperature)
    correct = [solve_rate(verdicts) for verdicts in done.verdicts]
    thinks = [bool(reasoning(text, s.base.prompt_format)) for text in done.texts]
    tokens, by_name = done.rollout.n_tokens.tolist(), {}
    for i, name in enumerate(slots):
        first = 0 if all_equal else i * len(tasks)
        own = slice(first, first + len(tasks))
        by_name[name] = Answers(correct[own], thinks[own], tokens[own])
    return by_name, cost_of(done)


def cost_of(done: Attempts) -> Counter:
    """Tokens of a probe's answers, and on how many the sandbox failed."""
    n_failed = sum(verdicts.count(UNJUDGED) for verdicts in done.verdicts)
    return Counter(probe_tokens=int(done.rollout.n_tokens.sum()), probe_failures=n_failed)


def is_probed(cfg, step: int) -> bool:
    """Whether a step has a probe: every --probe-every-th, and the last."""
    return bool(cfg.probe_every) and (step % cfg.probe_every == 0 or step == cfg.steps - 1)


def to_probe(cfg, members: list[Member], step: int) -> list[Member]:
    """Whom a step's probe asks: of a role with more than N_PROBED so many, drawn for this step."""
    asked = []
    for number, role in enumerate(ROLES):
        own = members_of(members, role)
        if len(own) > N_PROBED:
            drawn = make_rng(cfg.seed, step, PROBE, number).sample(range(len(own)), N_PROBED)
            own = [own[i] for i in sorted(drawn)]
        asked += own
    return asked


def part_of(tasks: list[Task], cfg) -> list[Task]:
    """Those that are asked where not all are: a share of the base's own; files hold the sizes in turn."""
    given = cfg.heldout or cfg.prompt_format != "micro"
    return tasks if given else tasks[:max(1, round(len(tasks) * SHARE))]


def whole(cfg, step: int) -> bool:
    """Whether a probe asks all tasks: the first and the last of a run do."""
    return step == 0 or step == cfg.steps - 1


def accuracies(members: dict[str, Answers]) -> dict[str, float]:
    """Share of the judged tasks that each solved, by name; nothing of those for whom none was judged."""
    shares = {name: mean(a.correct) for name, a in members.items()}
    return {name: share for name, share in shares.items() if share is not None}


def think_shares(members: dict[str, Answers]) -> dict[str, float]:
    """Share of answers that think, by name."""
    return {name: mean(a.thinks) for name, a in members.items()}


def standard_error(members: dict[str, Answers]) -> float | None:
    """Of the members' mean accuracy, over tasks: members answer the same ones, so that a task counts once."""
    by_task = [mean(column) for column in zip(*(a.correct for a in members.values()))]
    by_task = [share for share in by_task if share is not None]
    return statistics.stdev(by_task) / len(by_task) ** .5 if len(by_task) > 1 else None


def on_heldout(members: dict[str, Answers], n: int) -> dict:
    """Keys of metrics.jsonl for the answers to the first n held-out tasks."""
    members = {name: a.first(n) for name, a in members.items()}
    base = members.pop(FROZEN_BASE)
    return dict(heldout_greedy=accuracies(members), heldout_greedy_base=mean(base.correct), heldout_n=n,
                heldout_think=think_shares(members), heldout_think_base=mean(base.thinks),
                heldout_greedy_se=standard_error(members))


def probe_heldout(s: Setup, students: dict[str, int], heldout: list[Task], step: int) -> tuple[dict, Counter]:
    """Every student on the held-out tasks, greedily, and at the first and last probe on a share of them at
    the run's temperature; keys of metrics.jsonl, cost."""
    if not heldout:
        return {}, Counter()
    slots, part = students | {FROZEN_BASE: -1}, part_of(heldout, s.cfg)
    tasks = heldout if whole(s.cfg, step) else part
    members, cost = answers(s, slots, tasks, step, 0.0)
    out = on_heldout(members, len(tasks))
    if len(part) < len(tasks):
        out["part"] = on_heldout(members, len(part))
    kinds = sorted({task.kind for task in tasks})
    if len(kinds) > 1:
        out["heldout_by_type"] = {
            kind: {name: mean(x for x, task in zip(a.correct, tasks) if task.kind == kind)
                   for name, a in members.items()} for kind in kinds}
    if whole(s.cfg, step):
        members, more = answers(s, slots, part, step, s.cfg.temperature)
        base = members.pop(FROZEN_BASE)
        out |= dict(heldout_sampled=accuracies(members), heldout_sampled_base=mean(base.correct))
        cost.update(more)
    return out, cost


def probe_unseen(s: Setup, members: dict[str, int], unseen: list[Task], step: int) -> tuple[dict, Counter]:
    """Members and frozen base on the types of tasks that the run does not play, greedily; keys of
    metrics.jsonl, cost."""
    slots, cost = members | {FROZEN_BASE: -1}, Counter()
    out, part = (dict(unseen={}, unseen_think={}, unseen_n={}) for _ in range(2))
    for kind in dict.fromkeys(task.kind for task in unseen):
        tasks = [task for task in unseen if task.kind == kind]
        n_part = len(part_of(tasks, s.cfg))
        tasks = tasks if whole(s.cfg, step) else tasks[:n_part]
        by_name, more = answers(s, slots, tasks, step, 0.0)
        cost.update(more)
        for row, n in ((out, len(tasks)), (part, n_part)):
            own = {name: a.first(n) for name, a in by_name.items()}
            row["unseen"][kind], row["unseen_think"][kind] = accuracies(own), think_shares(own)
            row["unseen_n"][kind] = n
    if out["unseen_n"] != part["unseen_n"]:
        out["part"] = part
    return out if out["unseen"] else {}, cost


def probe_current(s: Setup, proposed: list[ProposalRecord], step: int,
                  frozen: Adapters | None) -> tuple[dict, Counter]:
    """The frozen base on the teachers' current tasks, whose base_rate it sets, and a student frozen early in
    the run (slot 0 of `frozen`), beside the students of the day; keys of metrics.jsonl, cost."""
    valid = [p for p in proposed if p.task]
    if not valid:
        return {}, Counter()
    tasks, slots = [p.task for p in valid], [-1] * len(valid)
    if frozen:
        tasks, slots = tasks * 2, slots + [0] * len(valid)
    still = dataclasses.replace(s, adapters=frozen or s.adapters)
    done = attempt(still, tasks, slots, step, BASE, min(s.cfg.samples_per_task, CURRENT_ATTEMPTS))
    rates = [solve_rate(verdicts) for verdicts in done.verdicts]
    for p, rate in zip(valid, rates):
        p.base_rate = rate
    out = dict(base_solve=mean(rates[:len(valid)]), student_solve=mean(p.solve_rate for p in proposed))
    if frozen:
        out["frozen_solve"] = mean(rates[len(valid):])
    return out, cost_of(done)


def probe(s: Setup, members: list[Member], heldout: list[Task], unseen: list[Task],
          proposed: list[ProposalRecord], step: int, frozen: Adapters | None = None) -> dict:
    """All absolute measures of a step, as keys of metrics.jsonl, of those that are asked (to_probe); nothing
    of a step without a probe. `part` is what the first and the last probe measured on the fewer tasks of
    those in between, so that a curve can show the same ones throughout."""
    if not is_probed(s.cfg, step):
        return {}
    asked = to_probe(s.cfg, members, step)
    players = s.adapters.here
    s.adapters.page_in(m.slot for m in asked)
    students = {m.name: m.slot for m in members_of(asked, "student")}
    by_slot = {m.slot: m.name for m in asked}                   # an adapter in several roles is asked once
    everybody = {name: slot for slot, name in sorted(by_slot.items())}
    parts = [probe_heldout(s, students, heldout, step), probe_unseen(s, everybody, unseen, step),
             probe_current(s, proposed, step, frozen)]
    s.adapters.page_in(players.tolist())
    out, cost, part = {}, Counter(probe_tokens=0), {}
    for measured, spent in parts:
        part |= measured.pop("part", {})
        out |= measured
        cost.update(spent)
    out |= dict(part=part) if part else {}
    return out | dict(probe_members=len(by_slot)) | cost
