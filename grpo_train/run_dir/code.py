"""The code of a run: the commit that it was started with, and the changes beside it. Standard library only.

``launch.json`` has it under ``code`` for the launch; ``code.json`` in the run directory, if there is one, has the code
that the last resume took instead. ``code-HASH.patch`` holds changes that were in no commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import atomic_write, read_json, to_json

# the commit of the checkout that this code runs from -------------------------------------------------------

CHECKOUT = Path(__file__).resolve().parents[2]
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def commit_of(checkout: Path = CHECKOUT) -> str:
    """The commit that is checked out; "" outside a Git checkout. Its files are read: Git need not be installed."""
    try:
        folder = checkout / ".git"
        if folder.is_file():  # a worktree
            folder = checkout / folder.read_text().removeprefix("gitdir:").strip()
        shared = folder / "commondir"
        common = folder / shared.read_text().strip() if shared.is_file() else folder
        head = (folder / "HEAD").read_text().strip()
        name = head.removeprefix("ref:").strip()
        if name != head:
            head = _resolve(name, folder, common)
    except (OSError, ValueError):
        return ""
    return head if _COMMIT.fullmatch(head) else ""


def _resolve(name: str, folder: Path, common: Path) -> str:
    """The commit of a branch; "" for one without commits. Raises OSError."""
    for place in (folder, common):
        if (place / name).is_file():
            return (place / name).read_text().strip()
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), "")


CODE_FILE = "code.json"
SHORT = 10
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Code:
    """A commit of a checkout of grpo-tui, with or without a patch."""

    commit: str
    """Its whole hash."""
    patch: str = ""
    """SHA-256 of the patch with changes that were not committed; "" = none."""

    def __str__(self) -> str:
        """``1a2b3c4d5e``, or ``1a2b3c4d5e with changes 9f8e7d6c5b``."""
        return self.commit[:SHORT] + (f" with changes {self.patch[:SHORT]}" if self.patch else "")

    @property
    def folder(self) -> str:
        """Name of its working tree."""
        return "-".join(filter(None, (self.commit, self.patch[:SHORT])))

    @property
    def patch_file(self) -> str:
        """Name of its patch in a run directory."""
        return f"code-{self.patch[:SHORT]}.patch"

    @classmethod
    def from_json(cls, found: Any) -> Code | None:
        """The code of a record; None for anything that is not one."""
        if not isinstance(found, Mapping):
            return None
        commit, patch = found.get("commit"), found.get("patch", "")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or not isinstance(patch, str):
            return None
        return cls(commit, patch) if not patch or _HASH.fullmatch(patch) else None

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def read_code(run: Path, launch: Mapping[str, Any]) -> Code | None:
    """The code that a run was last started with; None where it is not known."""
    return Code.from_json(read_json(run / CODE_FILE)) or Code.from_json(launch.get("code"))


def write_code(run: Path, code: Code) -> None:
    """Record that a resume takes this code."""
    atomic_write(run / CODE_FILE, to_json(code.to_json()) + "\n")
