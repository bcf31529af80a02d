"""Logs of a real size over sshd. Part of ``make soak``; needs 1.3 GB of disk."""

from __future__ import annotations

import time
from pathlib import Path

from tests.end_to_end.test_slow_line import open_in_charts
from tests.end_to_end.test_views import open_app
from tests.support.large_logs import new_run, write_console, write_train_log
from tests.support.ssh_box import ssh_box

PLANTED = {0.4: "torch.OutOfMemoryError: the first", 0.9: "torch.OutOfMemoryError: the second"}


def test_100000_steps_over_a_slow_line(tmp_path: Path) -> None:
    open_in_charts(tmp_path, 100_000)


def test_a_search_of_1_gb(tmp_path: Path) -> None:
    root = tmp_path / "root"
    logs = new_run(root, "large", 7)
    write_train_log(logs, 7, spike=3)
    lines = write_console(logs, 1_000_000_000, PLANTED)
    with ssh_box(tmp_path, root) as box, box.app() as screen:
        open_app(screen, "7/7")
        screen.press("4")
        screen.wait_for("console.log", "015999 step saved")
        before = box.proxy.bytes_back
        screen.press("/")
        screen.wait_for("a regular expression")
        screen.type("OutOfMemory.*: the")
        screen.press("Enter")
        began = time.monotonic()
        screen.wait_for("% searched")
        screen.press("1")  # the program continues meanwhile
        screen.wait_for("7/7", "sorted by start")
        screen.press("4")
        screen.wait_for("the second", timeout=300)
        screen.wait_for("match 2 of 2", "searched on the box", timeout=300)
        searched_s = time.monotonic() - began
        screen.press("N")
        screen.wait_for("the first", "match 1 of 2")
        print(f"{lines:,} lines: searched after {searched_s:.1f} s, {(box.proxy.bytes_back - before) / 1e3:.0f} kB")
        assert box.proxy.bytes_back - before <= 1_000_000
        screen.press("Escape", "Escape")
        screen.wait_for("7/7", "sorted by start")
