"""The phases between models and verifier: teachers propose, students solve, both are paid.

One proposal walks through as one ProposalRecord: text -> Proposal or reason -> verdict -> Task or reason ->
attempts of its students -> solve rate -> reward. Nothing here draws unkeyed random numbers or keeps state
between steps.
"""
import dataclasses
import functools
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import torch

import evolve
from evolve import ROLES, Member, members_of, plays
from generate import Prompts, Rollout, SamplingParams, generate
from infra.distributed import Ranks
from infra.errors import UserError
from lora import Adapters
from micro.programs import fresh_program
from model import Base
from rewards import STUDENT_REWARDS, TEACHER_REWARDS, Outcome
from rl import Batch
from sandbox.values import decode
from tasks import FRESH, TASK_TYPES, given_task, verify_answers
from tasks.archive import Archive
from tasks.base import UNJUDGED, Proposal, Reject, Task
from tasks.prompts import FORMATS, Prompt, decode_answers, render, show
from tasks.validation import Limits
from trueskill_lite import RATINGS
from verifier import Job, PortableVerifier, Sandbox, Verdict

# Phases: the third number of a random key, (seed, step, phase, member, index). The update draws nothing.
MATCH, PROPOSE, SOLVE, UPDATE, EVOLVE, PROBE, BASE, INIT = range(8)
N_TRIAL = 24                    # tasks that the children of a --litter and their victim attempt
N_PROBED = 32                   # members of a role that a probe asks, at most: all that the device must hold
MATCHING_FLOOR = 0.1            # share of the uniform distribution in matching: exploration


@dataclass(frozen=True)
class Setup:
    """What does not change during a run."""
    cfg: object                     # config.Config
    base: Base
    adapters: Adapters
    ranks: Ranks
    sandbox: Sandbox | PortableVerifier | None      # process 0 only
    limits: Limits
    task_types: tuple[str, ...]


@dataclass
class ProposalRecord:
    """One proposal's fate. reason "" = valid; attempts: student name -> verdicts of its attempts."""
    teacher: Member
    kind: str
    group: int                      # proposals sampled from one prompt share a number
    few_shot: list[Task]
    text: str = ""
    proposal: Proposal | None = None
    key: str = ""
    reason: str = ""
    task: Task | None = None
    attempts: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)     # the texts of these attempts
    base_rate: float | None = None  # the frozen base's solve rate, where a probe asked it
    reward: float = 0.0

    @functools.cached_property
    def statements(self) -> int:
        """Length of a valid task's program."""
        return TASK_TYPES[self.kind].statements(self.task.program)

    @functools.cached_property
    def structure(self) -> str:
        """Hash of a valid task's program up to names and constants."""
        return TASK_TYPES[self.kind].structure(self.task.program)

    @functools.cached_property
    def output_size(self) -> tuple[int, int]:
        """Characters of a valid task's output as displayed, and digits of its longest number."""
        text = show(decode(self.task.outputs[0]))
        return len(text), max(map(len, re.findall(r"\d+", text)), default=0)

    @property
    def verdicts(self) -> list[str]:
        """Of all attempts."""
        return [verdict for attempts in self.attempts.values() for verdict in attempts]

    @property
    def solve_rate(self) -> float | None:
        """Share of all attempts that were correct; None without attempts that were judged."""
        return solve_rate(self.verdicts)

    @property
    def unjudged(self) -> bool:
        """Whether the sandbox failed on it, or on every attempt at it: nobody learns from its row."""
        return self.reason == "sandbox_failure" or bool(self.verdicts) and self.solve_rate is None


@dataclass
class Attempts:
    """n attempts at each of a list of tasks by one member each; row i*n+j is attempt j at task i."""
    rollout: Rollout
    texts: list[str]
    verdicts: list[list[str]]       # per task: of each attempt, as TaskType.verify says


@dataclass
class RoleRows:
    """What the members of a role wrote in a step, N rows, and what each row is paid."""
    role: str
    rollout: Rollout
    reward: list[float | None]      # None: the sandbox failed on it, the row is left out
    group: list[int]                # rows of one prompt share a number
    kind: list[str]                 # task type


def make_rng(*key: int) -> random.Random:
    """A generator that depends on (seed, step, phase, member, index) alone."""
    return random.Random("/".join(map(str, key)))


def mean(values) -> float | None:
    """Mean of those that are not None, or None of nothing (JSON has no nan)."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def solve_rate(verdicts: list[str]) -> float | None:
    """Share of the attempts on which the sandbox did not fail that are correct; None of nothing."""
    return mean(verdict == "correct" for verdict in verdicts if verdict != UNJUDGED)


# --- asking and judging -------------------------------------------------------------------------------------

def fits(s: Setup, prompt: Prompt) -> bool:
    """Whether a prompt and an answer of cfg.max_new_tokens tokens fit the base's context."""
    rendered = render(prompt, s.base.prompt_format, s.base.tokenizer, s.base.day)
    return len(rendered.ids) + s.cfg.max_new_tokens <= s.base.model.cfg.max_position_embeddings


def ask(s: Setup, prompts: list[Prompt], slots: list[int], step: int, phase: int, n: int,
        temperature: float | None = None, desc: str = "") -> tuple[Rollout, list[str]]:
    """n answers to each prompt by its slot's member (-1 = base): rollout, texts with their openings."""
    cfg, base = s.cfg, s.base
    asked = [render(prompt, base.prompt_format, base.tokenizer, base.day) for prompt in prompts]
    # a key holds no negative number, and the base's slot is -1
    keys = [(cfg.seed, step + 1, phase, slots[row // n] + 1, row) for row in range(n * len(slots))]
    sampling = SamplingParams(n, cfg.temperature if temperature is None else temperature, cfg.max_new_tokens,
                              cfg.rollout_batch, FORMATS[base.prompt_format].closing, desc)
    ids = [rendered.ids for rendered in asked]
    rollout = generate(base, s.adapters, Prompts(ids, slots, keys), sampling, s.ranks)
    texts = decode_answers(rollout.answers(base.eos_ids), base.tokenizer)
    return rollout, [asked[i // n].opening + text for i, text in enumerate(texts)]


def run_jobs(s: Setup, jobs: list[Job]) -> list[Verdict]:
    """Verdicts of the sandbox. It runs in process 0 alone: a close time limit cannot divide the processes."""
    # without jobs, too: all processes take part in a broadcast
    rows = s.ranks.broadcast(lambda: list(map(dataclasses.astuple, s.sandbox.run(jobs) if jobs else [])))
    return [Verdict(end, tuple(outputs), tuple(errors), cpu_s) for end, outputs, errors, cpu_s in rows]


def attempt(s: Setup, tasks: list[Task], slots: list[int], step: int, phase: int, n: int,
            temperature: float | None = None, desc: str = "") -> Attempts:
    """n attempts at each task by the member in its slot, judged. Answers are data to the sandbox."""
    prompts = [TASK_TYPES[task.kind].solve(s.base.prompt_format, task, s.limits) for task in tasks]
    rollout, texts = ask(s, prompts, slots, step, phase, n, temperature, desc)
    by_task = [texts[i * n:(i + 1) * n] for i in range(len(tasks))]
    run = functools.partial(run_jobs, s)
    return Attempts(rollout, texts, verify_answers(tasks, by_task, s.base.prompt_format, s.limits, run))


def make_tasks(s: Setup, proposals: list[Proposal], what: str) -> list[Task]:
    """Gold outputs for given proposals. Raises UserError naming the first invalid one."""
    verdicts = run_jobs(s, [TASK_TYPES[p.kind].job(p) for p in proposals])
    tasks = []
    for number, (p, verdict) in enumerate(zip(proposals, verdicts), 1):
        kind = TASK_TYPES[p.kind]
        result = kind.check(p, s.limits)
        if not result or result.reason == "ignores_input":
            result = kind.accept(p, verdict, s.limits, kind.key(p, s.cfg.dedupe))
        if isinstance(result, Reject):
            what_it_is = f"{p.program[:80]!r} on {p.inputs[0][:40]!r}"
            raise UserError(f"{what}: task {number} is not valid ({result.reason}): {what_it_is}")
        tasks.append(result)
    return tasks


# --- the phases ---------------------------------------------------------------------------------------------

def match(s: Setup, members: list[Member], step: int) -> list[tuple[Member, Member]]:
    """Every teacher, or cfg.matches of them, draws a student by who would win as ratings predict: pairs."""
    system, rng = RATINGS[s.cfg.rating](), make_rng(s.cfg.seed, step, MATCH)
    return evolve.match(members_of(members, "teacher"), members_of(members, "student"),
                        lambda teacher, student: system.p_win(student.rating, teacher.rating),
                        s.cfg.matching, MATCHING_FLOOR, rng, step, s.cfg.matches)


def prompt_teacher(s: Setup, archive: Archive, kind: str, rng: random.Random) -> tuple[Prompt, list[Task]]:
    """A prompt for a teacher, and the references in it: as many of those drawn as fit the base's context."""
    few_shot = archive.references(kind, max(1, s.cfg.n_few_shot), rng)
    while True:
        prompt = TASK_TYPES[kind].propose(s.base.prompt_format, few_shot, rng, s.limits)
        if len(few_shot) <= (kind == "code_f") or fits(s, prompt):
            return prompt, few_shot
        few_shot = few_shot[:-1]


def deal(s: Setup, teachers: list[Member], step: int) -> list[ProposalRecord]:
    """With --tasks, what each teacher would write: so many tasks of the file, or fresh programs."""
    n, dealt = s.cfg.n_prompts * s.cfg.proposals_per_prompt, []
    for row in range(n * len(teachers)):
        teacher = teachers[row // n]
        types = tuple(kind for kind in s.task_types if plays(teacher, kind))
        number = step * n * (s.cfg.matches or s.cfg.teachers) + row
        if s.cfg.tasks == FRESH:
            p = Proposal(types[number % len(types)], *fresh_program(f"{s.cfg.seed}/fresh/{number}"))
        else:
            p = given_task(s.cfg.tasks, s.task_types, types, s.cfg.seed, number)
        dealt.append(ProposalRecord(teacher, p.kind, row, [], proposal=p))
    return dealt


def propose(s: Setup, archive: Archive, pairs: list[tuple[Member, Member]], step: int,
            desc: str = "") -> tuple[Rollout | None, list[ProposalRecord]]:
    """Every teacher of a match writes n_prompts x proposals_per_prompt proposals, in turn of the task types
    that it and one of its students play. No rollout with --tasks, where nobody writes."""
    prompts, slots, proposed = [], [], []
    teachers = sorted({m.slot: m for m, _ in pairs}.values(), key=lambda m: m.slot)
    if s.cfg.tasks:
        return None, deal(s, teachers, step)
    for teacher in teachers:
        met = [student for other, student in pairs if other is teacher]
        types = [kind for kind in s.task_types if plays(teacher, kind) and any(plays(m, kind) for m in met)]
        for i in range(s.cfg.n_prompts):
            kind = types[(step * s.cfg.n_prompts + i) % len(types)]
            rng = make_rng(s.cfg.seed, step, PROPOSE, teacher.slot, i)
            prompt, few_shot = prompt_teacher(s, archive, kind, rng)
            for _ in range(s.cfg.proposals_per_prompt):
                proposed.append(ProposalRecord(teacher, kind, len(prompts), few_shot))
            prompts.append(prompt)
            slots.append(teacher.slot)
    rollout, texts = ask(s, prompts, slots, step, PROPOSE, s.cfg.proposals_per_prompt, desc=desc)
    for p, text in zip(proposed, texts, strict=True):
        p.text = text
        parsed = TASK_TYPES[p.kind].parse_proposal(text, s.base.prompt_format, p.few_shot, s.limits)
        if isinstance(parsed, Reject):
            p.reason = parsed.reason
        else:
            p.proposal = parsed
    return rollout, proposed


def verify(s: Setup, archive: Archive, proposed: list[ProposalRecord], step: int) -> None:
    """Run what parses; fill in task or reason. Duplicates of archive or batch are invalid (cfg.dedupe)."""
    ready, fresh, next_id = [], set(), archive.n_added
    for p in proposed:
        if p.proposal:
            kind = TASK_TYPES[p.kind]
            refused = kind.check(p.proposal, s.limits)
            p.key = "" if refused else kind.key(p.proposal, s.cfg.dedupe)
            repeated = "duplicate" if s.cfg.dedupe != "off" and p.key in archive.keys else ""
            p.reason = refused.reason if refused else repeated
            ready += [] if p.reason else [p]
    verdicts = run_jobs(s, [TASK_TYPES[p.kind].job(p.proposal) for p in ready])
    for p, verdict in zip(ready, verdicts, strict=True):
        result = TASK_TYPES[p.kind].accept(p.proposal, verdict, s.limits, p.key)
        if isinstance(result, Reject):
            p.reason = result.reason
        elif s.cfg.dedupe != "off" and p.key in fresh:
            p.reason = "duplicate"
        elif not fits(s, TASK_TYPES[p.kind].solve(s.base.prompt_format, result, s.limits)):
            p.reason = "prompt_too_long"
        else:
            # induction shows the program to call; else the micro format shows nothing
            n_shown = 1 if p.kind == "code_f" else len(p.few_shot) * (s.base.prompt_format != "micro")
            p.task = dataclasses.replace(result, id=next_id, teacher=p.teacher.name, step=step,
                                         parents=tuple(task.id for task in p.few_shot[:n_shown]))
            fresh.add(p.key)
            next_id += 1


def solve(s: Setup, pairs: list[tuple[Member, Member]], proposed: list[ProposalRecord], step: int,
          desc: str = "") -> tuple[list[tuple[ProposalRecord, Member]], Attempts | None]:
    """Each student attempts its teachers' valid tasks: who attempted what; the attempts (None without)."""
    solved = [(p, student) for teacher, student in pairs for p in proposed
              if p.task and p.teacher is teacher and plays(student, p.kind)]
    if not solved:
        return [], None
    tasks, slots = [p.task for p, _ in solved], [student.slot for _, student in solved]
    n = s.cfg.samples_per_task
    attempts = attempt(s, tasks, slots, step, SOLVE, n, desc=desc)
    for i, (p, student) in enumerate(solved):
        p.attempts[student.name] = attempts.verdicts[i]
        p.answers[student.name] = attempts.texts[i * n:(i + 1) * n]
    return solved, attempts


def trial(s: Setup, tasks: list[Task], slot: int, step: int) -> tuple[float, int]:
    """Share of these tasks that the member in a slot solves greedily, and the tokens of its answers."""
    s.adapters.page_in([slot])
    done = attempt(s, tasks, [slot] * len(tasks), step, EVOLVE, 1, 0.0)
    rate = solve_rate([verdict for verdict, in done.verdicts])
    return rate or 0.0, int(done.rollout.n_tokens.sum())


# --- rewards ------------------------------------------------------------------------------------------------

def outcomes(s: Setup, archive: Archive, valid: list[ProposalRecord]) -> list[Outcome]:
    """What rewards may look at, of each valid proposal; the archive is that before the step."""
    majority = {kind: archive.majority_baseline(kind) for kind in s.task_types}
    structures, unique_at_64 = Counter(archive.recent), archive.unique_at_64()
    return [Outcome(
        solve_rate=p.solve_rate or 0.0, base_rate=p.base_rate, kind=p.kind,
        solve_rates={name: solve_rate(verdicts) for name, verdicts in p.attempts.items()},
        n_attempts=len(p.verdicts) - p.verdicts.count(UNJUDGED), majority_baseline=majority[p.kind],
        n_tasks=archive.n_added, n_of_kind=len(archive.tasks[p.kind]),
        n_same_structure=structures[p.structure], unique_at_64=unique_at_64, statements=p.statements)
        for p in valid]


def pay_teachers(s: Setup, archive: Archive, proposed: list[ProposalRecord]) -> None:
    """Rewards: of valid proposals by their outcome; others cost cfg.invalid_penalty (AZR, eq. 4 and 6)."""
    for p in proposed:
        p.reward = s.cfg.invalid_penalty if p.reason and not p.unjudged else 0.0
    tried = [p for p in proposed if not p.reason and not p.unjudged]
    for p, outcome in zip(tried, outcomes(s, archive, tried), strict=True):
        p.reward = TEACHER_REWARDS[s.cfg.teacher_reward](outcome)


def teacher_rows(rollout: Rollout | None, proposed: list[ProposalRecord]) -> RoleRows | None:
    """What teachers learn from: their proposals, once paid. None where they wrote none."""
    if rollout is None:
        return None
    rewards = [None if p.unjudged else p.reward for p in proposed]
    return RoleRows("teacher", rollout, rewards, [p.group for p in proposed], [p.kind for p in proposed])


def student_rows(s: Setup, solved: list[tuple[ProposalRecord, Member]],
                 attempts: Attempts | None) -> RoleRows | None:
    """What students learn from: their attempts, each task a group. None where there were none."""
    if not attempts:
        return None
    pay = STUDENT_REWARDS[s.cfg.student_reward]
    rows = RoleRows("student", attempts.rollout, [], [], [])
    for number, ((p, _), verdicts) in enumerate(zip(solved, attempts.verdicts, strict=True)):
        for verdict in verdicts:        # a violation is paid as wrong
            rows.reward.append(None if verdict == UNJUDGED else pay.get(verdict, pay["wrong"]))
        rows.group += [number] * len(verdicts)
        rows.kind += [p.kind] * len(verdicts)
    return rows


def training_batch(s: Setup, parts: list[RoleRows | None]) -> Batch:
    """The rows of all roles together; None = a role that wrote nothing. A row that the sandbox failed on is
    left out: no gradient, no part in its group's baseline. Raises OSError if none is left."""
    rollouts, reward, group, role, kind = [], [], [], [], []
    for part in parts:
        kept = [i for i, paid in enumerate(part.reward) if paid is not None] if part else []
        if kept:
            n_groups = max(group, default=-1) + 1       # none of two roles, even where rows are left out
            group += [n_groups + part.group[i] for i in kept]
            reward += [part.reward[i] for i in kept]
            role += [ROLES.index(part.role)] * len(kept)
            kind += [s.task_types.index(part.kind[i]) for i in kept]
            rollouts.append(part.rollout.select(torch.tensor(kept, device=part.rollout.ids.device)))
    if not rollouts:
        raise OSError("no row to learn from: the sandbox failed on every row (mend this machine, then "
                      "--resume the run), or no task of --tasks was valid")
    rollout = Rollout.cat(rollouts)
    columns = [torch.tensor(column, device=rollout.ids.device) for column in (reward, group, role, kind)]
    assert {len(column) for column in columns} == {len(rollout.member)}, [len(column) for column in columns]
    return Batch(rollout, *columns)
