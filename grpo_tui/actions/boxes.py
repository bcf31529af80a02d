"""Actions on boxes: switch, add, reconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpo_tui import background

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp


async def choose_box(app: GrpoApp) -> None:
    """Switch to another box, or add one."""
    from grpo_tui.screens.boxes import ADD, AddBoxScreen, BoxesScreen
    from remote.boxes import BoxesError, add_box, load_boxes

    file = app.options.boxes_file
    try:
        boxes = await asyncio.to_thread(load_boxes, file)
    except BoxesError as error:
        app.show_error("cannot read the list of boxes", str(error))
        return
    current = app.connection.box
    if all(box.name != current.name for box in boxes):
        boxes = [current, *boxes]
    agent = app.store.check_to_act_on("agent")
    chosen = await app.show_dialog(BoxesScreen(boxes, current.name, agent))
    if chosen == ADD:
        box = await app.show_dialog(AddBoxScreen(lambda new: add_box(file, new)))
        if box is not None:
            app.receipt(f"box {box.name} added", "connecting")
            await app.use_box(box)
    elif chosen == current.name:
        await reconnect(app)
    elif chosen is not None:
        await app.use_box(next(box for box in boxes if box.name == chosen))


async def safe_to_terminate(app: GrpoApp) -> None:
    """List what would be lost if this box were terminated now."""
    from grpo_tui.screens.termination import TerminationScreen

    await app.show_dialog(TerminationScreen())


async def reconnect(app: GrpoApp) -> None:
    """Reconnect to the box now.

    The box as boxes.yaml defines it now: the user may have edited it.
    """
    from remote.boxes import BoxesError

    if not app.store.connected or app.store.failed_check():
        current = app.connection.box
        try:
            box = await asyncio.to_thread(app.options.reload_box, current)
        except BoxesError as error:
            app.show_error("cannot read the list of boxes", str(error))
            return
        if box != current:
            await app.use_box(box)
            return
    if app.connection.client is not None:
        app.connection.client.reconnect_now()
    if app.store.connected:
        await background.examine(app)
