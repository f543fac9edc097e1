"""A trained teacher writes tasks: JSON lines that --tasks, --seed-tasks and bench learn read.

    python -m run.write out/base-1 T3 --n 1000 > tasks.jsonl

Proposals are verified as in training; what repeats one of the run's tasks, or an earlier line, is left out.
"""
import argparse
import contextlib
import dataclasses
import json
import sys
from pathlib import Path

import selfplay
from config import config_of_run
from infra.distributed import Ranks
from run.checkpoint import RunDir, restore
from run.platform import open_sandbox
from run.startup import populate, prepare

PATIENCE = 20                       # rounds without a new task after which a teacher has nothing more to say


@contextlib.contextmanager
def opened(path: str, device: str = "auto", **changes):
    """A run as its last checkpoint has it: (Setup, State), in which teachers write and repetitions are
    refused; changes: of its flags. Raises ValueError where there is none."""
    ranks, run = Ranks.join(device), RunDir(Path(path), writes=False)
    if not run.steps():
        raise ValueError(f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg = config_of_run(run.config(), run.path)
    cfg, base = prepare(dataclasses.replace(cfg, tasks="", dedupe="structural", **changes), ranks)
    with open_sandbox(0, cfg.weak_sandbox) as sandbox:
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        yield setup, restore(run, cfg, setup, adam, base_hash, run.steps()[-1])


def write(path: str, name: str, n: int, device: str = "auto"):
    """Yields up to n new tasks of the run's teacher as JSON lines. Raises ValueError where there is none."""
    with opened(path, device) as (setup, state):
        teachers = {m.name: m for m in state.members if m.role == "teacher"}
        if name not in teachers:
            raise ValueError(f"{name}: the teachers of step {state.step} are {', '.join(teachers)}")
        teacher, step, last = teachers[name], state.step, state.step
        setup.adapters.page_in([teacher.slot])
        while n > 0 and step - last < PATIENCE:
            _, proposed = selfplay.propose(setup, state.archive, [(teacher, teacher)], step)
            selfplay.verify(setup, state.archive, proposed, step)
            for p in proposed:
                if p.task and n > 0:
                    state.archive.add(p.task, p.structure)
                    n, last = n - 1, step
                    yield json.dumps(dataclasses.asdict(p.task))
            step += 1


def main() -> int:
    """The command line; the exit code."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("teacher", help="T3")
    parser.add_argument("--n", type=int, default=100, help="tasks, at most")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    args = parser.parse_args()
    n_written = 0
    try:
        for line in write(args.run, args.teacher, args.n, args.device):
            print(line, flush=True)
            n_written += 1
    except (ValueError, OSError) as e:
        print(f"run.write: {e}", file=sys.stderr)
        return 2
    if n_written < args.n:
        print(f"{args.teacher} repeats itself: {n_written} of {args.n} tasks", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
