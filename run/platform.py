"""What a run needs of the operating system: the judge, signals, a clock, and a description of the machine."""
import dataclasses
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from config import Config, resolve_config
from infra.distributed import Ranks
from verifier import Sandbox, refusal


class Stopwatch:
    """Seconds per phase of one step."""

    def __init__(self):
        self.last, self.seconds = time.perf_counter(), {}

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under this phase."""
        now = time.perf_counter()
        self.seconds[phase], self.last = round(now - self.last, 3), now


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; raised where it is safe to stop."""


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
        self.before = {s: signal.signal(s, self._on) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for s, handler in self.before.items():
            signal.signal(s, handler)

    def _on(self, number, frame):
        if self.pending and number == signal.SIGINT:
            said = "\nsecond interrupt: leaving at once, the last checkpoint stands"
            print(said, file=sys.stderr, flush=True)
            os._exit(130)
        first, self.pending = not self.pending, signal.Signals(number).name
        if first and not self.held:
            raise Interrupted(self.pending)

    def __enter__(self):
        self.held = True

    def __exit__(self, kind, *rest):
        self.held = self.patient
        if self.pending and kind is None:
            raise Interrupted(self.pending)


def with_flag(refused: str) -> str:
    """The judge's refusal with the flag of the commands in it."""
    return refused.replace("weak=True (--weak)", "--weak-sandbox")


def check_system(weak: bool) -> None:
    """Raises ValueError where the operating system has no place for the judge: before a base is loaded."""
    if refused := refusal(weak):
        raise ValueError(with_flag(refused))


def open_sandbox(workers: int, weak: bool, **options) -> Sandbox:
    """The sandbox of a run; workers 0: half the cores, two at the least. Raises ValueError where this machine
    cannot hold model code in."""
    try:
        return Sandbox(workers or max(2, (os.cpu_count() or 1) // 2), weak=weak, **options)
    except RuntimeError as e:
        raise ValueError(with_flag(str(e))) from None


def git_commit() -> str:
    """Of this directory, with -dirty where something differs from it; "" without git."""
    try:
        here = str(Path(__file__).resolve().parent.parent)
        words = ["git", "-C", here, "describe", "--always", "--dirty"]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except OSError:                                   # git is not installed
        return ""


# Flags by which the defaults of others go.
IMPLYING = ("algo", "pop", "single", "dtype", "evolve_every", "invalid_penalty")


def defaults(cfg: Config, device: str = "cpu") -> dict[str, list]:
    """Of each flag of a run, whose cfg is filled in: [its value had nobody given it, its meaning]."""
    plain = resolve_config(Config(), cfg.prompt_format, device)
    implied = Config(teachers=cfg.pop // 2, **{name: getattr(cfg, name) for name in IMPLYING})
    implied = resolve_config(implied, cfg.prompt_format, device)
    rows = {}
    for f in dataclasses.fields(Config):
        usual = plain if f.name in IMPLYING else implied
        rows[f.name] = [getattr(usual, f.name), f.metadata["help"]]
    return rows


def environment(ranks: Ranks, sandbox: Sandbox) -> dict:
    """What a reader of the run needs to know of where it ran."""
    commit = git_commit()
    device = f"CPU, {os.cpu_count()} cores"
    if ranks.device.type == "cuda":
        device = torch.cuda.get_device_name()
    if ranks.device.type == "mps":
        device = f"Apple GPU, {platform.machine()}"
    return dict(commit=commit or "unknown", python=platform.python_version(), torch=torch.__version__,
                platform=platform.platform(), processes=ranks.world, device=device,
                threads=torch.get_num_threads(), sandbox=sandbox.tier, sandbox_report=sandbox.report)
