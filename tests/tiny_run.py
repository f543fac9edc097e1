"""Runs of train.py on a small scale: their command lines and the lines of their logs."""
import json
from pathlib import Path


def words(**flags) -> list[str]:
    """Flags as words of a command line."""
    found = []
    for name, value in flags.items():
        spelled = "--" + name.replace("_", "-")
        found += [spelled] if value is True else [spelled, str(value)]
    return found


def play(**flags) -> Path:
    """A whole run in this process; its directory."""
    import config
    import train
    return train.main(config.config_of(config.parse_args(None, words(**flags)))).path


def rows(path: Path, log: str = "metrics") -> list[dict]:
    """The lines of one of a run's logs; none where it is not there."""
    file = path / f"{log}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def timeless(path: Path) -> list[dict]:
    """metrics.jsonl without the only member that two equal runs may differ in."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows(path)]
