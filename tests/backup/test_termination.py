"""Whether a box can be terminated, and archives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_train.backup import terminate
from grpo_train.backup.archive import archive_checkpoint, archive_run
from grpo_train.backup.destinations import Destination
from grpo_train.backup.job import working_on
from grpo_train.backup.prune import prune
from grpo_train.backup.runs import back_up_all, restore_run
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.run_dir.machine import Mount
from grpo_train.run_dir.processes import identity, run_id_of
from tests.support.backups import contents, folder_destination, make_evaluation, make_run, objects, set_state, train_to
from tests.support.engine import running
from tests.train.test_retention import announce


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = make_run(tmp_path / "root", "one", 10, 20)
    make_evaluation(run.root, "one", "addition", 10)
    return run


@pytest.fixture
def disk(tmp_path: Path, run: RunDir) -> Destination:
    to = folder_destination(tmp_path / "disk")
    back_up_all(run.root, to)
    return to


def codes(run: RunDir, to: Destination | None, **options: bool) -> set[tuple[str, str]]:
    return {(each.name, each.code) for each in safe_to_terminate(run.root, to, **options).obstacles}


def test_backed_up_root_is_safe(run: RunDir, disk: Destination) -> None:
    verdict = safe_to_terminate(run.root, disk)
    assert (verdict.safe, verdict.kept, verdict.obstacles) == (True, "backup", ())


def test_a_root_that_is_not_there_is_not_safe(tmp_path: Path, disk: Destination) -> None:
    """An unmounted disk looks like this: nothing is known of what is on it."""
    (tmp_path / "empty").mkdir()
    for root in (tmp_path / "missing", tmp_path / "empty"):
        verdict = safe_to_terminate(root, disk, persistent=True)
        assert (verdict.safe, verdict.kept, [each.code for each in verdict.obstacles]) == (False, "", ["no_runs"])


def test_obstacles_are_named(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    train_to(run, 25)
    assert codes(run, disk) == {("one", "behind")}
    make_run(run.root, "two", 10)
    assert codes(run, disk) == {("one", "behind"), ("two", "no_backup")}
    assert codes(run, None) == {(name, "no_destination") for name in ("one", "two", "one_addition")}
    same = folder_destination(tmp_path / "disk", same_disk=True)
    assert codes(run, same) == {(name, "same_disk") for name in ("one", "two", "one_addition")}
    assert not safe_to_terminate(run.root, same).safe


def test_live_work_forbids_termination(run: RunDir, disk: Destination) -> None:
    me = identity()
    before = run.status_file.read_text()
    set_state(run, "running", pid=me.pid, pid_start=me.pid_start, host=me.host, boot_id=me.boot_id)
    assert ("one", "live") in codes(run, disk)
    run.status_file.write_text(before)
    status = run.root / "eval_runs" / "one_addition" / "status.json"
    finished = status.read_text()
    announce(run, 10)
    assert ("one_addition", "live") in codes(run, disk, persistent=True)
    status.write_text(finished)
    assert codes(run, disk) == set()
    with other_process_at_work(run):
        assert codes(run, disk) == {("one", "live")}
    assert codes(run, disk) == set()


@contextmanager
def other_process_at_work(run: RunDir) -> Iterator[None]:
    command = ["tail", "-f", "/dev/null"]
    with running(command, run.root, run_id_of(run.path), GRPO_RUN_ID=run_id_of(run.path)):
        yield


def test_backup_at_work_forbids_termination(run: RunDir, disk: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    with working_on(run.root, "training_runs", "one", "backup"):
        monkeypatch.setattr(terminate.os, "getpid", lambda: 0)
        assert ("training_runs.one", "live") in codes(run, disk)


def test_mount_that_outlives_the_box_is_safe(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = folder_destination(tmp_path / "empty")
    assert not safe_to_terminate(run.root, empty).safe
    verdict = safe_to_terminate(run.root, empty, persistent=True)
    assert (verdict.safe, verdict.kept, len(verdict.obstacles)) == (True, "mount", 2)
    here = terminate.mount_of(run.root)
    assert here is not None
    assert here.kind not in ("", *terminate.NETWORK_FILE_SYSTEMS)
    monkeypatch.setattr(terminate, "mount_of", lambda path: Mount("0:50", "/lambda/nfs", "nfs4", "server:/export"))
    assert safe_to_terminate(run.root, None).kept == "mount"


# ------------------------------------------------------------------------------------------------------ archives


def test_archived_run_moves_and_shares_its_objects(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    before = contents(run.path)
    sent = {key: data for key, data in objects(disk).items() if "/step_" in key or "/logs/" in key}
    result = archive_run(run, disk, note="the good one")
    target = run.root / "archive" / "completed_runs" / "one"
    assert result.path == str(target)
    assert not run.path.exists()
    assert contents(target) == before | {"note.txt": contents(target)["note.txt"]}
    after = {key: data for key, data in objects(disk).items() if "/step_" in key or "/logs/" in key}
    assert after == sent, "checkpoints and logs are not stored twice"
    assert RunDir(target).root == run.root
    old = Home("training_runs", "one", result.backup.identity)
    prune(run.root, old, disk, keep_last=1)
    assert safe_to_terminate(run.root, disk).safe
    restore_run(tmp_path / "b", "archive/completed_runs/one", disk)
    assert contents(tmp_path / "b" / "archive" / "completed_runs" / "one") == contents(target)


def test_run_in_use_is_not_archived(run: RunDir, disk: Destination) -> None:
    create_run(run.root, {"ckpt": "training_runs/one/training_state/step_20"}, "two")
    with pytest.raises(RunDirError, match="in use"):
        archive_run(run, disk)
    (run.training_state / "step_10" / "MANIFEST.json").unlink()
    with pytest.raises(RunDirError, match="not whole"):
        archive_run(run, disk)
    assert run.path.is_dir()


def test_important_checkpoint_is_copied(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    result = archive_checkpoint(run, 10, disk, note="best on gsm8k")
    target = run.root / "archive" / "important_checkpoints" / "one_step_10"
    assert contents(target / "step_10") == contents(run.training_state / "step_10")
    assert (target / "note.txt").read_text() == "best on gsm8k\n"
    assert json.loads((target / "launch.json").read_text())["run"] == "one"
    assert result.is_whole
    assert archive_checkpoint(run, 10, disk).backup.is_new is False
    restore_run(tmp_path / "b", "one_step_10", disk)
    assert contents(tmp_path / "b" / "archive" / "important_checkpoints" / "one_step_10") == contents(target)
    with pytest.raises(RunDirError, match="no checkpoint step_15"):
        archive_checkpoint(run, 15, disk)
    found = StoredRun(disk.store, Home("archive/important_checkpoints", "one_step_10", result.backup.identity))
    assert found.snapshot(1).is_complete
