"""The report on runs of every sort, short, broken off, hostile, large: its page is whole and harmless."""
import dataclasses
import json
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import report
from invented import HOSTILE, check, described, invent, made, rewrite, rows
from report import __main__ as command, drift, layout, page as pages, population, setup, svg
from report.run import RunLog

ROOT = Path(report.__file__).parent.parent


def test_a_whole_run_is_told(tmp_path):
    page = check(made(invent(tmp_path / "demo", steps=12)))
    for words in ("demo", "all 12 steps done", "2 teachers and 2 students", "frozen base", "Genealogy",
                  "dare of T1 and T1, in place of T0", "norm of its update to its parents': 0.950",
                  "structures", "∅ malformed", "2 × ✗ wrong", "Solve rate by kind", "nobody solves",
                  "8 births as a table", "Who met whom"):
        assert words in page.text, words
    assert "Absent" not in page.text and "About the logs" not in page.text
    assert {"T0", "S1"} <= {v for tag, k, v in page.attributes if k in ("data-teacher", "data-students")}


def test_alarms_and_escapes_are_told(tmp_path):
    path = invent(tmp_path / "run", steps=8, every=0)
    assert "No monitor gave alarm" in check(made(path)).text
    some = rows(path / "metrics.jsonl")
    for step in (2, 3, 5):
        some[step]["alarms"] = dict(collapse=f"like eggs, said at {step} <b>")
    some[4]["escapes"], some[4]["members"]["S1"]["escapes"] = {"system": 2, "file": 1, "<i>": 1}, 3
    some[6]["sandbox_failures"] = 4
    rewrite(path / "metrics.jsonl", some)
    page = check(made(path))
    assert [entry[:3] for entry in drift.alarms(RunLog(path))] == [("collapse", 2, 3), ("collapse", 5, 5)]
    for words in ("like eggs, said at 2 <b>", "like eggs, said at 5", "the sandbox itself failed: 4", "What is tried", "first in step"):
        assert words in page.text, words
    assert "said at 3" not in page.text
    for row in some:
        del row["alarms"], row["escapes"], row["sandbox_failures"]
        for member in row["members"].values():
            del member["escapes"]
    rewrite(path / "metrics.jsonl", some)
    assert check(made(path)).text.count("Absent: this run did not log it") == 2
    for row, odd in zip(some, (1, "x", [1], {"collapse": {}}, {"": None}, None, {"a": [1]}, {"a" * 900: "b" * 9000})):
        row["alarms"] = row["escapes"] = row["sandbox_failures"] = odd
    rewrite(path / "metrics.jsonl", some)
    check(made(path))


def test_words_say_what_rose_and_what_fell(tmp_path):
    path = invent(tmp_path / "run", steps=4)
    some = rows(path / "metrics.jsonl")
    for i, row in enumerate(some):
        row["complexity"]["statements"] = 2 + i
        row["valid"], row["unique_at_64"] = 0.9 - 0.1 * i, 64.0
    rewrite(path / "metrics.jsonl", some)
    words = re.sub("<[^>]*>", " ", pages.in_words(RunLog(path)))
    assert re.search(r"2\.00 → 5\.00\s+rose\s+statements per task", words)
    assert re.search(r"0\.90 → 0\.60\s+fell\s+share of proposals that are valid", words)
    assert re.search(r"64\.00\s+stayed\s+distinct structures among 64", words)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_short_runs(tmp_path, steps):
    page = check(made(invent(tmp_path / "run", steps=steps, every=0)))
    said = [["No step is finished yet."], ["Too short", "all 1 step done", "minutes, 1 step."],
            ["first and last step", "all 2 steps done"]]
    for words in said[steps]:
        assert words in page.text


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
    assert "5 of 40 steps done: stopped, or still going" in page.text
    assert "3 lines of metrics.jsonl skipped" in page.text and "3 lines of tasks.jsonl skipped" in page.text


def test_missing_files_are_said(tmp_path):
    path = invent(tmp_path / "run")
    for name in ("tasks.jsonl", "matches.jsonl", "env.json", "genealogy.jsonl"):
        (path / name).unlink()
    (path / "config.json").write_bytes(b"{\xff")
    page = check(made(path))
    for words in ("tasks.jsonl is not there", "matches.jsonl is not there", "env.json could not be read",
                  "config.json could not be read", "Absent: no proposal can be read"):
        assert words in page.text, words


def test_logs_of_another_version(tmp_path):
    path = invent(tmp_path / "run")
    for name, kept in (("metrics", ("step", "valid", "n", "reasons")), ("tasks", ("step", "reason"))):
        some = rows(path / f"{name}.jsonl")
        rewrite(path / f"{name}.jsonl", [{key: row[key] for key in kept} for row in some])
    rewrite(path / "matches.jsonl", [{"step": 0}])
    rewrite(path / "genealogy.jsonl", [{"step": 0}])
    page = check(made(path))
    assert page.text.count("Absent: this run did not log it.") > 10
    rewrite(path / "metrics.jsonl", [{"step": 3}])
    check(made(path))


@pytest.mark.parametrize("name, key", [("metrics.jsonl", "coverage"), ("metrics.jsonl", "zero_advantage"),
                                       ("config.json", "max_new"), ("config.json", "whiten")])
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


@pytest.mark.parametrize("seed", range(12))
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
    for words in ("The budgets agree within 5%.", "dedupe off", "8,000 (×1.00)"):
        assert words in page.text
    page = check(made(first, invent(tmp_path / "short", steps=4), invent(tmp_path / "sub" / "full", steps=8)))
    assert "The budgets are not the same" in page.text and "4,000 (×0.50)" in page.text
    assert "sub/full" in page.words and f"{tmp_path.name}/full" in page.words   # one name twice


def test_long_names_fit_their_places(tmp_path):
    """Names of runs and kinds that begin alike stay apart in a chart's margin, and squeeze no curve."""
    runs = [invent(tmp_path / f"a-run-with-a-very-long-name-seed-{i}", steps=4) for i in range(2)]
    some = rows(runs[0] / "metrics.jsonl")
    for row in some:
        names = [f"a_kind_of_task_with_a_long_name_{i}" + "\u202e" * 5 for i in range(3)]
        row["task_types"] = {name: described(random.Random(0)) for name in names}
    rewrite(runs[0] / "metrics.jsonl", some)
    html = made(*runs)
    check(html)
    charts = html.split('aria-label="genealogy"')[0]
    labels = set(re.findall(r'<text class="end \w+" x="([\d.]+)"[^>]*>([^<]+)</text>', charts))
    assert labels and max(len(label) for _, label in labels) == svg.LABEL
    assert min(float(x) for x, _ in labels) > 0.6 * svg.W
    assert {"a-run-wit…e-seed-0", "a-run-wit…e-seed-1"} <= {label for _, label in labels}
    names = {"abcde": "abcde", "abcdefgh": "ab…gh", "x" * 9**6 + "yz": "xx…yz", "": "", 12: "12",
             "\x00": "⟨U…0⟩"}
    assert {name: svg.brief(name, 5) for name in names} == names


def contrast(one: str, two: str) -> float:
    """WCAG 2 contrast ratio of two colours #rgb or #rrggbb: 1 to 21."""
    def luminance(color: str) -> float:
        digits = color[1:] if len(color) == 7 else "".join(c * 2 for c in color[1:])
        parts = [int(digits[i:i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear))
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_is_readable(scheme):
    """Curves' names are written in their curves' colours: 4.5 to 1 against the card, in both schemes."""
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)
    parts = layout.CSS.split("prefers-color-scheme:dark")
    light, dark = [dict(re.findall(r"--(\w+):(#\w+)", part)) for part in parts]
    colors = light if scheme == "light" else dark
    assert light.keys() == dark.keys() >= {*layout.COLORS, "ink", "soft"}
    on_card = {name: contrast(colors[name], colors["card"]) for name in ("ink", "soft", *layout.COLORS)}
    assert not {name: ratio for name, ratio in on_card.items() if ratio < 4.5}
    assert contrast(colors["ink"], colors["mark"]) > 7
    assert contrast(colors["soft"], colors["bg"]) > 4.5 < contrast(colors["soft"], colors["hint"])


def test_a_large_run_is_quick_and_small(tmp_path):
    path = invent(tmp_path / "large", steps=200, pop=16, per_step=24, every=10, text="some words " * 20)
    size, start = sum(f.stat().st_size for f in path.iterdir()), time.process_time()
    html = made(path)
    seconds = time.process_time() - start
    page = check(html)
    assert seconds < 10, f"{seconds:.1f} s for {size / 1e6:.0f} MB of logs"
    steps = [int(v) for _, k, v in page.attributes if k == "data-step"]
    assert len(set(steps)) == 200 and steps == sorted(steps), "every step is in the sample"
    reasons = [v for _, k, v in page.attributes if k == "data-reason"]
    assert 0.15 < sum(map(bool, reasons)) / len(reasons) < 0.4


@pytest.mark.slow
def test_many_members_and_long_runs_stay_small(tmp_path):
    check(made(invent(tmp_path / "wide", steps=12, pop=100, per_step=1, every=3)))
    check(made(invent(tmp_path / "long", steps=1000, pop=4, per_step=1, every=5)))


def test_what_differs_from_the_defaults(tmp_path, monkeypatch):
    config = pytest.importorskip("config")
    for prompt_format in config.PRESETS:
        changed = config.Config(pop=6, lr=0.5, name="x", single=False, task_types="code_o")
        settled = dataclasses.asdict(config.resolve_config(changed, prompt_format))
        flags = setup.defaults(settled)
        assert {f.name: f.metadata["help"] for f in dataclasses.fields(config.Config)} == {
            name: meaning for name, (_, meaning) in flags.items()}
        differing = {name for name, value in settled.items() if flags[name][0] != setup.written(value)}
        assert differing == {"pop", "lr", "name"} | ({"task_types"} if prompt_format != "micro" else set())
    path = invent(tmp_path / "run", dedupe="off")
    differing = setup.setup(RunLog(path)).split("<details>")[0]
    assert "<td>off</td><td>structural</td>" in differing and "<code>seed</code>" not in differing
    monkeypatch.setattr(setup, "FLAGS", tmp_path / "flags.md")
    assert setup.defaults(settled) == {}
    assert "the defaults are not known" in check(made(path)).text


def test_watch_writes_until_the_run_is_complete(tmp_path, monkeypatch, capsys):
    path = invent(tmp_path / "run", steps=4)
    whole = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text("".join(whole.splitlines(True)[:2]))
    seen = []

    def sleep(seconds):
        seen.append((seconds, (path / "report.html").read_text()))
        (path / "metrics.jsonl").write_text(whole)
    monkeypatch.setattr(command.time, "sleep", sleep)
    command.main([str(path), "--watch", "7"])
    (seconds, page), = seen
    assert seconds == 7 and 'data-watch="7"' in page and "2 of 4 steps done" in page
    assert 'data-watch="0"' in (path / "report.html").read_text() and "complete" in capsys.readouterr().out
    assert sorted(p.name for p in path.iterdir() if "report" in p.name) == ["report.html"]


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
                        ([tmp_path / "run", "--watch", "-1"], "number of seconds"),
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


def test_retention_of_a_child(tmp_path):
    """Parents at their last probe before the birth, the child at its first; nothing where one is missing."""
    path = invent(tmp_path / "run", steps=8, every=3)
    some = rows(path / "metrics.jsonl")
    for row in some:
        for key in ("anchors_greedy", "anchors_sampled"):
            row.pop(key, None)
    some[0]["anchors_greedy"], some[5]["anchors_greedy"] = dict(S0=0.2, S1=0.8), dict(S1=0.9, S2=0.6)
    rewrite(path / "metrics.jsonl", some)
    run = RunLog(path)
    kept, words = population.retention(run, run.births["S2"])
    assert kept == pytest.approx(0.75) and "its parents 0.80" in words and "it 0.60 at step 5" in words
    assert population.retention(run, run.births["T2"]) is None
    assert "its parents 0.80" in check(made(path)).text


def test_tokens_by_phase(tmp_path):
    path = invent(tmp_path / "run", steps=3)
    told = pages.tokens_by_phase(RunLog(path))
    assert told["update"] == {0: 500, 1: 500, 2: 500} and told["probe"] == {0: 100}
    assert told["propose"] == {step: 2 * 24 * 9.0 for step in range(3)}
    assert told["solve"] == {step: 2 * 20 * 9.0 for step in range(3)}
