"""Holds the phases between models and verifier: teachers propose, students solve, both are paid.

One proposal walks through as one ProposalRecord: text -> Proposal or reason -> verdict -> Task or reason ->
attempts of its students -> solve rate -> reward. Nothing here draws unkeyed random numbers or keeps state
between steps.
"""
import dataclasses
import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import evolve
from common import Refused, UserError, refuse_unless
from config import Config
from evolve import ROLES, Member, members_of
from generate import Prompts, Rollout, SamplingParams, generate
from lora import Adapters
from micro.programs import fresh_program
from model import Base
from ranks import Ranks
from rewards import INVALID, STUDENT_REWARDS, TEACHER_REWARDS, Outcome
from rl import Batch
from tasks import FRESH, TASK_TYPES, given_task, judge_answers, verify_answers
from tasks.archive import Archive
from tasks.base import UNJUDGED, Proposal, Task, shown_outputs
from tasks.programs import Limits
from tasks.prompts import Answer, Prompt
from tasks.rendering import decode_answers, render
from trueskill_lite import TrueSkill
from verifier import Job, Verdict, Verifier

# Phases: the third number of a random key, (seed, step, phase, member, index). Nothing draws with UPDATE. It
# is here so that the phases behind it keep their numbers.
MATCH, PROPOSE, SOLVE, UPDATE, EVOLVE, PROBE, BASE_RATE, INIT = range(8)
TITLES = {PROPOSE: "propose", SOLVE: "solve"}                   # phases with a progress bar
MATCHING_FLOOR = 0.1            # share of the uniform distribution in matching
RATINGS = TrueSkill()


@dataclass(frozen=True)
class Setup:
    """Holds what does not change during a run."""
    cfg: Config
    base: Base                      # frozen, with its tokenizer
    adapters: Adapters              # all members', stacked
    ranks: Ranks                    # the processes of the run
    sandbox: Verifier | None        # process 0 only
    limits: Limits                  # how long programs and values may be, and more
    base_hash: str = ""             # SHA-256 of the base's files, which members' files name
    tasks_hash: str = ""            # SHA-256 of the file of --tasks
    shows_bars: bool = False        # whether the phases have progress bars


@dataclass
class ProposalRecord:
    """Holds what becomes of one proposal in a step. Each phase fills in its fields."""
    teacher: Member
    kind: str                       # task type
    group: int                      # proposals sampled from one prompt share a number
    few_shot: list[Task]            # the references that the prompt showed
    text: str = ""                  # as the teacher wrote it
    proposal: Proposal | None = None
    key: str = ""                   # equal for duplicates, see TaskType.key
    reason: str = ""                # why it is not valid; "" = valid
    task: Task | None = None
    # student's name -> the verdict of each of its attempts
    attempts: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)     # the texts of these attempts
    base_rate: float | None = None  # the frozen base's solve rate, where a probe asked it
    reward: float = 0.0

    @functools.cached_property
    def statements(self) -> int:
        """Returns the number of statements in a valid task's program."""
        return TASK_TYPES[self.kind].statements(self.task.program)

    @functools.cached_property
    def structure(self) -> str:
        """Returns a hash of a valid task's program that is the same whatever its names and constants are."""
        return TASK_TYPES[self.kind].structure(self.task.program)

    @functools.cached_property
    def complexity(self) -> dict[str, float]:
        """Returns the measures of a valid task's program, by name."""
        return TASK_TYPES[self.kind].complexity(self.task.program)

    @property
    def verdicts(self) -> list[str]:
        """Returns the verdicts of all attempts at the task, student by student."""
        return sum(self.attempts.values(), [])

    @property
    def solve_rate(self) -> float | None:
        """Returns the share of all attempts that are correct; None if no attempt was judged."""
        return solve_rate(self.verdicts)

    @property
    def unjudged(self) -> bool:
        """Returns whether the sandbox failed on it, or on every attempt at it. Nobody learns from it then."""
        return self.reason == "sandbox_failure" or set(self.verdicts) == {UNJUDGED}


Pairs = list[tuple[Member, Member]]             # (teacher, student)
Solved = list[tuple[ProposalRecord, Member]]    # a task and who attempted it, in the order of Attempts


@dataclass
class Attempts:
    """Holds n attempts at each task, all n by one member; row i * n + j is attempt j at task i."""
    rollout: Rollout                # a row for each attempt
    texts: list[list[str]]          # by task, then by attempt, the prompt's opening included
    verdicts: list[list[str]]       # by task, then by attempt, as TaskType.grade says


@dataclass
class RoleRows:
    """Holds what the members of a role wrote in a step, and what it is paid."""
    role: str
    rollout: Rollout                # N rows
    # reward, group and task type of each row. Rows of one prompt share a group. A row without a reward is
    # left out, because the sandbox failed on it
    paid: list[tuple[float | None, int, str]]


def make_rng(*key: int) -> random.Random:
    """Returns a generator that depends on (seed, step, phase, member, index) alone."""
    return random.Random("/".join(map(str, key)))


def solve_rate(verdicts: list[str]) -> float | None:
    """Returns the share of correct attempts among those that were judged; None if none was."""
    n_judged = len(verdicts) - verdicts.count(UNJUDGED)     # the sandbox failed on the others
    if not n_judged:
        return None
    return verdicts.count("correct") / n_judged


# --- asking and judging -------------------------------------------------------------------------------------

def fits(s: Setup, prompt: Prompt) -> bool:
    """Returns whether a prompt and an answer of cfg.max_new_tokens tokens fit the base's context."""
    rendered = render(prompt, s.base.prompt_format, s.base.tokenizer)
    return len(rendered.ids) + s.cfg.max_new_tokens <= s.base.model.cfg.max_position_embeddings


def write(
    s: Setup,
    prompts: list[Prompt],
    slots: list[int],                   # who answers each prompt; -1 = the frozen base
    keys: list[tuple[int, ...]],        # what the draws of each row depend on
    n: int,
    temperature: float,
    desc: str = "",                     # title of the progress bar
) -> tuple[Rollout, list[str]]:
    """Returns the rollout of n answers to each prompt, and their texts, each behind the opening with which
    its prompt ends. Answer j to prompt i is row i * n + j. All prompts must share the text that ends
    answers."""
    base = s.base
    asked = [render(prompt, base.prompt_format, base.tokenizer) for prompt in prompts]
    closing, = {rendered.closing for rendered in asked}
    sampling = SamplingParams(n, temperature, s.cfg.max_new_tokens, s.cfg.rollout_batch, closing, desc)
    ids = [rendered.ids for rendered in asked]
    rollout = generate(base, s.adapters, Prompts(ids, slots, keys), sampling, s.ranks)
    texts = decode_answers(rollout.answers(base.eos_ids), base.tokenizer)
    return rollout, [asked[row // n].opening + text for row, text in enumerate(texts)]


def ask(
    s: Setup,
    prompts: list[Prompt],
    slots: list[int],                   # who answers each prompt; -1 = the frozen base
    step: int,
    phase: int,
    n: int,
    temperature: float | None = None,   # None = cfg.temperature
) -> tuple[Rollout, list[str]]:
    """Does what `write` does, with draws that are keyed by the step and the phase."""
    if temperature is None:
        temperature = s.cfg.temperature
    keys = []
    for row in range(n * len(prompts)):
        # 1 more of slot and step, because numpy takes no negative number into a key: the base's slot is -1
        keys.append((s.cfg.seed, step + 1, phase, slots[row // n] + 1, row))
    desc = TITLES.get(phase, "") if s.shows_bars else ""
    return write(s, prompts, slots, keys, n, temperature, desc)


def run_jobs(s: Setup, jobs: list[Job]) -> list[Verdict]:
    """Returns the sandbox's verdict on each job. It runs in process 0 alone, because a job close to its time
    limit could end in one way here and in another there, and the processes would go apart."""
    if not jobs:
        return []
    # as tuples, which JSON can carry
    told = s.ranks.broadcast(lambda: list(map(dataclasses.astuple, s.sandbox.run(jobs))))
    return [Verdict(end, tuple(outputs), tuple(errors)) for end, outputs, errors in told]


def judge(s: Setup, tasks: list[Task], texts: list[list[str]]) -> list[list[str]]:
    """Returns the verdicts on the answers in each task's texts. Answers are data to the sandbox, and never
    run outside of it. All are judged in one go, because the sandbox works on many at once."""
    return verify_answers(tasks, texts, s.base.prompt_format, s.limits, functools.partial(run_jobs, s))


def prompt_student(s: Setup, task: Task) -> Prompt:
    """Returns the prompt that asks a student to solve a task."""
    return TASK_TYPES[task.kind].solve(s.base.prompt_format, task, s.limits)


def attempt(
    s: Setup,
    tasks: list[Task],
    slots: list[int],                   # who attempts each task; -1 = the frozen base
    step: int,
    phase: int,
    n: int,
    temperature: float | None = None,
) -> Attempts:
    """Returns n attempts at each task, judged."""
    prompts = [prompt_student(s, task) for task in tasks]
    rollout, texts = ask(s, prompts, slots, step, phase, n, temperature)
    by_task = [texts[i * n:(i + 1) * n] for i in range(len(tasks))]
    return Attempts(rollout, by_task, judge(s, tasks, by_task))


def make_tasks(s: Setup, proposals: list[Proposal], what: str) -> list[Task]:
    """Runs the proposals that a user gave and returns them as tasks with their outputs. Raises UserError if
    some are not valid, or too long for the base, and names each with its line. `what` says where they came
    from."""
    limits = s.limits.of_user()
    verdicts = run_jobs(s, [TASK_TYPES[p.kind].job(p) for p in proposals])      # invalid ones run, too
    tasks, wrong = [], []
    for number, (p, verdict) in enumerate(zip(proposals, verdicts), 1):
        task_type = TASK_TYPES[p.kind]
        try:
            task_type.check(p, limits)
            task = task_type.make(p, verdict, limits, task_type.key(p, s.cfg.dedupe))
            refuse_unless(fits(s, prompt_student(s, task)), "prompt_too_long beside --max-new-tokens")
            tasks.append(task)
        except Refused as refused:
            place = f", line {p.line}," if p.line else ""
            given = f"{p.program[:80]!r} on {p.inputs[0][:40]!r}"
            wrong.append(f"task {number}{place} is not valid ({refused.reason}): {given}")
    if wrong:
        raise UserError(f"{what}: " + "\n".join(wrong))
    return tasks


# --- match --------------------------------------------------------------------------------------------------

def match(s: Setup, members: list[Member], step: int) -> Pairs:
    """Returns the pairs of a step. Every teacher draws a student by the ratings' forecast of their match."""
    return evolve.match(
        members_of(members, "teacher"),
        members_of(members, "student"),
        lambda teacher, student: RATINGS.p_win(student.rating, teacher.rating),
        s.cfg.matching,
        MATCHING_FLOOR,
        make_rng(s.cfg.seed, step, MATCH))


# --- propose and verify -------------------------------------------------------------------------------------

def prompt_teacher(
    s: Setup,
    archive: Archive,
    kind: str,
    rng: random.Random,
) -> tuple[Prompt, list[Task]]:
    """Returns a prompt for a teacher, and the references in it. These are made fewer, or shorter, until the
    prompt fits the base's context."""
    few_shot = archive.references(kind, max(1, s.cfg.n_few_shot), rng)
    while True:
        prompt = TASK_TYPES[kind].propose(s.base.prompt_format, few_shot, rng, s.limits)
        if not few_shot or fits(s, prompt):
            return prompt, few_shot
        if len(few_shot) == 1 and kind == "code_f":     # a prompt of code_f needs a program
            few_shot = archive.shorter(few_shot[0])
            assert few_shot, "no program of the archive leaves room for an answer"
        else:
            few_shot = few_shot[:-1]


def deal(s: Setup, teachers: list[Member], step: int) -> list[ProposalRecord]:
    """Returns what replaces the teachers' proposals with --tasks: as many tasks as they would write, from the
    file or from fresh programs. A task depends on the seed and its number alone, so all runs of a seed learn
    from the same tasks."""
    dealt = []
    n = s.cfg.n_prompts * s.cfg.proposals_per_prompt            # tasks of each teacher
    for row in range(n * len(teachers)):
        number = step * n * len(teachers) + row                 # counts up over the whole run
        if s.cfg.tasks == FRESH:
            kind = s.cfg.task_types[number % len(s.cfg.task_types)]
            proposal = Proposal(kind, *fresh_program(f"{s.cfg.seed}/fresh/{number}"))
        else:
            proposal = given_task(s.cfg.tasks, s.cfg.task_types, s.cfg.seed, number)
        dealt.append(ProposalRecord(teachers[row // n], proposal.kind, row, [], proposal=proposal))
    return dealt


def propose(
    s: Setup,
    archive: Archive,
    pairs: Pairs,
    step: int,
) -> tuple[Rollout | None, list[ProposalRecord]]:
    """Lets every teacher write n_prompts x proposals_per_prompt proposals, the task types in turn. Returns
    the rollout and the proposals. With --tasks nobody writes, and the rollout is None."""
    teachers = sorted((teacher for teacher, _ in pairs), key=lambda teacher: teacher.slot)
    if s.cfg.tasks:
        return None, deal(s, teachers, step)

    # Every draw is keyed by the teacher, so that its prompts do not depend on who else is there.
    prompts, slots, proposed = [], [], []
    for teacher in teachers:
        for i in range(s.cfg.n_prompts):
            kind = s.cfg.task_types[(step * s.cfg.n_prompts + i) % len(s.cfg.task_types)]
            rng = make_rng(s.cfg.seed, step, PROPOSE, teacher.slot, i)
            prompt, few_shot = prompt_teacher(s, archive, kind, rng)
            group = len(prompts)
            for _ in range(s.cfg.proposals_per_prompt):
                proposed.append(ProposalRecord(teacher, kind, group, few_shot))
            prompts.append(prompt)
            slots.append(teacher.slot)

    rollout, texts = ask(s, prompts, slots, step, PROPOSE, s.cfg.proposals_per_prompt)
    # A text that does not parse is a proposal, too: it is paid the penalty, and its teacher learns from it.
    for p, text in zip(proposed, texts, strict=True):
        p.text = text
        try:
            p.proposal = TASK_TYPES[p.kind].read(Answer(text, s.base.prompt_format), p.few_shot, s.limits)
        except Refused as refused:
            p.reason = refused.reason
    return rollout, proposed


def verify_proposals(s: Setup, archive: Archive, proposed: list[ProposalRecord], step: int) -> None:
    """Runs the proposals that could be read, and fills in the task of each, or the reason why it is none.
    Those that repeat the archive or this step are refused (cfg.dedupe)."""
    limits = s.limits.of_user() if s.cfg.tasks else s.limits
    # A look at the text refuses most of what is not valid, and costs less than a process.
    ready = []                          # proposals that have to be run
    for p in proposed:
        if not p.proposal:
            continue
        task_type = TASK_TYPES[p.kind]
        try:
            task_type.check(p.proposal, limits)
            p.key = task_type.key(p.proposal, s.cfg.dedupe)
            refuse_unless(s.cfg.dedupe == "off" or p.key not in archive.keys, "duplicate")
            ready.append(p)
        except Refused as refused:
            p.reason = refused.reason
    verdicts = run_jobs(s, [TASK_TYPES[p.kind].job(p.proposal) for p in ready])

    made = []
    for p, verdict in zip(ready, verdicts, strict=True):
        try:
            made.append((p, TASK_TYPES[p.kind].make(p.proposal, verdict, limits, p.key)))
        except Refused as refused:
            p.reason = refused.reason
    if "echo" in limits.dull:
        refuse_echoes(s, made)

    # The order of the batch decides which of two equal proposals is the duplicate.
    taken = set()                       # keys of this step's valid tasks
    next_id = archive.n_added
    for p, task in made:
        if p.reason:
            continue
        if s.cfg.dedupe != "off" and p.key in taken:
            p.reason = "duplicate"
        elif not fits(s, prompt_student(s, task)):
            p.reason = "prompt_too_long"
        else:
            parents = tuple(task.id for task in references_shown(s, p))
            p.task = dataclasses.replace(task, id=next_id, teacher=p.teacher.name, step=step, parents=parents)
            taken.add(p.key)
            next_id += 1


def refuse_echoes(s: Setup, made: list[tuple[ProposalRecord, Task]]) -> None:
    """Refuses each proposal whose task is solved by a copy of what its prompt shows."""
    tasks = [task for _, task in made]
    copies = [TASK_TYPES[task.kind].copies(task) for task in tasks]
    verdicts = judge_answers(tasks, copies, s.limits, functools.partial(run_jobs, s))
    for (p, _), own in zip(made, verdicts):
        if "correct" in own:
            p.reason = "echo"


def references_shown(s: Setup, p: ProposalRecord) -> list[Task]:
    """Returns the references that the teacher could read in its prompt."""
    if p.kind == "code_f":              # the first one is the program whose inputs it is to write
        return p.few_shot[:1]
    if s.base.prompt_format == "micro":                         # a format without references
        return []
    return p.few_shot


# --- solve --------------------------------------------------------------------------------------------------

def solve(
    s: Setup,
    pairs: Pairs,
    proposed: list[ProposalRecord],
    step: int,
) -> tuple[Solved, Attempts | None]:
    """Lets each student attempt its teachers' valid tasks. Returns who attempted what, and the attempts (None
    if there was no task)."""
    solved = []
    for teacher, student in pairs:
        for p in proposed:
            if p.task and p.teacher is teacher:
                solved.append((p, student))
    if not solved:
        return [], None
    # a task is asked once for each student that attempts it
    tasks = [p.task for p, _ in solved]
    slots = [student.slot for _, student in solved]
    attempts = attempt(s, tasks, slots, step, SOLVE, s.cfg.samples_per_task)
    for i, (p, student) in enumerate(solved):
        p.attempts[student.name] = attempts.verdicts[i]
        p.answers[student.name] = attempts.texts[i]
    return solved, attempts


# --- rewards ------------------------------------------------------------------------------------------------

def outcome_of(p: ProposalRecord, archive: Archive, unique_at_64: float) -> Outcome:
    """Returns what a reward may look at of a valid proposal. The archive lacks the tasks of this step."""
    return Outcome(
        solve_rate=p.solve_rate or 0.0,
        solve_rates={name: solve_rate(verdicts) for name, verdicts in p.attempts.items()},
        n_attempts=len(p.verdicts) - p.verdicts.count(UNJUDGED),
        base_rate=p.base_rate,
        kind=p.kind,
        majority_baseline=archive.majority_baseline(p.kind),
        n_tasks=archive.n_added,
        n_of_kind=len(archive.tasks[p.kind]),
        n_same_structure=archive.recent.count(p.structure),
        unique_at_64=unique_at_64,
        statements=p.statements,
        program=p.task.program,
        inputs=p.task.inputs,
        outputs=tuple(shown_outputs(p.task)))


def number_from(function: Callable, *arguments: object) -> float:
    """Returns what somebody's function returns, a reward for example. Raises AssertionError with the
    function's place unless it is a finite number: a forgotten `return` would else be noticed many steps
    later, or never."""
    number = function(*arguments)
    is_number = isinstance(number, (int, float)) and math.isfinite(number)
    assert is_number, (f"{function.__qualname__} ({function.__code__.co_filename}, line "
                       f"{function.__code__.co_firstlineno}) returned {number!r}: it has to return a finite "
                       "int or float")
    return number


def pay_teachers(s: Setup, archive: Archive, proposed: list[ProposalRecord]) -> None:
    """Fills in the rewards. A valid proposal is paid by its outcome; one that is not valid costs
    rewards.INVALID (AZR, eq. 4 and 6)."""
    pay = TEACHER_REWARDS[s.cfg.teacher_reward]
    unique_at_64 = archive.unique_at_64()           # slow, and the same for all proposals
    for p in proposed:
        if p.unjudged:
            continue                    # neither paid nor blamed
        if p.reason:
            p.reward = INVALID
        else:
            p.reward = number_from(pay, outcome_of(p, archive, unique_at_64))


def teacher_rows(rollout: Rollout | None, proposed: list[ProposalRecord]) -> RoleRows | None:
    """Returns the proposals that teachers learn from, with their pay. None if teachers wrote nothing."""
    if rollout is None:
        return None
    paid = [(None if p.unjudged else p.reward, p.group, p.kind) for p in proposed]
    return RoleRows("teacher", rollout, paid)


def student_rows(s: Setup, solved: Solved, attempts: Attempts | None) -> RoleRows | None:
    """Returns the attempts that students learn from, with their pay. Those at one task are a group. None if
    there were none."""
    if not attempts:
        return None
    pay = STUDENT_REWARDS[s.cfg.student_reward] | {UNJUDGED: None}
    paid = []
    for number, (p, student) in enumerate(solved):
        for verdict in p.attempts[student.name]:
            reward = pay.get(verdict, pay["wrong"])         # a violation of the sandbox's rules is wrong
            paid.append((reward, number, p.kind))
    return RoleRows("student", attempts.rollout, paid)


def training_batch(s: Setup, parts: list[RoleRows | None]) -> Batch:
    """Returns the rows of all roles together; a part is None if its role wrote nothing. A row on which the
    sandbox failed is left out, also of its group's baseline. Raises OSError if no row is left."""
    rollouts = []                                       # one for each role
    rows = []                                           # (reward, group, role, kind) of each row
    for part in filter(None, parts):
        kept = [i for i, (reward, *_) in enumerate(part.paid) if reward is not None]
        if not kept:
            continue
        role = ROLES.index(part.role)
        for i in kept:
            reward, group, kind = part.paid[i]
            group = group * len(ROLES) + role           # no two roles share one
            rows.append((reward, group, role, s.cfg.task_types.index(kind)))
        rollouts.append(part.rollout.select(torch.tensor(kept, device=part.rollout.ids.device)))

    if not rollouts:
        raise OSError("no row to learn from: the sandbox failed on every row (mend this machine, then "
                      "--resume the run), or no task of --tasks was valid")
    rollout = Rollout.cat(rollouts)
    columns = [torch.tensor(column, device=rollout.ids.device) for column in zip(*rows)]
    return Batch(rollout, *columns)
