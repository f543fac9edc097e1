"""Names the task types: code_o deduction, code_i abduction, code_f induction, word problems, puzzles,
theorems.

To add one: a class (base.TaskType; math.py and logic.py are two examples), its template in prompts.TEMPLATES,
and a place in TASK_TYPES.
"""
import functools
import importlib
import random
from dataclasses import replace
from pathlib import Path

from common import Refused, UserError, json_object
from tasks.base import Proposal, RunJobs, Task, TaskType, text_of
from tasks.code import Abduction, Deduction, Induction
from tasks.logic import Logic
from tasks.math import Math
from tasks.programs import Limits
from tasks.prompts import Answer


class Corner:
    """Stands in TASK_TYPES for a type whose file is imported only when something is asked of the type."""

    def __init__(self, file: str, name: str):
        self.file, self.type_name = file, name

    def __getattr__(self, asked: str) -> object:
        return getattr(getattr(importlib.import_module(self.file), self.type_name), asked)


TASK_TYPES: dict[str, TaskType] = {
    "code_o": Deduction(),
    "code_i": Abduction(),
    "code_f": Induction(),
    "math": Math(),
    "logic": Logic(),
    "proof": Corner("tasks.proof", "PROOF"),
}
IDENTITY = Proposal("code_o", "def f(x):\n return x", ("[1,2,3]",))
FRESH = "micro"                 # --tasks micro: random programs in place of a file


# --- tasks of files -----------------------------------------------------------------------------------------

def read_tasks(path: str | Path) -> list[Proposal]:
    """Returns the proposals in a file of JSON lines {"kind", "program", "input" or "inputs", "message"}, for
    math {"kind", "question", "program"}, for logic {"kind", "constraints"}; or in a run's tasks.jsonl. Raises
    UserError naming file or line and what is wrong with it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None
    proposals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json_object(line)
            kind = text_of(row, "kind", "code_o")
            if kind not in TASK_TYPES:
                raise UserError(f"kind {kind!r} is none of {', '.join(TASK_TYPES)}")
            if not row.get("reason"):           # a run's tasks.jsonl has invalid proposals, too
                proposals.append(replace(TASK_TYPES[kind].from_row(row), line=number))
        except (UserError, Refused) as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return proposals


@functools.lru_cache(maxsize=1)
def read_given(path: str, played: tuple[str, ...]) -> list[Proposal]:
    """Returns the tasks of a file. Raises UserError if their types are not those that the run plays."""
    if path == FRESH:
        return []
    given = read_tasks(path)
    if not given:
        raise UserError(f"--tasks {path} holds no task")
    odd = sorted({p.kind for p in given} ^ set(played))
    if odd:
        raise UserError(f"--tasks {path} and --task-types {','.join(played)} differ in {', '.join(odd)}: "
                        "give the types of the file's tasks")
    return given


@functools.lru_cache(maxsize=8)
def order(n: int, seed: int, lap: int) -> list[int]:
    """Returns the order in which a lap goes through n tasks."""
    return random.Random(f"{seed}/lap/{lap}").sample(range(n), n)


def given_task(path: str, played: tuple[str, ...], seed: int, number: int) -> Proposal:
    """Returns the task of this number in a run. The arguments alone decide which one it is."""
    pool = read_given(path, played)
    lap, place = divmod(number, len(pool))
    return pool[order(len(pool), seed, lap)[place]]


# --- answers ------------------------------------------------------------------------------------------------

def answer_in(task: Task, text: str, prompt_format: str, limits: Limits) -> str | None:
    """Returns the answer in a student's text, the prompt's opening included; None = malformed.

    Of the blocks with the name that was asked for, the last one that is an answer of the type counts. If
    there is none, the same holds for blocks that are not named for another part of a task. So whatever else a
    student shows, such as a call of its function or what that prints, is passed over."""
    task_type = TASK_TYPES[task.kind]
    for block in reversed(Answer(text, prompt_format).candidates(task_type.tags)):
        try:
            return task_type.read_answer(block, task, limits)
        except Refused:
            continue
    return None


def judge_answers(tasks: list[Task], answers: list[list[str | None]], limits: Limits,
                  run: RunJobs) -> list[list[str]]:
    """Returns the verdict on each answer to each task, as TaskType.grade says; None is malformed. `run` gets
    all jobs in one list, so that the sandbox works on many at once. Equal answers run once."""
    jobs = {}                                   # by (place of the task, answer)
    for i, (task, own) in enumerate(zip(tasks, answers, strict=True)):
        for answer in own:
            if answer is not None:
                jobs[i, answer] = TASK_TYPES[task.kind].answer_job(task, answer, limits)
    graded = {}
    for (i, answer), ran in zip(jobs, run(list(jobs.values())), strict=True):
        graded[i, answer] = TASK_TYPES[tasks[i].kind].grade(tasks[i], answer, ran, limits)
    verdicts = []
    for i, own in enumerate(answers):
        verdicts.append([graded.get((i, answer), "malformed") for answer in own])
    return verdicts


def verify_answers(tasks: list[Task], texts: list[list[str]], prompt_format: str, limits: Limits,
                   run: RunJobs) -> list[list[str]]:
    """Returns what `judge_answers` says of the answers in each task's texts."""
    answers = []
    for task, written in zip(tasks, texts, strict=True):
        answers.append([answer_in(task, text, prompt_format, limits) for text in written])
    return judge_answers(tasks, answers, limits, run)
