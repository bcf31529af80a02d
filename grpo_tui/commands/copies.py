"""Commands that copy between this machine and the box."""

from __future__ import annotations

import asyncio

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.copies import BoxCopy, Get, Put, Sync
from grpo_tui.dialogs import copies
from grpo_tui.kit.desk import Desk
from remote.protocol import RemoteError


async def get(app: Desk) -> None:
    """Copy the run, or weights of a checkpoint, to this machine."""
    from grpo_tui.dialogs.copies import GetForm

    if (copy := app.copy_at_work) is not None:
        await _show(app, copy)
        return
    run = app.store.selected
    if run is None:
        return
    try:
        app.store.show(run, await app.request("show_run", run=run))
    except RemoteError as error:
        app.show_error(f"cannot read {run}", error.message, error.hint)
        return
    await _start(app, await app.show_dialog(GetForm(run, app.store.complete_steps())))


async def put(app: Desk) -> None:
    """Copy a file or folder of this machine to the box."""
    from grpo_tui.dialogs.copies import PutForm

    if (copy := app.copy_at_work) is not None:
        await _show(app, copy)
        return
    await _start(app, await app.show_dialog(PutForm(app.store.box)))


async def sync(app: Desk) -> None:
    """Bring the commit of the checkout here to the box, and the changes if the user wants them."""
    from grpo_tui.dialogs.copies import UncommittedScreen
    from remote.code import find_checkout
    from remote.protocol.copies import CLONE

    if (copy := app.copy_at_work) is not None:
        await _show(app, copy)
        return
    if app.connection.box.code == CLONE:
        await _start(app, Sync(None))
        return
    try:
        checkout = await asyncio.to_thread(find_checkout)
    except UserError as error:
        app.show_error("no code to sync", str(error))
        return
    if checkout.changes and not await app.show_dialog(UncommittedScreen(checkout, app.store.box)):
        return
    await _start(app, Sync(checkout.folder, bool(checkout.changes)))


async def _start(app: Desk, request: Get | Put | Sync | None) -> None:
    if request is not None:
        await _show(app, copies.start_copy(app, app.connection.box, request))


async def _show(app: Desk, copy: BoxCopy) -> None:
    """Show a copy; a person may hide it, stop it, or let one that failed continue."""
    from grpo_tui.dialogs.copies import CopyScreen

    while await app.show_dialog(CopyScreen(copy)):
        copy = copies.start_copy(app, copy.box, copy.request)
