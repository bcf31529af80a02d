"""Decoder for values that a program claims: plain data from an untrusted pipe, bounded in time and memory.

The format is in :mod:`grpo_train.sandbox.inside.encode`, but a program can write to the pipe itself. So every length
is checked, containers are counted, hashed entries are few and do not collide (integers chosen to have one hash make a
set quadratic), and exact numbers are short (comparing a Decimal with an integer of a million digits takes hours).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

from grpo_train.sandbox.inside.encode import MAX_DEPTH, MAX_NODES
from grpo_train.sandbox.inside.kinds import ENUM, assemble, disassemble

MAX_JOB_NODES = 3 * MAX_NODES
"""Elements of all values of one job."""
MAX_HASHED = 10_000
"""Entries of all sets and dicts of one job."""
MAX_SAME_HASH = 32
MAX_FLOAT_TEXT = 32
MAX_BITS = 10_000
"""Limit for the integers of a Fraction, range or time, and for an int in one value with a Decimal."""
MAX_DIGITS = 3_000
"""Length of a Decimal as text."""
MAX_EXPONENT = 100_000
"""Absolute exponent of a Decimal."""
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:E([+-]?[0-9]{1,18}))?|Infinity|NaN[0-9]{0,30})", re.IGNORECASE)
"""A Decimal as ``str`` writes it, without signaling NaNs, which raise when compared."""


class BadValue(ValueError):
    """The bytes are invalid or exceed a limit."""


@dataclass(frozen=True)
class Lazy:
    """An iterator, or the keys or items of a dict: not equal to a list, but a test may convert it to one."""

    kind: str
    """``iterator`` or ``view``."""
    items: tuple[Any, ...]


class ValueDecoder:
    """Decoder of the values of one job, which share the limits."""

    def __init__(self) -> None:
        self.nodes = MAX_JOB_NODES
        self.hashed = MAX_HASHED

    def decode(self, content: bytes) -> Any:
        """Decode one value to Python's own types, :class:`Lazy` or ``Member``. Raises :class:`BadValue`."""
        reader = _ValueReader(content, self)
        value = reader.value(0)
        if reader.offset != len(content):
            raise BadValue("bytes after the value")
        return value

    def as_set(self, view: Lazy) -> frozenset[Any]:
        """The set that a dict's keys or items equal. Raises :class:`BadValue`."""
        return frozenset(_ValueReader(b"", self).hashable(list(view.items)))


class _ValueReader:
    """Reader of one value."""

    def __init__(self, content: bytes, job: ValueDecoder) -> None:
        self.content = content
        self.offset = 0
        self.job = job
        self.nodes = min(MAX_NODES, job.nodes)
        self.slow_kinds: set[str] = set()

    def take(self, length: int) -> bytes:
        end = self.offset + length
        if end > len(self.content):
            raise BadValue("truncated")
        taken = self.content[self.offset : end]
        self.offset = end
        return taken

    def count(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def blob(self) -> bytes:
        return self.take(self.count())

    def integer(self) -> int:
        value = int.from_bytes(self.blob(), "little", signed=True)
        if value.bit_length() > MAX_BITS:
            self.check_slow("a long int")
        return value

    def check_slow(self, kind: str) -> None:
        """Reject a Decimal and a long int in one value, before a set or dict compares them."""
        self.slow_kinds.add(kind)
        if len(self.slow_kinds) > 1:
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
        count = self.count()
        if count > self.nodes:
            raise BadValue("too many elements")
        return [self.value(depth + 1) for _ in range(count)]

    def hashable(self, items: list[Any]) -> list[Any]:
        """Return ``items`` after checking that a set of them is fast to build."""
        self.job.hashed -= len(items)
        if self.job.hashed < 0:
            raise BadValue(f"more than {MAX_HASHED} entries in sets and dicts")
        try:
            same = Counter(map(hash, items))
        except TypeError as error:
            raise BadValue(str(error)) from None
        if same and max(same.values()) > MAX_SAME_HASH:
            raise BadValue("too many entries with the same hash")
        return items

    def value(self, depth: int) -> Any:
        self.job.nodes -= 1
        self.nodes -= 1
        if self.nodes < 0 or depth > MAX_DEPTH:
            raise BadValue("too many elements, or nested too deeply")
        tag = self.content[self.offset : self.offset + 1]
        self.offset += 1
        if tag in SINGLETONS:
            return SINGLETONS[tag]
        if tag == b"i":
            return self.integer()
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
            count = self.count()
            if count > self.nodes:
                raise BadValue("too many elements")
            pairs = [(self.value(depth + 1), self.value(depth + 1)) for _ in range(count)]
            self.hashable([key for key, _ in pairs])
            return dict(pairs)
        if tag == b"r":
            return self.assemble("range", [self.value(depth + 1) for _ in range(3)])
        if tag == b"q":
            return deque(self.items(depth))
        if tag == b"g":
            return Lazy("iterator", tuple(self.items(depth)))
        if tag == b"o":
            return self.assemble(self.blob().decode("ascii", "replace"), self.items(depth))
        raise BadValue("unknown tag")

    def assemble(self, name: str, fields: list[Any]) -> Any:
        """Assemble a standard library value after checking its fields."""
        check = FIELDS.get(name)
        if check is None or not check(fields):
            raise BadValue(f"invalid or too large fields of a {name[:20]}")
        if name == "Decimal":
            self.check_slow(name)
        try:
            return assemble(name, fields)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadValue(f"invalid {name}: {error}") from None


SINGLETONS = {b"N": None, b"T": True, b"F": False}


def _are(fields: list[Any], *kinds: type) -> bool:
    """Whether the fields have exactly these types."""
    return [type(field) for field in fields] == list(kinds)


def _are_ints(fields: list[Any], count: int) -> bool:
    """Whether these are ``count`` short integers: reducing a Fraction or a range takes quadratic time in the bits."""
    return _are(fields, *[int] * count) and max(map(int.bit_length, fields)) <= MAX_BITS


def _is_fraction(fields: list[Any]) -> bool:
    return _are_ints(fields, 2) and fields[1] > 0


def _is_decimal(fields: list[Any]) -> bool:
    text = fields[0] if _are(fields, str) else ""
    match = _DECIMAL.fullmatch(text) if len(text) <= MAX_DIGITS else None
    return match is not None and abs(int(match[1] or 0)) <= MAX_EXPONENT


def _is_clock(fields: list[Any], count: int) -> bool:
    """Whether these are ``count`` integers, a time zone or None, and ``fold``."""
    zone = type(fields[count]) if len(fields) == count + 2 else timezone
    return zone in (timezone, type(None)) and _are(fields, *[int] * count, zone, int)


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
"""Whether these can be the fields of such a value."""
PLAIN = (list, tuple, set, frozenset, dict)


def for_judge(value: Any) -> tuple[str, bool, Any]:
    """A value for the judge's interpreter: (``plain``, ``iterator`` or ``view``; is packed; plain data).

    See :func:`pack_value`. Raises :class:`BadValue`.
    """
    kind = "plain"
    if isinstance(value, Lazy):
        kind, value = value.kind, list(value.items)
    pending = [value]
    while pending:
        inner = pending.pop()
        if type(inner) in PLAIN:
            pending.extend(inner)
            pending.extend(inner.values() if type(inner) is dict else ())
        elif not isinstance(inner, SCALARS):
            return kind, True, pack_value(value)
    return kind, False, value


SCALARS = (int, float, complex, str, bytes, bytearray, type(None))


def pack_value(value: Any) -> Any:
    """Plain data in which every tuple is (name, fields); ``harness.unpack`` reverses this."""
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Lazy):
        raise BadValue(f"a {value.kind} inside a value")
    if type(value) is range:
        return "range", [value.start, value.stop, value.step]
    if (parts := disassemble(value)) is not None:
        return parts[0], [pack_value(field) for field in parts[1]]
    items = [item for pair in value.items() for item in pair] if type(value) is dict else value
    return type(value).__name__, [pack_value(item) for item in items]
