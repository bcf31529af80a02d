"""Configuration, last metrics and reward curves of the runs in the list, as far as they are needed. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from grpo_train.run_dir.curves import LIGHT, centered_means, direction, mean_over
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import LIVE_S, SOON_S, Asking, monotonic
from grpo_tui.box.rows import RunRow
from remote.protocol.logs import Columns
from remote.protocol.rows import UNREADABLE
from remote.protocol.runs import MAX_FACTS

MOST_RUNS = 2_000
"""Newest runs of which anything is asked, so that memory stays bounded."""
MetricsState = tuple[Any, Any, tuple[str, ...]]
"""Start and step of a run, and the metrics that were asked for then."""


class KnownFacts:
    """What the box said about each run, and what to ask next."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.configs: dict[str, Mapping[str, Any]] = {}
        """Run to ``section.key`` to value."""
        self.wanted: set[str] = set()
        """Metrics that a column or the filter needs."""
        self.version = 0
        self.asking = Asking(now)
        self._metrics: dict[str, dict[str, float | None]] = {}
        self._known: dict[str, object] = {}
        """Run to the state of it that its configuration was read in, …"""
        self._measured: dict[str, MetricsState] = {}
        """… and its metrics."""
        self._pending: dict[str, tuple[object, MetricsState]] = {}
        self._pause = 0.0

    def metric(self, run: str, name: str) -> float | None:
        """The last value of a metric, if it was asked for."""
        return self._metrics.get(run, {}).get(name)

    def config(self, run: str, key: str) -> Any:
        """A value of a run's configuration, by ``section.key`` or by ``key`` where one section has it; None without."""
        config = self.configs.get(run)
        if not config:
            return None
        if key in config:
            return config[key]
        found = [name for name in config if name.endswith(f".{key}")] if "." not in key else []
        return config[found[0]] if len(found) == 1 else None

    def keys(self) -> list[str]:
        """All keys of the configurations."""
        return list(dict.fromkeys(key for config in self.configs.values() for key in config))

    def has_answered(self, rows: Sequence[RunRow]) -> bool:
        """Whether the box has sent configuration and metrics of each of these runs, as far as it is asked for them."""
        rows = [row for row in rows[:MOST_RUNS] if _is_asked_for(row)]
        wanted = tuple(sorted(self.wanted))
        return all(
            row.name in self._known and (not wanted or self._measured.get(row.name, ("", 0, ()))[-1] == wanted)
            for row in rows
        )

    def due(self, rows: Sequence[RunRow]) -> dict[str, Any] | None:
        """The parameters of the ``run_facts`` request to send now, which is then in flight; None if there is none."""
        if not self.asking.is_due(self._pause):
            return None
        rows = [row for row in rows[:MOST_RUNS] if _is_asked_for(row)]
        metrics = sorted(self.wanted)
        due = [row for row in rows if self._known.get(row.name) != _config_state(row)][:MAX_FACTS]
        config = bool(due)
        if not due and metrics:
            due = [row for row in rows if self._measured.get(row.name) != self._metrics_state(row)][:MAX_FACTS]
        if not due:
            return None
        self.asking.start("facts")
        self._pending = {row.name: (_config_state(row), self._metrics_state(row)) for row in due}
        return {"runs": [row.name for row in due], "metrics": metrics, "config": config}

    def answer(self, params: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        self.asking.end("facts")
        self._pause = 0.0 if params["config"] else LIVE_S  # live runs log on: their metrics are due again at once
        facts = {row["run"]: row for row in reply["facts"] if UNREADABLE not in row}
        for run, (config_state, metrics_state) in self._pending.items():
            row = facts.get(run, {})
            if params["config"]:
                self._known[run] = config_state
                self.configs[run] = {**reply["same"], **row.get("config", {})} if row else {}
            if params["metrics"] or not self.wanted:
                self._measured[run] = metrics_state
                self._metrics[run] = {key: to_float(value) for key, value in row.get("metrics", {}).items()}
        self.version += 1

    def keep(self, runs: Iterable[str]) -> None:
        """Forget the runs that are not listed any more."""
        listed = set(runs)
        for known in (self.configs, self._metrics, self._known, self._measured):
            for run in [run for run in known if run not in listed]:
                del known[run]

    def _metrics_state(self, row: RunRow) -> MetricsState:
        return (row.started, row.step, tuple(sorted(self.wanted)))


def _is_asked_for(row: RunRow) -> bool:
    return row.layout == "run" and not row.is_unreadable


def _config_state(row: RunRow) -> object:
    """A run that is starting has not written its configuration yet."""
    return (row.started, row.state == "starting" and not row.step)


CELLS = 8
"""Cells of a curve: two pixel columns and four pixel rows each."""
FINER = 8
"""Columns that are asked for, of each pixel column: where the reward was best is found in them."""
LEAST = 12
"""Values below which there is no trend."""
CURVE_AGAIN_S = 15.0
"""Pause before the curve of a live run is asked for again: a list may have many."""
MOST_KEPT = 2_000
ARROWS = ("↘", "→", "↗")
FLAT = 0.07
"""Share of its range that a curve rises or falls over its last quarter before it counts as a trend."""
_BITS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille dots of a cell by column and height."""


@dataclass(frozen=True)
class Trend:
    """The reward of a run, as a mean around each of a few columns."""

    curve: str
    last: float | None
    """The mean of the last values, as many as the means of the curve cover."""
    arrow: str
    """``↗``, ``→``, ``↘``, or "" for too few values."""
    best: float | None = None
    """The highest mean, …"""
    best_step: int | None = None
    """… and the step that it is around."""


class Trends:
    """What the box said about each run, and which run to ask for next."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.version = 0
        self._known: dict[str, Trend] = {}
        self._state: dict[str, object] = {}
        self._not_before: dict[str, float] = {}
        self._pending: tuple[str, object] | None = None
        self._now = now

    def of(self, run: str) -> Trend | None:
        """The trend of a run, once it is known."""
        return self._known.get(run)

    def due(self, rows: Iterable[RunRow]) -> dict[str, Any] | None:
        """The parameters of the ``series`` request to send now, for one of the rows shown; None if there is none."""
        if self._pending is not None:
            return None
        now = self._now()
        for row in rows:
            state = (row.started, row.step)
            due = self._state.get(row.name) != state and self._not_before.get(row.name, 0.0) <= now
            if due and row.layout == "run" and row.step > 0 and not row.is_unreadable:
                self._pending = (row.name, state)
                return {"run": row.name, "metrics": ["reward", ":step"], "width": 2 * CELLS * FINER}
        return None

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight. A coarse one shows nothing."""
        assert self._pending is not None
        (run, state), self._pending = self._pending, None
        is_whole = reply["state"] == "whole"
        self._not_before[run] = self._now() + (CURVE_AGAIN_S if is_whole else SOON_S)
        if not is_whole:
            return
        self._state[run] = state
        found = {row["metric"]: row["columns"] for row in reply["series"] if UNREADABLE not in row}
        if "reward" in found:
            self._known[run] = trend_of(found["reward"], found.get(":step"))
            self.version += 1
        while len(self._known) > MOST_KEPT:
            oldest = next(iter(self._known))
            del self._known[oldest], self._state[oldest]

    def fail(self) -> None:
        """The box did not answer the request in flight."""
        assert self._pending is not None
        (run, _), self._pending = self._pending, None
        self._not_before[run] = self._now() + CURVE_AGAIN_S


def trend_of(columns: Columns, steps: Columns | None = None) -> Trend:
    """The trend of a reward, and where it was best; ``steps`` are the steps in the same columns."""
    size = max(1, len(columns.count) // (2 * CELLS))
    sums, counts = _pooled(columns.sum, size), _pooled(columns.count, size)
    counted = [index for index, count in enumerate(counts) if count]
    if not counted:
        return Trend("", None, "")
    over = mean_over(LIGHT, int(sum(counts)), 2 * CELLS)
    means = centered_means(sums, counts, over)
    (best, highest), recent = _best(columns, over), _recent(columns, over)
    if recent > highest:  # the newest values are in no whole window
        best, highest = max(index for index, count in enumerate(columns.count) if count), recent
    smooth = [means[index] for index in counted]
    low, high = min(smooth), max(smooth)
    arrow = ""
    if sum(columns.count) >= LEAST and len(smooth) > 1:
        totals, rows = ([column[index] for index in counted] for column in (sums, counts))
        values = [value for value, count in zip(columns.last, columns.count, strict=True) if count]
        arrow = direction(totals, rows, values, FLAT * (high - low))
    heights = {index: _height(value, low, high) for index, value in zip(counted, smooth, strict=True)}
    return Trend(
        "".join(_cell(heights.get(2 * cell), heights.get(2 * cell + 1)) for cell in range(CELLS)),
        recent,
        arrow,
        highest,
        int(steps.last[best]) if steps is not None and steps.count[best] else None,
    )


def _best(columns: Columns, over: int) -> tuple[int, float]:
    """The column around which the mean of ``over`` values is highest, and that mean."""
    means, before = centered_means(columns.sum, columns.count, over), list(accumulate(columns.count, initial=0.0))
    counted = [index for index, count in enumerate(columns.count) if count]
    middles = {index: before[index] + columns.count[index] / 2 for index in counted}
    whole = [index for index in counted if over / 2 <= middles[index] <= before[-1] - over / 2]
    best = max(whole or counted, key=lambda index: means[index])
    return best, means[best]


def _recent(columns: Columns, over: int) -> float:
    """The mean of the last ``over`` values."""
    total = count = 0.0
    for index in range(len(columns.count) - 1, -1, -1):
        if count and count + columns.count[index] > over:
            break
        total, count = total + columns.sum[index], count + columns.count[index]
    return total / count


def _pooled(values: Sequence[float], size: int) -> list[float]:
    """Sums of ``size`` neighbors each."""
    return [sum(values[at : at + size]) for at in range(0, len(values), size)]


def _height(value: float, low: float, high: float) -> int:
    return round(3 * (value - low) / (high - low)) if high > low else 1


def _cell(left: int | None, right: int | None) -> str:
    bits = sum(_BITS[side][height] for side, height in ((0, left), (1, right)) if height is not None)
    return chr(0x2800 + bits) if bits else " "
