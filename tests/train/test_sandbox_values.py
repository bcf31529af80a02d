"""Values on their way out of the sandbox: what is encoded inside is decoded outside, and nothing else harms there."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.rewards.sandbox.inside.encode import MAX_DEPTH, Unsupported, encode
from grpo_train.rewards.sandbox.values import MAX_HASHED, BadValue, Lazy, decode, for_judge

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
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=12,
)


def types(value: Any) -> Any:
    """The shape of a value as types, which ``==`` does not see."""
    if isinstance(value, list | tuple):
        return type(value), [types(item) for item in value]
    return type(value)


@given(VALUES)
def test_every_plain_value_comes_back_as_it_was(value: Any) -> None:
    back = decode(encode(value))
    assert back == value
    assert types(back) == types(value)


def test_what_is_not_a_number_comes_back() -> None:
    assert math.isnan(decode(encode(float("nan"))))
    assert str(decode(encode(-0.0))) == "-0.0"
    assert decode(encode(bytearray(b"x"))) == bytearray(b"x")


@settings(max_examples=500)
@given(
    st.binary(max_size=200) | VALUES.map(encode).flatmap(lambda good: st.binary(max_size=4).map(lambda bad: good + bad))
)
def test_any_bytes_are_a_value_or_refused(content: bytes) -> None:
    try:
        decode(content)
    except BadValue:
        pass


@settings(max_examples=300)
@given(VALUES.map(encode), st.data())
def test_a_changed_byte_is_a_value_or_refused(content: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + bytes([data.draw(st.integers(0, 255))]) + content[at + 1 :]
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
        b"s\xff\xff\xff\xff",
        blob(b"f", b"9" * 4_000_000),
        blob(b"f", b"0x1p999999999999"),
        b"",
        b"?",
        b"NN",
    ],
)
def test_what_would_take_long_is_refused_soon(content: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(BadValue):
        decode(content)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "content",
    [
        integer(1 << 31_000_000),
        blob(b"s", b"a" * 4_000_000),
        # entries that differ in their hash, but not in the bits that a small table looks at
        collection(b"e", [integer(k << 40) for k in range(MAX_HASHED)]),
        collection(b"z", [collection(b"t", [integer(k), blob(b"s", b"x" * 100)]) for k in range(MAX_HASHED)]),
    ],
)
def test_the_largest_that_are_taken_are_compared_soon(content: bytes) -> None:
    began = time.monotonic()
    value = decode(content)
    assert value == decode(content)
    assert value != {1: [2]}
    assert time.monotonic() - began < 2


def test_the_encoder_calls_no_method_of_the_value() -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("called")

    names = ("__eq__", "__iter__", "__len__", "__index__", "__int__", "__float__", "__str__", "__getitem__", "items")
    methods = dict.fromkeys(names, refuse)
    for base, value in ((int, 7), (str, "x"), (float, 1.5), (list, [1]), (dict, {1: 2}), (tuple, (1,)), (bytes, b"x")):
        evil = type("Evil", (base,), dict(methods))(value) if base is not tuple else type("Evil", (base,), {})((1,))
        assert decode(encode(evil)) == value


@pytest.mark.parametrize("value", [object(), int, len, ..., [1, [object()]], {1: lambda: 0}, (i for i in [object()])])
def test_what_is_not_plain_data_is_refused_with_its_type(value: Any) -> None:
    with pytest.raises(Unsupported, match="a value of type"):
        encode(value)


def test_iterators_are_kept_apart_from_lists() -> None:
    value = decode(encode(iter([1, 2])))
    assert value == Lazy("iterator", (1, 2))
    assert value != [1, 2]
    assert for_judge(value) == ("iterator", [1, 2])
    with pytest.raises(BadValue):
        for_judge([value])
