"""SIGKILL before system calls by which a command of backups changes a disk. ``tests/soak`` tries every one of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.backup.archive import archive_run
from grpo_train.backup.cleanup import clean_up
from grpo_train.backup.prune import prune
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun, homes
from grpo_train.backup.take import back_up
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.keeping import remove_hidden
from tests.support.backups import contents, folder_destination, make_run, object_files, objects, save, train_to
from tests.support.killing import Points, five_of
from tests.support.tracing import killed_before, trace

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


def kill_backups(kept: Path, tmp_path: Path, points: Points) -> None:
    here = tmp_path / "here"
    box, disk = here / BOX, here / DISK

    def backup() -> None:
        back_up(box, "training_runs", "one", folder_destination(disk), transfers=1)

    fresh(kept, here)
    touches = trace(backup)
    expected = objects(folder_destination(disk))
    states = set()
    for n in points(len(touches)):
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


def kill_restores(kept: Path, tmp_path: Path, points: Points) -> None:
    to = folder_destination(kept / DISK)
    back_up(kept / BOX, "training_runs", "one", to, transfers=1)
    home = Home("training_runs", "one", read_record(kept / BOX / "training_runs" / "one").identity)
    there = tmp_path / "there"
    run = RunDir(there / "training_runs" / "one")

    def bring() -> None:
        restore_folder(there, home, to, transfers=1)

    touches = trace(bring)
    expected = contents(run.path)
    for n in points(len(touches)):
        shutil.rmtree(there)
        killed_before(n, bring)
        if run.path.exists():
            assert contents(run.path) == expected, f"visible before it was whole: {n}, {touches[n]}"
        bring()
        assert contents(run.path) == expected, f"killed before {n}, {touches[n]}"
        assert not list(there.glob("training_runs/.restore*")), f"killed before {n}, {touches[n]}"
        assert not list(run.path.rglob(".*.restore*")), f"killed before {n}, {touches[n]}"


def kill_cleanups(kept: Path, tmp_path: Path, points: Points) -> None:
    """Nothing that is not in the backup goes; a checkpoint that is visible is whole; cleaning up again ends it."""
    to = folder_destination(kept / DISK)
    back_up(kept / BOX, "training_runs", "one", to, transfers=1)
    here = tmp_path / "here"
    run = RunDir(here / BOX / "training_runs" / "one")

    def clean() -> None:
        clean_up(run, folder_destination(here / DISK), transfers=1)

    fresh(kept, here)
    touches = trace(clean)
    expected = set(contents(run.path)) | {"removed"}
    for n in points(len(touches)):
        fresh(kept, here)
        before = contents(run.training_state)
        killed_before(n, clean)
        where = f"killed before {n}, {touches[n]}"
        assert contents(run.training_state).items() <= before.items(), where
        assert not [c for c in run.checkpoints() if c.problem], where
        assert read_steps(here) == {10, 20}, where
        clean()
        assert set(contents(run.path)) | {"removed"} == expected, where
        if run.training_state.exists():
            remove_hidden(run)
        assert not list(run.training_state.glob(".*")), where


def read_steps(here: Path) -> set[int]:
    """Steps of the newest complete snapshot, every byte read back."""
    to = folder_destination(here / DISK)
    (home,) = homes(to.store)
    assert verify(here / "nowhere", home, to, transfers=1).damaged == ()
    newest = StoredRun(to.store, home).newest()
    assert newest is not None
    assert newest.manifest is not None
    return {step.step for step in newest.manifest.steps}


def kill_prunes(kept: Path, tmp_path: Path, points: Points) -> None:
    """Both prunes, with a day between them: the newest snapshot stays whole; pruning again ends with the same."""
    run = RunDir(kept / BOX / "training_runs" / "one")
    for step in (30, 40):
        back_up(run.root, "training_runs", "one", folder_destination(kept / DISK), transfers=1)
        train_to(run, step)
        (run.path / "notes.md").write_text(f"{step}")
    back_up(run.root, "training_runs", "one", folder_destination(kept / DISK), transfers=1)
    here = tmp_path / "here"

    def prune_() -> None:
        (home,) = homes((to := folder_destination(here / DISK)).store)
        prune(here / BOX, home, to, keep_last=1)

    for start in ("first", "a day later"):
        fresh(kept, here)
        touches = trace(prune_)
        expected = keys(here)
        for n in points(len(touches)):
            fresh(kept, here)
            killed_before(n, prune_)
            where = f"{start}, killed before {n}, {touches[n]}"
            assert read_steps(here) == {10, 20}, where
            prune_()
            assert keys(here) == expected, where
        fresh(kept, here)
        prune_()
        shutil.rmtree(kept)
        here.rename(kept)
        grow_older(kept / DISK)


def keys(here: Path) -> set[str]:
    return {entry.key for entry in folder_destination(here / DISK).store.entries("")}


def grow_older(disk: Path) -> None:
    for path in object_files(folder_destination(disk)):
        os.utime(path, (time.time(), path.stat().st_mtime - 90_000))


def kill_archives(kept: Path, tmp_path: Path, points: Points) -> None:
    """The run is in one place or the other, whole; archiving again ends with the same."""
    here = tmp_path / "here"
    run = RunDir(here / BOX / "training_runs" / "one")
    target = here / BOX / "archive" / "completed_runs" / "one"

    def archive() -> None:
        archive_run(run, folder_destination(here / DISK), note="good", transfers=1)

    fresh(kept, here)
    touches = trace(archive)
    expected, stored = contents(target), objects(folder_destination(here / DISK))
    for n in points(len(touches)):
        fresh(kept, here)
        killed_before(n, archive)
        where = f"killed before {n}, {touches[n]}"
        assert run.path.exists() != target.exists(), where
        archive()
        assert contents(target) == expected, where
        assert objects(folder_destination(here / DISK)) == stored, where
        assert safe_to_terminate(here / BOX, folder_destination(here / DISK)).safe, where


def fresh(kept: Path, here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(kept, here, symlinks=True)


KILLS: list[Callable[[Path, Path, Points], None]] = [
    kill_backups, kill_restores, kill_cleanups, kill_prunes, kill_archives,
]  # fmt: skip


@pytest.mark.parametrize("kill", KILLS)
def test_kills_leave_what_was_complete(kept: Path, tmp_path: Path, kill: Callable[[Path, Path, Points], None]) -> None:
    kill(kept, tmp_path, five_of)
