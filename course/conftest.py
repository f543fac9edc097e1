"""Grades course/exercises: `python -m pytest course`. `--grade solutions` grades course/solutions instead.

A stub that nobody has begun is one line, not a list of failures.
"""
import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
NOT_BEGUN = []                                  # the stubs' paths


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--grade", default="exercises",
                     help="folders of course/ to grade, with commas: exercises, solutions")


def pytest_configure(config: pytest.Config):
    """Refuses a folder that is not there, before anything is collected."""
    for folder in config.getoption("--grade").split(","):
        if not (HERE / folder).is_dir():
            raise pytest.UsageError(f"--grade {folder}: give exercises or solutions, or both with a comma")


def pytest_generate_tests(metafunc: pytest.Metafunc):
    """Runs each test once for each folder, which is the parameter of the fixture `work`."""
    folders = metafunc.config.getoption("--grade").split(",")
    metafunc.parametrize("work", folders, indirect=True, scope="module")


def graded_file(folder: str, test_module: ModuleType) -> Path:
    """Returns what a test file grades in a folder: test_NAME.py grades NAME.py."""
    name = test_module.__name__.rsplit("test_")[-1]
    return HERE / folder / f"{name}.py"


def is_begun(path: Path) -> bool:
    """Returns whether a stub was begun: it does not raise NotImplementedError any more."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:                         # its author has typed something
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and "NotImplementedError('exercise" in ast.unparse(node):
            return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    """Leaves out the tests of stubs that are as they were given."""
    kept = []
    left_out = []
    for item in items:
        if HERE not in item.path.parents:       # `pytest tests course` asks about all tests together
            kept.append(item)
            continue
        path = graded_file(item.callspec.params["work"], item.module)
        if is_begun(path):
            kept.append(item)
            continue
        left_out.append(item)
        if path not in NOT_BEGUN:
            NOT_BEGUN.append(path)
    items[:] = kept                             # in place: pytest goes on with this very list
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter):
    for path in NOT_BEGUN:
        terminalreporter.write_line(f"not begun: course/{path.parent.name}/{path.name}")


@pytest.fixture(scope="module")
def work(request: pytest.FixtureRequest) -> ModuleType:
    """Returns the module to be graded."""
    path = graded_file(request.param, request.module)
    # By its path: each folder has files of the same names.
    spec = importlib.util.spec_from_file_location(f"{request.param}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
