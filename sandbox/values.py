"""Writes and reads the canonical text of plain values, the only thing that crosses from a program to the
trainer."""
import json
from collections import Counter
from json.encoder import encode_basestring_ascii as quote

MAX_TEXT = 1 << 16      # characters of one canonical value, where nothing else is said
MAX_BITS = 3900         # of an integer; twice the characters where longer texts are allowed
MAX_DEPTH = 64          # nesting of one value
NAN = float("nan")      # decode() gives every nan as this object, which is equal to itself in containers
# By identity, for a hostile metaclass may say that its class equals `list`.
CONTAINERS = {id(list): "[", id(tuple): '{"t":[', id(dict): '{"d":[', id(set): '{"s":[',
              id(frozenset): '{"z":['}
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Unsupported(ValueError):
    """Says that a value is not plain data, or too big. The text is the reason that goes into the verdict."""


def encode(value: object, depth: int = MAX_DEPTH, limit: int = MAX_TEXT) -> str:
    """Returns the canonical JSON text (ASCII) of a plain value. Two values of one type and content have one
    text.

    Only exact builtin types are plain. These are tagged: tuple t, dict d (in its order), set s and frozenset
    z (sorted), bytes b, complex c, integers beyond 2^53 i (hex, at most 3900 bits). limit: characters. Raises
    Unsupported, a ValueError.
    """
    kind = type(value)
    if kind is str:
        return encode_str(value, limit)
    if kind is int:
        if -2**53 <= value <= 2**53:
            return repr(value)
        most = MAX_BITS if limit <= MAX_TEXT else 2 * limit
        if value.bit_length() > most:
            raise Unsupported("unsupported: integer of too many bits")
        return f'{{"i":"{value:x}"}}'
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        text = repr(value)
        return NOT_FINITE.get(text, text)
    if kind is bytes:
        return f'{{"b":"{fit(fit(value, limit).hex(), limit)}"}}'
    if kind is complex:
        return f'{{"c":[{encode(value.real)},{encode(value.imag)}]}}'
    if id(kind) not in CONTAINERS:
        raise Unsupported(f"unsupported: value of type {kind.__name__[:40]}")
    if depth == 0:
        raise Unsupported("unsupported: nested too deeply or cyclic")
    if len(value) > limit // 2:
        raise Unsupported("too big")
    return encode_container(value, depth - 1, limit)


def encode_str(value: str, limit: int) -> str:
    """Returns the canonical text of a string. Raises Unsupported if UTF-8 cannot hold it."""
    try:
        fit(value, limit).encode()
    except UnicodeEncodeError:
        raise Unsupported("unsupported: string with lone surrogates") from None
    return fit(quote(value), limit)


def encode_container(value: object, depth: int, limit: int) -> str:
    """Returns the canonical text of a container whose members may be nested `depth` levels deep."""
    kind = type(value)
    keys, n_chars = [], 0
    for item in value:
        keys.append(encode(item, depth, limit))
        n_chars += len(keys[-1]) + 1
        if n_chars > limit:                             # at once: the rest may be a gigabyte
            raise Unsupported("too big")
    texts = keys
    if kind is dict:
        texts = []
        for key, item in zip(keys, value.values()):
            texts.append(f"[{key},{encode(item, depth, limit)}]")
    elif kind is set or kind is frozenset:
        texts.sort()
    # two nan are two members, but one text: what comes out of decode() would be another value
    if kind in (dict, set, frozenset) and len(set(keys)) < len(keys):
        raise Unsupported("unsupported: several nan as keys")
    end = "]" if kind is list else "]}"
    return fit(CONTAINERS[id(kind)] + ",".join(texts) + end, limit)


def fit(text: str | bytes, limit: int) -> str | bytes:
    """Returns the text. Raises Unsupported("too big") if it is longer than the limit. Every level asks,
    because shared references could make a short value long."""
    if len(text) > limit:
        raise Unsupported("too big")
    return text


def decode(text: str, limit: int = MAX_TEXT) -> object:
    """Returns the value of a canonical text. Raises ValueError for any text that encode() does not write."""
    try:
        value = plain(json.loads(fit(text, limit)))
        if encode(value, limit=limit) != text:
            raise ValueError("not the canonical form")
        return value
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as e:
        raise ValueError(f"not canonical text: {e}") from None


def plain(j: object) -> object:
    """Returns the Python value of a JSON value. It is sloppy on purpose, because decode() writes the value
    out again and compares."""
    if type(j) is list:
        return [plain(x) for x in j]
    if type(j) is not dict:
        return NAN if j != j else j
    (tag, v), = j.items()
    if tag == "i":
        return int(v, 16)
    if tag == "b":
        return bytes.fromhex(v)
    if tag == "c":
        return complex(*map(float, v))
    if tag == "t":
        return tuple([plain(x) for x in v])
    if tag == "d":
        items = [(plain(k), plain(x)) for k, x in v]
        keys = [key for key, _ in items]
    else:
        keys = items = [plain(x) for x in v]
    # a forged set of values with one common hash would cost quadratic time here
    if max(Counter(map(hash, keys)).values(), default=0) > 64:
        raise ValueError("colliding keys")
    return {"d": dict, "s": set, "z": frozenset}[tag](items)


def same(a: object, b: object) -> bool:
    """Says whether two decoded values are equal for a reward: by ==, and nan equals nan (True == 1 == 1.0,
    but (1,) != [1])."""
    return a == b or encode(a) == encode(b)
