"""Actions in the compare view: crosshair, axes, which run is pinned, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def left(app: Desk) -> None:
    """Move the crosshair left."""
    app.views.compare.move_crosshair(-1)


def right(app: Desk) -> None:
    """Move the crosshair right."""
    app.views.compare.move_crosshair(1)


def one_left(app: Desk) -> None:
    """Move the crosshair to the step before."""
    app.views.compare.step_crosshair(-1)


def one_right(app: Desk) -> None:
    """Move the crosshair to the next step."""
    app.views.compare.step_crosshair(1)


def far_left(app: Desk) -> None:
    """Move the crosshair left by ten columns."""
    app.views.compare.move_crosshair(-10)


def far_right(app: Desk) -> None:
    """Move the crosshair right by ten columns."""
    app.views.compare.move_crosshair(10)


def go_to_step(app: Desk) -> None:
    """Put the crosshair on a step by its number."""
    app.views.compare.ask_for_step()


def next_run(app: Desk) -> None:
    """Highlight the next run."""
    app.views.compare.comparison.move(1)
    app.views.compare.tick()


def previous_run(app: Desk) -> None:
    """Highlight the previous run."""
    app.views.compare.comparison.move(-1)
    app.views.compare.tick()


def pin(app: Desk) -> None:
    """Pin the highlighted run, or the next one; the others are compared with it."""
    if letter := app.views.compare.comparison.pin_current():
        app.receipt(f"{letter} is pinned")
    app.views.compare.tick()


def drop(app: Desk) -> None:
    """Remove the highlighted run, and its mark."""
    app.views.compare.drop()


def next_axis(app: Desk) -> None:
    """Switch to the next x axis: steps, tokens, time since the start of each run, cost."""
    app.views.compare.comparison.next_axis(app.store.price_per_hour is not None)
    app.views.compare.tick()


def smooth_less(app: Desk) -> None:
    """Smooth over fewer steps."""
    app.views.compare.comparison.smooth(-1)
    app.views.compare.tick()


def smooth_more(app: Desk) -> None:
    """Smooth over more steps."""
    app.views.compare.comparison.smooth(1)
    app.views.compare.tick()


def toggle_log(app: Desk) -> None:
    """Turn the logarithmic axis of a chart on or off."""
    app.views.compare.toggle_log()


def previous_metrics(app: Desk) -> None:
    """Show the previous metrics."""
    app.views.compare.turn_metrics(-1)


def next_metrics(app: Desk) -> None:
    """Show the next metrics, in the order of the charts view."""
    app.views.compare.turn_metrics(1)


def toggle_all_keys(app: Desk) -> None:
    """List all keys of the configurations, or those that differ."""
    app.views.compare.comparison.shows_all ^= True
    app.views.compare.tick()


def next_table(app: Desk) -> None:
    """Show the next table."""
    app.views.compare.next_table()


def copy(app: Desk) -> None:
    """Copy the focused table, or the values of the focused chart."""
    app.views.compare.copy()


def export(app: Desk) -> None:
    """Save every step of the compared runs as CSV, and the charts as SVG and PNG."""
    app.views.compare.export()


def open_flips(app: Desk) -> None:
    """Show the problems that the highlighted run gets wrong and the pinned one right, at the same step."""
    app.views.compare.open_flips()


def open_run(app: Desk) -> None:
    """Open the charts of the highlighted run."""
    from grpo_tui.kit.desk import SelectRun, ShowView

    if (run := app.views.compare.current) is not None:
        app.post_message(SelectRun(run.name))
        app.post_message(ShowView("charts"))


def zoom(app: Desk) -> None:
    """Show a chart or a table in full screen."""
    app.views.compare.zoom()
