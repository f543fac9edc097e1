"""Values of benchmark programs, which are compared with Python's ==: near types, and those too big to report.

In training only exact builtin types count (values.py). Published tests are kinder: there a Counter is a dict,
`Fraction(1, 2)` is 0.5 and numpy's numbers are numbers.
"""
import math
import numbers
import sys
from collections.abc import Iterator, Mapping, Set

from sandbox.values import MAX_DEPTH, Unsupported

SCALARS = bool, int, float, complex, str, bytes
FLAT = {*SCALARS, type(None)}


def plainer(value: object, depth: int = MAX_DEPTH) -> object:
    """The value of exact builtin types that it is equal to, or the value itself where there is none."""
    for kind in SCALARS:
        if isinstance(value, kind):
            return kind(value)
    if depth == 0:
        raise Unsupported("unsupported: nested too deeply or cyclic")
    if isinstance(value, Mapping):                      # a ChainMap too
        return {plainer(k, depth - 1): plainer(v, depth - 1) for k, v in value.items()}
    for kind in list, tuple, set, frozenset:
        if isinstance(value, kind):
            return kind([plainer(x, depth - 1) for x in value])
    if isinstance(value, Set):                          # keys() and items() are equal to sets
        return {plainer(x, depth - 1) for x in value}
    return plain_number(value)


def plain_number(value: object) -> object:
    """A number of another class, such as a Fraction or numpy's, as the builtin number that it is equal to."""
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, numbers.Number):
        for kind in int, float, complex:
            try:
                if kind(value) == value:
                    return kind(value)
            except (TypeError, ValueError, ArithmeticError):
                pass                                    # int(Decimal("inf")); another kind may hold it
        if isinstance(value, numbers.Rational):         # near this float, as np.allclose sees it in a list,
            return math.nextafter(float(value), math.inf)       # but equal to none
    return value


def digest(value: object) -> str:
    """A hash of 64 hexadecimal digits; values that are == have the same one, such as [1] and [True]. For
    values whose text is too long to report: no more than one of its strings is in memory at a time."""
    from hashlib import blake2b  # not above: a fork server blocks OpenSSL before it imports hashlib

    found = blake2b(digest_size=32)
    for piece in pieces(value):
        found.update(piece.encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def pieces(value: object, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Texts that, put together, say what a value is equal to."""
    if depth == 0:
        raise Unsupported("unsupported: nested too deeply or cyclic")
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        yield "[" if isinstance(value, list) else "("
        if kinds <= {str}:                              # the fast ways: a benchmark's value has 128,000,000
            yield "".join(map(repr, value))             # strings
        elif kinds <= FLAT:
            yield "".join(map(scalar_text, value))
        else:
            for item in value:
                yield from pieces(item, depth - 1)
        yield "]" if isinstance(value, list) else ")"
    elif isinstance(value, Mapping):
        yield "{" + ",".join(sorted(digest(key) + digest(item) for key, item in value.items())) + "}"
    elif isinstance(value, Set):
        yield "<" + ",".join(sorted(map(digest, value))) + ">"
    else:
        yield scalar_text(plainer(value))


def scalar_text(value: object) -> str:
    """Text of a string, bytes, number or None, which says where it ends; equal numbers have one text."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, complex) and value.imag == 0:
        value = value.real
    if isinstance(value, float) and value.is_integer() or isinstance(value, bool):
        value = int(value)
    if isinstance(value, int):
        return f"{value:x},"                            # of any length; decimals may have 4,300 digits
    if value is not None and not isinstance(value, (float, complex, bytes)):
        raise Unsupported(f"unsupported: value of type {type(value).__name__[:40]}")
    return f"{value!r},"
