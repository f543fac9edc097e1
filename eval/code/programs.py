"""The program in a model's answer, as EvalPlus cuts it: what the entry needs of the longest Python run.

Nothing is run here. Text meets Python's parser only through `complexity.parse`, which refuses what could hurt
it; text beyond MAX_CHARS is cut off, and MAX_PARSED bounds the work on one text.
"""
import ast
import re

from infra.errors import Refused
from tasks.complexity import DEFINITIONS, parse
from tasks.fences import read_blocks

MAX_CHARS = 24_000
MAX_PARSED = 400_000         # characters that the parser is shown for one answer, attempts added up
# Where a top-level statement may begin: no use in trying the middle of a paragraph or an indented line first.
START = re.compile(r"(?:from|import|def|class|async|if|for|while|try|with|assert|print|return)\b|[@#\"']|"
                   r"[A-Za-z_][\w.\[\], ]*(?::[^=]+)?=")
# What EvalPlus stops a base model's completion at: it has begun something else.
STOPS = ("\nif __name__", "\ndef main(", "\nprint(", "\n```", "<|endoftext|>")
STOPS_OF = {"humaneval+": STOPS + ("\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
            "mbpp+": STOPS + ('\n"""', "\nassert")}


def complete(prompt: str, completion: str, bench: str) -> str:
    """A base model's answer to HumanEval+ or MBPP+: prompt and completion, up to something else."""
    for stop in STOPS_OF[bench]:
        completion = completion.partition(stop)[0]
    return prompt + completion


def names(node: ast.stmt) -> list[str]:
    """The names that a top-level definition or assignment makes; none for other statements."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
    return []


def defines(tree: ast.Module, name: str | None) -> bool:
    """Whether the top level defines or assigns a name."""
    return any(name in names(node) for node in tree.body)


def longest(text: str, entry: str | None) -> tuple[str, ast.Module]:
    """The longest run of Python lines, not counting empty ones, with its tree; one that defines the entry
    first. Each run begins where a statement may, and not inside of another."""
    lines, runs = text[:MAX_CHARS].split("\n"), [("", ast.Module([], []))]
    end, left = 0, MAX_PARSED
    for start, line in enumerate(lines):
        if start < end or not START.match(line):
            continue
        last = len(lines)
        while last > start and left > 0:
            run = "\n".join(lines[start:last])
            left -= len(run) + 100
            try:
                runs.append((run, parse(run, MAX_CHARS)))
                end = last
                break
            except Refused as error:
                at = getattr(error.__context__, "lineno", None)            # of the SyntaxError behind it
                last = min(last - 1, start + at - 1) if at else last - 1

    def size(run: tuple[str, ast.Module]) -> tuple[bool, int]:
        return defines(run[1], entry), sum(bool(line.strip()) for line in run[0].split("\n"))
    return max(runs, key=size)


def returns(node: ast.stmt) -> bool:
    """Whether a statement is no function without a return, such as a prompt's head that an answer repeats."""
    return not isinstance(node, ast.FunctionDef) or any(isinstance(x, ast.Return) for x in ast.walk(node))


def needed(source: str, tree: ast.Module, entry: str) -> str:
    """The lines of imports, and of the definitions and assignments that the entry point depends on."""
    first: dict[str, ast.stmt] = {}
    for node in tree.body:
        for name in names(node):                    # of a function the first that returns something
            if name not in first or not returns(first[name]) and returns(node):
                first[name] = node
    kept, todo = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [entry]
    while todo:
        if node := first.pop(todo.pop(), None):
            kept.append(node)
            todo += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    numbers = set()
    for node in kept:
        begins = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        numbers.update(range(begins, node.end_lineno + 1))
    return "\n".join(line for number, line in enumerate(source.split("\n"), 1) if number in numbers)


def extract(text: str, entry: str | None) -> str:
    """The program in an answer; "" where there is none. With an entry: what it needs of the longest run that
    is Python. Without (a whole program): the last fence that is Python, else the longest run."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")         # as Python's parser counts lines
    blocks = [body for _, body in read_blocks(text[:4 * MAX_CHARS])][-8:]
    if entry is None:
        whole = [longest(block, None)[0] for block in [*reversed(blocks), text]]
        return next((run for run in whole if run.strip()), "")
    parts = [longest(part, entry) for part in (*blocks, text)]
    source, tree = max(parts, key=lambda run: (defines(run[1], entry), run[0].count("\n")))
    return needed(source, tree, entry) if defines(tree, entry) else ""
