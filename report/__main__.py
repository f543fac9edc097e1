"""One HTML file that tells a run, from what its directory holds.

    python -m report out/demo                                   # writes out/demo/report.html
    python -m report out/demo --watch 30                        # every 30 seconds, until the run is complete
    python -m report out/full --compare out/single --out a.html # curves of several runs, with their budgets
    python -m report out/demo --picture docs/demo.svg           # only its first picture, as one SVG file

Needs Python alone. What a log lacks is shown as absent; lines that cannot be read are skipped and counted.
"""
import argparse
import os
import sys
import time
from pathlib import Path

from report.page import page
from report.run import RunLog, num
from report.think import picture


def write(path: Path, others: list[Path], out: Path, watch: float = 0) -> bool:
    """Write the report of the run at `path`, under a temporary name first; True if all its steps are done."""
    runs = [RunLog(path), *(RunLog(other, want_tasks=False) for other in others)]
    steps = num(runs[0].config, "steps")
    finished = bool(runs[0].metrics) and steps is not None and runs[0].metrics[-1]["step"] + 1 >= steps
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        part.write_text(page(runs, 0 if finished else watch), encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return finished


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for what the user can mend."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's directory, out/NAME")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="runs to overlay")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html beside the logs")
    parser.add_argument("--watch", type=float, default=0, metavar="SECONDS",
                        help="write it again and again until the run is complete")
    parser.add_argument("--picture", type=Path, metavar="FILE",
                        help="write the picture that the report opens with as an SVG file, and no report")
    args = parser.parse_args(argv)
    if not 0 <= args.watch < 1e6:
        raise ValueError(f"--watch {args.watch}: give a number of seconds")
    if args.picture and (args.compare or args.out or args.watch):
        raise ValueError("--picture draws one run, once: leave out --compare, --out and --watch")
    out = args.picture or args.out or args.run / "report.html"
    if out.is_dir() or not (out.parent.is_dir() or out.parent == args.run):
        flag = "--picture" if args.picture else "--out"
        raise ValueError(f"{flag} {out}: give the name of a file in a directory that exists")
    if args.picture:
        out.write_text(picture(RunLog(args.run, want_tasks=False)), encoding="utf-8")
        print(f"{out}: {out.stat().st_size / 1e3:.0f} KB")
        return
    while not (finished := write(args.run, args.compare, out, args.watch)) and args.watch:
        print(f"{out}: written {time.ctime()}, again in {args.watch:g} s (Ctrl-C ends it)", flush=True)
        time.sleep(args.watch)
    complete = ", the run is complete" if finished and args.watch else ""
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB{complete}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as e:
        print(f"report: {e}", file=sys.stderr)
        sys.exit(2 if isinstance(e, ValueError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
