"""Curves of runs as one small SVG file: how the pictures of the failure gallery were made.

    python course/picture.py valid,trained out/spiral out/ref --out course/gallery/spiral.svg

Curves are named after CURVES below; each becomes a panel, in which every run is a line.
"""
import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from report.layout import sheet
from report.run import RunLog, known
from report.svg import Line, line_chart, text

# name: (title of the panel, whether the axis is 0 to 1, keys in a line of metrics.jsonl)
LOGGED = {
    "valid": ("valid proposals", True, "valid"),
    "silent": ("rows without advantage", True, "frac_zero_advantage"),
    "statements": ("statements per task", False, "complexity", "statements"),
    "unique": ("distinct of 64 latest tasks", False, "unique_at_64"),
    "duplicates": ("duplicate proposals", True, "duplicates"),
    "beats": ("solved more often than by guessing", True, "beats_guessing"),
    "solve": ("students on current tasks", True, "solve_rate"),
    "base": ("frozen base on current tasks", True, "base_solve"),
    "think": ("students' attempts that think", True, "think"),
}
# The same of means over a role: the role, the dict by member's name, and keys of what it holds.
MEANS = {
    "reward": ("teachers' reward", False, "teacher", ("members",), "reward"),
    "anchors": ("students on anchors, greedy", True, "student", ("anchors_greedy",)),
    "tokens": ("tokens in a student's attempt", False, "student", ("members",), "response_tokens"),
    "transfer": ("students on word problems, not played", True, "student", ("heldout", "math")),
    "inputs": ("students on input tasks, not played", True, "student", ("heldout", "code_i")),
    "control": ("students on logic puzzles, not played", True, "student", ("heldout", "logic")),
    "students": ("students' mean rating", False, "student", ("members",), "mu"),
    "teachers": ("teachers' mean rating", False, "teacher", ("members",), "mu"),
    "cosine": ("likeness of adapters, teachers", True, "teacher", ("members",), "cosine"),
}
OTHERS = {
    "guess": ("right by guessing", True),
    "open": ("tasks neither never nor always solved", True),
}
CURVES = LOGGED | MEANS | OTHERS


def points(run: RunLog, curve: str) -> list:
    """A run's points (step, value) of one of CURVES."""
    if curve == "guess":
        return run.guessing()
    if curve == "open":
        never, always = known(run.points("solve_0")), dict(known(run.points("solve_1")))
        return [(step, 1 - share - always[step]) for step, share in never if step in always]
    _, _, *keys = CURVES[curve]
    return run.points(*keys) if curve in LOGGED else run.mean(*keys)


def picture(runs: list[RunLog], curves: list[str]) -> str:
    """One SVG with a panel a curve and a line a run; light or dark as the reader's system is. Raises
    ValueError for a curve that none of the runs logged."""
    panels = []
    for curve in curves:
        title, share, *_ = CURVES[curve]
        lines = [Line(run.name, points(run, curve), f"m{i % 8}") for i, run in enumerate(runs)]
        chart = line_chart(title, lines, share=share, cap=60)
        if not chart:
            raise ValueError(f"{curve}: none of these runs logged it; leave it out, or run them anew")
        panels.append((text(title), chart))
    return sheet(text(", ".join(title for title, _ in panels)), [panels])


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", help="names with commas: " + ", ".join(CURVES))
    parser.add_argument("runs", type=Path, nargs="+", help="runs' directories, each a line")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file to write")
    args = parser.parse_args(argv)
    curves = args.curves.split(",")
    if unknown := set(curves) - set(CURVES):
        raise ValueError(f"no curve is called {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    runs = [RunLog(path, want_tasks=False) for path in args.runs]
    args.out.write_text(picture(runs, curves), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        print(f"picture.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
