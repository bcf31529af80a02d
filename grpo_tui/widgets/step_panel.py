"""What was logged at the crosshair: time, the shown metrics, groups, health."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from grpo_train.run_dir.files import to_float
from grpo_tui.model.curves import Curves
from grpo_tui.model.formatting import compact_number, metric_value, one_line
from grpo_tui.model.health import records_of, tone_of_level
from grpo_tui.model.run_events import CRASH, RunEvent
from grpo_tui.model.run_logs import row_time
from grpo_tui.model.store import Store
from grpo_tui.widgets.chart_axis import cost
from grpo_tui.widgets.lines_panel import PageSource, Palette
from grpo_tui.widgets.sources import MARKS, clock, wrapped

MOST_EVENTS = 2
"""Lines of events."""


class StepSource(PageSource):
    """The row nearest to the crosshair as a page."""

    title, empty = "step", "← → move the crosshair; a click sets it"

    def __init__(
        self,
        store: Store,
        curves: Callable[[], Curves | None],
        events: Callable[[], tuple[list[RunEvent], str]] = lambda: ([], ""),
        config: Callable[[str], Any] = lambda key: None,
        keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(store)
        self._curves, self._events, self._config = curves, events, config
        self._keys = keys
        """Those that open the completions of the step, and copy its row."""
        self.shown: Mapping[str, Any] | None = None
        """The reply to ``show_step``."""
        self.problem = ""

    @property
    def note(self) -> str:
        """What keys do with the row (markup)."""
        if not self._keys or self.row is None:
            return ""
        opens, copies = self._keys
        return f"[$text-muted]{opens} opens its completions · {copies} copies its row[/]"

    @property
    def row(self) -> Mapping[str, Any] | None:
        return self.shown["row"] if self.shown is not None else None

    def state(self) -> object:
        curves = self._curves()
        return (
            self.shown["offset"] if self.shown is not None else None, self.problem,
            curves.metrics if curves is not None else None, curves.run if curves is not None else None,
            *map(tuple, self._events()),
        )  # fmt: skip

    def layout(self, width: int, palette: Palette) -> list[Text]:
        if self.problem:
            return wrapped(Text(self.problem, style=palette["warn"]), width)
        row, curves = self.row, self._curves()
        if row is None or curves is None or self.shown is None:
            return []
        head = Text(no_wrap=True)
        head.append(f"step {int(self.shown['step']):,}", style="bold")
        if (logged := row_time(dict(row))) is not None:
            head.append(f"  {clock(logged)}", style=palette["muted"])
        if (seconds := self.shown.get("seconds")) is not None and self.store.price_per_hour is not None:
            head.append(f"  {cost(seconds, self.store.price_per_hour)}", style=palette["muted"])
        lines = [head, *self._happened(palette), *self._values(row, curves, width, palette)]
        if groups := _groups(row, self._config("rollout.buffer_size"), self._config("rollout.num_generations")):
            lines += wrapped(Text(groups, style=palette["muted"]), width)
        for record in records_of(row.get("health")):
            tone = tone_of_level(record["level"])
            if tone != "muted":
                text = Text().append(f"{MARKS[tone]} ", style=palette[tone]).append(record["message"])
                lines += wrapped(text, width)
        return lines

    def _happened(self, palette: Palette) -> list[Text]:
        """A line for each of the last events at the crosshair."""
        events, key = self._events()
        lines = []
        for event in events[-MOST_EVENTS:]:
            line = Text(no_wrap=True).append(f"{event.sign} ", style=palette["bad" if event.sign == CRASH else "key"])
            if event.at is not None:
                line.append(f"{clock(event.at)}  ", style=palette["muted"])
            lines.append(line.append(event.text))
        if len(events) > MOST_EVENTS:
            lines[0].append(f"  ({len(events) - MOST_EVENTS} more before)", style=palette["muted"])
        if key and lines:
            lines[-1].append(f"  {key} opens it", style=palette["muted"])
        return lines

    def _values(self, row: Mapping[str, Any], curves: Curves, width: int, palette: Palette) -> list[Text]:
        """The shown metrics: the value, its moving average, how far it is from the median."""
        lines = [Text(no_wrap=True)]
        for name in curves.metrics:
            value = to_float(row.get(name))
            if value is None:
                continue
            entry = Text(f"{one_line(name)} ", style=palette["muted"], no_wrap=True)
            entry.append(metric_value(value), style="bold")
            curve = curves.curves.get(name)
            mark = curve.at(self.shown["x"]) if curve is not None and self.shown is not None else None
            if curve is not None and mark is not None and name == curves.metrics[0] and curves.is_averaged(curve):
                entry.append(f" (smoothed {metric_value(mark.smooth)})", style=palette["muted"])
            if curve is not None and (times := curve.times_usual(value)):
                entry.append(f" ▲ {compact_number(times, 6)}× median", style=palette["warn"])
            if lines[-1].cell_len and lines[-1].cell_len + 2 + entry.cell_len > width:
                lines.append(Text(no_wrap=True))
            if lines[-1].cell_len:
                lines[-1].append("  ")
            lines[-1].append_text(entry)
        return lines if lines[0].cell_len else []


def _groups(row: Mapping[str, Any], prompts: object, samples: object) -> str:
    """The groups of the step in words: counts where the configuration has the number of prompts and samples."""
    groups = prompts if isinstance(prompts, int) else 0
    completions = groups * samples if isinstance(samples, int) else 0
    parts = []
    for key, words, total in (
        ("groups/all_correct", "all correct", groups),
        ("groups/all_wrong", "all wrong", groups),
        ("frac_reward_zero_std", "without signal", groups),
        (
            "completions/clipped_ratio",
            "completions truncated" if completions else "of the completions truncated",
            completions,
        ),
    ):
        if (share := to_float(row.get(key))) is not None and math.isfinite(share):
            parts.append(f"{share * total:.0f} {words}" if total else f"{share:.0%} {words}")
    if (ratio := to_float(row.get("mismatch/ratio_max"))) is not None:
        parts.append(f"largest ratio {metric_value(ratio)}")
    name = f"{groups} groups × {samples}" if completions else "groups"
    return f"{name}: {', '.join(parts)}" if parts else ""
