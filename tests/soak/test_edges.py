"""Every sequence of two and of three commands that store, thin out and restore a run; the suite has eight of them."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from tests.support.backup_sequences import COMMANDS, Box
from tests.support.stores import other_disk, write_destinations

SEQUENCES = [words for length in (2, 3) for words in product(COMMANDS, repeat=length)]


@pytest.mark.parametrize("commands", SEQUENCES, ids=" ".join)
def test_the_restored_run_is_the_run(
    commands: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    with other_disk(tmp_path) as disk:
        write_destinations({"name": "disk", "folder": str(disk)})
        box = Box(tmp_path)
        for command in commands:
            box.do(command)
        box.check()
