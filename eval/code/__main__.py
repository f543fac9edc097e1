"""Code: HumanEval+ (v0.1.10), MBPP+ (v0.2.0) and LiveCodeBench (release_v5, or its fifth file alone), judged in the sandbox.

    python -m eval.code --self-test --data DIR             # do canonical solutions pass, and empty answers fail? JSON line last
    python -m eval.code --run out/NAME                     # base and all members of the last checkpoint, all sets fetched
    python -m eval.code --base Qwen/Qwen2.5-Coder-7B --adapters out/NAME/step_200/S0 --bench humaneval+,mbpp+

Answers go to answers.jsonl as they come, the numbers to summary.json and the terminal. The same command goes on where it stopped.
HumanEval+ and MBPP+ give two lines each: by the base tests alone, and with +, by these and EvalPlus's own.
"""
import argparse
import json
import sys
from functools import partial

from eval import common
from eval.code.problems import PARTS, SETS, Problem, load, opened
from eval.code.programs import complete, extract
from eval.code.suites import Suite, judge, suites
from eval.fetch import CACHE, at_hand
from infra.platform import open_sandbox
from model import Base
from tasks.prompts import ENVELOPE
from verifier import Sandbox

# The words of EvalPlus (evalplus/codegen.py) and of LiveCodeBench (lcb_runner/prompts/code_generation.py).
ASK = "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n```\n{}\n```\n"
BEGIN = ("Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:\n"
         "```python\n")
LIVE_SYSTEM = ("You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
               "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
               "for the program.")
LIVE_STARTER = ("You will use the following starter code to write the solution to the problem and enclose your code within "
                "delimiters.")
LIVE_STDIN = ("Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
              "inputs). Enclose your code within delimiters as follows.")
MARK = "-[[]]-"                                   # where the answer begins in a rendered chat


def question(problem: Problem) -> str:
    """The question as its benchmark puts it to a chat model."""
    if not problem.bench.startswith("livecodebench"):
        return ASK.format(problem.prompt.strip())
    form, code = (LIVE_STARTER, problem.starter) if problem.starter else (LIVE_STDIN, "# YOUR CODE HERE")
    return (f"### Question:\n{problem.prompt}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
            "### Answer: (use the provided format with backticks)\n\n")


def put(problem: Problem, style: str, base: Base) -> list[int]:
    """Token ids of a problem. chat: by the template, for HumanEval+ and MBPP+ with the answer begun as EvalPlus begins it; plain:
    the bare prompt to be completed (LiveCodeBench: its question, without the examples that it shows base models)."""
    live = problem.bench.startswith("livecodebench")
    if style == "chat":
        render = partial(base.tokenizer.apply_chat_template, tokenize=False)
        if live:
            text = render([dict(role="system", content=LIVE_SYSTEM), dict(role="user", content=question(problem))],
                          add_generation_prompt=True)
        else:
            text = render([dict(role="user", content=question(problem)),
                           dict(role="assistant", content=f"{BEGIN}{MARK}\n```\n")]).split(MARK)[0]
        return list(base.tokenizer(text, add_special_tokens=False).input_ids)
    if style == "envelope":
        text = ENVELOPE.format(question(problem)) + "<think>"
    else:
        text = question(problem) if live else problem.prompt.strip() + "\n"
    return list(base.tokenizer(text).input_ids)


def program(problem: Problem, text: str, style: str) -> str:
    """The program in an answer, "" where there is none."""
    if not text.strip():
        return ""
    if problem.bench.startswith("livecodebench"):
        return extract(text, None)
    if style == "plain":
        text = complete(problem.prompt.strip() + "\n", text, problem.bench)
    elif style == "chat":
        text = f"```python\n{text}"                   # which put() has begun
    else:
        text = text.rpartition("</think>")[2]
    return extract(text, problem.entry)


def present(data: str | None) -> list[str]:
    """The sets that --data or the cache holds. Raises ValueError where there is none."""
    found = at_hand(data)
    sets = [name for name in SETS if found.issuperset(PARTS.get(name, (name,)))]
    if not sets:
        raise ValueError(f"none of {', '.join(SETS)} is in {data or CACHE}: run python -m eval.fetch humaneval+ mbpp+ "
                         "livecodebench5, or say with --data where they are")
    return [name for name in sets if name != "livecodebench5" or "livecodebench" not in sets]


def self_test(sets: list[str], args: argparse.Namespace, sandbox: Sandbox) -> dict:
    """Per set: problems, how many canonical solutions pass the base tests and all of them, how many empty answers pass in any
    style of prompt, and the inputs left out because the canonical solution's value is too big to report."""
    result = {}
    for name in sets:
        problems, _ = load(name, args.data, limit=args.limit)
        ways = [(text, style) for text in ("", "\n") for style in ("plain", "chat", "envelope")]
        empty = [(Suite(p, [], []), program(p, text, style)) for p in problems for text, style in ways]
        n_tests = sum(len(p.base + p.plus) for p in (opened(p) if p.packed else p for p in problems))
        line = dict(n=len(problems), empty=sum(found["base"] for found in judge(sandbox, empty)), n_tests=n_tests)
        if not name.startswith("livecodebench"):                      # which publishes no solutions
            ready = suites(sandbox, problems)
            fenced = [extract(f"Here it is:\n```python\n{s.problem.canonical}\n```\nIt works.", s.problem.entry) for s in ready]
            found = judge(sandbox, list(zip(ready, fenced)))
            left_out = {s.problem.id: len(s.expected) - sum(len(chunk.inputs) for chunk in s.chunks) for s in ready}
            line |= dict(base=sum(f["base"] for f in found), right=sum(f["plus"] for f in found),
                         left_out={id: n for id, n in left_out.items() if n},
                         failing={s.problem.id: f["why"] for s, f in zip(ready, found) if not f["plus"]})
            for id, why in line["failing"].items():
                print(f"{name} {id}: the canonical solution does not pass: {why}", file=sys.stderr)
        result[name] = line
    return result


def both(rows: list[dict]) -> list[dict]:
    """Rows for the table: those of HumanEval+ and MBPP+ also by the base tests alone, under the name without +."""
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
    parser.add_argument("--self-test", action="store_true", help="judge canonical solutions and empty answers; needs no model")
    parser.add_argument("--workers", type=int, default=2, help="sandbox processes that judge at once")
    parser.add_argument("--weak-sandbox", action="store_true",
                        help="go on where the sandbox cannot protect; only for models that you trust")
    args = parser.parse_args(argv)
    common.check(args)
    sets = common.choose(args.bench, SETS) or present(args.data)
    with open_sandbox(args.workers, args.weak_sandbox, profile="eval") as sandbox:
        if args.self_test:
            result = self_test(sets, args, sandbox)
            print(json.dumps(result))
            return 0 if all(line["empty"] == 0 and line.get("right", line["n"]) == line["n"] for line in result.values()) else 1
        return evaluate(sets, args, sandbox)


def evaluate(sets: list[str], args: argparse.Namespace, sandbox: Sandbox) -> int:
    """Answers, verdicts and the table of the base and its adapters -> 0."""
    loaded = {name: load(name, args.data, limit=args.limit) for name in sets}
    problems = [problem for part, _ in loaded.values() for problem in part]
    population = common.load(args)
    style = common.prompt_style(args, population.base)
    run, done = common.open_out(args, population, style, {name: sha for name, (_, sha) in loaded.items()}, "eval-code")
    known: dict[tuple[str, str], Suite] = {}

    def verdicts(answers: list[tuple[Problem, str]]) -> list[dict]:
        """Judged by suites that are made at a problem's first answer and kept, for its other answers come in later batches."""
        for key in [key for key in known if key[0].startswith("livecodebench")]:
            del known[key]                            # its tests are too large to keep
        new = {(p.bench, p.id): p for p, _ in answers if (p.bench, p.id) not in known}
        known.update(zip(new, suites(sandbox, list(new.values()))))
        programs = [program(problem, text, style) for problem, text in answers]
        found = judge(sandbox, [(known[p.bench, p.id], code) for (p, _), code in zip(answers, programs)])
        return [dict(correct=f["plus"], base=f["base"], plus=f["plus"], why=f["why"], program=code)
                for f, code in zip(found, programs)]

    ask = lambda problem: put(problem, style, population.base)
    rows = common.answer_all(population, problems, ask, verdicts, args, run, done, style)
    common.conclude(args, run, rows, "eval-code", counted=both, sandbox=sandbox.tier)
    return 0


if __name__ == "__main__":
    common.command("eval.code", main)
