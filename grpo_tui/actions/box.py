"""Actions in the box view: the window of time, sessions, zoom."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from grpo_tui.actions.runs import attach_to
from grpo_tui.attach import attach_command
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def shorter(app: Desk) -> None:
    """Show a shorter time range."""
    app.views.box.change_window(-1)


def longer(app: Desk) -> None:
    """Show a longer time range, up to the whole life of the box."""
    app.views.box.change_window(1)


def next_quantity(app: Desk) -> None:
    """Chart use, memory, power or temperature of the GPUs."""
    app.views.box.view.next_quantity()
    app.views.box.tick()


def open_focused(app: Desk) -> None:
    """List the checkpoints that can go, from the disks; else let the panel fill the screen."""
    app.views.box.open_focused()


def list_spare(app: Desk) -> None:
    """List the checkpoints that can go, and their paths."""
    app.views.box.list_spare()


def export(app: Desk) -> None:
    """Save what the GPUs did in the time shown as CSV, on this machine."""
    from grpo_tui.export import save_table
    from grpo_tui.model.csv_tables import gpu_table

    view = app.views.box.view
    table, samples = gpu_table(view.history, *view.ends(app.store))
    if samples:
        save_table(app, f"{app.store.box}_gpus_{view.name.replace(' ', '_')}", table, samples, "sample")
    else:
        app.warn(f"nothing to save: no sample of a GPU in {view.name}")


def zoom(app: Desk) -> None:
    """Show the focused panel in full screen, or restore it."""
    app.views.box.zoom()


async def attach(app: Desk) -> None:
    """Attach to the session under the cursor; detach to return here."""
    session = app.views.box.session
    if session:
        await attach_to(app, session)
    else:
        app.warn("this box has no tmux session")


async def copy_attach(app: Desk) -> None:
    """Copy the command that attaches to the session under the cursor."""
    session = app.views.box.session
    if not session:
        app.warn("this box has no tmux session")
        return
    try:
        command = await asyncio.to_thread(attach_command, app.connection.box, session)
    except Exception as error:  # no OpenSSH, an alias that does not resolve, …
        app.show_error("cannot attach", str(error))
        return
    app.copy(shlex.join(command), f"the command that attaches to {session}")


async def set_up(app: Desk) -> None:
    """Install the engine of the box's checkout, or what is missing of it, in a tmux session."""
    try:
        reply = await app.request("set_up")
    except RemoteError as error:
        app.show_error("cannot set up the engine", error.message, error.hint)
        return
    started = "started" if reply["started"] else "is running"
    app.receipt(
        f"setup of the engine {started}", f"in tmux session {reply['session']}; {app.key('attach_session')} attaches"
    )


async def open_shell(app: Desk) -> None:
    """Open a shell on the box in a new tmux session, and attach to it."""
    try:
        session = (await app.request("open_shell"))["session"]
    except RemoteError as error:
        app.show_error("cannot open a shell", error.message, error.hint)
        return
    await attach_to(app, session)


async def send_line(app: Desk) -> None:
    """Send a line to the session under the cursor (asks first)."""
    from grpo_tui.screens.send_line import LineScreen, confirm_line

    session = app.views.box.session
    if not session:
        app.warn("this box has no tmux session")
        return
    line = await app.show_dialog(LineScreen(session))
    if not line or not await app.show_dialog(confirm_line(app.store.box, session, line)):
        return
    try:
        await app.request("send_line", session=session, line=line)
    except RemoteError as error:
        app.show_error(f"not sent to {session}", error.message, error.hint)
    else:
        app.receipt(f"sent to {session}", line)
