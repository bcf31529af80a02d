"""What was read back once: known to every box, not read twice, and not believed where something was stored since."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.cleanup import clean_up
from grpo_train.backup.destinations import Destination
from grpo_train.backup.prune import prune
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshots import StoredRun, unread
from grpo_train.backup.store import Trust
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir
from tests.support.backups import backup, folder_destination, home_of, make_run, object_files, save, train_to
from tests.support.stores import new_store


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "root", "one", 10)


@pytest.fixture
def disk(tmp_path: Path, run: RunDir) -> Destination:
    """A store whose proof is to read an object back, with two snapshots."""
    to = folder_destination(tmp_path / "disk")
    backup(run, to)
    grow(run, 20)
    backup(run, to)
    return to


def grow(run: RunDir, step: int) -> None:
    train_to(run, step)
    save(run, step)


def unread_keys(run: RunDir, to: Destination) -> set[str]:
    stored = StoredRun(to.store, home_of(run))
    newest = stored.newest()
    assert newest is not None
    assert newest.manifest is not None
    return {part.key for part in unread(stored, newest.manifest)}


def codes(root: Path, to: Destination) -> list[str]:
    return [each.code for each in safe_to_terminate(root, to).obstacles]


def all_keys(run: RunDir, to: Destination) -> set[str]:
    found = StoredRun(to.store, home_of(run)).newest()
    assert found is not None
    assert found.manifest is not None
    return set(found.manifest.parts())


def test_only_new_objects_are_read_again(run: RunDir, tmp_path: Path) -> None:
    """A store that computes checksums: a backup reads nothing back."""
    store = new_store("rclone", tmp_path)
    store.trust_checksums(True)  # type: ignore[attr-defined]
    to = Destination("s3", store, Trust("store-1", True, False, False), None)
    backup(run, to)
    before = all_keys(run, to)
    assert unread_keys(run, to) == before
    assert codes(run.root, to) == ["never_read_back"]
    assert verify(run.root, home_of(run), to).objects == len(before)
    assert codes(run.root, to) == []
    grow(run, 20)
    backup(run, to)
    new = all_keys(run, to) - before
    assert unread_keys(run, to) == new
    (obstacle,) = safe_to_terminate(run.root, to).obstacles
    assert (obstacle.code, obstacle.command) == ("never_read_back", "grpo-train verify-backup one --unread")
    assert f"{len(new)} objects" in obstacle.reason
    assert read_record(run.path).of("store-1").read_back == 1
    done = verify(run.root, home_of(run), to, only_unread=True)
    assert (done.objects, done.objects_total) == (len(new), len(before | new))
    assert codes(run.root, to) == []
    note = read_record(run.path).of("store-1")
    assert note.read_back == 2
    assert abs(note.read_at - store.now()) < 600
    assert verify(run.root, home_of(run), to, only_unread=True).objects == 0


def test_other_box_knows_what_was_read(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    restore_folder(tmp_path / "b", home_of(run), disk)
    assert codes(tmp_path / "b", disk) == []
    other = RunDir(tmp_path / "b" / "training_runs" / "one")
    grow(other, 30)
    backup(other, disk)
    shutil.rmtree(run.root)
    assert codes(tmp_path / "b", disk) == []


def test_readings_outlive_pruned_snapshots(run: RunDir, disk: Destination) -> None:
    grow(run, 30)
    backup(run, disk)
    stored = StoredRun(disk.store, home_of(run))
    disk.store.delete([key for key in stored.objects if "/snapshots/000001/" in key or "/snapshots/000002/" in key])
    assert unread_keys(run, disk) == set()
    prune(run.root, home_of(run), disk, keep_last=1, drop_steps=[10])
    assert unread_keys(run, disk) == set()
    disk.store.delete([home_of(run).snapshot(number, "READ_BACK") for number in (3, 4)])
    assert unread_keys(run, disk) == all_keys(run, disk)


def test_replaced_objects_are_read_again(run: RunDir, disk: Destination) -> None:
    """The same size under the same name: only the store's clock tells."""
    (victim,) = [path for path in object_files(disk) if path.match("step_10--*/optimizer.pt")]
    victim.write_bytes(bytes(victim.stat().st_size))
    os.utime(victim, (time.time(), time.time() + 60))
    key = str(victim.relative_to(disk.store.url))
    assert unread_keys(run, disk) == {key}
    assert codes(run.root, disk) == ["never_read_back"]
    done = verify(run.root, home_of(run), disk, only_unread=True)
    assert [(each.key, each.repaired) for each in done.damaged] == [(key, True)]
    assert unread_keys(run, disk) == set()


def test_repaired_objects_are_not_read_again(run: RunDir, disk: Destination) -> None:
    for path in object_files(disk):
        if path.match("step_10--*/optimizer.pt"):
            path.unlink()
    assert not verify(run.root, home_of(run), disk).unreadable
    assert codes(run.root, disk) == []


LIES: list[Any] = [
    b"", b"[]", b"\xff", {"format": 2}, {"objects": []}, {"objects": {"x": 1}},
    lambda objects: {key: [digest, when + 1e6] for key, (digest, when) in objects.items()},
    lambda objects: {key: ["0" * 64, when] for key, (_, when) in objects.items()},
    lambda objects: {key: [digest, "Infinity"] for key, (digest, _) in objects.items()},
    lambda objects: {key: [digest, None] for key, (digest, _) in objects.items()},
]  # fmt: skip


def test_false_readings_are_not_believed(run: RunDir, disk: Destination) -> None:
    """Times after the file was written, hashes of other bytes, and what is not such a file at all."""
    disk.store.delete([home_of(run).snapshot(1, "READ_BACK")])
    mark = Path(disk.store.url) / home_of(run).snapshot(2, "READ_BACK")
    good = mark.read_bytes()
    for lie in LIES:
        document = json.loads(good)
        if callable(lie):
            document["objects"] = lie(document["objects"])
        elif isinstance(lie, dict):
            document |= lie
        mark.write_bytes(lie if isinstance(lie, bytes) else json.dumps(document).encode())
        assert unread_keys(run, disk) == all_keys(run, disk), lie
    mark.write_bytes(good)
    assert unread_keys(run, disk) == set()


def test_cleanup_reads_what_was_read(run: RunDir, disk: Destination) -> None:
    """An object that rots keeps its time: only reading it finds that, and a removal always does."""
    (victim,) = [path for path in object_files(disk) if path.match("step_10--*/optimizer.pt")]
    times = victim.stat()
    victim.write_bytes(bytes(times.st_size))
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert unread_keys(run, disk) == set()
    assert clean_up(run, disk).removed == ()
    assert (run.training_state / "step_10").is_dir()


def test_a_backup_that_is_ended_as_soon_as_it_counts_is_known_to_be_read(
    run: RunDir, disk: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one in the background is when a run ends."""

    def ended(*arguments: Any) -> None:
        raise KeyboardInterrupt

    grow(run, 30)
    with monkeypatch.context() as patch:
        patch.setattr("grpo_train.backup.take.release", ended)
        with pytest.raises(KeyboardInterrupt):
            backup(run, disk)
    assert unread_keys(run, disk) == set()
    train_to(run, 31)
    backup(run, disk)
    assert unread_keys(run, disk) == set()
