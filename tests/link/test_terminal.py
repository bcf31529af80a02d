"""Nothing that a box sends reaches the terminal as a sequence. The program runs in a real tmux."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote.gate import clean
from tests.support.agent import eventually
from tests.support.any_json import PLANTED
from tests.support.hostile_box import app_command
from tests.support.planted_box import NAME, refuse, talk, write_run
from tests.support.terminal import Terminal

STRINGS = re.compile(r"\x1b[\]P^_X][^\x07\x1b\x9c]{0,40}")
"""OSC, DCS, PM, APC and SOS."""
POINTER = re.compile(r"\x1b\]22;[a-z-]*(?:\x07|\x1b\\)")
"""The shape of the mouse pointer, the only such sequence that the app writes."""

TABS = ("console", "rollouts", "checkpoints", "health", "train_log")
"""Of the log panel, in the order of the key ``l``."""
OPENS = {
    "n": "launch a run on", "e": "evaluate live", "r": "stop it first", "a": "To return", "K": "kill run",
    "?": " Panels ", ":": "Search for commands", "b": "runs on other boxes",
}  # fmt: skip
"""Keys, and what opens or, where the action is refused, is notified."""


class Recording:
    """A program in a tmux with ``set-clipboard on``, and the bytes that it writes to its pseudo-terminal."""

    def __init__(self, screen: Terminal, file: Path) -> None:
        self.screen, self.file = screen, file

    def check(self) -> None:
        """No planted sequence was written, and no program wrote the clipboard or the title."""
        data = self.file.read_bytes()
        assert b"\x1b[" in data  # it recorded
        text = POINTER.sub("", data.decode())  # strict: no C1 byte either
        assert not STRINGS.findall(text)
        steering = {c for c in text if clean(c) != c and c not in "\r\x1b\x08\x0e\x0f"}
        assert not steering, [hex(ord(c)) for c in steering]
        assert self.screen._tmux("show-buffer") == ""
        assert "planted" not in self.screen._tmux("display-message", "-p", "-t", "screen", "#{pane_title}")


@contextmanager
def recorded(folder: Path, command: list[str], environment: dict[str, str]) -> Iterator[Recording]:
    gate, file = folder / "go", folder / "recording"
    os.mkfifo(gate)
    waits = ["sh", "-c", f"read x < {shlex.quote(str(gate))}; exec {shlex.join(command)}"]
    with Terminal(waits, environment) as screen:
        for option in (("-s", "set-clipboard", "on"), ("-g", "allow-passthrough", "on"), ("-g", "set-titles", "on")):
            screen._tmux("set-option", *option)
        screen._tmux("pipe-pane", "-O", "-t", "screen", f"cat > {shlex.quote(str(file))}")
        gate.write_text("go\n")
        yield Recording(screen, file)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    alarms = home / "config" / "grpo-tui" / "alarms.yaml"
    alarms.parent.mkdir(parents=True)
    alarms.write_text("terminal: []\n")  # the app's own bell, for what needs the user, is not in question here
    names = {"HOME": str(home)} | {
        f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "CACHE", "STATE")
    }
    return {**names, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "GRPO_TUI_TMUX_SOCKET": f"grpo-{tmp_path.name}"}


def test_the_recorder_sees_planted_sequences(tmp_path: Path, environment: dict[str, str]) -> None:
    """Negative control."""
    code = f"import sys, time; sys.stdout.write({PLANTED!r}); sys.stdout.flush(); time.sleep(30)"
    with recorded(tmp_path, [sys.executable, "-c", code], environment) as recording:
        eventually(lambda: recording.screen._tmux("show-buffer") == "planted")
        with pytest.raises(AssertionError):
            recording.check()


def test_a_hostile_box(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [str(app_command(tmp_path, talk)), "--root", str(tmp_path)]
    with recorded(tmp_path, command, environment) as recording:
        screen = recording.screen
        screen.wait_for("live", "other", "failed", "▲", timeout=60)
        for tab in TABS:
            screen.press("l")
            screen.wait_for_focus(tab)
        for run in ("● other", "✖ failed", "▲ odd", "▲ mid", "▲ run"):  # with their errors
            screen.press("Down")
            screen.wait_for(f"▌{run}")
        screen.press("Home")
        screen.wait_for(" ● live  running")
        for key, text in OPENS.items():
            screen.press(key)
            screen.wait_for(text)
            screen.press("Escape")
            screen.wait_gone(text)
        screen.press("s")
        screen.wait_for("resumes it later")
        screen.press("Enter")  # refused; the box reports a crash and failed topics
        screen.wait_for("cannot stop", "refused")
        screen.press("Escape")
        screen.wait_gone("cannot stop")
        screen.wait_for("boom", "old: gone")
        screen.press("q")
        eventually(lambda: b"other (3/9) continues on box" in recording.file.read_bytes())
        recording.check()


def test_a_box_that_refuses(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [str(app_command(tmp_path, refuse)), "--root", str(tmp_path)]
    with recorded(tmp_path, command, environment) as recording:
        recording.screen.wait_for("cannot reach", "(no", timeout=60)
        recording.screen.press("q")
        recording.screen.wait_for("Pane is dead")
        recording.check()


def test_planted_run_directories_over_the_real_agent(tmp_path: Path, environment: dict[str, str]) -> None:
    """A shared root: another user writes what the agent reads."""
    root = tmp_path / "root"
    for name in ("first", "alive", NAME.encode("utf-8", "replace").decode()):
        write_run(root, name, state="running", total_steps=9)
    write_run(root, "second", state="running", device=PLANTED)
    command = [str(Path(sys.executable).with_name("grpo-tui")), "--root", str(root)]
    with recorded(tmp_path, command, environment) as recording:
        screen = recording.screen
        screen.wait_for("first", "second", "▲", timeout=60)
        for run, tab in zip(("● alive", "▲ second"), TABS, strict=False):
            screen.press("Down")
            screen.wait_for(f"▌{run}")
            screen.press("l")
            screen.wait_for_focus(tab)
        write_run(root, "first", state="crashed", error={"summary": "boom" + PLANTED, "console_tail": [PLANTED]})
        screen.wait_for("crashed", "boom", timeout=30)
        screen.wait_for("● alive")
        screen.press("q")
        eventually(lambda: b"alive (6/9) continues on box" in recording.file.read_bytes())
        recording.check()


@pytest.mark.parametrize("where", ["drawing", "request", "end"])
def test_crash_reports(tmp_path: Path, environment: dict[str, str], where: str) -> None:
    breaks = f"from tests.support.planted_box import break_app\nbreak_app({where!r})"
    command = [str(app_command(tmp_path, talk, first=breaks)), "--root", str(tmp_path)]
    with recorded(tmp_path, command, environment) as recording:
        if where == "request":
            recording.screen.wait_for("internal error", "ValueError: broken")
            recording.screen.press("Escape")
            recording.screen.wait_gone("internal error")
        elif where == "end":
            recording.screen.wait_for("live", "▲")
        if where != "drawing":
            recording.screen.press("q")
        recording.screen.wait_for("Pane is dead")
        if where != "request":
            assert b"broken" in recording.file.read_bytes()
        recording.check()
