"""What the sandbox, not the program, fails at: it is tried again, else the row is left out, and nobody is paid or blamed."""
import os
import signal
from unittest.mock import DEFAULT, Mock

import pytest
from cases import LOOP, one

import rl
import selfplay
from evolve import Member
from sandbox import scheduler
from tasks import TASK_TYPES, verify_answers
from tasks.archive import Archive
from tasks.base import UNJUDGED, VIOLATION, Proposal
from tasks.programs import Limits
from trueskill_lite import Rating
from verifier import Job, Sandbox, Verdict

LIMITS = Limits.for_format("chat")
REVERSED = "def f(x):\n    return x[::-1]"


@pytest.fixture
def narrow():
    """One worker, so that who is killed is who works."""
    with Sandbox(workers=1, cpu_s=0.6, wall_s=2.0) as narrow:
        yield narrow


def losing(n):
    """ForkServer.finish, but of the next n children nothing comes back, as of one whose walls cannot be put up."""
    left, real = iter(range(n)), scheduler.ForkServer.finish

    def finish(server):
        told = real(server)
        return told if next(left, None) is None else ("killed", 0.0, b"")
    return finish


@pytest.mark.parametrize("job, output", [(Job(LOOP, ("1",)), "10"), (Job("print(int(input()) + 1)", ("7\n",), entry=None), '"8\\n"')])
def test_two_failures_are_not_seen_and_a_third_is_told(narrow, monkeypatch, job, output):
    monkeypatch.setattr(scheduler.ForkServer, "finish", losing(2))
    assert narrow.run([job])[0].outputs == (output,)
    monkeypatch.setattr(scheduler.ForkServer, "finish", losing(3))
    verdict, = narrow.run([job])
    assert (verdict.end, verdict.errors) == ("sandbox failure", ("sandbox failure",))


def test_a_program_that_says_nothing_did_begin(narrow):
    for code, end in (("os._exit(111)", "exit"), ("os._exit(0)", "exit"), ("os.lseek(3, 0, 0)\nos._exit(111)", "exit"),
                      ("os.pwrite(3, b'', 0)\nos._exit(111)", "exit"), ("os.pwrite(3, b'x', 0)\nos._exit(0)", "malformed"),
                      ("os.write(3, b'\\n>\\n')\nos._exit(0)", "malformed"), ("try: os.ftruncate(3, 0)\nexcept OSError: pass\nos._exit(0)", "exit")):
        assert one(narrow, f"import os\n{code}").end == end, code
    for code, end in (("os._exit(111)", "exit"), ("", "ok"), ("os.pwrite(1, b'x', 0)", "malformed"),
                      ("os.lseek(1, 0, 0)\nprint(8)", "malformed"), ("os.ftruncate(1, 0)", "exit"), ("print('>')", "ok")):
        assert one(narrow, f"import os\n{code}", entry=None).end == end, code


def test_a_machine_out_of_processes_for_a_moment(narrow, monkeypatch):
    popen = Mock(wraps=scheduler.subprocess.Popen, side_effect=[BlockingIOError("Resource temporarily unavailable")] * 2 + [DEFAULT])
    monkeypatch.setattr(scheduler.subprocess, "Popen", popen)
    monkeypatch.setattr(scheduler, "PAUSES_S", (0.01, 0.01))
    n_open = len(os.listdir("/proc/self/fd"))
    os.kill(narrow.scheduler.servers[0].process.pid, signal.SIGKILL)
    assert one(narrow, LOOP, "1").outputs == ("10",) and popen.call_count == 3
    assert len(os.listdir("/proc/self/fd")) == n_open


def failing(run):
    """As a sandbox's run, but it fails on the last input of every job."""
    def runs(jobs):
        lost = "sandbox failure"
        return [Verdict(lost, (*verdict.outputs[:-1], None), (*verdict.errors[:-1], lost), 0.0) for verdict in run(jobs)]
    return runs


ANSWERS = {"code_o": "```output\n[2, 1]\n```", "code_i": "```input\n[1, 2]\n```", "code_f": f"```python\n{REVERSED}\n```"}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_attempt_whose_judging_fails_is_neither_right_nor_wrong(narrow, kind):
    inputs = tuple(f"[{i}, 1]" for i in range(10)) if kind == "code_f" else ("[1, 2]",)
    proposal = Proposal(kind, REVERSED, inputs)
    task = TASK_TYPES[kind].accept(proposal, narrow.run([TASK_TYPES[kind].job(proposal)])[0], LIMITS, "key")
    texts = [[ANSWERS[kind], "I do not know."]]
    assert verify_answers([task], texts, "chat", LIMITS, narrow.run) == [["correct", "malformed"]]
    assert verify_answers([task], texts, "chat", LIMITS, failing(narrow.run)) == [[UNJUDGED, "malformed"]]
    if kind == "code_f":                # who is wrong somewhere is wrong, whatever failed elsewhere
        wrong = [["```python\ndef f(x):\n    return x\n```"]]
        assert verify_answers([task], wrong, "chat", LIMITS, failing(narrow.run)) == [["wrong"]]
        verdicts = narrow.run([Job("import os\ndef f(x): os.fork()", task.inputs[5:])])
        assert TASK_TYPES[kind].judge(task, ["p"], verdicts, LIMITS) == [VIOLATION]


def test_a_row_left_out_gets_no_reward_and_no_gradient(setup):
    """Of two tasks one has an attempt that was judged, the other none, and a third never came to be: neither paid nor blamed."""
    s = setup(proposals_per_prompt=3)
    tasks = selfplay.make_tasks(s, [Proposal("code_o", f"def f(x):\n x=x+{i}\n return x", ("4",)) for i in (1, 2)], "")
    teacher, student = [Member(role, role, slot, Rating()) for slot, role in ((0, "teacher"), (2, "student"))]
    archive = Archive(100)
    archive.add(tasks[0], "s")
    rollout, proposed = selfplay.propose(s, archive, [(teacher, student)], 0)
    for p, task in zip(proposed, tasks):
        p.reason, p.task = "", task
    solved, attempts = selfplay.solve(s, [(teacher, student)], proposed, 0)
    for verdicts, judged in zip(attempts.verdicts, (["correct", UNJUDGED], [UNJUDGED, UNJUDGED])):
        verdicts[:] = judged
    proposed[1].reward, proposed[2].reason, proposed[2].task = 9.0, "sandbox_failure", None
    selfplay.pay_teachers(s, archive, proposed)
    assert [(p.solve_rate, p.unjudged) for p in proposed] == [(1, False), (None, True), (None, True)]
    assert [p.reward for p in proposed[1:]] == [0, 0]
    parts = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(s, solved, attempts)]
    assert [part.reward for part in parts] == [[proposed[0].reward, None, None], [1, None, None, None]]
    batch = selfplay.training_batch(s, parts)
    assert batch.reward.tolist() == [proposed[0].reward, 1] and len(batch.rollout.ids) == 2
    assert rl.advantages(batch, s.cfg).isfinite().all()
    parts[0].reward = parts[1].reward = [None] * 4
    with pytest.raises(OSError, match="failed on every row"):
        selfplay.training_batch(s, parts)
