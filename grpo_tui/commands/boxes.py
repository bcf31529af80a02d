"""Commands on boxes: switch, add, reconnect; tunnels to the box."""

from __future__ import annotations

import asyncio
import time

from grpo_train.run_dir.errors import UserError
from grpo_tui import background
from grpo_tui.box.fleet import Glance, gpu_counts
from grpo_tui.box.link import TENSORBOARD_S
from grpo_tui.box.store import Store
from grpo_tui.kit.desk import Desk
from remote.base import BoxesError
from remote.boxes import add_box, load_boxes
from remote.events import Link
from remote.protocol import RemoteError


async def choose_box(app: Desk) -> None:
    """Switch to another box, or add one."""
    from grpo_tui.dialogs.boxes import ADD, AddBoxScreen, BoxesScreen

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
    from grpo_tui.dialogs.backups import TerminationScreen

    await app.show_dialog(TerminationScreen())


async def reconnect(app: Desk) -> None:
    """Reconnect to the box now.

    The box as boxes.yaml defines it now: the user may have edited it.
    """
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


async def tensorboard(app: Desk) -> None:
    """Open TensorBoard of the run through a tunnel; it ends with the tunnel."""
    run, client = app.store.selected, app.connection.client
    if run is None or client is None:
        return
    tunnels = app.connection.tunnels
    app.receipt(f"starting TensorBoard of {run} …")
    try:
        reply = await app.request("open_tensorboard", timeout=TENSORBOARD_S, run=run)
        opened = await asyncio.to_thread(tunnels.open_tensorboard, client, run, reply)
    except RemoteError as error:
        app.show_error("cannot open TensorBoard", error.message, error.hint)
    except UserError as error:
        app.show_error("cannot open TensorBoard", str(error))
    else:
        await _show_tunnels(app, tunnels.open.index(opened) if opened in tunnels.open else 0)


async def list_tunnels(app: Desk) -> None:
    """List the tunnels to the box: open, copy or end one."""
    await _show_tunnels(app, 0)


async def _show_tunnels(app: Desk, selected: int) -> None:
    from grpo_tui.dialogs.boxes import TunnelsScreen

    await app.show_dialog(TunnelsScreen(app.store.box, app.connection.tunnels, selected))
