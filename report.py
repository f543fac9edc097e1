"""One HTML file that tells a run, or lays several over each other, from what their directories hold.

    python report.py out/demo                                    # writes out/demo/report.html
    python report.py out/demo --compare out/single               # curves of both

Needs Python alone. All texts of models are escaped, and the page has no script.
"""
import html
import json
from collections.abc import Callable
from pathlib import Path

from common import demand, leave, parser_of

W, H, PAD = 380, 200, 34            # of a chart
SHOWN = 400                         # tasks on the page, at most
COLORS = "#c2410c #1d4ed8 #15803d #7e22ce #b45309 #0e7490 #be123c #4d7c0f".split()
CSS = """body{font:15px system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
figure{display:inline-block;margin:.5em;vertical-align:top;width:380px}figcaption{font-size:13px;color:#555}
svg text{font-size:10px;fill:#777}table{border-collapse:collapse;font-size:13px}td,th{padding:2px 8px;text-align:left;
border-bottom:1px solid #eee}pre{background:#f6f6f6;padding:.5em;overflow:auto}details{margin:.3em 0}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}pre{background:#1d1d1d}figcaption{color:#aaa}}"""
Points = list[tuple[int, float | None]]         # (step, value)


def text(value: object, limit: int = 3000) -> str:
    """Any text made harmless for HTML."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>" for c in str(value)[:limit])
    return html.escape(shown)


def get(row: dict, *keys: str) -> object:
    """row[key][key]..., or None where something is missing."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


class Log:
    """A run's directory, read."""

    def __init__(self, path: Path):
        demand((path / "metrics.jsonl").exists(), f"{path} has no metrics.jsonl: give out/NAME")
        self.path = path
        self.config = json.loads((path / "config.json").read_text())
        self.env = json.loads((path / "env.json").read_text())
        self.metrics, self.tasks, self.births = map(self.rows, ("metrics", "tasks", "genealogy"))

    def rows(self, name: str) -> list[dict]:
        """A log; a last line that was cut off is left out."""
        file = self.path / f"{name}.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def points(self, *keys: str) -> Points:
        """The number at keys over the run."""
        return [(row["step"], get(row, *keys)) for row in self.metrics]

    def each(self, *keys: str, of: tuple[str, ...] = (), role: str = "") -> dict[str, Points]:
        """Name -> its number over the run: of the dicts at keys, each member's, or its entry at `of`."""
        curves = {}
        for row in self.metrics:
            for name, own in (get(row, *keys) or {}).items():
                if not role or get(row, "members", name, "role") == role:
                    curves.setdefault(name, []).append((row["step"], get(own, *of) if of else own))
        return curves


def chart(title: str, caption: str, curves: dict[str, Points], share: bool = True) -> str:
    """Curves over steps as a figure; a name stands at the end of its curve."""
    known = {name: [(x, y) for x, y in points if y is not None] for name, points in curves.items()}
    known = {name: points for name, points in known.items() if points}
    if not known:
        return ""
    xs = [x for points in known.values() for x, _ in points]
    ys = [y for points in known.values() for _, y in points]
    low, high = (0, 1) if share else (min(0, *ys), max(*ys, 1e-9))
    last = max(xs) or 1

    def place(x: float, y: float) -> tuple[float, float]:
        return PAD + x / last * (W - 2 * PAD - 20), H - 20 - (y - low) / (high - low) * (H - 35)

    body = ""
    for y in (low, (low + high) / 2, high):
        left, at = place(0, y)
        body += f'<line x1="{left}" x2="{W - PAD - 20}" y1="{at:.0f}" y2="{at:.0f}" stroke="#8884"/>'
        body += f'<text x="2" y="{at + 3:.0f}">{y:.3g}</text>'
    body += f'<text x="{PAD}" y="{H - 4}">step 0</text><text x="{W - PAD - 40}" y="{H - 4}">{last}</text>'
    for i, (name, points) in enumerate(known.items()):
        color = "#888" if name == "base" else COLORS[i % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        x, y = place(*points[-1])
        width = 3 if name in ("students", "mean") else 1.5
        body += (f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"><title>{text(name)}'
                 f'</title></polyline><text x="{x + 3:.0f}" y="{y + 3:.0f}" style="fill:{color}">{text(name, 12)}</text>')
    return (f'<figure><svg viewBox="0 0 {W} {H}" role="img" aria-label="{text(title)}">{body}</svg>'
            f"<figcaption><b>{text(title)}</b>. {caption}</figcaption></figure>")


def mean(curves: dict[str, Points]) -> Points:
    """The mean over curves at each step."""
    values = {}
    for points in curves.values():
        for x, y in points:
            if y is not None:
                values.setdefault(x, []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in values.items()]


def table(head: list[str], rows: list[list]) -> str:
    """A table; cells are text."""
    lines = ["".join(f"<th>{text(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{text(cell, 300)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def charts(run: Log) -> str:
    """What a run learned, what its teachers wrote, and how its members did."""
    heldout = run.each("heldout_greedy")
    out = chart("Held-out tasks", "One line a student, greedily. Grey: the frozen base. These tasks are never trained on.",
                heldout | dict(mean=mean(heldout), base=run.points("heldout_greedy_base")))
    out += chart("Who thinks", "Share of a student's attempts that reason before the answer.",
                 run.each("members", of=("think",), role="student") | dict(mean=run.points("think")))
    for kind in get(run.metrics[0], "unseen") or {}:
        out += chart(f"{kind}, never trained on", "Means of students and base on an unseen task type.",
                     {"students": mean(run.each("unseen", kind, role="student")), "base": run.points("unseen", kind, "base")})
    out += chart("The teachers' tasks", "Solved by the students, and by the base: if that falls, tasks got harder.",
                 dict(students=run.points("solve_rate"), base=run.points("base_solve"), valid=run.points("valid")))
    out += chart("Statements", "Of a task, by its teacher.", run.each("members", of=("statements",), role="teacher"), False)
    for role in ("teacher", "student"):
        out += chart(f"Ratings of {role}s", "TrueSkill's mu: it compares members, and shows no progress.",
                     run.each("members", of=("mu",), role=role), False)
    reasons = {reason for row in run.metrics for reason in row["reasons"]}
    refused = {r: [(row["step"], row["reasons"].get(r, 0) / max(1, row["n"])) for row in run.metrics] for r in sorted(reasons)}
    return out + chart("Refused proposals, by reason", "", refused)


def births(run: Log) -> str:
    """Who was born, of whom, in whose place."""
    rows = [[b["step"], b["child"], b["operator"], " and ".join(p["name"] for p in b["parents"]), b["victim"]["name"],
             f"{b['norm_ratio']:.2f}"] for b in run.births]
    return table(["step", "child", "operator", "of", "in place of", "norm to its parents'"], rows) if rows else "Nobody."


def task(row: dict) -> str:
    """One proposal, folded: who wrote it, what became of it, who tried."""
    fate = row["reason"] or ("not tried" if row.get("solve_rate") is None else f"solved {row['solve_rate']:.2f}")
    body = "\n".join(str(row[key]) for key in ("text", "message", "program") if row.get(key))
    body += "".join(f"\n{given} -> {gold}" for given, gold in zip(row.get("inputs", ()), row.get("outputs", ())))
    for name, verdicts in row.get("attempts", {}).items():
        body += "".join(f"\n\n{name}: {v}\n{answer}" for v, answer in zip(verdicts, row["answers"][name]))
    return (f"<details><summary>step {row['step']}, {text(row['teacher'])}, {text(row['kind'])}: {text(fate)}, reward "
            f"{row['reward']:.2f}</summary><pre>{text(body)}</pre></details>")


def compared(runs: list[Log]) -> str:
    """The same curves of several runs, and what each cost."""
    what: dict[str, Callable[[Log], Points]] = {
        "Held-out tasks": lambda run: mean(run.each("heldout_greedy")),
        "Who thinks": lambda run: run.points("think"),
        "Base on the teachers' tasks": lambda run: run.points("base_solve")}
    out = "".join(chart(title, "Means of students.", {run.path.name: of(run) for run in runs}) for title, of in what.items())
    rows = []
    for run in runs:
        differ = [f"{k} {v}" for k, v in run.config.items() if v != runs[0].config.get(k) and k not in ("name", "out")]
        rows.append([run.path.name, len(run.metrics), f"{run.metrics[-1]['tokens_generated']:,}", ", ".join(differ)])
    return f"<h2>Compared</h2>{out}{table(['run', 'steps', 'tokens', 'other flags than the first'], rows)}"


def page(runs: list[Log]) -> str:
    """The whole report; it is about the first run."""
    run = runs[0]
    went = [y for _, y in mean(run.each("heldout_greedy"))]
    lead = f"Students went from <b>{went[0]:.2f}</b> to <b>{went[-1]:.2f}</b> on held-out tasks." if went else ""
    alarms = [[row["step"], name, said] for row in run.metrics for name, said in row["alarms"].items()]
    tasks = "".join(map(task, run.tasks[::len(run.tasks) // SHOWN + 1]))
    settings = [[k, v] for k, v in (run.config | run.env).items() if not isinstance(v, dict)]
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{text(run.path.name)}</title><style>{CSS}</style>'
            f"<h1>{text(run.path.name)}</h1><p>{lead} One run is no claim.</p>{charts(run)}"
            f"{compared(runs) if len(runs) > 1 else ''}<h2>Births</h2>{births(run)}<h2>Alarms</h2>"
            f"{table(['step', 'alarm', 'what it says'], alarms) if alarms else 'None.'}<h2>Tasks</h2>{tasks}"
            f"<h2>Flags and machine</h2>{table(['', ''], settings)}</html>\n")


def main() -> None:
    """The command line."""
    parser = parser_of("report.py", __doc__)
    parser.add_argument("run", type=Path, help="a run's directory, out/NAME")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="runs to overlay")
    parser.add_argument("--out", type=Path, help="default: report.html beside the logs")
    args = parser.parse_args()
    out = args.out or args.run / "report.html"
    out.write_text(page(list(map(Log, [args.run, *args.compare]))), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    leave("report.py", main)
