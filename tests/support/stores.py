"""Stores of every kind for the tests of backups, and contents to put there."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from grpo_train.backup.backup_yaml import default_path
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.store import Piece, Store

KINDS = ["folder"]


@contextmanager
def new_store(kind: str, folder: Path) -> Iterator[Store]:
    """An empty store; a server keeps its files in ``folder``, which is created."""
    folder.mkdir(parents=True)
    assert kind == "folder"
    yield FolderStore(folder)


@contextmanager
def other_disk() -> Iterator[Path]:
    """An empty directory that is not on the disk of the temporary files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="grpo-") as folder:
        yield Path(folder)


def write_destinations(*destinations: dict[str, str]) -> Path:
    """Describe destinations in the user's ``backup.yaml``; the test has a home of its own."""
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"destinations": list(destinations)}))
    return path


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat."""
    return random.Random(seed).randbytes(size)


def piece_of(path: Path, data: bytes) -> Piece:
    """A whole file with this content, as a piece."""
    path.write_bytes(data)
    return Piece(path, 0, len(data), hashlib.sha256(data).hexdigest())


def whole(store: Store, key: str) -> bytes:
    """All bytes of an object."""
    return b"".join(store.read(key))
