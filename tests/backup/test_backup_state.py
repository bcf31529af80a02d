"""What the list of runs says about a backup, without asking the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.backup.destinations import Destination
from grpo_train.backup.job import working_on
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.store import Trust
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.backup_note import LastBackup, parse_last_backup
from grpo_train.run_dir.identity import NOTE
from remote.agent.box import BoxContext
from remote.agent.topics import RunTable
from remote.gate import topic_event
from remote.protocol import Settings
from tests.support.backups import backup, folder_destination, make_run, rewind, save, train_to


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path: Path) -> Destination:
    return folder_destination(tmp_path / "disk")


def state(root: Path, name: str = "one") -> dict[str, Any] | None:
    """The field of a run's row that the app gets, through the gate."""
    rows = RunTable(BoxContext(Settings(), root, None)).rows()
    admitted = topic_event("runs", {"value": {"runs": rows}})
    found = next(row for row in admitted.runs if row["run"] == name)  # type: ignore[union-attr]
    assert found["state"] == "stopped"
    return found.get("backup")


def step_and_behind(root: Path) -> tuple[int, int]:
    found = state(root)
    assert found is not None
    return found["step"], found["behind"]


def test_a_backup_falls_behind_and_catches_up(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 2, 4)
    assert state(root) is None
    backup(run, disk)
    found = state(root)
    assert found is not None
    assert (found["destination"], found["same_disk"], found["step"], found["behind"]) == ("disk", False, 4, 0)
    assert abs(found["time"] - disk.store.now()) < 3600
    train_to(run, 5)
    assert step_and_behind(root) == (4, 1)
    train_to(run, 6)
    save(run, 6)
    assert step_and_behind(root) == (4, 2)
    backup(run, disk)
    backup(run, disk)
    assert step_and_behind(root) == (6, 0)


def test_a_step_saved_after_its_log_is_behind(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 2)
    train_to(run, 4)
    backup(run, disk)
    assert step_and_behind(root) == (2, 0)
    save(run, 4)
    assert step_and_behind(root) == (2, 2)


def test_superseded_steps_do_not_count(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 2, 4, 8)
    backup(run, disk)
    rewind(run, 4)
    assert step_and_behind(root) == (4, 0)
    train_to(run, 9, salt="other")
    assert step_and_behind(root) == (4, 5)
    backup(run, disk)
    assert step_and_behind(root) == (4, 0)
    rewind(run, 4)  # to what the backup has
    assert step_and_behind(root) == (4, 0)


def test_a_second_disk_counts_before_the_same_one(root: Path, tmp_path: Path, disk: Destination) -> None:
    run = make_run(root, "one", 2)
    other = folder_destination(tmp_path / "other", same_disk=True)
    mount = Destination("mount", other.store, Trust("store-2", False, False, True), None)
    backup(run, mount)
    assert (state(root) or {})["same_disk"] is True
    backup(run, disk)
    train_to(run, 3)
    backup(run, mount)
    found = state(root)
    assert found is not None
    assert (found["destination"], found["behind"]) == ("disk", 1)


def test_a_restored_run_is_known_to_be_in_the_backup(root: Path, disk: Destination) -> None:
    run = make_run(root, "one", 2, 4)
    backup(run, disk)
    home = Home("training_runs", "one", read_record(run.path).identity)
    shutil.rmtree(run.path)
    restore_folder(root, home, disk)
    assert step_and_behind(root) == (4, 0)
    restore_folder(root, home, disk, as_name="two")
    assert state(root, "two") is None  # a run of its own


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=300), st.lists(st.none())
)
KEYS = ("destination", "same_disk", "step", "log_step", "events_bytes", "time")
GOOD = {"destination": "disk", "same_disk": False, "step": 2, "log_step": 2, "events_bytes": 0, "time": 1.5}


@given(st.one_of(scalars, st.dictionaries(st.sampled_from(KEYS), scalars).map(lambda bad: {**GOOD, **bad})))
def test_any_json_is_parsed_or_left_out(row: Any) -> None:
    found = parse_last_backup(row)
    assert found is None or (found.destination.isprintable() and found.step >= 0 and found.time >= 0)
    assert parse_last_backup(GOOD) == LastBackup("disk", False, 2, 2, 0, 1.5)


@settings(max_examples=40)
@given(st.one_of(scalars, st.dictionaries(st.sampled_from(KEYS), scalars).map(lambda bad: {**GOOD, **bad})))
def test_a_hostile_note_costs_only_the_backup(tmp_path_factory: pytest.TempPathFactory, latest: Any) -> None:
    root = tmp_path_factory.getbasetemp() / "hostile"
    run = RunDir(root / "training_runs" / "one") if root.exists() else make_run(root, "one", 2)
    note = {"identity": "0" * 16, "stores": {"a": {"known": 1, "claimed": 0, "read_back": 0, "latest": latest}, "b": 3}}
    (run.path / NOTE).write_text(json.dumps(note))
    found = state(root)
    assert found is None or (0 <= found["step"] <= 2**53 and 0 <= found["behind"] <= 2**53)


def test_progress_of_a_command_is_in_the_row(root: Path) -> None:
    make_run(root, "one", 2)
    table = RunTable(BoxContext(Settings(), root, None))
    with working_on(root, "training_runs", "one", "backup", "disk") as job:
        job.update(phase="sending", bytes=5, bytes_total=10)
        (found,) = table.rows()
        assert {key: found["transfer"][key] for key in ("command", "phase", "bytes", "bytes_total")} == {
            "command": "backup", "phase": "sending", "bytes": 5, "bytes_total": 10,
        }  # fmt: skip
        (root / "transfers" / "training_runs.one" / "progress.jsonl").write_text(
            json.dumps({"phase": 3, "bytes": -1, "bytes_total": 1e300, "seconds": "x"}) + "\n"
        )
        rows = RunTable(BoxContext(Settings(), root, None)).rows()
        (admitted,) = topic_event("runs", {"value": {"runs": rows}}).runs  # type: ignore[union-attr]
        assert (admitted["state"], admitted["transfer"]["phase"], admitted["transfer"]["bytes"]) == ("stopped", "", 0)
    assert "transfer" not in RunTable(BoxContext(Settings(), root, None)).rows()[0]
