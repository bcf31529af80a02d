"""Live curve of one metric: braille line, axes, the last value in the title, a red mark at NaN."""

from __future__ import annotations

import math
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from grpo_tui.charts import CHARTS, Chart
from grpo_tui.model.formatting import compact_number, metric_value, tick_labels
from grpo_tui.model.series import Series
from grpo_tui.model.store import Store
from grpo_tui.widgets.braille import Bitmap, View, gap_columns, plot, ticks, view_of
from grpo_tui.widgets.panel import Panel

MIN_SMOOTHED = 12
"""Minimum points for drawing the moving average over the raw curve."""

FLAT = 1e-6
"""Relative change below which the trend counts as flat."""


class MetricChart(Panel):
    """One metric over steps. The raw curve is drawn dim under its moving average."""

    COMPONENT_CLASSES: ClassVar = {"chart--raw", "chart--line", "chart--axis", "chart--gap", "chart--empty"}

    DEFAULT_CSS = "".join(
        f"MetricChart#chart-{chart.id} > .chart--line {{ color: $chart-{chart.id}; }}\n"
        f"MetricChart#chart-{chart.id} > .chart--raw {{ color: $chart-{chart.id} 40%; }}\n"
        for chart in CHARTS
    )

    def __init__(self, store: Store, chart: Chart) -> None:
        super().__init__(store, id=f"chart-{chart.id}", classes=f"panel chart {chart.shown}")
        self.metric = chart.metric
        self.smoothed = True
        self._strips: list[Strip] = []
        self._key: tuple[object, ...] = ()
        self._trend_of: tuple[object, str] = (None, "")

    @property
    def series(self) -> Series | None:
        return self.store.logs.series.get(self.metric) if self.store.logs else None

    def state(self) -> object:
        return (self.store.log_version("train_log"), self.store.loading() is None)

    def refresh_titles(self) -> None:
        series = self.series
        last = series.last if series is not None else None
        title = self.metric
        if (share := self.store.loading()) is not None:  # its last value and trend are those of an earlier step
            title += f"  [$warning]loading, {share:.0%}[/]"
        elif last is not None:
            tone = "$foreground" if math.isfinite(last) else "$error"
            title += f"  [bold {tone}]{metric_value(last)}[/]"
            title += f" [$text-muted]{self._trend()}[/]"
        self.set_titles(title, self.age())

    def _trend(self) -> str:
        """Direction of the moving average over the last quarter, relative to its range."""
        series = self.series
        if series is None or len(series) < MIN_SMOOTHED:
            return ""
        if (state := self.state()) != self._trend_of[0]:
            spread = max(series.smooth) - min(series.smooth)
            change = series.smooth[-1] - series.smooth[-max(MIN_SMOOTHED, len(series) // 4)]
            arrow = (
                "→" if abs(change) <= max(0.07 * spread, FLAT * abs(series.smooth[-1])) else "↗" if change > 0 else "↘"
            )
            self._trend_of = (state, arrow)
        return self._trend_of[1]

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        key = (self.state(), width, height, self.smoothed, self.app.theme, self.has_focus)
        if key != self._key:
            self._key, self._strips = key, self._draw(width, height)
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    def _draw(self, width: int, height: int) -> list[Strip]:
        style = self.rich_style
        series = self.series
        view = view_of(series.steps, series.values, series.gaps) if series is not None else None
        if series is None or view is None or width < 12 or height < 2:
            return self._empty(width, height, style)
        rows = height - 1 if height >= 5 else height
        levels = ticks(view.y_low, view.y_high, max(2, min(6, rows // 2 + 1)))
        labels = {
            self._row_of(level, view, rows): text for level, text in zip(levels, tick_labels(levels), strict=True)
        }
        margin = max(len(text) for text in labels.values()) + 1
        columns = width - margin
        if columns < 4:
            return self._empty(width, height, style)
        raw, smooth = Bitmap(columns, rows), Bitmap(columns, rows)
        plot(raw, view, series.steps, series.values, series.gaps)
        smoothed = self.smoothed and len(series) >= MIN_SMOOTHED
        if smoothed:
            plot(smooth, view, series.steps, series.smooth, series.gaps)
        styles = {
            name: style + self.get_component_rich_style(f"chart--{name}") for name in ("raw", "line", "axis", "gap")
        }
        over, under = (smooth, raw) if smoothed else (raw, smooth)
        strips = []
        gaps = gap_columns(raw, view, series.gaps)
        for row in range(rows):
            label = labels.get(row, "")
            segments = [Segment(f"{label:>{margin - 1}}" + ("┤" if label else "│"), styles["axis"])]
            top, bottom = over.text(row), under.text(row)
            for column in range(columns):
                if row == rows - 1 and column in gaps:
                    segments.append(Segment("×", styles["gap"]))
                elif top[column] != " ":
                    segments.append(Segment(top[column], styles["line"]))
                else:
                    segments.append(Segment(bottom[column], styles["raw"]))
            strips.append(Strip(segments, width).simplify())
        if rows < height:
            strips.append(self._axis(view, margin, columns, styles["axis"]))
        return strips

    @staticmethod
    def _row_of(level: float, view: View, rows: int) -> int:
        share = (view.y_high - level) / (view.y_high - view.y_low)
        return min(rows - 1, max(0, round(share * (rows * 4 - 1)) // 4))

    def _axis(self, view: View, margin: int, columns: int, style: Style) -> Strip:
        """Step numbers below the curve, as many as fit."""
        line = [" "] * (margin + columns)
        free_from = 0
        whole = [level for level in ticks(view.x_low, view.x_high, max(2, columns // 10)) if level == int(level)]
        for level in whole:
            text = f"{int(level):,}" if abs(level) < 1e6 else compact_number(level)
            center = margin + round((level - view.x_low) / (view.x_high - view.x_low) * (columns - 1))
            start = min(max(margin, center - len(text) // 2), margin + columns - len(text))
            if start >= free_from:
                line[start : start + len(text)] = text
                free_from = start + len(text) + 2
        return Strip([Segment("".join(line), style)], margin + columns)

    def _empty(self, width: int, height: int, style: Style) -> list[Strip]:
        run = self.store.run
        message = "waiting for the first step" if run and run.is_live and not self.store.step else "not logged"
        if self.store.loading() is not None:
            message = "loading …"
        if self.store.logs is None:
            message = "no run selected"
        blank = Strip.blank(width, style)
        middle = Strip(
            [Segment(message[:width].center(width), style + self.get_component_rich_style("chart--empty"))], width
        )
        return [middle if row == height // 2 else blank for row in range(height)]
