"""Actions on tunnels: TensorBoard of a run, and the list of what is open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpo_train.run_dir.errors import UserError
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

START_S = 90.0


async def tensorboard(app: Desk) -> None:
    """Open TensorBoard of the run through a tunnel; it ends with the tunnel."""
    run, client = app.store.selected, app.connection.client
    if run is None or client is None:
        return
    tunnels = app.connection.tunnels
    app.receipt(f"starting TensorBoard of {run} …")
    try:
        reply = await app.request("open_tensorboard", timeout=START_S, run=run)
        opened = await asyncio.to_thread(tunnels.open_tensorboard, client, run, reply)
    except RemoteError as error:
        app.show_error("cannot open TensorBoard", error.message, error.hint)
    except UserError as error:
        app.show_error("cannot open TensorBoard", str(error))
    else:
        await _show(app, tunnels.open.index(opened) if opened in tunnels.open else 0)


async def show(app: Desk) -> None:
    """List the tunnels to the box: open, copy or end one."""
    await _show(app, 0)


async def _show(app: Desk, selected: int) -> None:
    from grpo_tui.screens.tunnels import TunnelsScreen

    await app.show_dialog(TunnelsScreen(app.store.box, app.connection.tunnels, selected))


async def open_forwards(app: Desk) -> None:
    """Open the forwards of the box in boxes.yaml, once it is connected."""
    connection = app.connection
    if connection.box.forward and connection.client is not None:
        problems = await asyncio.to_thread(connection.tunnels.open_forwards, connection.client, connection.box)
        for problem in problems:
            app.warn(problem, title=f"boxes.yaml: {connection.box.name}")
