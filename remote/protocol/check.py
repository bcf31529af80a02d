"""Validation of JSON against declared types: of requests, and of what a box sends.

Supported types: str, int (64 bits), float (finite), bool, None, Any, ``list[...]`` and ``dict[str, ...]`` (at most
:data:`MAX_ITEMS` items), unions, literals of strings, TypedDicts, and ``Annotated`` with a :class:`ValueRule`. Unknown
keys are ignored: the other end may be newer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from grpo_train.run_dir.files import parse_time
from remote.protocol.frames import RemoteError
from remote.protocol.record import record

MAX_ITEMS = 10_000
MAX_INTEGER = 2**63
NULL = "\0"
SECRET: Mapping[str, bool] = types.MappingProxyType({"secret": True})
"""Metadata of a field that may hold secrets: no message shows its value."""


@record(frozen=True)
class ValueRule:
    """A restriction on a value, and the description of what it allows."""

    description: str
    allows: Callable[[Any], bool] = lambda value: True


def read_request(kind: type, params: Any) -> Any:
    """An instance of the dataclass ``kind``. Raises RemoteError ``bad_request``; an optional key may be None."""
    if not isinstance(params, dict):
        raise RemoteError("bad_request", "'params' must be an object")
    values = {}
    hints = hints_of(kind)
    for item in dataclasses.fields(kind):
        value = params.get(item.name)
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if value is None and not required:
            continue
        if not matches(value, hints[item.name]) or _has_null(value):
            got = "" if item.metadata.get("secret") else f"; got {value!r:.200}"
            raise RemoteError("bad_request", f"'{item.name}' must be {describe(hints[item.name])}{got}")
        values[item.name] = value
    return kind(**values)


def _has_null(value: Any) -> bool:
    """Whether a string, or one in a list, has a null character, which no argument or path may have."""
    return any(NULL in item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))


def matches(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a type."""
    return _checker(kind)(value)


@functools.cache
def _checker(kind: Any) -> Callable[[Any], bool]:
    """:func:`matches` for one type, prepared once: a list of 10,000 rows has 160,000 fields."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: True
    if origin is Annotated:
        return functools.reduce(_restricted, kind.__metadata__, _checker(arguments[0]))
    if origin in (Union, types.UnionType):
        first, *others = (_checker(option) for option in arguments)
        return lambda value: first(value) or any(fits(value) for fits in others)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is list:
        item_fits = _checker(arguments[0])
        return lambda value: isinstance(value, list) and len(value) <= MAX_ITEMS and all(map(item_fits, value))
    if origin is dict:
        item_fits = _checker(arguments[1])
        return lambda value: isinstance(value, dict) and len(value) <= MAX_ITEMS and all(map(item_fits, value.values()))
    if is_typeddict(kind):
        required, fields = kind.__required_keys__, {key: _checker(hint) for key, hint in hints_of(kind).items()}
        return lambda value: (
            isinstance(value, dict)
            and required <= value.keys()
            and all(fits(value[key]) for key, fits in fields.items() if key in value)
        )
    if kind in (int, float):
        return lambda value: _is_number(value, kind)
    known = kind in (str, bool, types.NoneType)
    return lambda value: known and isinstance(value, kind)


def _restricted(fits: Callable[[Any], bool], rule: ValueRule) -> Callable[[Any], bool]:
    return lambda value: fits(value) and rule.allows(value)


def _is_number(value: Any, kind: type) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < MAX_INTEGER
    return kind is float and isinstance(value, float) and math.isfinite(value)


def mismatch(value: Any, kind: Any) -> str:
    """Why a JSON value does not have a type, such as ``step: must be a number; got "x"``; "" if it has."""
    if matches(value, kind):
        return ""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return _too_many(value) or _first((f"[{i}]", mismatch(item, arguments[0])) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return _too_many(value) or _first((f"[{key!r:.40}]", mismatch(value[key], arguments[1])) for key in value)
    if is_typeddict(kind) and isinstance(value, dict):
        missing = next((key for key in kind.__required_keys__ if key not in value), None)
        problems = ((key, mismatch(value[key], hint)) for key, hint in hints_of(kind).items() if key in value)
        return f"'{missing}' is missing" if missing else _first(problems)
    return f"must be {describe(kind)}; got {shown(value)}"


def _too_many(value: list[Any] | dict[str, Any]) -> str:
    return f"has {len(value):,} items, more than {MAX_ITEMS:,}" if len(value) > MAX_ITEMS else ""


def _first(problems: Iterable[tuple[str, str]]) -> str:
    """The first problem, after the name of its field."""
    return next((f"{name}: {problem}" for name, problem in problems if problem), "")


def shown(value: Any) -> str:
    """A JSON value in a few words, whatever its size and depth."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        return "an integer of more than 64 bits"
    return repr(value[:60] if isinstance(value, str) else value)


def describe(kind: Any) -> str:
    """A type, described for an error message."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return str(arguments[1].description)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in arguments if option is not types.NoneType)
    if origin is Literal:
        return " or ".join(", ".join(filter(None, arguments)).rsplit(", ", 1))
    if origin is list:
        return f"a list, each item {describe(arguments[0])}"
    names = {str: "a string", int: "an integer", float: "a finite number", bool: "true or false"}
    return names.get(kind, "an object")


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass or TypedDict."""
    return get_type_hints(kind, include_extras=True)


NAME_LENGTH = 255
SPECIAL = ("NaN", "Infinity", "-Infinity")
"""How the logs write numbers that JSON lacks."""


def _is_label(value: str) -> bool:
    return len(value) <= NAME_LENGTH and value.isprintable()


def _is_time(value: str) -> bool:
    try:
        parse_time(value)
    except (ValueError, OverflowError, OSError):
        return not value
    return True


Label: TypeAlias = Annotated[str, ValueRule(f"at most {NAME_LENGTH} printable characters", _is_label)]
Name: TypeAlias = Annotated[
    str, ValueRule(f"1 to {NAME_LENGTH} printable characters", lambda v: bool(v) and _is_label(v))
]
Quantity: TypeAlias = Annotated[float, ValueRule("a number within ±10^15", lambda value: abs(value) <= 1e15)]
Row: TypeAlias = dict[str, Any]
Text: TypeAlias = Annotated[str, ValueRule("a non-empty string", bool)]
Positive: TypeAlias = Annotated[int, ValueRule("an integer of 1 or more", lambda value: value >= 1)]
Count: TypeAlias = Annotated[float, ValueRule("a number from 0 to 10^15", lambda value: 0 <= value <= 1e15)]
Metric: TypeAlias = float | Annotated[str, ValueRule("NaN or Infinity", lambda value: value in SPECIAL)]
ConfigValue: TypeAlias = Label | float | bool | None
Time: TypeAlias = Annotated[str, ValueRule("a time such as 2026-11-22T08:30:00Z", _is_time)]
