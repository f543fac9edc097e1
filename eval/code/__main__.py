"""Code: HumanEval+ (v0.1.10), MBPP+ (v0.2.0), LiveCodeBench (release_v5, or its fifth file alone).

    python -m eval.code --self-test --data DIR    # do canonical solutions pass, empty answers not?
    python -m eval.code --run out/NAME            # base and members of the last checkpoint, all sets fetched
    python -m eval.code --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench humaneval+,mbpp+

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes
on where it stopped. HumanEval+ and MBPP+ give two lines each: by the base tests alone, and with +, by these
and EvalPlus's own.
"""
import argparse
import json
import sys

from eval import answering, common
from eval.code.problems import PARTS, SETS, Problem, load, opened
from eval.code.programs import complete, extract
from eval.code.suites import Suite, judge, suites
from eval.fetch import CACHE, at_hand
from run.platform import open_sandbox
from model import Base
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


def question(problem: Problem) -> str:
    """The question as its benchmark puts it to a chat model."""
    if not problem.bench.startswith("livecodebench"):
        return ASK.format(problem.prompt.strip())
    form, code = (LIVE_STARTER, problem.starter) if problem.starter else (LIVE_STDIN, "# YOUR CODE HERE")
    return (f"### Question:\n{problem.prompt}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
            "### Answer: (use the provided format with backticks)\n\n")


def put(problem: Problem, prompt_format: str, base: Base) -> list[int]:
    """Token ids of a problem. chat: by the template, EvalPlus's with the answer begun as EvalPlus begins it.

    plain: the bare prompt to be completed (LiveCodeBench: its question, without examples for base models).
    """
    live = problem.bench.startswith("livecodebench")
    if prompt_format == "envelope":
        return answering.put(question(problem), prompt_format, base)
    if prompt_format == "plain":
        text = question(problem) if live else problem.prompt.strip() + "\n"
        return list(base.tokenizer(text).input_ids)
    said = [dict(role="user", content=question(problem))]
    if live:
        said.insert(0, dict(role="system", content=LIVE_SYSTEM))
    else:
        said.append(dict(role="assistant", content=f"{BEGIN}{MARK}\n```\n"))
    text = chat_text(said, prompt_format, base.tokenizer, begins=live)
    return list(base.tokenizer(text.split(MARK)[0], add_special_tokens=False).input_ids)


def program(problem: Problem, text: str, prompt_format: str) -> str:
    """The program in an answer, "" where there is none."""
    if not text.strip():
        return ""
    if prompt_format == "envelope":
        text = first_answer(text).rpartition("</think>")[2]
    if problem.bench.startswith("livecodebench"):
        return extract(text, None)
    if prompt_format == "plain":
        text = complete(problem.prompt.strip() + "\n", text, problem.bench)
    elif prompt_format in ("chat", "direct"):
        text = f"```python\n{text}"                   # which put() has begun
    return extract(text, problem.entry)


def present(data: str | None) -> list[str]:
    """The sets that --data or the cache holds. Raises ValueError where there is none."""
    found = at_hand(data)
    sets = [name for name in SETS if found.issuperset(PARTS.get(name, (name,)))]
    if not sets:
        raise ValueError(f"none of {', '.join(SETS)} is in {data or CACHE}: run python -m eval.fetch "
                         "humaneval+ mbpp+ livecodebench5, or say with --data where they are")
    return [name for name in sets if name != "livecodebench5" or "livecodebench" not in sets]


def self_test(name: str, args: argparse.Namespace, sandbox: Sandbox) -> dict:
    """A set's problems and tests, how many empty answers pass in any prompt format, and as `canonical`."""
    problems, _ = load(name, args.data, limit=args.limit)
    n_tests, empty = 0, []
    for problem in problems:
        with_tests = opened(problem) if problem.packed else problem
        n_tests += len(with_tests.base + with_tests.plus)
        for prompt_format in ("plain", "chat", "direct", "envelope"):
            empty += [(Suite(problem, [], []), program(problem, text, prompt_format)) for text in ("", "\n")]
    line = dict(n=len(problems), empty=sum(found["base"] for found in judge(sandbox, empty)), n_tests=n_tests)
    if name.startswith("livecodebench"):                              # which publishes no solutions
        return line
    return line | canonical(name, suites(sandbox, problems), sandbox)


def canonical(name: str, ready: list[Suite], sandbox: Sandbox) -> dict:
    """How many canonical solutions pass the base tests and all of them, and the inputs that are left out.

    These are inputs for which the canonical solution's value is too big to report.
    """
    answers = []
    for suite in ready:
        text = f"Here it is:\n```python\n{suite.problem.canonical}\n```\nIt works."
        answers.append((suite, extract(text, suite.problem.entry)))
    found, left_out, failing = judge(sandbox, answers), {}, {}
    for suite, verdict in zip(ready, found):
        if n := len(suite.expected) - sum(len(chunk.inputs) for chunk in suite.chunks):
            left_out[suite.problem.id] = n
        if not verdict["plus"]:
            failing[suite.problem.id] = verdict["why"]
            print(f"{name} {suite.problem.id}: the canonical solution does not pass: {verdict['why']}",
                  file=sys.stderr)
    return dict(base=sum(f["base"] for f in found), right=sum(f["plus"] for f in found), left_out=left_out,
                failing=failing)


def both(rows: list[dict]) -> list[dict]:
    """Rows for the table: HumanEval+ and MBPP+ also by the base tests alone, under the name without +."""
    out = []
    for bench in dict.fromkeys(row["bench"] for row in rows):
        mine = [row for row in rows if row["bench"] == bench]
        if bench.endswith("+"):
            out += [dict(row, bench=bench[:-1], correct=row["base"]) for row in mine]
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
    sets = common.choose(args.bench, SETS) or present(args.data)
    with open_sandbox(args.workers, args.weak_sandbox, profile="eval") as sandbox:
        if not args.self_test:
            evaluate(sets, args, sandbox)
            return 0
        result = {name: self_test(name, args, sandbox) for name in sets}
    print(json.dumps(result))
    return int(any(line["empty"] or line.get("right", line["n"]) != line["n"] for line in result.values()))


def evaluate(sets: list[str], args: argparse.Namespace, sandbox: Sandbox) -> None:
    """Answers, verdicts and the table of the base and its adapters."""
    problems, hashes = [], {}
    for name in sets:
        part, hashes[name] = load(name, args.data, limit=args.limit)
        problems += part
    population = common.load(args)
    prompt_format = answering.pick_prompt_format(args, population.base)
    run, done = common.open_out(args, population, prompt_format, hashes, "eval-code")
    known: dict[tuple[str, str], Suite] = {}

    def ask(problem: Problem) -> list[int]:
        return put(problem, prompt_format, population.base)

    def verdicts(answers: list[tuple[Problem, str]]) -> list[dict]:
        """Judged by suites that are made once: a problem's other answers come in later batches."""
        for bench, id in list(known):
            if bench.startswith("livecodebench"):
                del known[bench, id]                  # its tests are too large to keep
        new = {(p.bench, p.id): p for p, _ in answers if (p.bench, p.id) not in known}
        known.update(zip(new, suites(sandbox, list(new.values()))))
        programs = [(known[p.bench, p.id], program(p, text, prompt_format)) for p, text in answers]
        found = judge(sandbox, programs)
        return [dict(correct=f["plus"], **f, program=code) for f, (_, code) in zip(found, programs)]

    rows = answering.answer_all(population, problems, ask, verdicts, args, run, done, prompt_format)
    common.conclude(args, run, rows, "eval-code", counted=both, sandbox=sandbox.tier)


if __name__ == "__main__":
    common.command("eval.code", main)
