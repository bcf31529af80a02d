"""Actions on boxes: switch, add, reconnect."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from grpo_tui import background
from remote.events import Link

if TYPE_CHECKING:
    from grpo_tui.fleet.glance import Glance
    from grpo_tui.kit.desk import Desk
    from grpo_tui.model.store import Store


async def choose_box(app: Desk) -> None:
    """Switch to another box, or add one."""
    from grpo_tui.screens.boxes import ADD, AddBoxScreen, BoxesScreen
    from remote.base import BoxesError
    from remote.boxes import add_box, load_boxes

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
    chosen = await app.show_dialog(BoxesScreen(boxes, current.name, lambda: _here(app), agent))
    if chosen == ADD:
        box = await app.show_dialog(AddBoxScreen(lambda new: add_box(file, new)))
        if box is not None:
            app.receipt(f"box {box.name} added", "connecting")
            await app.use_box(box)
    elif chosen == current.name:
        await reconnect(app)
    elif chosen is not None:
        await app.use_box(next(box for box in boxes if box.name == chosen))


def _here(app: Desk) -> Glance:
    """The current box, from what the app knows."""
    from grpo_tui.fleet.glance import Glance, gpu_counts

    store, box = app.store, app.connection.box
    rows = store.runs or []
    live = tuple(row.name for row in rows if row.is_live)
    ages = [age for row in rows if (age := store.age(row.updated_at)) is not None]
    return Glance(
        box.name,
        box.address(),
        box.price_at(time.time()),
        problem="" if store.connected else store.link.detail or "not connected",
        live=live,
        **gpu_counts(store.gpus, store.topic_problems.get("gpu", "")),
        idle_s=min(ages) if ages and not live else None,
        age_s=_age_of_the_link(store),
    )


def _age_of_the_link(store: Store) -> float | None:
    """Seconds since the current box was last heard; None if it never was."""
    if not store.ever_connected:
        return None
    return 0.0 if store.link.state is Link.CONNECTED else store.now() - store.link_since


async def safe_to_terminate(app: Desk) -> None:
    """List what would be lost if this box were terminated now."""
    from grpo_tui.screens.termination import TerminationScreen

    await app.show_dialog(TerminationScreen())


async def reconnect(app: Desk) -> None:
    """Reconnect to the box now.

    The box as boxes.yaml defines it now: the user may have edited it.
    """
    from remote.base import BoxesError

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
