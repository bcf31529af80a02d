"""Reading what the previous format wrote: old log keys under their new names, health sentences as records.

Format 1 (version 0.1.0) wrote health as sentences and some keys under other names. Everything older is not read.
Standard library only.
"""

from __future__ import annotations

import re
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
_PARTIAL = re.compile(r"(\d+) of (\d+) samples")


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


def current_table_row(row: Mapping[str, str]) -> dict[str, str]:
    """A row of ``consolidated_metrics.csv`` of this or the previous format, as this format writes it.

    Format 1 had no ``done``, ``total``, ``error`` and ``code`` columns: its ``status`` was ``ok``, ``partial: 3 of 12
    samples`` or ``failed: REASON``.
    """
    found: dict[str, str] = current_row(row)
    if "done" in found:
        return found
    status, _, detail = found["status"].partition(": ")
    counts = _PARTIAL.fullmatch(detail) if status == "partial" else None
    samples = found.get("n", "") if status == "ok" else ""
    done, total = counts.groups() if counts else (samples, samples)
    error = "" if counts else detail
    return {**found, "status": status, "done": done, "total": total, "error": error, "code": ""}


def _current_key(key: str) -> str:
    label, separator, name = key.rpartition("_eval/")
    return label + separator + RENAMED_KEYS.get(name, name)
