"""``grpo-train backup`` and its companions: exit codes, JSON, what a user reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir
from tests.support.backups import bytes_of, make_evaluation, make_run, save, train_to
from tests.support.engine import command_here
from tests.support.stores import other_disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(tmp_path: Path, home: Path) -> Path:
    """The first destination of this user."""
    folder = tmp_path / "disk"
    folder.mkdir()
    (home / ".config" / "grpo-tui").mkdir(parents=True)
    (home / ".config" / "grpo-tui" / "backup.yaml").write_text(f"destinations:\n  - {{name: disk, folder: {folder}}}\n")
    return folder


def run_json(*arguments: object, root: Path, code: int = 0) -> Any:
    done = command_here(*arguments, "--json", root=root)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_backup_to_restore_on_another_box(root: Path, disk: Path, tmp_path: Path) -> None:
    run = make_run(root, "one", 10, 20)
    make_evaluation(root, "one", "addition", 10)
    done = run_json("backup", "--training-run", "one", root=root)
    assert (done["snapshot"], done["is_new"], done["steps"]) == (1, True, [10, 20])
    assert [each["name"] for each in done["evaluations"]] == ["one_addition"]
    (row,) = run_json("list-backups", "--training-run", "one", root=root)
    assert (row["snapshots"][0]["state"], row["lag"]["steps"], row["same_disk"]) == ("complete", [], True)
    checked, evaluation = run_json("verify-backup", "one", root=root)
    assert checked["objects"] == checked["objects_total"] > 10
    assert evaluation["objects"] == evaluation["objects_total"] > 0
    before = bytes_of(run.path)
    shutil.rmtree(root)
    other = tmp_path / "other"
    restored = run_json("restore", "--training-run", "one", root=other)
    assert restored["steps"] == [10, 20]
    assert bytes_of(other / "training_runs" / "one") == before
    assert (other / "eval_runs" / "one_addition" / "eval_config.yaml").exists()


def test_exit_codes_say_what_to_do(root: Path, disk: Path) -> None:
    run = make_run(root, "one", 10, 20)
    assert run_json("backup", "--training-run", "oen", root=root, code=2)["error"]["code"] == "no_run"
    assert run_json("restore", "--training-run", "one", root=root, code=2)["error"]["code"] == "no_backup"
    bad = run_json("backup", "--training-run", "one", "--to", "dsik", root=root, code=2)
    assert "did you mean disk" in bad["error"]["message"]
    (run.training_state / "step_10" / "MANIFEST.json").unlink()
    done = command_here("backup", "--training-run", "one", root=root)
    assert done.returncode == 3
    assert "warning: training_state/step_10: MANIFEST.json is missing" in done.stderr
    shutil.rmtree(disk)
    gone = run_json("backup", "--training-run", "one", root=root, code=2)
    assert gone["error"]["code"] == "no_bucket"


OF_A_DESTINATION = ("list-backups", "verify-backup", "prune-backups")


@pytest.mark.parametrize("name", ["backup-all", "clean", "history", *OF_A_DESTINATION])
def test_a_root_that_is_missing_or_empty(name: str, tmp_path: Path, disk: Path) -> None:
    """What works on the root refuses a missing one; what works on the destination does not need it."""
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    (empty / "training_runs").mkdir(parents=True)
    done = command_here(name, root=missing)
    if name in OF_A_DESTINATION:
        assert (done.returncode, done.stdout.startswith("no backups")) == (0, True)
    else:
        assert done.returncode == 2
        assert f"the root {missing} is not a directory here" in done.stderr
    assert not missing.exists()
    done = command_here(name, root=empty)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
    (empty / "training_runs").rmdir()
    done = command_here(name, root=empty)
    assert done.returncode == (2 if name == "backup-all" else 0), "its disk may not be mounted"


def test_plain_output_names_what_was_done(root: Path, disk: Path, tmp_path: Path) -> None:
    run = make_run(root, "one", 10)
    out = command_here("backup", "--training-run", "one", root=root).stdout
    assert "training_runs/one: snapshot 1 in disk, sent" in out
    assert "unchanged since snapshot 1" in command_here("backup-all", root=root).stdout
    train_to(run, 15)
    listed = command_here("list-backups", root=root).stdout
    assert "behind: 5 logged steps, same disk" in listed
    save(run, 15)
    assert "behind: steps 15" in command_here("list-backups", "--training-run", "one", root=root).stdout
    assert "would send" in command_here("backup", "--training-run", "one", "--dry-run", root=root).stdout
    assert "0 damaged" in command_here("verify-backup", "--sample", "50%", root=root).stdout
    (run.path / ".backup.json").unlink()
    (run.path / ".backup.json").symlink_to(".backup.json")
    listed = command_here("list-backups", root=root).stdout
    assert f"training_runs/one: not compared: {run.path}/.backup.json: Too many levels of symbolic links" in listed
    (manifest,) = disk.rglob("manifest.json")
    kept = manifest.read_bytes()
    manifest.write_bytes(b"damaged")
    listed = command_here("list-backups", root=root).stdout
    assert "training_runs/one: snapshot 1 is damaged: training_runs/one" in listed, listed
    manifest.write_bytes(kept)
    restored = command_here("restore", "--training-run", "one", "--steps", "logs", root=tmp_path / "b").stdout
    assert "restored from snapshot 1, no checkpoints" in restored
    added = command_here("restore", "--training-run", "one", root=tmp_path / "b").stdout
    assert "completed from snapshot 1, steps 10" in added
    assert RunDir(tmp_path / "b/training_runs/one").checkpoint("latest", deep=True).step == 10


def test_progress_is_where_the_agent_looks(root: Path, disk: Path) -> None:
    make_run(root, "one", 10)
    run_json("backup", "--training-run", "one", root=root)
    folder = root / "transfers" / "training_runs.one"
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["command"], status["pending"]) == ("finished", "backup", [])
    rows = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows][-1] == "done"
    assert rows[-1]["bytes"] == rows[-1]["bytes_total"] == rows[-1]["proven"] > 0


# ----------------------------------------------------------------------------------- what a backup makes possible


@pytest.fixture
def elsewhere(disk: Path) -> Iterator[Path]:
    """The destination, on another disk than the root."""
    config = disk.parent / "home" / ".config" / "grpo-tui" / "backup.yaml"
    with other_disk(disk.parent) as folder:
        config.write_text(f"destinations:\n  - {{name: disk, folder: {folder}}}\n")
        yield folder


def test_cleanup_on_the_same_disk_is_refused(root: Path, disk: Path) -> None:
    make_run(root, "one", 10, 20)
    run_json("backup", "--training-run", "one", root=root)
    refused = run_json("cleanup", "--training-run", "one", "--keep-latest", "--yes", root=root, code=2)
    assert refused["error"]["code"] == "same_disk"
    assert run_json("safe-to-terminate", root=root, code=1)["obstacles"][0]["code"] == "same_disk"


def test_cleanup_shows_a_plan_first(root: Path, elsewhere: Path) -> None:
    run = make_run(root, "one", 10, 20, 30)
    run_json("backup", "--training-run", "one", root=root)
    plan = command_here("cleanup", "--training-run", "one", "--keep-latest", "--dry-run", root=root)
    assert (plan.returncode, "remove  training_state/step_10" in plan.stdout) == (0, True)
    asked = command_here("cleanup", "--training-run", "one", "--keep-latest", root=root)
    assert (asked.returncode, "add --yes" in asked.stderr) == (2, True)
    untold = command_here("cleanup", "--training-run", "one", root=root)
    assert (untold.returncode, "choose --keep-latest or --keep N" in untold.stderr) == (2, True)
    alone = command_here("backup", "--training-run", "one", "--keep-latest", root=root)
    assert (alone.returncode, "need --cleanup" in alone.stderr) == (2, True)
    assert [c.step for c in run.checkpoints()] == [10, 20, 30]
    done = run_json("cleanup", "--training-run", "one", "--keep", "2", "--yes", root=root)
    assert [each["step"] for each in done["removed"]] == [10]
    done = run_json("cleanup", "--training-run", "one", "--keep", "2", "--yes", root=root)
    assert (done["removed"], [each["step"] for each in done["kept"]]) == ([], [20, 30])
    again = run_json("backup", "--training-run", "one", "--cleanup", "--keep-latest", root=root)
    assert [each["step"] for each in again["removed"]] == [20]
    shown = command_here("show", "one", root=root).stdout
    assert "step_10     in backup (disk)" in shown
    assert run_json("safe-to-terminate", root=root)["safe"] is True
    assert "safe to terminate" in command_here("safe-to-terminate", root=root).stdout
    restored = run_json("restore", "--training-run", "one", "--steps", "10", root=root)
    assert restored["steps"] == [10]
    assert [c.step for c in run.checkpoints()] == [10, 30]


def test_all_runs_are_cleaned_up_after_their_own_backup(root: Path, elsewhere: Path) -> None:
    one, two = make_run(root, "one", 10, 20), make_run(root, "two", 10, 20, 30)
    make_evaluation(root, "one", "addition", 20)
    alone = command_here("backup-all", "--keep", "2", root=root)
    assert (alone.returncode, "need --cleanup" in alone.stderr) == (2, True)
    dry = command_here("backup-all", "--cleanup", "--keep-latest", "--dry-run", root=root)
    assert (dry.returncode, [c.step for c in one.checkpoints()]) == (0, [10, 20])
    done = run_json("backup-all", "--cleanup", "--keep", "2", root=root)
    assert {each["run"]: len(each["removed"]) for each in done["cleaned"]} == {"one": 0, "two": 1}
    shown = command_here("backup-all", "--cleanup", "--keep-latest", root=root).stdout
    assert "one: removed 1 checkpoints" in shown
    assert [[c.step for c in run.checkpoints()] for run in (one, two)] == [[20], [30]]
    assert run_json("safe-to-terminate", root=root)["safe"] is True


def test_archive_and_prune_from_a_shell(root: Path, disk: Path) -> None:
    run = make_run(root, "one", 10)
    for step in (20, 30):
        run_json("backup", "--training-run", "one", root=root)
        train_to(run, step)
        save(run, step)
    kept = run_json("archive", "one", "--step", "20", "--note", "good", root=root)
    assert kept["path"].endswith("archive/important_checkpoints/one_step_20")
    asked = command_here("prune-backups", "one", "--keep-last", "1", root=root)
    assert (asked.returncode, "add --yes" in asked.stderr) == (2, True)
    assert "would be marked 1" in asked.stdout
    (pruned,) = run_json("prune-backups", "one", "--keep-last", "1", "--yes", root=root)
    assert (pruned["marked"], pruned["removed"]) == ([1], [])
    (again,) = run_json("prune-backups", "one", "--keep-last", "1", root=root)
    assert (again["marked"], again["waiting"]) == ([1], [1]), "nothing to confirm"
    assert run_json("prune-backups", "--drop-steps", "10", root=root, code=2)["error"]["code"] == "bad_option"
    moved = run_json("archive", "one", root=root)
    assert (root / "archive" / "completed_runs" / "one").is_dir()
    again = run_json("archive", "one", root=root)
    assert (again["path"], again["backup"]["is_new"]) == (moved["path"], False), "as after a kill"
    assert moved["verified"]["damaged"] == []


def test_a_backup_starts_without_the_schema_of_configs() -> None:
    code = "import sys, grpo_train.cli.tidy, grpo_train.backup.take; print('grpo_train.config.schema' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
