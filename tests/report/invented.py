"""Runs' directories in the format of train.py, made up, and a strict reader of the pages made of them."""
import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

from report import page
from report.run import RunLog

TAGS = set("html head meta title style body header h1 h2 h4 p b i ul li div span small code pre nav a main section figure figcaption svg g "
           "path circle text table tr th td details summary form label select option input script".split())
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><b onclick="x">', "' onmouseover='x", "\u202egnp.exe",
           "\x00\x1b[2J\x07", "\ud800", "\u2028\u2029", "&lt;b&gt;&#60;", "</style></title></details></pre>", "<!--", "]]>",
           "\u0645\u0631\u062d\u0628\u0627", "a\u200bb\ufeff", "javascript:alert(1)", "x" * 9000, "{0}%s\\u0000"]
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
DRAWN = ("d", "x", "y", "cx", "cy", "r", "width", "height", "viewbox")


def check(html: str) -> SimpleNamespace:
    """A page's text, tags and attributes. It is balanced, has one script which is ours, nothing from outside, finite
    numbers in the drawings."""
    script = f"<script>{page.JS}</script>"
    assert html.count("<script") == html.count(script) == 1
    assert not INVISIBLE.search(html) and len(html.encode()) < 2_000_000
    assert "@import" not in page.CSS and "url(" not in page.CSS
    # as XML, whose parser forgives nothing
    closed = re.sub("<((meta|br|input)( [^>]*)?)>", r"<\1/>", html.replace(script, "").replace("class=wide", 'class="wide"'))
    tree = ElementTree.fromstring(closed.removeprefix("<!doctype html>"))
    tags = [node.tag.rpartition("}")[2] for node in tree.iter()]
    attributes = [(name, value) for node in tree.iter() for name, value in node.items() if node.tag != "meta"]
    assert set(tags) <= TAGS
    for name, value in attributes:
        assert not name.startswith("on") and name not in ("src", "srcset", "xlink:href", "action"), (name, value)
        assert name != "href" or re.fullmatch("#[a-z]+", value), value
        if name.lower() in DRAWN:
            for number in re.findall(r"[-+]?[\w.]+", re.sub(r"[MLHZlm]", " ", value)):
                assert math.isfinite(float(number)), (name, value)
    return SimpleNamespace(html=html, text=" ".join(tree.itertext()), tags=tags, attributes=attributes)


def measured(rng, step: int, teachers: list[str], students: list[str], n: int) -> dict:
    """A step's line of metrics.jsonl; every fifth has a probe."""
    def described(n: int = 24) -> dict:
        return dict(n=n, valid=rng.uniform(0.4, 1), reasons=dict(duplicate=2, syntax=1), teacher_reward=rng.uniform(-1, 1),
                    solve_rate=rng.random(), solve_0=0.2, solve_1=0.5, duplicates=0.1, statements=2 + rng.random())

    def shares() -> dict:
        return {kind: {name: rng.random() for name in teachers + students} for kind in ("math", "logic")}
    members = {name: described() | dict(role="teacher" if name in teachers else "student", mu=25 + rng.gauss(0, 2), sigma=8 / (step + 1),
                                        reward=0.5, think=rng.random(), entropy=1.0, cosine=rng.random()) for name in teachers + students}
    row = dict(step=step, think=0.5, **described(n), members=members, task_types=dict(code_o=described(), code_i=described()),
               unique_structures=50 * (step + 1), beats_guessing=0.8, kl=None, entropy=None, alarms={}, tokens_generated=1000 * (step + 1),
               seconds=dict(propose=1.0, solve=2.0))
    if step % 5 == 0:
        row |= dict(base_solve=0.5, student_solve=0.6, heldout_n=50, heldout_greedy={name: rng.random() for name in students},
                    unseen_n=dict(math=9, logic=9), unseen=shares(), unseen_think=shares())
    if step == 0:
        row["heldout_greedy_base"] = row["unseen"]["math"]["base"] = row["unseen"]["logic"]["base"] = 0.3
    return row


def proposal(step: int, i: int, teacher: str, student: str, text: str) -> dict:
    """A line of tasks.jsonl; every third is refused."""
    row = dict(step=step, teacher=teacher, kind="code_o", reason="" if i % 3 else "syntax", reward=0.5)
    if i % 3 == 0:
        return row | dict(text=f"def f(x: {text}")
    return row | dict(id=i, program=f"def f(x):\n  return x + {i} # {text}", inputs=["1"], outputs=["2"], message=text, solve_rate=0.5,
                      attempts={student: ["correct", "wrong", "wrong", "malformed"]}, answers={student: ["2", "3", "3", text]})


def replaced(step: int, names: list[str]) -> dict:
    """A line of genealogy.jsonl; the child takes the first place among these names."""
    victim, names[0] = names[0], f"{names[0][0]}{max(int(name[1:]) for name in names) + 1}"
    return dict(step=step, child=names[0], operator="dare", note="", norm_ratio=0.95, parents=[dict(name=names[1]), dict(name=names[-1])],
                victim=dict(name=victim))


def invent(path: Path, steps: int = 6, pop: int = 4, per_step: int = 8, every: int = 3, text: str = "", **config) -> Path:
    """A run's directory, with a birth in each role every few steps."""
    path.mkdir(parents=True)
    rng, half = random.Random(0), pop // 2
    teachers, students = [[f"{role}{i}" for i in range(half)] for role in "TS"]
    logs = dict(metrics=[], tasks=[], genealogy=[])
    for step in range(steps):
        logs["metrics"].append(measured(rng, step, teachers, students, n=half * per_step))
        logs["tasks"] += [proposal(step, i, *pair, text) for pair in zip(teachers, students) for i in range(per_step)]
        if every and (step + 1) % every == 0:
            logs["genealogy"] += [replaced(step, teachers), replaced(step, students)]
    for name, some in logs.items():
        rewrite(path, name, some)
    settled = dict(base="micro/base", name=path.name, out="out", seed=0, steps=steps, prompt_format="micro", single=False, rank=8)
    env = dict(commit="abc", flags=dict(seed=[0, "every draw"], rank=[8, "of LoRA"], dedupe=["structural", "duplicates"]))
    for name, some in dict(config=settled | config, env=env).items():
        (path / f"{name}.json").write_text(json.dumps(some))
    return path


def rewrite(path: Path, log: str, some: list) -> None:
    """A run's log of these lines."""
    (path / f"{log}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))


def made(*paths: Path) -> SimpleNamespace:
    """The page of these runs, which is whole and harmless."""
    return check(page.page([RunLog(path) for path in paths]))
