"""HumanEval+ (EvalPlus): a program is right where it returns what the published solution returns.

    python -m eval.code --run out/NAME --data HumanEvalPlus.jsonl.gz

Programs run in the sandbox alone, in its wider profile. answers.jsonl has the programs as EvalPlus takes them (task_id,
solution): for MBPP+, and for a number in a paper, let EvalPlus judge (docs/evaluation.md).
"""
import ast
import gzip
import json
import math
import re
from dataclasses import dataclass

from common import Refused, leave
from eval.answer import Item, answer_all, conclude, load, parser
from sandbox.parsing import parse
from sandbox.values import decode
from tasks.literals import read_blocks
from tasks.prompts import Prompt, concluded
from verifier import Job, Sandbox

MAX_TEXT = 1 << 23
MAX_CHARS = 24_000
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Problem:
    """One problem; its inputs are argument texts, the first n_base of them those of the base tests."""
    bench: str
    id: str
    prompt: str
    entry: str
    canonical: str
    inputs: tuple[str, ...]
    n_base: int
    atol: float


def call_text(arguments: list) -> str:
    """Arguments as between the brackets of a call; infinity, which has no literal, as 1e999."""
    return re.sub(r"(?<![\w'\"])inf(?![\w'\"])", "1e999", ", ".join(map(repr, arguments)))


def problem_of(bench: str, row: dict) -> Problem:
    """A problem from a line of its published file."""
    canonical = row["canonical_solution"]
    if bench == "humaneval+":
        canonical = row["prompt"] + canonical
    base = list(map(call_text, row["base_input"]))
    plus = list(map(call_text, row["plus_input"] or []))
    return Problem(bench, row["task_id"], row["prompt"], row["entry_point"], canonical,
                   tuple(base + plus), len(base), row["atol"])


def program_of(text: str, entry: str) -> str:
    """The program in an answer: imports, definitions and assignments of its block of Python, up to where it stops
    being Python. Calls and assertions at the top level, which show the function at work, are left out."""
    for tag, body in read_blocks(text):
        if tag in ("python", "") and f"def {entry}(" in body:
            text = body
            break
    lines = text.split("\n")
    while lines:
        try:
            tree = parse("\n".join(lines), MAX_CHARS)
            break
        except Refused:
            lines.pop()
    else:
        return ""
    kept = [node for node in tree.body if isinstance(node, KEPT)]
    return ast.unparse(ast.Module(kept, []))


def close(a: object, b: object, atol: float) -> bool:
    """Equality with a tolerance for floats, as EvalPlus has it."""
    if isinstance(b, float) and isinstance(a, (int, float)):
        return a == b or math.isclose(a, b, rel_tol=1e-7, abs_tol=max(atol, 1e-6))
    if isinstance(b, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(close(x, y, atol) for x, y in zip(a, b))
    return a == b


class Judge:
    """Runs programs on all inputs; what the published solutions return is kept."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        self.wanted = {}                # problem's id -> outputs; None where there is no plain value

    def __call__(self, asked: list[tuple[Item, str]]) -> list[dict]:
        new = list({item.gold.id: item.gold for item, _ in asked if item.gold.id not in self.wanted}.values())
        jobs = [Job(p.canonical, p.inputs, p.entry, cpu_s=120.0) for p in new]
        for p, verdict in zip(new, self.sandbox.run(jobs)):
            self.wanted[p.id] = verdict.outputs
        rows, jobs = [], []
        for item, text in asked:
            p = item.gold
            rows.append(dict(task_id=p.id, solution=program_of(concluded(text, "chat"), p.entry)))
            jobs.append(Job(rows[-1]["solution"], p.inputs, p.entry, give_up=True, cpu_s=20.0))
        for (item, _), row, verdict in zip(asked, rows, self.sandbox.run(jobs)):
            row["correct"] = None if verdict.end == "sandbox failure" else True
            for out, gold in zip(verdict.outputs, self.wanted[item.id]):
                if row["correct"] and gold is not None and out != gold:
                    row["correct"] = out is not None and close(decode(out, MAX_TEXT), decode(gold, MAX_TEXT), item.gold.atol)
        return rows


ASK = "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n```\n{}\n```\n"


def main() -> None:
    """The command line."""
    p = parser("code", __doc__)
    p.add_argument("--data", required=True, metavar="FILE")
    args = p.parse_args()
    population = load(args)
    with gzip.open(args.data, "rt") as f:
        problems = [problem_of("humaneval+", json.loads(line)) for line in f][:args.limit]
    items = [Item(p.bench, p.id, Prompt(ASK.format(p.prompt.strip())), p) for p in problems]
    with Sandbox(2, profile="eval") as sandbox:
        conclude(*answer_all(args, population, items, "code", Judge(sandbox)))


if __name__ == "__main__":
    leave("eval.code", main)
