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
from report.run import Run, duplicates, guessing, heldout, num, of_role, probed
from report.svg import Line, line_chart, text


# name: (title of the panel, value of a line of metrics.jsonl, whether the axis is 0 to 1)
CURVES = {
    "valid": ("valid proposals", lambda row: num(row, "valid"), True),
    "silent": ("rows without advantage", lambda row: num(row, "zero_advantage"), True),
    "statements": ("statements per task", lambda row: num(row, "complexity", "statements"), False),
    "rarefied": ("distinct of 64 latest tasks", lambda row: num(row, "rarefied"), False),
    "duplicates": ("duplicate proposals", duplicates, True),
    "guess": ("right by guessing", guessing, True),
    "beats": ("solved more often than by guessing", lambda row: num(row, "beats_guessing"), True),
    "open": ("tasks neither never nor always solved", lambda row: None if num(row, "solve_0") is None
             else 1 - num(row, "solve_0") - num(row, "solve_1"), True),
    "reward": ("teachers' reward", of_role("teacher", "reward"), False),
    "solve": ("students on current tasks", lambda row: num(row, "solve_rate"), True),
    "base": ("frozen base on current tasks", lambda row: num(row, "base_solve"), True),
    "anchors": ("students on anchors, greedy", probed("anchors_greedy"), True),
    "think": ("students' attempts that think", lambda row: num(row, "think"), True),
    "tokens": ("tokens in a student's attempt", of_role("student", "response_tokens"), False),
    "transfer": ("students on word problems, not played", heldout("math", "student"), True),
    "inputs": ("students on input tasks, not played", heldout("code_i", "student"), True),
    "control": ("students on logic puzzles, not played", heldout("logic", "student"), True),
    "students": ("students' mean rating", of_role("student", "mu"), False),
    "teachers": ("teachers' mean rating", of_role("teacher", "mu"), False),
    "cosine": ("likeness of adapters, teachers", of_role("teacher", "cosine"), True),
}


def picture(runs: list[Run], curves: list[str]) -> str:
    """One SVG with a panel a curve and a line a run; light or dark as the reader's system is. Raises
    ValueError for a curve that none of the runs logged."""
    panels = []
    for curve in curves:
        title, value, share = CURVES[curve]
        lines = [Line(run.name, run.series(value), f"m{i % 8}") for i, run in enumerate(runs)]
        chart = line_chart(title, lines, share=share, cap=60)
        if not chart:
            raise ValueError(f"{curve}: none of these runs logged it; leave it out, or run them anew")
        panels.append((text(title), chart))
    return sheet(text(", ".join(title for title, _ in panels)), [panels])


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", help="names with commas: " + ", ".join(CURVES))
    parser.add_argument("runs", type=Path, nargs="+", help="runs' directories, each a line")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file to write")
    args = parser.parse_args(argv)
    curves = args.curves.split(",")
    if unknown := set(curves) - set(CURVES):
        raise ValueError(f"no curve is called {', '.join(sorted(unknown))}; there are {', '.join(CURVES)}")
    args.out.write_text(picture([Run(path, want_tasks=False) for path in args.runs], curves), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        print(f"picture.py: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
