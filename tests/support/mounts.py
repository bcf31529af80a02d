"""File systems that refuse something, mounted over a directory. Needs the superuser."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

KINDS = {"read-only": "ro", "full": "size=64k", "noexec": "noexec"}


@contextmanager
def mounted(folder: Path, kind: str) -> Iterator[None]:
    """A file system over ``folder`` that is read-only, full or noexec; skips the test where none can be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", KINDS[kind], "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system")
    try:
        if kind == "full":
            with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
                while file.write(b"x" * 4_096):
                    pass
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
