"""Decoding what a program claims its values are: plain data from an untrusted pipe, bounded in time and memory.

The format is in :mod:`grpo_train.rewards.sandbox.inside.encode`, but these bytes need not come from there: a program
can write to the pipe itself. So nothing is believed: every length is checked, containers are counted, and what is
hashed is few and does not collide (integers chosen to have one hash make a set quadratic).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from grpo_train.rewards.sandbox.inside.encode import MAX_DEPTH, MAX_NODES

MAX_JOB_NODES = 3 * MAX_NODES
"""Elements of all values of one job together."""
MAX_HASHED = 10_000
"""Entries of all sets and dicts of one job together."""
MAX_SAME_HASH = 32
MAX_FLOAT_TEXT = 32


class BadValue(ValueError):
    """The bytes are not a value in the format, or more than is accepted."""


@dataclass(frozen=True)
class Lazy:
    """An iterator, a range, a deque, or the keys or items of a dict: equal to no list, but a test may make one of
    it."""

    kind: str
    """``iterator``, ``deque``, ``range`` or ``view``."""
    items: tuple[Any, ...]


def decode(content: bytes) -> Any:
    """The value: built-in types only (a :class:`Lazy` for what is not one). Raises :class:`BadValue`."""
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
            return int.from_bytes(self.blob(), "little", signed=True)
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
            return Lazy("range", tuple(self.value(depth + 1) for _ in range(3)))
        if tag in (b"g", b"q"):
            return Lazy("iterator" if tag == b"g" else "deque", tuple(self.items(depth)))
        raise BadValue("an unknown tag")


SINGLETONS = {b"N": None, b"T": True, b"F": False}


def for_judge(value: Any) -> tuple[str, Any]:
    """A value as the judge's interpreter takes it: how to rebuild it, and plain data. Raises :class:`BadValue`."""
    if isinstance(value, Lazy):
        kind, value = value.kind, list(value.items)
    else:
        kind = "plain"
    waiting = deque([value])
    while waiting:
        inner = waiting.popleft()
        if isinstance(inner, Lazy):
            raise BadValue(f"a {inner.kind} inside a value")
        if isinstance(inner, dict):
            waiting.extend(inner.keys())
            waiting.extend(inner.values())
        elif isinstance(inner, list | tuple | set | frozenset):
            waiting.extend(inner)
    return kind, value
