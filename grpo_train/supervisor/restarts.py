"""Whether a crashed stage is tried again, and after what wait: a pure rule over the crashes so far. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RETRIED_CODES = frozenset({
    "internal", "io", "disk_full", "read_only", "reward_raised", "reward_timeout", "stalled", "unreachable",
    "nodes_missing",
})  # fmt: skip
"""Errors that another attempt may not have. Every other code is of a config, data, model or checkpoint as it is."""


class Decision(NamedTuple):
    """What to do about a crash."""

    wait_s: float | None
    """Seconds until the next attempt; None = no further attempt."""
    reason: str = ""
    """Why there is none, where the number of restarts is not the reason."""


@dataclass
class Restarts:
    """The crashes of one supervised run."""

    limit: int
    """``run.max_restarts``: attempts in a row without progress."""
    waits: Sequence[float]
    """``run.restart_wait``: seconds before each attempt; the last one is used from there on."""
    progress_steps: int
    """``run.save_every``: after this many steps, a run counts as recovered."""
    count: int = 0
    """Restarts since the run last made progress."""
    total: int = 0
    """Restarts since the supervisor started."""
    _from_step: int = 0
    _last: tuple[str, int] | None = field(default=None, repr=False)

    def decide(self, error: Mapping[str, Any], step: int, resumes_from: int) -> Decision:
        """Count a crash at logged step ``step``; an attempt would continue from the checkpoint ``resumes_from``."""
        if step - self._from_step >= self.progress_steps:
            self.count = 0
        crash = (_exception(error), step)
        repeated, self._last = bool(crash[0]) and crash == self._last, crash
        if error.get("code") not in RETRIED_CODES:
            return Decision(None, "no restart: another attempt would fail in the same way")
        if repeated:
            return Decision(None, f"no restart: the same error came twice at step {step}")
        if self.count >= self.limit:
            return Decision(None)
        wait_s = self.waits[min(self.count, len(self.waits) - 1)] if self.waits else 0.0
        self.count += 1
        self.total += 1
        self._from_step = resumes_from
        return Decision(wait_s)


def _exception(error: Mapping[str, Any]) -> str:
    """An exception without the addresses that differ between attempts; "" for a process that was killed or hung."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(error.get("exception") or ""))
