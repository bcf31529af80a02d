"""Actions in the box view: the window of time, sessions, zoom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_tui.actions.runs import attach_to

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp


def shorter(app: GrpoApp) -> None:
    """Show a shorter time range."""
    app.views.box.change_window(-1)


def longer(app: GrpoApp) -> None:
    """Show a longer time range, up to the whole life of the box."""
    app.views.box.change_window(1)


def next_quantity(app: GrpoApp) -> None:
    """Chart use, memory, power or temperature of the GPUs."""
    app.views.box.view.next_quantity()
    app.views.box.tick()


def open_focused(app: GrpoApp) -> None:
    """List the checkpoints that can go, from the disks; else let the panel fill the screen."""
    app.views.box.open_focused()


def list_spare(app: GrpoApp) -> None:
    """List the checkpoints that can go, and their paths."""
    app.views.box.list_spare()


def zoom(app: GrpoApp) -> None:
    """Show the focused panel in full screen, or restore it."""
    app.views.box.zoom()


async def attach(app: GrpoApp) -> None:
    """Attach to the session under the cursor; detach to return here."""
    session = app.views.box.session
    if session:
        await attach_to(app, session)
    else:
        app.warn("this box has no tmux session")
