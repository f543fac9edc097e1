"""Processes, and runs of train.py on a small scale: their command lines and the lines of their logs."""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Under torchrun, also on a machine whose own name does not resolve
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
# Flags of a run whose steps take a second each
SIZES = dict(name="run", pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2)


def words(**flags) -> list[str]:
    """Returns flags as words of a command line."""
    found = []
    for name, value in flags.items():
        spelled = "--" + name.replace("_", "-")
        found += [spelled] if value is True else [spelled, str(value)]
    return found


def python(*words, cwd=ROOT, timeout=600, **more) -> subprocess.CompletedProcess:
    """Runs Python with these words as a process of its own; returns how it ended and what it said."""
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, timeout=timeout, capture_output=True, text=True, **more)


def play(enough=None, **flags) -> Path:
    """Makes a whole run in this process; returns its directory. enough: as train.main takes it."""
    import config
    import train
    return train.main(config.config_of(config.parse_args(None, words(**flags))), enough).path


def rows(path: Path, log: str = "metrics") -> list[dict]:
    """Returns the lines of one of a run's logs; none if it is not there."""
    file = path / f"{log}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write(file: Path, rows) -> None:
    """Writes rows as lines of JSON."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def timeless(path: Path) -> list[dict]:
    """Returns metrics.jsonl without the only member that two equal runs may differ in."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows(path)]
