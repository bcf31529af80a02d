"""SIGKILL before every system call by which a backup or a restore changes a disk. Part of ``make soak``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.test_kills import KILLS, kept

__all__ = ["kept"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", KILLS)
def test_every_kill_leaves_what_was_complete(
    kept: Path, tmp_path: Path, kill: Callable[[Path, Path, int], None]
) -> None:
    kill(kept, tmp_path, 1)
