"""The requests of the logs view. No Textual."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from remote.protocol import RemoteError
from remote.protocol.logs import MAX_CHARACTERS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.model.log_search import LogSearch
    from grpo_tui.model.log_window import LogWindow
    from grpo_tui.model.logs_view import LogsView, WholeLine

REST_S = 0.15
"""The cursor rests this long before its whole line is requested."""
TIMEOUT_S = 30.0


async def refresh_files(app: Desk, view: LogsView) -> None:
    """Request the list of files."""
    try:
        view.answer_files(await app.request("log_files", timeout=TIMEOUT_S, run=view.run))
    except RemoteError as error:
        view.fail_files(error.message)
    finally:
        view.asked_at = None
    app.tick_view()


async def refresh_lines(app: Desk, window: LogWindow, ticket: int, params: dict[str, Any], is_live: bool) -> None:
    """Request lines about the cursor."""
    try:
        reply = await app.request("read_log", timeout=TIMEOUT_S, **params)
    except RemoteError as error:
        window.fail(ticket, error.message)
    except asyncio.CancelledError:
        window.fail(ticket, "")
        raise
    else:
        window.answer(ticket, reply, is_live)
    app.tick_view()


async def refresh_search(app: Desk, search: LogSearch, params: dict[str, Any], is_live: bool) -> None:
    """Request what a search has found so far; the box continues it then."""
    try:
        search.answer(await app.request("search_log", timeout=TIMEOUT_S, **params), is_live)
    except RemoteError as error:
        search.fail(error.code, error.message)
    finally:
        search.asked_at = None
    app.tick_view()


async def refresh_whole(app: Desk, view: LogsView, whole: WholeLine) -> None:
    """Request the first 64 kB of the line under the cursor."""
    await asyncio.sleep(REST_S)
    if view.whole is not whole:
        return
    params = {"run": view.run, "path": whole.path, "at": whole.line.offset, "after": 1, "characters": MAX_CHARACTERS}
    try:
        whole.answer(await app.request("read_log", timeout=TIMEOUT_S, **params))
    except RemoteError as error:
        whole.problem = error.message
    app.tick_view()
