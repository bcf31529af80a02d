"""Saving a report of the selected run, or of the marked ones: the box makes the page, this machine keeps it."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train import run_dir
from grpo_tui import downloads
from grpo_tui.model.asking import ENGINE_S
from grpo_tui.model.formatting import byte_size
from remote.protocol import RemoteError
from remote.protocol.report import MAX_RUNS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def reported(app: Desk) -> list[str]:
    """The marked runs on Home and in the comparison, else the selected one."""
    marked = [row.name for row in app.store.runs or () if row.name in app.store.marks]
    if marked and app.view in ("home", "compare"):
        return marked
    return [app.store.selected] if app.store.selected else []


def guarded(page: bytes) -> bytes:
    """The page with a policy of this machine before anything of the box: no other script than the report's own runs in
    the browser, and nothing is loaded from elsewhere."""
    own = Path(run_dir.__file__).parents[1] / "report" / "page.js"
    script = base64.b64encode(hashlib.sha256(own.read_bytes()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = f'<!DOCTYPE html>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return head.encode() + page.removeprefix(b"<!DOCTYPE html>\n")


async def save_report(app: Desk) -> None:
    """Save the report as one HTML file in the downloads folder."""
    runs = reported(app)
    if not 1 <= len(runs) <= MAX_RUNS:
        app.warn(f"a report is of 1 to {MAX_RUNS} runs; {len(runs)} are marked" if runs else "no run selected")
        return
    what = runs[0] if len(runs) == 1 else f"{len(runs)} runs"
    app.receipt(f"the box makes the report of {what} …")
    try:
        reply = await app.request("report", timeout=ENGINE_S, runs=runs, price=app.store.price_per_hour)
        file = downloads.new_file(f"{runs[0]}.html" if len(runs) == 1 else f"{runs[0]}_and_{len(runs) - 1}_more.html")
        file.write_bytes(guarded(reply["page"]))
    except RemoteError as error:
        app.warn(f"{error.message} {error.hint}", title="no report")
    except OSError as error:
        app.warn(f"{error.filename}: {error.strerror}", title="not saved")
    else:
        app.receipt(f"saved the report of {what}, {byte_size(len(reply['page']))}", str(file))


def start(app: Desk) -> None:
    """Save the report in the background."""
    app.work("report", partial(save_report, app))
