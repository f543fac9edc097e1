"""Our commands as processes, which are asked to save and leave when one fails or has done enough."""
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from eval.common import ROOT

POLL_S = 0.3                        # between looks at what a command has done
INTERRUPTED = 130                   # exit code of a run that saved and left when asked to


def cores() -> int:
    """Processor cores that this process may use; Windows and macOS only tell those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """Starts our commands as processes; when one fails or on Ctrl-C all are asked to save and leave."""

    def __init__(self, jobs: int):
        self.jobs = jobs
        self.stopping = False
        self.lock = threading.Lock()
        self.children = set()
        threads = max(1, cores() // jobs)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.env = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONPATH": path}

    def call(self, words: list[str], log: Path, enough: Callable[[], bool] | None = None) -> None:
        """Run a command of ours to its end, or until enough() is true: then it is asked to save and leave.

        Raises ValueError or OSError with its last words where it fails.
        """
        with open(log, "a") as f:
            f.write(f"$ {' '.join(words)}\n")
            f.flush()
            with self.lock:
                if self.stopping:
                    raise InterruptedError("stopped")
                child = subprocess.Popen([sys.executable, *words], stdout=f, stderr=f, env=self.env,
                                         start_new_session=True)
                self.children.add(child)
            asked = False
            while enough and not asked and child.poll() is None:
                time.sleep(POLL_S)
                asked = enough()
                if asked:
                    child.terminate()
            code = child.wait()
        with self.lock:
            self.children.discard(child)
        if code and not (asked and code == INTERRUPTED):
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1]
            error = ValueError if code == 2 else OSError
            raise error(f"{' '.join(words[:2])} ended with code {code}: {said} ({log} has more)")

    def stop(self) -> None:
        """Ask every child to save and leave."""
        with self.lock:
            self.stopping = True
            for child in self.children:
                child.terminate()     # not SIGINT, which what a shell starts in the background ignores

    def wait(self, ready: Callable[[], bool]) -> None:
        """Until ready() is true. Raises InterruptedError where the others are stopped meanwhile."""
        while not ready():
            if self.stopping:
                raise InterruptedError("stopped")
            time.sleep(POLL_S)

    def each(self, work: Callable, jobs: list) -> None:
        """work(job) of every job, begun in order. The first failure or signal stops all and is raised."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = [pool.submit(work, job) for job in jobs]
            try:
                concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_EXCEPTION)
                broken = [f.exception() for f in waiting if f.done() and f.exception()]
                if broken:
                    raise next((e for e in broken if not isinstance(e, InterruptedError)), broken[0])
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.stop()
                raise
            finally:
                signal.signal(signal.SIGTERM, before)
