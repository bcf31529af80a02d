"""SIGKILL before every system call by which a backup or a restore changes a disk. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.test_folder import folder, kill_writes
from tests.backup.test_kills import KILLS, kept
from tests.support.killing import Points

__all__ = ["folder", "kept"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", KILLS)
def test_every_kill_leaves_what_was_complete(
    kept: Path, tmp_path: Path, kill: Callable[[Path, Path, Points], None]
) -> None:
    kill(kept, tmp_path, range)


@pytest.mark.timeout(3600)
def test_every_kill_leaves_the_old_object_or_the_new(folder: Path, tmp_path: Path) -> None:
    kill_writes(folder, tmp_path, range)
