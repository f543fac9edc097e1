"""One HTML file that tells a run, from what its directory holds. Needs Python alone.

    python -m report out/demo                           # writes out/demo/report.html
    python -m report out/full out/single --out a.html   # the first run, and curves of both with their budgets
    python -m report out/ablate                         # an ablation: arms, bands over seeds, contrasts
    python -m report out/demo --picture docs/demo.svg   # only the first picture, as one SVG file
"""
from pathlib import Path

from common import UserError, leave, parser_of
from report import RunLog
from report.page import ablation, page, picture


def main(argv: list[str] | None = None) -> None:
    """Runs the command line. Raises UserError for what the user can mend."""
    parser = parser_of("python -m report", __doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, several, or an ablation")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html in the first RUN")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write only the first picture, as SVG")
    args = parser.parse_args(argv)
    first = args.runs[0]
    out = args.picture or args.out or first / "report.html"
    if (first / "results.jsonl").exists():
        if len(args.runs) != 1 or args.picture:
            raise UserError(f"{first} is an ablation: give it alone")
        made = ablation(first)
    elif args.picture:
        made = picture(RunLog(first))
    else:
        made = page([RunLog(path) for path in args.runs])
    out.write_text(made, encoding="utf-8")
    print(f"{out}: {len(made.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    leave("report", main)
