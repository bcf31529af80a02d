"""Modes of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def modes_below(folder: Path) -> dict[str, str]:
    """Relative path to mode (such as ``-rw-------``) of everything below a directory, and of itself as "."."""
    found = {".": stat.filemode(os.lstat(folder).st_mode)}
    for path in folder.rglob("*"):
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode):
            found[str(path.relative_to(folder))] = stat.filemode(mode)
    return found
