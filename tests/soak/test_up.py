"""``grpo-tui up`` on a box that has nothing: no home, no root, no model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.end_to_end.test_up import Account, account, bring_up, clone
from tests.remote.test_shell import Shell

__all__ = ["account", "clone"]


def test_from_nothing_to_the_first_step(
    clone: Path,
    account: Account,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launch makes the tiny model of the demo first."""
    root = account.disk / "localfs"

    def set_up_again(shell: Shell) -> None:
        started = time.monotonic()
        code, _, errors = shell("env", "setup")
        assert (code, "nothing has changed since it was set up" in errors) == (0, True)
        with capsys.disabled():
            print(f"env setup, the second time: {time.monotonic() - started:.1f} s (aim: 3)")

    bring_up(account, root, tmp_path, capsys, monkeypatch, set_up_again)
    assert (root / "models" / "tiny" / "config.json").is_file()
