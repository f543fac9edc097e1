"""What the sandbox, not the program, fails at: it is tried again, else the row is left out, and nobody is paid or blamed."""
import dataclasses
import os
import signal
import sys
import time

import pytest
from cases import LOOP, one

import selfplay
from evolve import Member
from sandbox import scheduler
from tasks import TASK_TYPES, verify_answers
from tasks.base import UNJUDGED, VIOLATION, Proposal
from tasks.validation import Limits
from trueskill_lite import RATINGS
from verifier import Job, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")
SLOW = "def f(x):\n t = 0\n for i in range(10**9):\n  t += i"
LIMITS = Limits.for_format("chat")
REVERSED = "def f(x):\n    return x[::-1]"


@pytest.fixture
def kill(monkeypatch):
    """kill(n): the next n jobs lose their fork server, and with it their child, while they are at work."""
    left = [0]
    real = scheduler.ForkServer.start

    def start(server, *args):
        real(server, *args)
        if left[0]:
            left[0] -= 1
            time.sleep(0.02)
            os.kill(server.process.pid, signal.SIGKILL)

    monkeypatch.setattr(scheduler.ForkServer, "start", start)
    return lambda n: left.__setitem__(0, n)


@pytest.fixture
def narrow():
    """One worker, so that who is killed is who works."""
    with Sandbox(workers=1, cpu_s=0.6, wall_s=2.0) as narrow:
        yield narrow


def test_two_failures_are_not_seen_and_a_third_is_told(narrow, kill):
    kill(2)
    assert one(narrow, SLOW, "3").errors == ("timeout",) and narrow.scheduler.replaced == 2
    kill(3)
    verdict = one(narrow, SLOW, "3")
    assert (verdict.end, verdict.errors) == ("sandbox failure", ("sandbox failure",)) and narrow.scheduler.replaced == 5
    kill(2)
    assert one(narrow, LOOP, "1").outputs == ("10",)


def test_a_child_that_never_reached_its_program_is_a_failure(narrow, monkeypatch):
    """As where its walls cannot be put up: then it says nothing at all. A program that says nothing did begin."""
    ends = []
    real = scheduler.ForkServer.finish

    def finish(server):
        ends.append(real(server))
        return ("exit", 0.0, b"") if len(ends) == 1 else ends[-1]

    monkeypatch.setattr(scheduler.ForkServer, "finish", finish)
    assert one(narrow, LOOP, "1").outputs == ("10",) and len(ends) == 2      # as if the first had never begun
    for code in ("import os\nos._exit(111)", "import os\nos._exit(0)", "import ctypes; ctypes.memset(8, 0, 8)",
                 "import os\nos.lseek(3, 0, 0)\nos._exit(111)", "import os\nos.pwrite(3, b'', 0)\nos._exit(111)"):
        assert one(narrow, code).end in ("exit", "crash"), code
    for code in ("import os\nos.pwrite(3, b'x', 0)\nos._exit(0)", "import os\nos.write(3, b'\\n>\\n')\nos._exit(0)"):
        assert one(narrow, code).end == "malformed", code
    assert one(narrow, "import os\ntry: os.ftruncate(3, 0)\nexcept OSError: pass\nos._exit(0)").end == "exit"


def test_a_machine_out_of_processes_for_a_moment(narrow, monkeypatch):
    left = [2]
    real = scheduler.subprocess.Popen

    def popen(*args, **kw):
        if left[0]:
            left[0] -= 1
            raise BlockingIOError("Resource temporarily unavailable")
        return real(*args, **kw)

    monkeypatch.setattr(scheduler.subprocess, "Popen", popen)
    monkeypatch.setattr(scheduler, "PAUSES_S", (0.01, 0.01))
    n_open = len(os.listdir("/proc/self/fd"))
    os.kill(narrow.servers[0].process.pid, signal.SIGKILL)
    assert one(narrow, LOOP, "1").outputs == ("10",) and left == [0]
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_a_whole_program_that_never_began_is_a_failure_too(narrow, monkeypatch):
    """It says that it begins in front of what it prints, and cannot take that back."""
    ends, real = [], scheduler.ForkServer.finish

    def finish(server):
        ends.append(real(server))
        return ("killed", 0.0, b"") if len(ends) == 1 else ends[-1]

    monkeypatch.setattr(scheduler.ForkServer, "finish", finish)

    def script(code):
        return narrow.run([Job(code, ("7\n",), entry=None)])[0]

    assert script("print(int(input()) + 1)").outputs == ('"8\\n"',) and len(ends) == 2, "tried again, and nothing is seen"
    for code, wanted in (("import os\nos._exit(111)", "exit"), ("import ctypes\nctypes.memset(8, 0, 8)", "crash"), ("", "ok"),
                         ("import os\nos.pwrite(1, b'x', 0)", "malformed"), ("import os\nos.lseek(1, 0, 0)\nprint(8)", "malformed"),
                         ("import os\nos.ftruncate(1, 0)", "exit"), ("print('>')", "ok"), ("import sys\nsys.stdout.buffer.write(b'>\\n>')", "ok")):
        assert script(code).end == wanted, code
    assert script("print('>')").outputs == ('">\\n"',) and script("").outputs == ('""',)
    monkeypatch.setattr(scheduler.ForkServer, "finish", lambda server: (real(server), ("killed", 0.0, b""))[1])
    assert script("print(1)").errors == ("sandbox failure",)


def made(narrow, kind, program, *inputs):
    """A task of a kind."""
    proposal = Proposal(kind, program, inputs)
    return TASK_TYPES[kind].accept(proposal, narrow.run([TASK_TYPES[kind].job(proposal)])[0], LIMITS, "key")


ANSWERS = {"code_o": "```output\n[2, 1]\n```", "code_i": "```input\n[1, 2]\n```", "code_f": f"```python\n{REVERSED}\n```"}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_attempt_whose_judging_fails_is_neither_right_nor_wrong(narrow, kind):
    inputs = [f"[{i}, 1]" for i in range(10)] if kind == "code_f" else ["[1, 2]"]
    task = made(narrow, kind, REVERSED, *inputs)
    texts = [[ANSWERS[kind], "I do not know."]]
    assert verify_answers([task], texts, "chat", LIMITS, narrow.run) == [["correct", "malformed"]]

    def failing(jobs):
        return [one_failure(verdict) for verdict in narrow.run(jobs)]

    assert verify_answers([task], texts, "chat", LIMITS, failing) == [[UNJUDGED, "malformed"]]


def one_failure(verdict):
    """A verdict as it is where the sandbox failed on the last input."""
    n = len(verdict.outputs) - 1
    return type(verdict)("sandbox failure", (*verdict.outputs[:n], None), (*verdict.errors[:n], "sandbox failure"), 0.0)


def test_a_program_that_is_wrong_somewhere_is_wrong_whatever_failed_elsewhere(narrow):
    task = made(narrow, "code_f", REVERSED, *(f"[{i}, 1]" for i in range(10)))
    wrong = "```python\ndef f(x):\n    return x\n```"
    verdicts = verify_answers([task], [[wrong]], "chat", LIMITS, lambda jobs: [one_failure(v) for v in narrow.run(jobs)])
    assert verdicts == [["wrong"]]


def test_a_forbidden_system_call_is_told_of_a_student(narrow):
    task = made(narrow, "code_f", REVERSED, *(f"[{i}, 1]" for i in range(10)))
    judged = TASK_TYPES["code_f"].verify(task, ["p"], narrow.run([Job("import os\ndef f(x): os.fork()", task.inputs[5:])]), LIMITS)
    assert judged == [VIOLATION]


# -- the row is left out -------------------------------------------------------------------------------------


def member(role, slot):
    return Member(f"{role[0].upper()}{slot}", role, slot, RATINGS["trueskill"]().new())


def played(s, sandbox_of):
    """A step up to the batch, its students judged by the sandbox that `sandbox_of` makes of the honest one."""
    from tasks.archive import Archive
    seed, = selfplay.make_tasks(s, [Proposal("code_o", "def f(x):\n x=x+1\n return x", ("4",))], "")
    archive = Archive(["code_o"], 100)
    archive.add(seed, "s")
    pairs = [(member("teacher", 0), member("student", 2)), (member("teacher", 1), member("student", 3))]
    rollout, proposed = selfplay.propose(s, archive, pairs, 0)
    selfplay.verify(s, archive, proposed, 0)
    broken = dataclasses.replace(s, sandbox=sandbox_of(s.sandbox))
    solved, attempts = selfplay.solve(broken, pairs, proposed, 0)
    selfplay.pay_teachers(s, archive, proposed)
    parts = [selfplay.teacher_rows(rollout, proposed), selfplay.student_rows(s, solved, attempts)]
    return proposed, attempts, parts


class Failing:
    """A sandbox that fails on every job but the first n."""

    def __init__(self, real, n):
        self.real, self.n = real, n

    def run(self, jobs):
        verdicts = self.real.run(jobs)
        return verdicts[:self.n] + [one_failure(verdict) for verdict in verdicts[self.n:]]


def test_a_row_left_out_gets_no_reward_and_no_gradient(setup):
    import rl
    s = setup(proposals_per_prompt=4)
    proposed, attempts, parts = played(s, lambda real: Failing(real, 1))
    verdicts = [verdict for some in attempts.verdicts for verdict in some]
    n_failed = verdicts.count(UNJUDGED)
    assert 0 < n_failed < len(verdicts)
    assert [reward is None for reward in parts[1].reward] == [verdict == UNJUDGED for verdict in verdicts]
    unjudged = [p for p in proposed if p.unjudged]
    assert unjudged and all(p.solve_rate is None and p.reward == 0 for p in unjudged)
    batch = selfplay.training_batch(s, parts)
    assert len(batch.reward) == len(proposed) - len(unjudged) + len(verdicts) - n_failed
    paid = [reward for part in parts for reward in part.reward if reward is not None]
    assert batch.reward.tolist() == pytest.approx(paid)
    adv = rl.advantages(batch, s.cfg)
    assert adv.isfinite().all() and len(adv) == len(batch.rollout.ids)
