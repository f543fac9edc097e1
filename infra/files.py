"""Files that people and programs may have damaged, read with the mistake named."""
import json

from infra.errors import UserError, demand


def json_object(text: str | bytes) -> dict:
    """The JSON object that a text is. Raises UserError where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:       # ValueError: also bytes that are no UTF-8
        raise UserError(f"{type(error).__name__}: {error}") from None
    demand(isinstance(value, dict), "it is no JSON object")
    return value


def demand_fields(row: dict, names: set[str]) -> None:
    """Raises UserError unless a JSON object has a field of each of these names."""
    lacking = sorted(names - row.keys())
    demand(not lacking, f"it lacks {', '.join(lacking)}")
