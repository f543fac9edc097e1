"""A verifier without a fork: an interpreter for the small language of the micro prompt format.

It walks a program's syntax tree and computes with Python's own integers, strings and lists. The language is
what micro/programs.py and tasks/logic.py write: one function, assignments, `if`, `for`, slices,
comprehensions, the FUNCTIONS, METHODS and OPERATORS below, and a `return` at the end. All else is
`unsupported`. Nothing of a program is executed, compiled or looked up by `getattr`, which makes it safe
wherever Python runs. Every operation pays for the size of what it reads before it runs, and for what it
makes, which ends every program soon. And without a source of chance one run says what two would.

Where it judges otherwise than the fork, as tests/sandbox/test_portable_verifier.py counts it:
  - unsupported: a statement, function or value that it does not know, once the program comes to it;
  - too big: a value of over MAX_SIZE items is refused when it is made, not when it is returned;
  - timeout: a program ends after MAX_STEPS, not after half a second of the processor.
An input of another type than the language's (a set, a tuple) is passed through, but cannot be worked with.
"""
import ast
import builtins
import functools
import operator
from collections.abc import Callable, Iterable, Iterator

from infra.errors import Refused
from sandbox.parsing import arguments, parse
from sandbox.values import Unsupported, encode

MAX_STEPS = 50_000              # nodes that are visited, and items that operations read and make
MAX_SIZE = 10_000               # of one value: items, characters and bits, with all that is nested in it

FUNCTIONS = {"abs": abs, "chr": chr, "int": int, "len": len, "list": list, "max": max, "min": min, "ord": ord,
             "range": range, "sorted": sorted, "str": str, "sum": sum}
METHODS = {(list, "count"): list.count, (str, "count"): str.count, (str, "join"): str.join,
           (str, "replace"): str.replace}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
             ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
             ast.Gt: operator.gt,
             ast.In: lambda item, items: item in items}
ATOMS = (int, bool, float, type(None), slice)
BUILTINS = frozenset(dir(builtins))
# what a mistake of a program's raises in Python; RecursionError: from comparing lists that are nested deeply
RAISED = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


class OutOfSteps(Exception):
    """The program has taken MAX_STEPS steps."""


class Mistake(Exception):
    """A mistake of the program's, by the name that Python has for it."""


def refuse(what: str) -> None:
    """Raises Unsupported."""
    raise Unsupported(f"unsupported: {what}")


def missing(name: str, known: Iterable[str], mistake: str) -> None:
    """Raises Unsupported for a name that Python knows, and this language does not; else Python's mistake."""
    if name in known:
        refuse(name)
    raise Mistake(f"{mistake}: {name}")


def size(value: object) -> int:
    """Items of a value, with all that is nested in it, as often as it stands there. Raises Unsupported where
    there are too many, as of a list that holds itself, and for a type that is none of the language's."""
    n = 0
    left = [value]
    while left:
        item = left.pop()
        n += 1
        if type(item) is int:
            n += item.bit_length()
        elif type(item) in (str, list, range):
            n += len(item)
        elif type(item) not in ATOMS:
            refuse(f"work with a value of type {type(item).__name__}")
        if n > MAX_SIZE:
            raise Unsupported("too big")
        if type(item) is list:
            left += item
    return n


def check_growth(function: Callable, values: tuple) -> None:
    """Raises Unsupported where a function makes too much of little: 'A' * 10**12 would fill the memory."""
    n = 0
    match values:
        case [str() | list() as items, int() as times] if function is operator.mul:
            n = len(items) * times
        case [int() as times, str() | list() as items] if function is operator.mul:
            n = len(items) * times
        case [str() as between, str() | list() as items] if function is str.join:
            n = len(between) * len(items)
        case [str() as text, str() as old, str() as new] if function is str.replace:
            n = text.count(old) * len(new)
        case [str() as form, _] if function is operator.mod and "%" in form:
            refuse("formatting by %")
    if n > MAX_SIZE:
        raise Unsupported("too big")


class Interpreter:
    """Runs a function, once. `left` are the steps that it may still take."""

    def __init__(self):
        self.variables = {}
        self.known = BUILTINS           # names that Python would find
        self.left = MAX_STEPS

    def call(self, function: ast.FunctionDef, given: list) -> object:
        """What a function that `read` has found returns for these arguments."""
        parameters = [parameter.arg for parameter in function.args.args]
        if len(given) != len(parameters):
            raise Mistake(f"TypeError: {len(given)} arguments for {len(parameters)} parameters")
        self.variables = dict(zip(parameters, given))
        self.known |= {function.name}
        *statements, last = function.body
        self.run(statements)
        return self.value(last.value)

    def pay(self, *read: object) -> None:
        """Pay for one step that reads these values. Raises OutOfSteps."""
        self.left -= 1
        for value in read:
            self.left -= size(value)
        if self.left < 0:
            raise OutOfSteps

    def apply(self, function: Callable, *values: object) -> object:
        """What one of Python's own functions makes of values."""
        self.pay(*values)
        check_growth(function, values)
        try:
            result = function(*values)
        except RAISED as error:
            raise Mistake(f"{type(error).__name__}: {error}") from None
        self.pay(result)
        return result

    def run(self, statements: list[ast.stmt]) -> None:
        """One statement after the other."""
        for statement in statements:
            self.pay()
            match statement:
                case ast.Assign([ast.Name(name)], expression):
                    self.variables[name] = self.value(expression)
                case ast.Assign([ast.Subscript(items, place)], expression):
                    value = self.value(expression)
                    items = self.value(items)
                    self.apply(operator.setitem, items, self.value(place), value)
                    self.pay(items)         # again: this is how a list could come to hold itself
                case ast.If(test, body, otherwise):
                    self.run(body if self.value(test) else otherwise)
                case ast.For(ast.Name(name), items, body, []):
                    for item in self.items(items):
                        self.variables[name] = item
                        self.run(body)
                case _:
                    refuse(type(statement).__name__)

    def value(self, node: ast.expr) -> object:
        """The value of an expression."""
        self.pay()
        match node:
            case ast.Constant(value) if type(value) in (int, str):
                return value
            case ast.Name(name):
                if name not in self.variables:
                    missing(name, self.known, "NameError")
                return self.variables[name]
            case ast.List(items):
                values = self.values(items)
                self.pay(values)
                return values
            case ast.BinOp(left, op, right):
                return self.operate(op, self.value(left), self.value(right))
            case ast.UnaryOp(op, operand):
                return self.operate(op, self.value(operand))
            case ast.Compare(left, ops, others):
                value = self.value(left)
                for op, other in zip(ops, others):          # a chain, as far as it holds
                    left, value = value, self.value(other)
                    holds = self.operate(op, left, value)
                    if not holds:
                        break
                return holds
            case ast.BoolOp(op, parts):
                for part in parts:
                    value = self.value(part)
                    if bool(value) == isinstance(op, ast.Or):
                        break
                return value
            case ast.IfExp(test, body, otherwise):
                return self.value(body if self.value(test) else otherwise)
            case ast.Subscript(items, place):
                return self.apply(operator.getitem, self.value(items), self.value(place))
            case ast.Slice(lower, upper, step):
                bounds = [part and self.value(part) for part in (lower, upper, step)]
                return slice(*bounds)
            case ast.ListComp(item, parts):
                return self.comprehend(item, parts)
            case ast.Call(ast.Name(name), given, []):
                if name in self.variables:
                    raise Mistake(f"TypeError: {name} is not callable")
                if name not in FUNCTIONS:
                    missing(name, self.known, "NameError")
                return self.apply(FUNCTIONS[name], *self.values(given))
            case ast.Call(ast.Attribute(owner, name), given, []):
                owner = self.value(owner)
                if (type(owner), name) not in METHODS:
                    missing(name, dir(owner), "AttributeError")
                return self.apply(METHODS[type(owner), name], owner, *self.values(given))
            case ast.Attribute(owner, name):
                missing(name, dir(self.value(owner)), "AttributeError")
        return refuse(type(node).__name__)

    def operate(self, op: ast.AST, *values: object) -> object:
        """What an operator makes of one or two values."""
        if type(op) not in OPERATORS:
            refuse(type(op).__name__)
        return self.apply(OPERATORS[type(op)], *values)

    def values(self, nodes: list[ast.expr]) -> list:
        """The values of several expressions."""
        return [self.value(node) for node in nodes]

    def items(self, node: ast.expr) -> Iterator:
        """What a loop goes through."""
        items = self.value(node)
        self.pay(items)
        if not isinstance(items, Iterable):
            raise Mistake(f"TypeError: '{type(items).__name__}' object is not iterable")
        return iter(items)

    def comprehend(self, item: ast.expr, parts: list[ast.comprehension]) -> list:
        """[item for ... in ... if ...], with one `for` or several."""
        first = self.items(parts[0].iter)     # sees the variables around it, as in Python
        around = self.variables
        self.variables = dict(around)
        for part in parts:
            if not isinstance(part.target, ast.Name) or part.is_async:
                refuse("such a comprehension")
            self.variables.pop(part.target.id, None)    # its own variables have no value yet
        result = [self.value(item) for _ in self.rounds(first, parts)]
        self.variables = around
        self.pay(result)
        return result

    def rounds(self, items: Iterable, parts: list[ast.comprehension]) -> Iterator[None]:
        """Bind a comprehension's variables, from its first part on, to one set of values after the other."""
        part, *inner = parts
        for value in items:
            self.pay()
            self.variables[part.target.id] = value
            if not all(self.value(test) for test in part.ifs):
                continue
            if inner:
                yield from self.rounds(self.items(inner[0].iter), inner)
            else:
                yield


@functools.lru_cache(maxsize=1)
def read(code: str, entry: str) -> ast.FunctionDef:
    """The function that a program consists of, kept for its next input. Raises Unsupported, or Mistake."""
    try:
        body = parse(code).body
    except Refused as error:
        raise Mistake(f"SyntaxError: {error}") from None
    match body:
        case [ast.FunctionDef(name, signature, [*_, ast.Return(ast.expr())], []) as function]:
            names = [parameter.arg for parameter in signature.args]
            is_plain = name == entry and ast.unparse(signature) == ", ".join(names)
        case _:
            is_plain = False
    if not is_plain:
        refuse(f"anything but one function {entry} with plain parameters and a return at its end")
    for node in ast.walk(function):
        # In Python it would be no function's name any more, from the first line on.
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BUILTINS:
            refuse(f"a variable named {node.id}")
    return function


def run(code: str, entry: str, given: str) -> tuple[str, str | None, str | None]:
    """What becomes of a program on one argument text: how it ends, as in a Verdict, and either the canonical
    text of what it returns or the reason why it returns nothing."""
    try:
        return "ok", encode(Interpreter().call(read(code, entry), arguments(given))), None
    except Refused:
        return "ok", None, "not a literal"
    except OutOfSteps:
        return "timeout", None, "timeout"
    except Unsupported as error:
        return "ok", None, str(error)
    except Mistake as error:
        return "ok", None, f"error: {error}"[:200]
