"""5,000 runs and 100,000 objects, with names that have spaces and quotes, in one destination. Part of ``make soak``."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_train.backup.destinations import open_destination
from grpo_train.backup.runs import back_up_run
from tests.backup.conftest import home
from tests.support.backups import bytes_of, folder_destination, make_run
from tests.support.engine import GRPO_TRAIN, REPOSITORY, environment
from tests.support.s3_servers import running_rclone
from tests.support.stores import describe_bucket, other_disk

__all__ = ["home"]

RUNS = 5_000
OBJECTS = 100_000
NOTE = """it's "one"  of 5,000 & more.txt"""
MEMORY_MIB = 400


def command(*words: str, root: Path) -> Any:
    """What a command prints as JSON; its time and peak memory are printed and its memory is limited."""
    began = time.monotonic()
    with subprocess.Popen(
        [*GRPO_TRAIN, *words, "--json"], env=environment(root), stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    print(f"{words[0]:<16}{time.monotonic() - began:7.1f} s{used.ru_maxrss >> 10:6} MiB", flush=True)
    assert process.returncode == 0, output[-1000:]
    assert used.ru_maxrss >> 10 <= MEMORY_MIB
    return json.loads(output)


@pytest.mark.timeout(3600)
def test_thousands_of_runs(home: Path, tmp_path: Path) -> None:
    with other_disk(tmp_path) as disk:
        root, bucket = disk / "root", disk / "bucket"
        to = folder_destination(bucket / "some folder")
        names = [f"run-{number}" for number in range(RUNS)]
        for name in names:
            run = make_run(root, name, 1, 2, 3)
            (run.path / NOTE).write_text(name)
            back_up_run(root, "training_runs", name, to)
        with running_rclone(disk) as server:
            describe_bucket("bucket", server)
            store = open_destination("s3", tmp_path).store
            keys = [entry.key for entry in store.entries("")]
            print(f"{len(names):,} runs, {len(keys):,} objects", flush=True)
            assert len(keys) >= OBJECTS
            assert keys == sorted(set(keys))

            listed = command("list-backups", root=root)
            assert {row["name"] for row in listed} == set(names)
            assert {row["snapshots"][0]["state"] for row in listed} == {"complete"}
            assert all(row["lag"] == {"steps": [], "log_steps": 0, "log_bytes": 0, "files": 0} for row in listed)
            done = command("backup-all", root=root)
            assert [len(done["done"]), len(done["failed"])] == [RUNS, 0]
            assert sum(each["objects_sent"] for each in done["done"]) == 0
            assert all(not row["removed"] for row in command("prune-backups", "--dry-run", root=root))
            restored = command("restore", "--training-run", names[-1], root=tmp_path / "box")
            assert bytes_of(Path(restored["path"])) == bytes_of(root / "training_runs" / names[-1])
            assert len(command("history", root=root)) == RUNS
