"""The house keeps its order: who may import whom, and how long each room is.

The imports are read, not run: every one in a file counts, also those inside functions. Layout is ruff's (pyproject.toml).
"""
import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = "rewards trueskill_lite operators attention model lora weights generate pack rl evolve selfplay"
BELOW = f"infra sandbox micro.programs run.terminal verifier tasks config {CORE}"
# From the ground up: a room, its lines at most (wc -l; None: its folder's), the rooms above it in this table that it may import.
# A module lives in the room of the longest name that fits. Lines may move between rooms; their sum is WHOLE.
PLAN = {
    "infra": (338, ""),
    "sandbox": (920, ""),
    "micro.programs": (None, ""),
    "run.terminal": (None, ""),
    "verifier": (202, "sandbox"),
    "tasks": (1917, "sandbox verifier"),
    "rewards": (70, ""),
    "trueskill_lite": (125, ""),
    "operators": (275, ""),
    "config": (262, "tasks rewards trueskill_lite operators"),
    "attention": (178, "infra"),
    "model": (300, "infra attention"),
    "lora": (260, "infra config"),
    "weights": (245, "infra config model lora"),
    "generate": (270, "infra attention model lora"),
    "pack": (105, "infra generate"),
    "rl": (385, "infra config model lora generate pack"),
    "evolve": (280, "config trueskill_lite operators lora weights"),
    "selfplay": (366, BELOW.removesuffix(" selfplay")),
    "run": (1155, BELOW),
    "train": (267, f"{BELOW} run"),
    "nano": (400, "tasks verifier"),
    "report": (750, "run.terminal"),
    "micro": (770, "sandbox micro.programs verifier tasks model weights generate"),
    "bench": (735, f"{BELOW} run train micro"),
    "eval": (2450, f"{BELOW} run train micro"),
    "course": (975, f"{BELOW} run"),
}
WHOLE = 14_000                              # of everything but tests
OF_TESTS = 9_500
FILE = 400                                  # of a folder
FUNCTION = 66                               # a screen of 60, with a margin
EXPERIMENTS = 3                             # files that somebody may put beside ours without a red test


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


def keep_to(what: str, budget: int, paths) -> None:
    """A bound is met, never raised."""
    n = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    assert n <= budget, f"{what}: {n:,} lines of {budget:,}: say no to something"


def test_the_plan_has_no_arrow_that_runs_up():
    above = set()
    for name, (_, may) in PLAN.items():
        assert set(may.split()) <= above, f"{name} may import what stands below it in the table"
        above.add(name)


@pytest.mark.parametrize("name", [name for name in SOURCES if room(name)])
def test_imports_are_those_of_the_plan(name):
    may = {room(name), *PLAN[room(name)][1].split()}
    others = sorted(target for target in IMPORTS[name] if target in SOURCES and room(target) not in may)
    assert not others, f"{name} imports {', '.join(others)}"


def test_no_circle():
    """None within a room, either: modules that import nothing of what is left go, until nothing is left."""
    left = {name: targets & set(SOURCES) for name, targets in IMPORTS.items()}
    while free := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in free}
    assert not left, f"in a circle, or above one: {', '.join(sorted(left))}"


def test_no_module_is_named_twice():
    """What the standard library or a runtime package calls its own would be hidden by a module at the root."""
    top = {name.partition(".")[0] for name in SOURCES}
    assert not top & (sys.stdlib_module_names | {"torch", "numpy", "transformers", "safetensors", "tqdm", "tokenizers"})


def test_the_root_is_read_in_an_evening():
    planned = {name for name in PLAN if (ROOT / f"{name}.py").is_file()}
    at_root = {path.stem for path in SOURCES.values() if path.parent == ROOT}
    assert len(planned) <= 16 and len(at_root - planned) <= EXPERIMENTS, sorted(at_root)


@pytest.mark.parametrize("name", [name for name, (budget, _) in PLAN.items() if budget])
def test_budget(name):
    keep_to(name, PLAN[name][0], list((ROOT / name).rglob("*.py")) or [ROOT / f"{name}.py"])


def test_the_house_is_short():
    assert sum(budget or 0 for budget, _ in PLAN.values()) <= WHOLE
    keep_to("tests", OF_TESTS, (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("name", SOURCES)
def test_files_and_functions_are_short(name):
    for node in ast.walk(ast.parse(SOURCES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            n_lines = node.end_lineno - node.lineno + 1
            assert n_lines <= FUNCTION, f"{name}, line {node.lineno}: {node.name} has {n_lines} lines"
    if SOURCES[name].parent != ROOT:
        keep_to(name, FILE, [SOURCES[name]])
