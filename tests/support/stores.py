"""Stores of every kind for the tests of backups, and contents to put there."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from grpo_train.backup.backup_yaml import default_path
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.s3 import S3Store
from grpo_train.backup.store import FilePiece, ObjectStore
from tests.support.s3_servers import KEY_ID, SECRET, Server, access, server

KINDS = ["folder", "rclone", "moto"]


def new_store(kind: str, folder: Path, **options: Any) -> ObjectStore:
    """An empty store of a kind, with a limit or a clock; that of ``folder`` has its files there."""
    if kind == "folder":
        folder.mkdir(parents=True)
        return FolderStore(folder, **options)
    running = server(kind)
    return bucket_store(running, running.new_bucket(), **options)


def bucket_store(running: Server, bucket: str, *, port: int = 0, part: int = 5 << 20, **arguments: Any) -> S3Store:
    """A store in a bucket, by the server's port or by another one that leads there."""
    usual = {
        "access": access(),
        "prefix": "some folder/runs",
        "endpoint": f"https://127.0.0.1:{port or running.port}",
        "ca_file": running.ca_file,
    }
    return S3Store(**{**usual, "bucket": bucket, "region": "us-east-1", "part": part, **arguments})


@contextmanager
def other_disk(path: Path) -> Iterator[Path]:
    """An empty directory that is not on the disk of a path: in memory or, beside what is in memory, not."""
    there = next(place for place in ("/dev/shm", "/var/tmp") if Path(place).stat().st_dev != path.stat().st_dev)
    with tempfile.TemporaryDirectory(dir=there, prefix="grpo-") as folder:
        yield Path(folder)


@contextmanager
def on_a_disk(path: Path) -> Iterator[Path]:
    """The path, or an empty directory on a disk where the path is in memory."""
    if os.major(path.stat().st_dev):
        yield path
    else:
        with other_disk(path) as folder:
            yield folder


def write_destinations(*destinations: dict[str, str]) -> Path:
    """Describe destinations in the user's ``backup.yaml``; the test has a home of its own."""
    path = default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"destinations": list(destinations)}))
    return path


def describe_bucket(bucket: str, running: Server, *, port: int = 0, key_id: str = KEY_ID, secret: str = SECRET) -> Path:
    """Describe a bucket as the only destination, with credentials in ``~/.lambda_s3.env``, which is returned."""
    endpoint = f"https://127.0.0.1:{port or running.port}"
    write_destinations({"name": "s3", "bucket": bucket, "prefix": "some folder", "ca_file": running.ca_file})
    source = Path("~/.lambda_s3.env").expanduser()
    source.write_text(
        f"export AWS_ACCESS_KEY_ID={key_id}\nexport AWS_SECRET_ACCESS_KEY='{secret}'\nAWS_ENDPOINT_URL={endpoint}\n"
    )
    source.chmod(0o600)
    return source


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat."""
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


def piece_of(path: Path, data: bytes) -> FilePiece:
    """A whole file with this content, as a piece."""
    path.write_bytes(data)
    return FilePiece(path, 0, len(data), hashlib.sha256(data).hexdigest())


def whole(store: ObjectStore, key: str, start: int = 0) -> bytes:
    """All bytes of an object, from ``start`` on."""
    return b"".join(map(bytes, store.read(key, start)))
