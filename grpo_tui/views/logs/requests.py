"""Requests of the logs view, and saving a file."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Any

from grpo_tui import downloads
from grpo_tui.model.asking import CURSOR_S
from grpo_tui.model.formatting import byte_size
from remote.protocol import RemoteError
from remote.protocol.logs import MAX_BYTES, MAX_CHARACTERS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.views.logs.model.logs import LogSearch, LogsView, WholeLine
    from grpo_tui.views.logs.model.window import LogWindow


async def refresh_lines(app: Desk, window: LogWindow, params: dict[str, Any]) -> None:
    """Request lines about the cursor."""
    try:
        window.answer(params, await app.request("read_log", **params))
    except RemoteError as error:
        window.fail(params, error.message)
    finally:
        window.asking.cancel(params)
    app.tick_view()


async def refresh_search(app: Desk, search: LogSearch, params: dict[str, Any]) -> None:
    """Request what a search has found so far; the box continues it then."""
    try:
        search.answer(await app.request("search_log", **params))
    except RemoteError as error:
        search.fail(error.code, error.message)
    finally:
        search.asking.cancel("matches")
    app.tick_view()


async def refresh_whole(app: Desk, view: LogsView, whole: WholeLine) -> None:
    """Request the first 64 kB of the line under the cursor."""
    await asyncio.sleep(CURSOR_S)
    if view.whole is not whole:
        return
    params = {"run": view.run, "path": whole.path, "at": whole.line.offset, "after": 1, "characters": MAX_CHARACTERS}
    try:
        whole.answer(await app.request("read_log", timeout=30.0, **params))
    except RemoteError as error:
        whole.asking.end("line", error.message)
    app.tick_view()


MAX_SAVED = 16 << 20
"""Bytes of a file; of a larger one, the part about the cursor."""
TOLD = 4 << 20
"""A save of more bytes says that it has begun."""


async def save_part(app: Desk, run: str, path: str, middle: int, size: int) -> None:
    """Save a file, or ``MAX_SAVED`` bytes of it about an offset, and say where."""
    start = 0 if size <= MAX_SAVED else min(max(0, middle - MAX_SAVED // 2), size - MAX_SAVED)
    end = min(size, start + MAX_SAVED)
    if end - start > TOLD:
        app.receipt(f"saving {byte_size(end - start)} …")
    data = bytearray()
    try:
        while start + len(data) < end:
            count = min(MAX_BYTES, end - start - len(data))
            reply = await app.request("log_bytes", run=run, path=path, at=start + len(data), count=count)
            if not reply["data"]:
                break  # it was truncated
            data += reply["data"]
        file = downloads.new_file(f"{run}-{path.rpartition('/')[2]}")
        file.write_bytes(data)
    except RemoteError as error:
        app.warn(f"{error.message} {error.hint}", title="not saved")
        return
    except OSError as error:
        app.warn(f"{error.filename}: {error.strerror}", title="not saved")
        return
    detail = str(file)
    if end - start < size:
        root = str((app.store.host or {}).get("root", ""))
        whole = f"scp {shlex.quote(f'{app.store.box}:{root}/{path}')} ."
        detail += f" has {byte_size(end - start)} about the cursor, of {byte_size(size)}; all of it: {whole}"
    app.receipt(f"saved: {path.rpartition('/')[2]}, {byte_size(len(data))}", detail)
