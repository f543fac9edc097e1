"""You against a member of a run of the micro base, in the terminal, rated as the members are.

    python -m course.play out/NAME              # solve a teacher's task; then a student's four attempts show
    python -m course.play out/NAME --teach      # write a task, and see which students solve it

An empty line ends the game. Answers and programs run in the sandbox, like the members' own.
"""
import argparse
import sys
from itertools import count

import selfplay
from evolve import members_of, plays
from infra.errors import UserError
from run.startup import opened
from run.terminal import block, print_safely
from selfplay import BASE, solve_rate
from tasks import TASK_TYPES, verify_answers
from tasks.base import Reject
from trueskill_lite import RATINGS

N_ATTEMPTS = 4                      # of a student at a task


def teachers_task(s, state, step):
    """A task that a teacher writes now, and your score on it; None if you end the game or none is valid."""
    teachers = members_of(state.members, "teacher")
    for teacher in teachers[step % len(teachers):] + teachers:
        s.adapters.page_in([teacher.slot])
        _, proposed = selfplay.propose(s, state.archive, [(teacher, teacher)], step)
        selfplay.verify(s, state.archive, proposed, step)
        for task in (p.task for p in proposed if p.task and p.kind != "code_f"):    # an answer is one line
            prompt = TASK_TYPES[task.kind].solve("micro", task, s.limits)
            print_safely(f"{teacher.name} asks:\n{block(prompt.user)}")
            answer = input("your answer: =")
            verdicts = verify_answers([task], [[f"={answer}"]], "micro", s.limits, s.sandbox.run)
            return (task, float(verdicts == [["correct"]])) if answer else None
    print("the teachers write nothing valid any more")


def your_task(s):
    """A task of yours, and your score of 1/2; None ends the game. Raises UserError for no task."""
    print("a function f(x), its lines, then an empty line:")
    lines = list(iter(lambda: input("    "), ""))
    if not lines:
        return None
    text = "\n".join([*lines, f"f({input('its input, as between the brackets of a call: ')})"])
    proposal = TASK_TYPES["code_o"].parse_proposal(text, "micro", [], s.limits)
    if isinstance(proposal, Reject):
        raise UserError(f"no task ({proposal.reason})")
    return selfplay.make_tasks(s, [proposal], "yours")[0], 0.5


def play(path: str, teach: bool) -> None:
    """The game, from the run's last checkpoint. Raises UserError where there is none."""
    with opened(path, n_prompts=1) as (s, state):
        if s.base.prompt_format != "micro":
            raise UserError(f"{path}: this game is for runs of the micro base")
        env = RATINGS[s.cfg.rating]()
        you = env.new()
        for step in count(10 ** 6):             # steps that no run reaches: other draws
            try:
                asked = your_task(s) if teach else teachers_task(s, state, step)
            except UserError as e:
                print(e)
                continue
            if not asked:
                return
            task, score = asked
            students = [m for m in members_of(state.members, "student") if plays(m, task.kind)]
            if not teach:
                print("correct" if score else f"wrong: {task.outputs[0]} was expected")
                students = [students[step % len(students)]]
            s.adapters.page_in(m.slot for m in students)
            slots = [m.slot for m in students]
            done = selfplay.attempt(s, [task] * len(slots), slots, step, BASE, N_ATTEMPTS)
            for i, (m, verdicts) in enumerate(zip(students, done.verdicts)):
                for text, verdict in zip(done.texts[i * N_ATTEMPTS:], verdicts):
                    print_safely(f"{m.name}, {verdict}:\n{block(text)}")
                surprise = score - (solve_rate(verdicts) or 0.0)
                if surprise < 0:
                    m.rating, you = env.rate(m.rating, you)
                else:
                    you, m.rating = env.rate(you, m.rating, draw=surprise == 0)
                print(f"ratings: you {you.mu:.1f}, {m.name} {m.rating.mu:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m course.play", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--teach", action="store_true", help="write the tasks instead of solving them")
    args = parser.parse_args()
    try:
        play(args.run, args.teach)
    except (EOFError, KeyboardInterrupt):
        print()
    except (UserError, OSError) as e:
        sys.exit(f"course.play: {e}")
