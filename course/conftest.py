"""`python -m pytest course` grades course/exercises, `python -m pytest course --solutions` the solutions."""
import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser):
    parser.addoption("--solutions", action="store_true", help="grade course/solutions instead of course/exercises")


@pytest.fixture(scope="module")
def work(request):
    """The module to be graded: test_NAME.py grades NAME.py."""
    name = request.module.__name__.rsplit("test_")[-1]
    path = HERE / ("solutions" if request.config.getoption("--solutions") else "exercises") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"course_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
