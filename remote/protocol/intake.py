"""Validation of JSON against declared types; requests are validated here, what a box sends in :mod:`remote.intake`.

Supported types: str, int, float, bool, None, Any, ``list[...]``, ``dict[str, ...]``, unions, TypedDicts, and
``Annotated`` with a :class:`Rule`. Unknown keys are ignored: the other end may be newer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from remote.protocol.messages import RemoteError


@dataclass(frozen=True)
class Rule:
    """A restriction on a value, and the description of what it allows."""

    description: str
    allows: Callable[[Any], bool]


def read_request(kind: type, params: Any) -> Any:
    """An instance of the dataclass ``kind``. Raises RemoteError ``bad_request``; an optional key may be None."""
    if not isinstance(params, dict):
        raise RemoteError("bad_request", "'params' must be an object")
    values = {}
    hints = _hints(kind)
    for item in dataclasses.fields(kind):
        value = params.get(item.name)
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if value is None and not required:
            continue
        if not matches(value, hints[item.name]):
            raise RemoteError("bad_request", f"'{item.name}' must be {describe(hints[item.name])}; got {value!r:.200}")
        values[item.name] = value
    return kind(**values)


def matches(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return matches(value, arguments[0]) and all(rule.allows(value) for rule in kind.__metadata__)
    if origin in (Union, types.UnionType):
        return any(matches(value, option) for option in arguments)
    if origin is list:
        return isinstance(value, list) and all(matches(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches(item, arguments[1]) for item in value.values())
    if is_typeddict(kind):
        hints = _hints(kind)
        return isinstance(value, dict) and all(
            matches(value[key], hint) if key in value else key not in kind.__required_keys__
            for key, hint in hints.items()
        )
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if kind in (int, float):
        number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return isinstance(value, kind)


def describe(kind: Any) -> str:
    """A type, described for an error message."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return str(arguments[1].description)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in arguments if option is not types.NoneType)
    if origin is list:
        return f"a list, each item {describe(arguments[0])}"
    names = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
    return names.get(kind, "an object")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
