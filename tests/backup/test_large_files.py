"""Large files in buckets: sent in parts, continued after a kill from the parts that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.store import StoreError
from tests.support.s3_servers import Server, server
from tests.support.stores import bucket_store, content, piece_of, whole

PART = 5 << 20
"""The least that S3 allows."""
SIZE = 3 * PART + 1_234


@pytest.fixture(params=["rclone", "moto"])
def running(request: pytest.FixtureRequest) -> Server:
    return server(request.param)


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
