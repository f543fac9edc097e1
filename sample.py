"""What members write, on the terminal.

    python sample.py out/micro-1/step_19/S4                  # attempts at fresh tasks, with verdicts
    python sample.py out/micro-1/step_19/T0                  # a teacher's proposals, with what the verifier says
    python sample.py out/micro-1/step_19/S4 base             # a member, and the frozen base
    python sample.py out/micro-1/step_19/S4 --program "def f(x): return x[::-1]" --input "[1,2]"
    python sample.py out/NAME/step_200/S4 --prompt "def fibonacci(n):"
"""
import argparse

import selfplay
from common import demand, leave, parser_of
from ranks import ALONE
from config import Config, resolve_config
from eval.answer import load
from evolve import Member
from measure import format_task, visible
from micro.programs import fresh_program
from run import archive_of, seeds, task_rows
from selfplay import RATINGS, ProposalRecord, Setup
from tasks.base import Proposal
from tasks.prompts import Prompt
from tasks.programs import Limits
from verifier import open_sandbox


def show(setup: Setup, args: argparse.Namespace, members: list[Member]) -> None:
    """Print the teachers' proposals, and the students' attempts at tasks."""
    pairs = [(m, m) for m in members if m.role == "teacher"]        # a phase wants pairs, and a step to key draws by
    if pairs:
        archive = archive_of(selfplay.make_tasks(setup, seeds(setup.cfg), "seed"))
        _, proposed = selfplay.propose(setup, archive, pairs, args.seed)
        selfplay.verify_proposals(setup, archive, proposed, args.seed)
        print(*map(format_task, task_rows(proposed, args.seed)), sep="\n")
    students = [m for m in members if m.role == "student"]
    if students:
        dealer = Member("task", "teacher", -1, RATINGS.new())
        given = [Proposal("code_o", args.program, (args.input,))]
        if not args.program:
            given = [Proposal("code_o", *fresh_program(f"{args.seed}/{i}")) for i in range(args.n)]
        tasks = selfplay.make_tasks(setup, given, "--program")
        dealt = [ProposalRecord(dealer, task.kind, i, [], task=task) for i, task in enumerate(tasks)]
        selfplay.solve(setup, [(dealer, student) for student in students], dealt, args.seed)
        print(*map(format_task, task_rows(dealt, args.seed)), sep="\n")


def main() -> None:
    """The command line."""
    parser = parser_of("sample.py", __doc__)
    parser.add_argument("members", nargs="+", metavar="MEMBER", help="PEFT directories; base: the frozen base, too")
    parser.add_argument("--program", default="", help="a program to attempt, on --input")
    parser.add_argument("--input", default="", help="of --program, as between the brackets of a call")
    parser.add_argument("--prompt", default="", help="any text, which every member answers")
    parser.add_argument("--n", type=int, default=3, help="fresh tasks, or proposals of a teacher")
    parser.add_argument("--samples", type=int, default=2, help="attempts at a task, or answers to --prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    demand(args.program or not args.input, "--input is that of a program: give --program, too")
    paths = [path for path in args.members if path != "base"]
    loaded, slots = load(argparse.Namespace(adapters=paths, run="", base="", prompt_format="", max_new_tokens=None, seed=0,
                                            rollout_batch=None, device="auto", dtype="auto"))
    base = loaded.base
    members = []
    for name, slot in slots.items():
        role = "teacher" if name.rpartition("/")[2][0] == "T" else "student"
        if slot >= 0 or "base" in args.members:
            members.append(Member(name, role, slot, RATINGS.new()))
    cfg = resolve_config(Config(n_prompts=args.n, proposals_per_prompt=1, samples_per_task=args.samples, dedupe="off",
                                seed=args.seed), base.prompt_format)
    with open_sandbox("auto", base.prompt_format) as sandbox:
        limits = Limits.of_run(cfg, base.prompt_format, base.tokenizer)
        setup = Setup(cfg, base, loaded.adapters, ALONE, sandbox, limits)
        if not args.prompt:
            return show(setup, args, members)
        for m in members:
            _, answers = selfplay.ask(setup, [Prompt(args.prompt)], [m.slot], args.seed, selfplay.SOLVE, args.samples)
            print(*(f"{m.name}\n{visible(answer)}" for answer in answers), sep="\n")


if __name__ == "__main__":
    leave("sample.py", main)
