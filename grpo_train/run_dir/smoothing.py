"""Automatic smoothing of curves: the same in the app, on the box and in reports."""

from __future__ import annotations

SHARE = 40
"""The moving average is over this part of the steps …"""
LEAST = 10
"""… and over no fewer: single steps of a short run differ by chance …"""
LEAST_ROWS = 2 * LEAST
"""… where the range has at least this many rows."""


def automatic_steps(rows: int) -> int:
    """Steps of the moving average for a range of ``rows`` rows; 0 = none."""
    return max(LEAST, rows // SHARE) if rows >= LEAST_ROWS else 0
