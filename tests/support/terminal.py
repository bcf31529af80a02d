"""A real terminal for the app: a private tmux server that types keys and reads the screen."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.support.patience import PATIENCE, eventually


def unlink_socket(name: str) -> None:
    """Remove the socket file that an ended tmux server leaves behind."""
    (Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}" / name).unlink(missing_ok=True)


PANE_IS_DEAD = "Pane is dead"
"""Printed by tmux when the command has ended."""
STYLE = re.compile(r"\x1b\[[\d;]*m")
FIELD_WITH_FOCUS = "\x1b[48;5;23m"
"""Its background; a button, a tab or an option of a list is bold when it has the focus."""


class Terminal:
    """A command in a tmux pane of 120 x 40 cells, asked by one client in tmux's control mode."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 120, rows: int = 40
    ) -> None:
        self._socket = f"grpo-e2e-{secrets.token_hex(4)}"
        variables = [f"{name}={value}" for name, value in environment.items()]
        command_line = shlex.join(["env", "-u", "TMUX", "-u", "COLUMNS", "-u", "LINES", *variables, *command])
        size = ["-x", str(columns), "-y", str(rows)]
        first = ["start-server", ";", "set-option", "-g", "remain-on-exit", "on", ";"]
        first += ["new-session", "-f", "no-output,ignore-size", "-s", "screen", *size, command_line]
        self._client = subprocess.Popen(
            ["tmux", "-u", "-L", self._socket, "-f", "/dev/null", "-C", *first],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(first.count(";") + 1):
            self._reply()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            print(f"the screen was:\n{self.screen()}")
        self._tmux("kill-server")
        unlink_socket(self._socket)
        self._client.communicate()

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
        return done.stdout

    def _reply(self) -> str:
        """The reply to a command of tmux; empty once the server has ended."""
        assert self._client.stdout is not None
        lines: list[str] = []
        is_reply = False
        for line in iter(self._client.stdout.readline, b""):
            if line.startswith(b"%begin "):
                is_reply = True
            elif line.startswith((b"%end ", b"%error ")):
                break
            elif is_reply:  # else: a notification, such as that a window has changed
                lines.append(line.decode(errors="replace").rstrip("\n"))
        return "\n".join(lines)

    def _ask(self, *command: str) -> str:
        assert self._client.stdin is not None
        with suppress(BrokenPipeError):
            self._client.stdin.write(f"{shlex.join(command)}\n".encode())
            self._client.stdin.flush()
        return self._reply()

    def screen(self) -> str:
        """Current text of the screen."""
        return self._ask("capture-pane", "-p", "-t", "screen")

    def press(self, *keys: str) -> None:
        """Press keys, by their tmux names (``Enter``, ``Tab``, ``C-b``, ``n``)."""
        self._ask("send-keys", "-t", "screen", *keys)

    def type(self, text: str) -> None:
        """Type text literally."""
        self._ask("send-keys", "-t", "screen", "-l", text)

    def resize(self, columns: int, rows: int) -> None:
        """Wait for something that only the new size shows: tmux crops the old screen until the command writes."""
        self._ask("resize-window", "-t", "screen", "-x", str(columns), "-y", str(rows))

    def paste(self, text: str) -> None:
        """Type text that no command line may show."""
        tmux = ["tmux", "-L", self._socket, "-f", "/dev/null"]
        subprocess.run([*tmux, "load-buffer", "-b", "typed", "-"], input=text, text=True, timeout=60 * PATIENCE)
        self._tmux("paste-buffer", "-d", "-b", "typed", "-t", "screen")

    def history(self) -> str:
        """Text of the screen and everything that scrolled off it."""
        return self._ask("capture-pane", "-p", "-J", "-S", "-", "-t", "screen")

    def wait_for(self, *texts: str, timeout: float = 60.0) -> str:
        """Wait until all of ``texts`` are on the screen; returns the screen."""
        screen = ""

        def shown() -> bool:
            nonlocal screen
            screen = self.screen()
            if any(text.startswith(PANE_IS_DEAD) for text in texts) and PANE_IS_DEAD not in screen:
                # tmux 3.3a may miss that its child ended, until the next one does.
                self._ask("run-shell", "-b", "true")
            return all(text in screen for text in texts)

        try:
            eventually(shown, timeout, rest_s=0.1)
        except AssertionError:
            raise AssertionError(f"not on the screen: {texts}\n{screen}") from None
        return screen

    def wait_gone(self, text: str, timeout: float = 30.0) -> str:
        """Wait until ``text`` is no longer on the screen; returns the screen."""
        eventually(lambda: text not in self.screen(), timeout, f"still on the screen: {text}", rest_s=0.1)
        return self.screen()

    def detach(self, run: str) -> None:
        """Detach from a run's session that the app attached to, and wait until the app has the terminal again.

        The terminal may show the app's screen of before, while ssh still takes the keys.
        """
        self.press("C-b", "d")
        self.wait_gone(f"[{run}"[:10])  # in the status line of the box's tmux
        is_full_screen = ["display-message", "-p", "-t", "screen", "#{alternate_on}"]
        eventually(lambda: self._ask(*is_full_screen).strip() == "1", 30, "the app is back", rest_s=0.1)

    def wait_for_focus(self, label: str) -> None:
        """Wait until the field, button, tab or option with this label has the focus, which the next key goes to."""
        bold = re.compile(rf"\x1b\[1m(\x1b\[[\d;]*m)*[^\x1b]*{re.escape(label)}")

        def has_focus() -> bool:
            lines = self._ask("capture-pane", "-p", "-e", "-t", "screen").splitlines()
            fields = (line for line in lines if f"  {label}  " in STYLE.sub("", line))
            return any(bold.search(line) for line in lines) or any(FIELD_WITH_FOCUS in line for line in fields)

        eventually(has_focus, 30, f"no focus: {label}", rest_s=0.1)
