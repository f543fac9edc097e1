"""`python -m pytest course` grades course/exercises; `--grade solutions` grades course/solutions instead."""
import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser):
    parser.addoption("--grade", default="exercises",
                     help="folders of course/ to grade, with commas: exercises, solutions")


def pytest_generate_tests(metafunc):
    folders = metafunc.config.getoption("--grade").split(",")
    metafunc.parametrize("work", folders, indirect=True, scope="module")


@pytest.fixture(scope="module")
def work(request):
    """The module to be graded: test_NAME.py grades NAME.py of the folder."""
    name = request.module.__name__.rsplit("test_")[-1]
    path = HERE / request.param / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{request.param}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
