"""Decoding what a program claims its values are: plain data from an untrusted pipe, bounded in time and memory.

The format is in :mod:`grpo_train.sandbox.inside.encode`, but these bytes need not come from there: a program
can write to the pipe itself. So nothing is believed: every length is checked, containers are counted, what is hashed
is few and does not collide (integers chosen to have one hash make a set quadratic), and exact numbers are short: to
compare a Decimal with an integer of a million digits takes hours.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

from grpo_train.sandbox.inside.encode import MAX_DEPTH, MAX_NODES
from grpo_train.sandbox.inside.kinds import ENUM, put_together, taken_apart

MAX_JOB_NODES = 3 * MAX_NODES
"""Elements of all values of one job together."""
MAX_HASHED = 10_000
"""Entries of all sets and dicts of one job together."""
MAX_SAME_HASH = 32
MAX_FLOAT_TEXT = 32
MAX_BITS = 10_000
"""Of the integers that make a Fraction, a range or a time, and of an int in one value with a Decimal."""
MAX_DIGITS = 3_000
"""Of a Decimal, as text."""
MAX_EXPONENT = 100_000
"""Of a Decimal, up or down."""
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:E([+-]?[0-9]{1,18}))?|Infinity|NaN[0-9]{0,30})", re.IGNORECASE)
"""What ``str`` makes of one; a signalling NaN, which raises when it is compared, is not among them."""


class BadValue(ValueError):
    """The bytes are not a value in the format, or more than is accepted."""


@dataclass(frozen=True)
class Lazy:
    """An iterator, or the keys or items of a dict: equal to no list, but a test may make one of it."""

    kind: str
    """``iterator`` or ``view``."""
    items: tuple[Any, ...]


def decode(content: bytes) -> Any:
    """The value: of Python's own types only (a :class:`Lazy`, a ``Member`` for what is not). Raises
    :class:`BadValue`."""
    return Decoder().decode(content)


class Decoder:
    """Decodes the values of one job, which share the caps."""

    def __init__(self) -> None:
        self.nodes = MAX_JOB_NODES
        self.hashed = MAX_HASHED

    def decode(self, content: bytes) -> Any:
        """As the function :func:`decode`."""
        reader = _Reader(content, self)
        value = reader.value(0)
        if reader.at != len(content):
            raise BadValue("bytes after the value")
        return value

    def as_set(self, view: Lazy) -> frozenset[Any]:
        """What the keys or items of a dict are equal to. Raises :class:`BadValue`."""
        return frozenset(_Reader(b"", self).hashable(list(view.items)))


class _Reader:
    """One value being read."""

    def __init__(self, content: bytes, caps: Decoder) -> None:
        self.content = content
        self.at = 0
        self.caps = caps
        self.nodes = min(MAX_NODES, caps.nodes)
        self.dear: set[str] = set()

    def number(self) -> int:
        end = self.at + 4
        if end > len(self.content):
            raise BadValue("cut short")
        number = int.from_bytes(self.content[self.at : end], "little")
        self.at = end
        return number

    def blob(self) -> bytes:
        length = self.number()
        end = self.at + length
        if end > len(self.content):
            raise BadValue("cut short")
        blob = self.content[self.at : end]
        self.at = end
        return blob

    def whole(self) -> int:
        number = int.from_bytes(self.blob(), "little", signed=True)
        if number.bit_length() > MAX_BITS:
            self.meet("a long int")
        return number

    def meet(self, kind: str) -> None:
        """Before a set or dict compares them: no Decimal and long int in one value."""
        self.dear.add(kind)
        if len(self.dear) > 1:
            raise BadValue(f"a Decimal beside an int of more than {MAX_BITS} bits")

    def float(self) -> float:
        text = self.blob()
        if len(text) > MAX_FLOAT_TEXT:
            raise BadValue("not a float")
        try:
            return float.fromhex(text.decode("ascii"))
        except (ValueError, OverflowError):
            raise BadValue("not a float") from None

    def items(self, depth: int) -> list[Any]:
        count = self.number()
        if count > self.nodes:
            raise BadValue("too many elements")
        return [self.value(depth + 1) for _ in range(count)]

    def hashable(self, items: list[Any]) -> list[Any]:
        """``items``, which can be put into a set in little time."""
        self.caps.hashed -= len(items)
        if self.caps.hashed < 0:
            raise BadValue(f"more than {MAX_HASHED} entries in sets and dicts")
        try:
            same = Counter(map(hash, items))
        except TypeError as error:
            raise BadValue(str(error)) from None
        if same and max(same.values()) > MAX_SAME_HASH:
            raise BadValue("entries chosen to have one hash")
        return items

    def value(self, depth: int) -> Any:
        self.caps.nodes -= 1
        self.nodes -= 1
        if self.nodes < 0 or depth > MAX_DEPTH:
            raise BadValue("too many elements or nested too deep")
        tag = self.content[self.at : self.at + 1]
        self.at += 1
        if tag in SINGLETONS:
            return SINGLETONS[tag]
        if tag == b"i":
            return self.whole()
        if tag == b"f":
            return self.float()
        if tag == b"c":
            return complex(self.float(), self.float())
        if tag == b"s":
            try:
                return self.blob().decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                raise BadValue("not UTF-8") from None
        if tag == b"b":
            return self.blob()
        if tag == b"y":
            return bytearray(self.blob())
        if tag == b"l":
            return self.items(depth)
        if tag == b"t":
            return tuple(self.items(depth))
        if tag == b"e":
            return set(self.hashable(self.items(depth)))
        if tag == b"k" and depth == 0:
            return Lazy("view", tuple(self.items(depth)))
        if tag in (b"z", b"k"):
            return frozenset(self.hashable(self.items(depth)))
        if tag == b"d":
            count = self.number()
            if count > self.nodes:
                raise BadValue("too many elements")
            pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(count)]
            self.hashable([key for key, _ in pairs])
            return dict(pairs)
        if tag == b"r":
            return self.put_together("range", [self.value(depth + 1) for _ in range(3)])
        if tag == b"q":
            return deque(self.items(depth))
        if tag == b"g":
            return Lazy("iterator", tuple(self.items(depth)))
        if tag == b"o":
            return self.put_together(self.blob().decode("ascii", "replace"), self.items(depth))
        raise BadValue("an unknown tag")

    def put_together(self, name: str, fields: list[Any]) -> Any:
        """A value of the standard library's, of fields that are what they are said to be."""
        check = FIELDS.get(name)
        if check is None or not check(fields):
            raise BadValue(f"fields that make no {name[:20]}, or more of it than is carried")
        if name == "Decimal":
            self.meet(name)
        try:
            return put_together(name, fields)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadValue(f"no {name}: {error}") from None


SINGLETONS = {b"N": None, b"T": True, b"F": False}


def _are(fields: list[Any], *kinds: type) -> bool:
    """Are these of exactly these types?"""
    return [type(field) for field in fields] == list(kinds)


def _are_ints(fields: list[Any], count: int) -> bool:
    """So many integers, of which none is long: to reduce a Fraction or to count a range takes the square of that."""
    return _are(fields, *[int] * count) and max(map(int.bit_length, fields)) <= MAX_BITS


def _is_fraction(fields: list[Any]) -> bool:
    return _are_ints(fields, 2) and fields[1] > 0


def _is_decimal(fields: list[Any]) -> bool:
    text = fields[0] if _are(fields, str) else ""
    match = _DECIMAL.fullmatch(text) if len(text) <= MAX_DIGITS else None
    return match is not None and abs(int(match[1] or 0)) <= MAX_EXPONENT


def _is_clock(fields: list[Any], numbers: int) -> bool:
    """So many numbers, a time zone or None, and ``fold``."""
    zone = type(fields[numbers]) if len(fields) == numbers + 2 else timezone
    return zone in (timezone, type(None)) and _are(fields, *[int] * numbers, zone, int)


FIELDS: dict[str, Callable[[list[Any]], bool]] = {
    "Fraction": _is_fraction,
    "Decimal": _is_decimal,
    "date": lambda fields: _are_ints(fields, 3),
    "datetime": lambda fields: _is_clock(fields, 7),
    "time": lambda fields: _is_clock(fields, 4),
    "timedelta": lambda fields: _are_ints(fields, 3),
    "timezone": lambda fields: _are(fields, timedelta),
    "Counter": lambda fields: _are(fields, dict),
    "OrderedDict": lambda fields: _are(fields, dict),
    "defaultdict": lambda fields: _are(fields, dict),
    "range": lambda fields: _are_ints(fields, 3),
    ENUM: lambda fields: _are(fields, int, str),
}
"""May these be the fields of such a value?"""
PLAIN = (list, tuple, set, frozenset, dict)


def for_judge(value: Any) -> tuple[str, bool, Any]:
    """A value as the judge's interpreter takes it: what to make of it (``plain``, ``iterator``, ``view``), is it
    packed (see :func:`packed`), and plain data. Raises :class:`BadValue`."""
    kind = "plain"
    if isinstance(value, Lazy):
        kind, value = value.kind, list(value.items)
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if type(inner) in PLAIN:
            waiting.extend(inner)
            waiting.extend(inner.values() if type(inner) is dict else ())
        elif not isinstance(inner, SCALARS):
            return kind, True, packed(value)
    return kind, False, value


SCALARS = (int, float, complex, str, bytes, bytearray, type(None))


def packed(value: Any) -> Any:
    """A value as plain data in which every tuple is (a name, fields): what ``harness.unpacked`` takes."""
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Lazy):
        raise BadValue(f"a {value.kind} inside a value")
    if type(value) is range:
        return "range", [value.start, value.stop, value.step]
    if (apart := taken_apart(value)) is not None:
        return apart[0], [packed(field) for field in apart[1]]
    items = [part for pair in value.items() for part in pair] if type(value) is dict else value
    return type(value).__name__, [packed(item) for item in items]
