"""How much slower than a quiet machine the machine of a test run may be."""

from __future__ import annotations

PATIENCE = 4.0
"""Factor on every time after which a test gives up: tests assert behavior, and end when there is none."""
