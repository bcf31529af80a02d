"""SIGKILL before system calls by which a backup or a restore changes a disk. ``tests/soak`` tries every one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.backup.layout import Home
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore
from grpo_train.backup.snapshots import StoredRun, homes
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir
from tests.support.backups import contents, folder_destination, make_run, objects, save, train_to
from tests.support.tracing import Touch, killed_before, trace

BOX, DISK = "box", "disk"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A backed-up run that has gone on since."""
    kept = tmp_path / "kept"
    run = make_run(kept / BOX, "one", 10)
    to = folder_destination(kept / DISK)
    back_up(run.root, "training_runs", "one", to, transfers=1)
    train_to(run, 20)
    save(run, 20)
    return kept


def every(touches: list[Touch], share: int) -> range:
    return range(0, len(touches), share)


def kill_backups(kept: Path, tmp_path: Path, share: int) -> None:
    here = tmp_path / "here"
    box, disk = here / BOX, here / DISK

    def backup() -> None:
        back_up(box, "training_runs", "one", folder_destination(disk), transfers=1)

    fresh(kept, here)
    touches = trace(backup)
    expected = objects(folder_destination(disk))
    states = set()
    for n in every(touches, share):
        fresh(kept, here)
        killed_before(n, backup)
        to = folder_destination(disk)
        (home,) = homes(to.store)
        found = list(StoredRun(to.store, home).snapshots())
        states.add(tuple(each.state for each in found))
        assert found[-1].is_complete, f"snapshot 1 was spoiled by a kill before {n}, {touches[n]}"
        checked = verify(here / "nowhere", home, to, transfers=1)
        assert checked.damaged == (), f"killed before {n}, {touches[n]}"
        backup()
        assert objects(to) == expected, f"killed before {n}, {touches[n]}"
        after = StoredRun(to.store, home)
        assert {each.state for each in after.snapshots()} == {"complete"}, f"killed before {n}, {touches[n]}"
        assert not [key for key in after.objects if "claim-" in key], f"killed before {n}, {touches[n]}"
    assert {("complete",), ("incomplete", "complete"), ("complete", "complete")} <= states


def kill_restores(kept: Path, tmp_path: Path, share: int) -> None:
    to = folder_destination(kept / DISK)
    back_up(kept / BOX, "training_runs", "one", to, transfers=1)
    home = Home("training_runs", "one", read_record(kept / BOX / "training_runs" / "one").identity)
    there = tmp_path / "there"
    run = RunDir(there / "training_runs" / "one")

    def bring() -> None:
        restore(there, home, to, transfers=1)

    touches = trace(bring)
    expected = contents(run.path)
    for n in every(touches, share):
        shutil.rmtree(there)
        killed_before(n, bring)
        if run.path.exists():
            assert contents(run.path) == expected, f"visible before it was whole: {n}, {touches[n]}"
        bring()
        assert contents(run.path) == expected, f"killed before {n}, {touches[n]}"
        assert not list(there.glob("training_runs/.restore*")), f"killed before {n}, {touches[n]}"
        assert not list(run.path.rglob(".*.restore*")), f"killed before {n}, {touches[n]}"


def fresh(kept: Path, here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(kept, here, symlinks=True)


KILLS: list[Callable[[Path, Path, int], None]] = [kill_backups, kill_restores]


@pytest.mark.parametrize("kill", KILLS)
def test_kills_leave_what_was_complete(kept: Path, tmp_path: Path, kill: Callable[[Path, Path, int], None]) -> None:
    kill(kept, tmp_path, 9)
