"""A manifest that anyone may have written is refused before anything is written, or just works."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from grpo_train.backup.destinations import Destination
from grpo_train.backup.record import read_record
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home, Snapshot, parse_snapshot
from grpo_train.backup.snapshots import StoredRun, completion_of, homes
from grpo_train.backup.take import back_up
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.safe_json import Unreadable
from tests.support.any_json import mutated
from tests.support.backups import contents, folder_destination, make_run
from tests.support.stores import whole

HEX = "0" * 64
PART = {"size": 3, "sha256": HEX, "key": "training_runs/one--0123456789abcdef/files/x"}
FILE = {"path": "config.yaml", "mode": 0o644, **PART}


def document(**changes: Any) -> dict[str, Any]:
    empty = Snapshot("training_runs", "one", "0123456789abcdef", 1, "", "", "", "stopped", False)
    return {**json.loads(empty.to_json()), **changes}


def parse(**changes: Any) -> Snapshot:
    return parse_snapshot(json.dumps(document(**changes)).encode())


def step(path: str = "training_state/step_1", **changes: Any) -> dict[str, Any]:
    return {"step": 1, "digest": HEX, "path": path, "on_box": True, "files": [FILE], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{**FILE, "path": path}]}
        for path in ("/etc/passwd", "../x", "a/../../x", "", ".", "a//b", "a\0b", "a\nb", "x" * 300, "\ud800")
    ]
    + [
        {"files": [{**FILE, "key": key}]} for key in ("/x", "../x", "training_runs/../x")
    ]
    + [
        {"files": [FILE, FILE]},
        {"files": [FILE, {**FILE, "path": "config.yaml/below"}]},
        {"files": [{**FILE, "path": "logs/x"}], "links": [{"path": "logs", "target": "elsewhere"}]},
        {"links": [{"path": "link", "target": "/etc"}]},
        {"links": [{"path": "link", "target": "../../x"}]},
        {"links": [{"path": "../link", "target": "x"}]},
        {"steps": [step("../step_1")]},
        {"steps": [step(files=[{**FILE, "path": "../x"}])]},
        {"steps": [step(), step()]},
        {"weights": [{"path": "/models", "source": "", "files": []}]},
        {"files": [{**FILE, "size": -1}]},
        {"files": [{**FILE, "size": 1 << 60}]},
        {"files": [{**FILE, "sha256": "g" * 64}]},
        {"files": [{**FILE, "mode": 0o4755}]},
        {"files": [{"path": "x", "mode": 0, "size": 9, "segments": [PART]}]},
        {"number": True}, {"number": 10**9}, {"name": "a/b"}, {"name": ".."}, {"kind": "etc"}, {"identity": "x"},
        {"format": 2}, {"log_steps": []}, {"steps": {}}, {"live": 1},
    ],
)  # fmt: skip
def test_impossible_entries_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        parse(**changes)


def test_possible_entries_are_read() -> None:
    assert parse(files=[FILE], steps=[step()]).steps[0].files[0].parts[0].sha256 == HEX


FULL = document(files=[FILE], steps=[step()], links=[{"path": "a/link", "target": "x"}], log_steps={"logs/x": 3})


@given(mutated([FULL]))
def test_any_json_is_read_or_refused(row: Any) -> None:
    try:
        parse_snapshot(json.dumps(row).encode())
    except Unreadable:
        pass


def rewrite(to: Destination, home: Home, **changes: Any) -> None:
    """Replace a manifest, with a matching COMPLETE."""
    key = home.snapshot(1, "manifest.json")
    row = json.loads(whole(to.store, key))
    data = json.dumps({**row, **changes}).encode()
    to.store.write_small(key, data)
    to.store.write_small(home.snapshot(1, "COMPLETE"), completion_of(data))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "root", "one", 10)


@pytest.fixture
def disk(tmp_path: Path, run: RunDir) -> Destination:
    to = folder_destination(tmp_path / "disk")
    back_up(run.root, "training_runs", "one", to)
    return to


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{**FILE, "path": "../../../escaped"}]},
        {"files": [{**FILE, "key": "training_runs/other--0123456789abcdef/files/x"}]},
        {"identity": "0123456789abcdef"},
        {"number": 2},
        {"format": 9},
    ],
)
def test_restore_of_a_hostile_snapshot_writes_nothing(
    run: RunDir, disk: Destination, tmp_path: Path, changes: dict[str, Any]
) -> None:
    home = Home("training_runs", "one", read_record(run.path).identity)
    rewrite(disk, home, **changes)
    (tmp_path / "b").mkdir()
    with pytest.raises(RunDirError, match="no complete snapshot"):
        restore_folder(tmp_path / "b", home, disk)
    assert {name.split("/")[0] for name in contents(tmp_path / "b")} <= {"transfers"}
    assert not (tmp_path / "escaped").exists()
    found = StoredRun(disk.store, home).snapshot(1)
    assert (found.state, bool(found.reason)) == ("damaged", True)


def test_a_file_of_a_snapshot_is_no_file_of_the_run(run: RunDir, disk: Destination) -> None:
    home = Home("training_runs", "one", read_record(run.path).identity)
    rewrite(disk, home, files=[{**FILE, "key": home.snapshot(1, "manifest.json")}])
    assert "lies outside this run" in StoredRun(disk.store, home).snapshot(1).reason


def test_unfinished_states_are_named(run: RunDir, disk: Destination) -> None:
    home = Home("training_runs", "one", read_record(run.path).identity)
    complete = home.snapshot(1, "COMPLETE")
    data = whole(disk.store, complete)
    disk.store.delete([complete])
    assert StoredRun(disk.store, home).snapshot(1).state == "incomplete"
    disk.store.write_small(complete, hashlib.sha256(b"x").hexdigest().encode())
    assert StoredRun(disk.store, home).snapshot(1).state == "damaged"
    disk.store.write_small(complete, data)
    disk.store.delete([home.snapshot(1, "manifest.json")])
    assert "without manifest.json" in StoredRun(disk.store, home).snapshot(1).reason
    assert back_up(run.root, "training_runs", "one", disk).snapshot == 2


def test_foreign_names_in_a_store_are_passed_over(disk: Destination) -> None:
    for key in ("training_runs/notes.txt", "training_runs/.x--0123456789abcdef/y", "training_runs/no-identity/x"):
        disk.store.write_small(key, b"x")
    assert [home.name for home in homes(disk.store)] == ["one"]
