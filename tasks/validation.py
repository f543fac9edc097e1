"""What a task may be: sizes, reasons for refusal, and the static checks of programs, inputs and results.
The sandbox is the wall. These checks give the ordinary cases a name, spare the sandbox work that cannot
succeed, and keep out of the archive what could not be shown to a student."""
import ast
import cmath
import math
import re
import sys
from dataclasses import dataclass, replace

from infra.errors import Refused, refuse_unless
from tasks.complexity import entry, global_names, tree_of
from tasks.literals import plain_arguments, value_text
from tasks.prompts import FORMATS, show

# Why a proposal was refused, as the logs count it: by reading, by the sandbox, by what it returned, and what
# math, logic and proof refuse (docs/advanced/theorems.md). prompt_too_long: no room for an answer is left.
REASONS = frozenset(
    "no_program no_input few_inputs syntax too_long too_deep no_entry import banned_name ignores_input "
    "control_text not_literal input_too_long message_too_long value_range prompt_too_long duplicate "
    "error timeout killed exit violation crash malformed_result nondeterministic sandbox_failure "
    "unsupported not_finite output_too_long "
    "no_question not_a_number inexact not_logic variables no_model several_models "
    "no_proof unproved unused_hypothesis trivial other_theory".split())
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


def control_of(tokenizer) -> re.Pattern:
    """CONTROL, and the added tokens of a tokenizer that chats are made of: special or in brackets."""
    added = [(token.content.strip(), token.special) for token in tokenizer.added_tokens_decoder.values()]
    chats = {text for text, special in added if len(text) > 1 and (special or BRACKETED.fullmatch(text))}
    return re.compile("|".join([CONTROL.pattern, *sorted(map(re.escape, chats))]))


@dataclass(frozen=True)
class Limits:
    """Sizes in characters as displayed; over is rejected, never truncated. None = no limit."""
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
    theory: str = "prop.mm"             # proof: the database, bundled or a path
    control: re.Pattern = CONTROL       # what a text that students see may not hold

    @classmethod
    def for_format(cls, prompt_format: str) -> "Limits":
        """Defaults for a prompt format; the micro model knows only small values."""
        if not FORMATS[prompt_format].strict:
            return cls()
        return cls(source_chars=400, input_chars=60, output_chars=60, n_inputs=8, min_inputs=8, n_shown=4,
                   max_number=1000, max_items=10, reject_constant=True, compact=True)

    @classmethod
    def of_run(cls, cfg, prompt_format: str, tokenizer) -> "Limits":
        """Those of a run: its prompt format's and tokenizer's, or what its flags (config.Config) say."""
        return replace(cls.for_format(prompt_format), theory=cfg.theory, control=control_of(tokenizer))


def check_program(source: str, limits: Limits) -> None:
    """Raises Refused with the reason why a program may not run. Static: nothing is executed."""
    refuse_unless(len(source) <= limits.source_chars, "too_long")
    refuse_unless(not limits.control.search(source), "control_text")
    tree, names = tree_of(source), global_names(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = {(getattr(node, "module", None) or alias.name).split(".")[0] for alias in node.names}
            refuse_unless(modules <= IMPORTS and not getattr(node, "level", 0), "import")
        reached = names_reached(node)
        refuse_unless(DRAWS.isdisjoint(reached), "banned_name")
        for name in reached:
            refuse_unless(name in DUNDERS or not re.fullmatch(r"__[a-z]\w*__", name), "banned_name")
    refuse_unless(not reaches_module(tree), "import")
    refuse_unless(names.isdisjoint(BANNED), "banned_name")
    refuse_unless(not limits.reject_constant or not ignores_input(entry(tree)), "ignores_input")


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
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not OTHER_MODULES.isdisjoint(names_reached(node)):
            return True
        if isinstance(node, ast.Attribute) and node.attr in OTHER_MODULES:
            owner = node.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name) and owner.id in imported:
                return True
    return False


def ignores_input(function: ast.FunctionDef) -> bool:
    """True if every parameter is overwritten before it is read, or never read (straight-line code only)."""
    alive = {node.arg for node in ast.iter_child_nodes(function.args) if isinstance(node, ast.arg)}
    for statement in function.body:
        updated = statement.target if isinstance(statement, ast.AugAssign) else None    # x += 1 says Store
        for node in ast.walk(statement):
            is_read = isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Load) or node is updated)
            if is_read and node.id in alive:
                return False
        if isinstance(statement, ast.Assign):
            alive -= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return True


def check_input(text: str, limits: Limits) -> None:
    """Raises Refused with the reason why an argument text cannot be used."""
    refuse_unless(len(text) <= limits.input_chars, "input_too_long")
    refuse_unless(not limits.control.search(text), "control_text")
    try:
        arguments = plain_arguments(text)
    except Refused as error:
        raise Refused("too_deep" if error.reason == "too_deep" else "not_literal") from None
    for argument in arguments:
        for node in ast.walk(argument):
            items = getattr(node, "elts", getattr(node, "keys", 0))
            check_range(node.value if isinstance(node, ast.Constant) else items, limits)


def check_range(value, limits: Limits) -> None:
    """Raises Refused where one value (not what it contains) is beyond max_number or max_items."""
    if isinstance(value, (int, float)):
        refuse_unless(abs(value) < limits.max_number, "value_range")
    elif hasattr(value, "__len__"):
        refuse_unless(len(value) <= limits.max_items, "value_range")


def check_value(value, limits: Limits) -> None:
    """Raises Refused with the reason why a decoded result cannot be a gold answer."""
    stack = [value]
    while stack:
        item = stack.pop()
        refuse_unless(not isinstance(item, (float, complex)) or cmath.isfinite(item), "not_finite")
        check_range(item, limits)
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack += item
    text = show(value, limits.compact)
    refuse_unless(len(text) <= limits.output_chars, "output_too_long")
    refuse_unless(not limits.control.search(text), "control_text")
    value_text(text)        # raises where no answer could state the value: a set of frozensets has no literal
