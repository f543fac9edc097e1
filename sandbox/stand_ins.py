"""In evaluation: what stands in the place of calls that the walls refuse, so that usual programs run.

The walls know nothing of it. A program that undoes it meets the same refusals as in training.
"""
import os
import sys

REGULAR = 0o100600              # mode of a file that its owner reads and writes


def fstat(fd: int) -> os.stat_result:
    """os.fstat of an open file, of which only the size is true; the C library's own would name a path."""
    here = os.lseek(fd, 0, os.SEEK_CUR)
    size = os.lseek(fd, 0, os.SEEK_END)
    os.lseek(fd, here, os.SEEK_SET)
    return os.stat_result((REGULAR, 0, 0, 1, 0, 0, size, 0, 0, 0))


def start(self) -> None:
    """Thread.start: the thread runs to its end at once. What raises in it ends it, and nothing else."""
    if hasattr(self, "_runs"):
        raise RuntimeError("threads can only be started once")
    self._runs = True
    try:
        self.run()
    except BaseException:
        pass                                            # Python prints it to a stream that nobody reads
    self._runs = False


def join(self, timeout: float | None = None) -> None:
    """Thread.join: it has ended."""
    if not hasattr(self, "_runs"):
        raise RuntimeError("cannot join thread before it is started")


def is_alive(self) -> bool:
    """Thread.is_alive."""
    return getattr(self, "_runs", False)


def install() -> None:
    """Puts them in place, once per fork server."""
    os.fstat = fstat
    thread = sys.modules["threading"].Thread
    thread.start, thread.join, thread.is_alive = start, join, is_alive
