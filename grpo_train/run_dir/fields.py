"""Typed fields of a JSON object that any program may have written; a wrong type raises Unreadable.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.safe_json import Unreadable, type_name

MAX_TEXT = 255
MAX_INTEGER = 2**63 - 1


def text(row: Mapping[str, Any], key: str) -> str | None:
    """A short text; None if it is missing or null."""
    value = row.get(key)
    if value is None or (isinstance(value, str) and len(value) <= MAX_TEXT):
        return value
    raise _wrong(key, value, f"a text of at most {MAX_TEXT} characters")


def integer(row: Mapping[str, Any], key: str) -> int | None:
    """An integer of 64 bits; None if it is missing or null."""
    value = row.get(key)
    if value is None or (type(value) is int and abs(value) <= MAX_INTEGER):
        return value
    raise _wrong(key, value, "an integer of 64 bits")


def number(row: Mapping[str, Any], key: str) -> float | str | None:
    """A number as logs have it ("NaN" and the infinities are texts); None if it is missing or null."""
    value = row.get(key)
    if value is None or (to_float(value) is not None and (type(value) is not int or abs(value) <= MAX_INTEGER)):
        return value
    raise _wrong(key, value, "a number")


def error(row: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """An error with a ``summary``; None if it is missing or null."""
    value = row.get(key)
    if value is None or (isinstance(value, dict) and isinstance(value.get("summary"), str)):
        return value
    raise _wrong(key, value, "an object with a 'summary'")


def check_launch_fields(launch: Mapping[str, Any]) -> None:
    """Raise Unreadable for a wrong type of what a run is started with."""
    for key in ("ckpt", "config_name", "config_text"):
        if not isinstance(launch.get(key), (str, type(None))):
            raise _wrong(key, launch[key], "a text")
    integer(launch, "nproc")
    overrides = launch.get("overrides") or []
    if not isinstance(overrides, list) or not all(isinstance(each, str) for each in overrides):
        raise _wrong("overrides", overrides, "an array of texts")


def alarm(row: Mapping[str, Any]) -> str | None:
    """Message of the first alarm in the health of a step; None without one. What is malformed is not an alarm."""
    health = row.get("health")
    for record in health if isinstance(health, list) else ():
        if isinstance(record, dict) and record.get("level") == "alarm" and isinstance(record.get("message"), str):
            return " ".join(str(record["message"]).split())[:MAX_TEXT]
    return None


def _wrong(key: str, value: Any, wanted: str) -> Unreadable:
    given = f"{value!r:.40}" if isinstance(value, (str, int, float)) else type_name(value)
    return Unreadable(f"'{key}' must be {wanted}, not {given}")
