"""Asks for programs: HumanEval+ and MBPP+ (EvalPlus), LiveCodeBench.

    python -m eval.code --run out/NAME --data DIR               # the published files that lie in DIR
    python -m eval.code --base DIR --data DIR --bench humaneval+

Programs run in the sandbox alone, in its wider profile. A program is right if it returns what the published
solution returns in the same sandbox, with EvalPlus' tolerance for floats. EvalPlus judges some problems by
a rule of their own, and some results are no plain values. These are not judged here but counted and named,
and answers.jsonl has all programs as EvalPlus takes them: `grep '"member": "S0"' answers.jsonl > S0.jsonl`,
then `evalplus.evaluate --samples S0.jsonl`.
"""
import ast
import base64
import io
import json
import pickle
import re
import zlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice

import numpy as np

from common import Refused, json_object, leave
from eval.answer import (
    NOT_PLAIN,
    Item,
    answer_all,
    benchmarks,
    conclude,
    load,
    open_results,
    parser,
    published_rows,
    sums,
)
from sandbox.parsing import parse, unparse
from sandbox.profiles import PROFILES
from sandbox.values import decode
from tasks.base import FAILED, UNJUDGED
from tasks.literals import read_blocks
from tasks.prompts import THINK, Prompt, concluded
from verifier import Job, Sandbox, Verdict

BENCHMARKS = ("humaneval+", "mbpp+", "livecodebench")
MAX_TEXT = PROFILES["eval"].max_text
MAX_CHARS = 24_000                  # of an answer that is read
# CPU seconds of a published solution, of an answer on all inputs, of a program on one LiveCodeBench test
CANONICAL_S, ANSWER_S, SCRIPT_S = 120.0, 20.0, 6.0
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
# Functions that EvalPlus judges by a rule of their own, not by ==
OWN_RULE = set(
    """find_zero similar_elements find_char_long common_in_nested_lists extract_singly larg_nnum
intersection_array find_dissimilar Diff check_str text_match_three text_starta_endb surface_Area
digit_distance_nums are_equivalent sum_div""".split()
)
# The words of EvalPlus (evalplus/codegen.py) and of LiveCodeBench (lcb_runner/prompts/code_generation.py)
ASK = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code "
    "block:\n```\n{}\n```\n"
)
BEGIN = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:\n```python\n"
)
LIVE_ASK = (
    "### Question:\n{}\n\n### Format: {}\n```python\n{}\n```\n\n"
    "### Answer: (use the provided format with backticks)\n\n"
)
LIVE_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will "
    "generate a correct Python program that matches the specification and passes all tests. You will NOT "
    "return anything except for the program."
)
LIVE_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code "
    "within delimiters."
)
LIVE_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on "
    "the sample inputs). Enclose your code within delimiters as follows."
)
# What LiveCodeBench puts before a program
MODULES = """string re datetime collections heapq bisect copy math random statistics itertools functools
operator io sys json""".split()
PREAMBLE = f"import {', '.join(MODULES)}\nsys.setrecursionlimit(50000)\n"
for module in (*MODULES, "builtins", "typing"):
    PREAMBLE += f"from {module} import *\n"


# --- problems -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Problem:
    """Holds one problem of a benchmark."""
    bench: str
    id: str
    prompt: str
    entry: str | None               # the function that is called; None: a program that reads standard input
    canonical: str = ""
    inputs: tuple[str, ...] = ()    # as between the brackets of a call
    n_base: int = 0                 # the first of them are those of HumanEval or MBPP, the others EvalPlus'
    atol: float = 0.0
    starter: str = ""
    packed: tuple[str, ...] = ()    # LiveCodeBench's tests, which are too large to be kept unpacked


def problem_of(bench: str, row: dict) -> Problem:
    """Returns the problem in a row of a published file."""
    if bench == "livecodebench":
        entry = json_object(row["metadata"] or "{}").get("func_name")
        return Problem(
            bench,
            row["question_id"],
            row["question_content"],
            entry,
            starter=row["starter_code"],
            packed=(row["public_test_cases"], row["private_test_cases"])
        )
    prompt, canonical = row["prompt"], row["canonical_solution"]
    if bench == "humaneval+":
        canonical = prompt + canonical
    inputs = []
    for arguments in [*row["base_input"], *(row["plus_input"] or [])]:
        if bench == "mbpp+":
            arguments = map(alike, arguments, shown_arguments(row))
        inputs.append(call_text(list(arguments)))
    return Problem(
        bench,
        row["task_id"],
        prompt,
        row["entry_point"],
        canonical,
        tuple(inputs),
        len(row["base_input"]),
        row["atol"]
    )


def shown_arguments(row: dict) -> list:
    """Returns the arguments of the first call in the assertions of a row of MBPP+."""
    for node in ast.walk(ast.parse(row["assertion"])):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == row["entry_point"]:
            return list(map(ast.literal_eval, node.args))
    return []


def alike(value: object, shown: object, depth: int = 0) -> object:
    """Returns a value of a JSON file with the types of the one that a prompt shows, because JSON has no
    tuples and no complex numbers. A container deeper than any that is shown is like the one around it."""
    if isinstance(value, str) and isinstance(shown, (int, complex)) and re.match(r"[-(\d]", value):
        return complex(value)
    if not isinstance(value, list) or not isinstance(shown, (list, tuple)):
        return value
    like = None
    if depth > 1:
        like = shown
    for item in reversed(shown):
        if isinstance(item, (list, tuple)):
            like = item
    return type(shown)(alike(item, like, depth + 1) for item in value)


def call_text(arguments: list) -> str:
    """Returns arguments as between the brackets of a call; infinity, which has no literal, is 1e999."""
    texts = []
    for argument in arguments:
        text = repr(argument)
        texts.append(text.replace("inf", "1e999") if isinstance(argument, float) else text)
    return ", ".join(texts)


class NoClasses(pickle.Unpickler):
    """Reads strings, numbers and containers."""

    def find_class(self, module: str, name: str) -> None:
        """Refuses whatever names a class or a function."""
        raise pickle.UnpicklingError(f"names {module}.{name}")


def live_tests(problem: Problem) -> list[tuple[str, str]]:
    """Returns (input, output) of the tests, which LiveCodeBench packs as JSON or as base64 of zlib of
    pickled JSON."""
    tests = []
    for text in problem.packed:
        if not text.lstrip().startswith("["):
            text = NoClasses(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load()
        for test in json.loads(text):
            given = test["input"]
            if problem.entry:                           # an argument a line
                given = call_text(list(map(json.loads, given.split("\n"))))
            tests.append((given, test["output"]))
    return tests


# --- what is asked, and the program in an answer ------------------------------------------------------------

def prompt_of(problem: Problem, prompt_format: str) -> Prompt:
    """Returns the question in the benchmark's own words. EvalPlus begins the answer of a chat model and
    ends it with its block."""
    if problem.bench == "livecodebench":
        form = LIVE_STARTER if problem.starter else LIVE_STDIN
        user = LIVE_ASK.format(problem.prompt, form, problem.starter or "# YOUR CODE HERE")
        return Prompt(user, THINK if prompt_format == "base" else "", LIVE_SYSTEM)
    user = ASK.format(problem.prompt.strip())
    if prompt_format == "base":
        return Prompt(user, THINK)
    return Prompt(user, BEGIN, closing="\n```\n")


def program_of(text: str, problem: Problem) -> str:
    """Returns the program in an answer, "" where there is none. For LiveCodeBench it is the last block of
    Python. Else it is the first block with the function, up to where it stops being Python, without what
    the top level does to show the function at work."""
    text = text.rpartition("<answer>")[2].removesuffix("</answer>").strip()
    blocks = [body for tag, body in read_blocks(text) if tag in ("python", "")]
    if problem.bench == "livecodebench":
        return (blocks or [text])[-1]
    for body in blocks:
        if re.search(rf"def {problem.entry}\b", body):
            text = body
            break
    lines = text[:MAX_CHARS].split("\n")
    while lines:
        try:
            tree = parse("\n".join(lines), MAX_CHARS)
            return unparse(ast.Module([node for node in tree.body if isinstance(node, KEPT)], []))
        except Refused as refused:
            # the line that is no Python, if the parser says so
            at = getattr(refused.__context__, "lineno", None) or len(lines) // 2 + 1
            del lines[min(at, len(lines)) - 1 :]
    return ""


# --- verdicts -----------------------------------------------------------------------------------------------

def tolerance(gold: object, atol: float) -> float:
    """Returns atol, but a millionth if it is 0 and the value is a float, or a list or tuple of floats."""
    kinds = set(map(type, gold)) if isinstance(gold, (list, tuple)) else {type(gold)}
    return 1e-6 if atol == 0 and kinds == {float} else atol


def equal(out: object, gold: object, atol: float) -> bool:
    """Returns whether a value is right for EvalPlus: by ==, or, with a tolerance, near a value of the same
    type."""
    if out == gold:
        return True
    if atol == 0 or type(out) is not type(gold):
        return False
    try:
        return len(np.atleast_1d(out)) == len(np.atleast_1d(gold)) and np.allclose(
            out, gold, rtol=1e-7, atol=atol
        )
    except (TypeError, ValueError, OverflowError):      # not numbers, of several shapes, too large
        return False


def read_line(line: str) -> object:
    """Returns a line of output as decimal numbers, else as text."""
    try:
        numbers = tuple(map(Decimal, line.split()))
    except InvalidOperation:            # a word is no number
        return line.strip()
    return numbers if all(map(Decimal.is_finite, numbers)) else line.strip()


def printed_alike(out: str, gold: str) -> bool:
    """Returns whether two outputs are equal line by line, as numbers or as text."""
    ours, theirs = out.strip().split("\n"), gold.strip().split("\n")
    return list(map(read_line, ours)) == list(map(read_line, theirs))


def judge(sandbox: Sandbox, prompt_format: str, asked: list[tuple[Item, str]]) -> list[dict]:
    """Returns a row for each answer: its program, the verdict, and the first reason why not."""
    gold_of = golds(asked, sandbox)
    rows, jobs, outputs = [], [], []
    for item, text in asked:
        problem = item.gold
        program = program_of(concluded(text, prompt_format), problem)
        rows.append(dict(task_id=problem.id, solution=program, verdict="malformed", why="no program"))
        if problem.bench == "livecodebench":
            inputs, wanted = zip(*live_tests(problem))
            jobs.append(live_job(problem, program, inputs))
        else:
            wanted = gold_of.get(problem.id)
            jobs.append(Job(program, problem.inputs, problem.entry, give_up=True, cpu_s=ANSWER_S))
        outputs.append(wanted)
    for (item, _), row, wanted, verdict in zip(asked, rows, outputs, sandbox.run(jobs)):
        if row["solution"]:
            row["verdict"], row["why"] = judged(item.gold, wanted, verdict)
    return rows


def golds(asked: list[tuple[Item, str]], sandbox: Sandbox) -> dict[str, tuple]:
    """Returns what the published solutions of EvalPlus' problems return, by the problem's id. It leaves out
    problems that are judged by a rule of their own, and those whose results are not plain."""
    jobs = {}                       # by the problem's id, which several members answer
    for item, _ in asked:
        p = item.gold
        if p.canonical and p.entry not in OWN_RULE:
            jobs[p.id] = Job(p.canonical, p.inputs, p.entry, give_up=True, cpu_s=CANONICAL_S)
    found = {}
    for id, verdict in zip(jobs, sandbox.run(list(jobs.values()))):
        if None not in verdict.outputs:
            found[id] = verdict.outputs
    return found


def live_job(problem: Problem, program: str, inputs: tuple[str, ...]) -> Job:
    """Returns the job that runs a program on tests of LiveCodeBench."""
    code, entry = PREAMBLE + program, problem.entry
    if entry:
        owner = "Solution()." if "class Solution" in program else ""
        code, entry = f"{code}\n_answer = {owner}{entry}\n", "_answer"
    return Job(code, inputs, entry, give_up=True, cpu_s=SCRIPT_S)


def judged(problem: Problem, golds: tuple | None, verdict: Verdict) -> tuple[str, str]:
    """Returns the verdict on a program, and the first reason why it is not correct."""
    if golds is None:
        return NOT_PLAIN, ""
    atol = problem.atol
    for i, (text, error, gold) in enumerate(zip(verdict.outputs, verdict.errors, golds)):
        if error == FAILED:
            return UNJUDGED, error
        if text is None:
            return "wrong", f"input {i}: {error}"
        out = decode(text, MAX_TEXT)
        if problem.bench != "livecodebench":
            wanted = decode(gold, MAX_TEXT)
            if i == problem.n_base:
                atol = problem.atol
            atol = tolerance(wanted, atol)              # EvalPlus keeps it up to the end of either part
            right = text == gold or equal(out, wanted, atol)
        elif problem.entry is None:
            right = printed_alike(out, gold)
        else:
            right = (list(out) if isinstance(out, tuple) else out) == json.loads(gold)
        if not right:
            return "wrong", f"input {i}: another value"
    return "correct", ""


# --- the command --------------------------------------------------------------------------------------------

def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    p = parser("code", __doc__, max_new_tokens=1024)
    p.add_argument("--data", required=True, metavar="DIR", help="the published files")
    args = p.parse_args(argv)
    chosen = benchmarks(args, BENCHMARKS)
    problems = []
    for bench in chosen:
        for row in islice(published_rows(args.data, bench), args.limit):
            problems.append(problem_of(bench, row))
    with Sandbox(2, profile="eval") as sandbox:
        setup, slots = load(args)
        prompt_format = setup.base.prompt_format
        items = [Item(p.bench, p.id, prompt_of(p, prompt_format), p) for p in problems]
        out = open_results(args, "code", setup, slots, **sums(args.data, chosen))
        rows = answer_all(args, out, setup, slots, items, partial(judge, sandbox, prompt_format))
    conclude(out, rows)


if __name__ == "__main__":
    leave("eval.code", main)
