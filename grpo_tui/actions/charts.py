"""Actions in the charts view: crosshair, range, smoothing, axes, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp


def left(app: GrpoApp) -> None:
    """Move the crosshair left."""
    app.views.charts.move_crosshair(-1)


def right(app: GrpoApp) -> None:
    """Move the crosshair right."""
    app.views.charts.move_crosshair(1)


def one_left(app: GrpoApp) -> None:
    """Move the crosshair to the logged step before."""
    app.views.charts.step_crosshair(-1)


def one_right(app: GrpoApp) -> None:
    """Move the crosshair to the next logged step."""
    app.views.charts.step_crosshair(1)


def far_left(app: GrpoApp) -> None:
    """Move the crosshair left by ten columns."""
    app.views.charts.move_crosshair(-10)


def far_right(app: GrpoApp) -> None:
    """Move the crosshair right by ten columns."""
    app.views.charts.move_crosshair(10)


def go_to_step(app: GrpoApp) -> None:
    """Put the crosshair on a step by its number."""
    app.views.charts.ask_for_step()


def highest(app: GrpoApp) -> None:
    """Put the crosshair on the highest value that a chart shows."""
    app.views.charts.go_to_extreme(True)


def lowest(app: GrpoApp) -> None:
    """Put the crosshair on the lowest value that a chart shows."""
    app.views.charts.go_to_extreme(False)


def zoom_in(app: GrpoApp) -> None:
    """Show half of the range, centered on the crosshair."""
    app.views.charts.zoom_range(0.5)


def zoom_out(app: GrpoApp) -> None:
    """Show twice the range."""
    app.views.charts.zoom_range(2.0)


def pan_left(app: GrpoApp) -> None:
    """Move the range to earlier steps."""
    app.views.charts.pan(-1)


def pan_right(app: GrpoApp) -> None:
    """Move the range to later steps."""
    app.views.charts.pan(1)


def show_all(app: GrpoApp) -> None:
    """Show the whole run."""
    app.views.charts.show_all()


def follow(app: GrpoApp) -> None:
    """Follow the newest step."""
    app.views.charts.follow()


def smooth_less(app: GrpoApp) -> None:
    """Smooth over fewer steps."""
    app.views.charts.view.smooth(-1, app.views.charts.smoothed_steps)
    app.views.charts.tick()


def smooth_more(app: GrpoApp) -> None:
    """Smooth over more steps."""
    app.views.charts.view.smooth(1, app.views.charts.smoothed_steps)
    app.views.charts.tick()


def toggle_log(app: GrpoApp) -> None:
    """Turn the logarithmic axis of a chart on or off."""
    app.views.charts.toggle_log()


def toggle_clip(app: GrpoApp) -> None:
    """Clip the y axis of a chart to the 1st to 99th percentile, or show every point."""
    app.views.charts.toggle_clip()


def next_axis(app: GrpoApp) -> None:
    """Switch to the next x axis: steps, tokens, time, cost."""
    logged = {str(row["name"]) for row in app.store.metrics.rows}
    app.views.charts.view.next_axis(app.store.price_per_hour is not None, not logged or "num_tokens" in logged)
    app.views.charts.tick()


def open_rollouts(app: GrpoApp) -> None:
    """Open the completions of the step at the crosshair, or the row of the event it was put on."""
    app.views.charts.open_at_crosshair()


def next_event(app: GrpoApp) -> None:
    """Put the crosshair on the next event: stop, resume, changed config, crash, evaluation."""
    app.views.charts.choose_event(1)


def previous_event(app: GrpoApp) -> None:
    """Put the crosshair on the previous event."""
    app.views.charts.choose_event(-1)


def toggle_metric(app: GrpoApp) -> None:
    """Show or hide the metric under the cursor."""
    app.views.charts.toggle_metric()


def earlier(app: GrpoApp) -> None:
    """Move the metric under the cursor to an earlier chart."""
    app.views.charts.move_metric(-1)


def later(app: GrpoApp) -> None:
    """Move the metric under the cursor to a later chart."""
    app.views.charts.move_metric(1)


def zoom(app: GrpoApp) -> None:
    """Show a chart in full screen."""
    app.views.charts.zoom()


def export(app: GrpoApp) -> None:
    """Save the steps shown as CSV and the charts as SVG and PNG, on this machine."""
    app.views.charts.export()


def copy(app: GrpoApp) -> None:
    """Copy what was logged at the crosshair; without one, the metric under the cursor and its last value."""
    app.views.charts.copy()


def show_filter(app: GrpoApp) -> None:
    """Filter the list of metrics by name."""
    app.views.charts.show_filter()
