"""The phases between models and judge: teachers propose, the sandbox verifies, students solve, rewards are counted.

One proposal walks through as one ProposalRecord: text -> Proposal or reason -> verdict -> Task or reason -> attempts of
its students -> solve rate -> reward. Nothing here draws unkeyed random numbers or keeps state between steps.
"""
import dataclasses
import functools
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import torch

import evolve
from evolve import Member
from generate import Rollout
from infra.distributed import Ranks
from lora import Adapters
from model import Base
from rewards import STUDENT_REWARDS, TEACHER_REWARDS
from rl import Batch
from sandbox.values import decode
from tasks import TASK_TYPES, judge_answers
from tasks.archive import Archive
from tasks.base import Proposal, Reject, Task
from tasks.complexity import measure
from tasks.prompts import Prompt, render, show
from tasks.validation import Limits
from trueskill_lite import RATINGS
from verifier import Job, Sandbox, Verdict

# Phases: the second half of every random key. The update draws nothing.
MATCH, PROPOSE, SOLVE, UPDATE, EVOLVE, PROBE, BASE, INIT = range(8)
MAX_LOGGED = 600                                                       # characters of a text in tasks.jsonl


@dataclass(frozen=True)
class Setup:
    """What does not change during a run."""
    cfg: object                     # config.Config
    base: Base
    adapters: Adapters
    ranks: Ranks
    sandbox: Sandbox | None         # process 0 only
    limits: Limits
    task_types: tuple[str, ...]


@dataclass
class ProposalRecord:
    """One proposal's fate. reason "" = valid; attempts: student name -> verdicts of its attempts."""
    teacher: Member
    kind: str
    row: int                        # its row in the proposals' rollout
    group: int                      # proposals sampled from one prompt share a number
    few_shot: list[Task]
    text: str = ""
    proposal: Proposal | None = None
    key: str = ""
    reason: str = ""
    task: Task | None = None
    attempts: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)     # the texts of these attempts
    reward: float = 0.0

    @functools.cached_property
    def complexity(self) -> dict:
        """Measures of a valid task's program, by name."""
        return dataclasses.asdict(measure(self.task.program))

    @functools.cached_property
    def output_size(self) -> tuple[int, int]:
        """Characters of a valid task's output as displayed, and digits of its longest number."""
        text = show(decode(self.task.outputs[0]))
        return len(text), max(map(len, re.findall(r"\d+", text)), default=0)

    @property
    def solve_rate(self) -> float | None:
        """Share of all attempts that were correct; None without attempts."""
        verdicts = [v for attempts in self.attempts.values() for v in attempts]
        return verdicts.count("correct") / len(verdicts) if verdicts else None


@dataclass
class Attempts:
    """n attempts at each of a list of tasks by one member each; row i*n+j is attempt j at task i."""
    rollout: Rollout
    texts: list[str]
    verdicts: list[list[str]]       # per task: "correct" | "wrong" | "malformed" per attempt


def make_rng(*key: int) -> random.Random:
    """A generator that depends on (seed, step, phase, member, index) alone."""
    return random.Random("/".join(map(str, key)))


def fits(s: Setup, prompt: Prompt) -> bool:
    """Whether a prompt and an answer of cfg.max_new_tokens tokens fit the base's context."""
    return len(render(prompt, s.base.prompt_format, s.base.tokenizer)) + s.cfg.max_new_tokens <= s.base.model.cfg.max_position_embeddings


def ask(s: Setup, prompts: list[Prompt], slots: list[int], step: int, phase: int, n: int, temperature=None,
        desc: str = "") -> tuple[Rollout, list[str]]:
    """n answers to each prompt by the member in its slot (-1 = frozen base): rollout and texts, which include the prefix."""
    c, tokenizer = s.cfg, s.base.tokenizer
    ids = [render(p, s.base.prompt_format, tokenizer) for p in prompts]
    keys = [(c.seed, step + 1, phase, slot + 1, i * n + j) for i, slot in enumerate(slots) for j in range(n)]
    temperature = c.temperature if temperature is None else temperature
    rollout = s.ranks.generate(s.base, s.adapters, ids, slots, keys, n, temperature=temperature, max_new_tokens=c.max_new_tokens,
                               rollout_batch=c.rollout_batch, desc=desc)
    texts = tokenizer.batch_decode(rollout.answers(s.base.eos_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return rollout, [prompts[i // n].prefix + text for i, text in enumerate(texts)]


def run_jobs(s: Setup, jobs: list[Job]) -> list[Verdict]:
    """Verdicts of the sandbox, which runs in process 0 alone, so that a close time limit cannot divide the processes."""
    rows = s.ranks.broadcast(lambda: [dataclasses.astuple(v) for v in s.sandbox.run(jobs)]) if jobs else []
    return [Verdict(end, tuple(outputs), tuple(errors), cpu_s) for end, outputs, errors, cpu_s in rows]


def match(s: Setup, members: list[Member], step: int) -> list[tuple[Member, Member]]:
    """Every teacher draws a student (cfg.matching) by the ratings' prediction of who would win: pairs (teacher, student)."""
    system = RATINGS[s.cfg.rating]()
    teachers, students = ([m for m in members if m.role == role] for role in ("teacher", "student"))
    p_beats = lambda teacher, student: system.p_win(student.rating, teacher.rating)
    return evolve.match(teachers, students, p_beats, s.cfg.matching, s.cfg.matching_floor, make_rng(s.cfg.seed, step, MATCH), step)


def propose(s: Setup, archive: Archive, teachers: list[Member], step: int, desc: str = "") -> tuple[Rollout, list[ProposalRecord]]:
    """Every teacher writes n_prompts x group proposals, the kinds in turn, with references from the archive."""
    prompts, slots, out = [], [], []
    for t in teachers:
        for i in range(s.cfg.n_prompts):
            kind = s.task_types[(step * s.cfg.n_prompts + i) % len(s.task_types)]
            rng = make_rng(s.cfg.seed, step, PROPOSE, t.slot, i)
            few_shot = archive.references(kind, max(1, s.cfg.n_few_shot), rng)
            prompt = TASK_TYPES[kind].propose(s.base.prompt_format, few_shot, rng, s.limits)
            while len(few_shot) > 1 and not fits(s, prompt):
                few_shot = few_shot[:-1]
                prompt = TASK_TYPES[kind].propose(s.base.prompt_format, few_shot, rng, s.limits)
            prompts.append(prompt)
            slots.append(t.slot)
            out += [ProposalRecord(t, kind, len(out) + g, len(prompts) - 1, few_shot) for g in range(s.cfg.proposals_per_prompt)]
    rollout, texts = ask(s, prompts, slots, step, PROPOSE, s.cfg.proposals_per_prompt, desc=desc)
    for p, text in zip(out, texts):
        p.text = text
        parsed = TASK_TYPES[p.kind].parse_proposal(text, s.base.prompt_format, p.few_shot, s.limits)
        if isinstance(parsed, Reject):
            p.reason = parsed.reason
        else:
            p.proposal = parsed
    return rollout, out


def verify(s: Setup, archive: Archive, proposed: list[ProposalRecord], step: int) -> None:
    """Run what parses; fill in task or reason. Duplicates of the archive or of this batch are invalid (cfg.dedupe)."""
    seen = archive.keys if s.cfg.dedupe != "off" else frozenset()
    for p in proposed:
        if p.proposal:
            kind = TASK_TYPES[p.kind]
            p.key = kind.key(p.proposal, "exact" if s.cfg.dedupe == "exact" else "structural")
            refused = kind.check(p.proposal, s.limits) or (Reject("duplicate") if p.key in seen else None)
            p.reason = refused.reason if refused else ""
    ready, fresh, n = [p for p in proposed if p.proposal and not p.reason], set(), archive.n_added
    modal = {kind: archive.modal_output(kind) for kind in s.task_types}
    for p, verdict in zip(ready, run_jobs(s, [TASK_TYPES[p.kind].job(p.proposal) for p in ready])):
        result = TASK_TYPES[p.kind].accept(p.proposal, verdict, s.limits, p.key)
        if isinstance(result, Task) and s.cfg.dedupe != "off" and p.key in fresh:
            result = Reject("duplicate")
        if isinstance(result, Task) and modal[p.kind][1] > s.cfg.max_guess and result.outputs == modal[p.kind][0]:
            result = Reject("guessable")
        if isinstance(result, Task) and not fits(s, TASK_TYPES[p.kind].solve(s.base.prompt_format, result, s.limits)):
            result = Reject("prompt_too_long")
        if isinstance(result, Reject):
            p.reason = result.reason
            continue
        fresh.add(p.key)
        shown = p.few_shot if s.base.prompt_format != "micro" else p.few_shot[:1] if p.kind == "code_f" else []     # micro prompts show no others
        p.task = dataclasses.replace(result, id=n, teacher=p.teacher.name, step=step, parents=tuple(ref.id for ref in shown))
        n += 1


def make_tasks(s: Setup, proposals: list[Proposal], what: str) -> list[Task]:
    """Gold outputs for given proposals (seeds, anchors). Raises ValueError naming the first that is not valid."""
    verdicts = run_jobs(s, [TASK_TYPES[p.kind].job(p) for p in proposals])
    tasks, key = [], "exact" if s.cfg.dedupe == "exact" else "structural"
    for i, (p, verdict) in enumerate(zip(proposals, verdicts)):
        kind = TASK_TYPES[p.kind]
        problem = kind.check(p, s.limits)
        wrong = problem and problem.reason != "ignores_input"
        result = problem if wrong else kind.accept(p, verdict, s.limits, kind.key(p, key))
        if isinstance(result, Reject):
            raise ValueError(f"{what}: task {i + 1} is not valid ({result.reason}): {p.program[:80]!r} on {p.inputs[0][:40]!r}")
        tasks.append(result)
    return tasks


def attempt(s: Setup, tasks: list[Task], slots: list[int], step: int, phase: int, n: int, temperature=None,
            desc: str = "") -> Attempts:
    """n attempts at each task by the member in its slot, judged. Answers are data to the sandbox, never run here."""
    prompt_format = s.base.prompt_format
    rollout, texts = ask(s, [TASK_TYPES[t.kind].solve(prompt_format, t, s.limits) for t in tasks], slots, step, phase, n, temperature, desc)
    by_task = [texts[i * n:(i + 1) * n] for i in range(len(tasks))]
    judged = judge_answers(tasks, by_task, prompt_format, s.limits, lambda jobs: run_jobs(s, jobs))
    return Attempts(rollout, texts, judged)


def solve(s: Setup, pairs: list[tuple[Member, Member]], proposed: list[ProposalRecord], step: int,
          desc: str = "") -> tuple[list[tuple[ProposalRecord, Member]], Attempts | None]:
    """Each student attempts the valid tasks of its teachers; who attempted what, and the attempts (None without valid tasks)."""
    n = s.cfg.samples_per_task
    solved = [(p, student) for teacher, student in pairs for p in proposed if p.teacher is teacher and p.task]
    if not solved:
        return [], None
    attempts = attempt(s, [p.task for p, _ in solved], [m.slot for _, m in solved], step, SOLVE, n, desc=desc)
    for i, (p, student) in enumerate(solved):
        p.attempts[student.name], p.answers[student.name] = attempts.verdicts[i], attempts.texts[i * n:(i + 1) * n]
    return solved, attempts


def pay_teachers(s: Setup, archive: Archive, proposed: list[ProposalRecord]) -> None:
    """Set each proposal's reward from its solve rate; invalid ones cost cfg.invalid_penalty (AZR, eq. 4 and 6), duplicates
    cfg.duplicate_penalty."""
    c = s.cfg
    guess = {kind: archive.modal_output(kind)[1] for kind in s.task_types}
    for p in proposed:
        if p.reason:
            p.reward = c.duplicate_penalty if p.reason == "duplicate" else c.invalid_penalty
        else:
            p.reward = TEACHER_REWARDS[c.teacher_reward](p.solve_rate or 0.0, guess[p.kind], c.noise_margin)


def training_batch(s: Setup, rollout: Rollout, proposed: list[ProposalRecord], solved: list[tuple[ProposalRecord, Member]],
                   attempts: Attempts | None) -> Batch:
    """Teachers' and students' rows together: rewards, prompt groups, roles and kinds; `solved` names who attempted what."""
    device, n = rollout.ids.device, s.cfg.samples_per_task
    rows = [(p.reward, p.group, 0, s.task_types.index(p.kind)) for p in proposed]
    if attempts:
        pay, first = STUDENT_REWARDS[s.cfg.student_reward], len(proposed)
        rows += [(pay[v], first + i, 1, s.task_types.index(p.kind))
                 for i, ((p, _), verdicts) in enumerate(zip(solved, attempts.verdicts)) for v in verdicts]
        assert len(rows) == len(proposed) + n * len(solved), (len(rows), n)
        rollout = Rollout.cat([rollout, attempts.rollout])
    return Batch(rollout, *(torch.tensor(column, device=device) for column in zip(*rows)))


def task_rows(proposed: list[ProposalRecord], step: int, limit: int = MAX_LOGGED) -> list[dict]:
    """Lines of tasks.jsonl: every proposal, valid or not, with what became of it (texts cut to `limit` characters)."""
    rows = []
    for p in proposed:
        row = dict(step=step, teacher=p.teacher.name, kind=p.kind, reason=p.reason, reward=p.reward)
        if p.task:
            t = p.task
            answers = {name: [text[-limit:] for text in texts] for name, texts in p.answers.items()}
            row |= dict(id=t.id, program=t.program, inputs=t.inputs, outputs=t.outputs, message=t.message, key=t.key,
                        parents=t.parents, solve_rate=p.solve_rate, attempts=p.attempts, answers=answers, complexity=p.complexity)
        else:
            row["text"] = p.text[:limit]
        rows.append(row)
    return rows


def task_from_row(row: dict) -> Task:
    """The Task of a line of tasks.jsonl."""
    return Task(row["kind"], row["program"], tuple(row["inputs"]), tuple(row["outputs"]), row["message"], row["key"], row["id"],
                row["teacher"], row["step"], tuple(row["parents"]))


def mean(values) -> float | None:
    """Mean, or None of nothing (JSON has no nan)."""
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def describe(proposed: list[ProposalRecord]) -> dict:
    """What one group of proposals looks like: validity by reason, solve rate, reward, complexity, share of trivial ones."""
    valid = [p for p in proposed if p.task]
    rates = [p.solve_rate for p in valid if p.solve_rate is not None]
    sizes, outputs = [p.complexity for p in valid], [p.output_size for p in valid]
    verdicts = Counter(v for p in valid for attempts in p.attempts.values() for v in attempts)
    return dict(n=len(proposed), valid=len(valid) / len(proposed) if proposed else None,
                reasons=dict(Counter(p.reason for p in proposed if p.reason)), teacher_reward=mean(p.reward for p in proposed),
                solve_rate=mean(rates), solve_0=mean(float(r == 0) for r in rates), solve_1=mean(float(r == 1) for r in rates),
                malformed=verdicts["malformed"] / max(1, verdicts.total()),
                complexity={k: mean(size[k] for size in sizes) for k in sizes[0]} if sizes else {},
                duplicates=mean(float(p.reason == "duplicate") for p in proposed),
                distinct=len({p.key for p in valid}) / len(valid) if valid else None,
                output_chars=mean(chars for chars, _ in outputs), output_digits=mean(digits for _, digits in outputs))
