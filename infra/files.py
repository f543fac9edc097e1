"""Files that people and programs may have damaged, read with the mistake named."""
import io
import json
from collections.abc import Iterator, Set
from pathlib import Path

from infra.errors import UserError, demand


def json_object(text: str | bytes) -> dict:
    """The JSON object that a text is. Raises UserError where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:       # ValueError: also bytes that are no UTF-8
        raise UserError(f"{type(error).__name__}: {error}") from None
    demand(isinstance(value, dict), "it is no JSON object")
    return value


def read_log(path: Path, size: int | None = None, damaged: list[str] | None = None) -> Iterator[dict]:
    """The objects of a file of JSON lines, one after the other; of its first `size` bytes (None: of all).
    A line that is no object raises UserError, or is left out where `damaged` is there to say so."""
    with open(path, "rb") as file:
        lines = file if size is None else io.BytesIO(file.read(size))
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json_object(line)
            except UserError as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
                continue
            yield row


def demand_fields(row: dict, names: Set[str]) -> None:
    """Raises UserError unless a JSON object has a field of each of these names."""
    lacking = sorted(names - row.keys())
    demand(not lacking, f"it lacks {', '.join(lacking)}")
