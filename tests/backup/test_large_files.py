"""Large files in buckets: sent in parts, continued after a kill from the parts that are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_train.backup.store import Piece, StoreError
from tests.conftest import REPOSITORY
from tests.support.s3_front import Fault, Front
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


@pytest.mark.parametrize("kept", [1, 2])
def test_a_killed_upload_is_continued(running: Server, tmp_path: Path, kept: int) -> None:
    piece = piece_of(tmp_path / "weights", content(SIZE))
    bucket = running.new_bucket()
    with Front(running) as front:
        killed_after(kept, front, bucket, piece)
        front.rate = 0
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


def test_parts_of_other_bytes_are_not_kept(running: Server, tmp_path: Path) -> None:
    bucket = running.new_bucket()
    with Front(running) as front:
        killed_after(2, front, bucket, piece_of(tmp_path / "weights", content(SIZE, seed=1)))
    piece = piece_of(tmp_path / "weights", content(SIZE))
    store = bucket_store(running, bucket)
    store.write("weights", piece)
    store.read_back("weights", piece.size, piece.sha256)


def test_stale_uploads_are_ended_by_age(running: Server, tmp_path: Path) -> None:
    bucket = running.new_bucket()
    with Front(running) as front:
        killed_after(1, front, bucket, piece_of(tmp_path / "weights", content(SIZE)))
    store = bucket_store(running, bucket)
    if running.kind != "moto":  # which says of every upload that it began in 2010
        assert store.abort_stale_uploads("", 3_600) == 0
    assert store.abort_stale_uploads("other/", -60) == 0
    assert store.abort_stale_uploads("", -60) == 1
    assert store.abort_stale_uploads("", -60) == 0
    assert list(store.entries("")) == []


def killed_after(parts: int, front: Front, bucket: str, piece: Piece) -> None:
    """A process that uploads a piece and is killed when the server has some of its parts."""
    front.add(Fault("silence", "PUT", rf"partNumber={parts + 1}\b", times=9, seconds=600))
    running = front.server
    program = f"""
from pathlib import Path
from grpo_train.backup.store import Piece
from tests.support.s3_servers import Server
from tests.support.stores import bucket_store
running = Server({running.kind!r}, {running.endpoint!r}, {running.ca_file!r}, Path())
store = bucket_store(running, {bucket!r}, port={front.port}, part={PART}, transfers=1)
store.write("weights", Piece(Path({str(piece.path)!r}), 0, {piece.size}, {piece.sha256!r}))
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    deadline = time.monotonic() + 120
    last = re.compile(rf"partNumber={parts + 1}\b")
    while not any(last.search(path) for _, path in list(front.seen)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    front.clear()
