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


@contextmanager
def small_disk(folder: Path, size: int = 2 << 20, files: int = 0) -> Iterator[Path]:
    """An empty file system of ``size`` bytes over ``folder``; skips the test where none can be mounted.

    ``files``: how many it can have; 0 = any number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={files}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Mount a :func:`small_disk` again, without writing."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def make_writable(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a file system to its last block; returns the file to remove."""
    filler = folder / "filler"
    for block in (1 << 20, 4_096, 1):
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(b"x" * block):
                pass
    return filler
