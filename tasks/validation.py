"""What a task may be: sizes, reasons for refusal, and the static checks of programs, inputs and results.

The sandbox is the wall. These checks give the ordinary cases a name, spare the sandbox work that cannot
succeed, and keep out of the archive what could not be shown to a student.
"""
import ast
import cmath
import math
import re
import sys
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace

from common import Refused, refuse_unless
from sandbox.parsing import arguments
from tasks.complexity import entry, global_names, names_in, tree_of
from tasks.literals import value_text
from tasks.prompts import FORMATS, show

# Why a proposal was refused, as the logs count it: by reading, by the sandbox, by what it returned, and what
# math, logic and proof refuse (docs/advanced/theorems.md). prompt_too_long: no room for an answer is left.
REASONS = frozenset(
    "no_program no_input few_inputs syntax too_long too_deep no_entry import banned_name ignores_input "
    "control_text not_literal input_too_long message_too_long value_range prompt_too_long duplicate "
    "error timeout killed exit violation crash malformed_result nondeterministic sandbox_failure "
    "unsupported not_finite output_too_long "
    "no_question not_a_number inexact not_logic variables no_model several_models".split())
IMPORTS = frozenset("math itertools functools collections string re heapq bisect operator copy fractions "
                    "decimal statistics typing dataclasses".split())
# id and hash: hash(None) is an address, the same in every process of one machine and another on the next.
BANNED = frozenset("__import__ eval exec compile open input breakpoint globals locals vars exit quit help "
                   "id hash __builtins__ __loader__ __spec__".split())
DUNDERS = frozenset("__init__ __name__ __main__ __len__ __iter__ __next__ __getitem__ __add__ __mul__ __eq__ "
                    "__lt__".split())
# Of the modules above, what draws random numbers; and modules that can be reached through them (typing.sys).
DRAWS = frozenset("NormalDist kde_random".split())
OTHER_MODULES = sys.stdlib_module_names - IMPORTS - {"abc"}         # collections.abc is public
CONTROL = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:think|answer|eos)>|```")
BRACKETED = re.compile(r"[<\[{|].*[>\]}|]", re.S)


def control_of(tokenizer: object) -> re.Pattern:
    """CONTROL, and the added tokens of a tokenizer that chats are made of: special or in brackets."""
    patterns = set()
    for token in tokenizer.added_tokens_decoder.values():
        text = token.content.strip()
        is_control = token.special or BRACKETED.fullmatch(text)
        # One character, such as a new line, may stand in any program.
        if len(text) > 1 and is_control:
            patterns.add(re.escape(text))
    return re.compile("|".join([CONTROL.pattern, *sorted(patterns)]))


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
        """Those of a run: its prompt format's and tokenizer's, or what its flags (config.Config) say."""
        usual = cls.for_format(prompt_format)
        return replace(usual, control=control_of(tokenizer))


def check_program(source: str, limits: Limits) -> None:
    """Raises Refused with the reason why a program may not run. Static: nothing is executed."""
    refuse_unless(len(source) <= limits.source_chars, "too_long")
    refuse_unless(not limits.control.search(source), "control_text")
    tree = tree_of(source)
    names = global_names(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            check_import(node)
        for name in names_reached(node):
            check_reached(name)
    refuse_unless(not reaches_module(tree), "import")
    refuse_unless(names.isdisjoint(BANNED), "banned_name")
    if limits.reject_constant:
        refuse_unless(not ignores_input(entry(tree)), "ignores_input")


def check_import(node: ast.Import | ast.ImportFrom) -> None:
    """Raises Refused unless a statement imports from IMPORTS alone."""
    modules = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        refuse_unless(node.level == 0 and node.module, "import")        # from . import x
        modules = [node.module]
    for module in modules:
        refuse_unless(module.split(".")[0] in IMPORTS, "import")


def check_reached(name: str) -> None:
    """Raises Refused for a name that reaches what draws, or into the insides of a value or a module."""
    refuse_unless(name not in DRAWS, "banned_name")
    is_special = re.fullmatch(r"__[a-z]\w*__", name)
    refuse_unless(name in DUNDERS or not is_special, "banned_name")


def names_reached(node: ast.AST) -> list[str]:
    """Names by which a node reaches into a value or a module: of an attribute, of what is imported from a
    module, and those in a string, as in methodcaller("__hash__") or "{0.__class__}"."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.findall(r"\w+", node.value)
    return []


def reaches_module(tree: ast.Module) -> bool:
    """Whether a program takes a module that it may not import from one that it may: statistics.random."""
    # First all imports: one that stands below a function may be used in it.
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.add(alias.asname or alias.name.split(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not OTHER_MODULES.isdisjoint(names_reached(node)):
            return True
        if isinstance(node, ast.Attribute) and node.attr in OTHER_MODULES and owner(node) in imported:
            return True
    return False


def owner(node: ast.Attribute) -> str | None:
    """The name at the beginning of a chain of attributes (a of a.b.c), None where it begins otherwise."""
    value = node.value
    while isinstance(value, ast.Attribute):
        value = value.value
    if isinstance(value, ast.Name):
        return value.id
    return None


def ignores_input(function: ast.FunctionDef) -> bool:
    """True if every parameter is overwritten before it is read, or never read (straight-line code only)."""
    alive = set()                       # parameters that still have the value of the call
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
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    alive.discard(target.id)
    return True


def check_input(text: str, limits: Limits) -> None:
    """Raises Refused with the reason why an argument text cannot be used."""
    refuse_unless(len(text) <= limits.input_chars, "input_too_long")
    refuse_unless(not limits.control.search(text), "control_text")
    try:
        given = arguments(text)
    except Refused as error:
        if error.reason == "too_deep":
            raise
        raise Refused("not_literal") from None      # whatever else is wrong with it
    for value in given:
        check_range(value, limits)


def check_range(value: object, limits: Limits) -> None:
    """Raises Refused where a value, or one that it contains, is beyond max_number or max_items."""
    for item in parts(value):
        if isinstance(item, (int, float)):
            refuse_unless(abs(item) < limits.max_number, "value_range")
        elif isinstance(item, Sized):
            refuse_unless(len(item) <= limits.max_items, "value_range")


def parts(value: object) -> Iterator[object]:
    """A value and all that it contains."""
    # A stack and no recursion: a value may be nested as deep as MAX_DEPTH of sandbox/values.py.
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
    # Raises where no answer could state the value: a set of frozensets has no literal.
    value_text(text)
