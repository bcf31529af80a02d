"""Opening destinations: which one, what it is trusted with, and a disk that is not mounted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grpo_train.backup.backup_yaml import DestinationError, default_path
from grpo_train.backup.destinations import Destination, open_destination
from grpo_train.backup.store import StoreError
from tests.support.mounts import mounted
from tests.support.stores import other_disk, write_destinations


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def opened(name: str | None, root: Path, *, write: bool = True) -> Destination:
    destination = open_destination(name, root, write=write)
    assert [entry.key for entry in destination.store.entries("")] in ([], ["grpo-store.json"])
    assert not root.exists() or not list(root.iterdir())
    return destination


def test_the_first_destination_is_the_default(root: Path, disk: Path, tmp_path: Path) -> None:
    write_destinations({"name": "one", "folder": str(disk)}, {"name": "two", "folder": str(tmp_path)})
    assert opened(None, root).name == "one"
    with pytest.raises(DestinationError, match=r"no destination named 'ones' in .*backup.yaml; did you mean one\?"):
        open_destination("ones", root)


def test_without_destinations_the_example_is_named(root: Path) -> None:
    for name in (None, "s3"):
        with pytest.raises(DestinationError, match=r"copy config/backup.example.yaml there") as caught:
            open_destination(name, root)
        assert caught.value.code == "no_destination"
        assert str(default_path()) in str(caught.value)


def test_a_directory_among_the_runs_is_refused(root: Path) -> None:
    """What is stored there would be listed, and backed up, as runs of the root."""
    for place in (root, root / "training_runs", root / "training_runs" / "one" / "sub"):
        place.mkdir(parents=True, exist_ok=True)
        write_destinations({"name": "disk", "folder": str(place)})
        with pytest.raises(DestinationError, match="is among the runs of the root"):
            open_destination("disk", root)
        open_destination("disk", root, write=False)
    (root / "backups").mkdir()
    write_destinations({"name": "disk", "folder": str(root / "backups")})
    assert open_destination("disk", root).trust.same_disk


def test_a_store_keeps_its_id(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    first, second = opened("disk", root), opened("disk", root)
    assert first.trust == second.trust
    assert first.trust.store_id == json.loads((disk / "grpo-store.json").read_text())["store_id"]
    assert not first.trust.computes_sha256


def test_a_folder_on_the_root_s_disk_is_the_same_disk(root: Path, disk: Path) -> None:
    with other_disk(root) as elsewhere:
        write_destinations({"name": "same", "folder": str(disk)}, {"name": "other", "folder": str(elsewhere)})
        assert opened("same", root).trust.same_disk
        assert opened("same", root / "not/yet").trust.same_disk
        assert not opened("other", root).trust.same_disk
        assert opened("other", elsewhere / "runs").trust.same_disk


def test_a_mount_below_the_root_is_another_disk(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    with mounted(disk, "noexec"):
        assert not opened("disk", root).trust.same_disk


def test_a_reader_changes_nothing(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    assert opened("disk", root, write=False).trust.store_id == ""
    assert not list(disk.iterdir())
    writer = opened("disk", root).trust
    reader = opened("disk", root, write=False).trust
    assert reader.store_id == writer.store_id
    assert reader.same_disk


def test_a_disk_that_is_not_mounted_is_noticed(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    with mounted(disk, "noexec"):
        opened("disk", root)
    with pytest.raises(StoreError, match="mount the disk") as caught:
        open_destination("disk", root)
    assert caught.value.code == "no_bucket"
    assert not list(disk.iterdir())
    record = Path(str(caught.value).rpartition("remove ")[2])
    record.unlink()
    opened("disk", root)


def test_a_store_that_was_replaced_is_tried_again(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    first = opened("disk", root).trust
    (disk / "grpo-store.json").write_text(json.dumps({"format": 1, "store_id": "another"}))
    assert opened("disk", root).trust.store_id == "another" != first.store_id


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 1}', '{"format": 9, "store_id": "x"}'])
def test_a_foreign_store_file_is_refused(root: Path, disk: Path, text: str) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    (disk / "grpo-store.json").write_text(text)
    with pytest.raises(StoreError, match=str(disk)) as caught:
        open_destination("disk", root)
    assert caught.value.code == "damaged"


def test_a_read_only_disk_is_refused_for_writing(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    with mounted(disk, "read-only"):
        with pytest.raises(StoreError, match="Read-only") as caught:
            open_destination("disk", root)
        assert caught.value.code == "refused"
        opened("disk", root, write=False)


def test_markers_that_a_kill_left_are_removed(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk)})
    for name, age in (("grpo-marker-old", 2 * 86_400), ("grpo-marker-new", 0)):
        (disk / name).write_bytes(b"")
        os.utime(disk / name, (disk.stat().st_mtime - age,) * 2)
    open_destination("disk", root)
    assert sorted(path.name for path in disk.iterdir()) == ["grpo-marker-new", "grpo-store.json"]


def test_the_limit_of_a_call_replaces_the_file_s(root: Path, disk: Path) -> None:
    write_destinations({"name": "disk", "folder": str(disk), "limit": "40M"})
    assert opened("disk", root).limit == 40 << 20
    assert open_destination("disk", root, limit=1_000).limit == 1_000
