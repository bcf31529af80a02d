"""The mount that a path is on."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_train.run_dir import machine
from grpo_train.run_dir.machine import mount_of, read_mounts
from tests.support.mounts import mounted


def test_a_path_is_on_its_nearest_mount(tmp_path: Path) -> None:
    here = mount_of(tmp_path / "not made yet")
    assert here is not None
    device = os.stat(tmp_path).st_dev
    assert here.device == f"{os.major(device)}:{os.minor(device)}"
    folder = tmp_path / "a disk \\ of ours"
    folder.mkdir()
    with mounted(folder, "noexec"):
        inside = mount_of(folder / "deep" / "inside")
        assert inside is not None
        assert (inside.point, inside.kind, inside.source) == (str(folder), "tmpfs", "tmpfs")
    assert mount_of(folder) == here


def test_a_link_leads_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self")
    found = mount_of(tmp_path / "link")
    assert found is not None
    assert found.kind == "proc"


def test_escaped_characters() -> None:
    assert machine._unescaped("server:/my\\040export") == "server:/my export"
    assert any(mount.point == "/" for mount in read_mounts())
