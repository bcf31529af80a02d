"""What charts show: metrics and colors, axis, smoothing, the crosshair, events. No Textual."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_train.run_dir.curves import LEVELS, LOGARITHMIC, RAW, SHARES
from grpo_train.run_dir.display import CRASH, EVENT_WORDS
from grpo_train.run_dir.files import to_float
from grpo_tui.box.curves import AXES, Curves, Mark, Window
from grpo_tui.box.events import Pause, RunEvent, evaluation_events
from grpo_tui.box.store import Store


class Chart(NamedTuple):
    """One chart. Its theme color is ``$chart-ID``."""

    id: str
    metric: str
    shown: str
    """CSS class by the size of the terminal: "" (always), ``-not-short`` or ``-wide-only``."""
    dark: str
    light: str


CHARTS = (
    Chart("reward", "reward", "", "#3fd6a8", "#00775a"),
    Chart("loss", "loss", "-not-short", "#5cc8ff", "#0067a8"),
    Chart("length", "completions/mean_length", "", "#b79cff", "#6a3fc0"),
    Chart("grad", "grad_norm", "-not-short", "#ffb454", "#a85b00"),
    Chart("zero", "frac_reward_zero_std", "-wide-only", "#f58bb8", "#b0306e"),
    Chart("entropy", "entropy", "-wide-only", "#e8e06b", "#7a7000"),
)


class RunLook(NamedTuple):
    """How a run looks in a chart of several runs. Its theme color is ``$run-ID``."""

    id: str
    line: str
    """A solid, dashed or dotted line."""
    dark: str
    light: str

    @property
    def letter(self) -> str:
        return self.id.upper()


SOLID, DASHED, DOTTED = "━┅┄"
RUN_LOOKS = (
    RunLook("a", SOLID, "#3fd6a8", "#00775a"),
    RunLook("b", DASHED, "#ffb454", "#a85b00"),
    RunLook("c", DOTTED, "#5cc8ff", "#0067a8"),
    RunLook("d", SOLID, "#f58bb8", "#b0306e"),
    RunLook("e", DASHED, "#b79cff", "#6a3fc0"),
    RunLook("f", DOTTED, "#e8e06b", "#7a7000"),
    RunLook("g", SOLID, "#ff6b5e", "#c02a1c"),
    RunLook("h", DASHED, "#9be564", "#3f7200"),
    RunLook("i", DOTTED, "#8fa8ff", "#3b4fc4"),
    RunLook("j", SOLID, "#d9a987", "#7a5230"),
    RunLook("k", DASHED, "#4fd8eb", "#006d7d"),
    RunLook("l", DOTTED, "#d6d6d6", "#4a515b"),
)
"""As many as can be compared."""


MOST_SHOWN = 12
DEFAULT = (
    "reward", "grad_norm", "loss", "accuracy", "kl", "completions/mean_length", "ess/token", "entropy",
    "frac_reward_zero_std",
)  # fmt: skip
"""Shown first, as far as the run logs them."""
FLAT_SHARE = 0.005
"""Range of a share below which its line is level on the axis from 0 to 1."""
ELAPSED = "elapsed"
"""The axis of the time since the start of each of several runs; ``time`` is the time of day."""
AXIS_NAMES = {"step": "step", "tokens": "tokens", "time": "time", "seconds": "cost"}


@dataclass(eq=False)
class PlotView:
    """The user's choices for all charts of a view."""

    window: Window = field(default_factory=Window)
    smoothing: str = RAW
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
        self.window, self.crosshair = Window(x=axis), None
        return axis

    def smooth(self, by: int) -> str:
        """Turn to the next (+1) or previous (-1) of :data:`LEVELS`. Returns it."""
        self.smoothing = LEVELS[(LEVELS.index(self.smoothing) + by) % len(LEVELS)]
        return self.smoothing


@dataclass(eq=False)
class ChartsView(PlotView):
    """The user's choices in the charts view. They outlive a change of run."""

    shown: list[str] = field(default_factory=list)
    """The chosen metrics, in order; empty: those of DEFAULT that the run logs."""
    filter: str = ""
    page: int = 0
    """Of :meth:`pages`."""
    columns: int = 0
    """Of charts; 0 = as many as fit."""
    rows: int = 0
    _places: dict[str, int] = field(default_factory=dict)
    """Where hidden metrics were, so that they come back there."""

    def to_json(self) -> dict[str, Any]:
        """What is kept for the next start: axes, smoothing, and how the charts are laid out."""
        return {
            "x": self.window.x, "smoothing": self.smoothing, "columns": self.columns, "rows": self.rows,
            "logarithmic": sorted(self.logarithmic), "clipped": sorted(self.clipped),
        }  # fmt: skip

    def restore(self, found: Mapping[str, Any], has_price: bool) -> None:
        """Take what was kept, as far as it can be used."""
        x, smoothing = found.get("x"), found.get("smoothing")
        self.window = Window(x=x if x in AXES and (has_price or AXIS_NAMES[x] != "cost") else "step")
        self.smoothing = smoothing if smoothing in LEVELS else RAW
        self.columns, self.rows = (
            int(found[name]) if str(found.get(name)) in ("1", "2", "3", "4") else 0 for name in ("columns", "rows")
        )
        for name, kept in (("logarithmic", self.logarithmic), ("clipped", self.clipped)):
            if isinstance(found.get(name), list):
                kept.clear()
                kept.update(str(one) for one in found[name])

    def metrics(self, logged: Mapping[str, Any]) -> list[str]:
        """The metrics to draw first, of those that the run logs: the chosen ones, else the usual ones that change."""
        if self.shown:
            return [name for name in self.shown if name in logged][:MOST_SHOWN]
        return [name for name in DEFAULT if name in logged and not is_flat(logged[name])]

    def pages(self, logged: Mapping[str, Any], slots: int) -> list[list[str]]:
        """All metrics that change, as many a page as there is room for: those of :meth:`metrics`, then the others, of
        which those that never had a finite value come last."""
        first = self.metrics(logged)
        others = [name for name in logged if name not in first and not is_flat(logged[name])]
        others.sort(key=lambda name: logged[name].get("min") is None)
        head = (first if self.shown else [*first, *others])[:slots]
        rest = [name for name in (*first, *others) if name not in head]
        return [head, *(rest[at : at + slots] for at in range(0, len(rest), slots))]

    def toggle(self, name: str, logged: Mapping[str, Any]) -> bool:
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

    def put_first(self, name: str, logged: Mapping[str, Any]) -> None:
        """Show a metric in the first chart: a small terminal has room for two."""
        self.shown = [name, *(one for one in self.metrics(logged) if one != name)][:MOST_SHOWN]

    def move(self, name: str, by: int, logged: Mapping[str, Any]) -> None:
        """Move a shown metric earlier (-1) or later (+1)."""
        shown = self.metrics(logged)
        if name in shown:
            index = shown.index(name)
            shown.insert(min(len(shown) - 1, max(0, index + by)), shown.pop(index))
            self.shown = shown


def is_flat(row: Mapping[str, Any]) -> bool:
    """Whether a metric, a row of a ``metrics`` reply, is a level line. That the reward is one is worth a chart."""
    low, high = to_float(row.get("min")), to_float(row.get("max"))
    is_level = low is not None and high is not None and 0 <= high - low < FLAT_SHARE and SHARES.fullmatch(row["name"])
    return bool(row.get("constant") or is_level) and row["name"] not in ("reward", "accuracy")


def smoothing_label(smoothing: str, over: int) -> str:
    """What the line is: ``raw``, ``mean of 12 (dense)``, ``light (mean of 50)``."""
    if not over:
        return smoothing
    return f"mean of {over:,} (dense)" if smoothing == RAW else f"{smoothing} (mean of {over:,})"


SEVERAL = "+"
NOT_FINITE = "×"
"""NaN or an infinite value of the chart's own metric."""


class Placed(NamedTuple):
    """An event with its place on the axis that is shown."""

    x: float
    event: RunEvent


def accuracies(metric: str, placed: Iterable[Placed]) -> dict[Placed, float]:
    """The evaluations with a result, which is a value of the chart of the accuracy, and of no other."""
    found = {one: one.event.accuracy for one in placed} if metric == "accuracy" else {}
    return {one: accuracy for one, accuracy in found.items() if accuracy is not None}


class ChartEvents:
    """The events in the range that the charts show, in order."""

    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self.pauses: list[Pause] = []
        """Of a time axis."""
        self.version = 0
        self._key: object = None

    def update(self, store: Store, curves: Curves | None) -> None:
        """Place the events anew if they, or the range, have changed."""
        logs = store.logs
        if logs is None or curves is None or not curves.axis:
            self.placed, self.pauses = [], []
            return
        key = (curves.run, curves.version, logs.run, logs.version["events"], store.versions["shown"])
        if key == self._key:
            return
        self._key = key
        self.version += 1
        low, high = curves.ends
        found = []
        for event in (*logs.happened.events, *evaluation_events(curves.run, store.shown)):
            x = curves.x_of_step(event.step)
            if curves.axis == "time" and event.at is not None:
                x = min(event.at, curves.last or event.at)  # a run ends after its last step
            if x is not None and low <= x <= high:
                found.append(Placed(x, event))
        self.placed = sorted(found, key=lambda one: one.x)
        self.pauses = list(logs.happened.pauses) if curves.axis == "time" else []

    def between(self, first: float, last: float) -> list[RunEvent]:
        """The events from one step to another."""
        return [one.event for one in self.placed if first <= one.event.step <= last]

    def beside(self, x: float | None, by: int) -> list[Placed]:
        """The events at the next (+1) or previous (-1) place from an x; None: from the end."""
        places = [one.x for one in self.placed]
        beyond = [at for at in places if x is None or (at > x if by > 0 else at < x)]
        at = (min(beyond) if by > 0 and x is not None else max(beyond)) if beyond else None
        return [one for one in self.placed if one.x == at]


def sign_of(events: Sequence[RunEvent]) -> str:
    """The sign of a column with these events: a crash is always seen; a stop and the resume from it are one."""
    worst = worst_of(events).sign
    is_one = len({event.step for event in events}) == 1 or len({event.sign for event in events}) == 1
    return worst if worst == CRASH or is_one else SEVERAL


def worst_of(events: Sequence[RunEvent]) -> RunEvent:
    """The event that matters most; of equal ones the last."""
    return min(reversed(events), key=lambda event: list(EVENT_WORDS).index(event.sign))


class Gap(NamedTuple):
    """A part of a time axis without a step, because the run did not train."""

    low: float
    high: float
    seconds: float
    has_end: bool
    """Whether an event says when the run had ended."""


def gaps_of(marks: Sequence[Mark], pauses: Sequence[Pause], ends: tuple[float, float]) -> list[tuple[int, Gap]]:
    """Each pause in the range: the place of the first mark after it, and the gap."""
    found = []
    for pause in pauses:
        place = bisect_left(marks, pause.end, key=lambda mark: mark.x)
        low = marks[place - 1].x if place else ends[0]
        high = marks[place].x if place < len(marks) else ends[1]
        start = low if pause.start is None else max(low, pause.start)
        if start < high and pause.end > ends[0] and start < ends[1]:
            seconds = pause.end - (pause.start if pause.start is not None else low)
            found.append((place, Gap(start, high, seconds, pause.start is not None)))
    return found
