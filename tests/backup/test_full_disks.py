"""A root whose disk is full or read-only: nothing half-visible, missing bytes are stated, and a rerun continues."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.backup.destinations import Destination
from grpo_train.backup.fetch import fetch, store_of_url
from grpo_train.backup.job import Progress
from grpo_train.backup.restore import restore_folder
from grpo_train.backup.terminate import safe_to_terminate
from grpo_train.run_dir import RunDir, RunDirError
from tests.support.backups import backup, bytes_of, contents, folder_destination, home_of, make_run, save, train_to
from tests.support.engine import command_here
from tests.support.mounts import fill, make_read_only, make_writable, small_disk
from tests.support.stores import write_destinations

LARGE = 80 << 20
"""Room for a restore, which wants 64 MiB beside what it writes."""


@pytest.fixture
def disk(tmp_path: Path) -> Destination:
    return folder_destination(tmp_path / "disk")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    with small_disk(folder, LARGE):
        yield folder


class Filler:
    """Fills a disk as soon as files are read from a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "filler"

    def __call__(self, now: Progress) -> None:
        if now.phase == "reading" and not self.file.exists():
            fill(self.folder)


@pytest.mark.parametrize("here", ["nothing", "logs"])
def test_restore_continues_after_a_full_disk(here: str, tmp_path: Path, disk: Destination, small: Path) -> None:
    run = make_run(tmp_path / "root", "one", 10, 20)
    (run.path / "large.bin").write_bytes(b"x" * 1_000_000)
    backup(run, disk)
    there = RunDir(small / "training_runs" / "one")
    if here == "logs":
        restore_folder(small, home_of(run), disk, steps="logs")
    before = contents(there.path) if here == "logs" else {}
    filler = Filler(small)
    with pytest.raises(OSError, match="No space left") as caught:
        restore_folder(small, home_of(run), disk, transfers=1, show=filler)
    assert caught.value.errno == errno.ENOSPC
    assert (contents(there.path) if there.path.exists() else {}) == before, "nothing half-visible"
    with pytest.raises(RunDirError, match=r"free [\d,]+ bytes") as refused:
        restore_folder(small, home_of(run), disk)
    assert refused.value.code == "disk_full"
    filler.file.unlink()
    restore_folder(small, home_of(run), disk)
    assert bytes_of(there.path) == bytes_of(run.path)
    assert not list(small.rglob(".*restore*"))


def test_full_root_is_backed_up(small: Path, disk: Destination) -> None:
    """Hashing needs no room, and what could not be noted is found in the store."""
    run = make_run(small, "one", 10)
    backup(run, disk)
    train_to(run, 20)
    save(run, 20)
    filler = fill(small)
    done = backup(run, disk)
    assert (done.steps, done.omitted, done.is_new) == ((10, 20), (), True)
    assert safe_to_terminate(small, disk).safe
    filler.unlink()
    again = backup(run, disk)
    assert (again.snapshot, again.is_new, again.parent) == (done.snapshot, False, "")


def test_read_only_root_is_backed_up(small: Path, disk: Destination) -> None:
    run = make_run(small, "one", 10)
    make_read_only(small)
    try:
        first = backup(run, disk)
        assert (first.steps, first.omitted) == ((10,), ())
        assert backup(run, disk).is_new is False
        assert safe_to_terminate(small, disk).safe
    finally:
        make_writable(small)
    assert backup(run, disk).snapshot == first.snapshot


WRITING = (
    ["restore", "--training-run", "two"], ["cleanup", "--training-run", "one", "--keep-latest", "--yes"],
    ["archive", "one"], ["archive", "one", "--step", "10"], ["clean", "--yes"],
)  # fmt: skip


def test_read_only_root_is_named(small: Path, tmp_path: Path) -> None:
    """What must write says so, without a traceback, and has changed nothing."""
    write_destinations({"name": "disk", "folder": str(tmp_path / "disk")})
    disk = folder_destination(tmp_path / "disk")
    backup(make_run(tmp_path / "root", "two", 10), disk)
    backup(make_run(small, "one", 10, 20), disk)
    before = contents(small)
    make_read_only(small)
    try:
        for words in WRITING:
            done = command_here(*words, "--json", root=small)
            assert done.returncode in (1, 2), done.stdout + done.stderr
            assert json.loads(done.stdout)["error"]["code"] in ("read_only", "bad_root"), words
            assert "Read-only file system" in done.stderr
            assert "Traceback" not in done.stderr
            assert contents(small) == before
    finally:
        make_writable(small)


def test_fetch_continues_after_a_full_disk(tmp_path: Path, small: Path) -> None:
    source = make_run(tmp_path / "root", "one", 10).training_state / "step_10"
    store, prefix = store_of_url(str(source), None)
    target, filler = small / "checkpoints" / "mine", Filler(small)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(small, store, prefix, target, transfers=1, show=filler)
    assert caught.value.errno == errno.ENOSPC
    assert not target.exists()
    filler.file.unlink()
    fetch(small, store, prefix, target)
    assert contents(target) == contents(source)
