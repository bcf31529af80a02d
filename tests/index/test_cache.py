"""Where indexes are kept: private, bounded, and not needed."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from remote.index import store
from remote.index.answers import PRUNE_EVERY_S, IndexAnswers
from remote.index.store import IndexStore
from remote.protocol import RemoteError
from tests.support.clock import TestClock
from tests.support.index import Box, make_run


def log_of(root: Path, name: str = "one") -> Path:
    log = make_run(root, name) / "train_log.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": {i}}}\n' for i in range(1, 100)))
    return log


def test_only_the_account_can_read_it(tmp_path: Path) -> None:
    log_of(tmp_path)
    os.umask(0)
    Box(tmp_path, tmp_path / "cache").whole("metrics")
    modes = {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "cache").rglob("*")}
    assert modes == {"0o700", "0o600"}
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_the_next_place_is_taken_where_one_refuses(tmp_path: Path) -> None:
    log_of(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    box = Box(tmp_path, tmp_path)
    box.answers = IndexAnswers([tmp_path / "file", tmp_path / "link", Path("/proc/none"), tmp_path / "good"])
    assert box.whole("metrics")["rows"] == 99
    assert list((tmp_path / "good").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_index_leaves_room_for_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_of(tmp_path)
    box = Box(tmp_path, tmp_path / "cache")
    monkeypatch.setattr(store, "MIN_FREE", 1 << 60)
    with pytest.raises(RemoteError, match="MiB are free"):
        box.whole("metrics")
    monkeypatch.setattr(store, "MIN_FREE", 0)
    assert box.whole("metrics")["rows"] == 99


@pytest.mark.parametrize("write", range(0, 12, 3))
def test_what_a_full_disk_took_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    log_of(tmp_path)
    left, pwrite = itertools.count(write, -1), os.pwrite

    def full(*arguments: Any) -> int:
        if next(left) <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    box = Box(tmp_path, tmp_path / "cache")
    if write < 6:
        with pytest.raises(RemoteError, match="No space left"):
            box.whole("metrics")
        assert {file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()} == {"lock"}
    monkeypatch.undo()
    assert box.whole("metrics")["rows"] == 99


def test_a_full_disk_is_a_refusal_with_its_reason(tmp_path: Path) -> None:
    log_of(tmp_path)
    with pytest.raises(RemoteError, match=r"no folder accepts the index") as error:
        Box(tmp_path, Path("/dev/full/x")).whole("metrics")
    assert error.value.code == "no_index"


def test_the_index_used_longest_ago_is_removed(tmp_path: Path) -> None:
    box, place = Box(tmp_path, tmp_path / "cache"), tmp_path / "cache"
    for number in range(4):
        log_of(tmp_path, f"run{number}")
        before = set(place.iterdir()) if place.exists() else set()
        box.whole("metrics", run=f"run{number}")
        (folder,) = set(place.iterdir()) - before
        os.utime(folder, (number, number))
    sizes = sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
    oldest = min(place.iterdir(), key=lambda folder: folder.stat().st_mtime)
    with IndexStore(oldest).locked():
        store.prune_indexes(place, limit=sizes // 2)
    times = sorted(int(folder.stat().st_mtime) for folder in place.iterdir())
    assert times == [0, 3]  # the oldest is in use
    assert box.whole("metrics", run="run1")["rows"] == 99


def test_indexes_that_are_made_together_are_pruned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts on a list of runs make an index of each; pruning looks at every file of every index."""
    box, clock, pruned = Box(tmp_path, tmp_path / "cache"), TestClock(), []
    monkeypatch.setattr(store, "prune_indexes", pruned.append)
    box.answers = IndexAnswers([tmp_path / "cache"], clock)
    for number in range(4):
        log_of(tmp_path, f"run{number}")
        if number == 3:
            clock.advance(PRUNE_EVERY_S)
        box.whole("metrics", run=f"run{number}")
        assert pruned == [tmp_path / "cache"] * (1 if number < 3 else 2)
