"""What a run's files look like: JSON read back is compared with a shape before anything uses it.

A shape is a type, [shape of each item], {str: shape of each value} or {"key": shape} ("key?" may be missing,
others may be there). NUMBER is a float or null.
"""
import re

from evolve import ROLES
from tasks import TASK_TYPES

NUMBER = "number or null"
NAME = re.compile(f"[{''.join(role[0].upper() for role in ROLES)}][0-9]{{1,9}}")
TASK = dict(kind=str, program=str, inputs=[str], outputs=[str], message=str, key=str, id=int, teacher=str,
            step=int, parents=[int])
MEMBER = dict(name=str, role=str, slot=int, rating=dict(mu=float, sigma=float), born=int, parents=[str],
              operator=str, matches=int) | {"niche?": [str], "lr_scale?": float}
LOG_ROWS = {
    "metrics.jsonl": dict(
        step=int, n=int, valid=NUMBER, solve_0=NUMBER, unique_at_64=float, majority_baseline={str: float},
        output_chars=NUMBER, output_digits=NUMBER, members={str: dict(role=str)}) | {
        "solve_rate?": NUMBER, "think?": NUMBER, "teacher_reward?": NUMBER, "complexity?": {str: NUMBER},
        "unique_structures?": int, "births?": [str], "tokens_generated?": int, "tokens_trained?": int,
        "seconds?": {str: float}, "alarms?": {str: str}, "unseen?": {str: {str: NUMBER}},
        "heldout_greedy?": {str: float}, "heldout_greedy_se?": NUMBER, "heldout_greedy_base?": NUMBER},
    "tasks.jsonl": dict(step=int, teacher=str, kind=str, reason=str, reward=float),
    "matches.jsonl": dict(step=int, teacher=str, student=str),
    "genealogy.jsonl": dict(step=int, child=str)}
STATE = dict(step=int, base_files=str, members=[MEMBER], heldout=[TASK], unseen=[TASK], seeds=[TASK],
             totals=dict(generated=int, trained=int), optimizer_steps=[int], frozen=bool,
             logs=dict.fromkeys(LOG_ROWS, int))
VALID_TASK = TASK | dict(solve_rate=NUMBER, attempts={str: [str]}, answers={str: [str]})


def check_shape(value, shape, where: str) -> None:
    """Raises ValueError, with the place, where a value read from JSON is not of this shape."""
    if shape == NUMBER:
        shape = float if value is not None else type(None)
    if isinstance(shape, type):
        kinds = (int, float) if shape is float else (shape,)
        # NaN is not below anything, and integers beyond a float's range are not numbers of ours
        if type(value) not in kinds or (shape in (int, float) and not abs(value) < 1e300):
            raise ValueError(f"{where} is {str(value)[:40]!r}, not a {shape.__name__}")
    elif type(value) is not type(shape):
        raise ValueError(f"{where} is not a {'list' if isinstance(shape, list) else 'table'}")
    elif isinstance(shape, list):
        for i, item in enumerate(value):
            check_shape(item, shape[0], f"{where}[{i}]")
    elif str in shape:
        for key, item in value.items():
            check_shape(item, shape[str], f"{where}.{key[:40]}")
    else:
        for key, item in shape.items():
            if key.rstrip("?") in value:
                check_shape(value[key.rstrip("?")], item, f"{where}.{key.rstrip('?')}")
            elif key[-1] != "?":
                raise ValueError(f"{where} lacks {key!r}")


def check_task(row: dict, shape: dict, where: str) -> None:
    """Raises ValueError where this is no task."""
    check_shape(row, shape, where)
    if row["kind"] not in TASK_TYPES:
        raise ValueError(f"{where}.kind is {row['kind'][:40]!r}: no task type")


def check_row(name: str, row, where: str) -> None:
    """Raises ValueError where a line of one of a run's logs is not what that log holds."""
    check_shape(row, LOG_ROWS.get(name, {}), where)
    if name == "tasks.jsonl" and not row["reason"]:
        check_task(row, VALID_TASK, where)


def check_state(state, step: int) -> None:
    """Raises ValueError where state.json of checkpoint step_`step` is not one. Names of members become those
    of directories: a letter of the role and digits."""
    check_shape(state, STATE, "it")
    for row in state["heldout"] + state["unseen"] + state["seeds"]:
        check_task(row, TASK, "a task")
    members, slots = state["members"], {m["slot"] for m in state["members"]}
    for m in members:
        if m["role"] not in ROLES or not NAME.fullmatch(m["name"]):
            raise ValueError(f"{m['name'][:40]!r} ({m['role'][:40]}) is no member's name")
    names = {m["name"] for m in members}
    if len(names) != len(members) or slots != set(range(len(state["optimizer_steps"]))):
        raise ValueError("its members do not have one name and one adapter each")
    counts = [*state["logs"].values(), *state["optimizer_steps"], *(m["rating"]["sigma"] for m in members)]
    if state["step"] != step or min(counts) < 0:
        raise ValueError("its step is another, or a count or a sigma is negative")
