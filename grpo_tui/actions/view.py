"""Actions on the home screen: filter, zoom, back, log tabs, smoothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp


def show_filter(app: GrpoApp) -> None:
    """Filter the list of runs by name and state."""
    app.home.show_filter()


def zoom(app: GrpoApp) -> None:
    """Zoom the focused panel."""
    app.home.zoom()


def back(app: GrpoApp) -> None:
    """Close the zoomed panel or clear the filter."""
    app.home.back()


def next_log(app: GrpoApp) -> None:
    """Show the next log tab."""
    app.home.show_next_log()


def smooth(app: GrpoApp) -> None:
    """Turn smoothing of the curves on or off."""
    app.receipt("smoothed curves" if app.home.toggle_smoothing() else "raw curves")
