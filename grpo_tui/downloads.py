"""Where this machine keeps what is saved."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """The downloads folder, or the home directory without one."""
    import platformdirs

    downloads = Path(platformdirs.user_downloads_dir())
    return downloads if downloads.is_dir() else Path.home()


def new_file(name: str) -> Path:
    """A file in the folder that does not exist yet, of a name that is one on any machine. Raises FileExistsError."""
    plain = "".join(c if c.isalnum() or c in "._-+=" else "_" for c in name)[-120:].lstrip(".") or "_"
    stem, suffix = os.path.splitext(plain)
    place = folder()
    for number in range(1, 1_000):
        file = place / f"{stem}{f'-{number}' if number > 1 else ''}{suffix}"
        if not os.path.lexists(file):
            return file
    raise FileExistsError(17, "too many files of this name", str(file))
