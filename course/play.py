"""You against a member of a run of the micro base, in the terminal, rated as the members are.

    python -m course.play out/NAME              # solve a teacher's task; then a student's four attempts show
    python -m course.play out/NAME --teach      # write a task, and see which students solve it

An empty line ends the game. Answers and programs run in the sandbox, like the members' own.
"""
import sys
from itertools import count

import selfplay
from evolve import Member, members_of, plays
from infra.command import parser_of
from infra.errors import UserError
from run.checkpoint import State, task_rows
from run.startup import opened
from run.terminal import block, format_task, print_safely
from sample import records_of
from selfplay import ProposalRecord, Setup
from tasks import TASK_TYPES, verify_answers
from tasks.base import Reject
from trueskill_lite import RATINGS

N_ATTEMPTS = 4                      # of a student at a task


def teachers_task(s: Setup, state: State, step: int) -> tuple[ProposalRecord, float] | None:
    """A task that a teacher writes now, and your score on it; None if you end the game or none is valid."""
    teachers = members_of(state.members, "teacher")
    for teacher in teachers[step % len(teachers):] + teachers:
        s.adapters.page_in([teacher.slot])
        _, proposed = selfplay.propose(s, state.archive, [(teacher, teacher)], step)
        selfplay.verify_proposals(s, state.archive, proposed, step)
        for p in proposed:
            if not p.task or p.kind == "code_f":            # an answer to that is more than one line
                continue
            prompt = selfplay.prompt_student(s, p.task)
            print_safely(f"{teacher.name} asks:\n{block(prompt.user)}")
            answer = input("your answer: =")
            if not answer:
                return None
            verdicts = verify_answers([p.task], [[f"={answer}"]], "micro", s.limits, s.sandbox.run)
            return p, float(verdicts == [["correct"]])
    print("the teachers write nothing valid any more")
    return None


def your_task(s: Setup, you: Member) -> tuple[ProposalRecord, float] | None:
    """A task of yours, and your score of 1/2; None ends the game. Raises UserError for no task."""
    print("a function f(x), its lines, then an empty line:")
    lines = []
    while line := input("    "):
        lines.append(line)
    if not lines:
        return None
    given = input("its input, as between the brackets of a call: ")
    text = "\n".join([*lines, f"f({given})"])
    proposal = TASK_TYPES["code_o"].parse_proposal(text, "micro", [], s.limits)
    if isinstance(proposal, Reject):
        raise UserError(f"no task ({proposal.reason})")
    [record] = records_of(s, [proposal], you, "yours")
    return record, 0.5


def play(path: str, teach: bool) -> None:
    """The game, from the run's last checkpoint. Raises UserError where there is none."""
    with opened(path, n_prompts=1, samples_per_task=N_ATTEMPTS) as (s, state):
        if s.base.prompt_format != "micro":
            raise UserError(f"{path}: this game is for runs of the micro base")
        system = RATINGS[s.cfg.rating]()
        you = Member("you", "teacher" if teach else "student", -1, system.new())
        for step in count(10 ** 6):             # steps that no run reaches: other draws
            try:
                asked = your_task(s, you) if teach else teachers_task(s, state, step)
            except UserError as e:
                print(e)
                continue
            if not asked:
                return
            record, score = asked
            students = [m for m in members_of(state.members, "student") if plays(m, record.kind)]
            if not teach:
                print("correct" if score else f"wrong: {record.task.outputs[0]} was expected")
                students = [students[step % len(students)]]
            s.adapters.page_in(m.slot for m in students)
            selfplay.solve(s, [(record.teacher, m) for m in students], [record], step)
            # the task with its right value, and all attempts; the line above it is about a run's step
            print_safely(format_task(*task_rows([record], step)).partition("\n")[2])
            for m in students:
                surprise = score - (selfplay.solve_rate(record.attempts[m.name]) or 0.0)
                if surprise < 0:
                    m.rating, you.rating = system.rate(m.rating, you.rating)
                else:
                    you.rating, m.rating = system.rate(you.rating, m.rating, draw=surprise == 0)
                print(f"ratings: you {you.rating.mu:.1f}, {m.name} {m.rating.mu:.1f}")


if __name__ == "__main__":
    parser = parser_of("python -m course.play", __doc__)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--teach", action="store_true", help="write the tasks instead of solving them")
    args = parser.parse_args()
    try:
        play(args.run, args.teach)
    except (EOFError, KeyboardInterrupt):
        print()
    except (UserError, OSError) as e:
        sys.exit(f"course.play: {e}")
