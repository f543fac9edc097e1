"""docs/change-it.md is true: its blocks go into a copy of the source where they say, and it trains."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_run import rows, words

import config

ROOT = Path(config.__file__).parent
PAGE = (ROOT / "docs" / "change-it.md").read_text(encoding="utf-8")
TINY = dict(steps=2, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48,
            n_heldout=1, evolve_every=1, grace=0, probe_every=1)


def put(root: Path, file: str, place: str, code: str) -> None:
    """Edit as a reader would. Place: "at the end", "a new file", or "before: ", "after: ", "instead of: " a line."""
    path = root / file
    if place == "a new file":
        assert not path.exists()
        path.write_text(code)
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if place == "at the end":
        lines += ["\n\n", code]
    else:
        where, anchor = place.split(": ", 1)
        if where != "before":
            code = code.rstrip("\n") + "\n"          # the line between two blocks of the page is none of theirs
        at = next((i for i, line in enumerate(lines) if line.strip().startswith(anchor)), None)
        assert at is not None, f"{file} has no line that begins with {anchor!r}"
        indent = re.match(" *", lines[at])[0]
        start, end = {"before": (at, at), "after": (at + 1, at + 1), "instead of": (at, at + 1)}[where]
        lines[start:end] = [indent + line if line.strip() else line for line in code.splitlines(keepends=True)]
    path.write_text("".join(lines), encoding="utf-8")


def apply(source: Path, *titles: str) -> None:
    """Put the blocks of these sections where their comments say."""
    for title in titles:
        section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
        for block in re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S):
            before, *pieces = re.split(r"^# ([\w/]+\.py), (.*)\n", block, flags=re.M)
            assert not before, f"a block of {title} does not begin with its file"
            for part in zip(pieces[::3], pieces[1::3], pieces[2::3]):
                put(source, *part)


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of the source without tests and weights."""
    keep_out = shutil.ignore_patterns(".*", "tests", "out", "base", "phase1", "__pycache__")
    return shutil.copytree(ROOT, tmp_path / "source", ignore=keep_out)


def copied(tmp_path: Path) -> Path:
    """A copy of the source with its tests, without weights."""
    keep_out = shutil.ignore_patterns(".*", "out", "base", "phase1", "__pycache__")
    return shutil.copytree(ROOT, tmp_path / "source", ignore=keep_out)


def train(source: Path, base: Path, **flags) -> Path:
    """A short run of the changed source; its directory."""
    flags = TINY | dict(base=base, out=source / "out", name="run") | flags
    done = subprocess.run([sys.executable, "train.py", *words(**flags)], cwd=source, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    path = flags["out"] / flags["name"]
    (path / "terminal").write_text(done.stdout)
    return path


def test_following_the_page_turns_nothing_red(tmp_path):
    """All walks in one copy with its tests, and a file of somebody's own at the root: layout, who imports whom, flags and pages
    are as they have to be. (But that to TensorBoard, which is not installed here: its test is below.)"""
    copy = copied(tmp_path)
    put(copy, "experiment.py", "a new file", '"""An experiment."""\nfrom measure import metrics\n\nprint(metrics.__doc__)\n')
    apply(copy, *[title for title in re.findall("^## (.*)$", PAGE, re.M) if "TensorBoard" not in title])
    for words_ in (["ruff", "check", "--no-cache", "."],
                   ["pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py", "tests/test_config.py", "tests/test_docs.py"]):
        done = subprocess.run([sys.executable, "-m", *words_], cwd=copy, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_small_changes(source, micro_base):
    """A reward, a matching rule, an operator and an algorithm in one run."""
    apply(source, "A teacher's reward", "A matching rule", "An operator", "An algorithm")
    path = train(source, micro_base, teacher_reward="third", matching="soft", evolve="sign_flip", algo="positive")
    births, metrics = rows(path, "genealogy"), rows(path)
    assert births and all(birth["operator"] == "sign_flip" for birth in births)
    assert metrics[-1]["tokens_trained"] > 0 and all(row["skipped"] == [] for row in metrics)
    assert all(row["frac_zero_advantage"] >= 0.25 for row in metrics), "one of a group is not above its mean"
    valid = [row for row in rows(path, "tasks") if not row["reason"]]
    assert valid
    for row in valid:
        p = row["solve_rate"]
        assert row["reward"] == pytest.approx(1 - abs(p - 1 / 3) if p else 0.0)


@pytest.mark.slow
def test_an_architecture(tmp_path):
    """It equals transformers, and what is said of others stays true."""
    copy = copied(tmp_path)
    apply(copy, "An architecture")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "tests/test_model.py", "-k", "gemma or unsupported or config"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "PASSED tests/test_model.py::test_logits_and_greedy_tokens_equal_transformers[gemma of OTHERS]" in done.stdout


@pytest.mark.slow
def test_a_curve_in_tensorboard(source, micro_base):
    """Each number of each step's line is read back from the event file."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no requirement of ours")
    apply(source, "A curve in TensorBoard")
    path = train(source, micro_base)
    events = accumulator.EventAccumulator(str(path)).Reload()
    for name in ("solve_rate", "tokens_generated"):
        written = [(event.step, event.value) for event in events.Scalars(name)]
        assert written == [(row["step"], pytest.approx(row[name])) for row in rows(path)]


@pytest.mark.slow
def test_a_role(source, micro_base):
    """Critics are there, are paid, learn, are saved and have children; what the others do stays the same."""
    before = train(source, micro_base, steps=1, name="before")
    apply(source, "A role")
    path = train(source, micro_base)
    terminal = (path / "terminal").read_text()
    assert "2 teachers, 2 students, 2 critics on " in terminal and "best C" in terminal
    critics = [m for row in rows(path) for name, m in row["members"].items() if name.startswith("C")]
    assert len(critics) == 4 and {m["role"] for m in critics} == {"critic"}
    assert all(-0.5 <= m["reward"] <= 1 for m in critics) and any(m["grad_norm"] > 0 for m in critics)
    assert any(birth["child"] == "C2" for birth in rows(path, "genealogy"))
    kept = [folder.parent.name[0] for folder in path.glob("step_2/*/adapter_config.json")]
    assert sorted(kept) == [*"CCSSTT"]
    first = [row for row in rows(path, "tasks") if row["step"] == 0]
    assert first == rows(before, "tasks"), "the same draws, with or without critics"
