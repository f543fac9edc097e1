"""The report on runs of every sort: short, old, broken off, hostile, large; and that the page is whole, closed and harmless."""
import dataclasses
import json
import math
import random
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import report
from report import __main__ as command, layout, page as pages, population, run as log, setup, svg, think

ROOT = Path(report.__file__).parent.parent
VOID = {"meta", "br", "input", "link", "img"}
TAGS = set("html head meta title style body header footer h1 h2 h4 p b i ul li div span small code pre nav a "
           "main section figure figcaption svg g path rect circle text table tr th td details summary form "
           "label select option input script".split())
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><b onclick="x">', "' onmouseover='x",
           "\u202egnp.exe", "\x00\x1b[2J\x07", "\ud800", "\u2028\u2029", "&lt;b&gt;&#60;", "</style></title></details></pre>",
           "<!--", "]]>", "\u0645\u0631\u062d\u0628\u0627", "a\u200bb\ufeff", "javascript:alert(1)", "x" * 9000, "{0}%s\\u0000"]


class Page(HTMLParser):
    """Reads a page strictly: every tag closed in order; collects tags, attributes and texts."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.tags, self.attributes, self.words, self.scripts = [], [], [], [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]
        assert len({k for k, _ in attrs}) == len(attrs), f"an attribute twice in {tag}: {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def check(html: str) -> Page:
    """Whole, closed, harmless: balanced, one script which is ours, nothing from outside, finite numbers in the drawings."""
    page = Page(html)
    assert page.tags.count("script") == 1 and "".join(page.scripts) == layout.JS
    assert set(page.tags) <= TAGS
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name not in ("src", "srcset", "xlink:href", "action"), (tag, name)
        assert name != "href" or re.fullmatch("#[a-z]+", value)
        if name in ("d", "x", "y", "cx", "cy", "r", "width", "height", "viewbox"):
            for number in re.findall(r"[-+]?[\w.]+", re.sub(r"[MLHCZVlm]", " ", value)) if tag != "meta" else []:
                assert math.isfinite(float(number)), (tag, name, value)
                assert name == "d" or tag == "svg" or float(number) > -1e5
        assert name not in ("width", "height") or tag == "meta" or float(value) >= 0
    assert "@import" not in html.split("</style>")[0] and "url(" not in html.split("</style>")[0]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", html)
    assert len(html.encode()) < 2_000_000
    return page


def described(rng, n=24) -> dict:
    valid = rng.uniform(0.4, 1)
    return dict(n=n, valid=valid, reasons=dict(duplicate=2, syntax=1), reward=rng.uniform(-1, 1),
                solve_rate=rng.random(), solve_0=0.2, solve_1=0.5, malformed=0.0,
                complexity=dict(depth=6.5, mccabe=2.0, halstead=90.0, lines=4 + rng.random(), variables=1.5,
                                statements=2 + rng.random()),
                duplicates=0.1, distinct=1.0, output_chars=7.0, output_digits=2.0)


def invent(path: Path, steps: int = 6, pop: int = 4, per_step: int = 8, every: int = 3, text: str = "", **config) -> Path:
    """A run's directory in the format of train.py, with a birth in each role every few steps."""
    path.mkdir(parents=True)
    rng, half = random.Random(0), pop // 2
    T, S = ([f"{role}{i}" for i in range(half)] for role in "TS")
    total, logs = 0, dict(metrics=[], tasks=[], matches=[], genealogy=[])
    for step in range(steps):
        common = lambda role: dict(role=role, mu=25 + rng.gauss(0, 2), sigma=8 / (step + 1), reward=0.5, response_tokens=9.0,
                                   think=rng.random(), reasoning_chars=20.0,
                                   entropy=1.0, adv_abs=0.5, grad_norm=0.1, cosine=rng.random())
        members = {name: common("teacher") | described(rng) for name in T}
        members |= {name: common("student") | dict(n=20, solve_rate=rng.random()) for name in S}
        total += 1000
        row = dict(step=step, think=0.5, **described(rng, n=len(T) * per_step),
                   kinds=dict(code_o=described(rng), code_i=described(rng)),
                   members=members, coverage=50 * (step + 1), rarefied=60.0, guess_rate=dict(code_o=0.05), beats_guessing=0.8,
                   brier=0.1, zero_advantage=0.5, kl=0.0, entropy=0.0, skipped=[], tokens_generated=total,
                   tokens_trained=total // 2)
        if step % 5 == 0:
            row |= dict(anchors_sampled={s: rng.random() for s in S}, anchors_greedy={s: rng.random() for s in S})
            row |= dict(base_solve=0.5, student_solve=0.6, probe_tokens=100)
            row |= dict(anchors_think={s: rng.random() for s in S}, anchors_greedy_se=0.0123)
            for key in ("heldout", "heldout_think"):
                row[key] = {kind: {name: rng.random() for name in T + S} for kind in ("math", "logic")}
            if step == 0:
                row |= dict(anchors_sampled_base=0.4, anchors_greedy_base=0.7, anchors_think_base=0.0)
                row["heldout"]["math"]["base"] = row["heldout"]["logic"]["base"] = 0.3
        logs["matches"] += [dict(step=step, teacher=t, student=s, expected=0.5, solve_rate=rng.random(), winner="draw", brier=0.1,
                                 teacher_mu=25.0, student_mu=25.0) for t, s in zip(T, S)]
        for t, s in zip(T, S):
            for i in range(per_step):
                made = dict(step=step, teacher=t, kind="code_o", reason="" if i % 3 else "syntax", reward=0.5)
                logs["tasks"].append(made | (dict(text=f"def f(x: {text}") if i % 3 == 0 else dict(
                    id=len(logs["tasks"]), program=f"def f(x):\n  return x + {i} # {text}", inputs=["1"], outputs=["2"],
                    message=text, key="k", parents=[1, 2], solve_rate=0.5,
                    attempts={s: ["correct", "wrong", "wrong", "malformed"]}, answers={s: ["2", "3", "3", text]},
                    complexity=dict(depth=6, mccabe=1, halstead=9.0, lines=2, variables=1, statements=0))))
        births = []
        if every and (step + 1) % every == 0:
            for group in (T, S):
                child, victim = f"{group[0][0]}{max(int(n[1:]) for n in group) + 1}", group[0]
                who = lambda name: dict(name=name, role="teacher", slot=0, rating=dict(mu=25.0, sigma=2.0), born=0, parents=[],
                                        operator="founder", matches=3)
                births.append(dict(step=step, child=child, operator="dare", note="", norm_ratio=0.95, mu=25.0, sigma=3.0,
                                   parents=[who(group[1]), who(group[-1])], victim=who(victim)))
                group[0] = child
        logs["genealogy"] += births
        row |= dict(births=[b["child"] for b in births],
                    seconds=dict(propose=1.0, verify=0.5, solve=2.0, probe=0.0, update=3.0, evolve=0.0))
        logs["metrics"].append(row)
    for name, rows in logs.items():
        if rows:
            (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settled = dict(base="micro/base", name=path.name, out="out", seed=0, steps=steps, style="micro", pop=pop,
                   teachers=half, students=half, single=False, rank=8, kinds="code_o,code_i") | config
    (path / "config.json").write_text(json.dumps(settled))
    (path / "env.json").write_text(json.dumps(dict(commit="abc", python="3.11", sandbox_report=dict(seccomp="ok"))))
    return path


def made(*paths: Path) -> str:
    """The page of these runs."""
    return pages.page([log.Run(p) for p in paths])


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, some: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in some))


def test_a_whole_run_is_told(tmp_path):
    page = check(made(invent(tmp_path / "demo", steps=12)))
    for words in ("demo", "all 12 steps done", "2 teachers and 2 students", "frozen base", "Genealogy",
                  "dare of T1 and T1, in place of T0", "norm of its update to its parents': 0.950", "structures", "∅ malformed",
                  "2 × ✗ wrong", "Solve rate by kind", "nobody solves", "8 births as a table", "Who met whom"):
        assert words in page.text, words
    assert "Absent" not in page.text and "About the logs" not in page.text
    assert {"T0", "S1"} <= {v for tag, k, v in page.attributes if k in ("data-teacher", "data-students")}


def test_words_say_what_rose_and_what_fell(tmp_path):
    path = invent(tmp_path / "run", steps=4)
    some = rows(path / "metrics.jsonl")
    for i, row in enumerate(some):
        row["complexity"]["statements"], row["valid"], row["rarefied"] = 2 + i, 0.9 - 0.1 * i, 64.0
    rewrite(path / "metrics.jsonl", some)
    words = re.sub("<[^>]*>", " ", pages.in_words(log.Run(path)))
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
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | dict(steps=40)))
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
    metrics = [{k: row[k] for k in ("step", "valid", "n", "reasons")} for row in rows(path / "metrics.jsonl")]
    rewrite(path / "metrics.jsonl", metrics)
    rewrite(path / "tasks.jsonl", [{k: row[k] for k in ("step", "reason")} for row in rows(path / "tasks.jsonl")])
    rewrite(path / "matches.jsonl", [{"step": 0}])
    rewrite(path / "genealogy.jsonl", [{"step": 0}])
    page = check(made(path))
    assert page.text.count("Absent: this run did not log it.") > 10
    rewrite(path / "metrics.jsonl", [{"step": 3}])
    check(made(path))


def test_hostile_texts_everywhere(tmp_path):
    path = invent(tmp_path / "<b>run&", steps=len(HOSTILE), text=HOSTILE[0], every=2)

    def poison(value, bad: str):
        """The same with every text, and every key that is a name, turned into `bad`."""
        if isinstance(value, dict):
            names = r"[TS]\d+|code_\w|duplicate|syntax|propose"
            return {bad + k if re.fullmatch(names, k) else k: poison(v, bad) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v, bad) for v in value]
        return bad if isinstance(value, str) and value not in ("", "teacher", "student") else value
    for name in ("metrics", "tasks", "matches", "genealogy"):
        rewrite(path / f"{name}.jsonl", [poison(row, HOSTILE[row["step"]]) for row in rows(path / f"{name}.jsonl")])
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


VALUES = [None, math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, "text", [], {}, [1, "a"], {"a": None}, True, -1, 0,
          "</script>"]


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
    assert "The budgets agree within 5%." in page.text and "dedupe off" in page.text and "8,000 (×1.00)" in page.text
    page = check(made(first, invent(tmp_path / "short", steps=4), invent(tmp_path / "sub" / "full", steps=8)))
    assert "The budgets are not the same" in page.text and "4,000 (×0.50)" in page.text
    assert "sub/full" in page.words and f"{tmp_path.name}/full" in page.words           # one name twice: told by their paths


def test_long_names_fit_their_places(tmp_path):
    """Names of runs and kinds that begin alike stay apart in a chart's margin, and no curve is squeezed by them."""
    runs = [invent(tmp_path / f"a-run-with-a-very-long-name-seed-{i}", steps=4) for i in range(2)]
    some = rows(runs[0] / "metrics.jsonl")
    for row in some:
        row["kinds"] = {f"a_kind_of_task_with_a_long_name_{i}" + "\u202e" * 5: described(random.Random(0)) for i in range(3)}
    rewrite(runs[0] / "metrics.jsonl", some)
    html = made(*runs)
    check(html)
    labels = set(re.findall(r'<text class="end \w+" x="([\d.]+)"[^>]*>([^<]+)</text>', html.split('aria-label="genealogy"')[0]))
    assert labels and max(len(label) for _, label in labels) == svg.LABEL
    assert min(float(x) for x, _ in labels) > 0.6 * svg.W
    assert {"a-run-wit…e-seed-0", "a-run-wit…e-seed-1"} <= {label for _, label in labels}
    names = {"abcde": "abcde", "abcdefgh": "ab…gh", "x" * 9**6 + "yz": "xx…yz", "": "", 12: "12", "\x00": "⟨U…0⟩"}
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
    assert contrast("#000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)
    light, dark = (dict(re.findall(r"--(\w+):(#\w+)", part)) for part in layout.CSS.split("prefers-color-scheme:dark"))
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


def test_many_members_and_long_runs_stay_small(tmp_path):
    check(made(invent(tmp_path / "wide", steps=12, pop=100, per_step=1, every=3)))
    check(made(invent(tmp_path / "long", steps=1000, pop=4, per_step=1, every=5)))


def test_what_differs_from_the_defaults(tmp_path, monkeypatch):
    config = pytest.importorskip("config")
    flags, presets = setup.defaults()
    assert presets == config.PRESETS
    for f in dataclasses.fields(config.Config):
        assert flags[f.name][0] in (f.default, ...) and flags[f.name][1] in (f.metadata["help"], ...)
    settled = dataclasses.asdict(config.settle(config.Config(pop=6, lr=0.5, name="x"), "micro"))
    usual = setup.expected(settled)
    assert {k for k in settled if usual[k] is not ... and usual[k] != settled[k]} == {"pop", "lr"}
    monkeypatch.setattr(setup, "CONFIG", tmp_path / "config.py")
    assert setup.defaults() == ({}, {})
    assert "its defaults are not known" in check(made(invent(tmp_path / "run"))).text


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
    assert [s for s, _ in seen] == [7] and 'data-watch="7"' in seen[0][1] and "2 of 4 steps done" in seen[0][1]
    assert 'data-watch="0"' in (path / "report.html").read_text() and "complete" in capsys.readouterr().out
    assert sorted(p.name for p in path.iterdir() if "report" in p.name) == ["report.html"]


def test_command_line(tmp_path):
    """Nothing but Python is needed; bad input ends in one sentence and code 2."""
    start = [sys.executable, "-S", "-m", "report"]
    call = lambda *words: subprocess.run([*start, *map(str, words)], capture_output=True, text=True, cwd=ROOT)
    done = call(invent(tmp_path / "run"), "--out", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    check((tmp_path / "a.html").read_text(encoding="utf-8"))
    (tmp_path / "empty").mkdir()
    for words, said in (([tmp_path / "none"], "no such directory"), ([tmp_path / "empty"], "is no run"),
                        ([tmp_path / "run", "--compare", tmp_path / "empty"], "is no run"),
                        ([tmp_path / "run", "--watch", "-1"], "number of seconds"),
                        ([tmp_path / "run", "--out", tmp_path], "name of a file"),
                        ([tmp_path / "run", "--out", tmp_path / "no" / "a.html"], "directory that exists"),
                        ([tmp_path / "a.html"], "no such directory")):
        bad = call(*words)
        assert bad.returncode == 2 and said in bad.stderr and bad.stderr.count("\n") == 1, (words, bad.stderr)


def test_a_real_run(tmp_path, micro_base):
    """What train.py writes today is what is read here: nothing is absent that a run of two steps can have."""
    train = pytest.importorskip("train")
    run = train.main(train.Config(base=str(micro_base), out=str(tmp_path), name="run", steps=2, pop=4, n_prompts=1, group=4,
                                  attempts=2, max_new=48, n_anchors=2, evolve_every=1, probe_every=1, workers=1, grace=0))
    page = check(made(run.path))
    assert "Absent" not in page.text and "About the logs" not in page.text and "all 2 steps done" in page.text


def test_charts_bear_any_numbers():
    line = lambda *points, **more: svg.Line("a", list(points), "t0", **more)
    for lines in ([], [line()], [line((0, None))], [line((0, 1.0))], [line((5, 3.0), (5, 3.0))],
                  [line((0, 1e14), (9, -1e14))], [line((0, 1e-300), (1, 0.0))],
                  [line((0, 0.0), (10**8, 0.0))], [line((0, 2.0), (1, 3.0), band=[(0, -1e14, 1e14), (1, 2.0, None)])]):
        check_svg = svg.line_chart("x", lines)
        assert not re.search(r"nan|inf", check_svg, re.I)
        assert bool(check_svg) == any(None not in p for a in lines for p in a.points)
    assert svg.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0]) and svg.ticks(3, 3) == [3]
    labels = svg.spread([(50.0, str(i), "t0") for i in range(40)])
    assert all(b[0] - a[0] >= 11 for a, b in zip(labels, labels[1:])) and labels[-1][0] <= svg.H
    assert [svg.short(v) for v in (0, 0.38, 5582, 34000, 1.25e6, -0.5, 12.345)] == \
        ["0", "0.38", "5,582", "34k", "1.25M", "-0.5", "12.3"]


def test_retention_of_a_child(tmp_path):
    """Parents at their last probe before the birth, the child at its first; nothing where one is missing."""
    path = invent(tmp_path / "run", steps=8, every=3)
    some = rows(path / "metrics.jsonl")
    for row in some:
        for key in ("anchors_greedy", "anchors_sampled"):
            row.pop(key, None)
    some[0]["anchors_greedy"], some[5]["anchors_greedy"] = dict(S0=0.2, S1=0.8), dict(S1=0.9, S2=0.6)
    rewrite(path / "metrics.jsonl", some)
    run = log.Run(path)
    birth = next(b for b in run.births if b["child"] == "S2")
    kept, words = population.retention(run, "S2", birth)
    assert kept == pytest.approx(0.75) and "its parents 0.80" in words and "it 0.60 at step 5" in words
    assert population.retention(run, "T2", next(b for b in run.births if b["child"] == "T2")) is None
    assert population.retention(run, "S0", None) is None
    assert "its parents 0.80" in check(made(path)).text


# --- the picture that opens the page ------------------------------------------------------------------------

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
    run = log.Run(thinking_run(tmp_path / "run"))
    values = {name: run.series(lambda row: log.num(row, "members", name, "think"))
              for name in run.students()}
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
        run = log.Run.__new__(log.Run)
        run.metrics = [dict(step=step, members={}) for step in range(20)]
        run.members = dict(S9=student(10, own), S0=student(0, theirs or []))
        birth = dict(step=n, parents=[dict(name="S0")]) if theirs else None
        return think.thinker(run, "S9", birth).told()

    def student(first: int, shares: list) -> log.Member:
        life = [(first + i, dict(think=share)) for i, share in enumerate(shares)]
        return log.Member("student", "s0", "", life)
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
        return think.Thinker(name, None, "never", 0, since, without, now, alive)
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
    said = lambda path: check(made(path)).text.count(think.HABIT)
    assert said(invent(tmp_path / "a")) == said(invent(tmp_path / "b", base="/home/x/micro/base")) == 2
    assert said(invent(tmp_path / "c", base="Qwen/Qwen2.5-Coder-7B", style="base")) == 0
    assert said(invent(tmp_path / "d", base="micro/phase1")) == 0
    assert said(invent(tmp_path / "e", style="direct")) == 0
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
            think.picture(log.Run(path))
    else:
        ElementTree.fromstring(think.picture(log.Run(path)))


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
    assert len(think.picture(log.Run(large)).encode()) < 60_000
    hostile = invent(tmp_path / "hostile", every=2)
    for name in ("metrics", "genealogy"):
        data = (hostile / f"{name}.jsonl").read_text()
        data = data.replace('"S1"', '"</svg><script>"').replace('"math"', '"a&<b>\\ud800"')
        (hostile / f"{name}.jsonl").write_text(data)
    drawn = ElementTree.fromstring(think.picture(log.Run(hostile)))
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


def test_tokens_by_phase(tmp_path):
    path = invent(tmp_path / "run", steps=3)
    told = pages.tokens_by_phase(log.Run(path))
    assert told["update"] == {0: 500, 1: 500, 2: 500} and told["probe"] == {0: 100}
    assert told["propose"] == {step: 2 * 24 * 9.0 for step in range(3)}
    assert told["solve"] == {step: 2 * 20 * 9.0 for step in range(3)}
