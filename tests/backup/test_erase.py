"""What a self-test leaves in a store: nothing of its own, and everything of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_train.backup.backup_yaml import Bucket, Folder
from grpo_train.backup.destinations import Destination
from grpo_train.backup.leftovers import erase
from grpo_train.backup.runs import back_up_run
from grpo_train.backup.store import StoreError, Trust
from grpo_train.cli.selftest import _Test, removal_command
from tests.support.backups import make_run
from tests.support.stores import new_store, write_destinations


def destination(kind: str, tmp_path: Path) -> Destination:
    return Destination("store", new_store(kind, tmp_path / "store"), Trust("store-1", False, False, False), None)


def objects(to: Destination) -> dict[str, int]:
    return {entry.key: entry.size for entry in to.store.entries("")}


def evaluation(root: Path, run: str) -> None:
    folder = root / "eval_runs" / f"{run}_addition"
    folder.mkdir(parents=True)
    (folder / "eval_config.yaml").write_text(f"training_run: {run}\nroot: {root}\n")
    (folder / "status.json").write_text(json.dumps({"state": "finished", "training_run": run}))


@pytest.mark.parametrize("kind", ["folder", "rclone"])
def test_only_objects_of_the_own_identity_are_removed(kind: str, tmp_path: Path) -> None:
    to = destination(kind, tmp_path)
    other = make_run(tmp_path / "other", "selftest", 1)
    evaluation(other.root, "selftest")
    back_up_run(other.root, "training_runs", "selftest", to)
    before = objects(to)
    mine = make_run(tmp_path / "mine", "selftest", 1, 2)
    (mine.path / "launch.json").write_text(json.dumps({"argv": ["grpo-train", "selftest"]}))
    evaluation(mine.root, "selftest")
    for _ in range(2):
        back_up_run(mine.root, "training_runs", "selftest", to)
    assert len(objects(to)) > len(before)
    erased = erase(to.store, mine.root)
    assert objects(to) == before
    assert [prefix.partition("/")[0] for prefix in erased.prefixes] == ["training_runs", "eval_runs"]
    assert erase(to.store, mine.root).objects == 0


def test_another_run_under_the_identity_is_not_touched(tmp_path: Path) -> None:
    to = destination("folder", tmp_path)
    mine = make_run(tmp_path / "mine", "selftest", 1)
    back_up_run(mine.root, "training_runs", "selftest", to)
    before = objects(to)
    (mine.path / "launch.json").write_text("{}")  # its note has the identity of the backup
    with pytest.raises(StoreError, match="is not of") as caught:
        erase(to.store, mine.root)
    assert caught.value.code == "not_ours"
    assert objects(to) == before


def test_what_cannot_be_removed_is_named_with_its_command(tmp_path: Path, home: Path) -> None:
    write_destinations({"name": "disk", "folder": str(tmp_path / "gone")})
    test = _Test(tmp_path / "scratch", tmp_path, "disk")
    run = make_run(tmp_path / "scratch" / "root", "selftest", 1)
    row = test.erase("disk")
    assert row.result == "failed"
    assert f"rm -r {tmp_path}/gone/training_runs/{run.name}--" in row.detail
    bucket = Bucket(name="s3", bucket="b", prefix="p/q", endpoint="https://e")
    expected = "aws s3 rm --recursive --endpoint-url https://e s3://b/p/q/training_runs/x--0/"
    assert removal_command(bucket, "training_runs/x--0/") == expected
    assert removal_command(Folder(name="d", folder="/a b/"), "k/") == "rm -r '/a b/k/'"
