"""Actions on boxes: switch, add, reconnect."""

from __future__ import annotations

import asyncio

from grpo_tui import background
from grpo_tui.actions.action import Face
from remote.protocol import RemoteError


async def choose_box(face: Face) -> None:
    """Switch to another box, or add one."""
    from grpo_tui.screens.boxes import ADD, AddBoxScreen, BoxesScreen
    from remote.boxes import BoxesError, add_box, load_boxes

    file = face.options.boxes_file
    try:
        boxes = await asyncio.to_thread(load_boxes, file)
    except BoxesError as error:
        face.show_error("cannot read the list of boxes", RemoteError("bad_config", str(error)))
        return
    current = face.connection.box
    if all(box.name != current.name for box in boxes):
        boxes = [current, *boxes]
    chosen = await face.show_dialog(BoxesScreen(boxes, current.name))
    if chosen == ADD:
        box = await face.show_dialog(AddBoxScreen(lambda new: add_box(file, new)))
        if box is not None:
            face.receipt(f"box {box.name} added", "connecting")
            await face.use_box(box)
    elif chosen == current.name:
        await reconnect(face)
    elif chosen is not None:
        await face.use_box(next(box for box in boxes if box.name == chosen))


async def reconnect(face: Face) -> None:
    """Connect now, to the box as boxes.yaml defines it now: the user may have edited it."""
    from remote.boxes import BoxesError

    if not face.store.connected or face.store.failed_check():
        current = face.connection.box
        try:
            box = await asyncio.to_thread(face.options.reload_box, current)
        except BoxesError as error:
            face.show_error("cannot read the list of boxes", RemoteError("bad_config", str(error)))
            return
        if box != current:
            await face.use_box(box)
            return
    if face.connection.client is not None:
        face.connection.client.reconnect_now()
    if face.store.connected:
        await background.examine(face)
