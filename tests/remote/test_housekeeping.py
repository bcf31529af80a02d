"""Leftovers that an agent removes when it starts."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from grpo_train.run_dir import create_run
from grpo_train.run_dir.questions import ANSWERS, asks_folder, make_folder
from remote.agent.serve import remove_bundles, remove_staging
from remote.transports.bootstrap import build
from tests.support.agent import RawAgent, eventually

HOUR, DAY = 3_600.0, 86_400.0


def age(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def staging(root: Path, name: str, seconds: float) -> Path:
    path = root / "training_runs" / f".new-{name}"
    (path / "logs").mkdir(parents=True)
    return age(path, seconds)


def test_agent_removes_old_leftovers_at_start(root: Path) -> None:
    create_run(root, {}, "one")
    old, young = staging(root, "old", 2 * HOUR), staging(root, "young", HOUR / 2)
    target = root / "precious"
    target.mkdir()
    link = root / "training_runs" / ".new-link"
    link.symlink_to(target)
    bundles = build().path().parent
    stale, fresh = bundles / f"{'a' * 64}.pyz", bundles / f"{'b' * 64}.pyz"
    other, torn = bundles / "notes.txt", bundles / f"{'c' * 64}.pyz.17.tmp"
    for path in (stale, fresh, other, torn):
        path.write_bytes(b"")
    for path in (stale, other, torn):
        age(path, 31 * DAY)
    age(build().path(), 31 * DAY)
    asked = [asks_folder(root) / name for name in ("today", "long_ago")]
    for folder, seconds in zip(asked, (DAY / 2, 2 * DAY), strict=True):
        make_folder(folder)
        age(folder / ANSWERS, seconds)
    agent = RawAgent(root, process=True)
    eventually(lambda: not (old.exists() or stale.exists() or torn.exists()))
    eventually(lambda: [folder.exists() for folder in asked] == [True, False])
    assert young.exists()
    assert link.is_symlink()
    assert target.exists()
    assert fresh.exists()
    assert other.exists()
    assert time.time() - build().path().stat().st_mtime < DAY  # used now
    agent.close()


def test_staging_of_a_launch_in_progress_is_kept(root: Path) -> None:
    create_run(root, {}, "one")
    old = staging(root, "old", 5 * HOUR)  # the server of a network disk may have another clock
    with (root / "training_runs" / ".lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_staging(root)
    assert old.exists()
    remove_staging(root)
    assert not old.exists()


@pytest.mark.parametrize("name", ["agent.pyz", "__main__.py"])
def test_nothing_is_removed_beside_another_program(tmp_path: Path, name: str) -> None:
    stale = tmp_path / f"{'a' * 64}.pyz"
    stale.write_bytes(b"")
    age(stale, 60 * DAY)
    remove_bundles(tmp_path / name)
    assert stale.exists()
