"""Snapshots in buckets, over https: the round trip, damage, and that no secret leaves its file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.cleanup import clean_up
from grpo_train.backup.destinations import Destination
from grpo_train.backup.runs import back_up_run, restore_run
from grpo_train.backup.snapshot import Home
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import ObjectStore, StoreError, Trust
from grpo_train.backup.take import back_up
from grpo_train.backup.verify import verify
from tests.support.backups import contents, make_evaluation, make_run, save, train_to
from tests.support.canaries import canary
from tests.support.clock import LeapingClock
from tests.support.engine import command_here
from tests.support.s3_faults import Fault, Faults, FaultyRequests
from tests.support.s3_servers import SECRET, server
from tests.support.stores import bucket_store, describe_bucket, new_store, whole

SERVERS = ["rclone", "moto"]


def destination(store: ObjectStore) -> Destination:
    return Destination("s3", store, Trust("store-1", False, False, False), None)


@pytest.fixture
def front() -> Iterator[Faults]:
    with FaultyRequests(server("moto")) as opened:
        yield opened


@pytest.mark.parametrize("kind", SERVERS)
def test_bucket_round_trip(kind: str, tmp_path: Path) -> None:
    to = destination(new_store(kind, tmp_path / "store"))
    run = make_run(tmp_path / "root", "one", 10, 20)
    (run.path / "notes with spaces & 'quotes' +%.md").write_text("mine\n")
    make_evaluation(run.root, "one", "addition", 30)
    first = back_up_run(run.root, "training_runs", "one", to)
    assert first.omitted == ()
    train_to(run, 30)
    save(run, 30)
    before = contents(run.path)
    back_up_run(run.root, "training_runs", "one", to)
    assert [spare.step for spare in clean_up(run, to).removed] == [10, 20]
    shutil.rmtree(run.root)
    done = restore_run(tmp_path / "b", "one", to)
    assert (done.steps, done.snapshot) == ((10, 20, 30), 2)
    assert contents(tmp_path / "b" / "training_runs" / "one") == before
    assert (tmp_path / "b" / "eval_runs" / "one_addition").is_dir()
    assert verify(tmp_path / "b", Home("training_runs", "one", done.identity), to).is_sound


@pytest.mark.parametrize(
    "fault",
    [
        Fault("shorten_sent", "PUT", "optimizer"),
        Fault("flip_sent", "PUT", "optimizer"),
        Fault("drop_answer", "PUT", "manifest.json"),
        Fault("flip", "GET", "optimizer"),
        Fault("refuse", "PUT", "COMPLETE", times=2),
    ],
    ids=lambda fault: f"{fault.kind} {fault.match}",
)
def test_trouble_on_the_way_is_found_and_repeated(fault: Fault, front: Faults, tmp_path: Path) -> None:
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port, clock=LeapingClock())
    to = destination(store)
    run = make_run(tmp_path / "root", "one", 10)
    front.add(fault)
    result = back_up(run.root, "training_runs", "one", to)
    assert (result.steps, result.omitted) == ((10,), ())
    home = Home("training_runs", "one", result.identity)
    assert verify(tmp_path / "nowhere", home, to).is_sound


def test_lost_connection_leaves_no_complete_snapshot(front: Faults, tmp_path: Path) -> None:
    running = front.server
    bucket = running.new_bucket()
    run = make_run(tmp_path / "root", "one", 10)
    to = destination(bucket_store(running, bucket, port=front.port))
    front.add(Fault("refuse", "PUT", "optimizer", times=float("inf"), status=403, code="AccessDenied"))
    with pytest.raises(StoreError) as caught:
        back_up(run.root, "training_runs", "one", to)
    assert caught.value.code == "refused"
    front.clear()
    to = destination(bucket_store(running, bucket))
    result = back_up(run.root, "training_runs", "one", to)
    home = Home("training_runs", "one", result.identity)
    assert [each.state for each in StoredRun(to.store, home).snapshots()] == ["complete"]


def test_no_secret_leaves_its_file(tmp_path: Path, home: Path) -> None:
    """The key, its ID, and a canary in the environment: not in the store, the root, notes, or what is printed."""
    running = server("rclone")
    bucket = running.new_bucket()
    source = describe_bucket(bucket, running)
    hidden = canary("hf_")
    source.write_text(source.read_text() + f"HF_TOKEN={hidden}\n")
    root = tmp_path / "root"
    run = make_run(root, "one", 10, 20)
    said = ""
    commands: list[list[Any]] = [
        ["backup", "--training-run", "one"], ["backup-all"], ["list-backups"], ["verify-backup"], ["safe-to-terminate"],
        ["cleanup", "--training-run", "one", "--keep-latest", "--yes"], ["prune-backups"],
        ["restore", "--training-run", "one"], ["backup", "--training-run", "two"],
        ["restore", "--training-run", "one", "--from", "wrong"],
    ]  # fmt: skip
    for words in commands:
        done = command_here(*words, "--json", root=root)
        said += done.stdout + done.stderr
        assert "Traceback" not in said
    assert [c.step for c in run.checkpoints()] == [10, 20]
    files = [path for folder in (root, home / ".local") for path in folder.rglob("*") if path.is_file()]
    store = bucket_store(running, bucket, prefix="some folder")
    objects = b"".join(whole(store, entry.key) for entry in store.entries(""))
    everything = b"".join([said.encode(), objects, *(path.read_bytes() for path in files)])
    assert json.loads(command_here("list-backups", "--json", root=root).stdout)[0]["name"] == "one"
    for secret in (SECRET, hidden):
        assert secret.encode() not in everything
