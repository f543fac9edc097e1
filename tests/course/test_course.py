"""The course: solutions pass and stubs fail, its pages' commands are ones that train.py takes, its pictures are small."""
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import config

ROOT = Path(config.__file__).parent
COURSE = ROOT / "course"
PAGES = [COURSE / "README.md", COURSE / "gallery.md"]
EXERCISES = sorted(p.stem for p in (COURSE / "exercises").glob("*.py"))


def test_solutions_pass_and_stubs_fail():
    """In one process, for speed; every test of an exercise, not only some, must fail before it is done."""
    words = [sys.executable, "-m", "pytest", "course", "--grade", "exercises,solutions", "--tb=no", "-q", "-rA",
             "-p", "no:cacheprovider"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    ended = lambda word: re.findall(rf"^{word} .*\[(exercises|solutions)", said, re.M)
    passed, failed, broken = ended("PASSED"), ended("FAILED"), ended("ERROR")
    assert len(passed) > 100 and set(passed) == {"solutions"} and not broken, said[-2000:]
    assert failed == ["exercises"] * len(passed), said[-2000:]


def test_every_exercise_has_its_test_and_solution():
    for folder, name in (("solutions", "{}.py"), ("tests", "test_{}.py")):
        assert {p.name for p in (COURSE / folder).glob("*.py")} == {name.format(exercise) for exercise in EXERCISES}
    assert len(EXERCISES) == 8


def test_an_exercise_has_one_number():
    """The table's, in the stub's docstring and message, in its solution and in its test."""
    rows = re.findall(r"^\| (\d) \| `exercises/(\w+)\.py` \|.* `python -m pytest course/tests/test_(\w+)\.py` \|$",
                      (COURSE / "README.md").read_text(), re.M)
    assert [int(n) for n, _, _ in rows] == list(range(1, 9)) and sorted(name for _, name, _ in rows) == EXERCISES
    for n, name, graded in rows:
        stub = (COURSE / "exercises" / f"{name}.py").read_text()
        assert graded == name and stub.startswith(f'"""Exercise {n}: ') and f'NotImplementedError("exercise {n}")' in stub
        assert f"python -m pytest course/tests/test_{name}.py\n" in stub
        assert (COURSE / "solutions" / f"{name}.py").read_text().startswith(f'"""Solution of exercise {n}')
        assert (COURSE / "tests" / f"test_{name}.py").read_text().startswith(f'"""Grades exercise {n}')


def test_the_readmes_test_command_does_not_collect_the_course():
    assert 'testpaths = ["tests"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_are_real(page):
    commands = [line for line in page.read_text().splitlines() if line.startswith("python train.py")]
    assert len(commands) >= 5
    for command in commands:
        cfg = config.parse_args(None, shlex.split(command, comments=True)[2:])
        config.resolve_config(cfg, "micro")


def test_pictures_are_small_and_drawn():
    shown = re.findall(r"\((gallery/[\w-]+\.svg)\)", (COURSE / "gallery.md").read_text())
    assert set(shown) == {f"gallery/{p.name}" for p in (COURSE / "gallery").iterdir()} and len(shown) >= 5
    for name in shown:
        path = COURSE / name
        assert path.stat().st_size < 30_000 and len(ElementTree.parse(path).findall(".//{*}path[@class='stroke']")) >= 2


