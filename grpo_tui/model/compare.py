"""What the compare view shows: the marked runs with their letters, the pinned one, axis, smoothing. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo_train.run_dir.smoothing import automatic_steps
from grpo_tui.charts import RUN_LOOKS, RunLook
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import Asking
from grpo_tui.model.charts_view import LOGARITHMIC, next_axis, next_smoothing
from grpo_tui.model.compare_facts import Facts
from grpo_tui.model.curves import Curves, Window
from grpo_tui.model.run_logs import RunLogs
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.standing import TRACKED, Track, interpolate, track_of
from remote.protocol.index import AUTOMATIC, MAX_WIDTH

LETTERS = tuple(look.letter for look in RUN_LOOKS)
"""Of the compared runs: as many as the view takes."""
AGAIN_S = 5.0
"""Pause before the box is asked again for the curves of a run that has logged more steps …"""
FACTS_S = 30.0
"""… and for the evaluations of any run."""


class RunCurves(Curves):
    """The curves of one compared run. Its log is not followed: they are asked for again while it grows."""

    def __init__(self, run: str, now: Callable[[], float] = monotonic) -> None:
        super().__init__(run, now=now)
        self.track: Track | None = None
        """The run along its log, once its curves are whole."""
        self._logs = RunLogs(run)
        self._step = -1

    @property
    def origin(self) -> float:
        """The x that is drawn as 0: of a time axis, the run's first time."""
        return (self.first or 0.0) if self.axis == "time" else 0.0

    def reached(self, step: int) -> None:
        """The list of runs has this step for the run."""
        if step != self._step and self.is_answered and self._now() - self._answered_at >= AGAIN_S:
            self._step = step
            self.invalidate()

    def recall(self, reply: Mapping[str, Any], at: float) -> None:
        """Show the curves that the laptop kept, until the box answers."""
        if not self.curves:
            super().recall(reply, at)
            self.axis, self.track = reply["x"], track_of(reply)

    def take(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        version = self.version
        self.answer(reply, self._logs)
        if self.version != version:
            self.track = track_of(reply) if not self.is_coarse else None


class Compared:
    """One of the compared runs."""

    def __init__(self, name: str, place: int, now: Callable[[], float]) -> None:
        self.name, self.place = name, place
        self.curves = RunCurves(name, now)
        self.row: RunRow | None = None
        self.facts: Facts | None = None
        """Its configuration and evaluations; None before the box has answered."""
        self.asking = Asking(now)
        """For the facts."""
        self.facts_recalled_at: float | None = None
        """When the box gave the facts that the laptop kept; None once it has answered."""

    @property
    def look(self) -> RunLook:
        return RUN_LOOKS[self.place]

    @property
    def letter(self) -> str:
        return self.look.letter

    @property
    def is_over(self) -> bool:
        return self.row is not None and self.row.is_over


class Comparison:
    """The compared runs, and what the user has chosen. A run keeps its letter as long as it is compared."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.runs: list[Compared] = []
        """In the order of their letters."""
        self.left_out = 0
        """Marked runs beyond the number of letters."""
        self.pinned = ""
        """Name of the run that the others are compared with."""
        self.current = ""
        """Name of the run that ``p`` and ``d`` act on."""
        self.x = "step"
        self.smoothing = AUTOMATIC
        self.crosshair: float | None = None
        self.logarithmic: set[str] = {*LOGARITHMIC}
        self.page = 0
        """Which of the metrics are in the charts."""
        self.shows_all = False
        """Whether the keys that are the same in all runs are listed, too."""
        self._now = now

    @property
    def is_comparing(self) -> bool:
        """Whether there are enough runs."""
        return len(self.runs) > 1

    def follow(self, marked: Iterable[str], rows: Mapping[str, RunRow]) -> None:
        """Compare the marked runs."""
        names = list(marked)
        kept = {run.name: run for run in self.runs if run.name in names}
        for name in names:
            free = [place for place in range(len(LETTERS)) if place not in {run.place for run in kept.values()}]
            if name not in kept and free:
                kept[name] = Compared(name, free[0], self._now)
        self.runs = sorted(kept.values(), key=lambda run: run.place)
        self.left_out = len(names) - len(kept)
        for run in self.runs:
            run.row = rows.get(run.name)
            run.curves.reached(run.row.step if run.row is not None else 0)
        if self.pinned not in kept:
            self.pinned = self.runs[0].name if self.runs else ""
        if self.current not in kept:
            self.current = self.pinned

    def forget(self) -> None:
        """Forget the runs: another box is shown."""
        self.runs, self.pinned, self.current, self.crosshair = [], "", "", None

    def run(self, name: str) -> Compared | None:
        """A compared run by its name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def pin(self) -> Compared | None:
        """The pinned run."""
        return self.run(self.pinned)

    def move(self, by: int) -> None:
        """Turn to another run."""
        names = [run.name for run in self.runs]
        if names:
            self.current = names[(names.index(self.current) + by) % len(names)]

    def pin_current(self) -> str:
        """Pin the current run; if it is pinned, the next one. Returns its letter."""
        if self.current == self.pinned:
            self.move(1)
        self.pinned = self.current
        return self.pin.letter if self.pin is not None else ""

    # curves --------------------------------------------------------------------------------------------

    def show(self, metrics: Iterable[str], width: int) -> None:
        """Choose what is asked of each run's log."""
        window = Window(x=self.x, smoothing=self.smoothed_steps)
        asked = tuple(dict.fromkeys((*metrics, *TRACKED)))
        for run in self.runs:
            if run.curves.window != window:
                run.curves.window = window
                run.curves.version += 1
            run.curves.show(asked, min(MAX_WIDTH, width))

    @property
    def smoothed_steps(self) -> int:
        """Steps of the moving average, the same for all runs."""
        if self.smoothing != AUTOMATIC:
            return self.smoothing
        longest = max((run.row.step for run in self.runs if run.row is not None), default=0)
        return automatic_steps(longest)  # runs of other lengths are smoothed alike

    def smooth(self, by: int) -> int:
        """More (+1) or less (-1) smoothing; returns its steps."""
        self.smoothing = next_smoothing(self.smoothing, self.smoothed_steps, by)
        return self.smoothing

    def next_axis(self, has_price: bool) -> str:
        """Turn to the next x axis."""
        self.x, self.crosshair = next_axis(self.x, has_price), None
        return self.x

    @property
    def ends(self) -> tuple[float, float] | None:
        """First and last x of all runs; None without a curve."""
        found = [
            (run.curves.first - run.curves.origin, run.curves.last - run.curves.origin)
            for run in self.runs
            if run.curves.axis == self.x and run.curves.first is not None and run.curves.last is not None
        ]  # fmt: skip
        if not found:
            return None
        low, high = min(low for low, _ in found), max(high for _, high in found)
        return (low, high) if high > low else (low - 1, low + 1)

    def x_of_step(self, step: int) -> float | None:
        """Where a step of the pinned run is on the axis; None if that is not known."""
        if self.x == "step":
            return float(step)
        track = self.pin.curves.track if self.pin is not None else None
        if track is None or self.x == "time":
            return None
        return interpolate(track.step, track.axis(self.x), step)

    @property
    def version(self) -> object:
        """A value that differs whenever a curve does, or which run is pinned or current."""
        return self.curves_version, self.pinned, self.current

    @property
    def curves_version(self) -> object:
        """A value that differs whenever a curve does."""
        return tuple((run.name, run.place, run.curves.version) for run in self.runs), self.x

    @property
    def recalled_at(self) -> float | None:
        """When the box gave the oldest of the answers that the laptop kept; None if none of them is shown."""
        found = [at for run in self.runs for at in (run.curves.recalled_at, run.facts_recalled_at) if at is not None]
        return min(found, default=None)

    # configuration and evaluations ---------------------------------------------------------------------

    def facts_due(self) -> list[Compared]:
        """The runs whose facts are to be asked for now; the requests are in flight then."""
        return [run for run in self.runs if run.asking.begin("facts", FACTS_S)]
