"""What becomes of a proposal, for the tests of every task type."""
from tasks import TASK_TYPES
from tasks.base import Reject


def fate(sandbox, proposal, limits):
    """The way of what parse_proposal made: check, run, accept -> Task or the reason."""
    if isinstance(proposal, Reject):
        return proposal.reason
    kind = TASK_TYPES[proposal.kind]
    if refused := kind.check(proposal, limits):
        return refused.reason
    verdict, = sandbox.run([kind.job(proposal)])
    result = kind.accept(proposal, verdict, limits, kind.key(proposal, "structural"))
    return result.reason if isinstance(result, Reject) else result
