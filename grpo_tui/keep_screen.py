"""Keeps the screen with the list of runs when the app ends, for :mod:`grpo_tui.last_screen`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.renderables.background_screen import BackgroundScreen
from textual.strip import Strip

import grpo_train.run_dir.version
from grpo_train.run_dir.files import atomic_write
from grpo_tui import last_screen
from grpo_tui.preferences import preferences_path
from grpo_tui.user_files import user_file
from grpo_tui.views.home.screen import HomeScreen
from remote.boxes import default_path

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

DIMMED = 0.45
"""Share of the background in the colors of the last screen."""
MOST_KEPT = 20
"""Screens of as many command lines are kept."""
USER_FILES = ("keymap.yaml", "columns.yaml", "alarms.yaml")


def keep(app: Desk, words: tuple[str, ...]) -> None:
    """Write what is on the screen if it is the list of runs; else remove what was kept, which the app left."""
    key = last_screen.key_of(list(words))
    file = Path(last_screen.file_of(last_screen.cache_folder(), key))
    with suppress(OSError):
        if words and app.store.box != app.options.box.name:
            return  # the next start shows the other box
        if app.store.recalled_at is not None:
            return  # it was never replaced by what the box says
        if (lines := _lines(app)) is None:
            file.unlink(missing_ok=True)
            return
        body = "\n".join(lines)
        text = "\n".join([*_header(app, key), f"sum {last_screen.sum_of(body)}"]) + last_screen.BODY + body
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(file, text, mode=0o600)
        kept = sorted(file.parent.glob("screen-*"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            old.unlink()


def _header(app: Desk, key: str) -> list[str]:
    """What the screen belongs to."""
    size, preferences = app.size, app.preferences
    files = [app.options.boxes_file or default_path(), *map(user_file, USER_FILES)]
    files.append(Path(grpo_train.run_dir.version.__file__))
    remembered = ["theme", "box"] if not app.options.words else ["theme"]
    return [
        last_screen.MAGIC,
        f"at {time.time()}",
        f"size {size.width} {size.height}",
        f"key {key}",
        *(f"file {path.absolute()}\t{last_screen.print_of(str(path))}" for path in files),
        *(
            f"has {preferences_path()}\t" + ascii(f'\n "{name}": {json.dumps(getattr(preferences, name))},')[1:-1]
            for name in remembered
        ),
    ]


def _lines(app: Desk) -> list[str] | None:
    """The dimmed lines of the screen with the list, the first one with room for the time. None on another screen."""
    screen, store = app.screen, app.store
    if not isinstance(screen, HomeScreen) or screen.maximized is not None or not store.runs:
        return None
    strips = screen._compositor.render_strips()
    first = strips[0]
    at = first.text.find(store.box)
    room = first.cell_length - (begin := at + len(store.box) + 2)
    if at < 0 or room < 24:
        return None
    background = app.current_theme.background or "black"
    tint = Color.parse(background).with_alpha(DIMMED)
    dimmed = [Strip(BackgroundScreen.process_segments(strip, tint)) for strip in strips]
    filler = list(dimmed[0])[-1].style or Style()
    note = Segment(f"{last_screen.AS_OF}{room} ", filler + Style(color=app.current_theme.warning, bold=True))
    head = Strip([*dimmed[0].crop(0, begin), note])
    return [strip.render(app.console) for strip in (head, *dimmed[1:])]
