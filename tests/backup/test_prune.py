"""Pruning of snapshots: marked, removed a day later, and never with the last copy of a checkpoint or a log."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from grpo_train.backup.destinations import Destination
from grpo_train.backup.prune import PruneResult, prune
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import StoreError
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir, RunDirError
from tests.support.backups import (
    backup,
    contents,
    folder_destination,
    home_of,
    make_run,
    object_files,
    objects,
    rewind,
    save,
    set_state,
    train_to,
)

DAY = 86_400


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "root", "one", 10)


@pytest.fixture
def disk(tmp_path: Path, run: RunDir) -> Destination:
    """A destination with five snapshots of a run that keeps its newest checkpoint only."""
    to = folder_destination(tmp_path / "disk")
    backup(run, to)
    for step in (20, 30, 40, 50):
        train_to(run, step)
        save(run, step)
        shutil.rmtree(run.checkpoints()[0].path)
        set_state(run, "stopped", until=step)
        backup(run, to)
    return to


def pruned(run: RunDir, to: Destination, keep: int = 2, **options: object) -> PruneResult:
    return prune(run.root, home_of(run), to, keep_last=keep, **options)  # type: ignore[arg-type]


def pass_time(to: Destination, seconds: float = 1.1 * DAY) -> None:
    """Everything in a folder store becomes older."""
    then = time.time() - seconds
    for path in object_files(to):
        modified = path.stat().st_mtime - seconds
        os.utime(path, (then, modified))


def numbers(run: RunDir, to: Destination) -> list[int]:
    return StoredRun(to.store, home_of(run)).numbers


def test_contained_snapshots_go_after_a_day(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    before = restored(run, disk, tmp_path / "before")
    first = pruned(run, disk)
    assert (first.marked, first.removed, first.objects) == ((3, 2, 1), (), 0)
    assert pruned(run, disk).removed == (), "not twice in a day"
    pass_time(disk)
    dry = pruned(run, disk, dry_run=True)
    assert (dry.removed, numbers(run, disk)) == ((3, 2, 1), [1, 2, 3, 4, 5])
    second = pruned(run, disk)
    assert second.removed == (3, 2, 1)
    assert second.objects > 0, "older versions of small files"
    assert numbers(run, disk) == [4, 5]
    assert verify(run.root, home_of(run), disk).damaged == ()
    assert restored(run, disk, tmp_path / "after") == before


def restored(run: RunDir, to: Destination, root: Path) -> dict[str, str]:
    restore_folder(root, home_of(run), to)
    return contents(root / "training_runs" / "one")


def test_last_copies_stay(run: RunDir, disk: Destination) -> None:
    """A newer snapshot that lost a checkpoint, as of an older program, does not contain the older one."""
    stored = StoredRun(disk.store, home_of(run))
    disk.store.delete([stored.home.snapshot(number, "COMPLETE") for number in (4, 5)])
    result = pruned(run, disk, 1)
    assert result.marked == (2, 1)
    assert [(each.snapshot, each.reason) for each in result.stays] == [
        (5, "it may be at work"), (4, "it may be at work"),
    ]  # fmt: skip
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_10--*/optimizer.pt")
    file.unlink()
    assert pruned(run, disk, 1).marked == (), "no snapshot is complete any more"


def test_marked_snapshots_are_unmarked_when_needed(run: RunDir, disk: Destination) -> None:
    pruned(run, disk, 1)
    pass_time(disk)
    stored = StoredRun(disk.store, home_of(run))
    disk.store.delete([stored.home.snapshot(5, "COMPLETE")])
    result = pruned(run, disk, 1)
    assert result.removed == (3, 2, 1)
    assert stored.snapshot(4).is_complete
    assert StoredRun(disk.store, home_of(run)).snapshot(4).marked is None


def test_steps_are_dropped_by_name_only(run: RunDir, disk: Destination) -> None:
    with pytest.raises(RunDirError, match="what one resumes from"):
        pruned(run, disk, drop_steps=[50])
    with pytest.raises(RunDirError, match="no step_15"):
        pruned(run, disk, drop_steps=[15])
    result = pruned(run, disk, 1, drop_steps=[10, 20])
    assert result.new_snapshot == 6
    assert result.marked == (5, 4, 3, 2, 1)
    assert {key for key in objects(disk) if "/step_10--" in key}, "for a day it can be restored"
    train_to(run, 55)
    backup(run, disk)
    pass_time(disk)
    pruned(run, disk, 1)
    assert numbers(run, disk) == [6, 7]
    pass_time(disk)
    pruned(run, disk, 1)
    assert not [key for key in objects(disk) if "/step_10--" in key or "/step_20--" in key]
    newest = StoredRun(disk.store, home_of(run)).newest()
    assert newest is not None
    assert newest.manifest is not None
    assert sorted(step.step for step in newest.manifest.steps) == [30, 40, 50]
    assert verify(run.root, home_of(run), disk).damaged == ()


def test_superseded_steps_and_replaced_lines_stay(run: RunDir, disk: Destination) -> None:
    rewind(run, 50)
    os.truncate(run.logs / "rollouts.jsonl", 100)
    train_to(run, 60, "again")
    save(run, 60, "again")
    backup(run, disk)
    logs = {key: data for key, data in objects(disk).items() if "/logs/" in key or "/step_" in key}
    for _ in range(2):
        pruned(run, disk, 1)
        pass_time(disk)
    assert numbers(run, disk) == [6]
    assert {key: data for key, data in objects(disk).items() if "/logs/" in key or "/step_" in key} == logs


def test_prune_waits_for_a_backup(run: RunDir, disk: Destination) -> None:
    """A claim says that a backup, of any box, may be about to name objects that no manifest names."""
    claim = home_of(run).snapshot(6, "claim-00")
    disk.store.write_small(claim, b"")
    pruned(run, disk)
    pass_time(disk, 2 * DAY)
    disk.store.write_small(claim, b"")
    with pytest.raises(StoreError, match="a backup is at work"):
        pruned(run, disk)
    assert verify(run.root, home_of(run), disk).damaged == ()
    pass_time(disk, 2 * DAY)
    assert pruned(run, disk).removed == (3, 2, 1)


def test_backup_waits_for_a_prune(run: RunDir, disk: Destination) -> None:
    disk.store.write_small(home_of(run).snapshots + "PRUNING", b"")
    train_to(run, 60)
    with pytest.raises(StoreError, match="prune-backups is at work") as caught:
        backup(run, disk)
    assert caught.value.code == "busy"
    pass_time(disk, DAY)
    backup(run, disk)
    assert numbers(run, disk) == [1, 2, 3, 4, 5, 6]
