"""What a program may be, and what its syntax tree says about it. Nothing here runs the program.

The sandbox is the wall, and finds out what is not deterministic. These checks give the ordinary cases a name, spare the
sandbox work that cannot succeed, and keep out of the archive what could not be shown to a student.
"""
import ast
import cmath
import functools
import hashlib
import math
import re
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace

from common import Refused, refuse_unless
from sandbox.parsing import arguments, parse, unparse
from tasks.literals import value_text
from tasks.prompts import FORMATS, show

# Why a proposal was refused, as the logs count it: by reading, by the sandbox, by what it returned, and what math and
# logic refuse. prompt_too_long: no room for an answer is left.
REASONS = frozenset(
    "no_program no_input few_inputs syntax too_long too_deep no_entry import banned_name ignores_input control_text "
    "not_literal input_too_long message_too_long value_range prompt_too_long duplicate error timeout killed exit "
    "violation crash malformed_result nondeterministic sandbox_failure unsupported not_finite output_too_long "
    "no_question not_a_number not_logic variables no_model several_models".split())
IMPORTS = frozenset("math itertools functools collections string re heapq bisect operator copy fractions decimal "
                    "statistics typing dataclasses".split())
# id and hash: hash(None) is an address, the same in every process of one machine and another on the next
BANNED = frozenset("eval exec compile open input breakpoint globals locals vars exit quit help id hash".split())
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
KEPT = (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
CONTROL = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:think|answer|eos)>|```")


def control_of(tokenizer: object) -> re.Pattern:
    """CONTROL, and the special tokens of a tokenizer: what a text that students see may not hold."""
    special = [re.escape(token) for token in tokenizer.all_special_tokens if len(token) > 1]
    return re.compile("|".join([CONTROL.pattern, *special]))


@dataclass(frozen=True)
class Limits:
    """Sizes in characters as displayed; over is rejected, never truncated."""
    source_chars: int = 3000
    input_chars: int = 500
    output_chars: int = 500
    message_chars: int = 500
    n_inputs: int = 10                  # code_f: inputs that the teacher is asked for
    min_inputs: int = 6                 # code_f: distinct ones on which the program must return
    n_shown: int = 5                    # code_f: pairs that the student sees; the others grade
    max_number: float = math.inf        # in inputs and outputs; those of this size are too large
    max_items: float = math.inf         # longest string or container in inputs and outputs
    reject_constant: bool = False       # refuse programs that overwrite every parameter before reading it
    compact: bool = False               # values are displayed without spaces
    control: re.Pattern = CONTROL       # what a text that students see may not hold

    @classmethod
    def for_format(cls, prompt_format: str) -> "Limits":
        """Defaults for a prompt format; the micro model knows only small values."""
        if not FORMATS[prompt_format].strict:
            return cls()
        # What micro/data.py has taught the bundled base.
        return cls(source_chars=400, input_chars=60, output_chars=60, n_inputs=8, min_inputs=8, n_shown=4,
                   max_number=1000, max_items=10, reject_constant=True, compact=True)

    @classmethod
    def of_run(cls, cfg: object, prompt_format: str, tokenizer: object) -> "Limits":
        """Those of a run: its prompt format's and tokenizer's."""
        return replace(cls.for_format(prompt_format), control=control_of(tokenizer))


# --- the syntax tree ----------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=16)
def tree_of(source: str) -> ast.Module:
    """As `parse`, for those who only read: it is kept for the next, so that nobody may change it."""
    return parse(source)


def entry(tree: ast.Module) -> ast.FunctionDef | None:
    """The top-level function f (the last one, as Python would call it), or None."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f"]
    return found[-1] if found else None


def names_in(tree: ast.AST, context: type = ast.expr_context) -> set[str]:
    """Every name that a tree reads or assigns; context: ast.Load for what it reads alone."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def drop_remarks(tree: ast.Module) -> ast.Module:
    """Removes docstrings and the annotations of functions in place; an empty body gets `pass`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree


def normalise(source: str, max_chars: int, tidy: bool) -> str:
    """The program, which has to define f. With `tidy` without comments, docstrings and annotations, and without what
    its top level does to show f at work: these could state the answer. Raises Refused."""
    tree = parse(source, max_chars)
    refuse_unless(entry(tree), "no_entry")
    if not tidy:
        return source.strip("\n")       # as it stands: printing it would lose the layout
    tree.body = [node for node in tree.body if isinstance(node, KEPT)]
    return unparse(drop_remarks(tree))


def count_statements(source: str) -> int:
    """Statements of f's body (or the module's) but docstring and final return. Raises Refused."""
    tree = drop_remarks(parse(source))
    body = (entry(tree) or tree).body
    return len(body) - (len(body) > 0 and isinstance(body[-1], (ast.Return, ast.Pass)))


class Anonymous(ast.NodeTransformer):
    """Names that a program binds become v0, v1, ... in the order of first use, constants the name of their type."""

    def __init__(self, tree: ast.Module):
        self.bound = names_in(tree, ast.Store) | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self.bound |= {node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)}
        self.names = {}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rename, in place, and go on below."""
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in self.bound:
                setattr(node, field, self.names.setdefault(name, f"v{len(self.names)}"))
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """The name of its type."""
        return ast.Constant(type(node.value).__name__)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """-3 is a constant to everybody but the parser."""
        if isinstance(node.op, (ast.USub, ast.UAdd)) and isinstance(node.operand, ast.Constant):
            return self.visit_Constant(node.operand)
        return self.generic_visit(node)


def structural_hash(source: str) -> str:
    """Hash of a program's structure: the same under renaming, other constants of the same type, remarks and layout;
    another for other operators, calls, control flow, and names that it does not define itself (len is not max)."""
    tree = drop_remarks(parse(source))
    return digest(ast.dump(Anonymous(tree).visit(tree)))


def digest(*parts: str) -> str:
    """Hash of texts, 32 hex digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


# --- checks -------------------------------------------------------------------------------------------------

def check_program(source: str, limits: Limits) -> None:
    """Raises Refused with the reason why a program may not run."""
    refuse_unless(len(source) <= limits.source_chars, "too_long")
    refuse_unless(not limits.control.search(source), "control_text")
    tree = tree_of(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            modules = []
        refuse_unless(IMPORTS.issuperset(module.split(".")[0] for module in modules), "import")
        name = getattr(node, "attr", getattr(node, "id", ""))
        refuse_unless(name not in BANNED and not name.startswith("__"), "banned_name")
    if limits.reject_constant:
        refuse_unless(not ignores_input(entry(tree)), "ignores_input")


def ignores_input(function: ast.FunctionDef) -> bool:
    """True if every parameter is overwritten before it is read, or never read (straight-line code only)."""
    alive = {node.arg for node in ast.iter_child_nodes(function.args) if isinstance(node, ast.arg)}
    for statement in function.body:
        read = names_in(statement, ast.Load)
        if isinstance(statement, ast.AugAssign):
            read |= names_in(statement.target)      # x += 1 reads x, but its tree says Store
        if not alive.isdisjoint(read):
            return False
        if isinstance(statement, ast.Assign):
            alive -= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return True


def check_input(text: str, limits: Limits) -> None:
    """Raises Refused with the reason why an argument text cannot be used."""
    refuse_unless(len(text) <= limits.input_chars, "input_too_long")
    refuse_unless(not limits.control.search(text), "control_text")
    try:
        given = arguments(text)
    except Refused as error:
        raise Refused("too_deep" if error.reason == "too_deep" else "not_literal") from None
    check_range(given, limits, inside=True)


def check_range(value: object, limits: Limits, inside: bool = False) -> None:
    """Raises Refused where a value, or one that it contains, is beyond max_number or max_items."""
    for item in list(parts(value))[inside:]:
        if isinstance(item, (int, float)):
            refuse_unless(abs(item) < limits.max_number, "value_range")
        elif isinstance(item, Sized):
            refuse_unless(len(item) <= limits.max_items, "value_range")


def parts(value: object) -> Iterator[object]:
    """A value and all that it contains."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += item


def check_value(value: object, limits: Limits) -> None:
    """Raises Refused with the reason why a decoded result cannot be a gold answer."""
    for item in parts(value):
        refuse_unless(not isinstance(item, (float, complex)) or cmath.isfinite(item), "not_finite")
    check_range(value, limits)
    text = show(value, limits.compact)
    refuse_unless(len(text) <= limits.output_chars, "output_too_long")
    refuse_unless(not limits.control.search(text), "control_text")
    value_text(text)                    # raises where no answer could state it: a set of frozensets has no literal
