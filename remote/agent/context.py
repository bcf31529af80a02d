"""The box as one client configured it: root, checkout, and where commands run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir import ROOT_VARIABLE, resolve_root
from grpo_train.run_dir.umask import PRIVATE, UMASK_VARIABLE
from remote.protocol import Settings


@dataclass(frozen=True)
class BoxContext:
    """One box as one client sees it."""

    settings: Settings
    root: Path
    repo: Path | None

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> BoxContext:
        """From the settings of a hello; unknown keys (of a newer client) are ignored."""
        known = Settings(**{key: value for key, value in settings.items() if key in Settings.__dataclass_fields__})
        repo = Path(known.repo).expanduser() if known.repo else None
        return cls(known, resolve_root(known.root or None), repo)

    @property
    def directory(self) -> Path:
        """Working directory of the engine's commands: the checkout, else the root."""
        return self.repo if self.repo and self.repo.is_dir() else self.root

    def session_environment(self) -> dict[str, str]:
        """Variables added to a session. They appear in tmux's command line, so no secret belongs here."""
        return {ROOT_VARIABLE: str(self.root), UMASK_VARIABLE: self.settings.umask or PRIVATE}

    def relative(self, path: Path) -> str:
        """A path relative to the root, where it is inside; else as it is."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
