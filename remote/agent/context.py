"""The box as one client configured it: root, checkout, and where commands run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_train.run_dir import ROOT_VARIABLE, resolve_root
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.umask import PRIVATE, UMASK_VARIABLE
from remote.agent.environment import expand
from remote.protocol import Settings


@dataclass(frozen=True)
class BoxContext:
    """One box as one client sees it."""

    settings: Settings
    root: Path
    given_repo: Path | None
    """``repo`` of boxes.yaml."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """``env`` of boxes.yaml, expanded on this box."""
    worktree: Path | None = None
    """The working tree that a session imports (:mod:`remote.agent.code`)."""
    clock: Clock = CLOCK

    @classmethod
    def from_settings(cls, settings: dict[str, Any], clock: Clock = CLOCK) -> BoxContext:
        """From the settings of a hello; unknown keys (of a newer client) are ignored."""
        known = Settings(**{key: value for key, value in settings.items() if key in Settings.__dataclass_fields__})
        repo = Path(known.repo).expanduser() if known.repo else None
        return cls(known, resolve_root(known.root or None), repo, expand(known.env, os.environ), clock=clock)

    @property
    def is_synced(self) -> bool:
        """Whether the code comes from ``grpo-tui sync``: with ``code: sync``, and where boxes.yaml names no code."""
        settings = self.settings
        return settings.code == "sync" or not (settings.code or settings.repo)

    @property
    def synced_checkout(self) -> Path:
        """Where ``grpo-tui sync`` has its checkout."""
        return self.given_repo or Path("~/.grpo/code").expanduser()

    @property
    def repo(self) -> Path | None:
        """The checkout with the configs and the engine; None where none is known."""
        found = self.synced_checkout
        return found if self.given_repo or self.settings.code == "sync" or found.is_dir() else None

    @property
    def directory(self) -> Path:
        """Working directory of the engine's commands: the working tree or the checkout, else the root."""
        return self.worktree or (self.repo if self.repo and self.repo.is_dir() else self.root)

    def at(self, worktree: Path) -> BoxContext:
        """This box for a session that imports a working tree."""
        return replace(self, worktree=worktree)

    def session_environment(self) -> dict[str, str]:
        """Variables added to a session. They appear in tmux's command line, so no secret belongs here."""
        own = {ROOT_VARIABLE: str(self.root), UMASK_VARIABLE: self.settings.umask or PRIVATE}
        if self.worktree is not None:
            users = self.variables.get("PYTHONPATH")
            own["PYTHONPATH"] = f"{self.worktree}{os.pathsep}{users}" if users else str(self.worktree)
        return {**self.variables, **own}

    def relative(self, path: Path) -> str:
        """A path relative to the root, where it is inside; else as it is."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
