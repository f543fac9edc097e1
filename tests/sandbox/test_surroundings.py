"""Surroundings of clusters: unusual interpreters, few descriptors, and machines that have no processor to spare."""
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import LOOP, one
from tiny_run import ROOT

from sandbox import fork_server, scheduler
from sandbox.profiles import LATE
from verifier import Sandbox


def test_an_interpreter_that_does_not_start_is_heard(tmp_path, monkeypatch):
    """In its own words. Of the trainer's environment it sees what finds its library, and no secret."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/where/libpython/is")
    monkeypatch.setenv("SECRET", "gold")
    for text, words in (("echo no library in $LD_LIBRARY_PATH$SECRET >&2; exit 127", "no library in /where/libpython/is$"),
                        ("exit 1", "ended without a word")):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        with pytest.raises(OSError, match=f"cannot start {python}: .*{words}"):
            Sandbox(workers=1)


def test_few_descriptors():
    command = f"ulimit -n 64; exec {sys.executable} verifier.py --self-check"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("tier: "), done


HOG = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@pytest.fixture
def crowded():
    """A sandbox whose programs have a third of one processor, for each of the others has a session of its own."""
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not tell how long a process waits for a processor")
    core = min(os.sched_getaffinity(0))
    with Sandbox(workers=1, cpu_s=0.2, wall_s=0.3) as crowded:
        hogs = [subprocess.Popen([sys.executable, "-c", HOG, str(core)], start_new_session=True) for _ in range(2)]
        for server in crowded.scheduler.servers:
            os.sched_setaffinity(server.process.pid, {core})
        time.sleep(0.2)
        yield crowded
        for hog in hogs:
            hog.kill()
            hog.wait()


def children_s(sandbox):
    """CPU seconds of all children that the fork servers have had."""
    ticks = 0
    for server in sandbox.scheduler.servers:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[13:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def test_who_gets_no_processor_is_not_judged(crowded, monkeypatch):
    assert one(crowded, LOOP, "1").outputs == ("10",)
    monkeypatch.setattr(scheduler, "TRIES", 1)
    assert one(crowded, LOOP, "2").end == "sandbox failure"


def test_an_endless_loop_on_a_crowded_machine_is_judged_after_all(crowded):
    """Else a student would rather loop than be wrong there."""
    verdict = one(crowded, LOOP, "2")
    assert verdict.errors == ("timeout",) and children_s(crowded) > 0.2


def test_a_child_that_sleeps_has_not_waited_for_a_processor(monkeypatch):
    """The wall limit is the fault of a program that slept, however little of its CPU limit it used."""
    monkeypatch.setattr(fork_server, "PROC", os.open("/proc", os.O_RDONLY))
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        time.sleep(0.1)
        assert fork_server.end_late(sleeper.pid, 1000) == LATE
    os.close(fork_server.PROC)
