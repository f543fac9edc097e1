"""Lets you play against the members of a run of the micro base, in the terminal, rated as they are.

    python -m course.play out/NAME              # solve a teacher's task; then a student's four attempts show
    python -m course.play out/NAME --teach      # write a task, and see which students solve it

An empty line ends the game. Answers and programs run in the sandbox, like the members' own.
"""
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import selfplay
from common import Refused, UserError, leave, parser_of, visible
from config import config_of
from evolve import Member, members_of
from measure import format_task
from ranks import Ranks
from run import RunDir, State, populate, prepare, restore, task_rows
from selfplay import RATINGS, ProposalRecord, Setup
from tasks import TASK_TYPES, verify_answers
from tasks.prompts import Answer
from verifier import open_sandbox

N_ATTEMPTS = 4                      # of a student at a task
FIRST_STEP = 10 ** 6                # no run has so many steps: the game's draws are none of the run's


@contextmanager
def opened(path: str) -> Iterator[tuple[Setup, State]]:
    """Yields a run at its last checkpoint."""
    ranks, run = Ranks.join("auto"), RunDir(path, writes=False)
    if not run.steps():
        raise UserError(f"{path}: no checkpoint; give the directory of a run, out/NAME")
    cfg = replace(config_of(run.config()), n_prompts=1, samples_per_task=N_ATTEMPTS)
    cfg, base = prepare(cfg, ranks)
    with open_sandbox(cfg.prompt_format) as sandbox:
        setup = populate(cfg, base, ranks, sandbox)
        yield setup, restore(run, setup, run.steps()[-1])


def a_task_of(s: Setup, state: State, teacher: Member, step: int) -> ProposalRecord | None:
    """Returns a valid task that a teacher writes now, if there is one. An answer to code_f is a program,
    which is more than the one line that you are asked for."""
    _, proposed = selfplay.propose(s, state.archive, [(teacher, teacher)], step)
    selfplay.verify_proposals(s, state.archive, proposed, step)
    for record in proposed:
        if record.task and record.kind != "code_f":
            return record
    return None


def solve_one(s: Setup, state: State, step: int) -> tuple[ProposalRecord | None, float]:
    """Asks you a task that a teacher writes now. Returns it, or None if you end the game, and your score: 1
    for a right answer, else 0."""
    teachers = members_of(state.members, "teacher")
    first = step % len(teachers)                # they take turns; who writes nothing valid is passed over
    for teacher in teachers[first:] + teachers:
        record = a_task_of(s, state, teacher, step)
        if record is None:
            continue
        prompt = selfplay.prompt_student(s, record.task)
        print(visible(f"{teacher.name} asks:\n{prompt.user}"))
        answer = input("your answer: =")
        if not answer:
            return None, 0.0
        texts = [f"={answer}"]                  # as a student writes it that does not think
        [verdicts] = verify_answers([record.task], [texts], "micro", s.limits, s.sandbox.run)
        if verdicts == ["correct"]:
            print("correct")
            return record, 1.0
        print("wrong")
        return record, 0.0
    print("the teachers write nothing valid any more")
    return None, 0.0


def write_one(s: Setup, you: Member) -> tuple[ProposalRecord | None, float]:
    """Lets you write a task. Returns it, or None if you end the game, and .5: you win against a student that
    fails more than half of its attempts. Raises UserError for what is no task."""
    print("a function f(x), its lines, then an empty line:")
    lines = []
    while line := input("    "):
        lines.append(line)
    if not lines:
        return None, 0.5
    given = input("its input, as between the brackets of a call: ")
    text = "\n".join([*lines, f"f({given})"])
    try:
        proposal = TASK_TYPES["code_o"].read(Answer(text, "micro"), [], s.limits)
    except Refused as refused:
        raise UserError(f"no task ({refused.reason})") from None
    [task] = selfplay.make_tasks(s, [proposal], "your task")
    return ProposalRecord(you, "code_o", 0, [], task=task), 0.5


def rate(you: Member, student: Member, surprise: float) -> None:
    """Rates you and a student anew. surprise: your score less the student's solve rate."""
    if surprise < 0:
        student.rating, you.rating = RATINGS.rate(student.rating, you.rating)
    else:
        you.rating, student.rating = RATINGS.rate(you.rating, student.rating, surprise == 0)
    print(f"ratings: you {you.rating.mu:.1f}, {student.name} {student.rating.mu:.1f}")


def play(path: str, teach: bool) -> None:
    """Plays from the run's last checkpoint. Raises UserError if there is none."""
    with opened(path) as (s, state):
        if s.base.prompt_format != "micro":
            raise UserError(f"{path}: this game is for runs of the micro base")
        you = Member("you", "teacher" if teach else "student", -1, RATINGS.new())
        for step in count(FIRST_STEP):
            try:
                record, score = write_one(s, you) if teach else solve_one(s, state, step)
            except UserError as error:          # what you wrote is no task: you may try again
                print(error)
                continue
            if record is None:
                return
            students = members_of(state.members, "student")
            if not teach:                       # one of them, in turn, is enough
                students = [students[step % len(students)]]
            selfplay.solve(s, [(record.teacher, student) for student in students], [record], step)
            [row] = task_rows([record], step)
            _, _, shown = format_task(row).partition("\n")          # the first line is about a step of a run
            print(shown)
            for student in students:
                solved = selfplay.solve_rate(record.attempts[student.name]) or 0.0
                rate(you, student, score - solved)


def main() -> None:
    """Runs the command line."""
    parser = parser_of("python -m course.play", __doc__)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--teach", action="store_true", help="write the tasks instead of solving them")
    args = parser.parse_args()
    try:
        play(args.run, args.teach)
    except EOFError:                            # Ctrl-D ends the game as an empty line does
        print()


if __name__ == "__main__":
    leave("python -m course.play", main)
