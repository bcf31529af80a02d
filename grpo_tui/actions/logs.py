"""Actions in the logs view: files, lines, searches, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def open_row(app: Desk) -> None:
    """Open the file under the cursor, or show the whole line under it."""
    app.views.logs.open()


def search(app: Desk) -> None:
    """Search the file for a regular expression, on the box."""
    app.views.logs.ask_for("search")


def next_match(app: Desk) -> None:
    """Go to the next match of the search."""
    app.views.logs.step_match(1)


def previous_match(app: Desk) -> None:
    """Go to the previous match of the search."""
    app.views.logs.step_match(-1)


def go_to_line(app: Desk) -> None:
    """Go to a line by its number, or to a share of the file."""
    app.views.logs.ask_for("line")


def follow(app: Desk) -> None:
    """Follow the end of the file, or stay on this line."""
    app.views.logs.follow()


def wrap(app: Desk) -> None:
    """Wrap or truncate long lines."""
    app.receipt("long lines are wrapped" if app.views.logs.toggle_wrap() else "long lines are truncated")


def next_level(app: Desk) -> None:
    """Show every line, only warnings, or only errors."""
    app.views.logs.next_level()


def copy(app: Desk) -> None:
    """Copy the line under the cursor, or the path of the file."""
    app.views.logs.copy()


async def save(app: Desk) -> None:
    """Save the file to this machine (of a large file, the part around the cursor)."""
    await app.views.logs.save()
