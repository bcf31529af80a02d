"""The last screen: what the list of runs looked like when the app ended, on the terminal until the app has started.

It is dimmed and says ``as of 14:02 · starting``. It belongs to a command line, a terminal and the files in its header;
if any of them differs, it is not shown. This module imports only what costs nothing: the screen has to
appear before the imports.
"""

from __future__ import annotations

import atexit
import binascii
import os
import sys
import time

MAGIC = "grpo-tui last screen 1"
MAX_BYTES = 500_000
BODY = "\n---\n"
"""Between the header and the lines of the screen."""
AS_OF = "{as of}"
"""Where the first line has room for the time; it fills the line."""
VARIABLES = (
    "TERM", "COLORTERM", "TERM_PROGRAM", "COLUMNS", "LINES", "HOME", "LOCALFS_ROOT", "GRPO_TUI_TMUX_SOCKET",
    "XDG_CONFIG_HOME", "XDG_STATE_HOME",
)  # fmt: skip
"""Variables that decide what the app shows, beside those that begin with ``TEXTUAL``."""
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H", "\x1b[?7h\x1b[?1049l\x1b[?25h"

_before: list[object] = []
"""Modes of the terminal before the screen was shown; empty if none was."""
_is_withdrawn = False
"""Whether the screen was removed, or the app has taken over."""


def key_of(words: list[str]) -> str:
    """What must be equal for a start to show the same: command line, place, and variables."""
    names = [*VARIABLES, *sorted(name for name in os.environ if name.startswith("TEXTUAL"))]
    return ascii([words, os.getcwd() if words else "", [(name, os.environ.get(name)) for name in names]])


def cache_folder() -> str:
    """The cache folder of this app, as platformdirs has it."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "grpo-tui")
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return os.path.join(base or os.path.join(home, ".cache"), "grpo-tui")


def file_of(folder: str, key: str) -> str:
    """The file of a key. Keys with the same checksum share it: the last one has it."""
    return os.path.join(folder, f"screen-{sum_of(key)}")


def sum_of(text: str) -> str:
    """The checksum of a text."""
    return f"{binascii.crc32(text.encode()):08x}"


def print_of(path: str) -> str:
    """Time and size of a file; ``-`` without one."""
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_mtime_ns} {found.st_size}"


def can_show() -> bool:
    """Whether there is a terminal, in the foreground, that shows colors."""
    if sys.platform == "win32" or "NO_COLOR" in os.environ or "TEXTUAL_DRIVER" in os.environ:
        return False
    if os.environ.get("TERM", "dumb") in ("", "dumb") or not all(map(os.isatty, (0, 1, 2))):
        return False
    return os.tcgetpgrp(0) == os.getpgrp()


def show(words: list[str]) -> bool:
    """Show the last screen of this command line, and keep the keys that are typed for the app."""
    global _before
    try:
        if not can_show():
            return False
        key = key_of(words)
        lines = _read(file_of(cache_folder(), key), key, tuple(os.get_terminal_size(1)))
        if lines is None:
            return False
        import termios

        _before = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSANOW, _silent(_before))  # type: ignore[arg-type]
        atexit.register(withdraw)
        _write(ENTER + "\x1b[0m\r\n".join(lines) + "\x1b[0m")
    except (OSError, ValueError, ImportError):
        return False
    return True


def is_shown() -> bool:
    """Whether the last screen is on the terminal."""
    return bool(_before) and not _is_withdrawn


def withdraw() -> None:
    """Restore the terminal: the app did not start, or has ended. Keys that were typed for it are dropped."""
    global _is_withdrawn
    if is_shown():
        import termios

        _is_withdrawn = True
        _write(LEAVE)
        termios.tcsetattr(0, termios.TCSAFLUSH, _before)  # type: ignore[arg-type]


def take_over() -> list[object]:
    """The app has the terminal now; returns the modes to restore at its end, or [] if no last screen was shown."""
    global _is_withdrawn
    modes = _before if is_shown() else []
    _is_withdrawn = True
    return modes


def _silent(modes: list[object]) -> list[object]:
    """Modes that echo nothing and lose no key. Ctrl+C still ends a start that hangs."""
    import termios

    silent = list(modes)
    silent[0] = int(modes[0]) & ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)  # type: ignore[call-overload]
    silent[3] = int(modes[3]) & ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # type: ignore[call-overload]
    special = list(modes[6])  # type: ignore[call-overload]
    special[termios.VMIN], special[termios.VTIME] = 1, 0
    special[termios.VSUSP] = special[termios.VQUIT] = b"\x00"
    silent[6] = special
    return silent


def _read(path: str, key: str, size: tuple[int, ...]) -> list[str] | None:
    """The lines of a stored screen, if all it depends on is as it was."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or found.st_size > MAX_BYTES:
            return None
        header, _, body = file.read().decode().partition(BODY)
    magic, *entries = header.split("\n")
    if magic != MAGIC:
        return None
    at = 0.0
    known = {"key": key, "size": "{} {}".format(*size), "sum": sum_of(body)}
    for entry in entries:
        kind, _, value = entry.partition(" ")
        if kind == "at":
            at = float(value)
        elif kind == "file":
            path, _, expected = value.rpartition("\t")
            if print_of(path) != expected:
                return None
        elif kind == "has":
            path, _, text = value.partition("\t")
            with open(path, encoding="utf-8") as other:
                if ascii(other.read(MAX_BYTES)).find(text) < 0:
                    return None
        elif known.get(kind) != value:
            return None
    lines = body.split("\n")
    if len(lines) != size[1] or not at or not all(map(_is_plain, lines)):
        return None
    return [_dated(lines[0], at), *lines[1:]]


def _is_plain(line: str) -> bool:
    """Whether a line has only characters and colors: nothing else may reach the terminal."""
    first, *parts = line.split("\x1b[")
    for part in parts:
        codes, found, text = part.partition("m")
        if not found or codes.strip("0123456789;") or not text.isprintable():
            return False
    return first.isprintable()


def _dated(line: str, at: float) -> str:
    """The first line, with the time that the screen is of."""
    now, then = time.localtime(), time.localtime(at)
    form = "%H:%M" if now[:3] == then[:3] else "%Y-%m-%d %H:%M"
    before, _, after = line.partition(AS_OF)
    room, _, after = after.partition(" ")
    text = f"as of {time.strftime(form, then)} · starting"
    return before + text[: int(room)].ljust(int(room)) + after


def _write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(2, data) :]
