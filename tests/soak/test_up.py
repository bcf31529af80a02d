"""``grpo-tui up`` on a box that has nothing: no home, no root, no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_up import bring_up, clone

__all__ = ["clone"]


def test_from_nothing_to_the_first_step(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch makes the tiny model of the demo first."""
    bring_up(tmp_path / "nothing" / "localfs", tmp_path, capsys, monkeypatch)
    assert (tmp_path / "nothing" / "localfs" / "models" / "tiny" / "config.json").is_file()
