"""The measured claims of docs/advanced/engine.md, docs/verifier.md and docs/speedrun.md.

    python -m bench card                    a card: right? how fast? 15 minutes, one page to send us
    python -m bench decode                  rollouts of 8 members in one batch, of one, and by PEFT
    python -m bench update                  the joint update of 8 members, and of one with all the rows
    python -m bench step                    rollout and update of 8 members and of 1 at equal rows
    python -m bench verifier                the verifier beside `python -c`: a minute
    python -m bench speedrun                tokens until the students solve .70

Ways are measured in one process and in turns (A B C, C B A, ...), so that a load from outside meets each of
them. A table (median, range of the repeats), then one line of JSON; keys with x_ are ratios, ours = 1.
"""
import argparse
import json
import os
import sys

from infra.errors import UserError

os.environ.setdefault("GOMP_SPINCOUNT", "0")           # read when torch is imported, hence before it
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from bench import card, engine, speedrun, verifier

COMMANDS = card.COMMANDS | verifier.COMMANDS | engine.COMMANDS | speedrun.COMMANDS


def parser() -> argparse.ArgumentParser:
    """The command line; see the top of the file."""
    p = argparse.ArgumentParser(prog="python -m bench", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    subs = p.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        sub = subs.add_parser(name, help=command.work.__doc__)
        for flag, given in command.flags.items():
            sub.add_argument(flag, **given)
    return p


def main() -> None:
    """Run a command, print its figures as a line of JSON."""
    args = parser().parse_args()
    try:
        figures = COMMANDS[args.command].work(args)
    except UserError as error:
        parser().exit(2, f"bench {args.command}: {error}\n")
    print(json.dumps(dict(command=args.command, **figures)))
    sys.exit(0 if figures.get("correct", True) else 1)


if __name__ == "__main__":
    main()
