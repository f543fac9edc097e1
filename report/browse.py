"""The tasks of a run, to be read one by one: each is folded, and the page's script filters them."""
from collections import Counter
from itertools import zip_longest

from report.layout import section
from report.run import RunLog, items, num
from report.svg import brief, text

ROOM = 750_000                      # bytes of the page, at most
VERDICTS = {
    "correct": "✓ correct",
    "wrong": "✗ wrong",
    "malformed": "∅ malformed",
    "violation": "⚠ forbidden system call",
    "unjudged": "? the sandbox failed"}
TEXTS = {
    "program": "program",
    "message": "hint",
    "inputs": "input",
    "outputs": "output",
    "text": "what the teacher wrote"}
# The script fills the menus with what the tasks hold, and shows the form.
MENUS = ""
for name in ("teacher", "student", "kind", "solved"):
    MENUS += f'<label>{name} <select name="{name}"><option value="">any</option></select></label>'
FORM = f'<form>{MENUS}<label>text <input name="words"></label><span id="count" role="status"></span></form>'


def block(title: str, body: object) -> str:
    """A named text of a task; "" if it is missing."""
    if isinstance(body, list):
        body = "\n".join(map(str, body))
    if body in (None, ""):
        return ""
    return f"<h4>{title}</h4><pre>{text(body, 2500)}</pre>"


def attempts(row: dict) -> str:
    """Who tried, with what verdict and which words; equal attempts are told once."""
    out = ""
    for name in items(row, "attempts"):
        verdicts = list(map(str, items(row, "attempts", name, kind=list)))
        answers = [str(answer).strip() for answer in items(row, "answers", name, kind=list)]
        pairs = Counter(zip_longest(verdicts, answers[:len(verdicts)], fillvalue=""))
        for (verdict, answer), n in pairs.most_common():
            words = text(VERDICTS.get(verdict, verdict), 60)
            if n > 1:
                words = f"{n} × {words}"
            out += f"<h4>{text(name)}: {words}</h4>"
            if answer:
                out += f"<pre>{text(answer, 700)}</pre>"
    return out


def solved(row: dict) -> str:
    """What became of a proposal, as the filter has it: why it was refused, or how often it was solved."""
    rate = num(row, "solve_rate")
    if row.get("reason"):
        return str(row["reason"])
    if rate is None:
        return "not tried"
    return {0: "never", 1: "always"}.get(rate, "sometimes")


def pill(row: dict) -> str:
    """The same as a coloured label."""
    rate = num(row, "solve_rate")
    words = solved(row)
    shade = f'class="pill" style="--v:{min(1, max(0, rate or 0)):.2f}"'
    if row.get("reason"):
        shade = 'class="pill no"'
    elif rate is not None:
        words = f"solved {rate:.2f}"
    return f"<span {shade}>{text(brief(words, 30))}</span>"


def title_of(row: dict, students: str) -> str:
    """What a folded proposal shows: step, who wrote it, who tried, and how its program begins."""
    who = text(brief(row.get("teacher"), 20))
    if students:
        who += f" → {text(brief(students, 60))}"
    begin = str(row.get("program") or row.get("text") or "").split()
    code = text(" ".join(begin)[:90])
    return f"step {row['step']} · {who} · {text(brief(row.get('kind'), 20))} · <code>{code}</code>"


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, who tried, what became of it."""
    students = " ".join(items(row, "attempts"))
    data = dict(teacher=row.get("teacher"), student=students, kind=row.get("kind"), solved=solved(row))
    attributes = ""
    for key, value in data.items():
        attributes += f' data-{key}="{text(value, 200)}"'
    inner = ""
    for key, words in TEXTS.items():
        inner += block(words, row.get(key))
    inner += attempts(row)
    return (f'<details class="task"{attributes}><summary>{pill(row)} {title_of(row, students)}'
            f"</summary><div>{inner}{block('reward', num(row, 'reward'))}</div></details>")


def tasks(run: RunLog) -> str:
    """Tasks from the run's first step to its last, as many as there is room for, with their filters."""
    shown = [task(row) for row in run.tasks]
    while sum(len(made.encode()) for made in shown) > ROOM:
        shown = shown[::2]          # still from the first step to the last
    body = '<p class="absent wide">Absent: no proposal can be read from tasks.jsonl.</p>'
    if shown:
        body = f'<div class="card wide">{FORM}<div id="list">{"".join(shown)}</div></div>'
    words = f"{len(shown):,} of {run.n_tasks:,} proposals, evenly spaced in the order of writing."
    return section("browse", "Browse the tasks", words, [body])
