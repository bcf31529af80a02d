"""The commands of the palette: the actions of the view, and what has no key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from grpo_tui import downloads, report
from grpo_tui.actions import copies, reasons, tunnels
from grpo_tui.actions.action import key_label

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

CLOSED_AFTER_S = 0.2
"""The palette is off the screen then."""


def commands(app: Desk) -> Iterator[SystemCommand]:
    """The commands that can be chosen now, each with its key, or with why it is not available."""
    situation = app.situation()
    for action in app.actions:
        if action.id == "palette" or not action.is_in(app.view):
            continue
        reason = action.reason(situation)
        text = f"not available: {reason}" if reason else f"key: {key_label(action.keys[0])}"
        text = text.replace("[", r"\[")  # Textual reads it as markup
        title = f"{action.label}: {action.help}"  # the palette searches titles alone
        yield SystemCommand(title, text, lambda name=action.id: app.run_worker(app.action_act(name)))
    yield SystemCommand("tunnels: List the tunnels to the box", "open, copy or end one", partial(_list_tunnels, app))
    if not (why := reasons.readonly(situation)):
        why = "the next launch trains with it; running jobs keep theirs"
        yield SystemCommand("sync: Bring the code of this machine's checkout to the box", why, partial(_sync, app))
    title = "report: Save a report of the run, or of the marked runs, as one HTML file"
    yield SystemCommand(title, "made by the box, kept in the downloads folder", partial(report.start, app))
    yield SystemCommand("theme", "Choose the color theme", app.action_change_theme)
    other, why = ("braille", "finer") if app.preferences.in_blocks else ("blocks", "for a font without braille")
    yield SystemCommand(f"charts: {other}", f"Draw charts in {other}: {why}", partial(_draw_charts_in, app, other))
    yield SystemCommand("screenshot", "Save a screenshot (SVG)", partial(_save_screenshot, app))


def _list_tunnels(app: Desk) -> None:
    app.work("tunnels", partial(tunnels.show, app))


def _sync(app: Desk) -> None:
    app.work("sync", partial(copies.sync, app))


def _draw_charts_in(app: Desk, characters: str) -> None:
    app.preferences.charts = characters
    app.tick()


def _save_screenshot(app: Desk) -> None:
    """Save to the downloads folder, or the home directory without one."""
    app.set_timer(CLOSED_AFTER_S, lambda: app.deliver_screenshot(path=str(downloads.folder())))
