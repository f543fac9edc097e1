"""How long a run takes: by a trial of its first step (--plan with --device), and by its first three steps.

Counted is what takes long: rollouts with their verdicts, the update, and probes. Children and checkpoints
cost next to nothing, but those of --litter. Answers grow longer or shorter while members learn, and another
program on the same processor changes everything: twenty per cent off is good.
"""
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import rl
import selfplay
from config import Config
from evolve import members_of
from generate import Rollout
from infra.distributed import ALONE
from pack import micro_batches
from run.checkpoint import State
from selfplay import Setup

LIMIT = 15.0                # seconds that a trial gives each rollout
VALID = .6                  # share of proposals that are taken for valid where none has ended in a trial
N_STEPS = 3                 # of a run, after which it says when it will end


class OutOfTime(Exception):
    """A trial's rollout has taken LIMIT seconds."""


@dataclass
class Pace:
    """Seconds of a step without its probe, and of a probe."""
    step: float
    probe: float

    def until_end(self, cfg: Config, step: int) -> float:
        """Seconds that a run has before it, from a step on."""
        n_probes = sum(probe_due(cfg, number) for number in range(step, cfg.steps))
        return (cfg.steps - step) * self.step + n_probes * self.probe


def probe_due(cfg: Config, step: int) -> bool:
    """Whether a step has a probe: every --probe-every steps, and the last one."""
    if not cfg.probe_every:
        return False
    return step % cfg.probe_every == 0 or step == cfg.steps - 1


def answers_of_probe(s: Setup, state: State) -> int:
    """How many answers a probe takes once members differ from the base."""
    n_students = min(selfplay.N_PROBED, len(members_of(state.members, "student")))
    n_teachers = min(selfplay.N_PROBED, len(members_of(state.members, "teacher")))
    n_all = n_students if s.cfg.single else n_students + n_teachers
    return len(state.heldout) * (n_students + 1) + len(state.unseen) * (n_all + 1)


def pace(s: Setup, state: State, rows: list[dict]) -> Pace:
    """By the lines of metrics.jsonl of some steps, the first of which has warmed up."""
    steps = []
    for row in rows[1:]:
        seconds = row["seconds"]
        steps.append(sum(seconds.values()) - seconds["probe"])
    probe = 0.0
    n_answers = answers_of_probe(s, state)
    for row in rows:
        if not probe_due(s.cfg, row["step"]):
            continue
        n_asked = n_answers
        if row["step"] == 0 and not s.cfg.init:         # fresh members are the base: it alone was asked
            n_asked = len(state.heldout) + len(state.unseen)
        probe = row["seconds"]["probe"] / max(1, n_asked) * n_answers
    return Pace(sum(steps) / len(steps), probe)


class Forecast:
    """Says once, by the first steps of a process, when the run will end."""

    def __init__(self, s: Setup):
        self.setup = s
        self.rows = []

    def look(self, state: State, row: dict) -> list[str]:
        """A line for people after N_STEPS steps, before and afterwards none."""
        if len(self.rows) == N_STEPS:
            return []
        self.rows.append(row)
        cfg = self.setup.cfg
        if len(self.rows) < N_STEPS or state.step >= cfg.steps:
            return []
        left = pace(self.setup, state, self.rows).until_end(cfg, state.step)
        at = time.strftime("%a %H:%M", time.localtime(time.time() + left))
        return [f"by its first {N_STEPS} steps this run will end in {told(left)}, {at}"]


def told(seconds: float) -> str:
    """A duration for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


# --- the trial ----------------------------------------------------------------------------------------------

class Watch:
    """Sees a rollout grow, and ends it when its time is over (see `generate`)."""

    def __init__(self):
        self.began = time.perf_counter()
        self.n_ended = 0
        self.rows = None

    def __call__(self, rows: Rollout, ended: list[int]) -> None:
        self.rows = rows
        self.n_ended += len(ended)
        has_begun = bool(rows.n_tokens.any())       # prompts alone tell nothing
        if has_begun and time.perf_counter() - self.began > LIMIT:
            raise OutOfTime

    def tokens_left(self, longest: int) -> float:
        """Tokens that the rows would still have drawn, had each of them one chance to end at every token."""
        n_left = len(self.rows.length) - self.n_ended
        chance = self.n_ended / max(1, int(self.rows.n_tokens.sum()))
        if not chance:
            return n_left * longest - float(self.rows.n_tokens.sum())
        return n_left * (1 - (1 - chance) ** longest) / chance


@dataclass
class Tried:
    """A rollout of a trial: the seconds that the whole of it takes, its rows that were begun, as far as they
    were drawn (None where there was nothing to draw), the share of all tokens that this is, and what the work
    returned (None where its time was over)."""
    seconds: float
    rollout: Rollout | None
    share: float
    result: object


def tried(s: Setup, work: Callable[[Setup], object]) -> Tried:
    """A phase with a rollout, for LIMIT seconds at most."""
    watch = Watch()
    result = None
    left = 0.0
    try:
        result = work(dataclasses.replace(s, watch=watch))
    except OutOfTime:
        left = watch.tokens_left(s.cfg.max_new_tokens)
    seconds = time.perf_counter() - watch.began
    if watch.rows is None:
        return Tried(seconds, None, 1.0, result)
    rollout = watch.rows.select(watch.rows.n_tokens.nonzero().squeeze(1))
    drawn = int(rollout.n_tokens.sum())
    share = drawn / (drawn + left)
    return Tried(seconds / share, rollout, share, result)


def trial(s: Setup, state: State) -> Pace:
    """The first step of a run as far as its time allows. It changes nothing but gradients."""
    cfg = s.cfg
    pairs = selfplay.match(s, state.members, 0)
    s.adapters.to_device(m.slot for pair in pairs for m in pair)

    proposing = tried(s, lambda s: selfplay.propose(s, state.archive, pairs, 0))
    proposed = proposing.result[1] if proposing.result else []
    began = time.perf_counter()
    selfplay.verify_proposals(s, state.archive, proposed, 0)
    step = proposing.seconds + time.perf_counter() - began

    n_asked = 1.0                           # times as many rows as the trial's has a step
    if any(p.task for p in proposed):
        solving = tried(s, lambda s: selfplay.solve(s, pairs, proposed, 0))
    else:
        # No proposal is there: known tasks stand for those that the step would have, and nobody is paid.
        proposing.result = None
        known = state.heldout + sum(state.archive.tasks.values(), [])
        n = cfg.samples_per_task
        tasks = known[:max(1, cfg.rollout_batch // n)]
        slots = [pairs[i % len(pairs)][1].slot for i in range(len(tasks))]
        n_proposed = cfg.n_prompts * cfg.proposals_per_prompt * len(pairs)
        n_asked = n_proposed * VALID / len(tasks)
        solving = tried(s, lambda s: selfplay.attempt(s, tasks, slots, 0, selfplay.SOLVE, n))
    step += solving.seconds * n_asked
    step += seconds_of_update(s, state, proposing, solving, n_asked)

    # As in the first probe, where the base alone is asked: two rollouts, for one has a tail of its own.
    base = 0.0
    for tasks in (state.heldout, state.unseen):
        if cfg.probe_every and tasks:
            of_base = [-1] * len(tasks)
            base += tried(s, lambda s: selfplay.attempt(s, tasks, of_base, 0, selfplay.PROBE, 1, 0.0)).seconds
    n_base = len(state.heldout) + len(state.unseen)
    return Pace(step, base / max(1, n_base) * answers_of_probe(s, state))


def seconds_of_update(s: Setup, state: State, proposing: Tried, solving: Tried, n_asked: float) -> float:
    """What an update takes, by some of its micro-batches."""
    if proposing.result and solving.result:
        rollout, proposed = proposing.result
        selfplay.pay_teachers(s, state.archive, proposed)
        of_teachers = selfplay.teacher_rows(rollout, proposed)
        of_students = selfplay.student_rows(s, *solving.result)
        batch = selfplay.training_batch(s, [of_teachers, of_students])
        adv = rl.advantages(batch, s.cfg)
    else:                                   # rows that were cut off have no reward: all count, with any
        parts = [part.rollout for part in (proposing, solving) if part.rollout]
        rollout = Rollout.cat(parts)
        adv = torch.ones(len(rollout.length), device=rollout.ids.device)
        number = torch.zeros_like(rollout.length)
        batch = rl.Batch(rollout, adv, number, number, number)
    objective = rl.Objective(s.base, s.adapters, batch, adv, s.cfg)
    learning = objective.contributing
    numbers = learning.nonzero().squeeze(1).tolist()
    budget = s.cfg.tokens_per_microbatch
    batches = micro_batches(batch.rollout.to("cpu"), numbers, budget)
    spent = 0.0
    n_done = 0
    for lines in batches[len(batches) // 2:]:           # they are sorted by length
        # these rows alone: a KL or entropy term would learn from all others, too, whatever their advantage
        rows = torch.zeros_like(learning)
        rows[sum(lines, [])] = True
        began = time.perf_counter()
        rl.one_pass(objective, rows, budget, ALONE, "")
        spent += time.perf_counter() - began
        n_done += 1
        if spent > LIMIT / 3:
            break
    share = min(proposing.share, solving.share)
    return spent / max(1, n_done) * len(batches) * max(1.0, n_asked) / share
