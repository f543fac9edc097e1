"""The report on runs of every sort, short, broken off, hostile, large: its page is whole and harmless, its picture true."""
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from invented import HOSTILE, check, invent, made, rewrite
from tiny_run import play, rows

import report
from common import UserError
from report import __main__ as command
from report import opening, svg
from report.run import RunLog

ROOT = Path(report.__file__).parent.parent


def test_a_whole_run_is_told(tmp_path):
    path = invent(tmp_path / "demo", steps=12, dedupe="off")
    some = rows(path)
    for step in (2, 3, 5):
        some[step]["alarms"] = dict(collapse=f"like eggs, said at {step} <b>")
    some[11]["members"]["T1"] |= dict(niche=["code_i", "code_o"], lr=1.25e-4, solve_rate=None)
    rewrite(path, "metrics", some)
    page = made(path)
    for words in ("demo", "all 12 steps done", "2 teachers and 2 students", "frozen base", "dare of T1 and T1, in place of T0", "0.95",
                  "structures", "∅ malformed", "2 × ✗ wrong", "Solve rate by type of task", "nobody solves", "Word problems, never trained on",
                  "1 of 9 flags differ", "meaning dedupe", "like eggs, said at 2 <b>", "2, 3, 5"):
        assert words in page.text, words
    assert "said at 3" not in page.text and "Absent" not in page.text and "About the logs" not in page.text
    cells = next(re.findall("<td>(.*?)</td>", row) for row in page.html.split("<tr>") if "</i>T1<" in row)
    assert cells[1:5] == ["0 to 11", "founder", "code_i, code_o", "0.000125"] and cells[-1] == "–"
    assert {"T0", "S1"} <= {v for k, v in page.attributes if k in ("data-teacher", "data-student")}
    places = [page.html.index(part) for part in ("<h1>", 'class="lead"', "<nav>", 'class="words"', 'id="thinking"', 'id="tasks"')]
    assert places == sorted(places) and page.tags.count("h2") == 6
    assert set(re.findall('href="#([a-z]+)"', page.html)) == set(re.findall('section id="([a-z]+)"', page.html))


def test_the_result_in_one_sentence_and_four_numbers(tmp_path):
    path = invent(tmp_path / "run", steps=6)
    some = rows(path)
    for row, greedy, words in ((some[0], .26, .06), (some[5], .74, .678)):
        row["heldout_greedy"] = dict.fromkeys(row["heldout_greedy"], greedy)
        row["unseen"] = dict(math=dict.fromkeys(row["heldout_greedy"], words) | dict(base=.5))
    some[0]["base_solve"], some[5]["base_solve"] = .71, 1
    rewrite(path, "metrics", some)
    run = RunLog(path)
    assert opening.result(run) == "Students went from <b>.26 to .74</b> on held-out tasks; never trained on: word problems .06 to .68."
    assert re.findall("<b>(.*?)</b>", opening.numbers(run)) == [".26 → .74", ".06 → .68", ".50 → .50", ".71 → 1.00"]
    assert "S0, founder: 0.26" in next(iter(opening.panels(run).values())), "the picture says the same"
    (_, low, high), = opening.interval([(3, .5), (4, .5)], [(3, 100), (4, -1)])
    assert (low, high) == pytest.approx((.4038, .5962), abs=1e-3), "a log may say that -1 tasks were asked"


@pytest.mark.parametrize("steps, words", [(0, "No step is finished yet."), (1, "no before and after"), (2, "all 2 steps done")])
def test_short_runs(tmp_path, steps, words):
    assert words in made(invent(tmp_path / "run", pop=2, steps=steps, every=0, single=steps == 2)).text


def test_a_run_killed_half_way(tmp_path):
    path = invent(tmp_path / "run", steps=6)
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | dict(steps=40)))
    for name in ("metrics", "tasks"):
        data = (path / f"{name}.jsonl").read_bytes()
        (path / f"{name}.jsonl").write_bytes(b'[1]\n{"no": "step"}\n\n' + data[:-50])
    (path / "genealogy.jsonl").unlink()
    (path / "env.json").write_bytes(b"{\xff")
    page = made(path)
    for words in ("5 of 40 steps done", "3 lines of metrics.jsonl skipped", "3 lines of tasks.jsonl skipped", "env.json could not be read",
                  "did not write its defaults", "unknown"):
        assert words in page.text, words


def test_what_was_not_logged_is_absent(tmp_path):
    path = invent(tmp_path / "run")
    kept = ("step", "valid", "n", "reasons", "members")
    rewrite(path, "metrics", [{key: row[key] for key in kept} for row in rows(path)])
    (path / "tasks.jsonl").unlink()
    page = made(path)
    assert page.text.count("Absent: this run did not log it.") > 5 and "Absent: no proposal can be read" in page.text
    rewrite(path, "metrics", [{"step": 3}])
    made(path)
    with pytest.raises(UserError, match="nothing to draw"):
        opening.picture(RunLog(path))


def test_command_line(tmp_path):
    """Nothing but Python is needed; bad input ends in one sentence and without a page."""
    good = invent(tmp_path / "run")
    for words, code, said in (([tmp_path], 2, "is no run"), ([good, "--out", tmp_path / "no" / "a.html"], 1, "No such file"), ([good], 0, "")):
        done = subprocess.run([sys.executable, "-S", "-m", "report", *map(str, words)], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == bool(code), (words, done.stderr)
        assert code == 0 or not list(tmp_path.rglob("*.html"))
    check((good / "report.html").read_text(encoding="utf-8"))


def poison(value, bad: str):
    """The same with every text, and every key that is a name, turned into `bad`."""
    if isinstance(value, dict):
        names = r"[TS]\d+|code_\w|duplicate|syntax|propose"
        return {bad + k if re.fullmatch(names, k) else k: poison(v, bad) for k, v in value.items()}
    if isinstance(value, list):
        return [poison(v, bad) for v in value]
    return bad + value if isinstance(value, str) and value not in ("teacher", "student") else value


def test_hostile_texts_are_shown_and_do_nothing(tmp_path):
    path = invent(tmp_path / "<b>run&", steps=len(HOSTILE))
    for name in ("metrics", "tasks", "genealogy"):
        rewrite(path, name, [poison(row, HOSTILE[i % len(HOSTILE)]) for i, row in enumerate(rows(path, name))])
    for name in ("config.json", "env.json"):
        poisoned = poison(json.loads((path / name).read_text()), HOSTILE[0])
        (path / name).write_text(json.dumps(poisoned | {k: i for i, k in enumerate(HOSTILE)}))
    page = made(path, path)
    for seen in ("<b>run&", "⟨U+202E⟩gnp.exe", "⟨U+0000⟩⟨U+001B⟩[2J", "⟨U+D800⟩", "⟨U+2028⟩", "a⟨U+200B⟩b⟨U+FEFF⟩", "more characters]",
                 "</script><script>alert(1)</script>"):
        assert seen in page.text, seen                              # as text
    assert not ElementTree.fromstring(opening.picture(RunLog(path))).findall(".//{*}script")


def test_compare(tmp_path):
    first, second = invent(tmp_path / "full", steps=8), invent(tmp_path / "other", steps=8, dedupe="off")
    page = made(first, second)
    for words in ("The budgets agree within 5%.", "dedupe off", "8,000", "Students on math, never trained on"):
        assert words in page.text
    assert "The budgets are not the same" in made(first, invent(tmp_path / "short", steps=4)).text


def test_a_large_run_is_small(tmp_path):
    path = invent(tmp_path / "large", steps=100, pop=16, per_step=24, every=10, text="some words " * 20)
    steps = [int(word) for word in re.findall(r"step (\d+) ·", made(path).text)]
    assert len(set(steps)) > 80 and steps == sorted(steps), "the sample goes through the whole run"
    assert len(opening.picture(RunLog(path)).encode()) < 80_000


def test_a_real_run(tmp_path, micro_base):
    """What train.py writes today is what is read here: nothing is absent that a run of two steps can have."""
    text = made(play(base=micro_base, out=tmp_path, name="run", steps=2, pop=4, n_prompts=1, proposals_per_prompt=4, samples_per_task=2,
                     max_new_tokens=48, n_heldout=2, evolve_every=1, probe_every=1, grace=0, task_types="code_o,code_i", niches=True,
                     lr_spread=4.0)).text
    for words in ("Absent", "About the logs", "did not write its defaults"):
        assert words not in text
    assert "all 2 steps done" in text and "code_i" in text


def test_charts_bear_any_numbers():
    band = [(0, -1e14, 1e14), (1, 2.0, None)]
    for points in ([], [(0, None)], [(0, 1.0)], [(5, 3.0), (5, 3.0)], [(0, 1e14), (9, -1e14)], [(0, 1e-300), (1, 0.0)], [(0, 0.0), (10**8, 0.0)]):
        drawn = svg.line_chart("x", [svg.Line("a", points, "t0", band=band if points else [])])
        assert not re.search(r"nan|inf", drawn, re.I)
        assert bool(drawn) == any(None not in p for p in points)
    chart = svg.line_chart("x", [svg.Line("a", [(0, 0.5), (73, 0.6)], "t0")])
    assert re.findall('class="tick"[^>]*>([^<]*)<', chart) == ["0", "20", "40", "60", "73"], "the last step stands on the axis"


def test_the_picture_as_a_file(tmp_path):
    """Well-formed, small, for light and dark; a panel for each thing that was logged; lines from birth to death."""
    path, out = invent(tmp_path / "run", steps=12), tmp_path / "demo.svg"
    command.main([str(path), "--picture", str(out)])
    drawn = ElementTree.parse(out).getroot()
    heads = [node.text for node in drawn.findall(".//{*}text") if node.get("class") == "head"]
    assert heads == ["Held-out tasks of the type that is played", "Share of attempts that think", "Word problems, never trained on",
                     "Logic puzzles, never trained on"]
    lives = opening.by_member(RunLog(path), "student", lambda m: [(0, 1)], [])
    assert [line.name for line in lives if line.born] == ["S2", "S3", "S4"] and [line.name for line in lives if line.died] == ["S0", "S2", "S3"]
    assert out.stat().st_size < 30_000 and "prefers-color-scheme:dark" in " ".join(drawn.itertext()) and not (path / "report.html").exists()
