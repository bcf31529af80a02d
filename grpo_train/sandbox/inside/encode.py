"""Encode a program's value as tagged plain data, without running the value's own methods.

Only unbound methods of built-in types are called, chosen by the value's real type: a class that overrides ``__eq__``,
``__iter__`` or ``items`` has no effect. An instance of a subclass (a namedtuple, an IntEnum) is written as its built-in
value. Classes in :mod:`grpo_train.sandbox.inside.kinds` are written as their fields.

The format, read by :mod:`grpo_train.sandbox.values`: one tag byte, then

====== ============================================ ====== ================================================
tag    content                                      tag    content
====== ============================================ ====== ================================================
``N``  None                                         ``l``  list: count, items
``T``  True                                         ``t``  tuple: count, items
``F``  False                                        ``e``  set: count, items
``i``  int: length, two's complement little-endian  ``z``  frozenset: count, items
``f``  float: length, ``float.hex`` text            ``d``  dict: count, key, value, key, value, ...
``c``  complex: two floats without tags             ``r``  range: start, stop, step as tagged ints
``s``  str: length, UTF-8 (surrogates pass)         ``k``  dict keys or items: count, items
``b``  bytes: length, content                       ``g``  iterator or dict values: count, items
``y``  bytearray: length, content                   ``q``  deque: count, items
``o``  one of those classes: name, count, fields
====== ============================================ ====== ================================================

Lengths and counts are 4 bytes, little-endian.
"""

import _collections

from grpo_train.sandbox.inside.kinds import disassemble

TYPE_CHECKING = False  # ``typing`` itself would cost every child a millisecond
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 4_000_000
MAX_NODES = 200_000
"""Limit for one value."""
MAX_DEPTH = 100


class Unsupported(Exception):
    """The value is not plain data or exceeds a limit; the message gives the reason."""


# By identity: a program's metaclass may compare equal to every type.
_ITERATORS = frozenset(map(id, (
    type(iter([])), type(iter(())), type(iter({})), type(iter({}.values())), type(iter({}.items())), type(iter(set())),
    type(iter("")), type(iter(b"")), type(iter(range(0))), type(_ for _ in ""), map, filter, zip, enumerate, reversed,
    type({}.values()),
)))  # fmt: skip
_SET_VIEWS = frozenset(map(id, (type({}.keys()), type({}.items()))))
_CONTAINERS = frozenset(map(id, (list, tuple, set, frozenset, dict, range, _collections.deque)))
_SEQUENCES: "tuple[Any, ...]" = (
    (list, b"l", list.__iter__), (tuple, b"t", tuple.__iter__), (set, b"e", set.__iter__),
    (frozenset, b"z", frozenset.__iter__), (_collections.deque, b"q", _collections.deque.__iter__),
)  # fmt: skip


def encode_value(value: "Any") -> bytes:
    """Encode ``value`` in at most ``MAX_BYTES``. Raises :class:`Unsupported`."""
    parts: list[bytes] = []
    _ValueWriter(parts).put(value, 0)
    return b"".join(parts)


def _count(count: int) -> bytes:
    return count.to_bytes(4, "little")


class _ValueWriter:
    """Writer of one value: its parts so far and what is left of the limits."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts
        self.nodes = MAX_NODES
        self.bytes = MAX_BYTES

    def blob(self, tag: bytes, content: bytes) -> None:
        self.bytes -= len(content)
        if self.bytes < 0:
            raise Unsupported(f"more than {MAX_BYTES} bytes")
        self.parts.append(tag + _count(len(content)) + content)

    def items(self, tag: bytes, items: "Any", depth: int) -> None:
        start = len(self.parts)
        self.parts.append(b"")
        count = 0
        for item in items:
            self.put(item, depth + 1)
            count += 1
        self.parts[start] = tag + _count(count)

    def put(self, value: "Any", depth: int) -> None:
        self.nodes -= 1
        self.bytes -= 5
        if self.nodes < 0:
            raise Unsupported(f"more than {MAX_NODES} elements")
        if depth > MAX_DEPTH:
            raise Unsupported(f"nested deeper than {MAX_DEPTH} levels")
        kind = type(value)
        if value is None or value is True or value is False:
            self.parts.append(b"N" if value is None else b"T" if value is True else b"F")
        elif issubclass(kind, int):
            integer = int.__index__(value)
            self.blob(b"i", integer.to_bytes(integer.bit_length() // 8 + 1, "little", signed=True))
        elif issubclass(kind, float):
            self.blob(b"f", float.hex(value).encode())
        elif issubclass(kind, str):
            self.blob(b"s", str.encode(value, "utf-8", "surrogatepass"))
        elif issubclass(kind, complex):
            self.parts.append(b"c")
            for part in (complex.real.__get__(value), complex.imag.__get__(value)):
                self.blob(b"", float.hex(part).encode())
        elif issubclass(kind, bytes):
            self.blob(b"b", bytes.join(b"", (value,)))
        elif issubclass(kind, bytearray):
            self.blob(b"y", bytes.join(b"", (value,)))
        elif id(kind) not in _CONTAINERS and (disassembled := disassemble(value)) is not None:
            name, fields = disassembled
            self.blob(b"o", name.encode())
            self.items(b"", fields, depth)
        elif issubclass(kind, dict):
            start = len(self.parts)
            self.parts.append(b"")
            count = 0
            for key, item in dict.items(value):
                self.put(key, depth + 1)
                self.put(item, depth + 1)
                count += 1
            self.parts[start] = b"d" + _count(count)
        elif kind is range:
            self.parts.append(b"r")
            for part in (value.start, value.stop, value.step):
                self.put(part, depth + 1)
        elif id(kind) in _SET_VIEWS:
            self.items(b"k", value, depth)
        elif id(kind) in _ITERATORS:
            self.items(b"g", value, depth)
        else:
            for base, tag, iterate in _SEQUENCES:
                if issubclass(kind, base):
                    return self.items(tag, iterate(value), depth)
            raise Unsupported(f"a value of type {kind.__name__[:80]}")
        return None
