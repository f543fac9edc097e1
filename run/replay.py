"""One step of an earlier run again, or one match of it: prompts as the models saw them, texts, verdicts.

    python -m run.replay out/base-1 75              # all matches of step 75
    python -m run.replay out/base-1 75 T2:S1        # one of them

The step is computed anew by the run's own flags, from the nearest checkpoint (a run with --keep 999 has all
of them) or from step 0, and nothing is written. Exit code 0: every text is what tasks.jsonl says; 1: some are
not, so that another version, device or number of processes made the run; 2: there is no such run, step or
match.
"""
import argparse
import dataclasses
import json
import sys
from pathlib import Path

import selfplay
from config import Config, config_of_run
from generate import Rollout
from infra.distributed import Ranks
from run.checkpoint import RunDir, State, init_state, restore
from run.platform import Signals, open_sandbox
from run.probes import is_probed, probe_current
from run.startup import populate, prepare
from run.task_log import task_rows
from run.terminal import block, colored, format_task, paint, print_safely
from selfplay import ProposalRecord, Setup
from train import train


def wanted(run: RunDir, step: int, match: str) -> tuple[Config, list[str], list[dict]]:
    """A run's configuration, its matches "T2:S1" at `step` (or the one asked for), and what tasks.jsonl says
    of that step. Raises ValueError where there is no such run, step or match."""
    cfg = config_of_run(run.config(), run.path)
    matches, tasks = (run.rows(name, run.sizes()[name]) for name in ("matches.jsonl", "tasks.jsonl"))
    steps = sorted({m["step"] for m in matches})
    if step not in steps:
        held = f"steps {steps[0]} to {steps[-1]}" if steps else "no finished step"
        raise ValueError(f"step {step}: the run's log has {held}")
    pairs = [f"{m['teacher']}:{m['student']}" for m in matches if m["step"] == step]
    if match and match not in pairs:
        raise ValueError(f"match {match}: at step {step} there were {', '.join(pairs)}")
    return cfg, [match] if match else pairs, [row for row in tasks if row["step"] == step]


def prompt_of(s: Setup, rollout: Rollout, row: int) -> str:
    """The prompt of a row of a rollout, with its special tokens."""
    ids = rollout.ids[row, :rollout.prompt_len[row]].tolist()
    return s.base.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def replay_step(s: Setup, state: State, matches: list[str], logged: list[dict]) -> bool:
    """Play the state's step once more up to the rewards, the whole batch as it was (rows alone could round
    otherwise), and print these matches in full. True if the whole step is what `logged` says."""
    step = state.step
    pairs = selfplay.match(s, state.members, step)
    s.adapters.page_in(m.slot for pair in pairs for m in pair)
    rollout, proposed = selfplay.propose(s, state.archive, pairs, step)
    selfplay.verify(s, state.archive, proposed, step)
    solved, attempts = selfplay.solve(s, pairs, proposed, step)
    if is_probed(s.cfg, step):
        probe_current(s, proposed, step, state.frozen)          # a reward may look at the base's solve rate
    selfplay.pay_teachers(s, state.archive, proposed)
    asked = {}
    for i, (p, student) in enumerate(solved):
        asked[id(p), student.name] = prompt_of(s, attempts.rollout, i * s.cfg.samples_per_task)
    for teacher, student in (match.split(":") for match in matches):
        print_safely(paint("head", f"step {step}, {teacher} against {student}", colored()))
        for p in proposed:
            if p.teacher.name == teacher:
                prompt = prompt_of(s, rollout, p.row) if rollout else f"(a task of --tasks {s.cfg.tasks})"
                print_proposal(p, student, prompt, asked, step)
    made = json.loads(json.dumps(task_rows(proposed, step)))
    same = sum(old == {k: new.get(k) for k in old} for old, new in zip(logged, made))
    otherwise = "" if same == len(made) else ": another version, device or number of processes made them"
    print_safely(f"{same} of {len(made)} proposals of step {step}, with all attempts at them, are what "
                 f"tasks.jsonl says{otherwise}")
    return same == len(made) == len(logged)


def print_proposal(p: ProposalRecord, student: str, prompt: str, asked: dict, step: int) -> None:
    """A proposal behind its prompt, and the student's attempts at it behind theirs, which `asked` holds."""
    row, = task_rows([p], step, limit=sys.maxsize)
    attempts = {name: verdicts for name, verdicts in row.get("attempts", {}).items() if name == student}
    for text in [prompt, *(asked[id(p), name] for name in attempts)]:
        print_safely(paint("faint", block(text, "  | "), colored()))
    print_safely(format_task(row | dict(attempts=attempts), colored(), whole=True) + "\n")


def replay(path: str, step: int, match: str = "", device: str = "auto") -> bool:
    """Whether the step was the same again. Raises ValueError where it cannot be played."""
    ranks, run = Ranks.join(device), RunDir(Path(path), writes=False)
    if ranks.world > 1:
        raise ValueError("a step is replayed by one process: start it without torchrun")
    cfg, matches, logged = wanted(run, step, match)
    cfg, base = prepare(cfg, ranks)
    with open_sandbox(0, cfg.weak_sandbox) as sandbox:
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        before = [n for n in run.steps() if n <= step]
        if before:
            state = restore(run, cfg, setup, adam, base_hash, before[-1])
        else:
            state = init_state(cfg, setup, base_hash)
        if state.step < step:
            print(f"no checkpoint of step {step}: computing steps {state.step} to {step - 1} again",
                  flush=True)
        state.heldout, state.unseen = [], []                       # nobody reads what they would measure
        without = dataclasses.replace(setup, cfg=dataclasses.replace(setup.cfg, n_heldout=0, halt_on=""))
        train(without, state, run, adam, base_hash, Signals(), until=step)
        return replay_step(setup, state, matches, logged)


def main() -> int:
    """The command line; the exit code."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("step", type=int)
    parser.add_argument("match", nargs="?", default="", help="T2:S1; default: all matches of the step")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    args = parser.parse_args()
    try:
        return 0 if replay(args.run, args.step, args.match, args.device) else 1
    except (ValueError, OSError) as e:
        print(f"run.replay: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
