"""Code: HumanEval+ (v0.1.10), MBPP+ (v0.2.0), LiveCodeBench (release_v5), CRUXEval.

    python -m eval.code --self-test               # do canonical solutions pass?
    python -m eval.code --run out/NAME            # base and members of the last checkpoint
    python -m eval.code --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench humaneval+,mbpp+
    python -m eval.code --run out/NAME --bench cruxeval-o,cruxeval-i --split validation

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes
on where it stopped. HumanEval+ and MBPP+ give two lines each: by the base tests alone, and with +, by these
and EvalPlus's own. Programs run in the sandbox alone. CRUXEval's questions are put as self-play puts its
tasks, with its limit of tokens, and in a command of their own: its two benchmarks are code_o and code_i.
"""
from functools import partial

from eval import answering, common, fetch
from eval.code import cruxeval, suites
from eval.code.problems import SETS, Problem, problem_of
from eval.code.programs import complete, extract
from infra.errors import demand
from model import Base
from tasks.base import SPLITS
from tasks.prompts import Prompt, concluded
from tasks.rendering import chat_text
from verifier import Sandbox

# The words of EvalPlus (evalplus/codegen.py) and of LiveCodeBench (lcb_runner/prompts/code_generation.py).
ASK = ("Please provide a self-contained Python script that solves the following problem in a markdown "
       "code block:\n```\n{}\n```\n")
BEGIN = ("Below is a Python script with a self-contained function that solves the problem and passes "
         "corresponding tests:\n```python\n")
LIVE_SYSTEM = ("You are an expert Python programmer. You will be given a question (problem specification) "
               "and will generate a correct Python program that matches the specification and passes all "
               "tests. You will NOT return anything except for the program.")
LIVE_STARTER = ("You will use the following starter code to write the solution to the problem and enclose "
                "your code within delimiters.")
LIVE_STDIN = ("Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
              "test on the sample inputs). Enclose your code within delimiters as follows.")
MAX_NEW = 1024                                    # tokens of an answer
MARK = "-[[]]-"                                   # where the answer begins in a rendered chat


def question(problem: Problem) -> str:
    """The question as its benchmark puts it to a chat model."""
    if not problem.is_live:
        return ASK.format(problem.prompt.strip())
    form, code = LIVE_STDIN, "# YOUR CODE HERE"
    if problem.starter:
        form, code = LIVE_STARTER, problem.starter
    return (f"### Question:\n{problem.prompt}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
            "### Answer: (use the provided format with backticks)\n\n")


def ask(problem: Problem, prompt_format: str, base: Base) -> str | Prompt | list[int]:
    """The question; token ids where the benchmark has a form of its own. chat: by the template, EvalPlus's
    with the answer begun as EvalPlus begins it. plain: the bare prompt, to be completed (LiveCodeBench: its
    question, without examples for base models)."""
    text = question(problem)
    if prompt_format == "envelope":
        return text
    if prompt_format == "plain":
        if not problem.is_live:
            text = problem.prompt.strip() + "\n"
        return base.tokenizer(text).input_ids
    if problem.is_live:
        return Prompt(text, system=LIVE_SYSTEM)
    messages = [
        dict(role="user", content=text),
        dict(role="assistant", content=f"{BEGIN}{MARK}\n```\n"),
    ]
    text = chat_text(messages, prompt_format, base.tokenizer, begins=False, day=base.day)
    text, _, _ = text.partition(MARK)
    return base.tokenizer(text, add_special_tokens=False).input_ids


def program(problem: Problem, text: str, prompt_format: str) -> str:
    """The program in an answer, "" where there is none."""
    text = concluded(text, prompt_format)
    if not text.strip():
        return ""
    if problem.is_live:
        return extract(text, None)
    if prompt_format == "plain":
        text = complete(problem.prompt.strip() + "\n", text, problem.bench)
    elif prompt_format in ("chat", "direct"):
        text = f"```python\n{text}"                   # which ask() has begun
    return extract(text, problem.entry)


def verify(
    sandbox: Sandbox,
    known: dict[Problem, suites.Suite],             # tests of the problems that were asked before
    answers: list[tuple[Problem, str]],
    prompt_format: str,
) -> list[dict]:
    """Rows of answers.jsonl, without what all benchmarks have. Adds to `known`, but for LiveCodeBench: its
    tests are large, and made again each time."""
    new = dict.fromkeys(problem for problem, _ in answers if problem not in known)
    made = dict(known)
    for suite in suites.suites(sandbox, list(new)):
        made[suite.problem] = suite
        if not suite.problem.is_live:
            known[suite.problem] = suite
    programs = []
    for problem, text in answers:
        programs.append((made[problem], program(problem, text, prompt_format)))
    rows = []
    for row in suites.verify(sandbox, programs):
        rows.append(dict(correct=row["plus"], **row))
    return rows


def both(rows: list[dict]) -> list[dict]:
    """Rows for the table: those of HumanEval+ and MBPP+ also by the base tests alone, without the +."""
    by_base = []
    for row in rows:
        if row["bench"].endswith("+"):
            bench = row["bench"].removesuffix("+")
            by_base.append(row | dict(bench=bench, correct=row["base"]))
    return by_base + rows


def published(problem: Problem) -> str:
    """The published solution, as a model that follows its prompt gives it."""
    return f"```python\n{problem.canonical}\n```"


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises UserError for what the user can mend."""
    parser = common.parser_of("eval.code", __doc__, default_max_new=MAX_NEW)
    parser.add_argument("--workers", type=int, default=2, help="sandbox processes that run at once")
    parser.add_argument("--split", default="test", choices=(*SPLITS, "all"),
                        help="of CRUXEval: choose members on validation, claim on test")
    parser.set_defaults(max_new=None)
    args = common.check(parser.parse_args(argv))
    names = common.choose(args.bench, SETS + cruxeval.SETS)
    if tasks := set(names) & set(cruxeval.SETS):
        demand(len(tasks) == len(names), "--bench: give cruxeval-o and cruxeval-i in a command of "
               "their own, since they are put in the run's prompt format")
        with Sandbox(args.workers, profile="eval") as sandbox:
            return cruxeval.main(args, names, sandbox)
    args.max_new = args.max_new or MAX_NEW
    problems, hashes = fetch.load(args, SETS, problem_of)
    with Sandbox(args.workers, profile="eval") as sandbox:
        judge = partial(verify, sandbox, {})
        if args.self_test:
            solved = [problem for problem in problems if not problem.is_live]       # it has no solutions
            return answering.self_test(solved, published, judge)
        answered = answering.evaluate(args, "eval-code", problems, hashes, ask, judge)
    common.conclude(args, *answered, both, sandbox=sandbox.tier)
    return 0


if __name__ == "__main__":
    common.command("eval.code", main)
