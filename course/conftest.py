"""`python -m pytest course` grades course/exercises; `--grade solutions` grades course/solutions instead.

A stub that nobody has begun is one line, not a list of failures.
"""
import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NOT_BEGUN = []


def pytest_addoption(parser):
    parser.addoption("--grade", default="exercises",
                     help="folders of course/ to grade, with commas: exercises, solutions")


def pytest_generate_tests(metafunc):
    folders = metafunc.config.getoption("--grade").split(",")
    metafunc.parametrize("work", folders, indirect=True, scope="module")


def exercise(module) -> str:
    """What a test file grades: test_NAME.py grades NAME.py."""
    return module.__name__.rsplit("test_")[-1]


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of stubs that are as they were given."""
    kept, left = [], []
    for item in items:
        path = HERE / item.callspec.params["work"] / f"{exercise(item.module)}.py"
        begun = "raise NotImplementedError(\"exercise" not in path.read_text(encoding="utf-8")
        (kept if begun else left).append(item)
        if not begun and path not in NOT_BEGUN:
            NOT_BEGUN.append(path)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter):
    for path in NOT_BEGUN:
        terminalreporter.write_line(f"not begun: course/{path.parent.name}/{path.name}")


@pytest.fixture(scope="module")
def work(request):
    """The module to be graded."""
    path = HERE / request.param / f"{exercise(request.module)}.py"
    spec = importlib.util.spec_from_file_location(f"{request.param}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
