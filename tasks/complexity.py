"""What a program's syntax tree says about it. Nothing here runs the program."""
import ast
import functools
import hashlib
import symtable
import warnings
from collections.abc import Callable

from common import Refused, refuse_unless
from sandbox.parsing import NUMBERS, parse, unparse

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
    names = set()
    for symbol in symbols_of(source).get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            names.add(symbol.get_name())
    return names


def global_names(source: str) -> set[str]:
    """Names that mean a global or builtin somewhere in a program. Raises Refused("syntax...")."""
    names = set()
    tables = [symbols_of(source)]
    for table in tables:
        tables += table.get_children()  # the list grows while it is walked
        is_function = table.get_type() == "function"
        for symbol in table.get_symbols():
            # What a module or a class binds may be a builtin before, or beyond, its assignment.
            if symbol.is_global() or symbol.is_local() and not is_function:
                names.add(symbol.get_name())
    return names


def entry(tree: ast.Module) -> ast.FunctionDef | None:
    """The top-level function f (the last one, as Python would call it), or None."""
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == "f":
            return node
    return None


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
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree


def count_statements(source: str) -> int:
    """Statements of f's body (or the module's) but docstring and final return. Raises Refused."""
    tree = drop_remarks(parse(source))
    body = (entry(tree) or tree).body
    n = len(body)
    # A pass at the end is what stands for a docstring that was all.
    if body and isinstance(body[-1], (ast.Return, ast.Pass)):
        n -= 1
    return n


def structural_hash(source: str) -> str:
    """Hash of a program's structure: the same under renaming, other constants of the same type, docstrings,
    annotations, comments and layout; another for other operators, calls, control flow, and names that the
    program does not define itself (len is not max). Raises Refused as `parse` does."""
    tree = drop_remarks(parse(source))
    bound = bound_names(tree)
    names = {}                          # a name of the program -> v0, v1, ... in the order of first use

    def canonical(name: str) -> str:
        if name not in bound:
            return name                 # len and max do different things
        return names.setdefault(name, f"v{len(names)}")

    tree = _Canonical(tree, canonical).visit(tree)
    return digest(ast.dump(tree))


def digest(*parts: str) -> str:
    """Hash of texts, 32 hex digits."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


class Renaming(ast.NodeTransformer):
    """Gives the names of a tree's own another name, wherever they stand, in the order of first use."""

    def __init__(self, tree: ast.Module, rename: Callable[[str], str]):
        self.rename = rename
        self.own = set()                # names of the program's own functions and classes
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS):
                self.own.add(node.name)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rename what a node binds or names, in place, and go on below it."""
        field = NAME_FIELDS.get(type(node))
        if field and getattr(node, field):
            setattr(node, field, self.rename(getattr(node, field)))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = list(map(self.rename, node.names))
        elif isinstance(node, ast.alias):
            self.rename_import(node)
        elif isinstance(node, ast.Call):
            self.rename_keywords(node)
        return super().generic_visit(node)

    def rename_import(self, node: ast.alias) -> None:
        """Rename what an import binds; what it imports keeps its name."""
        name = node.asname or node.name.split(".")[0]
        renamed = self.rename(name)
        if renamed != name:
            node.asname = renamed

    def rename_keywords(self, node: ast.Call) -> None:
        """Rename the keywords of a call of the program's own function, which are its parameters. In
        sorted(key=len) the keyword is none, even where a parameter is called key."""
        if isinstance(node.func, ast.Name) and node.func.id in self.own:
            for argument in node.keywords:
                if argument.arg:        # None in f(**given)
                    argument.arg = self.rename(argument.arg)


def entry_to_be(tree: ast.Module, alias: str) -> str:
    """The name of the one function that is to be called f: the one called `alias`, or else the only one of
    the program. Raises Refused where there is no such function, or where something is called f already."""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if alias in names:
        names = [name for name in names if name == alias]
    refuse_unless(len(names) == 1 and "f" not in bound_names(tree), "no_entry")
    return names[0]


def called_f(tree: ast.Module, old: str) -> ast.Module:
    """The tree, in which f stands wherever the name `old` stood."""
    methods = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods += [member for member in node.body if getattr(member, "name", "") == old]
    tree = Renaming(tree, lambda name: "f" if name == old else name).visit(tree)
    # A method is reached as an attribute, and attributes keep their names.
    for node in methods:
        node.name = old
    return tree


def normalise(source: str, max_chars: int, tidy: bool, alias: str = "") -> str:
    """The program with its entry called f, which may have been the only function or the one called `alias`.
    With `tidy` also without comments, docstrings, annotations of functions and top-level demonstrations, all
    of which could state or falsify the answer. Raises Refused("reason: ...")."""
    tree = parse(source, max_chars)
    is_renamed = entry(tree) is None
    if is_renamed:
        tree = called_f(tree, entry_to_be(tree, alias))
    if tidy:
        tree = drop_demonstrations(drop_remarks(tree))
    if tidy or is_renamed:
        return unparse(tree)
    return source.strip("\n")          # as it stands: printing it would lose the layout and the comments


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
        # A program that uses an f of its own naming would call itself.
        refuse_unless(functions and "f" not in global_names(source), "no_entry")
        source = f"{source}\nf = {functions[-1]}"
    return source.strip("\n")


def names_in(tree: ast.AST, context: type = ast.expr_context) -> set[str]:
    """Every name that a tree reads or assigns; context: ast.Load for what it reads alone."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            names.add(node.id)
    return names


def drop_demonstrations(tree: ast.Module) -> ast.Module:
    """Removes, in place, what the top level does only to show f at work: expressions, assertions, whatever
    names f or __name__, and assignments to names that nothing else reads."""
    read = set()
    for node in tree.body:
        if isinstance(node, DEFINITIONS):
            read |= names_in(node)
    kept = []
    # From the end, for what a statement that is kept reads, an earlier one has to assign.
    for node in reversed(tree.body):
        if isinstance(node, DEFINITIONS) or not only_shows(node, read):
            kept.append(node)
            read |= names_in(node)
    tree.body = kept[::-1]
    return tree


def only_shows(node: ast.stmt, read: set[str]) -> bool:
    """Whether a statement of the top level only shows f at work, where these names are read elsewhere."""
    if isinstance(node, (ast.Expr, ast.Assert)):
        return True
    if not names_in(node).isdisjoint({"f", "__name__"}):
        return True
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return False
    for target in targets:
        # An item or an attribute belongs to a value that others may see.
        if not isinstance(target, ast.Name) or target.id in read:
            return False
    return True


class _Canonical(Renaming):
    """Also constants become the name of their type, and annotated assignments plain ones."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """x: int = 1 is x = 1, and x: int is nothing."""
        if not node.value:
            return None
        return self.visit(ast.Assign([node.target], node.value))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """The name of its type."""
        return ast.Constant(type(node.value).__name__)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """-3 is a constant to everybody but the parser."""
        match node:
            case ast.UnaryOp(ast.USub() | ast.UAdd(), ast.Constant(number)) if type(number) in NUMBERS:
                return self.visit_Constant(node.operand)
        return self.generic_visit(node)
