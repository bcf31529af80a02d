"""Startup time of the app: ``python tests/bench/face.py``. Medians of five runs, relative to a bare Textual app."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

RUNS = 5
BARE = "from textual.app import App\nfrom textual.widgets import Static\nclass A(App):\n def compose(self):\n"
BARE += "  yield Static('press n')\nA().run()"


def first_frame(command: list[str], home: str, mark: bytes) -> float:
    """Seconds from the start of a process until ``mark`` is on its terminal (120 x 40)."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.environ.update(HOME=home, XDG_CACHE_HOME=home, XDG_CONFIG_HOME=home, TERM="xterm-256color")
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    seen = b""
    while mark not in seen:
        ready, _, _ = select.select([terminal], [], [], 20)
        assert ready, f"no {mark!r} within 20 s: {seen[-400:]!r}"
        seen += os.read(terminal, 65_536)
    taken = time.perf_counter() - began
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(terminal)
    return taken


def import_time(module: str) -> float:
    """Seconds that importing ``module`` adds to the start of an interpreter."""
    times = []
    for code in (f"import {module}", ""):
        runs = []
        for _ in range(RUNS):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            runs.append(time.perf_counter() - began)
        times.append(statistics.median(runs))
    return times[0] - times[1]


def main() -> None:
    """Print the measurements."""
    app = str(Path(sys.executable).with_name("grpo-tui"))
    with tempfile.TemporaryDirectory() as home:
        commands = {
            "bare Textual, first frame": ([sys.executable, "-c", BARE], b"press n"),
            "grpo-tui, first frame": ([app, "--root", f"{home}/root"], b"launch"),
            "grpo-tui, connected to this machine": ([app, "--root", f"{home}/root"], b"no runs yet"),
        }
        seconds = {
            name: statistics.median(first_frame(command, home, mark) for _ in range(RUNS))
            for name, (command, mark) in commands.items()
        }
    bare = seconds["bare Textual, first frame"]
    for name, value in seconds.items():
        print(f"{name:<40} {value:6.2f} s   {value / bare:4.2f} x bare")
    for module in (
        "grpo_tui",
        "grpo_tui.model.store",
        "grpo_tui.app",
        "remote",
        "remote.client",
        "remote.transports.ssh",
        "paramiko",
    ):
        print(f"{'import ' + module:<40} {import_time(module) * 1000:6.0f} ms")


if __name__ == "__main__":
    main()
