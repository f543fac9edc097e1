"""Fork servers live, die and are replaced, nothing outlives the trainer, and the tiers say what protects."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from cases import HONEST, LOOP, one
from tiny_run import ROOT, python

import verifier
from common import UserError
from verifier import Job, Sandbox


def alive(sessions):
    """Number of living processes in these sessions; each fork server's is its own."""
    n = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):                  # it ended meanwhile
            letter, _, _, session = path.read_text().rsplit(")", 1)[1].split()[:4]
            n += letter != "Z" and session in sessions
    return n


def pids(sandbox):
    """Process ids of the fork servers, in order."""
    return [server.process.pid for server in sandbox.scheduler.servers]


def test_dead_and_stopped_fork_servers_are_replaced_and_their_jobs_judged_again():
    with Sandbox(workers=1, cpu_s=0.4, wall_s=0.5) as narrow:
        first, *others = pids(narrow)
        os.kill(first, signal.SIGKILL)                                  # dead before it is asked
        assert one(narrow, LOOP, "1").outputs == ("10",)
        second, *_ = pids(narrow)
        threading.Timer(0.1, os.kill, (second, signal.SIGKILL)).start()  # dead at work
        assert one(narrow, LOOP, "2", "1").outputs == (None, "10")
        third, *_ = pids(narrow)
        os.kill(third, signal.SIGSTOP)
        assert one(narrow, LOOP, "1").outputs == ("10",)
        fourth, *unchanged = pids(narrow)
        assert len({first, second, third, fourth}) == 4 and unchanged == others
        assert narrow.run([HONEST])[0].end == "ok"


def test_an_interrupted_run_leaves_no_stale_verdicts_and_no_children():
    def interrupt(wait_s):
        time.sleep(0.2)                                                 # children are at work
        raise KeyboardInterrupt
    with Sandbox(workers=2, cpu_s=5, wall_s=6) as narrow:
        before = pids(narrow)
        with patch.object(narrow.scheduler.selector, "select", interrupt), pytest.raises(KeyboardInterrupt):
            narrow.run([Job(LOOP, ("2",))] * 3)
        assert [verdict.outputs for verdict in narrow.run([Job(LOOP, (text,)) for text in "34"])] == [("30",), ("40",)]
        assert len(set(pids(narrow)) - set(before)) == 2 and alive([*map(str, before)]) == 4


def test_descriptors_stay_flat(narrow):
    def held():
        pages = [Path(f"/proc/{server.process.pid}/statm").read_text().split()[0] for server in narrow.scheduler.servers]
        return [len(os.listdir("/proc/self/fd"))] + pages
    jobs = [HONEST, Job(LOOP, ("1", "x")), Job("import os\nos._exit(1)", ("1",)), Job("def f(x): 1", ("1",), deterministic=True)]
    narrow.run(jobs)
    before = held()
    narrow.run(jobs * 20)
    with Sandbox(workers=1):
        pass
    assert held() == before


KILLED = """import os, signal
from verifier import Sandbox, Job
narrow = Sandbox(workers=2, cpu_s=20, wall_s=30)
os.kill(narrow.scheduler.servers[1].process.pid, signal.SIGSTOP)
helper = os.fork()
if helper == 0: signal.pause()
print(helper, *[server.process.pid for server in narrow.scheduler.servers], flush=True)
narrow.run([Job("def f(x):\\n while True: pass", ("1",))] * 2)
"""


def test_nothing_outlives_a_killed_trainer():
    """Even though a child of the trainer keeps copies of its sockets, and one fork server is stopped."""
    trainer = subprocess.Popen([sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    helper, *sessions = trainer.stdout.readline().split()
    try:
        assert len(sessions) == 6
        for is_over in (lambda n: n > 6, lambda n: n == 0):             # children are at work; then nobody is left
            tries = 1000
            while tries and not is_over(alive(sessions)):
                time.sleep(0.02)
                tries -= 1
            assert tries
            trainer.kill()
            trainer.wait()
    finally:
        trainer.kill()
        os.kill(int(helper), signal.SIGKILL)


def test_tiers_and_refusal(narrow, monkeypatch):
    assert narrow.tier in ("full", "no namespaces")
    limits = map("limit_{}".format, "core fsize nofile stack memlock msgqueue as".split())
    for layer in "seccomp", "no_capabilities", "no_new_privs", "not_dumpable", *limits:
        assert narrow.report[layer] == "ok", layer
    pytest.raises(UserError, Sandbox, workers=1, without=("seccomp",)).match("refuses.*seccomp .left out")
    monkeypatch.setattr(verifier, "CANARY", "def f(attack): return 'ALLOWED'")
    pytest.raises(UserError, Sandbox, workers=1).match("open a file .ALLOWED")


DEAF = """import signal
from verifier import Job, Sandbox
for number in signal.SIGPROF, signal.SIGCHLD, signal.SIGXFSZ, signal.SIGINT:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF, signal.SIGCHLD, signal.SIGXFSZ])
with Sandbox(workers=1, cpu_s=0.2, wall_s=60) as narrow:
    jobs = [Job('def f(x):\\n while True: pass', ('1',)), Job('def f(x): 1', ('1',))]
    print([verdict.end for verdict in narrow.run(jobs)])
"""


def test_signals_that_the_trainer_ignores_or_blocks_still_work():
    """What a child inherits must not depend on who started the trainer."""
    done = python("-c", DEAF, timeout=50)
    assert done.stdout == "['timeout', 'ok']\n", done


def test_command_line(as_nobody):
    """As an ordinary user, without standard streams, where it cannot protect; and it asks for no torch."""
    light = "import sys, verifier; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    assert python("-c", light).returncode == 0
    done = as_nobody("--self-check")
    assert done.returncode == 0 and re.match("tier: (full|no namespaces)\n", done.stdout), done
    bare = f"exec {sys.executable} {verifier.__file__} --self-check <&- 2>&-"       # without standard streams
    done = subprocess.run(bare, shell=True, capture_output=True)
    assert done.returncode == 0 and done.stdout.startswith(b"tier: ")
    done = as_nobody("--self-check", "--without", "seccomp")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("verifier.py: The sandbox refuses") and done.stderr.count("\n") == 1
