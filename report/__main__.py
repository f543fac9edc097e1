"""One HTML file that tells a run, from what its directory holds.

    python -m report out/demo                                   # writes out/demo/report.html
    python -m report out/full --compare out/single --out a.html # curves of several runs, with their budgets
    python -m report out/demo --picture docs/demo.svg           # only its first picture, as one SVG file

Needs Python alone. What a log lacks is shown as absent; lines that cannot be read are skipped and counted.
"""
from pathlib import Path

from infra import command
from report.opening import picture
from report.page import page
from report.run import RunLog


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises UserError for what the user can mend."""
    parser = command.parser_of("python -m report", __doc__)
    parser.add_argument("run", type=Path, help="a run's directory, out/NAME")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="runs to overlay")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html beside the logs")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the first picture only, as SVG")
    args = parser.parse_args(argv)
    run = RunLog(args.run)
    if args.picture:
        out, made = args.picture, picture(run)
    else:
        out, made = args.out or args.run / "report.html", page([run, *map(RunLog, args.compare)])
    out.write_text(made, encoding="utf-8")
    print(f"{out}: {len(made.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    command.leave("report", main)
