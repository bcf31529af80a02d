"""A store that is another way into the disk of the root is found out by markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.trial import appears_below, marker_name, names_in_store
from tests.support.mounts import mounted
from tests.support.s3_servers import running_rclone, server
from tests.support.stores import describe_bucket


@pytest.mark.parametrize(
    ("served", "bucket", "root"),
    [
        ("", "mount", "localfs"),  # Lambda's adapter: the bucket is the mount
        ("", "mount", "."),
        ("mount", "bucket", "localfs"),  # the bucket is a folder of the mount
        ("mount", "bucket", "bucket"),
        ("mount", "bucket", "not/there/yet"),
    ],
)
def test_a_bucket_on_the_root_s_mount_is_the_same_disk(tmp_path: Path, served: str, bucket: str, root: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    with mounted(mount, "noexec"):
        (mount / "bucket").mkdir()
        (mount / "localfs").mkdir()
        with running_rclone(tmp_path / served) as running:
            describe_bucket(bucket, running)
            assert open_destination(None, mount / root).trust.same_disk


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_another_machine_is_not_the_same_disk(tmp_path: Path, kind: str) -> None:
    running = server(kind)
    describe_bucket(running.new_bucket(), running)
    assert not open_destination(None, tmp_path).trust.same_disk
    assert not list(tmp_path.glob(".grpo-marker*"))


def test_a_marker_is_found_at_the_top_and_in_a_folder(tmp_path: Path) -> None:
    mount, name = tmp_path / "mount", marker_name()
    mount.mkdir()
    with mounted(mount, "noexec"):
        (mount / "root").mkdir()
        (mount / "beside/prefix").mkdir(parents=True)
        for place in (mount, mount / "beside", mount / "beside/prefix", mount / "root"):
            assert not appears_below(mount / "root", f"bucket/prefix/{name}")
            (place / name).touch()
            assert appears_below(mount / "root", f"bucket/prefix/{name}")
            (place / name).unlink()


def test_a_marker_behind_another_mount_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with mounted(tmp_path / "inner", "noexec"):
        name = marker_name()
        (tmp_path / "inner" / name).touch()
        assert not appears_below(tmp_path, f"inner/{name}")
        assert appears_below(tmp_path / "inner", f"inner/{name}")


def test_a_marker_of_the_root_has_these_keys(tmp_path: Path) -> None:
    mount = tmp_path / "fs"
    mount.mkdir()
    with mounted(mount, "noexec"):
        (mount / "a").mkdir()
        assert names_in_store(mount / "a/m") == ["fs/a/m", "a/m", "m"]
