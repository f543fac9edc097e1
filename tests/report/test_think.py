"""The picture that opens the page: who discovers thinking, inherits or loses it; and the course's curves."""
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import report
from invented import check, invent, made, rewrite, rows
from report import __main__ as command, think
from report.run import MemberLog, RunLog

ROOT = Path(report.__file__).parent.parent


def thinking_run(path: Path) -> Path:
    """Twelve steps, two students at a time: S1 discovers thinking at step 4; S2 (born after 5, in place of
    S0) inherits it from S1; S3 (after 8, in place of S1) loses it."""
    invent(path, steps=12, pop=4, every=3)
    lives = dict(S0=range(0, 6), S1=range(0, 9), S2=range(6, 12), S3=range(9, 12))
    some = rows(path / "metrics.jsonl")
    for row in some:
        step = row["step"]
        thinks = dict(S0=0.1, S1=0.9 if step >= 4 else 0.2, S2=0.8, S3=0.1)
        student = row["members"]["T0" if step < 3 else next(iter(row["members"]))] | dict(role="student")
        row["members"] = {name: m for name, m in row["members"].items() if m["role"] == "teacher"}
        alive = {name: thinks[name] for name, life in lives.items() if step in life}
        row["members"] |= {name: student | dict(think=share) for name, share in alive.items()}
        for key in ("anchors_sampled", "anchors_greedy", "anchors_think"):
            row[key] = {name: share / 2 for name, share in alive.items()} if step % 2 == 0 else {}
    rewrite(path / "metrics.jsonl", some)
    births = [b for b in rows(path / "genealogy.jsonl") if b["child"].startswith("T")]
    births += [dict(step=5, child="S2", operator="dare", parents=[dict(name="S1"), dict(name="S0")],
                    victim=dict(name="S0")),
               dict(step=8, child="S3", operator="mask", parents=[dict(name="S2")], victim=dict(name="S1"))]
    rewrite(path / "genealogy.jsonl", births)
    return path


def test_the_page_opens_with_the_picture(tmp_path):
    path = thinking_run(tmp_path / "run")
    html = made(path)
    page = check(html)
    places = [html.index(part) for part in ("<h1>", 'id="thinking"', 'id="words"', "<nav>", 'id="absolute"')]
    assert places == sorted(places) and 'href="#thinking"' in html
    for words in ("First to think: S1, at step 4. At the end 1 of 2 students think.",
                  "S2 = dare(S1, S0)", "S2, dare of S1 and S0, in place of S0 after step 5", "S3 = mask(S2)",
                  "discovered it at step 4", "Not played: word problems", "Not played: logic puzzles",
                  "at the last probe: 0.012", "share of the students' attempts that think",
                  "the students' accuracy on word problems, which nobody played",
                  "Length of each student's reasoning", "Thinking on the anchors, greedy"):
        assert words in page.text, words
    drawing = html.split('aria-label="share of the students&#x27; attempts that think"')[1].split("</svg>")[0]
    assert [drawing.count(f'class="{mark}"') for mark in ("birth", "death", "descent")] == [2, 2, 3]
    assert len(re.findall('<g class="line ', drawing)) == 4


def test_lines_begin_and_end_with_lives(tmp_path):
    """A child's line begins a step after its victim's ended, and dots lead to it from its parents."""
    run = RunLog(thinking_run(tmp_path / "run"))
    values = {m.name: m.points("think") for m in run.those("student")}
    lines = {line.name: line for line in think.students(run, values, worded=True)}
    steps = {name: [step for step, share in line.points if share is not None] for name, line in lines.items()}
    assert (steps["S0"][-1], steps["S2"][0], steps["S1"][-1], steps["S3"][0]) == (5, 6, 8, 9)
    assert {name: (line.born, line.died) for name, line in lines.items()} == dict(
        S0=(False, True), S1=(False, True), S2=(True, False), S3=(True, False))
    assert {name: line.origins for name, line in lines.items()} == dict(
        S0=[], S1=[], S2=[(5, 0.9), (5, 0.1)], S3=[(8, 0.8)])
    assert [lines[name].color for name in ("S0", "S1", "S2", "S3")] == ["base", "m0", "m2", "m1"]


def test_fates():
    """Discovered, inherited, lost, found again, given up: from shares of attempts, the threshold one half."""
    def fate(own: list, theirs: list | None = None, n: int = 9) -> str:
        run = RunLog.__new__(RunLog)
        birth = dict(step=n, parents=[dict(name="S0")]) if theirs else None
        run.members = dict(S9=student(10, own, birth), S0=student(0, theirs or [], None))
        return think.thinker(run, run.members["S9"]).told()

    def student(first: int, shares: list, birth: dict | None) -> MemberLog:
        life = [(first + i, dict(think=share)) for i, share in enumerate(shares)]
        return MemberLog("S", "student", "s0", "", birth, life)
    low, high = [0.1] * 5, [0.9] * 5
    assert fate(low + high) == "discovered it at step 15"           # .1 .1 .9 is less than half on average
    assert fate(high) == "thought from its first step" and fate(low) == "never thought"
    assert fate(high + low) == "thought from its first step, gave it up"
    assert fate(high, low + high) == "inherited it" and fate(low, low + high) == "lost it"
    assert fate(low + high, low + high) == "lost it, found it again at step 15"
    assert fate(high, low + high, n=4) == "thought from its first step"         # its parent learned it later
    assert fate([0.9]) == fate([0.5, None, 0.5]) == "thought from its first step"
    assert fate(high + low, high) == "inherited it, gave it up"


def test_all_think_from_a_step_on():
    def made_of(name, since, without, now, alive=True):
        student = MemberLog(name, "student", "s0", "", died=not alive)
        return think.Thinker(student, "never", 0, since, without, now)
    told = think.first_and_all
    assert told([]) == "" and told([made_of("S0", None, 9, 0.1)]) == "No student has discovered thinking."
    both = [made_of("S0", 7, 6, 0.9), made_of("S1", 4, 3, 0.9)]
    assert told(both) == "First to think: S1, at step 4. All students think from step 7 on."
    dead = made_of("S2", None, 11, 0.1, alive=False)                # a child that lost it, replaced after 11
    assert told([*both, dead]).endswith("All students think from step 12 on.")
    assert told([*both, made_of("S3", None, 15, 0.2)]).endswith("At the end 2 of 3 students think.")


def test_the_bundled_base_is_said_to_be_made_so(tmp_path):
    """One sentence, under the picture and in the foot, on runs where it is true; else there is no foot."""
    assert think.HABIT.count(".") == 1
    def said(path: Path) -> int:
        return check(made(path)).text.count(think.HABIT)
    assert said(invent(tmp_path / "a")) == said(invent(tmp_path / "b", base="/home/x/micro/base")) == 2
    assert said(invent(tmp_path / "c", base="Qwen/Qwen2.5-Coder-7B", prompt_format="base")) == 0
    assert said(invent(tmp_path / "d", base="micro/phase1")) == 0
    assert said(invent(tmp_path / "e", prompt_format="direct")) == 0
    old = invent(tmp_path / "f")
    some = rows(old / "metrics.jsonl")
    for row in some:
        del row["think"]
    rewrite(old / "metrics.jsonl", some)
    assert said(old) == 0 and "<footer>" not in made(old)


NEW = ("think", "heldout", "heldout_think", "anchors_think", "anchors_greedy_se", "anchors_greedy",
       "anchors_greedy_base", "response_tokens", "reasoning_chars")
LOST = {"think": "Share of attempts that think", "anchors_greedy": "Greedy accuracy on held-out anchor tasks",
        "heldout": "Kinds that nobody played"}


@pytest.mark.parametrize("keys", [*((key,) for key in NEW), NEW], ids="+".join)
def test_what_older_runs_did_not_log_is_absent(tmp_path, keys):
    path = thinking_run(tmp_path / "run")
    some = rows(path / "metrics.jsonl")
    for row in some:
        for part in (row, *row["members"].values()):
            for key in keys:
                part.pop(key, None)
    rewrite(path / "metrics.jsonl", some)
    page = check(made(path))
    for key, lost in LOST.items():
        assert (f"{lost} Absent: this run did not log it." in page.text) == (key in keys), key
    if "anchors_greedy" in keys and "think" in keys:
        with pytest.raises(ValueError, match="nothing to draw"):
            think.picture(RunLog(path))
    else:
        ElementTree.fromstring(think.picture(RunLog(path)))


def test_the_picture_as_a_file(tmp_path):
    """Well-formed, small, for light and dark, without tooltips; a panel for each thing that was logged."""
    path, out = thinking_run(tmp_path / "run"), tmp_path / "demo.svg"
    command.main([str(path), "--picture", str(out)])
    drawn = ElementTree.parse(out).getroot()
    heads = [node.text for node in drawn.findall(".//{*}text") if node.get("class") == "head"]
    assert heads == ["Greedy accuracy on held-out anchor tasks", "Share of attempts that think",
                     "Not played: word problems", "Not played: logic puzzles"]
    assert [len(drawn.findall(f".//*[@class='{mark}']")) for mark in ("birth", "death", "hit")] == [4, 4, 0]
    assert not drawn.findall(".//{*}title") and out.stat().st_size < 30_000
    assert not (path / "report.html").exists()
    words = " ".join(drawn.itertext())
    for word in ("prefers-color-scheme:dark", "S3 = mask(S2)", "discovered it", "lost it", "never thought"):
        assert word in words, word
    width = float(drawn.get("viewBox").split()[2])
    assert 700 < width < 820, "letters of 11 units are to be read at a width of 800"
    large = invent(tmp_path / "large", steps=200, pop=32, per_step=1, every=10)
    assert len(think.picture(RunLog(large)).encode()) < 60_000
    hostile = invent(tmp_path / "hostile", every=2)
    for name in ("metrics", "genealogy"):
        data = (hostile / f"{name}.jsonl").read_text()
        data = data.replace('"S1"', '"</svg><script>"').replace('"math"', '"a&<b>\\ud800"')
        (hostile / f"{name}.jsonl").write_text(data)
    drawn = ElementTree.fromstring(think.picture(RunLog(hostile)))
    assert not drawn.findall(".//{*}script") and "</svg><script>" in " ".join(drawn.itertext())
    for words in (["--watch", "3"], ["--out", "x.html"], ["--compare", str(path)]):
        with pytest.raises(ValueError, match="leave out"):
            command.main([str(path), "--picture", str(out), *words])
    with pytest.raises(ValueError, match="--picture .* name of a file"):
        command.main([str(path), "--picture", str(tmp_path)])


def test_curves_of_the_course(tmp_path):
    """course/picture.py draws the same measures, and says which of them a run lacks."""
    script, run = ROOT / "course" / "picture.py", thinking_run(tmp_path / "run")

    def call(*words):
        return subprocess.run([sys.executable, script, *map(str, words)], capture_output=True, text=True)
    done = call("think,tokens,transfer,control,anchors,valid", run, "--out", tmp_path / "a.svg")
    assert done.returncode == 0, done.stderr
    drawn = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert len(drawn.findall(".//{*}path[@class='stroke']")) == 6
    assert (tmp_path / "a.svg").stat().st_size < 30_000
    bad = call("inputs", run, "--out", tmp_path / "b.svg")
    assert bad.returncode == 2 and "inputs: none of these runs logged it" in bad.stderr
    assert not (tmp_path / "b.svg").exists()
