"""The app and its terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from grpo_train.run_dir.processes import find_by_run_id
from tests.support.agent import eventually
from tests.support.terminal import Terminal


def test_the_app_exits_with_its_terminal(tmp_path: Path) -> None:
    """Although its parent ignores the hangup and waits for it."""
    app = Path(sys.executable).with_name("grpo-tui")
    mark = f"terminal-{tmp_path.name}"  # finds its processes
    environment = {"HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "GRPO_RUN_ID": mark}
    waiting_parent = ["sh", "-c", f"trap : HUP; {app} --root {tmp_path}; :"]
    with Terminal(waiting_parent, environment) as screen:
        screen.wait_for("press n", timeout=30)
        assert find_by_run_id(mark)
    eventually(lambda: not find_by_run_id(mark), 20)
