"""The house keeps its order: imports run one way, few packages are needed, and parts can be taken alone.

Imports are read, not run: every one in a file counts, also those inside functions. A new file needs no word here.
"""
import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WINGS = {"bench", "sample", "nano", "eval", "report", "micro", "course"}        # the core stands without them
DRAWN = "micro.programs"            # the programs of --tasks micro, which draws them alone: the core may import it
PACKAGES = {"torch", "transformers", "safetensors", "numpy", "tqdm"}            # requirements.txt
BROUGHT = {"tokenizers", "huggingface_hub"}             # by transformers
JUDGES = {"peft": "bench", "math_verify": "eval"}       # with what a wing compares
ALONE = "rewards trueskill_lite operators lora model weights".split()


def sources() -> dict[str, Path]:
    """Dotted name -> file of every module of ours but tests."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if not {"tests", "out", "exercises"} & set(parts) and not any(part.startswith(".") for part in parts):
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


SOURCES = sources()


def imported(path: Path, inner: bool = True) -> set[str]:
    """The modules, ours and others', that a file imports. inner: also inside functions."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if inner else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}, line {node.lineno}: a relative import hides where a module lives"
            # `from micro import programs` is about a module, `from tasks import TASK_TYPES` about the package
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in SOURCES else node.module for name in full}
    return names


IMPORTS = {name: imported(path) - {name} for name, path in SOURCES.items()}


def top(name: str) -> str:
    """The file at the root or the folder that a module lives in."""
    return name if name == DRAWN else name.partition(".")[0]


def circle(arrows: dict[str, set[str]]) -> set[str]:
    """What is left when those that import nothing of what is left have gone, again and again: circles, and what is above them."""
    left = {name: targets & set(arrows) - {name} for name, targets in arrows.items()}
    while free := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return set(left)


def loaded_by(name: str) -> set[str]:
    """Our modules that are in memory once a module is imported, and what is imported of others."""
    found, left = set(), {name}
    while left:
        name = left.pop()
        found.add(name)
        package = name.rpartition(".")[0]
        if name in SOURCES:
            left |= (imported(SOURCES[name], inner=False) | {package} & set(SOURCES)) - found
    return found


def test_imports_run_one_way():
    """Among modules, and among the files at the root and the folders."""
    assert not circle(IMPORTS)
    rooms = {}
    for name, targets in IMPORTS.items():
        rooms.setdefault(top(name), set()).update(top(target) for target in targets if target in SOURCES)
    assert not circle(rooms)


@pytest.mark.parametrize("name", [name for name in SOURCES if top(name) not in WINGS])
def test_the_core_imports_no_wing(name):
    assert not {target for target in IMPORTS[name] & set(SOURCES) if top(target) in WINGS}


def test_five_packages_are_enough():
    for name, targets in IMPORTS.items():
        others = {target.partition(".")[0] for target in targets - set(SOURCES)} - sys.stdlib_module_names - PACKAGES - BROUGHT
        if top(name) != "course":
            assert {JUDGES.get(package) for package in others} <= {top(name)}, (name, others)


@pytest.mark.parametrize("name", ["common", "verifier", "report.__main__"])
def test_a_plain_python_is_enough(name):
    """What checks a program and what draws a run need no torch."""
    assert not PACKAGES & {target.partition(".")[0] for target in loaded_by(name)}


@pytest.mark.parametrize("name", ALONE)
def test_a_part_of_the_engine_is_taken_alone(name):
    """`import lora` in somebody's own project brings few files along."""
    assert len(loaded_by(name) & set(SOURCES)) <= 8


def test_the_root_is_read_at_a_glance():
    """Few files; none hides a module of the standard library or of a package."""
    names = {path.stem for path in ROOT.glob("*.py")}
    assert len(names) <= 21
    assert not {top(name) for name in SOURCES} & (sys.stdlib_module_names | PACKAGES)
