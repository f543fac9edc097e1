"""Code: HumanEval+ (v0.1.10), MBPP+ (v0.2.0), LiveCodeBench (release_v5, or its fifth file alone).

    python -m eval.code --self-test --data DIR    # do canonical solutions pass?
    python -m eval.code --run out/NAME            # base and members of the last checkpoint, all sets fetched
    python -m eval.code --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench humaneval+,mbpp+

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes
on where it stopped. HumanEval+ and MBPP+ give two lines each: by the base tests alone, and with +, by these
and EvalPlus's own. Programs run in the sandbox alone.
"""
import argparse
import json
import sys

from eval import answering, common, fetch
from eval.code.problems import SETS, Problem, load, opened
from eval.code.programs import complete, extract
from eval.code.suites import Suite, judge, suites
from model import Base
from run.platform import open_sandbox
from tasks.prompts import chat_text, first_answer
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
MARK = "-[[]]-"                                   # where the answer begins in a rendered chat


def is_live(bench: str) -> bool:
    """Whether a set is LiveCodeBench or a part of it, which publishes no solutions."""
    return bench.startswith("livecodebench")


def question(problem: Problem) -> str:
    """The question as its benchmark puts it to a chat model."""
    if not is_live(problem.bench):
        return ASK.format(problem.prompt.strip())
    form, code = (LIVE_STARTER, problem.starter) if problem.starter else (LIVE_STDIN, "# YOUR CODE HERE")
    return (f"### Question:\n{problem.prompt}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
            "### Answer: (use the provided format with backticks)\n\n")


def put(problem: Problem, prompt_format: str, base: Base) -> list[int]:
    """Token ids of a problem. chat: by the template, EvalPlus's with the answer begun as EvalPlus begins it.

    plain: the bare prompt to be completed (LiveCodeBench: its question, without examples for base models).
    """
    live = is_live(problem.bench)
    if prompt_format == "envelope":
        return answering.put(question(problem), prompt_format, base)
    if prompt_format == "plain":
        text = question(problem) if live else problem.prompt.strip() + "\n"
        return list(base.tokenizer(text).input_ids)
    messages = [dict(role="user", content=question(problem))]
    if live:
        messages.insert(0, dict(role="system", content=LIVE_SYSTEM))
    else:
        messages.append(dict(role="assistant", content=f"{BEGIN}{MARK}\n```\n"))
    text = chat_text(messages, prompt_format, base.tokenizer, begins=live)
    return list(base.tokenizer(text.split(MARK)[0], add_special_tokens=False).input_ids)


def program(problem: Problem, text: str, prompt_format: str) -> str:
    """The program in an answer, "" where there is none."""
    if not text.strip():
        return ""
    if prompt_format == "envelope":
        text = first_answer(text).rpartition("</think>")[2]
    if is_live(problem.bench):
        return extract(text, None)
    if prompt_format == "plain":
        text = complete(problem.prompt.strip() + "\n", text, problem.bench)
    elif prompt_format in ("chat", "direct"):
        text = f"```python\n{text}"                   # which put() has begun
    return extract(text, problem.entry)


def self_test(name: str, problems: list[Problem], sandbox: Sandbox) -> dict:
    """A set's problems and tests, and how many canonical solutions pass the base tests and all of them."""
    n_tests = sum(len(p.base + p.plus) for p in map(opened, problems))
    line = dict(n=len(problems), n_tests=n_tests)
    if is_live(name):
        return line
    answers = []
    for suite in suites(sandbox, problems):
        text = f"Here it is:\n```python\n{suite.problem.canonical}\n```\nIt works."
        answers.append((suite, extract(text, suite.problem.entry)))
    found = judge(sandbox, answers)
    for problem, verdict in zip(problems, found):
        if not verdict["plus"]:
            print(f"{name} {problem.id}: the canonical solution does not pass: {verdict['why']}",
                  file=sys.stderr)
    return line | dict(base=sum(v["base"] for v in found), right=sum(v["plus"] for v in found))


def both(rows: list[dict]) -> list[dict]:
    """Rows for the table: HumanEval+ and MBPP+ also by the base tests alone, under the name without +."""
    out = []
    for bench in dict.fromkeys(row["bench"] for row in rows):
        mine = [row for row in rows if row["bench"] == bench]
        if bench.endswith("+"):
            out += [dict(row, bench=bench[:-1], correct=row.get("base", False)) for row in mine]
        out += mine
    return out


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 1 where the self-test fails. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.code", __doc__, default_max_new=1024)
    parser.add_argument("--self-test", action="store_true", help="judge canonical solutions; needs no model")
    parser.add_argument("--workers", type=int, default=2, help="sandbox processes that judge at once")
    parser.add_argument("--weak-sandbox", action="store_true",
                        help="go on where the sandbox cannot protect; only for models that you trust")
    args = parser.parse_args(argv)
    common.check(args)
    names = common.choose(args.bench, SETS) or fetch.present(SETS, args.data)
    if "livecodebench" in names and not args.bench:
        names.remove("livecodebench5")                # a part of it
    sets = {name: load(name, args.data, args.limit) for name in names}
    with open_sandbox(args.workers, args.weak_sandbox, profile="eval") as sandbox:
        if not args.self_test:
            evaluate(sets, args, sandbox)
            return 0
        result = {name: self_test(name, problems, sandbox) for name, (problems, _) in sets.items()}
    print(json.dumps(result))
    return int(any(line.get("right", line["n"]) != line["n"] for line in result.values()))


def evaluate(sets: dict[str, tuple], args: argparse.Namespace, sandbox: Sandbox) -> None:
    """Answers, verdicts and the table of the base and its adapters; sets: (problems, hash) by name."""
    population = common.load(args)
    prompt_format = answering.pick_prompt_format(args, population.base)
    hashes = {name: sha for name, (_, sha) in sets.items()}
    run, done = common.open_out(args, population, prompt_format, hashes, "eval-code")
    known: dict[tuple[str, str], Suite] = {}

    def ask(problem: Problem) -> list[int]:
        return put(problem, prompt_format, population.base)

    def verdicts(answers: list[tuple[Problem, str]]) -> list[dict]:
        """Judged by suites that are made once: a problem's other answers come in later batches."""
        for place in [place for place in known if is_live(place[0])]:
            del known[place]                          # its tests are too large to keep
        new = {(p.bench, p.id): p for p, _ in answers if (p.bench, p.id) not in known}
        known.update(zip(new, suites(sandbox, list(new.values()))))
        programs = [(known[p.bench, p.id], program(p, text, prompt_format)) for p, text in answers]
        found = judge(sandbox, programs)
        return [dict(correct=f["plus"], **f, program=code) for f, (_, code) in zip(found, programs)]

    problems = [problem for some, _ in sets.values() for problem in some]
    rows = answering.answer_all(population, problems, ask, verdicts, args, run, done, prompt_format)
    common.conclude(args, run, rows, counted=both, sandbox=sandbox.tier)


if __name__ == "__main__":
    common.command("eval.code", main)
