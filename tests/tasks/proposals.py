"""What becomes of a proposal and of answers, for the tests of every task type."""
from tasks import TASK_TYPES, verify_answers
from tasks.base import Reject
from tasks.programs import Limits

CHAT, MICRO = Limits.for_format("chat"), Limits.for_format("micro")


def fate(sandbox, proposal, limits=CHAT):
    """The way of what parse_proposal made: check, run, accept -> Task or the reason."""
    if isinstance(proposal, Reject):
        return proposal.reason
    kind = TASK_TYPES[proposal.kind]
    if refused := kind.check(proposal, limits):
        return refused.reason
    verdict, = sandbox.run([kind.job(proposal)])
    result = kind.accept(proposal, verdict, limits, kind.key(proposal, "structural"))
    return result.reason if isinstance(result, Reject) else result


def outcome(sandbox, name, text, prompt_format="chat", few_shot=()):
    """The whole way of a teacher's text -> Task or the reason."""
    limits = Limits.for_format(prompt_format)
    return fate(sandbox, TASK_TYPES[name].parse_proposal(text, prompt_format, few_shot, limits), limits)


def judge(sandbox, task, prompt_format, *texts):
    """The verdicts on students' texts."""
    return verify_answers([task], [texts], prompt_format, Limits.for_format(prompt_format), sandbox.run)[0]
