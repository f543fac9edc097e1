"""What a task may be: sizes, names of the reasons for refusal, and the static checks of programs, inputs and results.

Nothing here runs a program; the sandbox is the wall. These checks give the ordinary cases a name, spare the sandbox work
that cannot succeed, and keep out of the archive what could not be shown to a student.
"""
import ast
import cmath
import re
from dataclasses import dataclass

from tasks.complexity import DEFINITIONS, bound_names, drop_annotations, drop_docstrings, entry, parse
from tasks.prompts import show

REASONS = {     # why a proposal was refused; the keys are what the logs count
    "no_program": "no Python block", "no_input": "no input block", "few_inputs": "fewer distinct inputs than asked for",
    "syntax": "not Python, or not the protocol", "too_long": "program over the limit", "too_deep": "nested too deeply",
    "no_entry": "no function f and not exactly one other to call f", "import": "imports outside the allow-list",
    "banned_name": "eval, open, dunder attributes and the like", "ignores_input": "the result cannot depend on the input",
    "control_text": "contains chat markup or a code fence", "not_literal": "the input is no plain literal",
    "input_too_long": "input over the limit", "message_too_long": "hint over the limit", "value_range": "too large for the prompt format",
    "error": "raised an exception", "timeout": "over the time limit", "killed": "killed, mostly for memory",
    "exit": "ended itself", "violation": "tried a forbidden system call", "crash": "crashed the interpreter",
    "malformed_result": "tampered with the report",
    "nondeterministic": "two processes disagree", "unsupported": "the result is no plain value", "not_finite": "nan or infinity",
    "output_too_long": "result over the limit", "sandbox_failure": "the judge failed, not the program",
    "no_question": "no question block", "not_a_number": "the result is no number", "inexact": "a float that is no short decimal",
    "prompt_too_long": "asking it would leave no room for an answer in the base's context",
    "guessable": "the archive's most frequent output, over --max-guess",
    "not_logic": "more than variables, and, or, not, == and !=", "variables": "too few or too many variables",
    "no_proof": "no theorem with a proof", "unproved": "the verifier refuses the proof",
    "unused_hypothesis": "the proof does without one of the hypotheses",
    "trivial": "in the database, or one step away from it", "other_theory": "over another database than --theory",
    "no_model": "no assignment fits", "several_models": "several assignments fit",
    "duplicate": "in the archive already (found by the loop)"}
IMPORTS = frozenset("math itertools functools collections string re heapq bisect operator copy fractions decimal statistics "
                    "typing dataclasses".split())
# The sandbox is the wall; this list only gives the ordinary cases a name and keeps them out of the archive.
BANNED = frozenset("__import__ eval exec compile open input breakpoint globals locals vars exit quit help "
                   "__builtins__ __loader__ __spec__".split())
DUNDERS = frozenset("__init__ __name__ __len__ __iter__ __next__ __getitem__ __add__ __mul__ __eq__ __lt__".split())
CONTROL = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?(?:think|answer|eos)>|```")


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
    imports: frozenset[str] = IMPORTS
    max_digits: int | None = None       # before the point of a number in inputs and outputs
    max_items: int | None = None        # longest string or container in inputs and outputs
    reject_constant: bool = False       # refuse programs that overwrite every parameter before reading it
    compact: bool = False               # values are displayed without spaces
    theory: str = "prop.mm"             # proof: the database, bundled or a path

    @classmethod
    def for_format(cls, prompt_format: str) -> "Limits":
        """Defaults for a prompt format; the micro model knows only small values."""
        micro = dict(source_chars=400, input_chars=60, output_chars=60, n_inputs=8, min_inputs=8, n_shown=4, max_digits=3,
                     max_items=10, reject_constant=True, compact=True)
        return cls(**micro) if prompt_format == "micro" else cls()


def normalise(source: str, limits: Limits, tidy: bool, alias: str = "") -> str:
    """The program with its entry called f, which may have been the only function or the one called `alias`; with `tidy` also
    without comments, docstrings, annotations of functions and top-level demonstrations, all of which could state or falsify the
    answer. Raises ValueError("reason: ...")."""
    if len(source) > limits.source_chars:
        raise ValueError("too_long")
    tree = parse(source)
    renamed = False
    if entry(tree) is None:
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        functions = [node for node in functions if node.name == alias] or functions
        if len(functions) != 1 or "f" in bound_names(tree):
            raise ValueError("no_entry")
        old, renamed = functions[0].name, True
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node is functions[0]:
                node.name = "f"
            elif isinstance(node, ast.Name) and node.id == old:
                node.id = "f"
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                node.names = ["f" if name == old else name for name in node.names]
    if tidy:
        tree = drop_demonstrations(drop_annotations(drop_docstrings(tree), everywhere=False))
    return ast.unparse(ast.fix_missing_locations(tree)) if tidy or renamed else source.strip("\n")


def drop_demonstrations(tree: ast.Module) -> ast.Module:
    """Removes, in place, what the top level does only to show f at work: expressions, assertions, the main guard, loops and
    assignments that call f, and assignments that no definition reads."""
    used = {node.id for top in tree.body if isinstance(top, DEFINITIONS) for node in ast.walk(top) if isinstance(node, ast.Name)}

    def shows(node: ast.stmt) -> bool:
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return "f" in names or all(isinstance(target, ast.Name) and target.id not in used for target in targets)
        return isinstance(node, (ast.Expr, ast.Assert)) or isinstance(node, (ast.If, ast.For)) and bool(names & {"f", "__name__"})

    tree.body = [node for node in tree.body if not shows(node)]
    return tree


def demonstrated(source: str, name: str = "") -> list[str]:
    """Argument texts of the calls to the entry (or to `name`) outside all definitions, names replaced by the literals that the
    program itself gives them. Calls with anything but plain literals are left out; unreadable source gives none."""
    try:
        tree = parse(source)
    except ValueError:
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = entry(tree) or (functions[0] if len(functions) == 1 else None)
    name, order = name or (function.name if function else ""), parameters(function) if function else []
    outside = [node for top in tree.body if not isinstance(top, DEFINITIONS) for node in ast.walk(top)]
    values = {node.targets[0].id: node.value for node in outside
              if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    texts = []
    for call in outside:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name) or len(call.args) > 16:
            continue
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        given = call.args + [named.pop(parameter) for parameter in order[len(call.args):] if parameter in named]
        text = ", ".join(ast.unparse(values.get(node.id, node) if isinstance(node, ast.Name) else node) for node in given)
        try:
            read_arguments(text)
        except ValueError:
            continue
        if not named:
            texts.append(text)
    return texts


def program_problem(source: str, limits: Limits) -> str | None:
    """Reason why a program may not run, or None. Static: nothing is executed."""
    if len(source) > limits.source_chars:
        return "too_long"
    if CONTROL.search(source):
        return "control_text"
    try:
        tree = parse(source)
    except ValueError as error:
        return str(error).split(":")[0]
    own = bound_names(tree)         # a parameter called `input` is nothing bad
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and not {alias.name.split(".")[0] for alias in node.names} <= limits.imports:
            return "import"
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] not in limits.imports):
            return "import"
        if isinstance(node, ast.Name) and node.id in BANNED - own:
            return "import" if node.id == "__import__" else "banned_name"
        if isinstance(node, ast.Attribute) and re.fullmatch(r"__\w+__", node.attr) and node.attr not in DUNDERS:
            return "banned_name"
    function = entry(tree)
    if function is None:
        return "no_entry"
    return "ignores_input" if limits.reject_constant and ignores_input(function) else None


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names of all parameters in order."""
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, spec.vararg, *spec.kwonlyargs, spec.kwarg]
    return [argument.arg for argument in named if argument]


def ignores_input(function: ast.FunctionDef) -> bool:
    """True where every parameter is overwritten, or the end reached, before it is read (straight-line assignments only)."""
    alive = set(parameters(function))
    for statement in function.body:
        updated = statement.target if isinstance(statement, ast.AugAssign) else None    # x += 1 reads x, and says Store
        if any(isinstance(node, ast.Name) and node.id in alive and (isinstance(node.ctx, ast.Load) or node is updated)
               for node in ast.walk(statement)):
            return False
        if isinstance(statement, ast.Assign):
            alive -= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return True


def read_arguments(text: str) -> list[ast.expr]:
    """Syntax trees of the literals in an argument text. Raises ValueError unless it is f's plain argument list."""
    tree = parse(f"f({text}\n)")
    call = tree.body[0].value if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        raise ValueError("not_literal")
    plain = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.UAdd, ast.expr_context)
    for node in (node for argument in call.args for node in ast.walk(argument)):
        if isinstance(node, ast.BinOp):     # 1+2j; literal_eval itself is the judge of the details
            fine = isinstance(node.right, ast.Constant) and isinstance(node.right.value, complex)
        elif isinstance(node, (ast.Call, ast.Name)):
            fine = (node.id if isinstance(node, ast.Name) else ast.unparse(node)) in ("set", "set()")
        elif isinstance(node, ast.Dict):
            fine = None not in node.keys
        else:
            fine = isinstance(node, plain) or isinstance(node, (ast.Add, ast.Sub))
        if not fine or isinstance(node, ast.Constant) and node.value is ...:
            raise ValueError("not_literal")
    return call.args


def input_problem(text: str, limits: Limits) -> str | None:
    """Reason why an argument text cannot be used, or None."""
    if len(text) > limits.input_chars:
        return "input_too_long"
    if CONTROL.search(text):
        return "control_text"
    try:
        nodes = [node for argument in read_arguments(text) for node in ast.walk(argument)]
    except ValueError as error:
        return "too_deep" if str(error).startswith("too_deep") else "not_literal"
    values = [node.value if isinstance(node, ast.Constant) else getattr(node, "elts", getattr(node, "keys", 0)) for node in nodes]
    return None if all(in_range(value, limits) for value in values) else "value_range"


def in_range(value, limits: Limits) -> bool:
    """Whether one value (not what it contains) is inside max_digits and max_items."""
    if isinstance(value, (int, float)):
        return limits.max_digits is None or abs(value) < 10 ** limits.max_digits
    return limits.max_items is None or not hasattr(value, "__len__") or len(value) <= limits.max_items


def arguments_text(text: str, program: str) -> str:
    """Argument text from what a model wrote as input: plain, as a call "f(...)", or as "x = ..." lines for all parameters."""
    text = text.strip()
    call = re.fullmatch(r"f\((.*)\)", text, re.S)
    if call:
        return call[1].strip()
    if "=" in text:
        try:
            lines, names = parse(text).body, parameters(entry(parse(program)))
        except ValueError:
            return text
        simple = all(isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) for line in lines)
        values = {line.targets[0].id: ast.get_source_segment(text, line.value) for line in lines} if simple else {}
        if values and sorted(values) == sorted(names):
            return ", ".join(values[name] for name in names)
    return text


def split_inputs(body: str, program: str) -> list[str]:
    """Argument texts in one input block: one per line where each line is a whole argument list, else the block as one, else
    the lines that can be read: calls of f, alone or inside print and assert."""
    lines = [arguments_text(line, program) for line in body.strip().split("\n") if line.strip()]
    whole = arguments_text(body, program)
    if all(map(readable, lines)) or readable(whole):
        return lines if all(map(readable, lines)) else [whole]
    return [text for line in lines for text in demonstrated(line, "f") or [line] if readable(text)] or [whole]


def readable(text: str) -> bool:
    """Whether a text is an argument list of plain literals, at least one."""
    try:
        return bool(read_arguments(text))
    except ValueError:
        return False


def canonical_arguments(text: str) -> str:
    """An argument list as Python would print it, which drops comments; a text that is none as it is (`check` will refuse it)."""
    try:
        return ", ".join(map(ast.unparse, read_arguments(text)))
    except ValueError:
        return text


def value_problem(value, limits: Limits) -> str | None:
    """Reason why a decoded result cannot be a gold answer, or None."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (float, complex)) and not cmath.isfinite(item):
            return "not_finite"
        if not in_range(item, limits):
            return "value_range"
        if isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend([*item.keys(), *item.values()])
    text = show(value, limits.compact)
    return "output_too_long" if len(text) > limits.output_chars else "control_text" if CONTROL.search(text) else None
