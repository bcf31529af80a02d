"""Notices a stage that hangs: no step, evaluation chunk, written checkpoint file or growing download. Torch-free."""

from __future__ import annotations

import os
import statistics
from collections import deque
from pathlib import Path
from typing import Literal

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import stat_of
from grpo_train.run_dir.signs import DOWNLOAD, read_sign

SHORTEST_S = 600.0
"""Least time without a sign after which ``run.stall_timeout: auto`` calls a stage stalled."""
STEPS = 10
"""``auto``: this many median steps, or evaluation chunks, if that is longer."""
FIRST_S = 3600.0
"""Least time before the first step or chunk: models are loaded and compiled."""
CHECK_S = 1.0
LONGEST_CHECK_S = 5.0
"""Time that a check accounts for at most: a supervisor that was suspended itself has seen nothing in between."""


class Watchdog:
    """Watches one stage after the other; durations of steps are remembered over the stages of a kind."""

    def __init__(self, run: RunDir, timeout_s: float | Literal["auto"], clock: Clock = CLOCK) -> None:
        self._run, self._timeout_s, self._clock = run, timeout_s, clock
        self._intervals: dict[str, deque[float]] = {}
        self._kind = ""
        self.start("")

    @property
    def signs_file(self) -> Path:
        return signs_file(self._run)

    def start(self, kind: str) -> None:
        """Begin to watch a stage of this kind."""
        self._kind = kind
        self._silent_s = self._since_unit_s = 0.0
        self._checked_at = self._clock.monotonic()
        self._has_worked = False
        """Whether this stage has made a step or chunk."""
        self._seen: tuple[object, ...] = ()
        self._unit: object = None

    def silent_for(self, printed: int) -> float | None:
        """Seconds since the last sign of life if that is too long; None otherwise.

        ``printed``: lines that the stage has printed. They are a sign of life of commands, not of training: a process
        may print warnings for ever.
        """
        now = self._clock.monotonic()
        if now - self._checked_at < CHECK_S and self._seen:
            return None
        passed = min(now - self._checked_at, LONGEST_CHECK_S)
        self._checked_at = now
        self._silent_s += passed
        self._since_unit_s += passed
        seen, unit = self._signs(printed)
        unit = self._unit if unit is None else unit
        if self._seen and unit != self._unit:
            if self._has_worked:
                self._intervals.setdefault(self._kind, deque(maxlen=50)).append(self._since_unit_s)
            self._has_worked, self._since_unit_s = True, 0.0
        if seen != self._seen:
            self._silent_s = 0.0
        self._seen, self._unit = seen, unit
        return self._silent_s if self._silent_s >= self.limit_s else None

    @property
    def limit_s(self) -> float:
        """Time without a sign of life after which this stage counts as stalled."""
        known = self._intervals.get(self._kind)
        measured = max(SHORTEST_S, STEPS * statistics.median(known)) if known else SHORTEST_S
        limit = measured if self._timeout_s == "auto" else self._timeout_s
        works = self._has_worked and self._kind in ("train", "eval")
        return limit if works else max(limit, FIRST_S)

    def _signs(self, printed: int) -> tuple[tuple[object, ...], object]:
        """All that counts as a sign of life, and what counts as a step or chunk."""
        kind, detail, text = read_sign(self.signs_file)
        files = (stat_of(self._run.logs / "train_log.jsonl"), stat_of(self._run.events_file))
        log, events = (facts.st_size if facts else 0 for facts in files)
        grown = _tree_size(Path(detail)) if kind == DOWNLOAD and detail else 0
        unit = log if self._kind == "train" else text if kind == "chunk" else None
        return (text, log, events, grown, printed if self._kind not in ("train", "eval") else 0), unit


def signs_file(run: RunDir) -> Path:
    """Where the stages of a run write their signs of life."""
    return run.path / "control" / "signs"


def _tree_size(folder: Path) -> int:
    """Bytes on disk below a folder (files of a download may have their final length from the beginning)."""
    files = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return 512 * sum(facts.st_blocks for file in files if (facts := stat_of(file, follow=False)))
