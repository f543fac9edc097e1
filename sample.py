"""Shows on the terminal what members write.

    python sample.py out/micro-1                      # all members of the best checkpoint
    python sample.py out/micro-1/step_19/T0           # a teacher's proposals, with what the verifier says
    python sample.py out/micro-1/step_19/S4 base      # attempts of a student and of the frozen base
    python sample.py out/micro-1/best/S4 --program "def f(x): return x[::-1]" --input "[1,2]"
    python sample.py out/micro-1/best/S4 --prompt "def fibonacci(n):"

The phases of a run do the work: prompts, parsers and verdicts are those of training.
"""
import argparse
import dataclasses
import re

import selfplay
from common import UserError, leave, parser_of, visible
from config import resolve_config
from eval.answer import BASE, load
from evolve import Member, members_of
from measure import format_task
from micro.programs import fresh_program
from run import archive_of, seeds, task_rows
from selfplay import RATINGS, ProposalRecord, Setup
from tasks import TASK_TYPES
from tasks.base import Proposal
from tasks.prompts import Prompt
from verifier import open_sandbox

OF_PROGRAMS = ("code_o", "code_i")          # the types whose task is a program and one input


def parse_args() -> argparse.Namespace:
    """Returns the command line. Raises UserError for flags that make no sense."""
    parser = parser_of("sample.py", __doc__)
    add = parser.add_argument
    add("members", nargs="+", metavar="MEMBER", help="runs, checkpoints, PEFT directories; base: the base")
    add("--base", default="", help="directory or hub id; default: what the members were trained on")
    add("--task-types", default="code_o", help="of proposals and tasks, separated by commas")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--program", default="", help="a program to attempt, on --input")
    one_of("--prompt", default="", help="any text, which every member answers")
    add("--input", default="", help="of --program, as between the brackets of a call")
    add("--prompt-format", default="", help="default: the run's, else the base's")
    add("--n", type=int, default=3, help="fresh tasks, or proposals of a teacher")
    add("--samples", type=int, default=2, help="attempts at a task, or answers to --prompt")
    add("--temperature", type=float, default=1.0)
    add("--max-new-tokens", type=int, help="of an answer; default: as in training")
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu or cuda")
    parser.set_defaults(run="", rollout_batch=None, dtype="auto")        # what load wants to know, too
    args = parser.parse_args()
    if args.input and not args.program:
        raise UserError("--input is that of a program: give --program, too")
    is_function = re.search(r"^def f\(", args.program, re.MULTILINE)
    if args.program and not is_function:
        raise UserError("--program: define a function f, as in 'def f(x): return x'")
    return args


def given_tasks(args: argparse.Namespace, task_types: tuple[str, ...]) -> list[Proposal]:
    """Returns what students are to attempt: --program, n fresh programs, or a type's own example."""
    given = []
    for kind in task_types:
        example = TASK_TYPES[kind].seed
        if args.program:
            if kind not in OF_PROGRAMS:
                raise UserError(f"--program is a task of code_o or code_i, not of {kind}")
            given.append(Proposal(kind, args.program, (args.input,)))
        elif kind in OF_PROGRAMS:
            for i in range(args.n):
                given.append(Proposal(kind, *fresh_program(f"{args.seed}/{i}")))
        elif example:
            given.append(example)
        else:
            raise UserError(f"--task-types {kind}: only teachers have such tasks: ask a teacher alone")
    return given


def show_tasks(setup: Setup, args: argparse.Namespace, members: list[Member]) -> None:
    """Prints the teachers' proposals, then the attempts of the students and of the base."""
    task_types = setup.cfg.task_types
    students = members_of(members, "student")
    given = given_tasks(args, task_types) if students else []
    # A phase wants pairs, and a step to key its draws by: a teacher meets itself, and the seed is the step.
    pairs = [(teacher, teacher) for teacher in members_of(members, "teacher")]
    proposed = []
    if pairs:
        archive = archive_of(selfplay.make_tasks(setup, seeds(task_types), "seed"))
        _, proposed = selfplay.propose(setup, archive, pairs, args.seed)
        selfplay.verify_proposals(setup, archive, proposed, args.seed)
    # The students' tasks are nobody's proposals.
    dealer = Member("task", "teacher", -1, RATINGS.new())
    dealt = []
    for task in selfplay.make_tasks(setup, given, "--program"):
        task = dataclasses.replace(task, teacher="task", step=args.seed)
        dealt.append(ProposalRecord(dealer, task.kind, 0, [], task=task))
    selfplay.solve(setup, [(dealer, student) for student in students], dealt, args.seed)
    for row in task_rows(proposed + dealt, args.seed):
        print(format_task(row | dict(reward=None)))


def show_answers(setup: Setup, text: str, members: list[Member]) -> None:
    """Prints every member's answers to a text, which a chat model is told in its template."""
    n, seed = setup.cfg.samples_per_task, setup.cfg.seed
    for m in members:
        _, answers = selfplay.ask(setup, [Prompt(text)], [m.slot], seed, selfplay.SOLVE, n)
        for answer in answers:
            print(f"{m.name}\n{visible(answer)}")


def main() -> None:
    """Runs the command line."""
    args = parse_args()
    args.adapters = [name for name in args.members if name != BASE]
    loaded, slots = load(args)
    members = []
    for name, slot in slots.items():
        writes = re.search(r"(^|/)T\d+$", name) and not args.program
        role = "teacher" if writes else "student"
        if slot >= 0 or BASE in args.members:
            members.append(Member(name, role, slot, RATINGS.new()))
    cfg = dataclasses.replace(                                  # of a run that samples so much
        loaded.cfg,
        task_types=tuple(args.task_types.split(",")),
        n_prompts=args.n,
        proposals_per_prompt=1,
        samples_per_task=args.samples,
        temperature=args.temperature)
    prompt_format = loaded.base.prompt_format
    cfg = resolve_config(cfg, prompt_format)
    with open_sandbox(prompt_format) as sandbox:
        setup = dataclasses.replace(loaded, cfg=cfg, sandbox=sandbox)
        if args.prompt:
            show_answers(setup, args.prompt, members)
        else:
            show_tasks(setup, args, members)


if __name__ == "__main__":
    leave("sample.py", main)
