"""The files of a run that can be shown as logs. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.model.asking import LIVE_S, REST_S, Asking


@dataclass
class LogFiles:
    """The list of files of one run."""

    run: str
    files: list[dict[str, Any]] = field(default_factory=list)
    left_off: int = 0
    asking: Asking = field(default_factory=Asking)

    def request(self, is_live: bool) -> bool:
        """Whether to ask for the list now; the request is in flight then."""
        return self.asking.begin("files", LIVE_S if is_live else REST_S)

    def answer(self, reply: Mapping[str, Any]) -> None:
        self.files, self.left_off = reply["files"], reply["left_off"]
        self.asking.end("files")

    def instead(self, none: str) -> str:
        """What is said without a file: ``none`` if the run has none, else what is waited for, or why it failed."""
        return none if self.asking.is_answered and not self.asking.problem else self.asking.instead()

    def name(self, path: str) -> str:
        """Short name of a file."""
        return next((file.get("name", path) for file in self.files if file["path"] == path), path.rpartition("/")[2])
