"""You against a member of a run, in the terminal, rated as the members are.

    python -m course.play out/NAME              # solve a teacher's tasks before a student's attempts show
    python -m course.play out/NAME --teach      # write a task, and see which students solve it

An empty line ends the game. Answers and programs run in the sandbox, like the members' own.
"""
import argparse
import dataclasses
import sys
from pathlib import Path

import selfplay
from config import config_of_run
from evolve import members_of, plays
from infra.distributed import Ranks
from run.checkpoint import State, restore
from run.directory import RunDir
from run.platform import open_sandbox
from run.startup import populate, prepare
from run.terminal import block, print_safely
from selfplay import BASE, Setup
from tasks import TASK_TYPES, judge_answers
from tasks.base import Reject, Task
from trueskill_lite import RATINGS, Rating

ATTEMPTS, FAR = 4, 10 ** 6                  # of a student at a task; rounds are steps that no run reaches
ANSWER = {"micro": "={}", "base": "<answer>\n```\n{}\n```\n</answer>"}          # how a line becomes an answer
PROGRAM = {"micro": "{program}\nf({input})"}
FENCED = "```\n{}\n```"
FENCED_PROGRAM = "```input\n{input}\n```\n```python\n{program}\n```"


def new_task(s: Setup, state: State, step: int) -> tuple[str, Task] | None:
    """A valid task that a teacher writes now, with its name; None if no proposal of the round is valid."""
    s = dataclasses.replace(s, cfg=dataclasses.replace(s.cfg, n_prompts=1))
    teachers, students = members_of(state.members, "teacher"), members_of(state.members, "student")
    teacher = teachers[step % len(teachers)]
    _, proposed = selfplay.propose(s, state.archive, [(teacher, students[0])], step)
    selfplay.verify(s, state.archive, proposed, step)
    tasks = [p.task for p in proposed if p.task and p.kind != "code_f"]         # an answer is one line
    return (teacher.name, tasks[0]) if tasks else None


def write_task(s: Setup) -> Task | None:
    """A task that the person writes: a program, an empty line, its input; None where the game is over.
    Raises ValueError for a task that self-play would refuse."""
    print("a function f, its lines, then an empty line:")
    lines = []
    while line := input("    "):
        lines.append(line)
    if not lines:
        return None
    asked = input("its input, as between the brackets of a call: ")
    form = PROGRAM.get(s.base.prompt_format, FENCED_PROGRAM)
    text = form.format(program="\n".join(lines), input=asked)
    proposal = TASK_TYPES["code_o"].parse_proposal(text, s.base.prompt_format, [], s.limits)
    if isinstance(proposal, Reject):
        raise ValueError(f"no task ({proposal.reason})")
    task, = selfplay.make_tasks(s, [proposal], "yours")
    return task


def attempts(s: Setup, state: State, task: Task, step: int, n: int) -> dict[str, tuple]:
    """{student: (texts, verdicts)} of n students in turn, of those that play the task's type."""
    able = [m for m in members_of(state.members, "student") if plays(m, task.kind)]
    first = step % len(able)
    able = (able[first:] + able[:first])[:n]
    s.adapters.page_in(m.slot for m in able)
    done = selfplay.attempt(s, [task] * len(able), [m.slot for m in able], step, BASE, ATTEMPTS)
    texts = [done.texts[i * ATTEMPTS:(i + 1) * ATTEMPTS] for i in range(len(able))]
    return {m.name: (own, verdicts) for m, own, verdicts in zip(able, texts, done.verdicts)}


def rated(s: Setup, you: Rating, other: Rating, score: float) -> tuple[Rating, Rating]:
    """Your rating and the other's after a match: score above 0 is your win, 0 a draw."""
    env = RATINGS[s.cfg.rating]()
    if score >= 0:
        return env.rate(you, other, draw=score == 0)
    return env.rate(other, you)[::-1]


def play_round(s: Setup, state: State, you: Rating, step: int, teach: bool) -> Rating | None:
    """One task; your rating after it, None if you end the game. Raises ValueError for a bad task of yours."""
    if teach:
        task, own = write_task(s), 0.5                  # a teacher wins against who solves less than half
    elif found := new_task(s, state, step):
        name, task = found
        prompt = TASK_TYPES[task.kind].solve(s.base.prompt_format, task, s.limits)
        print_safely(f"{name} asks:\n{block(prompt.user)}")
        answer = input("your answer: ")
        text = ANSWER.get(s.base.prompt_format, FENCED).format(answer)
        right = judge_answers([task], [[text]], s.base.prompt_format, s.limits,
                              lambda jobs: selfplay.run_jobs(s, jobs))
        own = float(right == [["correct"]])
        task = task if answer else None
    else:
        print("this teacher wrote nothing valid; the next one")
        return you
    if task is None:
        return None
    members = {m.name: m for m in state.members}
    n = len(members) if teach else 1
    for name, (texts, verdicts) in attempts(s, state, task, step, n).items():
        share = selfplay.solve_rate(verdicts) or 0.0
        if not teach:
            print("you: " + ("correct" if own else f"wrong; {task.outputs[0]} was expected"))
        print_safely(f"{name}: {share:.2f} correct\n{block(texts[0])}")
        you, members[name].rating = rated(s, you, members[name].rating, own - share)
        print(f"ratings: you {you.mu:.1f}, {name} {members[name].rating.mu:.1f}")
    return you


def play(path: str, teach: bool) -> None:
    """The game, from the run's last checkpoint. Raises ValueError where there is none."""
    run, ranks = RunDir(Path(path), writes=False), Ranks.join("auto")
    if not run.steps():
        raise ValueError(f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg, base = prepare(config_of_run(run.config(), run.path), ranks)
    with open_sandbox(0, cfg.weak_sandbox) as sandbox:
        setup, adam, base_hash = populate(cfg, base, ranks, sandbox)
        state = restore(run, cfg, setup, adam, base_hash, run.steps()[-1])
        you, step = RATINGS[cfg.rating]().new(), FAR
        while you:
            try:
                you = play_round(setup, state, you, step, teach)
            except ValueError as e:
                print(e)
            step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--teach", action="store_true", help="write the tasks instead of solving them")
    args = parser.parse_args()
    try:
        play(args.run, args.teach)
    except (EOFError, KeyboardInterrupt):
        print()
    except (ValueError, OSError) as e:
        sys.exit(f"course.play: {e}")
