"""The identity of a run, an evaluation or another directory of a root. Standard library only.

Names repeat: two boxes may both have a run ``demo``. The identity is the same wherever a copy of the directory is.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, read_bytes

LENGTH = 16
"""Hex digits."""
_WRITTEN_ONCE = ("launch.json", "eval_config.yaml")


def identity_of(data: bytes) -> str:
    """The identity that these bytes stand for: the first 16 hex digits of their SHA-256."""
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def directory_identity(folder: Path) -> str:
    """Identity of a directory: that of its ``launch.json``, else ``eval_config.yaml``, else its sorted list of paths,
    sizes and SHA-256, for which every file is read.

    Raises Unreadable and OSError.
    """
    for name in _WRITTEN_ONCE:
        if (data := read_bytes(folder / name, MAX_RUN_FILE_BYTES)) is not None:
            return identity_of(data)
    lines = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink():
                lines.append(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0{sha256(path)}\n")
    return identity_of("".join(sorted(lines)).encode(errors="surrogateescape"))
