"""Disassemble values of standard library classes into plain fields, and assemble them again.

The sandbox disassembles a program's value; its fields are a claim, which the parent checks before it assembles them.
Classes are compared by identity: subclasses and look-alikes do not count.
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
"""Module of each class."""
_CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_NAMES = {
    "Fraction": ("_numerator", "_denominator"),
    "date": ("year", "month", "day"),
    "datetime": ("year", "month", "day", *_CLOCK),
    "time": _CLOCK,
    "timedelta": ("days", "seconds", "microseconds"),
}
"""Attributes that are the fields, in the order of the class's arguments (``fold`` is a keyword)."""

_name_of = type.__dict__["__name__"].__get__  # a metaclass may override ``__name__``


class EnumMember:
    """A member of an enumeration, equal only to itself; the class's own ``__eq__`` is ignored."""

    __slots__ = ("name", "of")

    def __init__(self, of: int, name: str) -> None:
        self.of = of
        self.name = name

    def __eq__(self, other: object) -> bool:
        return type(other) is EnumMember and (other.of, other.name) == (self.of, self.name)

    def __hash__(self) -> int:
        return hash((self.of, self.name))


def disassemble(value: "Any") -> "tuple[str, tuple[Any, ...]] | None":
    """Class name and fields; None if the value is not an instance of exactly one of these classes."""
    kind = type(value)
    if kind is EnumMember:
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
    return name, (dict(kind.items(value)),)  # an OrderedDict has its own order, unlike the underlying dict


def assemble(name: str, fields: "list[Any]") -> "Any":
    """Assemble a value. Raises ValueError, TypeError or OverflowError for invalid fields."""
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
    ENUM: lambda fields: EnumMember(*fields),
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": _deque,
    "range": lambda fields: range(*fields),
    "dict": lambda items: dict(zip(items[::2], items[1::2])),  # noqa: B905  (as many keys as values)
}  # fmt: skip
