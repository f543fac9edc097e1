"""The program in a model's answer, as EvalPlus cuts it: what the entry needs of the longest Python run.

Nothing is run here. Text meets Python's parser only through `complexity.parse`, which refuses what could hurt
it; text beyond MAX_CHARS is cut off, and MAX_PARSED bounds the work on one text.
"""
import ast
import re
from dataclasses import dataclass

from infra.errors import Refused
from tasks.complexity import DEFINITIONS, names_in, parse
from tasks.fences import read_blocks

MAX_CHARS = 24_000
MAX_PARSED = 400_000         # characters that the parser is shown for one answer, attempts added up
# Where a top-level statement may begin: no use in trying the middle of a paragraph or an indented line first.
START = re.compile(r"(?:from|import|def|class|async|if|for|while|try|with|assert|print|return)\b|[@#\"']|"
                   r"[A-Za-z_][\w.\[\], ]*(?::[^=]+)?=")
# What EvalPlus stops a base model's completion at: it has begun something else.
STOPS = ("\nif __name__", "\ndef main(", "\nprint(", "\n```", "<|endoftext|>")
STOPS_OF = {
    "humaneval+": (*STOPS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
    "mbpp+": (*STOPS, '\n"""', "\nassert"),
}


def complete(prompt: str, completion: str, bench: str) -> str:
    """A base model's answer to HumanEval+ or MBPP+: prompt and completion, up to something else."""
    for stop in STOPS_OF[bench]:
        completion = completion.partition(stop)[0]
    return prompt + completion


def names(node: ast.stmt) -> set[str]:
    """The names that a top-level definition or assignment makes; none for other statements."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return names_in(node, ast.Store)
    return set()


@dataclass(frozen=True)
class Run:
    """Lines that follow one another in a text and are Python."""
    source: str
    tree: ast.Module

    def defines(self, name: str | None) -> bool:
        """Whether the top level defines or assigns a name."""
        return any(name in names(node) for node in self.tree.body)

    def worth(self, entry: str | None) -> tuple[bool, int]:
        """The key by which runs are compared: whether one defines the entry, then its lines of text."""
        lines = map(str.strip, self.source.split("\n"))
        return self.defines(entry), sum(map(bool, lines))


def longest(text: str, entry: str | None) -> Run:
    """The longest run of Python lines, not counting empty ones; one that defines the entry first. Each run
    begins where a statement may, and not inside of another."""
    lines = text[:MAX_CHARS].split("\n")
    runs = [Run("", ast.Module([], []))]
    end, left = 0, MAX_PARSED
    for start, line in enumerate(lines):
        if start < end or not START.match(line):
            continue
        last = len(lines)
        while last > start and left > 0:
            source = "\n".join(lines[start:last])
            left -= len(source) + 100
            try:
                runs.append(Run(source, parse(source, MAX_CHARS)))
                end = last
                break
            except Refused as error:
                # The SyntaxError behind it knows the line that is none of the program.
                at = getattr(error.__context__, "lineno", None)
                last -= 1
                if at:
                    last = min(last, start + at - 1)
    return max(runs, key=lambda run: run.worth(entry))


def returns(node: ast.stmt) -> bool:
    """Whether a statement is no function without a return, such as a prompt's head that an answer repeats."""
    if not isinstance(node, ast.FunctionDef):
        return True
    return any(isinstance(part, ast.Return) for part in ast.walk(node))


def needed(run: Run, entry: str) -> str:
    """The lines of imports, and of the definitions and assignments that the entry point depends on."""
    first: dict[str, ast.stmt] = {}                 # of a function the first that returns something
    kept = []
    for node in run.tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kept.append(node)
        for name in names(node):
            if name not in first or returns(node) and not returns(first[name]):
                first[name] = node
    todo = [entry]
    while todo:
        node = first.pop(todo.pop(), None)
        if node:
            kept.append(node)
            todo += names_in(node)
    numbers = set()
    for node in kept:
        begins = node.lineno
        for decorator in getattr(node, "decorator_list", []):
            begins = min(begins, decorator.lineno)
        numbers.update(range(begins, node.end_lineno + 1))
    lines = ["", *run.source.split("\n")]           # numbers begin at 1
    return "\n".join(lines[number] for number in sorted(numbers))


def extract(text: str, entry: str | None) -> str:
    """The program in an answer; "" where there is none. With an entry: what it needs of the longest run that
    is Python. Without (a whole program): the last fence that is Python, else the longest run."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")         # as Python's parser counts lines
    blocks = [body for _, body in read_blocks(text[:4 * MAX_CHARS])][-8:]
    if entry is None:
        for part in [*reversed(blocks), text]:
            run = longest(part, None)
            if run.source.strip():
                return run.source
        return ""
    runs = [longest(part, entry) for part in [*blocks, text]]
    best = max(runs, key=lambda run: (run.defines(entry), run.source.count("\n")))
    if not best.defines(entry):
        return ""
    return needed(best, entry)
