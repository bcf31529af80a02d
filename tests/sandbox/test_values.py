"""Encoding values inside the sandbox and decoding them outside, also from hostile bytes."""

from __future__ import annotations

import datetime
import enum
import http
import math
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.sandbox.inside.encode import MAX_DEPTH, Unsupported, encode_value
from grpo_train.sandbox.inside.harness import unpack
from grpo_train.sandbox.values import MAX_BITS, MAX_DIGITS, MAX_HASHED, BadValue, Lazy, ValueDecoder, for_judge

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 300), 1 << 300)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
ZONES = (
    st.none()
    | st.timezones().map(lambda _: None)
    | st.integers(-1439, 1439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))
)
EXACT = (
    st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=ZONES)
    | st.times(timezones=ZONES)
    | st.timedeltas()
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
)
HASHABLE = st.recursive(
    SCALARS | EXACT, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.lists(inner, max_size=4).map(deque)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(lambda entries: defaultdict(None, entries))
        | st.dictionaries(HASHABLE, st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def decode(content: bytes) -> Any:
    return ValueDecoder().decode(content)


def types(value: Any) -> Any:
    """The types in a value, which ``==`` ignores."""
    if isinstance(value, list | tuple | deque):
        return type(value), [types(item) for item in value]
    return type(value)


@given(VALUES)
def test_plain_values_round_trip(value: Any) -> None:
    back = decode(encode_value(value))
    assert back == value
    assert types(back) == types(value)
    kind, is_packed, data = for_judge(back)
    judged = unpack(data, {}) if is_packed else data
    assert kind == "plain"
    assert judged == value
    assert types(judged) == types(value) or isinstance(value, bytearray)


def test_nan_negative_zero_and_bytearray_round_trip() -> None:
    assert math.isnan(decode(encode_value(float("nan"))))
    assert str(decode(encode_value(-0.0))) == "-0.0"
    assert decode(encode_value(bytearray(b"x"))) == bytearray(b"x")


@given(
    st.binary(max_size=200)
    | VALUES.map(encode_value).flatmap(lambda good: st.binary(max_size=4).map(lambda bad: good + bad))
)
def test_arbitrary_bytes_decode_or_fail(content: bytes) -> None:
    try:
        decode(content)
    except BadValue:
        pass


@given(VALUES.map(encode_value), st.data())
def test_a_changed_byte_decodes_or_fails(content: bytes, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(content) - 1))
    changed = content[:index] + bytes([data.draw(st.integers(0, 255))]) + content[index + 1 :]
    try:
        decode(changed)
    except BadValue:
        pass


def blob(tag: bytes, content: bytes) -> bytes:
    return tag + len(content).to_bytes(4, "little") + content


def collection(tag: bytes, items: list[bytes]) -> bytes:
    return tag + len(items).to_bytes(4, "little") + b"".join(items)


def integer(value: int) -> bytes:
    return blob(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


@pytest.mark.parametrize(
    "content",
    [
        collection(b"e", [integer(k * ((1 << 61) - 1)) for k in range(9_000)]),
        collection(b"d", [integer(k * ((1 << 61) - 1)) + b"N" for k in range(9_000)]),
        collection(b"e", [integer(k) for k in range(MAX_HASHED + 1)]),
        collection(b"l", [collection(b"e", [integer(k) for k in range(100)])] * 1_000),
        collection(b"l", [collection(b"l", [])] * 400_000),
        (b"l" + (1).to_bytes(4, "little")) * (MAX_DEPTH + 2) + b"N",
        collection(b"e", [collection(b"d", [])]),
        b"l\xff\xff\xff\xff",
        b"d\xff\xff\xff\xff",
        b"s\xff\xff\xff\xff",
        blob(b"f", b"9" * 4_000_000),
        blob(b"f", b"0x1p999999999999"),
        b"",
        b"?",
        b"NN",
    ],
)
def test_expensive_bytes_are_rejected_quickly(content: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(BadValue):
        decode(content)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    "content",
    [
        integer(1 << 31_000_000),
        blob(b"s", b"a" * 4_000_000),
        # entries whose hashes differ, but not in the bits that a small table uses
        collection(b"e", [integer(k << 40) for k in range(MAX_HASHED)]),
        collection(b"z", [collection(b"t", [integer(k), blob(b"s", b"x" * 100)]) for k in range(MAX_HASHED)]),
    ],
)
def test_the_largest_values_compare_quickly(content: bytes) -> None:
    began = time.thread_time()
    value = decode(content)
    assert value == decode(content)
    assert value != {1: [2]}
    assert time.thread_time() - began < 2


def test_encoding_calls_no_method_of_the_value() -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("called")

    names = ("__eq__", "__iter__", "__len__", "__index__", "__int__", "__float__", "__str__", "__getitem__", "items")
    methods = dict.fromkeys(names, refuse)
    for base, value in ((int, 7), (str, "x"), (float, 1.5), (list, [1]), (dict, {1: 2}), (tuple, (1,)), (bytes, b"x")):
        evil = type("Evil", (base,), dict(methods))(value) if base is not tuple else type("Evil", (base,), {})((1,))
        assert decode(encode_value(evil)) == value


@pytest.mark.parametrize("value", [object(), int, len, ..., [1, [object()]], {1: lambda: 0}, (i for i in [object()])])
def test_other_types_are_unsupported(value: Any) -> None:
    with pytest.raises(Unsupported, match="a value of type"):
        encode_value(value)


def test_iterators_differ_from_lists() -> None:
    value = decode(encode_value(iter([1, 2])))
    assert value == Lazy("iterator", (1, 2))
    assert value != [1, 2]
    assert for_judge(value) == ("iterator", False, [1, 2])
    with pytest.raises(BadValue):
        for_judge([value])


# ------------------------------------------------------------------------------------- standard library classes


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = enum.Enum.__hash__


def test_enumeration_members_equal_only_themselves() -> None:
    class Other(enum.Enum):
        RED = 1

    red, crimson, blue, other = map(decode, map(encode_value, (Color.RED, Color.CRIMSON, Color.BLUE, Other.RED)))
    assert red == crimson
    assert len({red, crimson, blue, other}) == 3
    assert red not in (1, "RED", None, blue, other)
    assert decode(encode_value(http.HTTPStatus.OK)) == 200  # as in Python
    members: dict[Any, Any] = {}
    first, second = (unpack(for_judge(value)[2], members) for value in (red, [crimson]))
    assert second[0] is first


def test_ordered_dicts_keep_their_order() -> None:
    moved = OrderedDict(a=1, b=2)
    moved.move_to_end("a")
    assert decode(encode_value(moved)) == OrderedDict([("b", 2), ("a", 1)])


def test_default_factories_are_not_called() -> None:
    def hostile() -> Any:
        raise AssertionError("called")

    back = decode(encode_value(defaultdict(hostile, a=1)))
    assert (back, back.default_factory) == ({"a": 1}, None)


def lying(base: type, *arguments: Any, **more: Any) -> Any:
    """An instance of a subclass that claims to be the class and equal to everything."""
    methods = {"__eq__": lambda *_: True, "__hash__": lambda *_: 0, "__class__": property(lambda _: base), **more}
    return type(base.__name__, (base,), methods)(*arguments)


@pytest.mark.parametrize(
    "value",
    [
        lying(Fraction, 1, 2, numerator=property(lambda _: 7)),
        lying(Decimal, "1"),
        lying(datetime.date, 2020, 1, 1),
        lying(datetime.datetime, 2020, 1, 1),
        lying(datetime.timedelta, 1),
        datetime.datetime(2020, 1, 1, tzinfo=lying(datetime.tzinfo)),
    ],
)
def test_subclasses_are_unsupported(value: Any) -> None:
    with pytest.raises(Unsupported, match="a value of type"):
        encode_value([value])


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (lying(Counter, "aab", items=lambda _: [("a", 9)]), {"a": 2, "b": 1}),
        (lying(deque, [1], __iter__=lambda _: iter([2])), deque([1])),
        (lying(namedtuple("Point", "x y"), 1, 2, x=9, __iter__=lambda _: iter([3])), (1, 2)),
        (lying(frozenset, [1]), frozenset([1])),
        (lying(complex, 1, 2, real=9), 1 + 2j),
    ],
)
def test_built_in_subclasses_become_their_base(value: Any, content: Any) -> None:
    back = decode(encode_value(value))
    assert (back, type(back)) == (content, type(content))


def test_metaclass_names_are_ignored() -> None:
    lie = type("Lie", (type,), {"__name__": property(lambda _: 1 / 0), "__eq__": lambda *_: True, "__hash__": None})
    assert decode(encode_value(lie("Fraction", (list,), {})([1]))) == [1]


def test_decimals_ignore_the_context() -> None:
    with localcontext() as context:
        context.prec, context.capitals = 2, 0
        assert decode(encode_value(Decimal("1.2345E+50"))) == Decimal("1.2345E+50")
    assert str(decode(encode_value(Decimal("-0E-7")))) == "-0E-7"
    assert decode(encode_value(Decimal("NaN"))).is_qnan()


def made(name: bytes, *fields: bytes) -> bytes:
    return blob(b"o", name) + collection(b"", list(fields))


def text(value: str) -> bytes:
    return blob(b"s", value.encode())


@pytest.mark.parametrize(
    "content",
    [
        *(
            made(b"Decimal", text(odd))
            for odd in ("1E999999999", "1E-999999999", "sNaN", "sNaN1", "", " 1", "1_0", "x")
        ),
        made(b"Decimal", text("1" * (MAX_DIGITS + 1))),
        made(b"Decimal", text("\u0661")),
        made(b"Decimal", integer(1)),
        made(b"Decimal", text("1"), text("1")),
        made(b"Fraction", integer(1), integer(0)),
        made(b"Fraction", integer(1), integer(-2)),
        made(b"Fraction", integer(1), integer(1 << MAX_BITS)),
        made(b"Fraction", integer(1 << 31_000_000), integer(3)),
        made(b"Fraction", b"T", integer(2)),
        made(b"Fraction", text("1/2")),
        # equal hashes: to compare them, Python would convert the integer's millions of digits to base 10
        collection(b"e", [made(b"Decimal", text("1")), integer(1 + ((1 << 61) - 1 << 20_000_000))]),
        collection(b"l", [integer(1 << 20_000_000), made(b"Decimal", text("1"))]),
        made(b"date", integer(2020), integer(13), integer(1)),
        made(b"date", integer(1 << 100), integer(1), integer(1)),
        made(b"datetime"),
        made(b"datetime", integer(1)),
        made(b"time", *[integer(0)] * 4, text("UTC"), integer(0)),
        made(b"time", *[integer(0)] * 4, b"N", integer(2)),
        made(b"timedelta", integer(1 << 100), integer(0), integer(0)),
        made(b"timezone", made(b"timedelta", integer(2), integer(0), integer(0))),
        made(b"Counter", collection(b"l", [])),
        made(b"defaultdict", b"N", collection(b"d", [])),
        made(b"OrderedDict", made(b"Counter", collection(b"d", []))),
        made(b"Enum", text("a"), text("b")),
        made(b"Enum", integer(1), collection(b"l", [])),
        made(b"range", integer(0), integer(1), integer(0)),
        made(b"list", integer(0)),
        made(b"system", text("true")),
        made(b"\xff", text("true")),
        b"r" + integer(0) + integer(1) + integer(0),
        b"r" + integer(0) + integer(1 << 20_000_000) + integer(1 << 10_000_000 | 1),
        b"r" + integer(0) + b"T" + text("x"),
        collection(b"e", [made(b"Counter", collection(b"d", []))]),
    ],
)
def test_invalid_or_expensive_fields_are_rejected(content: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(BadValue):
        decode(content)
    assert time.thread_time() - began < 2


def test_the_longest_exact_numbers_compare_quickly() -> None:
    """As many as fit through the pipe: each Fraction is reduced, and each number is compared with other kinds."""
    long = (1 << MAX_BITS) - 1
    one = made(b"Fraction", integer(long), integer(long - 2))
    other = made(b"Decimal", text("9." + "7" * (MAX_DIGITS - 20) + "E+99999"))
    began = time.thread_time()
    value = decode(collection(b"l", [one, other] * (4_000_000 // (len(one) + len(other)))))
    for number in (0.1, 7, 1e308, 5e-324, math.inf, 1j, long, Fraction(long, 3), Decimal("1E-99999")):
        assert number not in value
    assert len(set(value)) == 2
    assert time.thread_time() - began < 6
