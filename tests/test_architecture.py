"""The house keeps its order: who may import whom.

The imports are read, not run: every one in a file counts, also those inside functions. Layout is ruff's (pyproject.toml).
"""
import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = "rewards trueskill_lite operators model lora weights generate rl evolve selfplay"
BELOW = f"infra sandbox micro.programs run.terminal verifier tasks config {CORE}"
# From the ground up: a room, and the rooms above it in this table that it may import. A module lives in the room of the longest
# name that fits; a new file at the root that has no row here may import everything but the entry files.
PLAN = {
    "infra": "",
    "sandbox": "infra",
    "micro.programs": "",
    "run.terminal": "",
    "measure.shares": "",
    "verifier": "infra sandbox",
    "tasks": "infra sandbox verifier",
    "rewards": "",
    "trueskill_lite": "",
    "attention": "infra",
    "model": "infra attention",
    "lora": "infra",
    "operators": "infra lora",
    "weights": "infra model lora",
    "config": "infra tasks rewards trueskill_lite operators lora",
    "generate": "infra attention model lora",
    "pack": "infra generate",
    "rl": "infra config model lora generate pack",
    "evolve": "infra config trueskill_lite operators lora weights",
    "selfplay": BELOW.removesuffix(" selfplay"),
    "run": BELOW,
    "measure": f"{BELOW} run",
    "weights.__main__": BELOW,              # the command, which looks at all that a base is used for
    "train": f"{BELOW} run measure",
    "nano": "tasks verifier trueskill_lite",
    "report": "infra run.terminal measure.shares",
    "micro": "infra sandbox micro.programs verifier tasks model weights generate",
    "bench": f"{BELOW} run measure train micro",
    "eval": f"{BELOW} run measure measure.shares train micro",
    "sample": f"{BELOW} run measure eval",
    "course": f"{BELOW} run measure sample",
}
ENTRIES = {"train", "nano"}                 # what starts a run is imported by nothing that a run is made of


def sources() -> dict[str, Path]:
    """Every module of ours but tests, by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not (parts[0] in {"tests", "out"} or any(part.startswith(".") for part in parts) or parts[:2] == ("course", "tests")):
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


SOURCES = sources()


def imported(path: Path) -> set[str]:
    """The modules, ours and others', that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}, line {node.lineno}: a relative import hides where a module lives"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from eval import common` is about a module, `from tasks import TASK_TYPES` about the package
            names |= {name if name in SOURCES else node.module for name in inner}
    return names


IMPORTS = {name: imported(path) - {name} for name, path in SOURCES.items()}


def room(name: str) -> str | None:
    """The room that a module lives in; None of somebody's experiment, which may import all."""
    return max((r for r in PLAN if f"{name}.".startswith(f"{r}.")), key=len, default=None)


def test_the_plan_has_no_arrow_that_runs_up():
    above = set()
    for name, may in PLAN.items():
        assert set(may.split()) <= above, f"{name} may import what stands below it in the table"
        above.add(name)


@pytest.mark.parametrize("name", SOURCES)
def test_imports_are_those_of_the_plan(name):
    ours = {target: room(target) for target in IMPORTS[name] if target in SOURCES}
    if room(name) is None:
        above = sorted(ENTRIES & set(ours))
        assert not above, f"{name} imports {', '.join(above)}: a new file stands below the entry files"
        return
    may = {room(name), None, *PLAN[room(name)].split()}
    others = sorted(target for target, where in ours.items() if where not in may)
    assert not others, f"{name} imports {', '.join(others)}: PLAN in tests/test_architecture.py has no such arrow; if it runs down, add it there"


def test_no_circle():
    """None within a room, either: modules that import nothing of what is left go, until nothing is left."""
    left = {name: targets & set(SOURCES) for name, targets in IMPORTS.items()}
    while free := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in free}
    assert not left, f"in a circle, or above one: {', '.join(sorted(left))}"


def loaded_by(name: str) -> set[str]:
    """The modules of ours that are in memory once a module is imported, with the packages that they lie in."""
    found, left = set(), {name}
    while left:
        name = left.pop()
        package = name.rpartition(".")[0]
        found.add(name)
        left |= (IMPORTS[name] | {package}) & set(SOURCES) - found
    return found


@pytest.mark.parametrize("name", ["lora", "weights", "model", "operators", "rewards", "trueskill_lite"])
def test_a_part_of_the_engine_is_taken_alone(name):
    """`import lora` in somebody's own project brings neither Metamath nor a sandbox along."""
    assert len(loaded_by(name)) <= 8, sorted(loaded_by(name))


def test_no_module_is_named_twice():
    """What the standard library or a runtime package calls its own would be hidden by a module at the root."""
    top = {name.partition(".")[0] for name in SOURCES}
    assert not top & (sys.stdlib_module_names | {"torch", "numpy", "transformers", "safetensors", "tqdm", "tokenizers"})
