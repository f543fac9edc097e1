"""What a run needs of the operating system: signals, a clock, and a description of the machine."""
import dataclasses
import datetime
import hashlib
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import torch

from config import Config, flags_of, resolve_config
from infra.distributed import Ranks
from infra.errors import Interrupted
from verifier import Verifier

# Folders of which no run computes anything
NOT_COMPUTING = ("course", "docs", "tests", "out")


class Stopwatch:
    """Seconds per phase of one step."""

    def __init__(self):
        self.last = time.perf_counter()
        self.seconds = {}

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under this phase."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self.last, 3)
        self.last = now


class Signals:
    """Turns SIGINT and SIGTERM into Interrupted, at once or, inside `with signals:`, at the end of the block.

    The block is for what must not be torn: from the optimiser step to the logs. A second SIGINT leaves at
    once. patient: always wait for the end of a block, so that process 0, which saves, never waits for a
    process that has left.
    """

    def __init__(self, patient: bool = False):
        self.patient = self.held = patient
        self.pending, self.before = "", {}

    def install(self) -> "Signals":
        """Take over both signals; only possible in the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self._on)
        return self

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for s, handler in self.before.items():
            signal.signal(s, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.pending and number == signal.SIGINT:
            print("\nsecond interrupt: leaving at once, the last checkpoint stands", file=sys.stderr)
            os._exit(130)
        first, self.pending = not self.pending, signal.Signals(number).name
        if first and not self.held:
            raise Interrupted(self.pending)

    def __enter__(self):
        self.held = True

    def __exit__(self, kind: type | None, *rest: object) -> None:
        self.held = self.patient
        if self.pending and kind is None:
            raise Interrupted(self.pending)


def git_commit() -> str:
    """Of this directory, with -dirty where something differs from it; "" without git."""
    root = Path(__file__).resolve().parent.parent
    words = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:                                   # git is not installed
        return ""


def source_hash() -> str:
    """A hash of the sources that a run computes with: equal for two clones that compute the same, with git or
    without, whatever somebody has written into an exercise, a page or a test."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for directory, folders, files in os.walk(root):
        here = Path(directory)
        kept = []
        for folder in sorted(folders):
            is_environment = (here / folder / "pyvenv.cfg").exists()
            is_other = here == root and folder in NOT_COMPUTING
            if not (folder.startswith(".") or is_environment or is_other):
                kept.append(folder)
        folders[:] = kept                             # os.walk goes into these alone, in this order
        for name in sorted(files):
            if name.endswith((".py", ".mm")):
                path = here / name
                text = path.read_bytes().replace(b"\r\n", b"\n")         # as git may write it on Windows
                digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]


def environment(cfg: Config, ranks: Ranks, sandbox: Verifier) -> dict:
    """Where a run ran, and of each flag its default in this prompt format and its meaning."""
    device = f"CPU, {os.cpu_count()} cores"
    if ranks.device.type == "cuda":
        device = torch.cuda.get_device_name()
    usual = flags_of(resolve_config(Config(), cfg.prompt_format, ranks.device.type))
    flags = {}
    for f in dataclasses.fields(cfg):
        flags[f.name] = [usual[f.name], f.metadata["help"]]
    now = datetime.datetime.now(datetime.timezone.utc)
    return dict(
        started=now.isoformat(timespec="seconds"),
        commit=git_commit() or "unknown",
        source=source_hash(),
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        processes=ranks.world,
        device=device,
        threads=torch.get_num_threads(),
        sandbox=sandbox.tier,
        sandbox_report=sandbox.report,
        flags=flags)
