"""The report on runs of every sort, short, broken off, hostile, large: its page is whole and harmless, its picture true."""
import json
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from invented import HOSTILE, check, invent, made, rewrite, rows

import report
from report import __main__ as command
from report import page as pages
from report import svg, think
from report.forest import forest
from report.run import MemberLog, RunLog

ROOT = Path(report.__file__).parent.parent


def test_a_whole_run_is_told(tmp_path):
    html = made(invent(tmp_path / "demo", steps=12))
    page = check(html)
    for words in ("demo", "all 12 steps done", "2 teachers and 2 students", "frozen base", "Genealogy",
                  "dare of T1 and T1, in place of T0", "norm of its update to its parents': 0.950",
                  "structures", "∅ malformed", "2 × ✗ wrong", "Solve rate by type of task", "nobody solves",
                  "Word problems, never trained on"):
        assert words in page.text, words
    assert "Absent" not in page.text and "About the logs" not in page.text
    assert {"T0", "S1"} <= {v for tag, k, v in page.attributes if k in ("data-teacher", "data-students")}
    places = [html.index(part) for part in ("<h1>", 'class="lead"', "<nav>", 'class="words"', 'id="thinking"', 'id="progress"')]
    assert places == sorted(places) and page.tags.count("h2") >= 8
    assert set(re.findall('href="#([a-z]+)"', html)) == set(re.findall('section id="([a-z]+)"', html))


def test_the_result_in_one_sentence_and_four_numbers(tmp_path):
    path = invent(tmp_path / "run", steps=6)
    some = rows(path / "metrics.jsonl")
    for row, greedy, words in ((some[0], .26, .06), (some[5], .74, .678)):
        names = [name for name, m in row["members"].items() if m["role"] == "student"]
        row["heldout_greedy"] = dict.fromkeys(names, greedy)
        row["unseen"] = dict(math=dict.fromkeys(names, words) | dict(base=.5))
    some[0]["base_solve"], some[5]["base_solve"] = .71, 1
    rewrite(path / "metrics.jsonl", some)
    run = RunLog(path)
    assert think.result(run) == "Students went from <b>.26 to .74</b> on held-out tasks; never trained on: word problems .06 to .68."
    assert re.findall("<b>(.*?)</b>", think.numbers(run)) == [".26 → .74", ".06 → .68", ".50 → .50", ".71 → 1.00"]


def test_alarms_and_escapes_are_told(tmp_path):
    path = invent(tmp_path / "run", steps=8, every=0)
    assert "No monitor gave alarm" in check(made(path)).text
    some = rows(path / "metrics.jsonl")
    for step in (2, 3, 5):
        some[step]["alarms"] = dict(collapse=f"like eggs, said at {step} <b>")
    some[4]["members"]["S1"]["escapes"] = 3
    rewrite(path / "metrics.jsonl", some)
    page = check(made(path))
    assert [entry[:3] for entry in pages.alarms(RunLog(path))] == [["collapse", 2, 3], ["collapse", 5, 5]]
    for words in ("like eggs, said at 2 <b>", "like eggs, said at 5", "such as imports: S1 3."):
        assert words in page.text, words
    assert "said at 3" not in page.text


@pytest.mark.parametrize("steps, words", [(0, "No step is finished yet."), (1, "no before and after"), (2, "all 2 steps done")])
def test_short_runs(tmp_path, steps, words):
    assert words in check(made(invent(tmp_path / "run", steps=steps, every=0))).text


def test_single(tmp_path):
    page = check(made(invent(tmp_path / "run", pop=2, every=0, single=True)))
    assert "One adapter in both roles" in page.text and "Nobody was replaced." in page.text


def test_a_run_killed_half_way(tmp_path):
    path = invent(tmp_path / "run", steps=6)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | dict(steps=40)))
    for name in ("metrics", "tasks"):
        data = (path / f"{name}.jsonl").read_bytes()
        (path / f"{name}.jsonl").write_bytes(b'[1]\n{"no": "step"}\n\n' + data[:-50])
    page = check(made(path))
    assert "5 of 40 steps done" in page.text
    assert "3 lines of metrics.jsonl skipped" in page.text and "3 lines of tasks.jsonl skipped" in page.text


def test_missing_files_are_said(tmp_path):
    path = invent(tmp_path / "run")
    for name in ("tasks.jsonl", "env.json", "genealogy.jsonl"):
        (path / name).unlink()
    (path / "config.json").write_bytes(b"{\xff")
    page = check(made(path))
    for words in ("tasks.jsonl is not there", "env.json could not be read",
                  "config.json could not be read", "did not write its defaults", "Absent: no proposal can be read"):
        assert words in page.text, words


def test_logs_of_another_version(tmp_path):
    path = invent(tmp_path / "run")
    for name, kept in (("metrics", ("step", "valid", "n", "reasons")), ("tasks", ("step", "reason"))):
        some = rows(path / f"{name}.jsonl")
        rewrite(path / f"{name}.jsonl", [{key: row[key] for key in kept} for row in some])
    rewrite(path / "matches.jsonl", [{"step": 0}])
    rewrite(path / "genealogy.jsonl", [{"step": 0}])
    page = check(made(path))
    assert page.text.count("Absent: this run did not log it.") > 8
    rewrite(path / "metrics.jsonl", [{"step": 3}])
    check(made(path))


@pytest.mark.parametrize("name, key", [("metrics.jsonl", "coverage"), ("config.json", "max_new")])
def test_a_run_with_former_names_is_refused(tmp_path, name, key):
    """One sentence, code 2, no page; also where it is one of several."""
    path, good = invent(tmp_path / "old"), invent(tmp_path / "good")
    *lines, last = (path / name).read_text().splitlines()
    (path / name).write_text("\n".join([*lines, json.dumps(json.loads(last) | {key: 1})]))
    for words in ([path], [good, "--compare", path], [path, "--picture", tmp_path / "a.svg"]):
        bad = call_report(*words)
        assert bad.returncode == 2 and bad.stderr == (
            f"report: {path} was written before the flags and measures got their present names: "
            "draw it with the commit in its env.json\n")
    assert not list(tmp_path.rglob("*.html")) and not (tmp_path / "a.svg").exists()


def poison(value, bad: str):
    """The same with every text, and every key that is a name, turned into `bad`."""
    if isinstance(value, dict):
        names = r"[TS]\d+|code_\w|duplicate|syntax|propose"
        return {bad + k if re.fullmatch(names, k) else k: poison(v, bad) for k, v in value.items()}
    if isinstance(value, list):
        return [poison(v, bad) for v in value]
    return bad if isinstance(value, str) and value not in ("", "teacher", "student") else value


def test_hostile_texts_everywhere(tmp_path):
    path = invent(tmp_path / "<b>run&", steps=len(HOSTILE), text=HOSTILE[0], every=2)
    for name in ("metrics", "tasks", "matches", "genealogy"):
        some = rows(path / f"{name}.jsonl")
        rewrite(path / f"{name}.jsonl", [poison(row, HOSTILE[row["step"]]) for row in some])
    for name in ("config.json", "env.json"):
        poisoned = poison(json.loads((path / name).read_text()), HOSTILE[0])
        (path / name).write_text(json.dumps(poisoned | {k: i for i, k in enumerate(HOSTILE)}))
    html = made(path, path)
    page = check(html)
    assert "<b>run&" in page.text                                   # as text
    for seen in ("⟨U+202E⟩gnp.exe", "⟨U+0000⟩⟨U+001B⟩[2J", "⟨U+D800⟩", "⟨U+2028⟩",
                 "a⟨U+200B⟩b⟨U+FEFF⟩", "more characters]", "</script><script>alert(1)</script>"):
        assert seen in page.text, seen
    assert not any("alert" in s for s in page.scripts)


VALUES = [None, math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, "text", [], {}, [1, "a"], {"a": None},
          True, -1, 0, "</script>"]


@pytest.mark.parametrize("seed", range(8))
def test_any_value_anywhere(tmp_path, seed):
    """A quarter of the lines has values replaced by ones that do not belong there: the page stays whole."""
    path, rng = invent(tmp_path / "run", every=2), random.Random(seed)

    def spoil(value):
        if rng.random() < 0.06:
            return rng.choice(VALUES)
        if isinstance(value, dict):
            return {k: spoil(v) for k, v in value.items() if rng.random() > 0.01}
        return [spoil(v) for v in value] if isinstance(value, list) else value
    for name in ("metrics", "tasks", "matches", "genealogy"):
        rewrite(path / f"{name}.jsonl", [spoil(row) for row in rows(path / f"{name}.jsonl")])
    for name in ("config.json", "env.json"):
        (path / name).write_text(json.dumps(spoil(json.loads((path / name).read_text()))))
    check(made(path, path))


def test_compare(tmp_path):
    first, second = invent(tmp_path / "full", steps=8), invent(tmp_path / "other", steps=8, dedupe="off")
    page = check(made(first, second))
    for words in ("The budgets agree within 5%.", "dedupe off", "8,000", "Students on math, never trained on"):
        assert words in page.text
    assert "The budgets are not the same" in check(made(first, invent(tmp_path / "short", steps=4))).text


def test_a_large_run_is_quick_and_small(tmp_path):
    path = invent(tmp_path / "large", steps=100, pop=16, per_step=24, every=10, text="some words " * 20)
    size, start = sum(f.stat().st_size for f in path.iterdir()), time.process_time()
    html = made(path)
    seconds = time.process_time() - start
    page = check(html)
    assert seconds < 10, f"{seconds:.1f} s for {size / 1e6:.0f} MB of logs"
    steps = [int(v) for _, k, v in page.attributes if k == "data-step"]
    assert len(set(steps)) == 100 and steps == sorted(steps), "every step is in the sample"
    reasons = [v for _, k, v in page.attributes if k == "data-reason"]
    assert 0.15 < sum(map(bool, reasons)) / len(reasons) < 0.4


def test_what_differs_from_the_defaults(tmp_path):
    """By what train.py wrote into the run; what it implies, such as the cap on a GPU, is no difference."""
    config = pytest.importorskip("config")
    from run.platform import defaults
    for prompt_format in config.PRESETS:
        for device, cap in (("cpu", 0.0), ("cuda", 2.0)):
            given = config.Config(pop=6, lr=0.5, task_types="code_o")
            settled = vars(config.resolve_config(given, prompt_format, device))
            usual = defaults(config.resolve_config(given, prompt_format, device), device)
            assert usual["importance_cap"][0] == cap and list(usual) == list(settled)
            differing = {name for name, (default, _) in usual.items() if default != settled[name]}
            assert differing - {"task_types"} == {"pop", "lr"}
    path = invent(tmp_path / "run", dedupe="off")
    differing = pages.setup(RunLog(path)).split("<details>")[0]
    assert "<td>off</td><td>structural</td>" in differing and "<code>seed</code>" not in differing


def call_report(*words) -> subprocess.CompletedProcess:
    """python -m report with these words, by Python alone."""
    return subprocess.run([sys.executable, "-S", "-m", "report", *map(str, words)], capture_output=True,
                          text=True, cwd=ROOT)


def test_command_line(tmp_path):
    """Nothing but Python is needed; bad input ends in one sentence and code 2."""
    done = call_report(invent(tmp_path / "run"), "--out", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    check((tmp_path / "a.html").read_text(encoding="utf-8"))
    (tmp_path / "empty").mkdir()
    for words, said in (([tmp_path / "none"], "no such directory"), ([tmp_path / "empty"], "is no run"),
                        ([tmp_path / "run", "--compare", tmp_path / "empty"], "is no run"),
                        ([tmp_path / "run", "--out", tmp_path], "name of a file"),
                        ([tmp_path / "run", "--out", tmp_path / "no" / "a.html"], "directory that exists"),
                        ([tmp_path / "a.html"], "no such directory")):
        bad = call_report(*words)
        assert bad.returncode == 2 and said in bad.stderr and bad.stderr.count("\n") == 1, (words, bad.stderr)


def test_a_real_run(tmp_path, micro_base):
    """What train.py writes today is what is read here: nothing is absent that a run of two steps can have."""
    train, config = pytest.importorskip("train"), pytest.importorskip("config")
    cfg = config.Config(base=str(micro_base), out=str(tmp_path), name="run", steps=2, pop=4, n_prompts=1,
                        proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=2,
                        evolve_every=1, probe_every=1, grace=0)
    run = train.main(cfg)
    page = check(made(run.path))
    assert "Absent" not in page.text and "About the logs" not in page.text and "all 2 steps done" in page.text
    assert "did not write its defaults" not in page.text


def test_charts_bear_any_numbers():
    def line(*points, **more) -> svg.Line:
        return svg.Line("a", list(points), "t0", **more)
    for lines in ([], [line()], [line((0, None))], [line((0, 1.0))], [line((5, 3.0), (5, 3.0))],
                  [line((0, 1e14), (9, -1e14))], [line((0, 1e-300), (1, 0.0))],
                  [line((0, 0.0), (10**8, 0.0))],
                  [line((0, 2.0), (1, 3.0), band=[(0, -1e14, 1e14), (1, 2.0, None)])]):
        check_svg = svg.line_chart("x", lines)
        assert not re.search(r"nan|inf", check_svg, re.I)
        assert bool(check_svg) == any(None not in p for a in lines for p in a.points)
    assert svg.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0]) and svg.ticks(3, 3) == [3]
    labels = svg.spread([(50.0, str(i), "t0") for i in range(40)])
    assert all(b[0] - a[0] >= 11 for a, b in zip(labels, labels[1:])) and labels[-1][0] <= svg.H
    assert [svg.short(v) for v in (0, 0.38, 5582, 34000, 1.25e6, -0.5, 12.345)] == \
        ["0", "0.38", "5,582", "34k", "1.25M", "-0.5", "12.3"]
    assert [svg.short(v) for v in (0.003, 0.005, 0.465, 999.7, 999_600)] == ["0.003", "0.005", "0.465", "1,000", "1M"]


def test_the_last_step_stands_on_the_axis():
    chart = svg.line_chart("x", [svg.Line("a", [(0, 0.5), (73, 0.6)], "t0")])
    assert re.findall('class="tick"[^>]*>([^<]*)<', chart) == ["0", "20", "40", "60", "73"]


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
        for key in ("heldout_sampled", "heldout_greedy", "heldout_think"):
            row[key] = {name: share / 2 for name, share in alive.items()} if step % 2 == 0 else {}
    rewrite(path / "metrics.jsonl", some)
    births = [b for b in rows(path / "genealogy.jsonl") if b["child"].startswith("T")]
    births += [dict(step=5, child="S2", operator="dare", parents=[dict(name="S1"), dict(name="S0")],
                    victim=dict(name="S0")),
               dict(step=8, child="S3", operator="mask", parents=[dict(name="S2")], victim=dict(name="S1"))]
    rewrite(path / "genealogy.jsonl", births)
    return path


def test_lines_begin_and_end_with_lives(tmp_path):
    """A child's line begins a step after its victim's ended, and dots lead to it from its parents."""
    run = RunLog(thinking_run(tmp_path / "run"))
    values = {m.name: m.points("think") for m in run.those("student")}
    lines = {line.name: line for line in think.students(run, values, {})}
    assert {name: (line.born, line.died) for name, line in lines.items()} == dict(
        S0=(False, True), S1=(False, True), S2=(True, False), S3=(True, False))
    assert {name: line.origins for name, line in lines.items()} == dict(
        S0=[], S1=[], S2=[(5, 0.9), (5, 0.1)], S3=[(8, 0.8)])
    assert [lines[name].color for name in ("S0", "S1", "S2", "S3")] == ["base", "m0", "m2", "m1"]
    assert think.first_and_all(run) == "First to think: S1, at step 4. At the end 1 of 2 students think."


def test_fates():
    """Discovered, inherited, lost, never: from shares of attempts, the threshold one half."""
    def fate(own: list, theirs: list | None = None, n: int = 9) -> str:
        run = RunLog.__new__(RunLog)
        birth = dict(step=n, parents=[dict(name="S0")]) if theirs else None
        run.members = dict(S9=student(10, own, birth), S0=student(0, theirs or [], None))
        return think.fate(run, run.members["S9"])

    def student(first: int, shares: list, birth: dict | None) -> MemberLog:
        life = [(first + i, dict(think=share)) for i, share in enumerate(shares)]
        return MemberLog("S", "student", "s0", "", birth, life)
    low, high = [0.1] * 5, [0.9] * 5
    assert [fate(low + high), fate(high), fate(low)] == ["discovered", "discovered", "never"]
    assert [fate(high, low + high), fate(low, low + high)] == ["inherited", "lost"]
    assert fate(high, low + high, n=4) == "discovered"              # its parent learned it later
    assert think.since(list(enumerate(low + high))) == 5            # .1 .1 .9 is less than half on average


def test_curves_ask_the_same_tasks_at_every_probe(tmp_path):
    """Where the first and the last probe asked more, the picture shows their share of it; the numbers do not."""
    path = invent(tmp_path / "run", steps=6)
    some = rows(path / "metrics.jsonl")
    for row in (some[0], some[5]):
        row["part"] = dict(heldout_greedy=dict.fromkeys(row["heldout_greedy"], .125), heldout_n=10)
    rewrite(path / "metrics.jsonl", some)
    run = RunLog(path)
    same = run.on_same_tasks()
    assert same.mean("student", ("heldout_greedy",))[0] == (0, .125) != run.mean("student", ("heldout_greedy",))[0]
    assert same.points("heldout_n")[5] == (5, 10) and run.points("heldout_n")[5] == (5, 50)
    (_, low, high), = think.interval([(3, .5)], {3: 100})
    assert (low, high) == pytest.approx((.4038, .5962), abs=1e-3)


LOST = {"think": think.THINKS, "heldout_greedy": think.PLAYED, "unseen": "Types never trained on"}


@pytest.mark.parametrize("keys", [("think",), ("unseen", "unseen_think"), ("heldout_greedy", "heldout_greedy_base"),
                                  ("think", "unseen", "heldout_greedy", "heldout_greedy_base")], ids="+".join)
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
    if set(LOST) <= set(keys):
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
    assert heads == [think.PLAYED, think.THINKS, "Word problems, never trained on", "Logic puzzles, never trained on"]
    assert [len(drawn.findall(f".//*[@class='{mark}']")) for mark in ("birth", "death", "hit")] == [4, 4, 0]
    assert not drawn.findall(".//{*}title") and out.stat().st_size < 30_000
    assert not (path / "report.html").exists()
    words = " ".join(drawn.itertext())
    for word in ("prefers-color-scheme:dark", "discovered it", "lost it", "never thought"):
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
    for words in (["--out", "x.html"], ["--compare", str(path)]):
        with pytest.raises(ValueError, match="leave out"):
            command.main([str(path), "--picture", str(out), *words])
    with pytest.raises(ValueError, match="--picture .* name of a file"):
        command.main([str(path), "--picture", str(tmp_path)])


def test_a_forest_plot():
    lines = [dict(name="full - pair", difference=-.1, interval=(-.2, -.05), verdict="behind"),
             dict(name="evolution", difference=None, interval=None, verdict="untested")]
    drawn = ElementTree.fromstring(forest("Areas", [("equal tokens", lines)], "difference", .05, "144 runs"))
    words = " ".join(drawn.itertext())
    assert all(word in words for word in ("8 adapters against 1 pair, equal tokens", "worse", "untested", "144 runs", "-0.100 (-0.200 .. -0.050)"))
    assert len(drawn.findall(".//{*}circle")) == 1
