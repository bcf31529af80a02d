"""Copies of a run: which snapshots each continues, and when one becomes a run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.destinations import Destination
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.runs import restore_run
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from grpo_train.run_dir import RunDir, RunDirError
from tests.support.backups import backup, folder_destination, home_of, make_run, newest, save, train_to


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path: Path) -> Destination:
    return folder_destination(tmp_path / "disk")


def test_copy_that_went_on_elsewhere_becomes_a_run(root: Path, disk: Destination, tmp_path: Path) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    first = home_of(run)
    restore_folder(tmp_path / "b", first, disk)
    there = RunDir(tmp_path / "b" / "training_runs" / "one")
    train_to(there, 20, "there")
    save(there, 20, "there")
    assert backup(there, disk).identity == first.identity, "it continues the snapshot"
    assert backup(run, disk).ahead == 2, "an unchanged older copy"
    train_to(run, 30, "here")
    save(run, 30, "here")
    forked = backup(run, disk)
    assert forked.identity != first.identity
    assert (forked.parent, forked.snapshot, forked.steps) == (first.identity, 1, (10, 30))
    train_to(run, 31, "here")
    assert (backup(run, disk).identity, backup(run, disk).snapshot) == (forked.identity, 2)
    assert backup(there, disk).snapshot == 2, "the other is not disturbed"
    with pytest.raises(RunDirError, match="several runs"):
        restore_run(tmp_path / "c", "one", disk)
    assert restore_run(tmp_path / "c", f"one--{forked.identity}", disk).steps == (10, 30)


def test_run_restored_under_another_name_is_a_run(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    done = restore_folder(root, home_of(run), disk, as_name="two")
    assert done.identity != home_of(run).identity
    again = back_up(root, "training_runs", "two", disk)
    assert (again.identity, again.parent) == (done.identity, home_of(run).identity)


def test_two_runs_of_one_name_are_kept_apart(tmp_path: Path, disk: Destination) -> None:
    one, other = make_run(tmp_path / "a", "demo", 10), make_run(tmp_path / "b", "demo", 20)
    assert backup(one, disk).identity != backup(other, disk).identity
    assert verify(tmp_path, home_of(one), disk).is_sound
    assert newest(one, disk).steps[0].step == 10


def test_lost_record_is_found_again(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 10)
    backup(run, disk)
    (run.path / ".backup.json").unlink()
    assert not backup(run, disk).is_new
    (run.path / ".backup.json").write_text("{")
    train_to(run, 11)
    assert backup(run, disk).snapshot == 2
