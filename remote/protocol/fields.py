"""Types of the fields that a box sends: bounded numbers, printable texts, times."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from grpo_train.run_dir.files import parse_time
from remote.protocol.intake import Rule

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


Label: TypeAlias = Annotated[str, Rule(f"at most {NAME_LENGTH} printable characters", _is_label)]
Name: TypeAlias = Annotated[str, Rule(f"1 to {NAME_LENGTH} printable characters", lambda v: bool(v) and _is_label(v))]
Quantity: TypeAlias = Annotated[float, Rule("a number within ±10^15", lambda value: abs(value) <= 1e15)]
Count: TypeAlias = Annotated[float, Rule("a number from 0 to 10^15", lambda value: 0 <= value <= 1e15)]
Metric: TypeAlias = float | Annotated[str, Rule("NaN or Infinity", lambda value: value in SPECIAL)]
ConfigValue: TypeAlias = Label | float | bool | None
Time: TypeAlias = Annotated[str, Rule("a time such as 2026-11-22T08:30:00Z", _is_time)]
