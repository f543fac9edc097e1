"""A run's directory: append-only JSON lines, atomic checkpoints, a lock, and leaving in good order on signals.

    out/NAME/config.json env.json metrics.jsonl tasks.jsonl matches.jsonl genealogy.jsonl
    out/NAME/step_N/MEMBER/adapter_model.safetensors ... one PEFT directory a member, optimizer.safetensors, state.json

A checkpoint records how long each log was; resuming cuts the logs back to there, so that nothing is told twice. It is
written under a temporary name and renamed: a kill at any moment leaves the previous one whole.
"""
import fcntl
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from safetensors import SafetensorError

LOGS = ("metrics.jsonl", "tasks.jsonl", "matches.jsonl", "genealogy.jsonl")


class RunDir:
    """One run's directory. Process 0 alone writes; the others hold a RunDir with writes=False and only read."""

    def __init__(self, path: Path, writes: bool = True):
        self.path, self.writes = path, writes
        if writes:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / "lock", "w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"{path} is in use by a run that is still going: choose another --name") from None

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, ascending."""
        found = [p.name[5:] for p in self.path.glob("step_*") if (p / "state.json").exists()]
        return sorted(int(n) for n in found if n.isdigit())

    def part(self, step: int, name: str, read):
        """read(path) of one file or directory of checkpoint step_N. Raises ValueError with the way out where that fails."""
        directory = self.path / f"step_{step}"
        try:
            return read(directory / name)
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as e:
            why = f"it lacks {e}" if isinstance(e, KeyError) else getattr(e, "strerror", None) or e
            earlier = [n for n in self.steps() if n < step]
            way = f"to go on from step_{earlier[-1]}" if earlier else "to begin again at step 0: no earlier checkpoint is there"
            raise ValueError(f"{directory} is damaged ({name}: {why}): remove all of {directory.name} {way}") from e

    def check_logs(self, books: dict) -> None:
        """Raises ValueError where a log is shorter than it was when the checkpoint with this state.json was written."""
        held = self.sizes()
        for name, size in books["logs"].items():
            if held[name] < size:
                lost = "the archive's memory" if name == "tasks.jsonl" else "a part of the run's record"
                raise ValueError(f"{self.path / name} is shorter than step_{books['step']} says ({held[name]} of {size} bytes): "
                                 f"{lost} is lost; restore it, or start anew under another --name")

    def config(self) -> dict:
        """The flags that the run was started with. Raises ValueError where config.json cannot be read."""
        try:
            return json.loads((self.path / "config.json").read_text())
        except (OSError, ValueError) as e:
            raise ValueError(f"{self.path / 'config.json'} cannot be read ({getattr(e, 'strerror', None) or e}): restore it, or "
                             "start anew under another --name") from e

    def write_json(self, name: str, data: dict) -> None:
        """Write a small file whole: a kill in between leaves the old one."""
        if self.writes:
            part = self.path / f"{name}.part"
            part.write_text(json.dumps(data, indent=1) + "\n")
            part.replace(self.path / name)

    def append(self, name: str, rows: list[dict]) -> None:
        """Append rows to a log as JSON lines; what is not finite becomes null, for JSON has no other word for it."""
        if self.writes and rows:
            finite = json.loads(json.dumps(rows), parse_constant=lambda name: None)
            with open(self.path / name, "a") as f:
                f.write("".join(json.dumps(row) + "\n" for row in finite))

    def rows(self, name: str, size: int) -> list[dict]:
        """The first `size` bytes of a log, read back. Raises ValueError where they are not lines of JSON."""
        path = self.path / name
        try:
            return [json.loads(line) for line in path.read_bytes()[:size].splitlines()] if path.exists() else []
        except ValueError as e:
            raise ValueError(f"{path} is damaged ({e}): restore it, or start anew in another directory") from e

    def sizes(self) -> dict[str, int]:
        """Length of each log in bytes."""
        return {name: (self.path / name).stat().st_size if (self.path / name).exists() else 0 for name in LOGS}

    def cut(self, sizes: dict[str, int]) -> None:
        """Forget what the logs say after a checkpoint."""
        for name, size in sizes.items():
            if self.writes and (self.path / name).exists():
                os.truncate(self.path / name, size)

    def save(self, step: int, state: dict, fill, keep: int) -> None:
        """Write step_N: fill(directory) puts the tensors there, then state.json; then only the last `keep` stay.

        Raises OSError when the disk is full, after removing what it had begun; earlier checkpoints are untouched.
        """
        if not self.writes:
            return
        final, part = self.path / f"step_{step}", self.path / f"step_{step}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            fill(part)
            (part / "state.json").write_text(json.dumps({**state, "step": step, "logs": self.sizes()}))
            for file in part.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as f:
                        os.fsync(f.fileno())
            shutil.rmtree(final, ignore_errors=True)
            part.rename(final)
        except (OSError, SafetensorError) as e:
            shutil.rmtree(part, ignore_errors=True)
            raise OSError(f"checkpoint {final} could not be written ({e}); earlier ones are intact: free some space, "
                          f"then --resume {self.path}") from e
        for old in self.steps()[:-keep]:
            shutil.rmtree(self.path / f"step_{old}", ignore_errors=True)


def differing(old: dict, new: dict, free: tuple[str, ...]) -> list[str]:
    """Names of configuration fields that differ, other than those that may."""
    return [f"{k} ({old.get(k)!r} -> {new[k]!r})" for k in new if k not in free and old.get(k) != new[k]]


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; raised where it is safe to stop."""


class Signals:
    """Turns SIGINT and SIGTERM into Interrupted, at once or, inside `with signals:`, at the end of the block.

    The block is for what must not be torn: from the optimiser step to the logs. A second SIGINT leaves at once.
    """

    def __init__(self):
        self.held, self.pending, self.before = False, "", {}

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
            print("\nsecond interrupt: leaving at once, the last checkpoint stands", file=sys.stderr, flush=True)
            os._exit(130)
        first, self.pending = not self.pending, signal.Signals(number).name
        if first and not self.held:
            raise Interrupted(self.pending)

    def __enter__(self):
        self.held = True

    def __exit__(self, kind, *rest):
        self.held = False
        if self.pending and kind is None:
            raise Interrupted(self.pending)
