"""Interprets the small language of the micro prompt format: a verifier without a fork.

It walks a program's syntax tree and computes with Python's own integers, strings and lists. The language is
what micro/programs.py and tasks/logic.py write: one function, assignments, `if`, `for`, slices,
comprehensions, the FUNCTIONS, METHODS and OPERATORS below, and a `return` at the end. All else is
`unsupported`. Nothing of a program is executed, compiled or looked up by `getattr`, so it is safe wherever
Python runs. Every operation pays for the size of what it reads before it runs, and for what it makes. So
every program ends soon. The language has no source of chance, so one run says what two would.

It judges otherwise than the fork in these cases, which programs of that language do not meet:
  - unsupported: a statement, function or value that it does not know, once the program comes to it (another
    form than one plain function, or a variable that is named as a builtin: at once);
  - too big: a value of over MAX_SIZE items is refused when it is made, not when it is returned;
  - timeout: a program ends after MAX_STEPS, not after half a second of the processor;
  - a syntax error, or not a literal: what parsing.py calls so, and Python does not: it is too long, too deep,
    or `...` (tasks/ refuses these before any verifier).
An input of another type than the language's (a set, a tuple) is passed through, but cannot be worked with.
"""
import ast
import builtins
import functools
import operator
from collections.abc import Callable, Iterable

from common import Refused
from sandbox.parsing import arguments, parse
from sandbox.values import Unsupported, encode

MAX_STEPS = 50_000              # nodes that are visited, and items that operations read and make
MAX_SIZE = 10_000               # of one value: items, characters and bits, with all that is nested in it

FUNCTIONS = {f.__name__: f for f in (abs, chr, int, len, list, max, min, ord, range, sorted, str, sum)}
METHODS = {(list, "count"): list.count, (str, "count"): str.count, (str, "join"): str.join,
           (str, "replace"): str.replace}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
             ast.FloorDiv: operator.floordiv, ast.USub: operator.neg, ast.Not: operator.not_,
             ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt,
             ast.In: lambda item, items: item in items}
ATOMS = (int, bool, float, type(None), slice)
BUILTINS = frozenset(dir(builtins))
# what a mistake of a program's raises in Python; RecursionError: from comparing lists that are nested deeply
RAISED = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


class Stopped(Exception):
    """Ends a program without a value. The text is the reason that goes into the verdict."""


def missing(name: str, known: Iterable[str], mistake: str) -> Stopped:
    """Returns how a program ends at a name that Python may know, but this language does not."""
    if name in known:
        return Stopped(f"unsupported: {name}")
    return Stopped(f"error: {mistake}: {name}")


def size(value: object) -> int:
    """Returns the number of items of a value, with all that is nested in it. Raises Stopped if there are too
    many, as in a list that holds itself, and for a type that the language does not have."""
    n = 0
    left = [value]
    while left:
        item = left.pop()
        n += 1
        if type(item) is int:
            n += item.bit_length()
        elif type(item) is range:               # len() of one raises from 2 ** 63 on
            n += abs(item.stop - item.start) // abs(item.step)
        elif type(item) in (str, list):
            n += len(item)
        elif type(item) not in ATOMS:
            raise Stopped(f"unsupported: work with a value of type {type(item).__name__}")
        if n > MAX_SIZE:
            raise Stopped("too big")
        if type(item) is list:
            left += item
    return n


def check_growth(function: Callable, values: tuple) -> None:
    """Raises Stopped if a function would make too much of little: 'A' * 10**12 would fill the memory."""
    n = 0
    match values:
        case ([str() | list() as items, int() as times] | [int() as times, str() | list() as items]
              ) if function is operator.mul:
            n = len(items) * times
        case [str() as between, str() | list() as items] if function is str.join:
            n = len(between) * len(items)
        case [str() as text, str() as old, str() as new, *_] if function is str.replace:
            n = text.count(old) * len(new)
        case [str() as form, _] if function is operator.mod and "%" in form:
            raise Stopped("unsupported: formatting by %")
    if n > MAX_SIZE:
        raise Stopped("too big")


class Interpreter:
    """Runs once a function that `read` has found. `left` counts the steps that it may still take."""

    def __init__(self, function: ast.FunctionDef, given: list):
        names = [parameter.arg for parameter in function.args.args]
        if len(given) != len(names):
            raise Stopped(f"error: TypeError: {len(given)} arguments for {len(names)} parameters")
        self.variables = dict(zip(names, given))
        self.known = BUILTINS | {function.name}     # names that Python would find
        self.left = MAX_STEPS

    def pay(self, *read: object) -> None:
        """Pays for one step that reads these values. Raises Stopped when no step is left."""
        self.left -= 1 + sum(map(size, read))
        if self.left < 0:
            raise Stopped("timeout")

    def apply(self, function: Callable, *values: object) -> object:
        """Returns what one of Python's own functions makes of values."""
        self.pay(*values)
        check_growth(function, values)
        try:
            result = function(*values)
        except RAISED as error:
            raise Stopped(f"error: {type(error).__name__}: {error}") from None
        self.pay(result)
        return result

    def run(self, statements: list[ast.stmt]) -> None:
        """Runs one statement after the other."""
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
                    raise Stopped(f"unsupported: {type(statement).__name__}")

    def value(self, node: ast.expr) -> object:
        """Returns the value of an expression."""
        self.pay()
        match node:
            case ast.Constant(value) if type(value) in (int, str):
                return value
            case ast.Name(name):
                if name not in self.variables:
                    raise missing(name, self.known, "NameError")
                return self.variables[name]
            case ast.List(items):
                values = [self.value(item) for item in items]
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
                return slice(*[part and self.value(part) for part in (lower, upper, step)])
            case ast.ListComp(item, parts):
                return self.comprehend(item, parts)
        return self.call_value(node)

    def call_value(self, node: ast.expr) -> object:
        """Returns what a call of one of Python's functions or methods returns. Nothing else has a value."""
        match node:
            case ast.Call(ast.Name(name), given, []) if name in FUNCTIONS and name not in self.variables:
                return self.apply(FUNCTIONS[name], *map(self.value, given))
            case ast.Call(ast.Attribute(owner, name), given, []):
                owner = self.value(owner)
                if (type(owner), name) not in METHODS:
                    raise missing(name, dir(owner), "AttributeError")
                return self.apply(METHODS[type(owner), name], owner, *map(self.value, given))
            case ast.Call(function, _, []):
                raise Stopped(f"error: TypeError: {type(self.value(function)).__name__} is not callable")
            case ast.Attribute(owner, name):
                raise missing(name, dir(self.value(owner)), "AttributeError")
        raise Stopped(f"unsupported: {type(node).__name__}")

    def operate(self, op: ast.AST, *values: object) -> object:
        """Returns what an operator makes of one or two values."""
        if type(op) not in OPERATORS:
            raise Stopped(f"unsupported: {type(op).__name__}")
        return self.apply(OPERATORS[type(op)], *values)

    def items(self, node: ast.expr) -> Iterable:
        """Returns what a loop goes through."""
        items = self.value(node)
        self.pay(items)
        if not isinstance(items, Iterable):
            raise Stopped(f"error: TypeError: '{type(items).__name__}' object is not iterable")
        return items

    def comprehend(self, item: ast.expr, parts: list[ast.comprehension]) -> list:
        """Returns the list of [item for ... in ... if ...] with one `for`."""
        match parts:
            case [ast.comprehension(ast.Name(name), source, tests, 0)]:
                items = self.items(source)      # sees the variables around it, as in Python
            case _:
                raise Stopped("unsupported: such a comprehension")
        around = self.variables
        self.variables = dict(around)
        result = []
        for value in items:
            self.pay()
            self.variables[name] = value
            if all(map(self.value, tests)):
                result.append(self.value(item))
        self.pay(result)
        self.variables = around
        return result


@functools.lru_cache(maxsize=1)
def read(code: str, entry: str) -> ast.FunctionDef:
    """Returns the function that a program consists of, and keeps it for its next input. Raises Stopped."""
    try:
        body = parse(code).body
    except Refused as error:
        raise Stopped(f"error: SyntaxError: {error}") from None
    match body:
        case [ast.FunctionDef(name, ast.arguments([], parameters, None, [], [], None, []),
                              [*_, ast.Return(ast.expr())], [], None) as function]:
            names = {parameter.arg for parameter in parameters if not parameter.annotation}
            is_plain = name == entry and len(names) == len(parameters)
        case _:
            is_plain = False
    if not is_plain:
        raise Stopped(f"unsupported: anything but one function {entry} with plain parameters and a return at "
                      "its end")
    for node in ast.walk(function):
        # In Python it would be no function's name any more, from the first line on.
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BUILTINS:
            raise Stopped(f"unsupported: a variable named {node.id}")
    return function


def run(code: str, entry: str, given: str) -> tuple[str, str | None, str | None]:
    """Runs a program on one argument text. Returns how it ends, as in a Verdict, and either the canonical
    text of what it returns or the reason why it returns nothing."""
    try:
        function = read(code, entry)
        *statements, last = function.body
        interpreter = Interpreter(function, arguments(given))
        interpreter.run(statements)
        return "ok", encode(interpreter.value(last.value)), None
    except Refused:
        return "ok", None, "not a literal"
    except (Stopped, Unsupported) as error:
        reason = str(error)[:200]
    return "timeout" if reason == "timeout" else "ok", None, reason
