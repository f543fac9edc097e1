"""One HTML file that tells a run, from what its directory holds.

    python -m report out/demo                                   # writes out/demo/report.html
    python -m report out/full --compare out/single --out a.html # curves of several runs, with their budgets
    python -m report out/demo --picture docs/demo.svg           # only its first picture, as one SVG file

Needs Python alone. What a log lacks is shown as absent; lines that cannot be read are skipped and counted.
"""
import argparse
import sys
from pathlib import Path

from infra.errors import UserError
from report.opening import picture
from report.page import page
from report.run import RunLog


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises UserError for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory, out/NAME")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="runs to overlay")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html beside the logs")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the first picture only, as SVG")
    args = parser.parse_args(argv)
    out, run = args.picture or args.out or args.run / "report.html", RunLog(args.run)
    made = picture(run) if args.picture else page([run, *map(RunLog, args.compare)])
    out.write_text(made, encoding="utf-8")
    print(f"{out}: {len(made.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as e:
        print(f"report: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, UserError) else 1)
