"""Whatever commands make the snapshots of a run, the newest one is the whole run. Soak tries all sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backup_sequences import Box
from tests.support.stores import other_disk, write_destinations

SEQUENCES = (
    "archive evaluate backup", "evaluate cleanup", "evaluate archive", "cleanup restore cleanup",
    "restore resume backup", "evaluate resume cleanup", "cleanup prune restore", "archive restore evaluate archive",
)  # fmt: skip


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_the_restored_run_is_the_run(sequence: str, tmp_path: Path) -> None:
    with other_disk(tmp_path) as disk:
        write_destinations({"name": "disk", "folder": str(disk)})
        box = Box(tmp_path)
        for command in sequence.split():
            box.do(command)
        box.check()
