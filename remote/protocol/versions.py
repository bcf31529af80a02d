"""Versions of the engine that this program works with."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_train.run_dir.version import FORMAT, VERSION

READABLE_FORMATS = (FORMAT - 1, FORMAT)
"""See :mod:`grpo_train.run_dir.formats`."""


@dataclass(frozen=True)
class EngineVersion:
    """Version of a box's engine and the format of what it writes; ``("", 0)`` = unknown."""

    version: str
    format: int

    def mismatch(self) -> str:
        """Why this program cannot read what the engine writes, e.g. ``box engine 0.1.0, app 0.3.0``; "" if it can."""
        if self == UNKNOWN or self.format in READABLE_FORMATS:
            return ""
        return f"box engine {self.version}, app {VERSION}"

    @property
    def is_older(self) -> bool:
        """Whether the engine is older than this program."""
        return self.format < FORMAT

    def upgrade_hint(self, repo: str) -> str:
        """The command that ends a mismatch: on the box where its engine is older, else on the laptop."""
        if self.format > FORMAT:
            return "upgrade this program: uv tool upgrade grpo-tui (in a checkout: git pull && make setup)"
        return f"on the box: cd {repo or 'CHECKOUT'} && git pull && make setup-box"


OLDEST = EngineVersion("0.1.0", 1)
"""The only version of format 1, which carries neither."""
UNKNOWN = EngineVersion("", 0)
