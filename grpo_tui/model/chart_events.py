"""The events of a run on the axis of its charts: where each is, which sign a column has. No Textual."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from grpo_tui.model.curves import Curves, Mark
from grpo_tui.model.run_events import CRASH, WORDS, Pause, RunEvent, evaluation_events
from grpo_tui.model.store import Store

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

    def of_step(self, step: float) -> list[RunEvent]:
        """The events at a step."""
        return [one.event for one in self.placed if one.event.step == step]

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
    return min(reversed(events), key=lambda event: list(WORDS).index(event.sign))


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
