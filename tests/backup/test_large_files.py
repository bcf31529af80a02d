"""Large files in buckets: sent in parts, continued after a kill from the parts that are there.

Here the process of a test is the one that is killed; ``tests/soak/test_s3_large_files.py`` kills another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from grpo_train.backup.store import FilePiece, StoreError
from tests.support.s3_faults import Fault, Faults, FaultyRequests, Killed
from tests.support.s3_servers import Server, server
from tests.support.stores import bucket_store, content, piece_of, whole

PART = 5 << 20
"""The least that S3 allows."""
SIZE = 3 * PART + 1_234


Open = Callable[[Server], AbstractContextManager[Faults]]
Kill = Callable[[int, Faults, str, FilePiece], None]


@pytest.fixture(params=["rclone", "moto"])
def running(request: pytest.FixtureRequest) -> Server:
    return server(request.param)


@pytest.fixture
def opened() -> Open:
    """How faults are made."""
    return FaultyRequests


@pytest.fixture
def killed_after() -> Kill:
    """Uploads a piece, and is killed when the server has some of its parts."""

    def kill(parts: int, front: Faults, bucket: str, piece: FilePiece) -> None:
        front.add(Fault("kill", "PUT", rf"partNumber={parts + 1}\b"))
        with pytest.raises(Killed):
            bucket_store(front.server, bucket, port=front.port, part=PART, transfers=1).write("weights", piece)

    return kill


def test_a_file_in_parts_is_whole(running: Server, tmp_path: Path) -> None:
    store = bucket_store(running, running.new_bucket())
    piece = piece_of(tmp_path / "weights", content(SIZE))
    for _ in range(2):
        moved: list[int] = []
        store.write("model/weights", piece, moved.append)
        assert sum(moved) == SIZE
        store.prove("model/weights", piece.size, piece.sha256)
    assert whole(store, "model/weights") == piece.path.read_bytes()
    assert store.abort_stale_uploads("", -60) == 0


def test_a_changed_file_leaves_no_upload(running: Server, tmp_path: Path) -> None:
    store = bucket_store(running, running.new_bucket())
    piece = piece_of(tmp_path / "weights", content(SIZE))
    piece.path.write_bytes(content(SIZE, seed=1))
    with pytest.raises(StoreError, match="weights") as caught:
        store.write("weights", piece)
    assert caught.value.code == "changed"
    assert store.head("weights") is None
    assert store.abort_stale_uploads("", -60) == 0


@pytest.mark.parametrize("kept", [1, 2])
def test_a_killed_upload_is_continued(
    running: Server, tmp_path: Path, kept: int, opened: Open, killed_after: Kill
) -> None:
    piece = piece_of(tmp_path / "weights", content(SIZE))
    bucket = running.new_bucket()
    with opened(running) as front:
        killed_after(kept, front, bucket, piece)
        front.seen.clear()
        store = bucket_store(running, bucket, port=front.port, part=PART)
        moved: list[int] = []
        store.write("weights", piece, moved.append)
        parts = [path for method, path in front.seen if method == "PUT"]
        assert len(parts) <= 4 - kept
        assert sum(moved) == SIZE
    store = bucket_store(running, bucket)
    store.read_back("weights", piece.size, piece.sha256)
    assert store.abort_stale_uploads("", -60) == 0


def test_parts_of_other_bytes_are_not_kept(running: Server, tmp_path: Path, opened: Open, killed_after: Kill) -> None:
    bucket = running.new_bucket()
    with opened(running) as front:
        killed_after(2, front, bucket, piece_of(tmp_path / "weights", content(SIZE, seed=1)))
    piece = piece_of(tmp_path / "weights", content(SIZE))
    store = bucket_store(running, bucket)
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)


def test_stale_uploads_are_ended_by_age(running: Server, tmp_path: Path, opened: Open, killed_after: Kill) -> None:
    bucket = running.new_bucket()
    with opened(running) as front:
        killed_after(1, front, bucket, piece_of(tmp_path / "weights", content(SIZE)))
    store = bucket_store(running, bucket)
    if running.kind != "moto":  # which says of every upload that it began in 2010
        assert store.abort_stale_uploads("", 3_600) == 0
    assert store.abort_stale_uploads("other/", -60) == 0
    assert store.abort_stale_uploads("", -60) == 1
    assert store.abort_stale_uploads("", -60) == 0
    assert list(store.entries("")) == []
