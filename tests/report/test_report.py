"""The report on runs of every sort, real, short, broken off, hostile, large: its page is whole and harmless and true."""
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tiny_run import ROOT, SIZES, play, python, rows, write

from common import UserError
from report import RunLog, draw, page
from report.__main__ import main

HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(1)> \"><b onclick='x'> ' onmouseover='x \u202egnp.exe \x00\x1b[2J\x07 " \
    "\ud800 \u2028 &lt;b&gt; </style></title></details></pre> <!-- ]]> $name {0}%s" + 9000 * "x"
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff\ud800-\udfff]")


def invent(path: Path, steps: int = 6, text: str = "", gain: float = 1.0, **flags) -> Path:
    """A run's directory. Every second step has a probe, in which accuracy is gain x step / 10; T2 takes T0's place after step 2."""
    path.mkdir(parents=True)
    metrics, tasks = [], []
    for step in range(steps):
        measures = dict.fromkeys("reward think entropy cosine lr solve_rate statements".split(), 0.5) | dict(mu=25.0 + step, sigma=8.0)
        names = ["T0" if step < 3 else "T2", "T1", "S0", "S1"]
        row = dict(step=step, n=4, valid=0.5, reasons=dict(syntax=2), solve_rate=0.5, solve_0=0.2, solve_1=0.3, think=0.1,
                   beats_guessing=0.8, members={name: measures | dict(role=dict(T="teacher", S="student")[name[0]]) for name in names},
                   task_types=dict(code_o=dict(solve_rate=0.5)), alarms={}, unique_structures=50, tokens_generated=1000 * (step + 1),
                   seconds=dict(solve=60.0))
        if step % 2 == 0:
            known = dict.fromkeys([*names, "base"], gain * min(step, 9) / 10)
            row |= dict(heldout_greedy=dict(S0=known["S0"], S1=known["S1"]), heldout_greedy_base=0.3, heldout_n=100, base_solve=0.71,
                        unseen=dict(math=known), unseen_think=dict(math=known), unseen_n=dict(math=9))
        metrics.append(row)
        about = dict(step=step, teacher="T1", kind="code_o", reward=0.5)
        tasks.append(about | dict(reason="syntax", text=f"def f(x: {text}"))
        tasks.append(about | dict(reason="", program=f"def f(x): return x # {text}", inputs=["1"], outputs=["2"], message=text, solve_rate=0.5,
                                  attempts=dict(S0=["correct", "wrong", "wrong"]), answers=dict(S0=["2", f"3 {text}", f"3 {text}"])))
    birth = dict(step=2, child="T2", operator="dare", norm_ratio=0.95, parents=[dict(name="T1"), dict(name="T0")], victim=dict(name="T0"))
    for log, lines in dict(metrics=metrics, tasks=tasks, genealogy=[birth] * (steps > 3)).items():
        write(path / f"{log}.jsonl", lines)
    config = dict(base="micro/base", name=path.name, out="out", seed=0, steps=steps, pop=4, single=False) | flags
    (path / "config.json").write_text(json.dumps(config))
    (path / "env.json").write_text(json.dumps(dict(commit="abc")))
    return path


def check(html: str) -> str:
    """A page's text. It has one script, which is ours, nothing from outside, and drawings whose numbers are finite."""
    script = f"<script>{(ROOT / 'report' / 'page.js').read_text()}</script>"
    assert html.count("<script") == html.count(script) == 1
    assert not INVISIBLE.search(html) and "url(" not in html
    # as XML, whose parser forgives nothing
    closed = re.sub("<((meta|br|input)( [^>]*)?)>", r"<\1/>", html.replace(script, ""))
    tree = ElementTree.fromstring(closed.removeprefix("<!doctype html>"))
    for node in tree.iter():
        for name, value in node.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "formaction"), (name, value)
            assert name != "href" or re.fullmatch("#[a-z]+", value), value
            if name in ("d", "x", "y", "cx", "cy"):
                numbers = re.findall(r"[-+]?[\w.]+", re.sub("[MLHZlm%]", " ", value))
                assert all(math.isfinite(float(number)) for number in numbers), (name, value)
    return " ".join(tree.itertext())


def made(*paths: Path) -> str:
    """The text of the page of these runs, which is whole and harmless."""
    return check(page.page([RunLog(path) for path in paths]))


def test_a_whole_run_is_told(tmp_path):
    path = invent(tmp_path / "demo")
    lines = rows(path)
    for step in (2, 3, 5):
        lines[step]["alarms"] = dict(collapse=f"like eggs, said at {step} <b>")
    write(path / "metrics.jsonl", lines)
    text = made(path)
    for words in ("Students went from .00 to .40 on held-out tasks; never trained on: word problems .00 to .40.", "6 of 6 steps of 4 members",
                  ".71 → .71", "dare of T1 and T0, in place of T0", "0.95", "2 × wrong", "1 births", "30 ± 8", "6.0 minutes",
                  "said at 2 <b>", "said at 5 <b>"):
        assert words in " ".join(text.split()), words
    assert "said at 3" not in text, "an alarm is told where it begins"
    assert "Absent" not in text


def test_each_curve_has_its_numbers(tmp_path):
    run = RunLog(invent(tmp_path / "run"))
    heldout = page.panels(run)["Held-out tasks of the type that is played"]
    assert [line.name for line in heldout] == ["S0", "S1", "mean", "base"]
    assert [value for _, value in heldout[2].points] == pytest.approx([0, 0.2, 0.4]) and len(heldout[2].band) == 3
    drawn = page.progress(run)
    assert [line.name for line in drawn["useless"]] == ["nobody solves", "all solve", "duplicates"]
    assert [line.points[0][1] for line in drawn["refused"]] == [0.5, 0.5], "2 of 4 refused, 2 of 4 valid"
    assert not any(line.band for line in drawn["teachers_mu"]), "sigma stands in the table and hides nothing"
    lives = {line.name: line for line in drawn["family"]}
    assert lives["T0"].died and lives["T2"].born
    assert lives["T2"].points == [(3, 0), (5, 0)], "in the lane of T0, whom it replaced"
    assert lives["T1 to T2"].points == [(2, -1), (3, 0)]


def test_short_runs(tmp_path):
    assert "Absent" in made(invent(tmp_path / "none", steps=0))
    assert "no before and after" in made(invent(tmp_path / "one", steps=1))
    assert "4 of 4 steps of one adapter in both roles" in made(invent(tmp_path / "four", steps=4, single=True))


def test_a_run_killed_half_way(tmp_path):
    path = invent(tmp_path / "run")
    for name in ("metrics", "tasks"):
        data = (path / f"{name}.jsonl").read_bytes()
        (path / f"{name}.jsonl").write_bytes(data[:-50])
    (path / "genealogy.jsonl").unlink()
    assert "5 of 6 steps" in made(path)


def test_command_line(tmp_path):
    """Nothing but Python is needed; bad input ends in one sentence and without a page."""
    good = invent(tmp_path / "run")
    for words, code, said in (([tmp_path], 2, "is no run's directory: give out/NAME"), ([good, "--out", tmp_path / "no" / "a.html"], 1, "No such file"),
                              ([good], 0, "")):
        done = python("-S", "-m", "report", *words)
        assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == bool(code), (words, done.stderr)
    check((good / "report.html").read_text(encoding="utf-8"))


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    path = invent(tmp_path / "<b>run&", text=HOSTILE)
    text = made(path, path)
    for seen in ("<b>run&", "<U+202E>gnp.exe", "<U+0000><U+001B>[2J", "<U+D800>", "<U+2028>", "</script><script>alert(1)</script>", "$name {0}"):
        assert seen in text, seen                               # as text


def test_several_runs(tmp_path):
    text = made(invent(tmp_path / "full"), invent(tmp_path / "other", dedupe="off"))
    assert "dedupe off" in text and "6,000" in text and "Students on word problems, never trained on" in text


def test_an_ablation(tmp_path):
    """Bands go from the lowest to the highest seed; of several runs of a seed their mean counts."""
    results = [dict(arm="full", seed=0, run="a"), dict(arm="full", seed=1, run="b"), dict(arm="two", seed=0, run="c"), dict(arm="two", seed=0, run="d")]
    for row, gain in zip(results, (2.0, 1.0, 1.0, 0.5)):
        invent(tmp_path / row["run"], gain=gain)
    write(tmp_path / "results.jsonl", results)
    (tmp_path / "table.txt").write_text("arm difference\ntwo +0.450 <b>\n")
    full, two = page.arms_of(tmp_path)
    # a probe comes before its step's own tokens: steps 0, 2 and 4 of six that spend the same
    assert [number for point in full.points for number in point] == pytest.approx([0, 0, 100 / 3, 0.3, 200 / 3, 0.6])
    assert full.band[-1][1:] == pytest.approx((0.4, 0.8)) and two.band[-1][1:] == pytest.approx((0.3, 0.3))
    main([str(tmp_path)])
    assert "+0.450 <b>" in check((tmp_path / "report.html").read_text(encoding="utf-8"))
    for words in ([str(tmp_path / "a")], ["--picture", str(tmp_path / "a.svg")]):
        with pytest.raises(UserError, match="give it alone"):
            main([str(tmp_path), *words])


def test_a_large_run_is_small(tmp_path):
    path = invent(tmp_path / "large", steps=600, text="some words " * 20)
    html = page.page([RunLog(path)])
    steps = [int(word) for word in re.findall(r"step (\d+) ·", html)]
    assert 300 <= len(steps) <= 400 and steps == sorted(steps) and steps[-1] > 590, "tasks from the whole run"
    assert len(html.encode()) < 1_500_000 and len(page.picture(RunLog(path)).encode()) < 80_000


def test_a_real_run(tmp_path, micro_base):
    """What train.py writes today is what is read here: nothing is absent that a run of two steps can have."""
    text = made(play(base=micro_base, out=tmp_path, steps=2, evolve_every=1, probe_every=1, grace=0, task_types="code_o,code_i", **SIZES))
    assert "Absent" not in text and "2 of 2 steps of 4 members" in text and "code_i" in text


def test_charts_bear_any_numbers():
    for points in ([(0, None)], [(5, 3.0)], [(0, 1e14), (9, -1e14)], [(0, 1e-300), (10**8, 0.0)]):
        drawn = draw.line_chart("x", [draw.Line("a", points, "t0")])
        assert not re.search(r"nan|inf", drawn, re.I)
        assert (drawn == draw.ABSENT) == all(value is None for _, value in points)
    chart = draw.line_chart("x", [draw.Line("a", [(0, 0.5), (73, 0.6)], "t0")])
    assert re.findall('class="tick"[^>]*>([^<]*)<', chart) == ["0", "10", "20", "30", "40", "50", "60", "73"], "the last step has its number"
    assert re.findall('class="num"[^>]*>([^<]*)<', chart)[-1] == "1", "shares go from 0 to 1"


def test_the_picture_as_a_file(tmp_path):
    """It is well-formed, small, for light and dark pages; a panel for each thing that was logged."""
    path, out = invent(tmp_path / "run"), tmp_path / "demo.svg"
    main([str(path), "--picture", str(out)])
    drawn = ElementTree.parse(out).getroot()
    heads = [node.text for node in drawn.findall(".//{*}text") if node.get("class") == "head"]
    assert heads == ["Held-out tasks of the type that is played", "Share of attempts that think", "Word problems, never trained on"]
    assert out.stat().st_size < 30_000 and "prefers-color-scheme:dark" in " ".join(drawn.itertext()) and not (path / "report.html").exists()
    with pytest.raises(UserError, match="nothing to draw"):
        page.picture(RunLog(invent(tmp_path / "empty", steps=0)))
