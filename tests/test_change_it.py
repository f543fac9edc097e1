"""docs/change-it.md is true: its blocks go into a copy of the source where they say, it trains, and no test turns red."""
import re
import shutil
from pathlib import Path

import pytest
from tiny_run import ROOT, SIZES, python, rows, words, write

PAGE = (ROOT / "docs" / "change-it.md").read_text(encoding="utf-8")
SECTIONS = dict(section.split("\n", 1) for section in PAGE.split("\n## ")[1:])          # title -> text
WALKS = [title for title, text in SECTIONS.items() if "```python" in text]
RATING, ROLE = "A rating system", "A role"      # change what every run does: test_same_bits.py notices, as the page says
# What has nothing of a run in it, or takes long: no walk of the page can touch it.
UNTOUCHED = ["tests/test_change_it.py", "tests/sandbox", "tests/bench", "tests/micro", "tests/course", "tests/report"]


def put(root: Path, file: str, place: str, code: str) -> None:
    """Edit as a reader would. Place: "at the end", "a new file", or "before: ", "after: ", "instead of: " a line."""
    path = root / file
    if place == "a new file":
        assert not path.exists()
        path.write_text(code.rstrip("\n") + "\n")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if place == "at the end":
        lines += ["\n\n", code.rstrip("\n") + "\n"]
    else:
        where, anchor = place.split(": ", 1)
        at = next((i for i, line in enumerate(lines) if line.strip().startswith(anchor)), None)
        assert at is not None, f"{file} has no line that begins with {anchor!r}"
        if where != "before" or lines[at][0] == " ":
            code = code.rstrip("\n") + "\n"     # the line between two blocks of the page is none of theirs
        indent = re.match(" *", lines[at])[0]
        start, end = {"before": (at, at), "after": (at + 1, at + 1), "instead of": (at, at + 1)}[where]
        lines[start:end] = [indent + line if line.strip() else line for line in code.splitlines(keepends=True)]
    path.write_text("".join(lines), encoding="utf-8")


def changed(tmp_path: Path, *titles: str) -> Path:
    """A copy of the source, with tests and base, in which the blocks of these sections stand where their comments say."""
    keep_out = shutil.ignore_patterns(".*", "out", "phase1", "__pycache__")
    copy = shutil.copytree(ROOT, tmp_path / "source", ignore=keep_out)
    for title in titles:
        for block in re.findall(r"^```python\n(.*?)^```$", SECTIONS[title], re.M | re.S):
            before, *pieces = re.split(r"^# ([\w/]+\.py), (.*)\n", block, flags=re.M)
            assert not before, f"a block of {title} does not begin with its file"
            for part in zip(pieces[::3], pieces[1::3], pieces[2::3]):
                put(copy, *part)
    return copy


def run(copy: Path, *command: object) -> str:
    """What a Python command prints in the copy, where it ends well."""
    done = python(*command, cwd=copy, timeout=None)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def train(copy: Path, name: str = "run", **flags) -> Path:
    """A short run of the changed source; its directory."""
    terminal = run(copy, "train.py", *words(**SIZES | dict(name=name, steps=2, n_heldout=1, probe_every=1) | flags))
    (copy / "out" / name / "terminal").write_text(terminal)
    return copy / "out" / name


def test_all_walks_together_are_in_style(tmp_path):
    """And in the order of imports, with their flags and pages."""
    copy = changed(tmp_path, *WALKS)
    put(copy, "experiment.py", "a new file", '"""An experiment."""\nfrom measure import measures\n\nprint(measures.__doc__)\n')
    files = sorted(set(re.findall(r"^# ([\w/]+\.py), ", PAGE, re.M)))
    run(copy, "-m", "ruff", "check", "--no-cache", "experiment.py", *files)
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py", "tests/test_docs.py")


@pytest.mark.slow
@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_turns_no_test_red(tmp_path, walk):
    ignored = UNTOUCHED + ["tests/test_same_bits.py"] * (walk in (RATING, ROLE))
    run(changed(tmp_path, walk), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *[f"--ignore={path}" for path in ignored])


@pytest.mark.slow
def test_small_changes(tmp_path, micro_base):
    """A reward, a matching rule, an operator and an algorithm in one run."""
    copy = changed(tmp_path, "A teacher's reward", "A matching rule", "An operator", "An algorithm")
    path = train(copy, teacher_reward="strings", matching="soft", evolve="sign_flip", algo="positive", evolve_every=1)
    births, metrics = rows(path, "genealogy"), rows(path)
    assert births and all(birth["operator"] == "sign_flip" for birth in births)
    assert metrics[-1]["tokens_trained"] > 0 and all(row["frac_zero_advantage"] >= 0.25 for row in metrics), "one of a group is not above its mean"
    valid = [row for row in rows(path, "tasks") if not row["reason"]]
    assert valid
    for row in valid:
        is_string = row["outputs"][0].startswith(("'", '"'))
        assert row["reward"] == pytest.approx(1 - row["solve_rate"] if is_string and row["solve_rate"] else 0)


@pytest.mark.slow
def test_more_epochs(tmp_path, micro_base):
    """The first of two is the plain step; in the second the policy is not the one that sampled."""
    copy = changed(tmp_path, "More epochs")
    one, two = (rows(train(copy, f"run{n}", steps=1, epochs=n))[0] for n in (1, 2))
    assert one["train_rollout_logprob_diff"] < 1e-5 < two["train_rollout_logprob_diff"]


@pytest.mark.slow
def test_a_rating_system(tmp_path, micro_base):
    """What one player wins the other loses, so the mean of all founders' ratings stays."""
    path = train(changed(tmp_path, RATING))
    for row in rows(path):
        ratings = [member["mu"] for member in row["members"].values()]
        assert sum(ratings) / len(ratings) == pytest.approx(1500) and len(set(ratings)) > 1


@pytest.mark.slow
def test_a_benchmark(tmp_path, micro_base):
    copy = changed(tmp_path, "A benchmark")
    path = train(copy)
    questions = [dict(question=f"out\ndef f(x):\n return x\nf({n})\n", answer=f"={n}") for n in (3, 7)]
    write(copy / "questions.jsonl", questions)
    terminal = run(copy, "-m", "eval.own", "--run", path, "--data", "questions.jsonl")
    answers = rows(path / "eval-own", "answers")
    assert {row["member"][0] for row in answers} == {*"TSb"} and "own" in terminal
    for row in answers:
        assert row["correct"] == (questions[int(row["id"])]["answer"] in row["text"])


@pytest.mark.slow
def test_a_task_type_has_held_out_tasks(tmp_path, micro_base):
    """A line as the page shows it, with the type's own program, is a held-out task of a run that plays another type."""
    copy = changed(tmp_path, "A task type")
    put(copy, "tasks/prompts.py", "at the end", 'TEMPLATES["sortwords"] = replace(TEMPLATES["sortwords"], micro=("propose", "sort\\n{question}\\n"))\n')
    write(copy / "heldout.jsonl", [dict(kind="sortwords", program="def f(words):\n    return sorted(words)", inputs=["['fig', 'date']"], message="fig date")])
    assert rows(train(copy, heldout="heldout.jsonl"))[-1]["unseen_n"] == dict(sortwords=1)


@pytest.mark.slow
def test_a_role(tmp_path, micro_base):
    """Critics are there, are paid, learn, are saved and have children; what the others do stays the same."""
    before = train(changed(tmp_path / "before"), steps=1, evolve_every=1)
    path = train(changed(tmp_path, "A role"), evolve_every=1)
    assert "best C" in (path / "terminal").read_text()
    critics = [m for row in rows(path) for name, m in row["members"].items() if name.startswith("C")]
    assert len(critics) == 4 and {m["role"] for m in critics} == {"critic"}
    assert all(-0.5 <= m["reward"] <= 1 for m in critics) and any(m["grad_norm"] > 0 for m in critics)
    assert any(birth["child"] == "C2" for birth in rows(path, "genealogy"))
    kept = [folder.parent.name[0] for folder in path.glob("step_2/*/adapter_config.json")]
    assert sorted(kept) == [*"CCSSTT"]
    first = [row for row in rows(path, "tasks") if row["step"] == 0]
    assert first == rows(before, "tasks"), "the same draws, with or without critics"
    run(path.parent.parent, "-m", "report", path)
