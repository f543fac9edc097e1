"""What a program's syntax tree says about it: size, depth, McCabe, and a hash of its structure.

Nothing here runs the program. `parse` is the only place where model text meets Python's parser in this
process, and it refuses text that is long or nested enough to hurt that parser (which recurses in C, and can
take exponential time).
"""
import ast
import functools
import hashlib
import re
import warnings
from dataclasses import dataclass

MAX_CHARS = 8000
MAX_BRACKETS = 24       # open brackets at once, strings and comments not counted, but f-strings
MAX_DEPTH = 100         # levels of the tree; a chain of 60 elif is still below it
# a string that is not closed ends with its line, so that each character is looked at once; [1]: the f of f""
STRING_OR_COMMENT = re.compile(r"#[^\n]*|([fFtT][rR]?|[rR][fFtT])?(?:'''.*?'''|\"\"\".*?\"\"\"|"
                               r"'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)", re.S)
# each of these nests without a bracket, also in a mixture
PREFIXES = re.compile(r"(?:(?:[-+~]|\bnot\b|\bawait\b|\blambda\b[^:]*:)\s*){40}")
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert,
            ast.comprehension, ast.match_case)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# what makes a set, or changes what outlives a call
LASTING = frozenset("set frozenset setattr setcontext getcontext localcontext cache lru_cache cache_info "
                    "singledispatch register".split())
SCOPES = (*DEFINITIONS, ast.Lambda, *COMPREHENSIONS)
NAMED = (*DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)       # they bind what stands in .name


@dataclass(frozen=True)
class Complexity:
    """Numbers of one program; `statements` those of f's body (see `measure`)."""
    depth: int
    mccabe: int
    lines: int
    variables: int
    statements: int


def parse(source: str, max_chars: int = MAX_CHARS) -> ast.Module:
    """Syntax tree of untrusted text. Raises only ValueError("too_long..." | "too_deep..." | "syntax...")."""
    if len(source) > max_chars:
        raise ValueError(f"too_long: {len(source)} characters, at most {max_chars}")
    # as Python reads it: a carriage return ends a line, a backslash at its end joins it to the next
    bare = STRING_OR_COMMENT.sub(without_text, re.sub("\r\n?", "\n", source)).replace("\\\n", " ")
    nesting = 0
    deepest = 0
    for char in re.sub(r"[^()\[\]{}]", "", bare):
        nesting += 1 if char in "([{" else -1
        deepest = max(deepest, nesting)
    if deepest > MAX_BRACKETS or PREFIXES.search(source) or PREFIXES.search(bare):
        raise ValueError(f"too_deep: {deepest} open brackets, at most {MAX_BRACKETS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # "invalid escape sequence" is the model's business
            tree = ast.parse(source)
    except (RecursionError, MemoryError):
        raise ValueError("too_deep: Python's parser gave up") from None
    except (SyntaxError, ValueError, OverflowError) as error:   # ValueError: null bytes, lone surrogates
        raise ValueError(f"syntax: {type(error).__name__}") from None
    depth(tree)
    return tree


@functools.lru_cache(maxsize=16)
def tree_of(source: str) -> ast.Module:
    """As `parse`, for those who only read: it is kept for the next, so that nobody may change it."""
    return parse(source)


def without_text(match: re.Match) -> str:
    """What stands for a string or a comment where only nesting counts; of an f-string all brackets that open,
    as if each closed at its end: what closes them may be text. (Not seen: quotes that come again inside it,
    as from Python 3.12 on they may. That parser reads 199 open brackets in a millisecond.)"""
    if match[0].startswith("#"):
        return " "
    n_open = len(re.findall(r"[(\[{]", match[0])) if match[1] else 0
    return "0" + "(" * n_open + ")" * n_open


def depth(tree: ast.AST) -> int:
    """Levels of the tree without load/store marks. Raises ValueError where recursion would be unsafe."""
    level, n_levels = [tree], 0
    while level:
        n_levels += 1
        if n_levels > MAX_DEPTH:
            raise ValueError(f"too_deep: over {MAX_DEPTH} levels of syntax")
        below = []
        for node in level:
            below += children(node)
        level = [node for node in below if not isinstance(node, ast.expr_context)]
    return n_levels


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, as ast.iter_child_nodes has them; that takes twice the time."""
    found = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [inner for inner in value if isinstance(inner, ast.AST)]
    return found


def walk(tree: ast.AST) -> list[ast.AST]:
    """A node and all below it, in the order of ast.walk."""
    found = [tree]
    for node in found:
        found += children(node)
    return found


def may_vary(source: str, inputs: tuple[str, ...] = ()) -> bool:
    """Whether a program or an input has what two interpreters can agree on by chance: sets, whose order hangs
    on the hash seed, or something that outlives a call. One in twenty ordinary programs has."""
    try:
        tree = tree_of(source)
        for text in inputs:
            found = walk(parse(f"f({text}\n)")) if "{" in text or "set" in text else []
            if any(isinstance(node, ast.Set) or getattr(node, "id", "") == "set" for node in found):
                return True
    except ValueError:
        return False
    nodes = walk(tree)
    has_views = any(isinstance(node, ast.Attribute) and node.attr in ("keys", "items") for node in nodes)
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.Import, ast.ImportFrom)):
            return True
    for node in nodes:
        if isinstance(node, (ast.Set, ast.SetComp, ast.Global)) or getattr(node, "decorator_list", None):
            return True
        if has_views and isinstance(node, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)):
            return True                         # x.keys() & y.keys() is a set
        if not LASTING.isdisjoint((getattr(node, "id", ""), getattr(node, "attr", ""))):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.arguments):
            defaults = [*node.defaults, *filter(None, node.kw_defaults)]
            if not all(isinstance(default, ast.Constant) for default in defaults):
                return True
    return False


def scoped(tree: ast.AST) -> list[tuple[ast.AST, frozenset[str]]]:
    """A tree's nodes, each with the names that the functions around it bind: in there these are neither
    globals nor builtins. What a module or a class binds does not count, for it may be read before."""
    found = [(tree, frozenset())]
    for node, bound in found:
        inside, names = inner_scope(node, bound)
        own = set(map(id, inside))
        found += [(child, names) for child in inside]
        for child in children(node):
            if isinstance(node, COMPREHENSIONS) and child is node.generators[0]:
                found.append((child.iter, bound))
            elif id(child) not in own:
                found.append((child, bound))
    return found


def inner_scope(node: ast.AST, bound: frozenset[str]) -> tuple[list[ast.AST], frozenset[str]]:
    """What stands in the scope that a node opens, and the names that functions bind there."""
    if isinstance(node, COMPREHENSIONS):            # its first iterable stands outside
        first = node.generators[0]
        targets = [inner for part in node.generators for inner in walk(part.target)]
        inside = [child for child in children(node) if child is not first]
        return [*inside, first.target, *first.ifs], bound | bound_names(targets)
    if not isinstance(node, SCOPES):
        return [], bound
    inside = node.body if isinstance(node.body, list) else [node.body]
    own = list(inside)
    for inner in own:
        own += [] if isinstance(inner, SCOPES) else children(inner)
    if isinstance(node, ast.ClassDef):
        return inside, bound - bound_names(own)
    global_names = {name for inner in own if isinstance(inner, ast.Global) for name in inner.names}
    return inside, (bound | bound_names([*children(node.args), *own])) - global_names


def entry(tree: ast.Module, name: str = "f") -> ast.FunctionDef | None:
    """The top-level function `name` (the last one, as Python would call it), or None."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[-1] if found else None


def bound_names(nodes: list[ast.AST]) -> set[str]:
    """Every name that nodes bind: parameters, targets, definitions, imports, exceptions."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, NAMED) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[0])
    return names


def has_docstring(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None


def drop_docstrings(tree: ast.Module) -> ast.Module:
    """Removes every docstring in place; a body that had nothing else gets `pass`."""
    for node in walk(tree):
        if has_docstring(node):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree


def drop_annotations(tree: ast.Module, everywhere: bool = True) -> ast.Module:
    """Removes annotations in place: of functions; with `everywhere` of variables too, as in dataclasses."""
    for node in walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        if not everywhere:
            continue
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and any(isinstance(statement, ast.AnnAssign) for statement in block):
                bare = []
                for statement in block:
                    if not isinstance(statement, ast.AnnAssign):
                        bare.append(statement)
                    elif statement.value:
                        bare.append(ast.Assign([statement.target], statement.value, lineno=0))
                setattr(node, field, bare or [ast.Pass()])
    return tree


def measure(source: str) -> Complexity:
    """Complexity of a program. Raises ValueError as `parse` does.

    mccabe = 1 + branches (if, loop, except, assert, case, comprehension and each of its ifs, each further
    and/or). lines: not blank, no comment, no docstring. variables: distinct parameters and assigned names.
    statements: top level of f's body (or the last function's, or the module's) without a final return.
    """
    tree = parse(source)
    levels = depth(tree)
    code_lines = _code_lines(source, tree)
    drop_docstrings(tree)
    nodes = walk(tree)
    mccabe = 1 + sum(isinstance(node, BRANCHES) for node in nodes)
    mccabe += sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    mccabe += sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    variables |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    body = (entry(tree) or (functions[-1] if functions else tree)).body
    statements = len(body) - (bool(body) and isinstance(body[-1], (ast.Return, ast.Pass)))
    return Complexity(levels, mccabe, code_lines, len(variables), statements)


def _code_lines(source: str, tree: ast.Module) -> int:
    """Lines that hold code; docstrings are found in the tree, as a text search would hit other strings."""
    skipped = set()
    for node in walk(tree):
        if has_docstring(node):
            skipped.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
            if node.body[0].lineno == getattr(node, "lineno", 0):
                skipped.discard(node.lineno)    # def f(): "docstring" on one line
    n_lines = 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", source), 1):
        n_lines += bool(line.strip()) and not line.lstrip().startswith("#") and number not in skipped
    return n_lines


def structural_hash(source: str) -> str:
    """Hash of a program's structure, 32 hex digits. Raises ValueError as `parse` does.

    It stays the same under renaming, other constants of the same type, docstrings, annotations, comments and
    layout, and changes with operators, calls, control flow and names that the program does not define itself
    (len is not max).
    """
    tree = drop_annotations(drop_docstrings(parse(source)))
    tree = _Canonical(tree).visit(tree)
    return hashlib.sha256(ast.dump(tree).encode("utf-8", "backslashreplace")).hexdigest()[:32]


class _Canonical(ast.NodeTransformer):
    """Names become v0, v1, ... by first use, constants the name of their type."""

    def __init__(self, tree: ast.Module):
        self.bound = bound_names(walk(tree))
        self.own = {node.name for node in walk(tree) if isinstance(node, DEFINITIONS)}
        self.names: dict[str, str] = {}

    def rename(self, name: str | None) -> str | None:
        return self.names.setdefault(name, f"v{len(self.names)}") if name in self.bound else name

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Renames in every node with a name in a string field; the order of visits is that of first use."""
        if isinstance(node, ast.Name):
            node.id = self.rename(node.id)
        elif isinstance(node, ast.arg):
            node.arg, node.type_comment = self.rename(node.arg), None
        elif isinstance(node, NAMED):
            node.name = self.rename(node.name)
        elif isinstance(node, ast.MatchMapping):
            node.rest = self.rename(node.rest)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [self.rename(name) for name in node.names]
        elif isinstance(node, ast.alias):
            node.asname = self.rename(node.asname or node.name.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.own:
            # a keyword of the program's own function is a parameter; sorted(key=) is none, even if `key` is
            for argument in node.keywords:
                argument.arg = self.rename(argument.arg)
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(type(node.value).__name__)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        number = isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float, complex)
        if number and isinstance(node.op, (ast.USub, ast.UAdd)):    # -3 is a constant to all but the parser
            return self.visit_Constant(node.operand)
        return self.generic_visit(node)
