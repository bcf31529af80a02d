"""Saving a report of the selected run, or of the marked ones: the box makes the page, this machine keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_tui import downloads
from grpo_tui.model.formatting import byte_size
from remote.protocol import RemoteError
from remote.protocol.report import MAX_RUNS

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp

TIMEOUT_S = 180.0


def reported(app: GrpoApp) -> list[str]:
    """The marked runs on Home and in the comparison, else the selected one."""
    marked = [row.name for row in app.store.runs or () if row.name in app.store.marks]
    if marked and app.views.name in ("home", "compare"):
        return marked
    return [app.store.selected] if app.store.selected else []


async def save_report(app: GrpoApp) -> None:
    """Save the report as one HTML file in the downloads folder."""
    runs = reported(app)
    if not 1 <= len(runs) <= MAX_RUNS:
        app.warn(f"a report is of 1 to {MAX_RUNS} runs; {len(runs)} are marked" if runs else "no run selected")
        return
    what = runs[0] if len(runs) == 1 else f"{len(runs)} runs"
    app.receipt(f"the box makes the report of {what} …")
    try:
        reply = await app.request("report", timeout=TIMEOUT_S, runs=runs, price=app.store.price_per_hour)
        file = downloads.new_file(f"{runs[0]}.html" if len(runs) == 1 else f"{runs[0]}_and_{len(runs) - 1}_more.html")
        file.write_bytes(reply["page"])
    except RemoteError as error:
        app.warn(f"{error.message} {error.hint}", title="no report")
    except OSError as error:
        app.warn(f"{error.filename}: {error.strerror}", title="not saved")
    else:
        app.receipt(f"saved the report of {what}, {byte_size(len(reply['page']))}", str(file))
