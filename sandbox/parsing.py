"""Parses what a model wrote. Model text meets Python's parser in this file alone, behind `parse`, which
refuses text that is long or nested enough to hurt it: that parser recurses in C, and can take exponential
time."""
import ast
import itertools
import re
import warnings

from common import Refused, refuse_unless

MAX_CHARS = 8000
MAX_BRACKETS = 24       # open brackets at once, strings and comments not counted, but f-strings
MAX_DEPTH = 100         # levels of the tree; a chain of 60 elif is still below it
# a string that is not closed ends with its line, so that each character is looked at once; [1]: the f of f""
STRING_OR_COMMENT = re.compile(r"#[^\n]*|([fFtT][rR]?|[rR][fFtT])?(?:'''.*?'''|\"\"\".*?\"\"\"|"
                               r"'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)", re.S)
# each of these nests without a bracket, also in a mixture
PREFIXES = re.compile(r"(?:(?:[-+~]|\bnot\b|\bawait\b|\blambda\b[^:]*:)\s*){40}")


def parse(source: str, max_chars: int = MAX_CHARS) -> ast.Module:
    """Returns the syntax tree of untrusted text. Raises Refused("too_long" | "too_deep" | "syntax")."""
    refuse_unless(len(source) <= max_chars, f"too_long: {len(source)} characters, at most {max_chars}")
    # as Python reads it: a carriage return ends a line, a backslash at its end joins it to the next
    bare = STRING_OR_COMMENT.sub(without_text, re.sub("\r\n?", "\n", source)).replace("\\\n", " ")
    steps = (1 if char in "([{" else -1 for char in re.findall(r"[()\[\]{}]", bare))
    deepest = max(itertools.accumulate(steps), default=0)
    nests = PREFIXES.search(source) or PREFIXES.search(bare)
    fits = deepest <= MAX_BRACKETS and not nests
    refuse_unless(fits, f"too_deep: over {MAX_BRACKETS} open brackets or prefixes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # "invalid escape sequence" is the model's business
            tree = ast.parse(source)
    except (RecursionError, MemoryError):
        raise Refused("too_deep: Python's parser gave up") from None
    except (SyntaxError, ValueError, OverflowError) as error:   # ValueError: null bytes, lone surrogates
        raise Refused(f"syntax: {type(error).__name__}") from None
    refuse_unless(depth(tree) <= MAX_DEPTH, f"too_deep: over {MAX_DEPTH} levels of syntax")
    return tree


def depth(tree: ast.AST) -> int:
    """Returns how many nodes the longest path from the root has. Contexts such as ast.Load do not count."""
    n_levels, level = 0, [tree]
    while level:
        n_levels += 1
        below = []
        for node in level:
            below += ast.iter_child_nodes(node)
        level = [node for node in below if not isinstance(node, ast.expr_context)]
    return n_levels


def unparse(tree: ast.AST) -> str:
    """Returns the text of a tree. Raises Refused for the few that have none: an integer of more digits than
    Python prints (0xFF... is parsed at any length), before Python 3.12 a backslash in an f-string's
    expression."""
    try:
        return ast.unparse(tree)
    except ValueError as error:
        raise Refused(f"syntax: {type(error).__name__}") from None


def without_text(match: re.Match) -> str:
    """Returns what stands for a string or a comment where only nesting counts. An f-string keeps all brackets
    that it opens, as if each closed at its end, because what closes them may be text. (Quotes inside an
    f-string, which Python 3.12 permits, are not seen. That parser reads 199 open brackets in a
    millisecond.)"""
    if match[0].startswith("#"):
        return " "
    n_open = len(re.findall(r"[(\[{]", match[0])) if match[1] else 0
    return "0" + "(" * n_open + ")" * n_open


def literal(node: ast.expr) -> object:
    """Returns the value of a literal, as Python reads one. Raises Refused for anything else, also for `...`,
    which would be shown as a name."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, OverflowError):      # TypeError: {[1]}; OverflowError: 9...9 + 1j
        raise Refused("not_literal") from None
    for part in ast.walk(node):
        refuse_unless(getattr(part, "value", None) is not ..., "not_literal")
    return value


def arguments_of(call: str) -> list[ast.expr]:
    """Returns the arguments of a text that is one call of f. Raises Refused for anything else."""
    match parse(call).body:
        case [ast.Expr(ast.Call(ast.Name("f"), given, []))]:
            return given
    raise Refused("not_literal: more than the arguments of a call")


def arguments(text: str) -> list:
    """Returns the values of the literals between the brackets of a call. Raises Refused for anything else."""
    return [literal(node) for node in arguments_of(f"f({text} \n)")]       # the line feed ends a comment
