"""Actions in the charts view: crosshair, range, smoothing, axes, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def left(app: Desk) -> None:
    """Move the crosshair left."""
    app.views.charts.move_crosshair(-1)


def right(app: Desk) -> None:
    """Move the crosshair right."""
    app.views.charts.move_crosshair(1)


def one_left(app: Desk) -> None:
    """Move the crosshair to the logged step before."""
    app.views.charts.step_crosshair(-1)


def one_right(app: Desk) -> None:
    """Move the crosshair to the next logged step."""
    app.views.charts.step_crosshair(1)


def far_left(app: Desk) -> None:
    """Move the crosshair left by ten columns."""
    app.views.charts.move_crosshair(-10)


def far_right(app: Desk) -> None:
    """Move the crosshair right by ten columns."""
    app.views.charts.move_crosshair(10)


def go_to_step(app: Desk) -> None:
    """Put the crosshair on a step by its number."""
    app.views.charts.ask_for_step()


def highest(app: Desk) -> None:
    """Put the crosshair on the highest value that a chart shows."""
    app.views.charts.go_to_extreme(True)


def lowest(app: Desk) -> None:
    """Put the crosshair on the lowest value that a chart shows."""
    app.views.charts.go_to_extreme(False)


def zoom_in(app: Desk) -> None:
    """Show half of the range, centered on the crosshair."""
    app.views.charts.zoom_range(0.5)


def zoom_out(app: Desk) -> None:
    """Show twice the range."""
    app.views.charts.zoom_range(2.0)


def pan_left(app: Desk) -> None:
    """Move the range to earlier steps."""
    app.views.charts.pan(-1)


def pan_right(app: Desk) -> None:
    """Move the range to later steps."""
    app.views.charts.pan(1)


def show_all(app: Desk) -> None:
    """Show the whole run."""
    app.views.charts.show_all()


def follow(app: Desk) -> None:
    """Follow the newest step."""
    app.views.charts.follow()


def smooth_less(app: Desk) -> None:
    """Smooth over fewer steps."""
    app.charts.smooth(-1, app.views.charts.smoothed_steps)
    app.views.charts.tick()


def smooth_more(app: Desk) -> None:
    """Smooth over more steps."""
    app.charts.smooth(1, app.views.charts.smoothed_steps)
    app.views.charts.tick()


def toggle_log(app: Desk) -> None:
    """Turn the logarithmic axis of a chart on or off."""
    app.views.charts.toggle_log()


def toggle_clip(app: Desk) -> None:
    """Clip the y axis of a chart to the 1st to 99th percentile, or show every point."""
    app.views.charts.toggle_clip()


def next_axis(app: Desk) -> None:
    """Switch to the next x axis: steps, tokens, time, cost."""
    logged = {str(row["name"]) for row in app.store.metrics.rows}
    app.charts.next_axis(app.store.price_per_hour is not None, not logged or "num_tokens" in logged)
    app.views.charts.tick()


def open_rollouts(app: Desk) -> None:
    """Open the completions of the step at the crosshair, or the row of the event it was put on."""
    app.views.charts.open_at_crosshair()


def next_event(app: Desk) -> None:
    """Put the crosshair on the next event: stop, resume, changed config, crash, evaluation."""
    app.views.charts.choose_event(1)


def previous_event(app: Desk) -> None:
    """Put the crosshair on the previous event."""
    app.views.charts.choose_event(-1)


def toggle_metric(app: Desk) -> None:
    """Show or hide the metric under the cursor."""
    app.views.charts.toggle_metric()


def earlier(app: Desk) -> None:
    """Move the metric under the cursor to an earlier chart."""
    app.views.charts.move_metric(-1)


def later(app: Desk) -> None:
    """Move the metric under the cursor to a later chart."""
    app.views.charts.move_metric(1)


def zoom(app: Desk) -> None:
    """Show a chart in full screen."""
    app.views.charts.zoom()


def export(app: Desk) -> None:
    """Save the steps shown as CSV and the charts as SVG and PNG, on this machine."""
    app.views.charts.export()


def copy(app: Desk) -> None:
    """Copy what was logged at the crosshair; without one, the metric under the cursor and its last value."""
    app.views.charts.copy()


def show_filter(app: Desk) -> None:
    """Filter the list of metrics by name."""
    app.views.charts.show_filter()
