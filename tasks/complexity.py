"""What a program's syntax tree says about it. Nothing here runs the program."""
import ast
import functools
import hashlib
import symtable
import warnings
from collections.abc import Callable

from infra.errors import Refused, refuse_unless
from sandbox.parsing import parse, unparse

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# where a node has the name that it binds or reads; imports, global and nonlocal apart
NAME_FIELDS = {ast.Name: "id", ast.arg: "arg", ast.MatchMapping: "rest",
               **dict.fromkeys((*DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar), "name")}


@functools.lru_cache(maxsize=16)
def tree_of(source: str) -> ast.Module:
    """As `parse`, for those who only read: it is kept for the next, so that nobody may change it."""
    return parse(source)


def symbols_of(source: str) -> symtable.SymbolTable:
    """The names of a program by scope. Raises Refused as `parse` does."""
    tree_of(source)             # refuses what could hurt the parser, which symtable calls as well
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return symtable.symtable(source, "<program>", "exec")
    except (SyntaxError, RecursionError) as error:
        raise Refused(f"syntax: {type(error).__name__}") from None


def top_level_names(source: str) -> set[str]:
    """Names that a program's top level binds: definitions, assignments, imports. Raises Refused."""
    symbols = symbols_of(source).get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def global_names(source: str) -> set[str]:
    """Names that mean a global or builtin somewhere in a program. Raises Refused("syntax...")."""
    names, tables = set(), [symbols_of(source)]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global() or symbol.is_local() and table.get_type() != "function":
                names.add(symbol.get_name())
    return names


def entry(tree: ast.Module) -> ast.FunctionDef | None:
    """The top-level function f (the last one, as Python would call it), or None."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "f"]
    return functions[-1] if functions else None


def bound_names(tree: ast.AST) -> set[str]:
    """Every name that a tree binds: parameters, targets, definitions, imports, exceptions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[0])
        elif type(node) in NAME_FIELDS and not isinstance(getattr(node, "ctx", None), ast.Load):
            names.add(getattr(node, NAME_FIELDS[type(node)]))
    return names - {None}       # case _ binds nothing


def drop_remarks(tree: ast.Module) -> ast.Module:
    """Removes docstrings and the annotations of functions in place; an empty body gets `pass`."""
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, *DEFINITIONS))
        if documented and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree


def count_statements(source: str) -> int:
    """Statements of f's body (or the module's) but docstring and final return. Raises Refused."""
    tree = drop_remarks(parse(source))
    body = (entry(tree) or tree).body
    return len(body) - (bool(body) and isinstance(body[-1], (ast.Return, ast.Pass)))


def structural_hash(source: str) -> str:
    """Hash of a program's structure: the same under renaming, other constants of the same type, docstrings,
    annotations, comments and layout; another for other operators, calls, control flow, and names that the
    program does not define itself (len is not max). Raises Refused as `parse` does."""
    tree = drop_remarks(parse(source))
    bound, names = bound_names(tree), {}

    def canonical(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}") if name in bound else name

    tree = _Canonical(tree, canonical).visit(tree)
    return digest(ast.dump(tree))


def digest(*parts: str) -> str:
    """Hash of texts, 32 hex digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


class Renaming(ast.NodeTransformer):
    """Gives the names of a tree's own another name, wherever they stand, in the order of first use."""

    def __init__(self, tree: ast.Module, rename: Callable[[str], str]):
        self.rename = rename
        self.own = {node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rename what a node binds or names, in place, and go on below it."""
        field = NAME_FIELDS.get(type(node))
        if field and getattr(node, field):
            setattr(node, field, self.rename(getattr(node, field)))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [self.rename(name) for name in node.names]
        elif isinstance(node, ast.alias):
            name = node.asname or node.name.split(".")[0]
            if self.rename(name) != name:
                node.asname = self.rename(name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.own:
            # a keyword of the program's own function is a parameter; sorted(key=) is none, even if `key` is
            for argument in node.keywords:
                argument.arg = argument.arg and self.rename(argument.arg)
        return super().generic_visit(node)


def normalise(source: str, max_chars: int, tidy: bool, alias: str = "") -> str:
    """The program with its entry called f, which may have been the only function or the one called `alias`.
    With `tidy` also without comments, docstrings, annotations of functions and top-level demonstrations, all
    of which could state or falsify the answer. Raises Refused("reason: ...")."""
    tree = parse(source, max_chars)
    renamed = entry(tree) is None
    if renamed:
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        functions = [node for node in functions if node.name == alias] or functions
        refuse_unless(len(functions) == 1 and "f" not in bound_names(tree), "no_entry")
        old = functions[0].name
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        methods = [node for owner in classes for node in owner.body if getattr(node, "name", "") == old]
        tree = Renaming(tree, lambda name: "f" if name == old else name).visit(tree)
        for node in methods:                    # an attribute, which keeps its name
            node.name = old
    if tidy:
        tree = drop_demonstrations(drop_remarks(tree))
    return unparse(tree) if tidy or renamed else source.strip("\n")


def binds_f(source: str) -> bool:
    """Whether a text is a program that binds f at its top level, by whatever statement."""
    try:
        return "f" in top_level_names(source)
    except Refused:
        return False


def callable_as_f(source: str) -> str:
    """A student's program as it stands. One that binds no f at its top level, and uses none, calls its last
    function so. Raises Refused("reason: ...") where there is no program or no such function."""
    if "f" not in top_level_names(source):
        functions = [node.name for node in tree_of(source).body if isinstance(node, ast.FunctionDef)]
        refuse_unless(functions and "f" not in global_names(source), "no_entry")
        source = f"{source}\nf = {functions[-1]}"
    return source.strip("\n")


def drop_demonstrations(tree: ast.Module) -> ast.Module:
    """Removes, in place, what the top level does only to show f at work: expressions, assertions, whatever
    names f or __name__, and assignments to names that nothing else reads."""
    names = {node: {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} for node in tree.body}
    read = set().union(*(names[node] for node in tree.body if isinstance(node, DEFINITIONS)))
    kept = []
    for node in reversed(tree.body):
        shows = isinstance(node, (ast.Expr, ast.Assert)) or not names[node].isdisjoint({"f", "__name__"})
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = getattr(node, "targets", None) or [node.target]
            shows |= all(isinstance(target, ast.Name) and target.id not in read for target in targets)
        if isinstance(node, DEFINITIONS) or not shows:
            kept.append(node)
            read |= names[node]
    tree.body = kept[::-1]
    return tree


class _Canonical(Renaming):
    """Also constants become the name of their type, and annotated assignments plain ones."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return self.visit(ast.Assign([node.target], node.value)) if node.value else None

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(type(node.value).__name__)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        number = isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float, complex)
        if number and isinstance(node.op, (ast.USub, ast.UAdd)):    # -3 is a constant to all but the parser
            return self.visit_Constant(node.operand)
        return self.generic_visit(node)
