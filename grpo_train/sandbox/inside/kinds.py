"""Values of the standard library's own classes, taken apart into plain fields and put together again.

Inside the sandbox a value of the program is taken apart; what the fields are is a claim, which the parent checks before
it puts them together. A class counts by its identity alone: subclasses, and classes that look alike, are not it.
"""

import sys

TYPE_CHECKING = False  # ``typing`` itself would cost every child a millisecond
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ENUM = "Enum"
MODULES = {
    "Fraction": "fractions", "Decimal": "decimal", "date": "datetime", "datetime": "datetime", "time": "datetime",
    "timedelta": "datetime", "timezone": "datetime", "Counter": "collections", "OrderedDict": "collections",
    "defaultdict": "collections",
}  # fmt: skip
"""Where each class is defined."""
_CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_NAMES = {
    "Fraction": ("_numerator", "_denominator"),
    "date": ("year", "month", "day"),
    "datetime": ("year", "month", "day", *_CLOCK),
    "time": _CLOCK,
    "timedelta": ("days", "seconds", "microseconds"),
}
"""Attributes that are the fields, in the order of the class's arguments (``fold`` is a named one)."""

_name_of = type.__dict__["__name__"].__get__  # a metaclass may have a ``__name__`` of its own


class Member:
    """A member of an enumeration: equal to itself, and to nothing else. The class's own ``__eq__`` has no say."""

    __slots__ = ("name", "of")

    def __init__(self, of: int, name: str) -> None:
        self.of = of
        self.name = name

    def __eq__(self, other: object) -> bool:
        return type(other) is Member and (other.of, other.name) == (self.of, self.name)

    def __hash__(self) -> int:
        return hash((self.of, self.name))


def taken_apart(value: "Any") -> "tuple[str, tuple[Any, ...]] | None":
    """The name of its class and its fields; None for what is no instance of exactly one of these classes."""
    kind = type(value)
    if kind is Member:
        return ENUM, (value.of, value.name)
    enum = sys.modules.get("enum")
    if enum is not None and type(kind) is enum.EnumMeta and issubclass(kind, enum.Enum):
        return ENUM, (id(kind), object.__getattribute__(value, "_name_"))
    name = _name_of(kind)
    module = sys.modules.get(MODULES.get(name, ""))
    if module is None or getattr(module, name, None) is not kind:
        return None
    if name in _NAMES:
        return name, tuple([getattr(value, attribute) for attribute in _NAMES[name]])
    if name == "Decimal":
        return name, (kind.__str__(value),)
    if name == "timezone":
        return name, (kind.utcoffset(value, None),)
    return name, (dict(kind.items(value)),)  # an OrderedDict's order is its own, not the dict's below it


def put_together(name: str, fields: "list[Any]") -> "Any":
    """The value. What does not fit raises ValueError, TypeError or OverflowError."""
    if name in MODULES:
        kind = getattr(__import__(MODULES[name]), name)
        if name in ("datetime", "time"):
            return kind(*fields[:-1], fold=fields[-1])
        if name == "defaultdict":
            return kind(None, *fields)
        return kind(*fields)
    return _CONTAINERS[name](fields)


def _deque(items: "list[Any]") -> "Any":
    return __import__("collections").deque(items)


_CONTAINERS: "dict[str, Callable[[list[Any]], Any]]" = {
    ENUM: lambda fields: Member(*fields),
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": _deque,
    "range": lambda fields: range(*fields),
    "dict": lambda items: dict(zip(items[::2], items[1::2])),  # noqa: B905  (as many keys as values)
}  # fmt: skip
