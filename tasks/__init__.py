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
    {"kind", "constraints"}, for proof {"kind", "theorem"}; or a run's tasks.jsonl. Raises ValueError naming
    the file or line and what is wrong with it.
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
            if "key" in row:                    # of a run's tasks.jsonl: a task as it was verified
                proposals.append(Proposal(kind, row["program"], tuple(row["inputs"]), row["message"]))
            else:
                proposals.append(TASK_TYPES[kind].from_row(row))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from None
    return proposals


def judge_answers(tasks: list[Task], texts: list[list[str]], prompt_format: str, limits: Limits,
                  run: Callable[[list[Job]], list[Verdict]]) -> list[list[str]]:
    """What TaskType.judge says of each of a task's texts, which include the prefix.

    All jobs go to `run` (the sandbox's) in one call, so that its workers have enough to do.
    """
    kinds = [TASK_TYPES[task.kind] for task in tasks]
    answers = []
    for kind, task, some in zip(kinds, tasks, texts, strict=True):
        answers.append([kind.parse_answer(text, prompt_format, task, limits) for text in some])
    jobs = [kind.answer_jobs(task, some, limits) for kind, task, some in zip(kinds, tasks, answers)]
    verdicts = iter(run([job for some in jobs for job in some]))
    judged = []
    for kind, task, given, own in zip(kinds, tasks, answers, jobs):
        judged.append(kind.judge(task, given, [next(verdicts) for _ in own], limits))
    return judged
