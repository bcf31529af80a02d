"""What the charts of a view show: metrics, axis, smoothing, the crosshair. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_tui.model.curves import AXES, SMOOTHINGS, Window
from remote.protocol.index import AUTOMATIC

MOST_SHOWN = 12
DEFAULT = (
    "reward", "grad_norm", "ess/token", "kl", "accuracy", "completions/mean_length", "loss", "entropy",
    "frac_reward_zero_std",
)  # fmt: skip
"""Shown first, as far as the run logs them."""
LOGARITHMIC = ("grad_norm",)
"""Whose y axis is logarithmic at first."""
ELAPSED = "elapsed"
"""The axis of the time since the start of each of several runs; ``time`` is the time of day."""
AXIS_NAMES = {"step": "step", "tokens": "tokens", "time": "time", "seconds": "cost"}


@dataclass(eq=False)
class PlotView:
    """The user's choices for all charts of a view."""

    window: Window = field(default_factory=Window)
    logarithmic: set[str] = field(default_factory=lambda: {*LOGARITHMIC})
    clipped: set[str] = field(default_factory=set)
    """Metrics whose y axis leaves out the extremes."""
    crosshair: float | None = None

    @property
    def x(self) -> str:
        """The x axis."""
        return self.window.x

    def next_axis(self, has_price: bool, has_tokens: bool = True) -> str:
        """Turn to the next x axis in order: cost needs a price of the box, tokens that they are logged. Returns it.

        The range of another axis means nothing: all is shown.
        """
        missing = {name for name, has in (("cost", has_price), ("tokens", has_tokens)) if not has}
        axes = [one for one in AXES if AXIS_NAMES[one] not in missing]
        axis = axes[(axes.index(self.x) + 1) % len(axes)] if self.x in axes else axes[0]
        self.window, self.crosshair = Window(x=axis, smoothing=self.window.smoothing), None
        return axis

    def smooth(self, by: int, used: int) -> int:
        """More (+1) or less (-1) smoothing; beyond both ends it is automatic again. Returns the steps.

        ``used``: steps of the moving average now.
        """
        steps = used if self.window.smoothing == AUTOMATIC else self.window.smoothing
        found = [one for one in SMOOTHINGS if (one > steps if by > 0 else one < steps)]
        steps = (min if by > 0 else max)(found, default=AUTOMATIC)
        self.window = replace(self.window, smoothing=steps)
        return steps


@dataclass(eq=False)
class ChartsView(PlotView):
    """The user's choices in the charts view. They outlive a change of run."""

    shown: list[str] = field(default_factory=list)
    """The chosen metrics, in order; empty: those of DEFAULT that the run logs."""
    filter: str = ""
    _places: dict[str, int] = field(default_factory=dict)
    """Where hidden metrics were, so that they come back there."""

    def to_json(self) -> dict[str, Any]:
        """What is kept for the next start: axes and smoothing."""
        return {
            "x": self.window.x, "smoothing": self.window.smoothing,
            "logarithmic": sorted(self.logarithmic), "clipped": sorted(self.clipped),
        }  # fmt: skip

    def restore(self, found: Mapping[str, Any], has_price: bool) -> None:
        """Take what was kept, as far as it can be used."""
        x, smoothing = found.get("x"), found.get("smoothing")
        self.window = Window(
            x=x if x in AXES and (has_price or AXIS_NAMES[x] != "cost") else "step",
            smoothing=smoothing if smoothing in SMOOTHINGS else AUTOMATIC,
        )
        for name, kept in (("logarithmic", self.logarithmic), ("clipped", self.clipped)):
            if isinstance(found.get(name), list):
                kept.clear()
                kept.update(str(one) for one in found[name])

    def metrics(self, logged: Iterable[str]) -> list[str]:
        """The metrics to draw, of those that the run logs."""
        names = set(logged)
        if self.shown:
            return [name for name in self.shown if name in names][:MOST_SHOWN]
        return [name for name in DEFAULT if name in names][:6]

    def toggle(self, name: str, logged: Iterable[str]) -> bool:
        """Show or hide a metric; returns False if there is no room for another."""
        shown = self.metrics(logged)
        if name in shown:
            self._places[name] = shown.index(name)
            shown.remove(name)
        elif len(shown) >= MOST_SHOWN:
            return False
        else:
            shown.insert(self._places.pop(name, len(shown)), name)
        self.shown = shown
        return True

    def put_first(self, name: str, logged: Iterable[str]) -> None:
        """Show a metric in the first chart: a small terminal has room for two."""
        self.shown = [name, *(one for one in self.metrics(logged) if one != name)][:MOST_SHOWN]

    def move(self, name: str, by: int, logged: Iterable[str]) -> None:
        """Move a shown metric earlier (-1) or later (+1)."""
        shown = self.metrics(logged)
        if name in shown:
            index = shown.index(name)
            shown.insert(min(len(shown) - 1, max(0, index + by)), shown.pop(index))
            self.shown = shown


def smoothing_label(chosen: int, used: int) -> str:
    """The smoothing as words: ``off``, ``50 steps``, ``auto (46 steps)``."""
    if chosen == AUTOMATIC:
        return f"auto ({used:,} steps)" if used else "auto"
    return f"{chosen:,} steps" if chosen else "off"
