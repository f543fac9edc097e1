"""A run's directory: append-only logs, atomic checkpoints, a lock.

    out/NAME/config.json env.json metrics.jsonl tasks.jsonl matches.jsonl genealogy.jsonl step_N/

A checkpoint records how long each log was; resuming cuts the logs back to there, so that no step stands there
twice. It is written under a temporary name and renamed: a kill at any moment leaves the previous one whole.
"""
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from infra.errors import UserError
from infra.files import json_object, read_log

try:
    import fcntl
except ImportError:         # Windows has another one
    fcntl = None
try:
    import msvcrt
except ImportError:         # all other systems
    msvcrt = None

from safetensors import SafetensorError

# What reading a damaged file raises. Bugs in what reads it are none of these.
DAMAGE = (OSError, SafetensorError, UserError)
LOGS = ("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl")


def lock(file: TextIO) -> None:
    """Hold a file until it is closed, by what the system has. Raises OSError where another run holds it."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


class RunDir:
    """One run's directory. Process 0 alone writes; the others hold one with writes=False and only read."""

    def __init__(self, path: Path, writes: bool = True):
        self.path = path
        self.writes = writes
        if not writes:
            return
        path.mkdir(parents=True, exist_ok=True)
        self._lock = open(path / "lock", "a")           # held while this object lives
        try:
            lock(self._lock)
        except OSError:
            raise UserError(f"{path} is in use by a run that still goes: choose another --name") from None

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, ascending."""
        numbers = []
        for path in self.path.glob("step_*"):
            ending = path.name.removeprefix("step_")        # "12.part" is not complete
            if ending.isdigit() and (path / "state.json").exists():
                numbers.append(int(ending))
        return sorted(numbers)

    def read(self, name: str, parse: Callable):
        """parse(path) of a log or a part of a checkpoint. Raises UserError with the way out."""
        try:
            return parse(self.path / name)
        except DAMAGE as e:
            step, inside, _ = name.partition("/")
            way = "restore it"
            if inside:                          # of a checkpoint, and there may be another one
                way = f"remove all of {step} to go on from the checkpoint before"
            why = str(e)
            if not isinstance(e, UserError):
                why = f"{type(e).__name__}: {e}"
            raise UserError(f"{self.path / name} is damaged or missing ({why}): {way}, or start anew under "
                            "another --name") from e

    def config(self) -> dict:
        """The flags that the run was started with. Raises UserError where config.json cannot be read."""
        return self.read("config.json", lambda path: json_object(path.read_bytes()))

    def started(self) -> str | None:
        """When the run was started first, as env.json says; None where it does not."""
        try:
            return json_object((self.path / "env.json").read_bytes()).get("started")
        except DAMAGE:
            return None

    def rows(self, name: str, size: int | None = None) -> list[dict]:
        """The first `size` bytes of a log (None: all), read back; [] without the file. Raises UserError."""
        if not (self.path / name).exists():
            return []
        return self.read(name, lambda path: list(read_log(path, size)))

    def write_json(self, name: str, data: dict) -> None:
        """Write a small file whole: a kill in between leaves the old one."""
        if self.writes:
            part = self.path / f"{name}.part"
            part.unlink(missing_ok=True)
            part.write_text(json.dumps(data, indent=1) + "\n")
            part.replace(self.path / name)

    def append(self, name: str, rows: list[dict]) -> None:
        """Append rows to a log as JSON lines; what is not finite becomes null, JSON's only word for it."""
        if self.writes and rows:
            finite = json.loads(json.dumps(rows), parse_constant=lambda name: None)     # NaN, Infinity
            lines = [json.dumps(row) + "\n" for row in finite]
            with open(self.path / name, "a") as f:
                f.write("".join(lines))         # in one go: a kill leaves few half steps

    def sizes(self) -> dict[str, int]:
        """Length of each log in bytes; 0 where it is not there."""
        sizes = {}
        for name in LOGS:
            path = self.path / name
            sizes[name] = path.stat().st_size if path.exists() else 0
        return sizes

    def truncate_logs(self, sizes: dict[str, int]) -> None:
        """Forget what the logs say after a checkpoint."""
        for name in LOGS:
            if self.writes and (self.path / name).exists():
                os.truncate(self.path / name, sizes[name])

    def save(self, step: int, state: dict, fill: Callable, keep: int) -> None:
        """Write step_N: fill(directory) puts the tensors there, then state.json; the last `keep` stay. Raises
        OSError when the disk is full, after removing what it had begun; earlier ones are untouched."""
        if not self.writes:
            return
        final = self.path / f"step_{step}"
        part = self.path / f"step_{step}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            fill(part)
            whole = state | dict(step=step, logs=self.sizes())
            (part / "state.json").write_text(json.dumps(whole))
            # On the disk before the name says so: a machine that loses power keeps the order. Windows syncs
            # only what is open for writing.
            for file in [*self.path.glob("*.jsonl"), *part.rglob("*.*")]:
                with open(file, "r+b") as f:
                    os.fsync(f.fileno())
            shutil.rmtree(final, ignore_errors=True)
            part.rename(final)
        except (OSError, SafetensorError) as e:
            shutil.rmtree(part, ignore_errors=True)
            raise OSError(f"checkpoint {final} could not be written ({e}); earlier ones are intact: "
                          f"free some space, then --resume {self.path}") from e
        for old in self.steps()[:-keep]:
            shutil.rmtree(self.path / f"step_{old}", ignore_errors=True)
