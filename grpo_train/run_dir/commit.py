"""The commit of the checkout that this code runs from. Standard library only."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


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
    return head if _HASH.fullmatch(head) else ""


def _resolve(name: str, folder: Path, common: Path) -> str:
    """The commit of a branch; "" for one without commits. Raises OSError."""
    for place in (folder, common):
        if (place / name).is_file():
            return (place / name).read_text().strip()
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), "")
