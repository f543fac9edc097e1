"""The measured claims of docs/advanced/engine.md, docs/verifier.md and docs/speedrun.md.

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

from infra.command import leave, parser_of

os.environ.setdefault("GOMP_SPINCOUNT", "0")           # read when torch is imported, hence before it
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from bench import engine, speedrun, verifier

# What each command does, which returns figures, and its flags as argparse takes them
COMMANDS = {
    "verifier": (verifier.verify, verifier.FLAGS),
    "decode": (engine.decode, engine.FLAGS),
    "update": (engine.update, engine.FLAGS),
    "step": (engine.step, engine.FLAGS),
    "speedrun": (speedrun.speedrun, speedrun.FLAGS),
}


def parser() -> argparse.ArgumentParser:
    """The command line; see the top of the file."""
    p = parser_of("python -m bench", __doc__)
    subs = p.add_subparsers(dest="command", required=True)
    for name, (work, flags) in COMMANDS.items():
        sub = subs.add_parser(name, help=work.__doc__)
        sub.set_defaults(work=work)
        for flag, given in flags.items():
            sub.add_argument(flag, **given)
    return p


def main() -> int:
    """Run a command and print its figures as a line of JSON."""
    args = parser().parse_args()
    figures = args.work(args)
    print(json.dumps(dict(command=args.command, **figures)))
    return 0


if __name__ == "__main__":
    leave("bench", main)
