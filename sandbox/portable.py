"""A verifier without a fork: an interpreter for the small language of the micro prompt format.

It walks a program's syntax tree and computes with Python's own numbers, strings, lists and tuples. Whatever
it does not know is `unsupported`, and that is nearly all of Python: there is no import, no attribute but the
methods of METHODS, no function but those of FUNCTIONS, no `while`. Nothing of a program is executed, compiled
or looked up by `getattr`, which makes it safe wherever Python runs. Every operation pays for the size of what
it reads before it runs, which ends every program soon. And without a source of chance one run says what two
would.

Where it judges otherwise than the fork, as tests/sandbox/test_portable_verifier.py counts it:
  - a statement or function that it does not know is refused once the program comes to it;
  - a value of over MAX_SIZE items or MAX_BITS bits is "too big" when it is made, not when it is returned;
  - a long loop ends after MAX_STEPS, not after half a second of the processor;
  - sets, dictionaries and bytes may pass through a program as they are, but it cannot work with them.
"""
import ast
import builtins
import operator
from dataclasses import dataclass

from infra.errors import Refused
from sandbox.parsing import parse
from sandbox.values import Unsupported, encode

MAX_STEPS = 50_000              # nodes that are visited, and items that operations read
MAX_SIZE = 10_000               # items or characters of one value, with all that is nested in it
MAX_BITS = 10_000               # of an integer
MAX_NESTING = 64                # levels of a value

FUNCTIONS = {"abs": abs, "bool": bool, "chr": chr, "int": int, "len": len, "list": list, "max": max,
             "min": min, "ord": ord, "range": range, "sorted": sorted, "str": str, "sum": sum}
METHODS = {(str, "count"): str.count, (str, "join"): str.join, (str, "replace"): str.replace,
           (list, "count"): list.count, (tuple, "count"): tuple.count}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
             ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
             ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
             ast.In: lambda item, items: item in items, ast.NotIn: lambda item, items: item not in items}
NUMBERS = (int, float, complex)
ATOMS = (int, bool, float, type(None), str)
BUILTINS = frozenset(dir(builtins))
# what a program's own mistakes raise, as in Python; an error of this file's would be one of these, too
MISTAKES = (ArithmeticError, AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError)


class OutOfSteps(Exception):
    """The program has taken MAX_STEPS steps."""


class Return(Exception):
    """The value of a return statement, on its way out of the loops around it."""


@dataclass(frozen=True)
class Scope:
    """The variables of a function or comprehension, and the names that it binds somewhere."""
    values: dict[str, object]
    names: frozenset[str]


def refuse(what: str) -> None:
    """Raises Unsupported."""
    raise Unsupported(f"unsupported: {what}")


def bound(nodes: list[ast.AST]) -> frozenset[str]:
    """Names that statements bind, those of comprehensions left out, which are their own."""
    names = frozenset()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names |= {node.id}
        if not isinstance(node, ast.ListComp):
            names |= bound(list(ast.iter_child_nodes(node)))
    return names


def size(value: object, limit: int = MAX_SIZE, nesting: int = MAX_NESTING) -> int:
    """Items of a value, nested ones wherever they stand. Raises Unsupported where there are more than the
    limit, where they are nested too deeply, and for a value that a program may not work with."""
    kind = type(value)
    n = 1
    if kind is int:
        n += value.bit_length() * MAX_SIZE // MAX_BITS
    elif kind in (str, range, list, tuple):
        n += len(value)
    elif kind not in ATOMS:
        refuse(f"work with a value of type {kind.__name__}")
    if kind in (list, tuple) and n <= limit:
        if nesting == 0:
            refuse("nested too deeply or cyclic")
        for item in value:
            n += size(item, limit - n, nesting - 1)
    if n > limit:
        raise Unsupported("too big")
    return n


def product_size(a: object, b: object) -> int:
    """At least the size of a * b, the one operator that makes much of little."""
    if isinstance(a, int) and isinstance(b, int):
        return size(a) + size(b)
    if isinstance(a, int) or isinstance(b, int):
        count, items = (a, b) if isinstance(a, int) else (b, a)
        return max(0, count) * size(items)
    return 0                            # of floats, or a mistake


def no_attribute(owner: object, name: str) -> None:
    """Raises AttributeError where Python would, else Unsupported: methods can be called, and that is all."""
    size(owner)
    if name in dir(type(owner)):
        refuse(f"the attribute {name}")
    raise AttributeError(f"'{type(owner).__name__}' object has no attribute '{name}'")


class Interpreter:
    """Runs one function, once; `left` are the steps that it may still take."""

    def __init__(self, function: ast.FunctionDef):
        self.function = function
        self.left = MAX_STEPS

    def pay(self, *read: object) -> None:
        """Pay for one step that reads these values. Raises OutOfSteps."""
        self.left -= 1
        for value in read:
            self.left -= size(value)
        if self.left < 0:
            raise OutOfSteps

    def call(self, given: list) -> object:
        """What the function returns for these arguments."""
        signature = self.function.args
        if signature.defaults or signature.kwonlyargs or signature.kwarg or self.function.decorator_list:
            refuse("a default, a keyword argument or a decorator")
        parameters = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
        if len(given) < len(parameters) or len(given) > len(parameters) and not signature.vararg:
            raise TypeError(f"{len(given)} arguments for {len(parameters)} parameters")
        values = dict(zip(parameters, given))
        if signature.vararg:
            values[signature.vararg.arg] = tuple(given[len(parameters):])
        # As in Python, a name that is bound anywhere in a function is local everywhere in it.
        names = bound(self.function.body).union(values)
        try:
            self.run(self.function.body, Scope(values, names))
        except Return as returned:
            return returned.args[0]
        return None

    def run(self, statements: list[ast.stmt], scope: Scope) -> None:
        """One statement after the other. Raises Return."""
        for statement in statements:
            self.pay()
            match statement:
                case ast.Assign(targets, expression):
                    value = self.value(expression, scope)
                    for target in targets:
                        self.store(target, value, scope)
                case ast.If(test, body, otherwise):
                    self.run(body if self.value(test, scope) else otherwise, scope)
                case ast.For(target, items, body, otherwise):
                    for item in self.iterable(items, scope):
                        self.store(target, item, scope)
                        self.run(body, scope)
                    self.run(otherwise, scope)
                case ast.Return(expression):
                    raise Return(self.value(expression, scope) if expression else None)
                case ast.Expr(expression):
                    self.value(expression, scope)
                case _:
                    refuse(type(statement).__name__)

    def store(self, target: ast.expr, value: object, scope: Scope) -> None:
        """Bind a name or an item of a list."""
        match target:
            case ast.Name(name):
                scope.values[name] = value
            case ast.Subscript(items, place):
                items, place = self.value(items, scope), self.value(place, scope)
                self.pay(items, value)
                # Its size is asked for afterwards, too: this is how a list could come to hold itself.
                operator.setitem(items, place, value)
                size(items)
            case _:
                refuse(f"assignment to {type(target).__name__}")

    def value(self, node: ast.expr, scope: Scope) -> object:
        """The value of an expression."""
        self.pay()
        match node:
            case ast.Constant(value):
                return value if type(value) in ATOMS else refuse("such a constant")
            case ast.Name(name):
                return self.load(name, scope)
            case ast.BinOp(left, op, right):
                return self.operate(op, self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op, operand):
                return self.operate(op, self.value(operand, scope))
            case ast.Compare(left, ops, others):
                return self.compare(self.value(left, scope), ops, others, scope)
            case ast.BoolOp(op, parts):
                for part in parts:
                    value = self.value(part, scope)
                    if bool(value) == isinstance(op, ast.Or):
                        break
                return value
            case ast.IfExp(test, body, otherwise):
                return self.value(body if self.value(test, scope) else otherwise, scope)
            case ast.List(items) | ast.Tuple(items):
                values = [self.value(item, scope) for item in items]
                size(values)
                return values if isinstance(node, ast.List) else tuple(values)
            case ast.Subscript(items, place):
                return self.item(self.value(items, scope), place, scope)
            case ast.ListComp(item, parts):
                return self.comprehend(item, parts, scope)
            case ast.Attribute(owner, name):
                no_attribute(self.value(owner, scope), name)
            case ast.Call(ast.Name(name), given, []):
                return self.call_function(name, given, scope)
            case ast.Call(ast.Attribute(owner, name), given, []):
                return self.call_method(self.value(owner, scope), name, given, scope)
        return refuse(type(node).__name__)

    def load(self, name: str, scope: Scope) -> object:
        """A variable's value."""
        if name in scope.values:
            return scope.values[name]
        if name in scope.names:
            raise UnboundLocalError(f"'{name}' has no value yet")
        if name in BUILTINS or name == self.function.name:
            refuse(name)
        raise NameError(f"name '{name}' is not defined")

    def operate(self, op: ast.AST, *operands: object) -> object:
        """What an operator makes of one or two values."""
        kind = type(op)
        self.pay(*operands)
        formats = kind is ast.Mod and type(operands[0]) is str and "%" in operands[0]
        if kind not in OPERATORS or formats:
            refuse("formatting by %" if formats else kind.__name__)
        # Before it is computed: 'A' * 10**12 would fill the memory.
        if kind is ast.Mult and product_size(*operands) > MAX_SIZE:
            raise Unsupported("too big")
        result = OPERATORS[kind](*operands)
        size(result)
        return result

    def compare(self, left: object, ops: list[ast.cmpop], others: list[ast.expr], scope: Scope) -> object:
        """A chain of comparisons, as far as they hold."""
        for op, other in zip(ops, others):
            right = self.value(other, scope)
            result = self.operate(op, left, right)
            if not result:
                break
            left = right
        return result

    def item(self, items: object, place: ast.expr, scope: Scope) -> object:
        """items[place]: one item costs a step, whatever stands beside it, and a slice what it is cut from."""
        if isinstance(place, ast.Slice):
            bounds = [part and self.value(part, scope) for part in (place.lower, place.upper, place.step)]
            self.pay(items)
            return operator.getitem(items, slice(*bounds))
        if type(items) not in (str, list, tuple):
            size(items)
        return operator.getitem(items, self.value(place, scope))

    def iterable(self, node: ast.expr, scope: Scope) -> object:
        """What a loop goes through. A range is paid for by its rounds: few of them may be reached."""
        items = self.value(node, scope)
        if type(items) is not range:
            self.pay(items)
        return iter(items)

    def comprehend(self, item: ast.expr, parts: list[ast.comprehension], scope: Scope) -> list:
        """[item for ... in ... if ...], with one `for` or several."""
        own = bound([part.target for part in parts])
        first = self.iterable(parts[0].iter, scope)     # in the scope around it, as in Python
        # A copy: the comprehension's variables are gone after it, and unbound before.
        around = {name: value for name, value in scope.values.items() if name not in own}
        result = []
        self.fill(result, item, parts, first, Scope(around, scope.names | own))
        size(result)
        return result

    def fill(self, result: list, item: ast.expr, parts: list[ast.comprehension], values: object,
             scope: Scope) -> None:
        """Append what a comprehension gives from its first part on, whose values are these."""
        part, *others = parts
        if part.is_async:
            refuse("async")
        for value in values:
            self.store(part.target, value, scope)
            if all(self.value(test, scope) for test in part.ifs):
                if others:
                    self.fill(result, item, others, self.iterable(others[0].iter, scope), scope)
                else:
                    result.append(self.value(item, scope))
            self.pay()

    def call_function(self, name: str, given: list[ast.expr], scope: Scope) -> object:
        """One of FUNCTIONS."""
        if name in scope.names or name not in FUNCTIONS:
            raise TypeError(f"'{type(self.load(name, scope)).__name__}' object is not callable")
        values = [self.value(node, scope) for node in given]
        if name != "len":
            self.pay(*values)
        result = FUNCTIONS[name](*values)
        # A range is not made before it is walked, and is paid for then.
        if name != "range":
            size(result)
        return result

    def call_method(self, owner: object, name: str, given: list[ast.expr], scope: Scope) -> object:
        """One of METHODS."""
        values = [self.value(node, scope) for node in given]
        self.pay(owner, *values)
        if (type(owner), name) not in METHODS:
            no_attribute(owner, name)
        if text_size(owner, name, values) > MAX_SIZE:
            raise Unsupported("too big")
        result = METHODS[type(owner), name](owner, *values)
        size(result)
        return result


def text_size(owner: object, name: str, values: list) -> int:
    """At least the length that joining and replacing add to what was paid for: they make much of little."""
    match name, values:
        case "replace", [str() as old, str() as new]:
            return len(owner) + owner.count(old) * len(new)
        case "join", [list() | tuple() | str() as items]:
            return len(owner) * len(items)
    return 0


def literal(node: ast.expr | None) -> object:
    """The value of a literal, as Python reads one. Raises ValueError where it is none."""
    match node:
        case ast.Constant(value):
            return value
        case ast.List(items):
            return [literal(item) for item in items]
        case ast.Tuple(items):
            return tuple([literal(item) for item in items])
        case ast.Set(items):
            return {literal(item) for item in items}
        case ast.Call(ast.Name("set"), [], []):
            return set()
        case ast.Dict(keys, values):
            return {literal(key): literal(value) for key, value in zip(keys, values)}
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(number)) if type(number) in NUMBERS:
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, ast.Constant(complex() as imaginary)):
            real = literal(left)
            if type(real) in (int, float):
                return real - imaginary if isinstance(sign, ast.Sub) else real + imaginary
    raise ValueError("not a literal")


def arguments(text: str) -> list | None:
    """Values of the literals between the brackets of a call, None where they are none: as in the fork."""
    try:
        body = parse(f"f({text} \n)").body
    except Refused:
        return None
    match body:
        case [ast.Expr(ast.Call(ast.Name("f"), given, []))]:
            try:
                return [literal(node) for node in given]
            except (ValueError, TypeError, RecursionError, MemoryError):
                return None
    return None


def find_function(code: str, entry: str) -> ast.FunctionDef:
    """The program's function. Raises Unsupported where it is more than that, SyntaxError, or NameError."""
    try:
        body = parse(code).body
    except Refused as error:
        raise SyntaxError(str(error)) from None
    for node in body:
        if not isinstance(node, ast.FunctionDef) or len(body) > 1:
            refuse("more than one function")
    if not body or body[0].name != entry:
        raise NameError(f"the program defines no {entry}")
    return body[0]


def run(code: str, entry: str, given: str) -> tuple[str, str | None, str | None]:
    """What becomes of a program on one argument text: how it ends, as in a Verdict, and either the canonical
    text of what it returns or the reason why it returns nothing."""
    try:
        function = find_function(code, entry)
        values = arguments(given)
        if values is None:
            return "ok", None, "not a literal"
        return "ok", encode(Interpreter(function).call(values)), None
    except OutOfSteps:
        return "timeout", None, "timeout"
    except Unsupported as error:
        return "ok", None, str(error)
    except MISTAKES as error:
        return "ok", None, f"error: {type(error).__name__}: {error}"[:200]
