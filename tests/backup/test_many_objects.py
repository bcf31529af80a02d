"""Listings in pages, deletions in batches, and the limit of the rate."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from grpo_train.backup.folder import FolderStore
from grpo_train.backup.s3_requests import Body, S3Timing
from grpo_train.backup.store import ObjectStore, RateLimit
from tests.support.clock import LeapingClock
from tests.support.s3_faults import FaultyRequests
from tests.support.s3_servers import running_rclone
from tests.support.stores import bucket_store

COUNT = 2_300


def many(folder: Path) -> list[str]:
    """Make files in folders; returns their keys in order."""
    keys = sorted(f"{number % 3}/it's {number:05}" for number in range(COUNT))
    for key in keys:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return keys


def listed_and_deleted(store: ObjectStore, keys: list[str]) -> None:
    assert [entry.key for entry in store.entries("")] == keys
    assert [entry.key for entry in store.entries("1/")] == [key for key in keys if key.startswith("1/")]
    assert store.folders("") == ["0", "1", "2"]
    store.delete(keys[:-1])
    assert [entry.key for entry in store.entries("")] == keys[-1:]


def test_a_bucket_is_listed_in_pages(tmp_path: Path) -> None:
    keys = many(tmp_path / "bucket/prefix")
    with running_rclone(tmp_path) as running, FaultyRequests(running) as front:
        store = bucket_store(running, "bucket", prefix="prefix")
        assert len(list(store.entries(""))) == COUNT
        assert len(front.seen) == 3, "a page has 1,000 objects"
        assert ["continuation-token=" in path for _, path in front.seen] == [False, True, True]
        listed_and_deleted(store, keys)


def test_a_folder_of_many_files_is_listed(tmp_path: Path) -> None:
    keys = many(tmp_path / "disk")
    listed_and_deleted(FolderStore(tmp_path / "disk"), keys)


def test_threads_share_a_limit() -> None:
    clock = LeapingClock()
    limit, began = RateLimit(1_000_000, clock), clock.monotonic()
    threads = [threading.Thread(target=lambda: [limit.take(25_000) for _ in range(4)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.monotonic() - began == pytest.approx(0.375), "the first bytes pass at once"


def test_the_wait_for_the_limit_is_not_the_store_s() -> None:
    """A request ends when the store takes too long, also within a limit."""
    clock, size = LeapingClock(), 1 << 20
    began = clock.monotonic()
    body = Body(bytes(size), RateLimit(size / 200, clock), S3Timing(), threading.Event(), clock)
    assert sum(len(block) for block in iter(body.read, b"")) == size
    assert clock.monotonic() - began == pytest.approx(200), "more than the 124 s that a store has for these bytes"
    body.seek(0)
    body.read()
    clock.advance(125)
    with pytest.raises(TimeoutError, match="too long"):
        body.read()
