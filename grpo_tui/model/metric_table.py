"""The metrics of a run, as the box lists them. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import LIVE_S, SOON_S, Asking
from remote.protocol.rows import UNREADABLE


class MetricTable:
    """The metrics that a run logs, with their ranges, and when the box is to be asked for them."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.rows: list[dict[str, Any]] = []
        self.asking = Asking(now)
        self._is_coarse = True

    def request(self, is_live: bool) -> bool:
        """Whether to ask now; the request is in flight then. A live run's metrics change."""
        return self.asking.begin("metrics", SOON_S if self._is_coarse else LIVE_S if is_live else None)

    @property
    def is_known(self) -> bool:
        """Whether the whole log was read for it."""
        return not self._is_coarse

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to ``metrics``."""
        self.asking.end("metrics")
        self.rows = [row for row in reply["metrics"] if UNREADABLE not in row]
        self._is_coarse = reply["state"] != "whole"

    def recall(self, reply: Mapping[str, Any]) -> None:
        """Show the list that the laptop kept, until the box answers."""
        self.rows = [row for row in reply["metrics"] if UNREADABLE not in row]

    def invalidate(self) -> None:
        """The log was replaced: ask anew."""
        self.asking.forget()
