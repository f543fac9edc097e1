"""What members write, on the terminal: a teacher's proposals, a student's attempts, an answer to any text.

    python sample.py out/micro-1/step_19/S4                  # attempts at fresh tasks, with verdicts
    python sample.py out/micro-1/step_19/T0                  # proposals, with what the verifier says
    python sample.py out/micro-1/step_19/S? --beside base    # several members, and the frozen base
    python sample.py out/micro-1/step_19/S4 --program "def f(x): return x[::-1]" --input "[1,2]"
    python sample.py out/NAME/step_200/S4 --task FILE --n 8  # JSON lines, as --tasks of train.py has them
    python sample.py out/NAME/step_200/S4 --prompt "def fibonacci(n):"

A member is a PEFT directory, of this project or not; one that is called T0, T1, ... is a teacher. The phases
of a run do the work, so that prompts, parsers and verdicts are those of training.
"""
import argparse
import dataclasses
import re

import selfplay
from config import Config, config_of, resolve_config
from eval import common
from evolve import Member, members_of
from infra.command import leave, parser_of
from infra.distributed import ALONE
from infra.errors import demand
from run.checkpoint import seeded_archive, seeds, task_rows
from run.terminal import block, format_task, print_safely
from selfplay import ProposalRecord, Setup
from tasks import FRESH, read_tasks
from tasks.base import Proposal
from tasks.prompts import Prompt
from tasks.validation import Limits
from trueskill_lite import RATINGS
from verifier import open_sandbox


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line. Raises UserError for flags that make no sense."""
    parser = parser_of("sample.py", __doc__)
    add = parser.add_argument
    add("adapters", nargs="+", metavar="MEMBER", help="PEFT directories, or directories of these")
    add("--base", default="", help="directory or hub id; default: what the members were trained on")
    add("--beside", default="", choices=("", "base"), help="base: the frozen base answers, too")
    add("--role", default="", choices=("", "teacher", "student"), help="default: by each member's name")
    add("--task-types", default="", help="of fresh tasks, proposals and --program; default: code_o")
    one_of = parser.add_mutually_exclusive_group().add_argument
    one_of("--task", default="", metavar="FILE", help="JSON lines of tasks to attempt")
    one_of("--program", default="", help="a program to attempt, on --input")
    one_of("--prompt", default="", metavar="TEXT", help="any text, which every member answers")
    add("--input", default="", help="of --program, as between the brackets of a call")
    add("--n", type=int, default=3, help="fresh tasks, or proposals of a teacher")
    add("--samples", type=int, default=2, help="attempts at a task, or answers to --prompt")
    add("--temperature", type=float, default=1.0)
    add("--max-new-tokens", type=int, help="tokens of an answer; default: as in training")
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu or cuda")
    parser.set_defaults(run="", dtype="auto")
    args = parser.parse_args(argv)
    demand(args.program or not args.input, "--input is that of a program: give --program, too")
    demand(args.n >= 1 and args.samples >= 1, "--n and --samples must be at least 1")
    return args


def given_tasks(args: argparse.Namespace, setup: Setup, dealer: Member) -> list[ProposalRecord]:
    """What students attempt: the tasks of --task, of --program, or fresh ones. Raises UserError for a task
    that is not valid."""
    what = "--program"
    if args.program:
        proposals = [Proposal(setup.cfg.task_types[0], args.program, (args.input,))]
    elif args.task:
        what = f"--task {args.task}"
        proposals = read_tasks(args.task)[:args.n]
    elif setup.base.prompt_format == "micro":
        cfg = dataclasses.replace(setup.cfg, tasks=FRESH)
        fresh = dataclasses.replace(setup, cfg=cfg)
        proposals = [dealt.proposal for dealt in selfplay.deal(fresh, [dealer], args.seed)]
    else:
        proposals = seeds(setup.cfg)
    return records_of(setup, proposals, dealer, what)


def records_of(setup: Setup, proposals: list[Proposal], dealer: Member, what: str) -> list[ProposalRecord]:
    """Proposals that somebody gave, ready to be attempted. Raises UserError naming the first invalid one."""
    records = []
    for number, task in enumerate(selfplay.make_tasks(setup, proposals, what)):
        task = dataclasses.replace(task, id=number)
        records.append(ProposalRecord(dealer, task.kind, number, [], task=task))
    return records


def show_tasks(setup: Setup, args: argparse.Namespace, members: list[Member]) -> None:
    """Print the teachers' proposals, then the attempts of the students and of the base."""
    archive = seeded_archive(setup)
    for teacher in members_of(members, "teacher"):
        # A phase wants pairs, to see which types both play, and a step, to key its draws by: here a teacher
        # meets itself, and the seed is the step.
        _, proposed = selfplay.propose(setup, archive, [(teacher, teacher)], args.seed)
        selfplay.verify_proposals(setup, archive, proposed, args.seed)
        show_rows(proposed, args.seed)
    students = members_of(members, "student")
    if students:
        # Nobody's teacher: the tasks are the user's, or fresh ones.
        dealer = Member("task", "teacher", -1, students[0].rating)
        dealt = given_tasks(args, setup, dealer)
        pairs = [(dealer, student) for student in students]
        selfplay.solve(setup, pairs, dealt, args.seed)
        show_rows(dealt, args.seed)


def show_rows(proposed: list[ProposalRecord], step: int) -> None:
    """Print proposals as `--show` of train.py does."""
    for row in task_rows(proposed, step):
        print_safely(format_task(row))


def show_answers(setup: Setup, text: str, members: list[Member]) -> None:
    """Print every member's answers to a text, which a chat model is told in its template."""
    for member in members:
        cfg = setup.cfg
        _, answers = selfplay.ask(setup, [Prompt(text)], [member.slot], cfg.seed, selfplay.SOLVE,
                                  cfg.samples_per_task)
        for answer in answers:
            print_safely(f"{member.name}\n{block(answer)}")


def members_asked(args: argparse.Namespace, population: common.Population) -> list[Member]:
    """Who answers, in the role of --role or of the name; with --beside the base, too, as a student."""
    rating = RATINGS[Config.rating]().new()
    members = []
    for name, slot in population.slots.items():
        role = "teacher" if re.search(r"(^|/)T\d+$", name) else "student"
        if name != common.BASE:
            members.append(Member(name, args.role or role, slot, rating))
        elif args.beside:
            members.append(Member(name, role, slot, rating))
    return members


def main() -> int:
    """The command line. Raises UserError for what the user can mend."""
    args = parse_args()
    population = common.load(args)
    members = members_asked(args, population)
    base = population.base
    flags = dict(                               # of a run that samples so much
        task_types=args.task_types or None,
        n_prompts=args.n,
        proposals_per_prompt=1,
        samples_per_task=args.samples,
        temperature=args.temperature,
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        dedupe="off")
    cfg = resolve_config(config_of(flags), base.prompt_format, base.model.embedding.device.type)
    limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
    with open_sandbox("auto", base.prompt_format) as sandbox:
        setup = Setup(cfg, base, population.adapters, ALONE, sandbox, limits)
        if args.prompt:
            show_answers(setup, args.prompt, members)
        else:
            show_tasks(setup, args, members)
    return 0


if __name__ == "__main__":
    leave("sample.py", main)
