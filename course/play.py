"""You against a member of a run of the micro base, in the terminal, rated as the members are.

    python -m course.play out/NAME              # solve a teacher's task; then a student's four attempts show
    python -m course.play out/NAME --teach      # write a task, and see which students solve it

An empty line ends the game. Answers and programs run in the sandbox, like the members' own.
"""
from dataclasses import dataclass
from itertools import count

import selfplay
from evolve import Member, members_of, plays
from common import leave, parser_of
from common import Refused, UserError
from run import State, task_rows
from run.startup import opened
from run.terminal import block, format_task, print_safely
from sample import records_of
from selfplay import ProposalRecord, Setup
from tasks import TASK_TYPES, verify_answers
from tasks.base import Task
from tasks.prompts import Answer
from trueskill_lite import RATINGS, Elo, TrueSkill

N_ATTEMPTS = 4                      # of a student at a task
FIRST_STEP = 10 ** 6                # no run has so many steps: the game's draws are none of the run's


@dataclass
class Round:
    """A task of the game, before students attempt it."""
    record: ProposalRecord
    score: float                    # what a student's solve rate is compared with


def tasks_of(s: Setup, state: State, teacher: Member, step: int) -> list[ProposalRecord]:
    """The valid tasks that a teacher writes now."""
    s.adapters.to_device([teacher.slot])
    _, proposed = selfplay.propose(s, state.archive, [(teacher, teacher)], step)
    selfplay.verify_proposals(s, state.archive, proposed, step)
    valid = []
    for p in proposed:
        # An answer to code_f is a program: more than the one line that you are asked for.
        if p.task and p.kind != "code_f":
            valid.append(p)
    return valid


def is_right(s: Setup, task: Task, answer: str) -> bool:
    """What the verifier says of your answer."""
    texts = [f"={answer}"]          # as a student writes it that does not think
    [verdicts] = verify_answers([task], [texts], "micro", s.limits, s.sandbox.run)
    return verdicts == ["correct"]


def solve_one(s: Setup, state: State, step: int) -> Round | None:
    """You answer a task that a teacher writes now; None if you end the game, or if no teacher writes a valid
    one."""
    teachers = members_of(state.members, "teacher")
    # They take turns; who writes nothing valid is passed over.
    first = step % len(teachers)
    for teacher in teachers[first:] + teachers:
        records = tasks_of(s, state, teacher, step)
        if not records:
            continue
        record = records[0]
        prompt = selfplay.prompt_student(s, record.task)
        print_safely(f"{teacher.name} asks:\n{block(prompt.user)}")
        answer = input("your answer: =")
        if not answer:
            return None
        if is_right(s, record.task, answer):
            print("correct")
            return Round(record, score=1.0)
        print(f"wrong: {record.task.outputs[0]} was expected")
        return Round(record, score=0.0)
    print("the teachers write nothing valid any more")
    return None


def write_one(s: Setup, you: Member) -> Round | None:
    """You write a task; None ends the game. Raises UserError for what is no task."""
    print("a function f(x), its lines, then an empty line:")
    lines = []
    while line := input("    "):
        lines.append(line)
    if not lines:
        return None
    given = input("its input, as between the brackets of a call: ")
    lines.append(f"f({given})")
    text = "\n".join(lines)
    try:
        proposal = TASK_TYPES["code_o"].read(Answer(text, "micro"), [], s.limits)
    except Refused as refused:
        raise UserError(f"no task ({refused.reason})") from None
    [record] = records_of(s, [proposal], you, "yours")
    # You win against a student that fails more than half of its attempts.
    return Round(record, score=0.5)


def rate(system: TrueSkill | Elo, you: Member, student: Member, surprise: float) -> None:
    """New ratings of both. surprise: your score less the student's solve rate."""
    if surprise < 0:
        student.rating, you.rating = system.rate(student.rating, you.rating)
    else:
        draw = surprise == 0
        you.rating, student.rating = system.rate(you.rating, student.rating, draw)
    print(f"ratings: you {you.rating.mu:.1f}, {student.name} {student.rating.mu:.1f}")


def students_attempt(s: Setup, students: list[Member], record: ProposalRecord, step: int) -> None:
    """The students attempt the task; it is printed with its right value and all attempts."""
    s.adapters.to_device([student.slot for student in students])
    pairs = [(record.teacher, student) for student in students]
    selfplay.solve(s, pairs, [record], step)
    [row] = task_rows([record], step)
    # The first line is about a step of a run.
    _, _, shown = format_task(row).partition("\n")
    print_safely(shown)


def play(path: str, teach: bool) -> None:
    """The game, from the run's last checkpoint. Raises UserError where there is none."""
    with opened(path, n_prompts=1, samples_per_task=N_ATTEMPTS) as (s, state):
        if s.base.prompt_format != "micro":
            raise UserError(f"{path}: this game is for runs of the micro base")
        system = RATINGS[s.cfg.rating]()
        role = "teacher" if teach else "student"
        you = Member("you", role, -1, system.new())
        for step in count(FIRST_STEP):
            try:
                asked = write_one(s, you) if teach else solve_one(s, state, step)
            except UserError as error:          # what you wrote is no task: you may try again
                print(error)
                continue
            if asked is None:
                return
            students = []
            for student in members_of(state.members, "student"):
                if plays(student, asked.record.kind):
                    students.append(student)
            if not teach:                       # one of them, in turn, is enough
                students = [students[step % len(students)]]
            students_attempt(s, students, asked.record, step)
            for student in students:
                verdicts = asked.record.attempts[student.name]
                solved = selfplay.solve_rate(verdicts) or 0.0
                rate(system, you, student, asked.score - solved)


def main() -> None:
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
