"""Says what a program may be, and what its syntax tree tells. Nothing here runs the program.

The sandbox is the wall, and finds out what is not deterministic. These checks give the ordinary cases a name,
spare the sandbox work that cannot succeed, and keep out of the archive what could not be shown to a student.
"""
import ast
import cmath
import functools
import hashlib
import math
import re
import symtable
import warnings
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace

from common import Refused, refuse_unless
from sandbox.parsing import arguments, parse, unparse
from tasks.literals import value_of
from tasks.prompts import FORMATS, show

IMPORTS = frozenset("math itertools functools collections string re heapq bisect operator copy fractions "
                    "decimal statistics typing dataclasses".split())
# id and hash: hash(None) is an address, the same in every process of one machine and another on the next
BANNED = frozenset("eval exec compile open input breakpoint globals locals vars exit quit help id "
                   "hash".split())
DRAWS = {"random", "NormalDist"}    # what draws random numbers, in modules that may be imported
DUNDERS = {"__init__", "__name__", "__main__"}                  # special names that do no harm
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
KEPT = (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
MAX_ANSWER = 100_000                # characters of a student's program: more than any answer has
CONTROL = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:think|answer|eos)>|```")


def control_of(tokenizer: object) -> re.Pattern:
    """Returns the pattern of what a text that students see may not hold: CONTROL, and a tokenizer's special
    tokens."""
    special = [re.escape(token) for token in tokenizer.all_special_tokens if len(token) > 1]
    return re.compile("|".join([CONTROL.pattern, *special]))


@dataclass(frozen=True)
class Limits:
    """Holds sizes in characters as displayed. What is over is refused, never truncated."""
    source_chars: int = 3000
    input_chars: int = 500
    output_chars: int = 500
    message_chars: int = 500
    n_inputs: int = 10                  # code_f: inputs that the teacher is asked for
    min_inputs: int = 6                 # code_f: distinct ones on which the program must return
    n_shown: int = 5                    # code_f: pairs that the student sees; the others grade
    max_number: float = math.inf        # in inputs and outputs; those of this size are too large
    max_items: float = math.inf         # longest string or container in inputs and outputs
    # For what a task is refused although it runs; of a user's own tasks nothing. echo: a copy of what the
    # prompt shows solves it. not_told: a word problem does not state its numbers. ignores_input: as its
    # function says.
    dull: frozenset[str] = frozenset({"echo", "not_told"})
    theory: str = "prop.mm"             # proof: the Metamath database
    compact: bool = False               # values are displayed without spaces
    control: re.Pattern = CONTROL       # what a text that students see may not hold

    @classmethod
    def for_format(cls, prompt_format: str) -> "Limits":
        """Returns the limits of a prompt format. The micro model knows only small values."""
        if not FORMATS[prompt_format].strict:
            return cls()
        # What micro/data.py has taught the bundled base.
        return cls(
            source_chars=400,
            input_chars=60,
            output_chars=60,
            n_inputs=8,
            min_inputs=8,
            n_shown=4,
            max_number=1000,
            max_items=10,
            dull=frozenset({"echo", "not_told", "ignores_input"}),
            compact=True)

    @classmethod
    def of_run(cls, cfg: object, prompt_format: str, tokenizer: object) -> "Limits":
        """Returns the limits of a run, whose tokenizer has special tokens of its own."""
        limits = cls.for_format(prompt_format)
        dull = limits.dull - {"echo"} if cfg.admit_echo else limits.dull
        return replace(limits, dull=dull, control=control_of(tokenizer))

    def of_user(self) -> "Limits":
        """Returns the limits of tasks that a user gave, who may give dull ones."""
        return replace(self, dull=frozenset())


# --- the syntax tree ----------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=16)
def tree_of(source: str) -> ast.Module:
    """Returns what `parse` does, for who only reads it. It is kept for the next call, so nobody may change
    it."""
    return parse(source)


def entry(tree: ast.Module) -> ast.FunctionDef | None:
    """Returns the top-level function f (the last one, as Python would call it), or None."""
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == "f":
            return node
    return None


def binds_f(source: str) -> bool:
    """Returns whether a program binds f at its top level, by whatever statement. Raises Refused if it is
    none."""
    parse(source, MAX_ANSWER)           # refuses what could hurt Python's parser, which symtable calls, too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = symtable.symtable(source, "answer", "exec")
    except (SyntaxError, RecursionError) as error:      # such as a return outside of a function
        raise Refused(f"syntax: {type(error).__name__}") from None
    if "f" not in names.get_identifiers():
        return False
    f = names.lookup("f")
    return f.is_assigned() or f.is_imported()


def names_in(tree: ast.AST, context: type = ast.expr_context) -> set[str]:
    """Returns every name that a tree reads or assigns. context: ast.Load for what it reads alone."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            names.add(node.id)
    return names


def bound_names(tree: ast.AST) -> set[str]:
    """Returns the names that a program binds: what it assigns, parameters, and its functions and classes."""
    names = names_in(tree, ast.Store)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, DEFINITIONS):
            names.add(node.name)
    return names


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
    """Returns the program, which has to define f. With `tidy` comments, docstrings, annotations and what the
    top level does to show f at work are left out, because they could state the answer. Raises Refused."""
    tree = parse(source, max_chars)
    refuse_unless(entry(tree), "no_entry")
    if not tidy:
        return source.strip("\n")       # as it stands: printing it would lose the layout
    tree.body = [node for node in tree.body if isinstance(node, KEPT)]
    return unparse(drop_remarks(tree))


def count_statements(source: str) -> int:
    """Returns the number of statements in f's body (or the module's) but docstring and final return. Raises
    Refused."""
    tree = drop_remarks(parse(source))
    body = (entry(tree) or tree).body
    if body and isinstance(body[-1], (ast.Return, ast.Pass)):
        return len(body) - 1
    return len(body)


class Anonymous(ast.NodeTransformer):
    """Turns the names that a program binds into v0, v1, ... in the order of first use, and constants into
    their type."""

    def __init__(self, tree: ast.Module):
        self.bound = bound_names(tree)
        self.names = {}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Renames in place, and goes on below."""
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in self.bound:
                setattr(node, field, self.names.setdefault(name, f"v{len(self.names)}"))
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Returns the name of its type."""
        return ast.Constant(type(node.value).__name__)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Takes -3 for a constant, as everybody but the parser does."""
        if isinstance(node.op, (ast.USub, ast.UAdd)) and isinstance(node.operand, ast.Constant):
            return self.visit_Constant(node.operand)
        return self.generic_visit(node)


def structural_hash(source: str) -> str:
    """Returns a hash of a program's structure. It is the same under renaming, other constants of the same
    type, remarks and layout. It is another for other operators, calls, control flow, and names that the
    program does not define itself (len is not max)."""
    tree = drop_remarks(parse(source))
    return digest(ast.dump(Anonymous(tree).visit(tree)))


def digest(*parts: str) -> str:
    """Returns a hash of texts, 32 hex digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


# --- checks -------------------------------------------------------------------------------------------------

def check_program(source: str, limits: Limits) -> None:
    """Raises Refused with the reason why a teacher's program may not run."""
    refuse_unless(len(source) <= limits.source_chars, "too_long")
    refuse_unless(not limits.control.search(source), "control_text")
    tree = tree_of(source)
    own = bound_names(tree)
    for node in ast.walk(tree):
        modules, reached = [], []
        match node:
            case ast.Import(aliases):
                modules = [alias.name for alias in aliases]
            case ast.ImportFrom(module, aliases):
                modules, reached = [module or ""], [alias.name for alias in aliases]
            case ast.Name(name):                # one that the program binds itself is no builtin
                refuse_unless(name not in BANNED - own, "banned_name")
                reached = [name]
            case ast.Attribute(_, name):
                reached = [name]
            case ast.Constant(str() as text):   # as in methodcaller("__hash__")
                reached = re.findall(r"\b__[a-z]\w*__\b", text)
        for module in modules:
            refuse_unless(module.split(".")[0] in IMPORTS, "import")
        for name in reached:
            is_special = name.startswith("__") and name not in DUNDERS
            refuse_unless(not is_special and name not in DRAWS - own, "banned_name")
    if "ignores_input" in limits.dull:
        refuse_unless(not ignores_input(entry(tree)), "ignores_input")


def ignores_input(function: ast.FunctionDef) -> bool:
    """Returns whether every parameter is overwritten before it is read, or never read (straight-line code
    only)."""
    alive = set()
    for node in ast.iter_child_nodes(function.args):
        if isinstance(node, ast.arg):
            alive.add(node.arg)
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
    for value in given:
        check_range(value, limits)


def check_range(value: object, limits: Limits) -> None:
    """Raises Refused if a value, or one that it contains, is beyond max_number or max_items."""
    for item in parts(value):
        if isinstance(item, (int, float)):
            refuse_unless(abs(item) < limits.max_number, "value_range")
        elif isinstance(item, Sized):
            refuse_unless(len(item) <= limits.max_items, "value_range")


def parts(value: object) -> Iterator[object]:
    """Yields a value and all that it contains."""
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
    value_of(text)            # raises if no answer could state it: a set of frozensets has no literal
