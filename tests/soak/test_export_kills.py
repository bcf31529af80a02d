"""SIGKILL before every call by which an export changes the disk. Part of ``make soak``.

Of an adapter every system call; merging starts threads, so of a merged model every call that Python makes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json
from tests.export.test_export import export, trained
from tests.support.killing import disk_calls, killed_at
from tests.support.tracing import killed_before, trace

__all__ = ["trained"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("merge", "calls_of", "kill"),
    [(False, trace, killed_before), (True, disk_calls, killed_at)],
    ids=["adapter", "merged"],
)
def test_every_kill_leaves_nothing_or_a_whole_export(
    trained: RunDir,
    tmp_path: Path,
    merge: bool,
    calls_of: Callable[[Callable[[], None]], list[object]],
    kill: Callable[[int, Callable[[], None]], None],
) -> None:
    to = tmp_path / "out"

    def write() -> None:
        export(trained, to, merge=merge)

    made = calls_of(write)
    whole = {path.name: path.stat().st_size for path in to.iterdir()}
    files = (read_json(to / "export.json") or {})["files"]
    shutil.rmtree(to)
    for n, call in enumerate(made):
        kill(n, write)
        if to.exists():  # killed after the rename
            assert (read_json(to / "export.json") or {})["files"] == files, f"killed before {n}, {call}"
            shutil.rmtree(to)
        assert len(list(tmp_path.iterdir())) <= 1, f"killed before {n}, {call}: leftovers add up"
    write()
    assert {path.name: path.stat().st_size for path in to.iterdir()} == whole
    assert list(tmp_path.iterdir()) == [to], "the next export removed what the kills left"
    print(f"\n{len(made)} kill points")
