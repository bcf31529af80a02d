"""Actions in the history: query, order, tables, opening a run where it is, its tracking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_train.history.record import Record
    from grpo_tui.kit.desk import Desk
    from remote.boxes import Box


def show_query(app: Desk) -> None:
    """Find runs by state, metrics, config keys, evaluations, cost and time, as grpo-tui history."""
    app.views.history.show_filter()


def next_table(app: Desk) -> None:
    """Show the runs, or the cost by run, box or day, with idle time apart."""
    app.views.history.next_table()


async def sort(app: Desk) -> None:
    """Sort the runs by a column; the same column again: the other direction."""
    from grpo_tui.model.history_table import TABLES
    from grpo_tui.screens.list_dialogs import OrderScreen

    screen = app.views.history
    view = screen.view
    if view.asked.table != TABLES[0] or view.answer is None:
        app.warn("costs have an order of their own: by cost, box or day")
        return
    columns = list(dict.fromkeys([*view.answer.rows.columns, view.order.column]))
    if (chosen := await app.show_dialog(OrderScreen(columns, view.order))) is not None:
        screen.sort_by(chosen)


async def open_run(app: Desk) -> None:
    """Open the run on its box where it exists, else show what is known of it."""
    from grpo_tui.kit.desk import SelectRun, ShowView

    if (record := app.views.history.record) is None:
        app.warn("no run under the cursor")
        return
    if record.box == app.store.box:
        if any(row.name == record.name for row in app.store.runs or ()):
            app.post_message(SelectRun(record.name))
            app.post_message(ShowView("charts"))
        else:
            show_details(app)
    elif (box := await _box_of(app, record)) is None:
        show_details(app)
    else:
        app.post_message(ShowView("home"))
        await app.use_box(box)
        app.post_message(SelectRun(record.name))
        app.receipt(f"connecting to {box.name}", f"{record.name} is selected once the box lists it")


async def _box_of(app: Desk, record: Record) -> Box | None:
    """The box of a run in boxes.yaml, with the root that the run is under."""
    from remote.base import BoxesError
    from remote.boxes import load_boxes

    try:
        boxes = await asyncio.to_thread(load_boxes, app.options.boxes_file)
    except BoxesError:
        return None
    return next((box for box in boxes if box.name == record.box and box.root == record.root), None)


def show_details(app: Desk) -> None:
    """Show everything that is known of the run: values, evaluations, events, configuration."""
    from grpo_tui.screens.record import RecordScreen

    if (record := app.views.history.record) is None:
        app.warn("no run under the cursor")
    else:
        app.push_screen(RecordScreen(record))


def show_tracking(app: Desk) -> None:
    """Show whether the run is in W&B, its page, and what failed last."""
    from grpo_train.run_dir.config_values import config_values
    from grpo_tui.model.tracking import tracking_of
    from grpo_tui.screens.tracking import TrackingScreen

    if app.view == "history":
        if (record := app.views.history.record) is None:
            app.warn("no run under the cursor")
            return
        found = tracking_of(record.name, record.events, record.config_value("tracking.wandb"))
    else:
        run, shown = app.store.selected or "", app.store.shown
        config = config_values(str(shown.get("config_text") or ""))
        found = tracking_of(run, shown.get("events") or (), config.get("tracking.wandb"))
    app.push_screen(TrackingScreen(found))


def zoom(app: Desk) -> None:
    """Show the focused panel in full screen, or restore it."""
    app.views.history.zoom()
