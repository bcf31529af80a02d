"""How much slower than a quiet machine the machine of a test run may be, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tests.support.clock import TestClock

T = TypeVar("T")
PATIENCE = 4.0
"""Factor on every time after which a test gives up: tests assert behavior, and end when there is none."""


def eventually(
    condition: Callable[[], T],
    timeout: float = 15.0,
    what: str = "",
    clock: TestClock | None = None,
    rest_s: float = 0.02,
) -> T:
    """Wait until a condition returns something true, and return it: for what sends no event to wait for.

    Between two looks, a second of ``clock`` passes. The longer it has waited, the longer it rests, up to ``rest_s``.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < PATIENCE * timeout, f"timed out: {what or condition}"
        if clock is not None:
            clock.advance(1.0)
        time.sleep(min(max(waited / 20, 0.001), rest_s))
    return value
