"""The course: solutions pass and stubs fail, its pages' commands are ones that train.py takes, its pictures are small."""
import os
import re
import shlex
import shutil
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


def test_solutions_pass_and_a_stub_is_one_line():
    """In one process, for speed; what nobody has begun prints its name alone."""
    words = [sys.executable, "-m", "pytest", "course", "--grade", "exercises,solutions", "--tb=no", "-q", "-rA",
             "-p", "no:cacheprovider"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    ended = lambda word: re.findall(rf"^{word} .*\[(exercises|solutions)", said, re.M)
    passed, failed = ended("PASSED"), ended("FAILED") + ended("ERROR")
    assert len(passed) > 80 and set(passed) == {"solutions"} and not failed, said[-2000:]
    assert re.findall(r"^not begun: course/exercises/(\w+).py$", said, re.M) == EXERCISES


def test_a_stub_that_is_begun_is_graded(tmp_path):
    course = shutil.copytree(COURSE, tmp_path / "course")
    stub = course / "exercises" / "matching.py"
    stub.write_text(stub.read_text().replace("raise NotImplementedError", "raise RuntimeError"))
    words = [sys.executable, "-m", "pytest", course / "tests" / "test_matching.py", course / "tests" / "test_ratings.py", "--tb=no", "-q",
             "-p", "no:cacheprovider", "--confcutdir", course, "--rootdir", course]
    said = subprocess.run(words, cwd=course, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100).stdout
    assert "not begun: course/exercises/ratings.py" in said and "exercises/matching.py" not in said, said[-2000:]
    assert re.search(r"10 failed", said) and "passed" not in said, said[-2000:]


def test_a_person_plays(tmp_path, micro_base, monkeypatch, capsys):
    """Scripted: one of a teacher's tasks answered wrongly, one task written that is no task and one that is."""
    import train
    from course import play
    run = train.main(config.Config(base=str(micro_base), out=str(tmp_path), name="run", steps=1, pop=2, n_prompts=1, proposals_per_prompt=4,
                                   samples_per_task=2, max_new_tokens=48, probe_every=0))

    def play_by(script, teach):
        lines = iter(script)
        monkeypatch.setattr("builtins.input", lambda *words: next(lines))
        play.play(str(run.path), teach)
        return capsys.readouterr().out

    shown = play_by(["[[]]", ""], teach=False)
    assert "T0 asks:" in shown and "wrong: " in shown and len(re.findall("^S0, (?:correct|wrong|malformed):$", shown, re.M)) == 4
    assert shown.index("wrong: ") < shown.index("S0, ") < shown.index("ratings: you ")
    shown = play_by(["nonsense", "", "1", "def f(x):", " x=x+[3]", " x=len(x)", " return x", "", "[1,2]", ""], teach=True)
    assert "no task (" in shown and shown.count("S0, ") == 4
    score = 0.5 - shown.count("S0, correct") / 4
    mu = float(re.search(r"ratings: you ([\d.]+)", shown)[1])
    assert mu == 25 if score == 0 else (mu - 25) * score > 0, shown
    with pytest.raises(ValueError, match="no checkpoint"):
        play.play(str(tmp_path), teach=False)


def test_every_exercise_has_its_test_and_solution():
    for folder, name in (("solutions", "{}.py"), ("tests", "test_{}.py")):
        assert {p.name for p in (COURSE / folder).glob("*.py")} == {name.format(exercise) for exercise in EXERCISES}
    assert len(EXERCISES) == 8


def test_an_exercise_has_one_number():
    """The table's, in the stub's docstring and message, in its solution and in its test."""
    rows = re.findall(r"^\| (\d) \| `exercises/(\w+)\.py` \|", (COURSE / "README.md").read_text(), re.M)
    assert [int(n) for n, _ in rows] == list(range(1, 9)) and sorted(name for _, name in rows) == EXERCISES
    for n, name in rows:
        stub = (COURSE / "exercises" / f"{name}.py").read_text()
        assert stub.startswith(f'"""Exercise {n}: ') and f'NotImplementedError("exercise {n}")' in stub
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


