"""Literals as models write them: a value, or the arguments of a call.

They are parsed here and never evaluated: the text of what reads as a literal is what the sandbox gets.

A value is what Python reads: "1, 2" is a tuple, and so is "1,". Arguments stand between the brackets of a
call ("2, 3", "2, k=3"), or in a piece of Python that calls f once ("print(f(2, 3))  # 5"), or in assignments
to the function's parameters ("x = 2" and "k = 3" in two lines). Everything else is Refused.
"""
import ast

from common import Refused, refuse_unless
from sandbox.parsing import arguments, literals, unparse
from tasks.complexity import DEFINITIONS, entry, tree_of

# ---------------------------------------------------------------- values

def bare(text: str) -> str:
    """A text without white space and the marks of inline code around it. A typographical minus sign becomes
    Python's; strings, which may well hold one, are left alone."""
    text = text.strip().strip("`").strip()
    if "'" in text or '"' in text:
        return text
    return text.replace("\u2212", "-")


def value_text(text: str) -> str:
    """The literal that a text is, as Python prints it. Raises Refused unless it is one."""
    match tree_of(bare(text)).body:
        case [ast.Expr(value)]:
            literals([value])
            return unparse(value)
    raise Refused("not_literal")


# ---------------------------------------------------------------- arguments

def call_around(text: str) -> ast.Call:
    """The call of f between whose brackets a text stands. Raises Refused where it stands in none, or closes
    them, as in "1), f(2"."""
    match tree_of(f"f({text}\n)").body:         # the line feed ends a comment
        case [ast.Expr(ast.Call(ast.Name("f")) as call)]:
            return call
    raise Refused("not_literal")


def read_arguments(text: str, program: str) -> list[ast.expr]:
    """Trees of the literals that a text states as arguments of a program's f, in the order of its parameters.
    Raises Refused unless it states them in one of the ways above."""
    text = bare(text)
    try:
        outer = call_around(text)
    except Refused:                             # several lines, which may be statements
        call = stated_call(tree_of(text).body)
    else:                                       # "2, 3", or "f(2, 3) == 5", which holds a call of its own
        call = inner_call(outer) or outer
    values = positional(call, program)
    literals(values)
    return values


def inner_call(tree: ast.AST) -> ast.Call | None:
    """The one call of f below a tree, None where there is none. Raises Refused of several."""
    calls = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("f")) if node is not tree:
                calls.append(node)
    if not calls:
        return None
    # Of two calls nobody can say which one is meant.
    refuse_unless(len(calls) == 1, "not_literal")
    return calls[0]


def stated_call(statements: list[ast.stmt]) -> ast.Call:
    """The call of f that statements make, with literals in place of the names that they assign; without a
    call, one that has the assignments as its keywords. Raises Refused where they state no call."""
    shown = [node for node in statements if not isinstance(node, DEFINITIONS)]      # f may call itself
    assigned = {}
    for node in shown:
        assigned |= assignments(node)
    call = inner_call(ast.Module(shown, []))
    if call is None:
        refuse_unless(assigned and all(map(assignments, shown)), "not_literal")
        call = ast.Call(ast.Name("f"), [], [ast.keyword(*item) for item in assigned.items()])
    args = [looked_up(value, assigned) for value in call.args]
    keywords = [ast.keyword(word.arg, looked_up(word.value, assigned)) for word in call.keywords]
    return ast.Call(call.func, args, keywords)      # another one: the tree is kept for others (tree_of)


def looked_up(value: ast.expr, assigned: dict[str, ast.expr]) -> ast.expr:
    """What was assigned to a name; any other tree itself."""
    if isinstance(value, ast.Name):
        return assigned.get(value.id, value)
    return value


def assignments(statement: ast.stmt) -> dict[str, ast.expr]:
    """What a statement such as "x = 1", "x: int = 1" or "a, b = 1, 2" assigns, by name."""
    match statement:
        case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
            return {name: value}
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
            # a, b[0] = 1, 2 and a, *b = 1, 2 are no plain lists of names.
            names = [node.id for node in targets if isinstance(node, ast.Name)]
            if len(names) == len(values):
                return dict(zip(names, values))
    return {}


def positional(call: ast.Call, program: str) -> list[ast.expr]:
    """The arguments of a call in the order of the parameters of a program's f, whose defaults fill gaps.

    Where no argument is named as a parameter, the names are the model's own, and the arguments stand in
    order. Raises Refused where the call does not fit the parameters.
    """
    if not call.keywords:
        return call.args
    given = {word.arg: word.value for word in call.keywords}
    function = entry(tree_of(program))
    # no ** on either side: it names arguments that nobody sees
    refuse_unless(function and not function.args.kwarg and None not in given, "not_literal")
    spec = function.args
    names = [parameter.arg for parameter in spec.posonlyargs + spec.args]
    by_keyword = [parameter.arg for parameter in spec.kwonlyargs]
    if not call.args and given.keys().isdisjoint(names + by_keyword):
        return list(given.values())

    defaults = dict(zip(names[::-1], spec.defaults[::-1]))      # the last parameters have them
    open_names = names[len(call.args):]
    refuse_unless(given.keys() <= set(open_names), "not_literal")
    values = list(call.args)
    while given:                                # the defaults behind the last argument stay away
        name = open_names.pop(0)
        refuse_unless(name in given or name in defaults, "not_literal")
        values.append(given.pop(name, None) or defaults[name])
    return values


def canonical_arguments(text: str, program: str) -> str:
    """The arguments that a text states as Python prints them, without comments; "" where it states none."""
    try:
        return ", ".join(map(unparse, read_arguments(text, program)))
    except Refused:
        return ""


def as_written(text: str, canonical: str) -> str:
    """Plain arguments as they stand in a text; where it states them in another way, what Python prints."""
    text = text.strip()
    try:
        arguments(text)
        return text
    except Refused:
        return canonical


def arguments_text(text: str, program: str, tidy: bool) -> str:
    """The arguments that a text states, tidied or as written; the text itself where it states none, for
    check_input names what is wrong with it."""
    canonical = canonical_arguments(text, program)
    if not canonical:
        return text.strip()
    if tidy:
        return canonical
    return as_written(text, canonical)


def stated_inputs(body: str, program: str) -> dict[str, str]:
    """The inputs that a block states, as Python prints them -> as written: one in each line, else one in the
    block, else those in lines that can be read. A block without any stands for itself."""
    stated = {}
    all_read = True
    for line in body.split("\n"):
        if not line.strip():
            continue
        canonical = canonical_arguments(line, program)
        if canonical:
            stated.setdefault(canonical, as_written(line, canonical))
        else:
            all_read = False
    if all_read and stated:
        return stated
    # Lines that cannot be read by themselves may be one input together: a list over several lines.
    whole = canonical_arguments(body, program)
    if whole:
        return {whole: as_written(body, whole)}
    return stated or {body.strip(): body.strip()}
