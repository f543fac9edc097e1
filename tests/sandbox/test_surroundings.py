"""Surroundings of clusters: unusual interpreters, few descriptors, and machines that have no processor to spare."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cases import LOOP, ROOT, one

from sandbox import fork_server, scheduler
from sandbox.profiles import LATE
from verifier import Sandbox

LIBRARIES = f"libpython3.{sys.version_info.minor}.so.1.0".encode(), b"libm.so.6"        # one is needed by any CPython


def relocated(folder: Path) -> tuple[Path, Path]:
    """A copy of this interpreter whose library has a name that only LD_LIBRARY_PATH finds -> it, that path."""
    real = Path(sys.executable).resolve()
    binary = real.read_bytes()
    needed = next((name for name in LIBRARIES if name + b"\0" in binary), None)
    if needed is None:
        pytest.skip("this interpreter is not linked dynamically")
    with open("/proc/self/maps") as maps:
        found = next(line.split(maxsplit=5)[5].strip() for line in maps if needed.decode() in line)
    other = b"L" + needed[1:]
    (folder / "lib").mkdir()
    (folder / "lib" / other.decode()).symlink_to(found)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python3"
    python.write_bytes(binary.replace(needed + b"\0", other + b"\0"))
    python.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    return python, folder / "lib"


def test_an_interpreter_that_needs_its_library_path(tmp_path):
    python, path = relocated(tmp_path)
    command = dict(args=[python, "verifier.py", "--self-check"], cwd=ROOT, capture_output=True, text=True)
    assert "cannot open shared object" in subprocess.run(**command).stderr
    done = subprocess.run(**command, env=os.environ | dict(LD_LIBRARY_PATH=str(path)))
    assert done.stdout.startswith("tier: ") and "see the environment    refused" in done.stdout, done


def test_an_interpreter_that_does_not_start_is_heard(tmp_path, monkeypatch):
    for text, words in ("echo no such library >&2; exit 127", "no such library"), ("exit 1", "ended without a word"):
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


def test_who_gets_no_processor_is_not_judged(crowded, monkeypatch):
    assert one(crowded, LOOP, "1").outputs == ("10",)
    monkeypatch.setattr(scheduler, "TRIES", 1)
    assert one(crowded, LOOP, "2").end == "sandbox failure"


def test_an_endless_loop_on_a_crowded_machine_is_judged_after_all(crowded):
    """Else a student would rather loop than be wrong there."""
    verdict = one(crowded, LOOP, "2")
    assert verdict.errors == ("timeout",) and verdict.cpu_s > 0.2


def test_a_child_that_sleeps_has_not_waited_for_a_processor(monkeypatch):
    """The wall limit is the fault of a program that slept, however little of its CPU limit it used."""
    monkeypatch.setattr(fork_server, "PROC", os.open("/proc", os.O_RDONLY))
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        time.sleep(0.1)
        assert fork_server.end_late(sleeper.pid, 1000, 1001) == LATE
    os.close(fork_server.PROC)


def test_a_job_that_is_stopped_for_a_while_goes_on():
    """As by a cluster's scheduler that gives the machine to another job: the child's time went by while it could do nothing."""
    def pause(server: int) -> None:
        children = Path(f"/proc/{server}/task/{server}/children")
        while not children.read_text().split():
            time.sleep(0.005)
        stopped = [server, *map(int, children.read_text().split())]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):       # the child may have ended before it was stopped
                os.kill(pid, signal.SIGCONT)

    with Sandbox(workers=1, cpu_s=0.5, wall_s=0.6) as narrow:
        pauser = threading.Thread(target=pause, args=[narrow.scheduler.servers[0].process.pid])
        pauser.start()
        verdict = one(narrow, LOOP, "2")
        pauser.join()
    assert verdict.errors == ("timeout",) and verdict.cpu_s > 0.4, "its CPU limit ended it, in a second try"
