"""Actions on Home: order, columns and names of the list, opening what is under the cursor."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpo_train.run_dir.files import to_float
from grpo_tui.model.run_columns import KNOWN
from grpo_tui.model.run_logs import run_path
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def open_focused(app: Desk) -> None:
    """Open the charts of the run, or the focused panel."""
    app.views.home.open_focused()


async def sort(app: Desk) -> None:
    """Sort the runs by a column; the same column again: the other direction."""
    from grpo_tui.screens.list_dialogs import OrderScreen

    runs = app.runs
    columns = list(dict.fromkeys(["start", "name", *runs.columns, runs.order.column]))
    if (chosen := await app.show_dialog(OrderScreen(columns, runs.order))) is not None:
        app.views.home.sort_by(chosen)


async def choose_columns(app: Desk) -> None:
    """Choose the columns of the list of runs."""
    from grpo_tui.columns_file import write_columns
    from grpo_tui.screens.list_dialogs import ColumnsScreen

    runs = app.runs
    row = app.store.logs.rows.last if app.store.logs else None
    logged = sorted(name for name, value in row.fields.items() if to_float(value) is not None) if row else []
    others = [*list(KNOWN)[1:], *logged, *runs.facts.keys()]
    chosen = await app.show_dialog(ColumnsScreen(runs.columns, list(dict.fromkeys(others))))
    if chosen is None:
        return
    runs.columns = chosen
    app.views.home.tick()
    try:
        await asyncio.to_thread(write_columns, chosen)
    except OSError as error:
        app.warn(str(error), title="the columns were not saved")


async def note(app: Desk) -> None:
    """Put a note on the run; an empty one removes it."""
    from grpo_tui.screens.list_dialogs import NoteScreen

    if (row := app.store.run) is None:
        return
    text = await app.show_dialog(NoteScreen(row.name, row.note))
    if text is None or text == row.note:
        return
    try:
        reply = await app.request("note", run=row.name, text=text)
    except RemoteError as error:
        app.show_error(f"cannot save the note on {row.name}", error.message, error.hint)
        return
    app.receipt(f"{row.name}: note {'kept' if reply.get('note') else 'removed'}")


def copy_path(app: Desk) -> None:
    """Copy the path of the run's directory on the box."""
    root, run = str((app.store.host or {}).get("root") or "").rstrip("/"), app.store.selected or ""
    app.copy(f"{root}/{run_path(run)}" if root else run_path(run), f"path of {run}")


def export(app: Desk) -> None:
    """Save the list of runs as CSV, on this machine."""
    from grpo_tui.export import save_table
    from grpo_tui.model.csv_tables import run_table

    runs = app.runs
    save_table(app, f"{app.store.box}_runs", run_table(runs, app.store), len(runs.rows), "run")


def dismiss(app: Desk) -> None:
    """Dismiss the entry under the cursor in the list of what needs you."""
    app.views.home.dismiss_need()


def full_names(app: Desk) -> None:
    """Show full names, or what differs between the runs shown."""
    app.runs.full_names ^= True
    app.views.home.tick()
