"""Measures how complex a program is, as the paper does: it says what teachers drift to, and pays nobody."""
import ast
import math

from sandbox.parsing import depth, parse
from tasks.programs import DEFINITIONS, bound_names

# Where a path through the program may fork; a chain of and/or forks once for each operator in it.
FORKS = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)


def complexity(source: str) -> dict[str, float]:
    """Returns measures of a program by name: lines that are not blank; variables, the names that it binds;
    depth of its syntax tree; cyclomatic, McCabe's number of independent paths; halstead, its volume in bits.
    Raises Refused if it is no program."""
    tree = parse(source)
    n_forks, functions = 0, set()
    for node in ast.walk(tree):
        if isinstance(node, FORKS):
            n_forks += 1
        if isinstance(node, ast.comprehension):
            n_forks += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            n_forks += len(node.values) - 1
        elif isinstance(node, DEFINITIONS):
            functions.add(node.name)
    n_lines = sum(bool(line.strip()) for line in source.split("\n"))
    return dict(
        lines=n_lines,
        variables=len(bound_names(tree) - functions),
        depth=depth(tree),
        cyclomatic=1 + n_forks,
        halstead=halstead_volume(tree))


def halstead_volume(tree: ast.AST) -> float:
    """Returns N log2(n) of N operators and operands, n of them different. Operators are those of arithmetic,
    comparison and logic, and operands are what they work on, as in the package radon."""
    operators, operands = [], []
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left, operator, right):
                found, on = [operator], [left, right]
            case ast.AugAssign(target, operator, value):
                found, on = [operator], [target, value]
            case ast.UnaryOp(operator, operand):
                found, on = [operator], [operand]
            case ast.BoolOp(operator, values):
                found, on = [operator], values
            case ast.Compare(left, found, others):
                on = [left, *others]
            case _:
                continue
        operators += map(type, found)
        operands += map(operand_of, on)
    n_different = len(set(operators)) + len(set(operands))
    return (len(operators) + len(operands)) * math.log2(max(1, n_different))


def operand_of(node: ast.expr) -> object:
    """Returns what equal operands share: a name or a constant. Larger expressions are all different."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Constant(value):
            return type(value), value
    return node
