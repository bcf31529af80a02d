"""Actions in the rollouts view: panes, order, filter, matches, marked samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


def pane_in(app: Desk) -> None:
    """Go to the next pane: steps, groups, samples, text."""
    app.views.rollouts.move_pane(1)


def pane_out(app: Desk) -> None:
    """Go to the pane on the left."""
    app.views.rollouts.move_pane(-1)


def next_order(app: Desk) -> None:
    """Sort the groups by spread, mean, length, or log order."""
    app.views.rollouts.next_order()


def reverse_order(app: Desk) -> None:
    """Reverse the order of the groups."""
    app.views.rollouts.reverse_order()


def show_filter(app: Desk) -> None:
    """Filter the samples: reward<1 truncated text~"wait"."""
    app.views.rollouts.show_filter()


def search_file(app: Desk) -> None:
    """Search the whole file on the box, or only the shown step."""
    app.views.rollouts.search_file()


def next_match(app: Desk) -> None:
    """Go to the next sample that matches the filter."""
    app.views.rollouts.next_match(1)


def previous_match(app: Desk) -> None:
    """Go to the previous sample that matches the filter."""
    app.views.rollouts.next_match(-1)


def go_to_step(app: Desk) -> None:
    """Go to a step by its number."""
    app.views.rollouts.ask_for_step()


def mark(app: Desk) -> None:
    """Mark the sample, to compare another one with it."""
    app.views.rollouts.toggle_mark()


def side_by_side(app: Desk) -> None:
    """Show the marked sample beside this one; equal beginnings are dimmed."""
    app.views.rollouts.toggle_beside()


def next_evaluation(app: Desk) -> None:
    """Show the completions of an evaluation, or of training."""
    app.views.rollouts.next_evaluation()


def next_flips(app: Desk) -> None:
    """Show the problems that a checkpoint lost or gained since the previous one."""
    app.views.rollouts.next_flips()


def wrap(app: Desk) -> None:
    """Wrap or truncate long lines (shift+left and shift+right scroll them)."""
    app.receipt("long lines are wrapped" if app.views.rollouts.toggle_wrap() else "long lines are cut")


def prompt(app: Desk) -> None:
    """Show all of a long prompt, or its end."""
    app.views.rollouts.toggle_prompt()


def follow(app: Desk) -> None:
    """Follow the newest step."""
    app.views.rollouts.follow()


def copy(app: Desk) -> None:
    """Copy prompt and completion of the sample."""
    app.views.rollouts.copy_sample()


def export(app: Desk) -> None:
    """Save the listed samples as CSV, on this machine."""
    app.views.rollouts.export()


def zoom(app: Desk) -> None:
    """Show the focused pane in full screen."""
    app.views.rollouts.zoom()
