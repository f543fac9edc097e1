"""Canonical text of values: what goes in comes back, equality is Python's, and decode() is strict."""
import random
import re

import pytest

from sandbox.values import NAN, decode, encode, same

SCALARS = [0, 1, -1, 2**53, -2**53, 2**54 + 1, -(1 << 3800), 0.0, -0.0, 1e300, 5e-324, float("inf"), -float("inf"), NAN, 3.0,
           2.0**70, True, False, None, "", "a\"\\\n\0", "é中😀\u2028", "}]", b"", b"\xff", 0.5 - 0j]


def draw(rng, depth=0, hashable=False):
    """A random nested plain value."""
    kinds = [tuple, frozenset] + ([] if hashable else [list, set, dict])
    if depth == 4 or rng.random() < 0.5:
        return rng.choice(SCALARS)
    kind, size = rng.choice(kinds), rng.randrange(4)
    if kind is dict:
        return {draw(rng, depth + 1, True): draw(rng, depth + 1) for _ in range(size)}
    return kind([draw(rng, depth + 1, hashable or kind in (set, frozenset)) for _ in range(size)])


def test_round_trip_of_random_values_and_equality_as_in_python():
    rng, values = random.Random(0), []
    for _ in range(3000):
        value = draw(rng)
        text = encode(value)
        back = decode(text)
        assert text.isascii() and text.isprintable() and encode(back) == text
        assert [back] == [value] and type(back) is type(value) and ("{" in repr(value) or repr(back) == repr(value))
        values.append(back)
    for a, b in zip(values, rng.sample(values, len(values))):
        assert same(a, b) == ([a] == [b])               # in lists, so that nan equals itself


def test_equality():
    nan = float("nan")
    equal = [(True, 1), (0.0, -0.0), ({1: 2, 3: 4}, {3: 4, 1: 2}), ([nan, 1], [nan, 1.0]), ({nan: nan}, {nan: nan}), ({(nan,)}, {(nan,)})]
    differ = [((1,), [1]), ("1", 1), (0.1 + 0.2, 0.3), (nan, 0.0), ([nan], [None]), (2**53 + 1, 2.0**53)]
    for pairs, answer in (equal, True), (differ, False):
        for a, b in pairs:
            a, b = decode(encode(a)), decode(encode(b))
            assert same(a, b) == same(b, a) == answer, (a, b)


NOT_CANONICAL = r"""
 1 |1 |01|+1|1e0|1.0e1|-0|.5|nan|Infinit|True|1_0|0x1|9007199254740993|null null|[1]]|[1,]|[|{}|"a|'a'
"\u0061"|"\/"|"é"|"\ud800"
{"t":1};{"t":"ab"};{"x":[]};{"t":[],"t":[]};{"t":[1], "t":[1]}
[1, 2];[1 ];{"s":[2,1]};{"s":[1,1]};{"s":[[]]};{"s":[1,true]};{"z":{"z":[]}}
{"d":[[1]]};{"d":[[1,2],[1,3]]};{"d":[[[],1]]};{"d":{}};{"i":"1"};{"i":1};{"i":"0x20000000000001"};{"i":"zz"}
{"i":"2_0000000000001"};{"b":"0"};{"b":"AA"};{"b":"a a"};{"b":1};{"c":[1,2]};{"c":[1.0]};{"c":"12"}
{"c":[NaN]}"""


@pytest.mark.parametrize("text", re.split("[;\n]", NOT_CANONICAL.replace("|", ";")) + ["1\n"])
def test_decode_is_strict(text):
    with pytest.raises(ValueError):
        decode(text)


def test_limits_of_values():
    deep = 0
    for _ in range(64):
        deep = [deep]
    assert decode(encode(deep)) == deep
    for value in ([deep], 1 << 3900, "\udcff", {"a": object()}, b"x" * 2**16, "x" * 2**16, range(3), bytearray(b"x"), ...):
        with pytest.raises(ValueError):
            encode(value)
    for text in ("[" * 10**5, "[" * 65 + "]" * 65, '"' + "x" * 2**16 + '"', "9" * 60000, '{"i":"' + "f" * 60000 + '"}'):
        with pytest.raises(ValueError):
            decode(text)


def test_colliding_members_do_not_cost_quadratic_time():
    """Members of one hash beside honest ones that lower the mean; alone, see attacks.txt."""
    members = sorted(map(encode, [(2**61 - 1) * i for i in range(1, 2000)] + list(range(1, 200))))
    with pytest.raises(ValueError, match="colliding"):
        decode('{"s":[' + ",".join(members) + "]}")
