"""A store on a disk: what a kill, a full disk and a missing mount leave."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from grpo_train.backup.folder import FolderStore
from grpo_train.backup.store import StoreError, partial_name
from grpo_train.run_dir.files import fsync_path
from tests.support.killing import Points, disk_calls, five_of, killed_at
from tests.support.mounts import mounted
from tests.support.stores import content, piece_of, whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def test_a_missing_folder_is_not_created(folder: Path, tmp_path: Path) -> None:
    store = FolderStore(folder)
    folder.rmdir()
    piece = piece_of(tmp_path / "file", b"data")
    for call in (
        lambda: FolderStore(folder),
        lambda: store.write("a/b", piece),
        lambda: store.write_small("a", b""),
        lambda: list(store.entries("")),
        lambda: store.folders(""),
        lambda: store.head("a"),
        lambda: whole(store, "a"),
        lambda: store.delete(["a"]),
        store.now,
    ):
        with pytest.raises(StoreError, match="mount the disk") as caught:
            call()
        assert caught.value.code == "no_bucket"
    assert not folder.exists()


def test_a_kill_leaves_the_old_object_or_the_new(folder: Path, tmp_path: Path) -> None:
    kill_writes(folder, tmp_path, five_of)


def kill_writes(folder: Path, tmp_path: Path, points: Points) -> None:
    """``tests/soak`` tries every point."""
    store = FolderStore(folder)
    piece = piece_of(tmp_path / "file", content(9 << 20))
    for old in (None, b"old"):

        def restart(old: bytes | None = old) -> None:
            store.write_small("a/b/object", old) if old else shutil.rmtree(folder / "a", ignore_errors=True)

        restart()
        calls = disk_calls(lambda: store.write("a/b/object", piece))
        assert {"open", "fsync", "replace"} <= set(calls)
        for n in points(len(calls)):
            restart()
            killed_at(n, lambda: store.write("a/b/object", piece))
            entry = store.head("a/b/object")
            if entry and entry.size == piece.size:
                store.read_back("a/b/object", piece.size, piece.sha256)
            else:
                assert (whole(store, "a/b/object") if entry else None) == old
            assert len(list(store.entries(""))) == (entry is not None)
    store.write("a/b/object", piece)
    assert store.abort_stale_uploads("", 3_600) == 0
    assert store.abort_stale_uploads("other/", -1) == 0
    assert store.abort_stale_uploads("a/", -1) > 0
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["object"]


def test_stale_partials_are_removed_by_age(folder: Path) -> None:
    store = FolderStore(folder)
    old, new = folder / partial_name(), folder / partial_name()
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 7_200,) * 2)
    assert store.abort_stale_uploads("", 3_600) == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_links_and_pipes_are_not_objects(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    store = FolderStore(folder)
    assert list(store.entries("")) == []
    assert store.folders("") == []
    for name in ("link", "pipe"):
        assert store.head(name) is None
        with pytest.raises(StoreError, match=name) as caught:
            whole(store, name)
        assert caught.value.code == "damaged"


def test_names_that_cannot_be_keys_are_ignored(folder: Path) -> None:
    store = FolderStore(folder)
    store.write_small("a", b"")
    for name in (b"bad\xff", b"line\nbreak"):
        (Path(os.fsdecode(bytes(folder) + b"/" + name))).write_bytes(b"")
    assert [entry.key for entry in store.entries("")] == ["a"]


def test_a_full_disk_is_named(folder: Path, tmp_path: Path) -> None:
    piece = piece_of(tmp_path / "file", content(1 << 20))
    with mounted(folder, "full"):
        store = FolderStore(folder)
        with pytest.raises(StoreError, match="No space left") as caught:
            store.write("object", piece)
        assert caught.value.code == "full"
        assert store.head("object") is None
        assert store.abort_stale_uploads("", -1) == 0


def test_a_read_only_disk_can_be_read(folder: Path) -> None:
    FolderStore(folder).write_small("a", b"data")
    with mounted(folder, "read-only"):
        store = FolderStore(folder)
        assert store.now() > 0
        assert list(store.entries("")) == []
        with pytest.raises(StoreError, match="Read-only") as caught:
            store.write_small("b", b"data")
        assert caught.value.code == "refused"


def test_a_deletion_removes_the_folder_that_was_just_created(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [2, 1, 1]  # calls of fsync until the next deletion; each removes what is empty

    def flush(path: Path) -> None:
        if left:
            left[0] -= 1
            if not left[0]:
                left.pop(0)
                for empty in (folder / "a/b", folder / "a"):
                    if empty.exists():
                        empty.rmdir()
        if path.exists():
            fsync_path(path)
        else:
            raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr("grpo_train.backup.folder.fsync_path", flush)
    FolderStore(folder).write_small("a/b/object", b"data")
    assert not left
    assert (folder / "a/b/object").read_bytes() == b"data"


def test_a_dangling_link_is_no_folder(folder: Path) -> None:
    (folder / "a").symlink_to("nowhere")
    with pytest.raises(StoreError, match="dangling link"):
        FolderStore(folder).write_small("a/object", b"data")
