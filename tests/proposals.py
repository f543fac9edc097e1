"""Makes tasks, and says what becomes of proposals and of answers, for the tests of every task type."""
from common import Refused
from sandbox.values import encode
from tasks import TASK_TYPES, judge_answers, verify_answers
from tasks.base import Proposal, Task
from tasks.programs import Limits
from tasks.prompts import Answer

CHAT, MICRO = Limits.for_format("chat"), Limits.for_format("micro")


def made(kind: str, program: str, *pairs, message: str = "") -> Task:
    """Returns a task whose gold is given. pairs: (argument text, output value)."""
    inputs, outputs = zip(*pairs)
    return Task(kind, program, inputs, tuple(map(encode, outputs)), message, "key")


def fate(sandbox, proposal: Proposal, limits: Limits = CHAT) -> Task | str:
    """Returns the task of a proposal, or the reason why it is none, as selfplay finds it."""
    kind = TASK_TYPES[proposal.kind]
    try:
        kind.check(proposal, limits)
        verdict, = sandbox.run([kind.job(proposal)])
        task = kind.make(proposal, verdict, limits, kind.key(proposal, "structural"))
    except Refused as refused:
        return refused.reason
    copied, = judge_answers([task], [kind.copies(task)], limits, sandbox.run)
    return "echo" if "correct" in copied and "echo" in limits.dull else task


def read(name: str, text: str, prompt_format: str = "chat", few_shot: list[Task] = ()) -> Proposal | str:
    """Returns the proposal in a teacher's text, or the reason why there is none."""
    try:
        return TASK_TYPES[name].read(Answer(text, prompt_format), few_shot, Limits.for_format(prompt_format))
    except Refused as refused:
        return refused.reason


def outcome(sandbox, name: str, text: str, prompt_format: str = "chat", few_shot: list[Task] = ()) -> Task | str:
    """Returns the task that a teacher's text becomes, or the reason why it becomes none."""
    proposal = read(name, text, prompt_format, few_shot)
    return proposal if isinstance(proposal, str) else fate(sandbox, proposal, Limits.for_format(prompt_format))


def judge(sandbox, task: Task, prompt_format: str, *texts: str) -> list[str]:
    """Returns the verdicts on students' texts."""
    return verify_answers([task], [texts], prompt_format, Limits.for_format(prompt_format), sandbox.run)[0]
