"""Literals as models write them: a value, or the arguments of a call.

They are parsed here and never evaluated: the text of what reads as a literal is what the sandbox gets.

A value is what Python reads: "1, 2" is a tuple, and so is "1,". Arguments stand between the brackets of a
call ("2, 3", "2, k=3"), or in a piece of Python that calls f once ("print(f(2, 3))  # 5"), or in assignments
to the function's parameters ("x = 2" and "k = 3" in two lines). Everything else is refused by a ValueError.
"""
import ast

from tasks.complexity import DEFINITIONS, demand, entry, tree_of

# What has no hash, and can be no member of a set and no part of a dictionary's key; a call is "set()".
UNHASHABLE = (ast.List, ast.Set, ast.Dict, ast.Call)


# ---------------------------------------------------------------- plain literals

def is_plain(node: ast.AST) -> bool:
    """Whether a node may stand in a literal; literal_eval itself decides on the details."""
    if isinstance(node, ast.Constant):
        return node.value is not ...
    if isinstance(node, ast.BinOp):             # 1+2j
        return isinstance(node.right, ast.Constant) and isinstance(node.right.value, complex)
    if isinstance(node, ast.Name):
        return node.id == "set"
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and not node.args and not node.keywords     # set()
    return isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.UAdd, ast.Add,
                             ast.Sub, ast.expr_context))


def hashes(member: ast.expr | None) -> bool:
    """Whether a literal can be a member of a set or a key; None stands for the ** in {**other}."""
    return member is not None and not any(isinstance(node, UNHASHABLE) for node in ast.walk(member))


def check_plain(values: list[ast.expr]) -> None:
    """Raises ValueError unless all of these trees are literals of plain data."""
    for value in values:
        for node in ast.walk(value):
            members = node.elts if isinstance(node, ast.Set) else getattr(node, "keys", [])
            demand(is_plain(node) and all(map(hashes, members)), "not_literal")


def bare(text: str) -> str:
    """A text without white space and the marks of inline code around it. A typographical minus sign becomes
    Python's; strings, which may well hold one, are left alone."""
    text = text.strip().strip("`").strip()
    return text if "'" in text or '"' in text else text.replace("\u2212", "-")


def value_text(text: str) -> str:
    """The literal that a text is, as Python prints it. Raises ValueError unless it is one."""
    statements = tree_of(bare(text)).body
    demand(len(statements) == 1 and isinstance(statements[0], ast.Expr), "not_literal")
    value = statements[0].value
    check_plain([value])
    return ast.unparse(value)


# ---------------------------------------------------------------- arguments

def call_around(text: str) -> ast.Call | None:
    """The call of f between whose brackets a text stands; None where it closes them, as in "1), f(2".
    Raises ValueError where nothing can be parsed."""
    tree = tree_of(f"f({text}\n)")              # the line feed ends a comment
    call = tree.body[0].value if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
    return call if calls_f(call) else None


def calls_f(node: ast.AST | None) -> bool:
    """Whether a node is a call of the name f."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "f"


def plain_arguments(text: str) -> list[ast.expr]:
    """Trees of the literals in a text of positional arguments. Raises ValueError unless it is that."""
    call = call_around(text)
    demand(call is not None and not call.keywords, "not_literal")
    check_plain(call.args)
    return call.args


def read_arguments(text: str, program: str) -> list[ast.expr]:
    """Trees of the literals that a text states as arguments of a program's f, in the order of its parameters.
    Raises ValueError unless it states them in one of the ways above."""
    text = bare(text)
    try:
        outer = call_around(text)
    except ValueError:
        outer = None                            # several lines, which may be statements
    call = inner_call([outer]) if outer else stated_call(tree_of(text).body)
    values = positional(call or outer, program)
    check_plain(values)
    return values


def inner_call(trees: list[ast.AST]) -> ast.Call | None:
    """The one call of f below these trees, None where there is none. Raises ValueError of several."""
    calls = [node for tree in trees for node in ast.walk(tree) if calls_f(node) and node not in trees]
    demand(len(calls) <= 1, "not_literal")
    return calls[0] if calls else None


def stated_call(statements: list[ast.stmt]) -> ast.Call:
    """The call of f that statements make, with literals in place of the names that they assign; without a
    call, one that has the assignments as its keywords. Raises ValueError where they state no call."""
    shown = [node for node in statements if not isinstance(node, DEFINITIONS)]      # f may call itself
    assigned = {}
    for node in shown:
        assigned |= assignments(node)
    call = inner_call(shown)
    if call is None:
        demand(assigned and all(map(assignments, shown)), "not_literal")
        return ast.Call(ast.Name("f"), [], [ast.keyword(*item) for item in assigned.items()])
    args = [assigned.get(value.id, value) if isinstance(value, ast.Name) else value for value in call.args]
    keywords = []
    for word in call.keywords:
        name = word.value.id if isinstance(word.value, ast.Name) else ""
        keywords.append(ast.keyword(word.arg, assigned.get(name, word.value)))
    return ast.Call(call.func, args, keywords)


def assignments(statement: ast.stmt) -> dict[str, ast.expr]:
    """What a statement such as "x = 1", "x: int = 1" or "a, b = 1, 2" assigns, by name."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value:
        target, value = statement.target, statement.value
    else:
        return {}
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts)
    return {name.id: value for name, value in pairs if isinstance(name, ast.Name)}


def positional(call: ast.Call, program: str) -> list[ast.expr]:
    """The arguments of a call in the order of the parameters of a program's f, whose defaults fill gaps.

    Where no argument is named as a parameter, the names are the model's own, and the arguments stand in
    order. Raises ValueError where the call does not fit the parameters.
    """
    if not call.keywords:
        return call.args
    given = {word.arg: word.value for word in call.keywords}
    function = entry(tree_of(program))
    # no ** on either side: it names arguments that nobody sees
    demand(function and not function.args.kwarg and None not in given, "not_literal")
    parameters = function.args.posonlyargs + function.args.args
    names = [parameter.arg for parameter in parameters]
    if not call.args and given.keys().isdisjoint([*names, *(node.arg for node in function.args.kwonlyargs)]):
        return list(given.values())
    defaults = function.args.defaults           # of the last parameters
    by_default = dict(zip(names[len(names) - len(defaults):], defaults))
    names = names[len(call.args):]
    demand(given.keys() <= set(names), "not_literal")
    values = list(call.args)
    while given:
        name = names.pop(0)
        demand(name in given or name in by_default, "not_literal")
        values.append(given.pop(name, None) or by_default[name])
    return values


def canonical_arguments(text: str, program: str) -> str:
    """The arguments that a text states as Python prints them, without comments; "" where it states none."""
    try:
        return ", ".join(map(ast.unparse, read_arguments(text, program)))
    except ValueError:
        return ""


def as_written(text: str, canonical: str) -> str:
    """Plain arguments as they stand in a text; where it states them in another way, what Python prints."""
    text = text.strip()
    try:
        plain_arguments(text)
        return text
    except ValueError:
        return canonical


def arguments_text(text: str, program: str, tidy: bool) -> str:
    """The arguments that a text states, tidied or as written; the text itself where it states none, for
    check_input names what is wrong with it."""
    canonical = canonical_arguments(text, program)
    if not canonical:
        return text.strip()
    return canonical if tidy else as_written(text, canonical)


def stated_inputs(body: str, program: str) -> dict[str, str]:
    """The inputs that a block states, as Python prints them -> as written: one in each line, else one in the
    block, else those in lines that can be read. A block without any stands for itself."""
    lines = [line for line in body.split("\n") if line.strip()]
    stated, n_read = {}, 0
    for line in lines:
        if canonical := canonical_arguments(line, program):
            stated.setdefault(canonical, as_written(line, canonical))
            n_read += 1
    if n_read < len(lines) and (whole := canonical_arguments(body, program)):
        return {whole: as_written(body, whole)}
    return stated or {body.strip(): body.strip()}
