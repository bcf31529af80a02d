"""A real terminal for the app: a private tmux server that types keys and reads the screen."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE, eventually


def unlink_socket(name: str) -> None:
    """Remove the socket file that an ended tmux server leaves behind."""
    (Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}" / name).unlink(missing_ok=True)


PANE_IS_DEAD = "Pane is dead"
"""Printed by tmux when the command has ended."""


class Terminal:
    """A command in a tmux pane of 120 x 40 cells."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 120, rows: int = 40
    ) -> None:
        self._socket = f"grpo-e2e-{secrets.token_hex(4)}"
        variables = [f"{name}={value}" for name, value in environment.items()]
        command_line = shlex.join(["env", "-u", "TMUX", "-u", "COLUMNS", "-u", "LINES", *variables, *command])
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("new-session", "-d", "-s", "screen", *size, command_line)
        self._tmux("set-option", "-t", "screen", "remain-on-exit", "on")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            print(f"the screen was:\n{self.screen()}")
        self._tmux("kill-server")
        unlink_socket(self._socket)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        return done.stdout

    def screen(self) -> str:
        """Current text of the screen."""
        return self._tmux("capture-pane", "-p", "-t", "screen")

    def press(self, *keys: str) -> None:
        """Press keys, by their tmux names (``Enter``, ``Tab``, ``C-b``, ``n``)."""
        self._tmux("send-keys", "-t", "screen", *keys)

    def type(self, text: str) -> None:
        """Type text literally."""
        self._tmux("send-keys", "-t", "screen", "-l", text)

    def paste(self, text: str) -> None:
        """Type text that no command line may show."""
        tmux = ["tmux", "-L", self._socket, "-f", "/dev/null"]
        subprocess.run([*tmux, "load-buffer", "-b", "typed", "-"], input=text, text=True, timeout=60)
        self._tmux("paste-buffer", "-d", "-b", "typed", "-t", "screen")

    def history(self) -> str:
        """Text of the screen and everything that scrolled off it."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "screen")

    def wait_for(self, *texts: str, timeout: float = 60.0) -> str:
        """Wait until all of ``texts`` are on the screen; returns the screen."""
        screen = ""

        def shown() -> bool:
            nonlocal screen
            screen = self.screen()
            if all(text in screen for text in texts):
                return True
            if any(text.startswith(PANE_IS_DEAD) for text in texts):
                # tmux 3.3a may miss that its child ended, until the next one does.
                self._tmux("run-shell", "-b", "true")
            return False

        try:
            eventually(shown, timeout, rest_s=0.1)
        except AssertionError:
            raise AssertionError(f"not on the screen: {texts}\n{screen}") from None
        return screen

    def wait_gone(self, text: str, timeout: float = 30.0) -> str:
        """Wait until ``text`` is no longer on the screen; returns the screen."""
        eventually(lambda: text not in self.screen(), timeout, f"still on the screen: {text}", rest_s=0.1)
        return self.screen()

    def settle(self, still_s: float = 0.4, timeout: float = 20.0) -> str:
        """Wait until the screen stops changing; returns the screen."""
        deadline = time.monotonic() + PATIENCE * timeout
        before, since = self.screen(), time.monotonic()
        while time.monotonic() - since < still_s:
            assert time.monotonic() < deadline, f"the screen keeps changing\n{before}"
            time.sleep(0.05)
            if (now := self.screen()) != before:
                before, since = now, time.monotonic()
        return before
