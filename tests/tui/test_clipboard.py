"""Copying: what is shown, what is put on the clipboard, and the way through a real tmux."""

from __future__ import annotations

import os
import pty
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.terminal import unlink_socket
from tests.tui.conftest import Start


async def test_what_was_copied_is_shown(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.copy("think", "sample 3 of step 1,702")
        await session.until(lambda: "copied: sample 3 of step 1,702, 5 characters" in session.messages())
        assert session.app.clipboard == "think"
        session.app.copy("a\x1b]52;c;ZXZpbA==\x07b\u202ec", "a line")
        await session.until(lambda: "copied: a line, 4 characters" in session.messages())
        assert session.app.clipboard == "ab·c", "text of a box cannot steer the terminal that it is pasted into"
        session.app.copy("x" * 80_000, "a log")
        await session.until(lambda: "80 kB: some terminals take only 74 kB" in session.messages())
        session.app.copy("", "a row")
        await session.until(lambda: "nothing to copy: a row is empty" in session.messages())


async def test_a_tmux_that_is_gone_is_named(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMUX", f"{tmp_path}/gone,1,0")
    async with start(wait="87/200") as session:
        session.app.copy("text", "a line")
        await session.until(lambda: "copied: a line" in session.messages())
        if shutil.which("tmux"):
            assert "tmux does not forward it (error connecting to" in session.messages()


class OuterTerminal:
    """A terminal with a tmux client in it, which records what the terminal is sent."""

    def __init__(self, socket: str) -> None:
        self._received = bytearray()
        self._changed = threading.Condition()
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.environ.pop("TMUX", None)
            os.execvp("tmux", ["tmux", "-L", socket, "-f", "/dev/null", "attach"])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):  # the client has ended
            while data := os.read(self._terminal, 65_536):
                with self._changed:
                    self._received += data
                    self._changed.notify_all()

    def received(self, data: bytes) -> bool:
        return data in self._received

    def wait_for(self, data: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.received(data), PATIENCE * 20), bytes(self._received[-3000:])

    def close(self) -> None:
        """Call it when the tmux server has ended."""
        self._thread.join()
        os.close(self._terminal)
        os.waitpid(self._process, 0)


@pytest.fixture
def socket() -> Iterator[str]:
    name = f"grpo-copy-{secrets.token_hex(4)}"
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, timeout=60)
    unlink_socket(name)


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_tmux_passes_a_copy_to_its_terminal(socket: str, tmp_path: Path) -> None:
    """With tmux's default ``set-clipboard external``, a program's own OSC 52 ends in tmux."""
    script = tmp_path / "copies.py"
    script.write_text(
        "import asyncio, os\n"
        "from grpo_tui.kit.terminal import load_into_tmux\n"
        f"print({osc_52('by the program')!r}, end='', flush=True)\n"
        "problem = asyncio.run(load_into_tmux('through tmux ✔', os.environ))\n"
        "print(f'problem:{problem}:none', flush=True)\n"
    )
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    wait = shlex.join(["tmux", "-L", socket, "wait-for", "start"])
    command = shlex.join(["env", f"PYTHONPATH={os.pathsep.join(sys.path)}", sys.executable, str(script)])
    command = f"{wait}; {command}; {wait}"
    subprocess.run([*tmux, "new-session", "-d", "-s", "outer", "-x", "80", "-y", "24", command], check=True, timeout=60)
    terminal = OuterTerminal(socket)
    try:
        terminal.wait_for(b"outer")  # in its status line
        subprocess.run([*tmux, "wait-for", "-S", "start"], check=True, timeout=60)
        terminal.wait_for(b64encode("through tmux ✔".encode()))
        terminal.wait_for(b"problem::none")
        assert not terminal.received(b64encode(b"by the program"))
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True, timeout=60)
        terminal.close()


def osc_52(text: str) -> str:
    return f"\x1b]52;c;{b64encode(text.encode()).decode()}\a"
