"""The program in a model's answer, as EvalPlus cuts it out: the longest run of lines that is Python, of it what the entry needs.

Nothing is run here. Text meets Python's parser only through `complexity.parse`, which refuses what could hurt it; text beyond
MAX_CHARS is cut off, and MAX_PARSED bounds the work on one text. Other than EvalPlus, a run that defines the entry point goes
before longer ones that do not, and decorated functions and helpers without a return statement are kept.
"""
import ast
import re

from tasks.complexity import DEFINITIONS, parse

MAX_CHARS = 24_000
MAX_PARSED = 400_000         # characters that the parser is shown for one answer, attempts added up
FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.S | re.M)
# Where a top-level statement may begin: no use in trying the middle of a paragraph or an indented line first.
START = re.compile(r"(?:from|import|def|class|async|if|for|while|try|with|assert|print|return)\b|[@#\"']|"
                   r"[A-Za-z_][\w.\[\], ]*(?::[^=]+)?=")
# What EvalPlus stops a base model's completion at: it has begun something else.
STOPS = ("\nif __name__", "\ndef main(", "\nprint(", "\n```", "<|endoftext|>")
STOPS_OF = {"humaneval+": STOPS + ("\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
            "mbpp+": STOPS + ('\n"""', "\nassert")}


def complete(prompt: str, completion: str, bench: str) -> str:
    """A base model's answer to HumanEval+ or MBPP+: the prompt, and its completion up to where it begins something else."""
    ends = [at for stop in STOPS_OF[bench] if (at := completion.find(stop)) >= 0]
    return prompt + completion[:min(ends, default=len(completion))]


def defines(tree: ast.Module, name: str) -> bool:
    """Whether the top level defines or assigns a name."""
    return any(name in names(node) for node in tree.body)


def names(node: ast.stmt) -> list[str]:
    """The names that a top-level definition or assignment makes; none for other statements."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def runs(text: str):
    """Runs of lines that are Python, as (text, tree): each begins where a statement may, and ends where the parser objects."""
    lines, free, left = text.split("\n"), 0, MAX_PARSED
    for start in [i for i, line in enumerate(lines) if START.match(line)]:
        end = len(lines)
        if start < free:                            # inside a run that was found already
            continue
        while end > start and left > 0:
            run = "\n".join(lines[start:end])
            left -= len(run) + 100
            try:
                tree = parse(run, MAX_CHARS)
            except ValueError as error:
                at = getattr(error.__context__, "lineno", None)            # of the SyntaxError behind it
                end = min(end - 1, start + at - 1) if at else end - 1
                continue
            free = end
            yield run, tree
            break


def longest(text: str, entry: str | None = None) -> tuple[str, ast.Module]:
    """The longest run of lines that is Python, not counting empty ones; one that defines the entry first. ("", empty) without."""
    best, best_key = ("", ast.Module([], [])), (False, 0)
    for run, tree in runs(text[:MAX_CHARS]):
        key = entry is not None and defines(tree, entry), sum(bool(line.strip()) for line in run.split("\n"))
        if key > best_key:
            best, best_key = (run, tree), key
    return best


def fenced(text: str) -> list[str]:
    """Contents of the code fences, the last one perhaps not closed."""
    return [match[1] for match in FENCE.finditer(text[:4 * MAX_CHARS])]


def needed(tree: ast.Module, entry: str) -> str:
    """Source of imports and of the definitions and assignments that the entry point depends on, in order. Of a function defined
    twice the first counts that returns something: a prompt's signature is often repeated before the answer."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    returns = lambda node: not isinstance(node, ast.FunctionDef) or any(isinstance(part, ast.Return) for part in ast.walk(node))
    first: dict[str, ast.stmt] = {}
    for node in tree.body:
        for name in names(node):
            if name not in first or not returns(first[name]) and returns(node):
                first[name] = node
    wanted, todo = set(), [entry]
    while todo:
        name = todo.pop()
        if name in first and name not in wanted:
            wanted.add(name)
            todo += [part.id for part in ast.walk(first[name]) if isinstance(part, ast.Name)]
    kept = {id(first[name]) for name in wanted}
    return "\n".join(ast.unparse(node) for node in imports + [node for node in tree.body if id(node) in kept])


def extract(text: str, entry: str | None) -> str:
    """The program in an answer; "" where there is none. With an entry: of the longest run that is Python, what the entry needs.
    Without (a whole program): the last fence that is Python, else the longest run."""
    if not text.strip():
        return ""
    blocks = fenced(text)
    if entry is not None:
        found = [longest(block, entry) for block in blocks[-8:]] + [longest(text, entry)]
        _, tree = max(found, key=lambda run: (defines(run[1], entry), run[0].count("\n")))
        return needed(tree, entry) if defines(tree, entry) else ""
    whole = [run for block in blocks[-8:] if (run := longest(block)[0]).strip()]
    return whole[-1] if whole else longest(text)[0]
