"""Reading what the previous format wrote: old log keys under their new names, health sentences as records.

Format 1 (version 0.1.0) wrote health as sentences and some keys under other names. Everything older is not read.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED_KEYS = {
    "groups/all_right": "groups/all_correct",
    "accuracy/tolerant": "accuracy/flexible",
    "tolerant": "flexible",
    "tolerant_accuracy": "flexible_accuracy",
    "tolerant_ci_low": "flexible_ci_low",
    "tolerant_ci_high": "flexible_ci_high",
}
"""Keys of logs, completions and evaluation metrics: format 1 -> now. In ``eval_log.jsonl`` ``LABEL_eval/`` precedes
them."""
_LEVELS = ("alarm", "warning")


def current_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A log row of this or the previous format, as this format writes it."""
    renamed = {_current_key(key): value for key, value in row.items()}
    if "health" in renamed:
        renamed["health"] = current_health(renamed["health"])
    return renamed


def current_health(health: Any) -> list[dict[str, Any]]:
    """Health records ``{"code", "level", "message", ...}``; a sentence of format 1 has the code ``""``."""
    found = []
    for entry in health if isinstance(health, list) else []:
        if isinstance(entry, str):
            level, _, message = entry.partition(": ")
            known = level in _LEVELS and message
            found.append({"code": "", "level": level if known else "info", "message": message if known else entry})
        elif isinstance(entry, dict):
            found.append(entry)
    return found


def _current_key(key: str) -> str:
    label, separator, name = key.rpartition("_eval/")
    return label + separator + RENAMED_KEYS.get(name, name)
