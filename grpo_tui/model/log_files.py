"""The files of a run that can be shown as logs. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import RETRY_S, waiting_words

FILES_S = 5.0
"""Interval between requests for the list of files of a live run …"""
FILES_REST_S = 30.0
"""… and of another one."""


@dataclass
class LogFiles:
    """The list of files of one run."""

    run: str
    files: list[dict[str, Any]] = field(default_factory=list)
    left_off: int = 0
    is_answered: bool = False
    problem: str = ""
    asked_at: float | None = None
    _next_at: float = 0.0

    def request(self, is_live: bool, now: float | None = None) -> bool:
        """Whether a request for the list is due."""
        now = monotonic() if now is None else now
        if self.asked_at is not None or now < self._next_at:
            return False
        self.asked_at = now
        self._next_at = now + (FILES_S if is_live else FILES_REST_S)
        return True

    def answer(self, reply: Mapping[str, Any]) -> None:
        self.files, self.left_off = reply["files"], reply["left_off"]
        self.is_answered, self.problem, self.asked_at = True, "", None

    def fail(self, message: str) -> None:
        self.problem, self.asked_at = message, None
        self._next_at = min(self._next_at, monotonic() + RETRY_S)

    def instead(self) -> str:
        """What is said without a list of files: what is waited for, or why it failed."""
        return waiting_words(self.asked_at, self.problem)

    def name(self, path: str) -> str:
        """Short name of a file."""
        return next((file.get("name", path) for file in self.files if file["path"] == path), path.rpartition("/")[2])
