"""A slip in what somebody has just written into the source ends a run with a traceback that points at its line; once it is
mended, the run goes on."""
import shutil
from pathlib import Path

import pytest
from tiny_run import ROOT, SIZES, TORCHRUN, play, python, rows, words

FLAGS = SIZES | dict(steps=1, proposals_per_prompt=8, evolve_every=1, evolve="copy", grace=0, probe_every=0, save_every=1)
# file -> what is written at its end, the line that fails, and what Python says of it
SLIPS = {
    "rewards.py": ('def slip(outcome):\n    return max([])\n\n\nTEACHER_REWARDS["difficulty"] = slip\n', "return max([])",
                   "ValueError: max() "),
    "tasks/code.py": ('class Mine(Deduction):\n    def read(self, written, few_shot, limits):\n        return int("x")\n\n\n'
                      "Deduction = Mine\n", 'return int("x")', "ValueError: invalid literal for int()"),
    "operators.py": ('def slip(parents, gen):\n    return {}["x"]\n\n\nOPERATORS["copy"] = Operator(slip, 1)\n', 'return {}["x"]',
                     "KeyError: 'x'")}


@pytest.fixture(scope="module")
def begun(micro_base, tmp_path_factory) -> Path:
    """A run of one step, saved."""
    return play(base=micro_base, out=tmp_path_factory.mktemp("runs"), **FLAGS)


@pytest.mark.parametrize("file, n_processes", [("rewards.py", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ("rewards.py", 2), ("tasks/code.py", 1), ("operators.py", 1), ("operators.py", 2)))])
def test_a_slip_is_a_traceback_and_the_run_goes_on(begun, micro_base, tmp_path, file, n_processes):
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "tests", "out", "base", "course", "docs", "__pycache__"))
    run = shutil.copytree(begun, tmp_path / "run", symlinks=True)
    written, line, said = SLIPS[file]
    with open(source / file, "a") as f:
        f.write("\n\n" + written)
    flags = words(resume=run, steps=2, base=micro_base)
    done = python(*TORCHRUN * (n_processes == 2), "train.py", *flags, cwd=source)
    assert done.returncode == 1, done.stderr
    number = (source / file).read_text().splitlines().index(next(x for x in written.splitlines() if line in x)) + 1
    where = f'File "{source / file}", line {number}, in {"read" if "tasks" in file else "slip"}'
    assert where in done.stderr and line in done.stderr and said in done.stderr, done.stderr
    assert len(rows(run)) == 1, "the step that failed left no line"
    play(**FLAGS | dict(base=micro_base, resume=run, steps=2))
    assert [row["step"] for row in rows(run)] == [0, 1] and (run / "step_2" / "state.json").exists()
