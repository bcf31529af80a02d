"""What every store does: one suite over all of them."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.backup.s3 import S3Store
from grpo_train.backup.store import FilePiece, ObjectStore, RateLimit, StoreError
from tests.support.clock import LeapingClock
from tests.support.stores import KINDS, content, new_store, piece_of, whole


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return new_store(request.param, tmp_path / "store")


def test_objects_are_read_as_written(store: ObjectStore, tmp_path: Path) -> None:
    for size in (0, 1, 70_000):
        data = content(size)
        moved: list[int] = []
        store.write(f"a/{size}", piece_of(tmp_path / "file", data), moved.append)
        assert (whole(store, f"a/{size}"), sum(moved)) == (data, size)
        assert whole(store, f"a/{size}", size // 2) == data[size // 2 :]
        assert store.read_small(f"a/{size}", 70_000) == data
        store.read_back(f"a/{size}", size, hashlib.sha256(data).hexdigest())
        store.prove(f"a/{size}", size, hashlib.sha256(data).hexdigest())


def test_a_piece_is_a_part_of_a_file(store: ObjectStore, tmp_path: Path) -> None:
    data = content(50_000)
    (tmp_path / "log").write_bytes(data)
    part = data[1_000:41_000]
    store.write("part", FilePiece(tmp_path / "log", 1_000, 40_000, hashlib.sha256(part).hexdigest()))
    assert whole(store, "part") == part


def test_head_knows_size_and_time(store: ObjectStore) -> None:
    before = store.now()
    store.write_small("a/b", b"12345")
    entry = store.head("a/b")
    assert entry
    assert (entry.key, entry.size) == ("a/b", 5)
    assert before - 2 <= entry.modified <= store.now() + 2
    assert store.head("a/c") is None
    assert store.head("a") is None
    assert store.head("a/b/c") is None


def test_missing_objects_are_named(store: ObjectStore) -> None:
    calls = [
        lambda: whole(store, "runs/gone"),
        lambda: store.read_small("runs/gone", 10),
        lambda: store.prove("runs/gone", 1, "0" * 64),
        lambda: store.read_back("runs/gone", 1, "0" * 64),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="runs/gone") as caught:
            call()
        assert caught.value.code == "missing"


def test_wrong_bytes_are_found(store: ObjectStore) -> None:
    store.write_small("object", b"other bytes")
    right = hashlib.sha256(b"right bytes").hexdigest()
    for size in (11, 10, 12):
        for check in (store.prove, store.read_back):
            with pytest.raises(StoreError, match="object") as caught:
                check("object", size, right)
            assert caught.value.code == "damaged"
    with pytest.raises(StoreError, match="object") as caught:
        store.read_small("object", 10)
    assert caught.value.code == "damaged"


def test_a_changed_file_is_not_stored(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    piece = piece_of(path, content(30_000))
    for change in (
        lambda: path.write_bytes(content(30_000, seed=1)),
        lambda: path.write_bytes(content(29_999)),
        path.unlink,
        path.mkdir,
    ):
        change()
        with pytest.raises(StoreError, match="weights") as caught:
            store.write("a/weights", piece)
        assert caught.value.code == "changed"
    assert list(store.entries("")) == []


def test_an_object_is_replaced(store: ObjectStore) -> None:
    store.write_small("a", b"first")
    store.write_small("a", b"second, longer")
    assert whole(store, "a") == b"second, longer"


def test_listings_are_in_the_order_of_keys(store: ObjectStore) -> None:
    keys = [
        "a/a",
        "a/b/c",
        "a/b.txt",
        "a/b-1/x",
        "a-/y",
        "a0",
        "z/é/ü",
        "z/日本/1",
        'it\'s "here" & <there>',
        "x y/ +%2F",
    ]
    random.Random(0).shuffle(keys)
    for key in keys:
        store.write_small(key, key.encode())
    in_order = sorted(keys, key=str.encode)
    assert [entry.key for entry in store.entries("")] == in_order
    assert [entry.size for entry in store.entries("")] == [len(key.encode()) for key in in_order]
    assert [entry.key for entry in store.entries("a/b")] == ["a/b-1/x", "a/b.txt", "a/b/c"]
    assert [entry.key for entry in store.entries("a/b/")] == ["a/b/c"]
    assert list(store.entries("nothing/")) == []
    assert store.folders("") == ["a", "a-", "x y", "z"]
    assert store.folders("a/") == ["b", "b-1"]
    assert store.folders("nothing/") == []
    for key in keys:
        assert whole(store, key) == key.encode()


def test_deleted_objects_are_gone(store: ObjectStore) -> None:
    keys = [f"a/b/{number}" for number in range(5)] + ['it\'s "here" & <there>', "a/other"]
    for key in keys:
        store.write_small(key, b"x")
    store.delete([*keys[:-1], "a/never/was"])
    assert [entry.key for entry in store.entries("")] == ["a/other"]
    assert store.folders("a/") == []
    store.delete([])


def test_unsafe_keys_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "file", b"data")
    for key in ("", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "..", "a\nb", "a\0b", "a/\udcff", "x" * 1_100):
        calls: list[Callable[[str], object]] = [
            lambda key: store.write(key, piece),
            lambda key: store.write_small(key, b"data"),
            lambda key: whole(store, key),
            lambda key: store.read_small(key, 10),
            lambda key: store.head(key),
            lambda key: store.delete([key]),
            lambda key: store.read_back(key, 4, piece.sha256),
        ]
        for call in calls:
            with pytest.raises(StoreError) as caught:
                call(key)
            assert caught.value.code == "bad_name", repr(key)


def test_unsafe_prefixes_are_refused(store: ObjectStore) -> None:
    for prefix in ("/", "/a", "../", "a/../", "a//"):
        calls: list[Callable[[str], object]] = [
            lambda prefix: list(store.entries(prefix)),
            store.folders,
            lambda prefix: store.abort_stale_uploads(prefix, 0),
        ]
        for call in calls:
            with pytest.raises(StoreError) as caught:
                call(prefix)
            assert caught.value.code == "bad_name", prefix


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions_are_limited(kind: str, tmp_path: Path) -> None:
    clock = LeapingClock()
    store = new_store(kind, tmp_path / "store", limit=RateLimit(4 << 20, clock), clock=clock)
    piece = piece_of(tmp_path / "file", content(1 << 20))
    moves: list[Callable[[], object]] = [lambda: store.write("a", piece), lambda: whole(store, "a")]
    for move in moves:
        began = clock.monotonic()
        move()
        move()
        assert clock.monotonic() - began >= 0.25, "the first megabyte may pass at once"


def test_threads_share_a_store(store: ObjectStore, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    kept = [f"deep/{turn}/kept" for turn in range(4)] if isinstance(store, S3Store) else []
    for key in kept:  # rclone's server removes folders that a deletion leaves empty, not atomically
        store.write_small(key, b"")

    def work(number: int) -> None:
        try:
            for turn in range(4):
                data = content(20_000, seed=number * 10 + turn)
                piece = piece_of(tmp_path / f"file{number}", data)
                store.write(f"deep/{turn}/{number}", piece)
                store.read_back(f"deep/{turn}/{number}", piece.size, piece.sha256)
                store.delete([f"deep/{turn}/{number}"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    store.delete(kept)
    assert list(store.entries("")) == []
