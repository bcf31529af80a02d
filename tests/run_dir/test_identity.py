"""The identity of a run: the same wherever a copy is, another for every run."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from grpo_train.run_dir import create_run
from grpo_train.run_dir.identity import directory_identity


def test_identity_is_the_hash_of_the_launch(tmp_path: Path) -> None:
    run = create_run(tmp_path / "a", {}, "demo")
    expected = hashlib.sha256(run.launch_file.read_bytes()).hexdigest()[:16]
    assert directory_identity(run.path) == run.summary()["identity"] == expected


def test_runs_of_one_name_differ(tmp_path: Path) -> None:
    one, other = (create_run(tmp_path / root, {"argv": [root]}, "demo") for root in ("a", "b"))
    assert directory_identity(one.path) != directory_identity(other.path)


def test_copies_have_one_identity(tmp_path: Path) -> None:
    run = create_run(tmp_path / "a", {}, "demo")
    copy = shutil.copytree(run.path, tmp_path / "b" / "training_runs" / "renamed")
    run.log_event("stopped")
    assert directory_identity(copy) == directory_identity(run.path)


def test_a_directory_without_a_launch_is_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    (folder / "step_1").mkdir(parents=True)
    (folder / "step_1" / "weights").write_bytes(b"w")
    (folder / "link").symlink_to("step_1")
    before = directory_identity(folder)
    assert directory_identity(shutil.copytree(folder, tmp_path / "copy", symlinks=True)) == before
    (folder / "step_1" / "weights").write_bytes(b"v")
    assert directory_identity(folder) != before
    (folder / "eval_config.yaml").write_text("a: 1\n")
    assert directory_identity(folder) == hashlib.sha256(b"a: 1\n").hexdigest()[:16]
