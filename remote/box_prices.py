"""``price_per_hour`` and ``prices`` of a box in boxes.yaml."""

from __future__ import annotations

from datetime import date
from typing import Any

from remote.base import BoxesError


def read_price(value: Any, where: str) -> float | None:
    """``price_per_hour``. Raises BoxesError."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0):
        return None if value is None else float(value)
    raise BoxesError(f"{where}: 'price_per_hour' must be a number (dollars), not {value!r}")


def read_prices(value: Any, where: str) -> dict[str, float]:
    """``prices``: YAML reads an unquoted day as a date. Raises BoxesError."""
    found = {}
    for day, price in value.items() if isinstance(value, dict) else [("", None)]:
        try:
            date.fromisoformat(str(day))
        except ValueError:
            price = None
        if isinstance(price, bool) or not isinstance(price, (int, float)) or price < 0:
            raise BoxesError(f"{where}: 'prices' must be days with dollars per hour, such as {{2026-09-01: 2.49}}")
        found[str(day)] = float(price)
    return found
