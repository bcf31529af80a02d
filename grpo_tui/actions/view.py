"""Actions on the views: turning to one, filter, zoom, back, log tabs, smoothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def show_home(app: Desk) -> None:
    """Show the runs of the box."""
    app.views.show("home")


def show_charts(app: Desk) -> None:
    """Show the run's metrics as charts."""
    app.views.show("charts")


def show_rollouts(app: Desk) -> None:
    """Show the run's completions."""
    app.views.show("rollouts")


def show_box(app: Desk) -> None:
    """Show the machine: GPUs over time, disks, sessions, checks."""
    app.views.show("box")


def show_compare(app: Desk) -> None:
    """Compare the marked runs."""
    app.views.show("compare")


def show_history(app: Desk) -> None:
    """Show the runs of all boxes, also of boxes that are gone, and what they cost."""
    app.views.show("history")


def show_logs(app: Desk) -> None:
    """Show the run's log files, of any size."""
    app.views.show("logs")


def show_filter(app: Desk) -> None:
    """Filter the list of runs by words, state, any metric or config key."""
    app.views.home.show_filter()


def zoom(app: Desk) -> None:
    """Zoom the focused panel."""
    app.views.home.zoom()


def back(app: Desk) -> None:
    """Go back one step: zoomed panel, filter, crosshair, then Home."""
    app.views.back()


def next_log(app: Desk) -> None:
    """Show the next log tab."""
    app.views.home.show_next_log()


def smooth(app: Desk) -> None:
    """Turn smoothing of the curves on or off."""
    app.receipt("smoothed curves" if app.views.home.toggle_smoothing() else "raw curves")
