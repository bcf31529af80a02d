"""The identity of a run: the same wherever a copy is, another for every run."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import create_run
from grpo_train.run_dir.identity import NOTE, NOTE_FILE, read_note, run_identity
from grpo_train.run_dir.safe_json import noting_left_out


def test_identity_is_the_hash_of_the_launch(tmp_path: Path) -> None:
    run = create_run(tmp_path / "a", {}, "demo")
    expected = hashlib.sha256(run.launch_file.read_bytes()).hexdigest()[:16]
    assert run_identity(run.path) == (expected, "")
    assert run.summary()["identity"] == expected


def test_runs_of_one_name_differ(tmp_path: Path) -> None:
    one, other = (create_run(tmp_path / root, {"argv": [root]}, "demo") for root in ("a", "b"))
    assert run_identity(one.path) != run_identity(other.path)


def test_copies_have_one_identity(tmp_path: Path) -> None:
    run = create_run(tmp_path / "a", {}, "demo")
    copy = shutil.copytree(run.path, tmp_path / "b" / "training_runs" / "renamed")
    run.log_event("stopped")
    assert run_identity(copy) == run_identity(run.path)


def test_a_copy_that_goes_on_has_its_own(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "demo")
    note = {"identity": "f" * 16, "parent": "a" * 16, "stores": {}}
    (run.path / NOTE).write_text(json.dumps(note))
    assert run_identity(run.path) == ("f" * 16, "a" * 16)
    row = run.summary()
    assert (row["identity"], row["parent"]) == ("f" * 16, "a" * 16)


@pytest.mark.parametrize("note", [{"identity": 3, "stores": [1]}, {"stores": {"s": 1, "t": {"known": "x"}}}, [], "{"])
def test_a_damaged_note_is_ignored(tmp_path: Path, note: Any) -> None:
    run = create_run(tmp_path, {}, "demo")
    (run.path / NOTE).write_text(note if isinstance(note, str) else json.dumps(note))
    assert run_identity(run.path) == (hashlib.sha256(run.launch_file.read_bytes()).hexdigest()[:16], "")


def test_without_a_launch_it_is_unknown(tmp_path: Path) -> None:
    assert run_identity(tmp_path).identity == ""


def test_a_note_that_is_not_a_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / NOTE_FILE).mkdir()
    with noting_left_out() as left:
        assert read_note(tmp_path) == ""
    assert list(left) == [str(tmp_path / NOTE_FILE)]
