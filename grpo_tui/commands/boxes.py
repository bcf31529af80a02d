"""Commands on boxes: switch, add, edit, remove, reconnect; tunnels to the box."""

from __future__ import annotations

import asyncio
import time

from textual.content import Content

from grpo_train.run_dir.errors import UserError
from grpo_tui import background
from grpo_tui.box.fleet import Glance, gpu_counts
from grpo_tui.box.link import TENSORBOARD_S
from grpo_tui.box.store import Store
from grpo_tui.commands.backups import back_up_all
from grpo_tui.kit.desk import Desk
from grpo_tui.kit.dialog import ConfirmScreen
from remote.base import BoxesError
from remote.boxes import Box, add_box, change_box, default_path, entries_of, load_boxes, local_box, remove_box
from remote.events import Link
from remote.protocol import RemoteError


async def choose_box(app: Desk) -> None:
    """Switch to another box; add, edit or remove one."""
    from grpo_tui.dialogs.boxes import BoxesScreen

    file = app.options.boxes_file
    cursor = ""
    while True:
        try:
            boxes = await asyncio.to_thread(load_boxes, file)
            entries = await asyncio.to_thread(entries_of, file)
        except BoxesError as error:
            app.show_error("cannot read the list of boxes", str(error))
            return
        if app.is_first_start and not entries:
            await _add(app)
            return
        current = app.connection.box
        if all(box.name != current.name for box in boxes):
            boxes = [current, *boxes]
        agent = app.store.check_to_act_on("agent")
        dialog = BoxesScreen(boxes, current.name, lambda: _here(app), agent, cursor, entries)
        what, cursor = await app.show_dialog(dialog) or ("", "")
        chosen = next((box for box in boxes if box.name == cursor), None)
        if what == "add":
            await _add(app)
            return
        if chosen is None:
            return
        if what == "use":
            await (reconnect(app) if cursor == current.name else app.use_box(chosen))
            return
        await (_edit if what == "edit" else _remove)(app, chosen)
        if app.connection.box is not current:
            return


async def _edit(app: Desk, box: Box) -> None:
    """Edit a box of boxes.yaml; the shown one connects anew."""
    from grpo_tui.dialogs.boxes import AddBoxScreen

    file = app.options.boxes_file
    box = next(one for one in await asyncio.to_thread(load_boxes, file) if one.name == box.name)
    new = await app.show_dialog(AddBoxScreen(lambda new: change_box(file, box.name, new), box))
    if new is None or new == box:
        return
    if box.name == app.connection.box.name:
        app.receipt(f"box {new.name} changed", "connecting")
        await app.use_box(await asyncio.to_thread(app.options.reload_box, new))
    else:
        app.receipt(f"box {new.name} changed")


async def _remove(app: Desk, box: Box) -> None:
    """Remove a box from boxes.yaml after a confirmation; in place of the shown one, the app shows another."""
    file, is_shown = app.options.boxes_file, box.name == app.connection.box.name
    others = [one for one in await asyncio.to_thread(load_boxes, file) if one.name != box.name] or [local_box()]
    facts = {
        "forgotten": f"its entry in {file or default_path()}: address, paths, price",
        "stays": "everything on the box: its runs continue, and nothing there is touched",
        "": "its host key, its history and what was kept of its runs, on this machine",
    }
    if is_shown:
        facts["then"] = f"disconnects from it and shows {others[0].name}"
    lines = [Content.from_markup("Remove [bold]$name[/] ($address)?", name=box.name, address=box.address())]
    lines += [
        Content.from_markup("[$grpo-muted]$label[/]$text", label=f"{label:<11}", text=text)
        for label, text in facts.items()
    ]
    if await app.show_dialog(ConfirmScreen(f"remove {box.name}", lines, "Remove")):
        try:
            await asyncio.to_thread(remove_box, file, box.name)
        except BoxesError as error:
            app.show_error(f"cannot remove {box.name}", str(error))
            return
        app.receipt(f"box {box.name} removed", "nothing on it was changed")
        if is_shown:
            await app.use_box(others[0])


async def _add(app: Desk) -> None:
    """Add a box to boxes.yaml, and connect to it."""
    from grpo_tui.dialogs.boxes import AddBoxScreen

    box = await app.show_dialog(AddBoxScreen(lambda new: add_box(app.options.boxes_file, new)))
    if box is not None:
        app.receipt(f"box {box.name} added", "connecting")
        await app.use_box(box)


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

    if await app.show_dialog(TerminationScreen()):
        await back_up_all(app)


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
        await background.examine_box(app)


async def tensorboard(app: Desk) -> None:
    """Open TensorBoard of the run through a tunnel; it ends with the tunnel."""
    run, client = app.store.selected, app.connection.client
    if run is None or client is None:
        return
    tunnels = app.connection.tunnels
    app.receipt(f"starting TensorBoard of {run} …")
    try:
        reply = await app.request("open_tensorboard", reply_s=TENSORBOARD_S, run=run)
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
