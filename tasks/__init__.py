"""The task types: code_o deduction, code_i abduction, code_f induction; word problems; puzzles; theorems. To
add one: a class (base.TaskType; math.py and logic.py are two examples), its template in prompts.TEMPLATES,
and a place in TASK_TYPES."""
import functools
import itertools
import random
from pathlib import Path

from common import Refused, UserError, demand
from common import json_object
from tasks.base import Proposal, RunJobs, Task, TaskType, text_of
from tasks.code import Abduction, Deduction, Induction
from tasks.logic import Logic
from tasks.math import Math
from tasks.programs import Limits

TASK_TYPES: dict[str, TaskType] = {
    kind.name: kind for kind in (Deduction(), Abduction(), Induction(), Math(), Logic())}
IDENTITY = Proposal("code_o", "def f(x):\n return x", ("[1,2,3]",))
FRESH = "micro"                 # in place of a file: random programs (selfplay.deal)


def read_tasks(path: str | Path) -> list[Proposal]:
    """Proposals from JSON lines {"kind", "program", "input" or "inputs", "message"}, for math {"kind",
    "question", "program"}, for logic {"kind",
    "constraints"}; or a run's tasks.jsonl. Raises UserError naming file or line and what is wrong with it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from None
    proposals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = row_of(line)
            if not row.get("reason"):           # a run's tasks.jsonl has invalid proposals, too
                proposals.append(TASK_TYPES[row["kind"]].from_row(row))
        except (UserError, Refused) as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return proposals


def row_of(line: str) -> dict:
    """A line of a file of tasks, its kind filled in. Raises UserError for what is none."""
    row = json_object(line)
    kind = text_of(row, "kind", "code_o")
    demand(kind in TASK_TYPES, f"kind {kind!r} is none of {', '.join(TASK_TYPES)}")
    return row | dict(kind=kind)


@functools.lru_cache(maxsize=1)
def read_given(path: str, played: tuple[str, ...]) -> list[Proposal]:
    """The tasks of a file. Raises UserError where their types are not those that the run plays."""
    if path == FRESH:
        return []
    given = read_tasks(path)
    odd = sorted({p.kind for p in given} ^ set(played))
    demand(not odd, f"--tasks {path} and --task-types {','.join(played)} differ in "
           f"{', '.join(odd)}: give the types of the file's tasks")
    return given


@functools.lru_cache(maxsize=8)
def order(n: int, seed: int, lap: int) -> list[int]:
    """n places in the order of a lap."""
    return random.Random(f"{seed}/lap/{lap}").sample(range(n), n)


def given_task(path: str, played: tuple[str, ...], seed: int, number: int) -> Proposal:
    """A proposal: the task of this number in a run; drawn by the arguments alone."""
    pool = read_given(path, played)
    lap, place = divmod(number, len(pool))
    return pool[order(len(pool), seed, lap)[place]]


def verify_answers(tasks: list[Task], texts: list[list[str]], prompt_format: str, limits: Limits,
                   run: RunJobs) -> list[list[str]]:
    """What TaskType.judge says of the answers in each task's texts, which include the prefix. `run` gets all
    jobs in one list: the sandbox has enough to do."""
    answers, jobs = [], []                      # of each task
    for task, written in zip(tasks, texts, strict=True):
        task_type = TASK_TYPES[task.kind]
        read = [task_type.parse_answer(text, prompt_format, task, limits) for text in written]
        answers.append(read)
        jobs.append(task_type.answer_jobs(task, read, limits))
    results = iter(run(sum(jobs, [])))          # in the order of the jobs
    verdicts = []
    for task, read, own_jobs in zip(tasks, answers, jobs):
        own = list(itertools.islice(results, len(own_jobs)))
        verdicts.append(TASK_TYPES[task.kind].judge(task, read, own, limits))
    return verdicts
