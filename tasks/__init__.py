"""The task types: code_o deduction, code_i abduction, code_f induction; word problems; puzzles; theorems.

To add one: a class (base.TaskType says what it must return, math.py and logic.py are two examples), its
template in prompts.TEMPLATES, and a place in TASK_TYPES.
"""
import json
from collections.abc import Callable
from pathlib import Path

from tasks.base import Proposal, Task, TaskType
from tasks.code import Abduction, Deduction, Induction
from tasks.logic import Logic
from tasks.math import Math
from tasks.proof import Proof
from tasks.validation import Limits
from verifier import Job, Verdict

TASK_TYPES: dict[str, TaskType] = {
    kind.name: kind for kind in (Deduction(), Abduction(), Induction(), Math(), Logic(), Proof())}
IDENTITY = Proposal("code_o", "def f(x):\n return x", ("[1,2,3]",))


def read_tasks(path: str | Path) -> list[Proposal]:
    """Proposals from JSON lines, which are run like any teacher's.

    {"kind", "program", "input" or "inputs", "message"}, for math {"kind", "question", "program"}, for logic
    {"kind", "constraints"}, for proof {"kind", "theorem", perhaps "theory"}; or a run's tasks.jsonl. Raises
    ValueError naming the file or line and what is wrong with it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from None
    proposals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row.get("reason"):               # of a run's tasks.jsonl: an invalid proposal
                continue
            kind = row.get("kind", "code_o")
            if kind not in TASK_TYPES:
                raise ValueError(f"kind {kind!r} is none of {', '.join(TASK_TYPES)}")
            proposals.append(TASK_TYPES[kind].from_row(row))
        except KeyError as error:
            raise ValueError(f"{path}, line {number} lacks {error}") from None
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from None
    return proposals


def answers_of(tasks: list[Task], texts: list[list[str]], prompt_format: str,
               limits: Limits) -> list[list[str | None]]:
    """The answers in each task's texts, which include the prefix; None = malformed."""
    answers = []
    for task, written in zip(tasks, texts, strict=True):
        kind = TASK_TYPES[task.kind]
        answers.append([kind.parse_answer(text, prompt_format, task, limits) for text in written])
    return answers


def jobs_of(tasks: list[Task], answers: list[list[str | None]], limits: Limits) -> list[Job]:
    """All jobs that verify answers, in one list: the sandbox has enough to do."""
    jobs = []
    for task, given in zip(tasks, answers, strict=True):
        jobs += TASK_TYPES[task.kind].answer_jobs(task, given, limits)
    return jobs


def verdicts_of(tasks: list[Task], answers: list[list[str | None]], results: list[Verdict],
                limits: Limits) -> list[list[str]]:
    """What TaskType.verify says of each answer; results: of jobs_of's jobs."""
    remaining, verdicts = iter(results), []
    for task, given in zip(tasks, answers, strict=True):
        kind = TASK_TYPES[task.kind]
        own = [next(remaining) for _ in kind.answer_jobs(task, given, limits)]
        verdicts.append(kind.verify(task, given, own, limits))
    return verdicts


def verify_answers(tasks: list[Task], texts: list[list[str]], prompt_format: str, limits: Limits,
                  run: Callable[[list[Job]], list[Verdict]]) -> list[list[str]]:
    """All three in one, where a sandbox is at hand: `run` is its own."""
    answers = answers_of(tasks, texts, prompt_format, limits)
    return verdicts_of(tasks, answers, run(jobs_of(tasks, answers, limits)), limits)
