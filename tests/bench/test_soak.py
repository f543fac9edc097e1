"""A soak of the verifier: programs of all kinds in turn; no verdict may be wrong, no byte or descriptor leak.

    SOAK=20000 python -m pytest -m slow tests/bench/test_soak.py
"""
import mmap
import os
from pathlib import Path

import pytest

from bench.verifier import PROGRAM
from verifier import Job, Sandbox

# program, input, whether it must be deterministic, what the verdict has to be: canonical text, SUM for 3 + its number, or how the error begins
PROGRAMS = [
    (PROGRAM, "3", False, "SUM"),
    (PROGRAM, "3", True, "SUM"),
    ("def f(x): return x / 0 * NUMBER", "3", False, "error: Zero"),
    ("def f(x) return NUMBER", "3", False, "error: Syntax"),
    ("import os\ndef f(x): os._exit(NUMBER)", "3", False, "exit"),
    ("import os\ndef f(x): return os.fork() + NUMBER", "3", False, "violation"),
    ("import ctypes\ndef f(x): return ctypes.memset(8, NUMBER, 8)", "3", False, "crash"),
    ("def f(x): return 'x' * (10**6 + NUMBER)", "3", True, "too big"),
    ("def f(x): return len(bytes(10**10 + NUMBER))", "3", False, "error: Memory"),
    ("def f(x): return f, NUMBER", "3", True, "unsupported"),
    ("def f(x):\n    while NUMBER >= 0: pass", "3", False, "timeout")]


def held(verifier) -> tuple[float, int]:
    """Megabytes of this process and the fork servers, open descriptors of this process."""
    pids = ["self", *(server.process.pid for server in verifier.servers)]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * mmap.PAGESIZE / 2**20, len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_soak():
    n, first = int(os.environ.get("SOAK", 2000)), None
    with Sandbox(workers=2, cpu_s=0.1) as verifier:
        for start in range(0, n, 200):
            chosen = [(i, PROGRAMS[i % len(PROGRAMS)]) for i in range(start, start + 200)]
            jobs = [Job(code.replace("NUMBER", str(i)), (given,), deterministic=must) for i, (code, given, must, _) in chosen]
            for (i, (_, _, _, want)), verdict in zip(chosen, verifier.run(jobs)):
                want = str(i + 3) if want == "SUM" else want.replace("NUMBER", str(i))
                output, error = verdict.outputs[0], verdict.errors[0]
                assert output == want if error is None else error.startswith(want), (want, verdict)
            if first is None and start >= n / 10:
                first = held(verifier)
        last = held(verifier)
    assert last[0] - first[0] < 5 and last[1] == first[1]
