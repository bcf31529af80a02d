"""Lines of a log and completions as rows, by the rules of the gate on the laptop."""

from __future__ import annotations

import json
import math
from typing import Any

from grpo_train.run_dir.files import parse_time
from grpo_train.run_dir.formats import current_row

MAX_LINE = 1 << 20
"""Bytes of a line; a longer one is skipped."""
MAX_DEPTH = 32
MAX_ITEMS = 10_000
LAST_STEP = 10**12
MISSING = -1.7976931348623157e308
"""Stands in a column for a row that lacks the metric: the lowest double, which no metric has."""
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_INTEGER = 2**63


def _integer(text: str) -> float:
    value = int(text) if len(text) < 21 else _MAX_INTEGER if text[0] != "-" else -_MAX_INTEGER
    return value if -_MAX_INTEGER < value < _MAX_INTEGER else math.copysign(math.inf, value)


_decode = json.JSONDecoder(parse_int=_integer).decode


def read_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for one that cannot be read."""
    try:
        row = _decode(line.decode())
        suspect = len(line) > 2 * MAX_ITEMS or line.count(b"[") + line.count(b"{") > MAX_DEPTH
        return row if isinstance(row, dict) and not (suspect and _is_too_large(row, MAX_DEPTH)) else None
    except (ValueError, RecursionError):
        return None


def _is_too_large(value: Any, depth: int) -> bool:
    if not isinstance(value, (list, dict)):
        return False
    if depth == 0 or len(value) > MAX_ITEMS:
        return True
    items = value if isinstance(value, list) else list(value.values())
    return any(_is_too_large(item, depth - 1) for item in items)


def number(value: Any) -> float:
    """A value as a number of a column: MISSING if it is none, NaN and the infinities as they are."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return _SPECIAL.get(value, MISSING) if isinstance(value, str) else MISSING


def logged_number(value: float) -> float | str | None:
    """A number of a column as the logs write it; None for MISSING."""
    if value == MISSING:
        return None
    return value if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def step_of(row: dict[str, Any]) -> float | None:
    """The step of a row; None without a usable one."""
    step = number(row.get("step"))
    return float(int(step)) if abs(step) <= LAST_STEP else None


def time_of(row: dict[str, Any]) -> float:
    """Seconds since the epoch; MISSING without a usable time."""
    try:
        time = parse_time(str(row["time"]))
    except (KeyError, ValueError, OverflowError, OSError):
        return MISSING
    return time if abs(time) <= 1e15 else MISSING


RENAMED = {"index": "group", "question": "prompt", "metrics": "rewards"}
"""Keys of an evaluation's row: a group is a problem."""


def read_completion(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that cannot be read. A row of an evaluation that has no score is worth 1 if it is
    correct, else 0."""
    row = read_line(line)
    if row is None:
        return None
    row = current_row(row)
    if "question" not in row or "prompt" in row:
        return row
    row = {RENAMED.get(key, key): value for key, value in row.items()}
    score, correct = row.get("score"), row.get("correct")
    row["reward"] = score if score is not None else float(correct) if isinstance(correct, bool) else None
    return row
