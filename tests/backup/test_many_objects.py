"""Listings in pages, deletions in batches, and the limit of the rate."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from grpo_train.backup import s3_requests
from grpo_train.backup.content import RateLimit
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.s3_requests import Body, Timing
from grpo_train.backup.store import Store
from tests.support.s3_front import Front
from tests.support.s3_servers import running_rclone
from tests.support.stores import bucket_store, content, piece_of, whole

COUNT = 2_300


def many(folder: Path) -> list[str]:
    """Make files in folders; returns their keys in order."""
    keys = sorted(f"{number % 3}/it's {number:05}" for number in range(COUNT))
    for key in keys:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return keys


def listed_and_deleted(store: Store, keys: list[str]) -> None:
    assert [entry.key for entry in store.entries("")] == keys
    assert [entry.key for entry in store.entries("1/")] == [key for key in keys if key.startswith("1/")]
    assert store.folders("") == ["0", "1", "2"]
    store.delete(keys[:-1])
    assert [entry.key for entry in store.entries("")] == keys[-1:]


def test_a_bucket_is_listed_in_pages(tmp_path: Path) -> None:
    keys = many(tmp_path / "bucket/prefix")
    with running_rclone(tmp_path) as running, Front(running) as front:
        store = bucket_store(running, "bucket", prefix="prefix", port=front.port)
        assert len(list(store.entries(""))) == COUNT
        assert len(front.seen) == 3, "a page has 1,000 objects"
        assert ["continuation-token=" in path for _, path in front.seen] == [False, True, True]
        listed_and_deleted(store, keys)


def test_a_folder_of_many_files_is_listed(tmp_path: Path) -> None:
    keys = many(tmp_path / "disk")
    listed_and_deleted(FolderStore(tmp_path / "disk"), keys)


def test_threads_share_a_limit() -> None:
    limit = RateLimit(1_000_000)
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: [limit.take(25_000) for _ in range(4)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.375  # the first bytes pass at once


def test_the_wait_for_the_limit_is_not_the_store_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends when the store takes too long, also within a limit."""
    monkeypatch.setattr(s3_requests, "_SLOWEST", 1 << 40)
    size = 1 << 20
    body = Body(bytes(size), RateLimit(size), Timing(silence=0.2), threading.Event())
    began = time.monotonic()
    assert sum(len(block) for block in iter(body.read, b"")) == size
    assert time.monotonic() - began >= 0.75
    body.seek(0)
    body.read()
    time.sleep(0.3)
    with pytest.raises(TimeoutError, match="too long"):
        body.read()


def test_both_directions_are_limited(tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "file", content(1 << 20))
    (tmp_path / "bucket").mkdir()
    with running_rclone(tmp_path) as running:
        for store in (
            bucket_store(running, "bucket", limit=RateLimit(4 << 20)),
            FolderStore(tmp_path / "bucket", RateLimit(4 << 20)),
        ):
            for move in (lambda store=store: store.write("a", piece), lambda store=store: whole(store, "a")):
                began = time.monotonic()
                move()
                move()
                assert time.monotonic() - began >= 0.2
