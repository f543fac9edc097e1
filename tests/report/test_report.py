"""The report on runs of every sort, real, short, broken off, hostile, large: its page is whole and harmless and true."""
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tiny_run import play, rows

import report
from common import UserError
from report import RunLog, draw, page
from report.__main__ import main

ROOT = Path(report.__file__).parent.parent
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><b onclick="x">', "' onmouseover='x", "\u202egnp.exe",
           "\x00\x1b[2J\x07", "\ud800", "\u2028", "&lt;b&gt;", "</style></title></details></pre>", "<!--", "]]>", "x" * 9000, "$name {0}%s"]
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff\ud800-\udfff]")


def members(step: int) -> dict[str, dict]:
    """T0 to T2 and S0 to S2 of whom T2 takes T0's place after step 2; all their measures are told by step and name."""
    names = ["T0", "T1", "S0", "S1"] if step < 3 else ["T2", "T1", "S0", "S1"]
    row = dict(mu=25.0 + step, sigma=8.0, reward=0.5, think=0.1 * step, entropy=1.0, cosine=0.2, lr=1e-3, solve_rate=0.5, statements=2.5)
    return {name: row | dict(role="teacher" if name[0] == "T" else "student") for name in names}


def invent(path: Path, steps: int = 6, text: str = "", **flags) -> Path:
    """A run's directory, with a probe in every second step and a birth after step 2."""
    path.mkdir(parents=True)
    logs = dict(metrics=[], tasks=[], genealogy=[])
    for step in range(steps):
        row = dict(step=step, n=4, valid=0.5, reasons={"syntax": 2}, solve_rate=0.5, solve_0=0.2, solve_1=0.3, duplicates=0.1, think=0.1,
                   statements=2.5, beats_guessing=0.8, members=members(step), task_types=dict(code_o=dict(solve_rate=0.5)), alarms={},
                   unique_structures=50 * step, tokens_generated=1000 * (step + 1), seconds=dict(propose=30.0, solve=30.0))
        if step % 2 == 0:
            known = dict.fromkeys(row["members"], min(1, 0.26 + 0.12 * step))
            row |= dict(heldout_greedy={"S0": known["S0"], "S1": known["S1"]}, heldout_greedy_base=0.3, heldout_n=100, base_solve=0.71,
                        unseen=dict(math=known | dict(base=0.3)), unseen_think=dict(math=known | dict(base=0.3)), unseen_n=dict(math=9))
        logs["metrics"].append(row)
        logs["tasks"] += [dict(step=step, teacher="T1", kind="code_o", reason="syntax", reward=-1.0, text=f"def f(x: {text}"),
                          dict(step=step, teacher="T1", kind="code_o", reason="", reward=0.5, program=f"def f(x):\n  return x # {text}",
                               inputs=["1"], outputs=["2"], message=text, solve_rate=0.5, attempts=dict(S0=["correct", "wrong", "wrong"]),
                               answers=dict(S0=["2", f"3 {text}", f"3 {text}"]))]
    if steps > 3:
        logs["genealogy"] = [dict(step=2, child="T2", operator="dare", norm_ratio=0.95, parents=[dict(name="T1"), dict(name="T0")],
                                  victim=dict(name="T0"))]
    for name, some in logs.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    config = dict(base="micro/base", name=path.name, out="out", seed=0, steps=steps, pop=4, single=False) | flags
    (path / "config.json").write_text(json.dumps(config))
    (path / "env.json").write_text(json.dumps(dict(commit="abc")))
    return path


def check(html: str) -> str:
    """A page's text. It has one script, which is ours, nothing from outside, and drawings whose numbers are finite."""
    script = f"<script>{(ROOT / 'report' / 'page.js').read_text()}</script>"
    assert html.count("<script") == html.count(script) == 1
    assert not INVISIBLE.search(html) and "url(" not in html and "@import" not in html
    # as XML, whose parser forgives nothing
    closed = re.sub("<((meta|br|input)( [^>]*)?)>", r"<\1/>", html.replace(script, ""))
    tree = ElementTree.fromstring(closed.removeprefix("<!doctype html>"))
    for node in tree.iter():
        assert node.tag.rpartition("}")[2] not in ("script", "img", "iframe", "object", "base", "link")
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
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    text = made(path)
    for words in ("Students went from .26 to .74 on held-out tasks; never trained on: word problems .26 to .74.", "6 of 6 steps of 4 members",
                  ".71 → .71", "dare of T1 and T0, in place of T0", "0.95", "2 × wrong", "1 births", "30 ± 8", "6.0 minutes",
                  "said at 2 <b>", "said at 5 <b>"):
        assert words in " ".join(text.split()), words
    assert "said at 3" not in text, "an alarm is told where it begins"
    assert "Absent" not in text


def test_each_curve_has_its_numbers(tmp_path):
    run = RunLog(invent(tmp_path / "run"))
    assert page.wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)       # Wilson 1927
    heldout = page.panels(run)["Held-out tasks of the type that is played"]
    assert [line.name for line in heldout] == ["S0", "S1", "mean", "base"]
    assert [value for _, value in heldout[2].points] == pytest.approx([0.26, 0.5, 0.74]) and len(heldout[2].band) == 3
    drawn = page.progress(run)
    assert [line.name for line in drawn["useless"]] == ["nobody solves", "all solve", "duplicates"]
    assert [line.points[0][1] for line in drawn["refused"]] == [0.5, 0.5], "2 of 4 refused, 2 of 4 valid"
    assert not any(line.band for line in drawn["teachers_mu"]), "sigma stands in the table and hides nothing"
    lives = {line.name: line for line in drawn["family"]}
    assert lives["T0"].died and lives["T2"].born and not lives["T1"].born
    assert lives["T2"].points == [(3, 0), (5, 0)], "in the lane of T0, whom it replaced"
    assert lives["T1 to T2"].points == [(2, -1), (3, 0)] and "T0 to T2" in lives


@pytest.mark.parametrize("steps, words", [(0, "Absent"), (1, "no before and after"), (4, "4 of 4 steps of one adapter in both roles")])
def test_short_runs(tmp_path, steps, words):
    assert words in made(invent(tmp_path / "run", steps=steps, single=steps == 4))


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
        done = subprocess.run([sys.executable, "-S", "-m", "report", *map(str, words)], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == bool(code), (words, done.stderr)
        assert code == 0 or not list(tmp_path.rglob("*.html"))
    check((good / "report.html").read_text(encoding="utf-8"))


def poison(value, bad: str):
    """The same with every text turned into `bad`, but roles, and names of members and verdicts, which models do not write."""
    if isinstance(value, dict):
        return {key: poison(inner, bad) for key, inner in value.items()}
    if isinstance(value, list):
        return [poison(inner, bad) for inner in value]
    return bad + value if isinstance(value, str) and not re.fullmatch(r"teacher|student|[TS]\d|correct|wrong", value) else value


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    path = invent(tmp_path / "<b>run&", steps=len(HOSTILE))
    for name in ("metrics", "tasks", "genealogy"):
        lines = [json.dumps(poison(row, HOSTILE[i // 2])) for i, row in enumerate(rows(path, name))]
        (path / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    text = made(path, path)
    for seen in ("<b>run&", "<U+202E>gnp.exe", "<U+0000><U+001B>[2J", "<U+D800>", "<U+2028>", "</script><script>alert(1)</script>", "$name {0}"):
        assert seen in text, seen                               # as text
    assert not ElementTree.fromstring(page.picture(RunLog(path))).findall(".//{*}script")


def test_several_runs(tmp_path):
    first, second = invent(tmp_path / "full"), invent(tmp_path / "other", dedupe="off")
    text = made(first, second)
    for words in ("dedupe off", "6,000", "Students on word problems, never trained on"):
        assert words in text


def test_an_ablation(tmp_path):
    """Bands go from the lowest to the highest seed, of several runs of a seed their mean counts."""
    arms = dict(full=[(0, 1.0), (1, 0.5)], singles=[(0, 0.2), (0, 0.4)])
    results = []
    for arm, runs in arms.items():
        for i, (seed, factor) in enumerate(runs):
            path = invent(tmp_path / f"{arm}{i}")
            lines = rows(path)
            for row in lines[::2]:
                row["heldout_greedy"] = dict(S0=factor * row["step"] / 4)
            (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
            results.append(dict(arm=arm, seed=seed, run=path.name))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
    (tmp_path / "contrasts.csv").write_text("arm,difference\nsingles,+0.450 <b>\n")
    lines = page.arms_of(tmp_path)
    assert [line.name for line in lines] == ["full", "singles"]
    # a probe asks before its step: steps 0, 2 and 4 of six equal ones
    assert [x for x, _ in lines[0].points] == pytest.approx([0, 100 / 3, 200 / 3])
    assert [p for _, p in lines[0].points] == pytest.approx([0, 0.375, 0.75])
    assert lines[0].band[-1][1:] == pytest.approx((0.5, 1.0)) and lines[1].band[-1][1:] == pytest.approx((0.3, 0.3))
    main([str(tmp_path)])
    assert "+0.450 <b>" in check((tmp_path / "report.html").read_text(encoding="utf-8"))
    with pytest.raises(UserError, match="give it alone"):
        main([str(tmp_path), str(tmp_path / "full0")])


def test_a_large_run_is_small(tmp_path):
    path = invent(tmp_path / "large", steps=600, text="some words " * 20)
    html = page.page([RunLog(path)])
    steps = [int(word) for word in re.findall(r"step (\d+) ·", html)]
    assert 300 <= len(steps) <= 400 and steps == sorted(steps) and steps[-1] > 590, "tasks from the whole run"
    assert len(html.encode()) < 1_500_000 and len(page.picture(RunLog(path)).encode()) < 80_000


def test_a_real_run(tmp_path, micro_base):
    """What train.py writes today is what is read here: nothing is absent that a run of two steps can have."""
    text = made(play(base=micro_base, out=tmp_path, name="run", steps=2, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2,
                     max_new_tokens=48, n_heldout=2, evolve_every=1, probe_every=1, grace=0, task_types="code_o,code_i"))
    assert "Absent" not in text and "2 of 2 steps of 4 members" in text and "code_i" in text


def test_charts_bear_any_numbers():
    for points in ([], [(0, None)], [(0, 1.0)], [(5, 3.0), (5, 3.0)], [(0, 1e14), (9, -1e14)], [(0, 1e-300), (1, 0.0)], [(0, 0.0), (10**8, 0.0)]):
        drawn = draw.line_chart("x", [draw.Line("a", points, "t0")])
        assert not re.search(r"nan|inf", drawn, re.I)
        assert (drawn == draw.ABSENT) == all(value is None for _, value in points)
    chart = draw.line_chart("x", [draw.Line("a", [(0, 0.5), (73, 0.6)], "t0")])
    assert re.findall('class="tick"[^>]*>([^<]*)<', chart) == ["0", "10", "20", "30", "40", "50", "60", "73"], "the last step has its number"
    assert re.findall('class="num"[^>]*>([^<]*)<', chart) == ["0", "0.2", "0.4", "0.6", "0.8", "1"], "shares go from 0 to 1"


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
