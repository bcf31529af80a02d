"""The requests of the box view. No Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_tui.model.box_view import COLUMNS, MAX_SESSIONS
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.model.box_view import BoxView


async def refresh_facts(app: Desk, view: BoxView) -> None:
    """Request processor, memory and disks."""
    try:
        view.take_facts(await app.request("box_facts", timeout=15.0), app.store.now())
    except RemoteError as error:
        view.ended("facts", error.message)
    app.tick_view()


async def refresh_sizes(app: Desk, view: BoxView) -> None:
    """Request the sizes of the checkpoints, as far as the box has measured them."""
    try:
        view.take_sizes(await app.request("checkpoint_sizes", timeout=15.0))
    except RemoteError as error:
        view.ended("sizes", error.message)


async def fill_history(app: Desk, view: BoxView) -> None:
    """Request what the GPUs did, from the logs of the runs of that time."""
    store = app.store
    low, high = view.ends(store)
    skew_s = store.skew_s
    replies = []
    for run in view.runs(store):
        params = {"run": run, "low": low - skew_s, "high": high - skew_s, "columns": COLUMNS}
        try:
            replies.append(await app.request("gpu_history", timeout=30.0, **params))
        except RemoteError:
            continue  # its samples are missing, which the chart shows
    view.history.fill(replies, skew_s)
    view.ended("fill")


async def refresh_last_lines(app: Desk, view: BoxView) -> None:
    """Request the last line of each session."""
    for session in [str(row["name"]) for row in app.store.sessions[:MAX_SESSIONS]]:
        try:
            text = str((await app.request("capture_pane", timeout=15.0, session=session, lines=20)).get("text", ""))
        except RemoteError:
            continue  # it ended just now
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        view.lines[session] = lines[-1] if lines else ""
        view.version += 1
    view.ended("lines")
