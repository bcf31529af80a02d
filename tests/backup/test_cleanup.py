"""Removing checkpoints here that a backup holds: what goes, what never goes, what each removal is preceded by."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup import cleanup
from grpo_train.backup.cleanup import CleanupResult, clean_up, plan_cleanup
from grpo_train.backup.destinations import Destination
from grpo_train.backup.overview import lag_of
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.take import back_up
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, create_run
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.run_dir.processes import identity, run_id_of, start_ticks
from tests.support.backups import (
    CONFIG,
    contents,
    folder_destination,
    make_evaluation,
    make_run,
    rewind,
    save,
    set_state,
    train_to,
)
from tests.train.test_retention import announce


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "root", "one", 10, 20, 30, 40)


@pytest.fixture
def disk(tmp_path: Path, run: RunDir) -> Destination:
    """A destination with a backup of the run."""
    to = folder_destination(tmp_path / "disk")
    back_up(run.root, "training_runs", run.name, to)
    return to


def steps(run: RunDir) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def test_backed_up_steps_go_and_come_back(run: RunDir, disk: Destination) -> None:
    before = contents(run.training_state)
    plan = plan_cleanup(run, disk)
    assert [spare.step for spare in plan.spare] == [10, 20, 30]
    assert (plan.snapshot, plan.store) == (1, disk.store.url)
    assert plan.bytes == sum(each.bytes for each in plan.spare) > 0
    result = clean_up(run, disk)
    assert [spare.step for spare in result.removed] == [10, 20, 30]
    assert steps(run) == [40]
    assert not list(run.training_state.glob(".*"))
    with pytest.raises(RunDirError, match="it is in backup: grpo-train restore --training-run one --steps 20 --from"):
        run.checkpoint(20)
    back_up(run.root, "training_runs", "one", disk)
    restore_folder(run.root, Home("training_runs", "one", read_record(run.path).identity), disk)
    assert contents(run.training_state) == before


@pytest.mark.parametrize("keep", [2, 3, 9])
def test_the_newest_stay(run: RunDir, disk: Destination, keep: int) -> None:
    clean_up(run, disk, keep)
    assert steps(run) == [10, 20, 30, 40][-keep:]


def test_same_disk_licenses_nothing(run: RunDir, tmp_path: Path, disk: Destination) -> None:
    same = folder_destination(tmp_path / "disk", same_disk=True)
    with pytest.raises(RunDirError, match="on the same disk") as caught:
        clean_up(run, same)
    assert caught.value.code == "same_disk"
    assert steps(run) == [10, 20, 30, 40]


def test_steps_without_a_backup_stay(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    save(run, 35, latest=False)
    (run.training_state / "step_20" / "MANIFEST.json").write_text("{}")
    result = clean_up(run, disk)
    assert {each.path: each.reason for each in result.kept}["training_state/step_35"] == "not in snapshot 1"
    assert steps(run) == [20, 35, 40]
    with pytest.raises(RunDirError, match="no complete snapshot"):
        clean_up(run, folder_destination(tmp_path / "empty"))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def test_damaged_backups_license_nothing(run: RunDir, disk: Destination) -> None:
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_20--*/optimizer.pt")
    flip(file)
    result = clean_up(run, disk)
    assert "damaged" in {each.step: each.reason for each in result.kept}[20]
    assert steps(run) == [20, 40]


@pytest.mark.parametrize("how", [os.unlink, lambda file: os.truncate(file, 3)], ids=["remove", "cut"])
def test_incomplete_backups_license_nothing(run: RunDir, disk: Destination, how: Callable[[Path], Any]) -> None:
    (file,) = Path(disk.store.url).glob("training_runs/*/training_state/step_20--*/optimizer.pt")
    how(file)
    with pytest.raises(RunDirError, match="no complete snapshot"):
        clean_up(run, disk)
    assert steps(run) == [10, 20, 30, 40]


def test_objects_are_read_in_this_command(run: RunDir, disk: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each removal, every object of that checkpoint was read back since the command began."""
    read: list[str] = []
    store, remove = disk.store, cleanup.remove_unless_read
    original = store.read_back

    def read_back(key: str, *rest: Any) -> None:
        original(key, *rest)
        read.append(key)

    def check(run: RunDir, checkpoint: Any) -> bool:
        found = {key.rpartition("/")[2] for key in read if f"/step_{checkpoint.step}--" in key}
        assert found == {"MANIFEST.json", "optimizer.pt", "training_info.json", "weights.safetensors"}
        return remove(run, checkpoint)

    monkeypatch.setattr(store, "read_back", read_back)
    monkeypatch.setattr(cleanup, "remove_unless_read", check)
    assert len(clean_up(run, disk).removed) == 3


def test_needed_steps_stay(run: RunDir, disk: Destination, tmp_path: Path) -> None:
    def reasons() -> dict[int, str]:
        return {each.step: each.reason for each in plan_cleanup(run, disk).kept}

    announce(run, 10)
    assert "in use" in reasons()[10]
    (run.root / "eval_runs" / "one_addition" / "status.json").unlink()
    create_run(run.root, {"ckpt": "training_runs/one/training_state/step_20/model"}, "two")
    assert "in use" in reasons()[20]
    run.config_file.write_text(CONFIG.replace("keep_every: 0", "keep_every: 30"))
    assert "milestone" in reasons()[30]
    make_evaluation(run.root, "one", "gsm8k", 10, 20)
    assert "best on" in reasons()[20]
    atomic_symlink(run.training_state / "step_final", "step_10")
    assert "step_final" in reasons()[10]
    assert plan_cleanup(run, disk).spare == ()
    for content, reason in (
        ("model: [", "invalid YAML"),
        ("null", "'run' must be a section with keys and values"),
        ("run: {keep_every: often}", "'run.keep_every' must be an integer"),
        ("run: {}", "'model.backbone' must be a text"),
    ):
        run.config_file.write_text(content)
        message = f"cannot tell which checkpoints are needed: {run.config_file} is damaged: .*{reason}"
        with pytest.raises(RunDirError, match=message):
            clean_up(run, disk)


def test_live_runs_are_left_alone(run: RunDir, disk: Destination) -> None:
    me = identity()
    set_state(run, "running", pid=me.pid, pid_start=me.pid_start, host=me.host, boot_id=me.boot_id)
    with pytest.raises(RunDirError, match="is active"):
        clean_up(run, disk)
    set_state(run, "stopped")
    writer = StatusWriter(run.path)
    with pytest.raises(RunDirError, match="another process is writing"):
        clean_up(run, disk)
    writer.close()
    assert steps(run) == [10, 20, 30, 40]


def test_own_supervisor_may_clean_up(run: RunDir, disk: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stage of a workflow, while the supervisor is live and holds the lock."""
    parent = os.getppid()
    me = identity()
    set_state(run, "evaluating", pid=parent, pid_start=start_ticks(parent), host=me.host, boot_id=me.boot_id)
    writer = StatusWriter(run.path)
    with pytest.raises(RunDirError, match="another process is writing"):
        clean_up(run, disk)
    monkeypatch.setenv("GRPO_RUN_ID", run_id_of(run.path))
    assert len(clean_up(run, disk).removed) == 3
    writer.close()
    assert steps(run) == [40]


def test_superseded_steps_go_too(run: RunDir, disk: Destination) -> None:
    rewind(run, 20)
    train_to(run, 25, "again")
    save(run, 25, "again")
    back_up(run.root, "training_runs", "one", disk)
    result: CleanupResult = clean_up(run, disk)
    assert sorted(spare.step for spare in result.removed) == [10, 20, 30, 40]
    assert steps(run) == [25]
    back_up(run.root, "training_runs", "one", disk)
    restore_folder(run.root, Home("training_runs", "one", read_record(run.path).identity), disk)
    assert steps(run) == [10, 20, 25]
    assert run.checkpoint("latest", deep=True).step == 25


def test_logs_and_configs_are_never_removed(run: RunDir, disk: Destination) -> None:
    before = {name: value for name, value in contents(run.path).items() if "step_" not in name and "events" not in name}
    clean_up(run, disk)
    after = contents(run.path)
    assert {name: after.get(name) for name in before} == before
    assert [row["steps"] for row in run.read_log("events.jsonl") if row["event"] == "cleaned_up"] == [[10], [20], [30]]


def test_backup_after_a_cleanup_is_up_to_date(run: RunDir, disk: Destination) -> None:
    clean_up(run, disk)
    result = back_up(run.root, "training_runs", "one", disk)
    assert result.steps == (10, 20, 30, 40)
    home = Home("training_runs", "one", result.identity)
    newest = StoredRun(disk.store, home).newest()
    assert newest is not None
    assert lag_of(run.path, newest.manifest, home).is_none
