"""Fetching starting weights, and resuming right after a restore."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grpo_train.backup.fetch import fetch, store_of_url
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.snapshot import Home
from grpo_train.backup.store import StoreError
from grpo_train.backup.take import back_up
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.processes import identity
from tests.support.backups import bytes_of, contents, folder_destination, make_run, set_state
from tests.support.engine import command_here
from tests.support.s3_servers import server
from tests.support.stores import bucket_store, describe_bucket


def tensors(values: bytes = b"\0" * 16) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, len(values)]}}).encode()
    return len(header).to_bytes(8, "little") + header + values


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket" / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(tensors())
    return folder


def test_weights_are_fetched_whole(source: Path, tmp_path: Path) -> None:
    store, prefix = store_of_url(str(source), None)
    target = tmp_path / "root" / "checkpoints" / "mine"
    result = fetch(tmp_path / "root", store, prefix, target)
    assert (result.files, result.checked) == (2, "headers")
    assert contents(target) == contents(source)
    with pytest.raises(RunDirError, match="exists"):
        fetch(tmp_path / "root", store, prefix, target)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b"data_offsets", b"data_offsetz"),
        lambda data: data.replace(b'{"w"', b'{"w}'),
    ],
)
def test_damaged_weights_do_not_appear(source: Path, tmp_path: Path, damage: object) -> None:
    file = source / "model.safetensors"
    file.write_bytes(damage(tensors()))  # type: ignore[operator]
    store, prefix = store_of_url(str(source), None)
    target = tmp_path / "root" / "checkpoints" / "mine"
    with pytest.raises(StoreError, match=r"model.safetensors"):
        fetch(tmp_path / "root", store, prefix, target)
    assert not target.exists()
    file.write_bytes(tensors())
    fetch(tmp_path / "root", store, prefix, target)
    assert contents(target) == contents(source)


def test_checkpoints_are_checked_by_their_manifest(source: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "box", "one", 10)
    shutil.copytree(run.training_state / "step_10", source / "step_10")
    store, prefix = store_of_url(str(source / "step_10"), None)
    data = (source / "step_10" / "optimizer.pt").read_bytes()
    (source / "step_10" / "optimizer.pt").write_bytes(b"!" + data[1:])
    with pytest.raises(StoreError, match=r"optimizer\.pt has the wrong checksum"):
        fetch(tmp_path / "root", store, prefix, tmp_path / "root" / "w")
    (source / "step_10" / "optimizer.pt").write_bytes(data)
    assert fetch(tmp_path / "root", store, prefix, tmp_path / "root" / "w").checked == "manifest"


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_weights_are_fetched_from_a_bucket(kind: str, source: Path, tmp_path: Path) -> None:
    """By the endpoint and credentials of a destination; what does not arrive whole does not appear."""
    running = server(kind)
    bucket = running.new_bucket()
    describe_bucket(bucket, running)
    (source / "tokenizer.json").write_bytes(b"{}" * 100_000)
    root, target = tmp_path / "root", tmp_path / "root" / "checkpoints" / "mine"
    store = bucket_store(running, bucket, prefix="")
    for path in source.iterdir():
        data = path.read_bytes()
        store.write_small(f"models/mine/{path.name}", data[:-1] if path.suffix == ".safetensors" else data)
    words = ["fetch", f"s3://{bucket}/models/mine/", "--to", target, "--from", "s3", "--json"]
    cut = command_here(*words, root=root)
    assert (cut.returncode, json.loads(cut.stdout)["error"]["code"]) == (1, "damaged"), cut.stderr
    assert "model.safetensors" in cut.stderr
    assert not target.exists()
    store.write_small("models/mine/model.safetensors", (source / "model.safetensors").read_bytes())
    done = command_here(*words, root=root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 3
    assert bytes_of(target) == bytes_of(source)
    gone = command_here(*words[:1], f"s3://{bucket}/models/none/", *words[2:3], f"{target}2", *words[4:], root=root)
    assert json.loads(gone.stdout)["error"]["code"] == "missing"


def test_empty_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    store, prefix = store_of_url(str(tmp_path / "empty"), None)
    with pytest.raises(StoreError, match="no objects there"):
        fetch(tmp_path / "root", store, prefix, tmp_path / "root" / "w")
    with pytest.raises(StoreError, match="neither s3"):
        store_of_url(str(tmp_path / "missing"), None)


def test_run_that_trains_elsewhere_is_not_resumed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "root", "one", 10)
    disk = folder_destination(tmp_path / "disk")
    me = identity()
    set_state(run, "running", pid=me.pid, pid_start=me.pid_start, host=me.host, boot_id=me.boot_id)
    home = Home("training_runs", "one", back_up(run.root, "training_runs", "one", disk).identity)
    with pytest.raises(RunDirError, match=r"was running on .* s ago"):
        restore_folder(tmp_path / "b", home, disk, must_be_idle=True)
    assert not (tmp_path / "b" / "training_runs" / "one").exists()
    set_state(run, "stopped")
    back_up(run.root, "training_runs", "one", disk)
    assert restore_folder(tmp_path / "b", home, disk, must_be_idle=True).steps == (10,)
