"""The course: solutions pass, wrong ones and stubs fail, a person plays, an exercise has one number."""
import re
import shutil
from collections import Counter

import pytest
import tiny_run

from common import leave

COURSE = tiny_run.ROOT / "course"
EXERCISES = sorted(p.stem for p in (COURSE / "exercises").glob("*.py"))


# exercise -> what of its solution stands otherwise in a wrong one, and the test of its that alone notices
WRONG = {"loss": ("(length - prompt_len))", "((length - prompt_len) * (advantage != 0)))", "test_a_row_without_an_advantage_counts_in_the_mean"),
         "advantage": ("(learner == one) & live", "(learner == one) & live & (d != 0)", "test_a_row_at_its_group_s_mean_is_live"),
         "reward": ("luck(correct, n, guess) >= 0.05", "guess >= 0.1", "test_what_can_be_guessed_in_part_pays_too"),
         "crossover": ("torch.linalg.svd(R_b @ R_a.T / 2)", "torch.linalg.svd(Q_b.T @ (B1 @ A1 + B2 @ A2) @ Q_a / 2)", "test_the_whole_matrix_is_never_made"),
         "ratings": ("return e - t, 1.0", "return e - t, 0.0", "test_who_is_greatly_surprised_is_surer_afterwards")}


@pytest.mark.slow
def test_solutions_pass_wrong_ones_fail_and_a_stub_is_one_line(tmp_path):
    """In one process, for speed. What nobody has begun prints its name alone; a `raise` behind a # is begun."""
    shutil.copytree(COURSE / "exercises", wrong := tmp_path / "wrong")
    for name, (right, slip, _) in WRONG.items():
        solution = (COURSE / "solutions" / f"{name}.py").read_text()
        assert right in solution
        (wrong / f"{name}.py").write_text(solution.replace(right, slip) + '# raise NotImplementedError("exercise")\n')
    words = ["-m", "pytest", "course", "--tb=no", "-q", "-rA", "-p", "no:cacheprovider", "--grade"]
    said = tiny_run.python(*words, f"exercises,solutions,{wrong}").stdout
    ended = re.findall(r"^(PASSED|FAILED|ERROR) .*\[(exercises|solutions)", said, re.M)
    assert len(ended) > 80 and set(ended) == {("PASSED", "solutions")}, said[-2000:]
    noticed = re.findall(rf"^FAILED course/tests/test_(\w+).py::(\w+)\[{wrong}", said, re.M)
    assert set(noticed) == {(name, test) for name, (*_, test) in WRONG.items()}, said[-2000:]
    assert re.findall(r"^not begun: course/exercises/(\w+).py$", said, re.M) == EXERCISES
    refused = tiny_run.python(*words, "solution")
    assert refused.returncode == 4 and refused.stderr.strip() == "ERROR: --grade solution: give exercises or solutions, or both with a comma"


def attempts(shown: str) -> Counter:
    """Of S0 on the terminal, by verdict; equal ones share a line."""
    found = Counter()
    for verdict, times in re.findall(r"^    S0 (correct|wrong|malformed)(?: x(\d))?  ", shown, re.M):
        found[verdict] += int(times or 1)
    return found


def test_a_person_plays(tmp_path, micro_base, monkeypatch, capsys):
    """Scripted: one of a teacher's tasks answered wrongly, one task written that is no task and one that is."""
    from course import play
    run = tiny_run.play(**tiny_run.SIZES | dict(base=micro_base, out=tmp_path, steps=1, pop=2, probe_every=0))

    def play_by(script, teach):
        lines = iter(script)
        monkeypatch.setattr("builtins.input", lambda *words: next(lines))
        play.play(str(run), teach)
        return capsys.readouterr().out

    shown = play_by(["[[]]", ""], teach=False)
    assert "T0 asks:" in shown and "\nwrong\n" in shown and attempts(shown).total() == 4, shown
    assert shown.index("\nwrong\n") < shown.index("\n    S0 ") < shown.index("ratings: you ")
    shown = play_by(["nonsense", "", "1", "def f(x):", " x=x+[3]", " x=len(x)", " return x", "", "[1,2]", ""], teach=True)
    assert "no task (" in shown and attempts(shown).total() == 4
    assert "[1,2] -> 3\n" in shown, "the right value"
    score = 0.5 - attempts(shown)["correct"] / 4
    mu = float(re.search(r"ratings: you ([\d.]+)", shown)[1])
    assert mu == 25 if score == 0 else (mu - 25) * score > 0, shown
    monkeypatch.setattr("sys.argv", ["play", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        leave("python -m course.play", play.main)
    assert end.value.code == 2 and "no checkpoint" in capsys.readouterr().err


def test_an_exercise_has_one_number():
    """The list's, in the stub's docstring and message, in its solution and in its test, which all have."""
    rows = re.findall(r"^(\d)\. `exercises/(\w+)\.py`: ", (COURSE / "README.md").read_text(), re.M)
    assert [int(n) for n, _ in rows] == list(range(1, 9))
    assert sorted(name for _, name in rows) == EXERCISES == sorted(p.stem for p in (COURSE / "solutions").glob("*.py"))
    for n, name in rows:
        stub = (COURSE / "exercises" / f"{name}.py").read_text()
        assert stub.startswith(f'"""Exercise {n}: ') and f'NotImplementedError("exercise {n}")' in stub
        assert f"python -m pytest course/tests/test_{name}.py\n" in stub
        assert (COURSE / "solutions" / f"{name}.py").read_text().startswith(f'"""Solution of exercise {n}')
        assert (COURSE / "tests" / f"test_{name}.py").read_text().startswith(f'"""Grades exercise {n}')
