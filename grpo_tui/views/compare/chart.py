"""A chart of one metric of several runs: a line with a color, a marker and a letter per run, the values below it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.strip import Strip

from grpo_train.run_dir.display import duration, state_label
from grpo_tui.chart_svg import WIDTH, axes, end_of_line, escape, page, scaled
from grpo_tui.chart_svg import line as svg_line
from grpo_tui.charts import DASHED, DOTTED, RUN_LOOKS, RunLook
from grpo_tui.model.asking import asking_words, seconds_waited
from grpo_tui.model.curves import Mark
from grpo_tui.model.formatting import compact_number, metric_value
from grpo_tui.model.store import Store
from grpo_tui.views.compare.model import Compared, Comparison
from grpo_tui.widgets.braille import Bitmap, View, column_of, pixel_of, plot_marks, row_of, ticks
from grpo_tui.widgets.chart_axis import axis_label, cost, cost_labels, view_of
from grpo_tui.widgets.chart_marks import averages
from grpo_tui.widgets.curve_chart import CurveChart
from grpo_tui.widgets.panel import link_age, toned

MARKED_EVERY = 16
"""Columns between two markers of a line."""
PATTERNS = {DASHED: (True, True, True, True, True, True, False, False), DOTTED: (True, True, False, False)}
"""Which pixel columns of a line are drawn."""
TIME_UNITS = ((86_400.0, 2 * 86_400), (3_600.0, 2 * 3_600), (60.0, 120), (1.0, 0))
"""Seconds of a unit on a time axis, and the range from which it is used."""


VI = {"j": "next_run", "k": "previous_run", "h": "compare_left", "l": "compare_right"}
"""The actions of vi's keys."""
ROUNDING = 1e-9
"""Relative difference that comes from the order of sums."""


class RunLine(NamedTuple):
    """A run's line as it is drawn."""

    run: Compared
    bitmap: Bitmap
    marks: list[Mark]


class CompareChart(CurveChart):
    """One metric of the compared runs."""

    DEFAULT_CSS = "".join(
        f"CompareChart > .compare--{look.id} {{ color: $run-{look.id}; }}\n" for look in RUN_LOOKS
    )  # fmt: skip
    COMPONENT_CLASSES: ClassVar = {f"compare--{look.id}" for look in RUN_LOOKS}
    BINDINGS: ClassVar = [(key, f"vi('{key}')") for key in VI]

    def __init__(self, store: Store, comparison: Comparison, *, id: str) -> None:
        super().__init__(store, lambda: None, id=id)
        self.comparison = comparison
        self._marks_of: tuple[object, list[tuple[Compared, list[Mark]]]] = (None, [])
        self._lines_of: tuple[object, list[RunLine]] = (None, [])
        """What a move of the crosshair does not change."""

    def state(self) -> object:
        return (
            self.comparison.version, self.comparison.x, self.store.versions["runs"], self.crosshair, self.is_log,
            self.metric,
        )  # fmt: skip

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "vi":
            return self.app.is_free(str(parameters[0]))
        return super().check_action(action, parameters)

    async def action_vi(self, key: str) -> None:
        """Do what the arrow key of a vi key does in this view."""
        await self.app.action_act(VI[key])

    # title ---------------------------------------------------------------------------------------------

    def refresh_titles(self) -> None:
        title = Content.from_markup("$metric", metric=self.metric)
        if self.is_log:
            hidden = sum(mark.low <= 0 for run in self._drawn() for mark in run.curves.curves[self.metric].marks)
            text = f", {hidden} columns with values ≤ 0" if hidden else ""
            title += Content.from_markup(" [$text-muted]log$hidden[/]", hidden=text)
        if self._base:
            title += Content.from_markup(" [$text-muted]axis: $base + …[/]", base=self._base)
        self.set_titles(title, self._loading() or self._link())

    def _link(self) -> Content:
        if self.store.connected:
            return Content.from_markup("[$text-muted]smoothed[/]" if self.comparison.smoothed_steps else "")
        return toned(link_age(self.store))

    def _loading(self) -> Content | None:
        """What is missing in the picture, with the letters of the runs; None if nothing is."""
        failed = [run for run in self.comparison.runs if run.curves.asking.problem]
        if failed:
            return Content.from_markup(
                "[$warning]$letters: $problem[/]", letters=letters(failed), problem=failed[0].curves.asking.problem
            )
        coarse = [run for run in self.comparison.runs if run.curves.curves and run.curves.is_coarse]
        if coarse:
            share = min(run.curves.progress for run in coarse)
            return Content.from_markup(
                "[$warning]coarse, $share %$seconds ($letters)[/]",
                share=f"{100 * share:.0f}", seconds=seconds_waited(_waited(coarse)), letters=letters(coarse),
            )  # fmt: skip
        missing = [run for run in self.comparison.runs if run.curves.axis != self.comparison.x]
        if missing and self.store.connected:
            return Content.from_markup("[$text-muted]$text[/]", text=asking_words(_waited(missing)))
        return None

    # paint ---------------------------------------------------------------------------------------------

    def _drawn(self) -> list[Compared]:
        """The runs that have a curve on the axis that is shown."""
        return [
            run
            for run in self.comparison.runs
            if run.curves.axis == self.comparison.x and self.metric in run.curves.curves
        ]

    def _draw(self, width: int, height: int) -> list[Strip]:
        style, key = self.rich_style, (self.comparison.curves_version, self.metric, self.is_log)
        if key != self._marks_of[0]:
            self._marks_of = (key, [(run, self._marks(run)) for run in self._drawn()])
        self._view, ends, shown = None, self.comparison.ends, self._marks_of[1]
        everything = list(itertools.chain.from_iterable(marks for _, marks in shown))
        if ends is None or not everything or width < 12 or height < 3:
            return self._empty(width, height, style)
        has_values = height >= (6 if self.crosshair is None else 4)
        below = self._values(width, height // 4) if has_values else []
        view = view_of(self.metric, everything, ends, self.is_log)
        rows = height - 1 - len(below)
        labels = self.y_labels(view, rows)
        self._margin = margin = max(len(text) for text in labels.values()) + 1
        columns = width - margin
        if columns < 4:
            return self._empty(width, height, style)
        self._view = view
        if (key, columns, rows) != self._lines_of[0]:
            lines = [self._line_of(run, marks, view, columns, rows) for run, marks in shown]
            self._lines_of = ((key, columns, rows), lines)
        axis = style + self.get_component_rich_style("chart--axis")
        cells = self._cells(self._lines_of[1], view, columns, rows, style)
        strips = []
        for row in range(rows):
            label = labels.get(row, "")
            start = Segment(f"{label:>{margin - 1}}" + ("┤" if label else "│"), axis)
            strips.append(Strip([start, *cells[row]], width).simplify())
        strips.append(self._axis(view, margin, columns, axis))
        for line in below:
            line.truncate(width, pad=True)
            strips.append(Strip(list(line.render(self.app.console)), width).apply_style(style))
        return strips

    def _marks(self, run: Compared) -> list[Mark]:
        """The marks of a run as they are drawn."""
        return list(self._scaled(marks_of(run, self.metric)))

    def _style_of(self, run: Compared) -> Style:
        style = self.rich_style + self.get_component_rich_style(f"compare--{run.look.id}")
        return style + Style(bold=True) if run.name == self.comparison.current else style

    def _line_of(self, run: Compared, marks: list[Mark], view: View, columns: int, rows: int) -> RunLine:
        bitmap = Bitmap(columns, rows)
        plot_marks(bitmap, view, marks)
        pattern = PATTERNS.get(run.look.line) if run.curves.smoothing else None  # a raw peak is never left out
        if pattern:
            bitmap.keep_columns(pattern)
        return RunLine(run, bitmap, marks)

    def _cells(self, lines: list[RunLine], view: View, columns: int, rows: int, style: Style) -> list[list[Segment]]:
        """The plot: the pinned run on top, then the current one; markers on the lines, letters at their ends."""
        empty = Segment(" ", style)
        cells = [[empty] * columns for _ in range(rows)]
        if self.crosshair is not None and 0 <= (cross := column_of(self.crosshair, view, columns)) < columns:
            mark = Segment("│", style + self.get_component_rich_style("chart--cross"))
            for cells_of_row in cells:
                cells_of_row[cross] = mark
        top = [self.comparison.current, self.comparison.pinned]
        lines = sorted(lines, key=lambda line: top.index(line.run.name) if line.run.name in top else -1)
        styles = {line.run.name: self._style_of(line.run) for line in lines}
        for line in lines:
            style = styles[line.run.name]
            for row, cells_of_row in enumerate(cells):
                for column, character in enumerate(self.glyphs(line.bitmap, row)):
                    if character != " ":
                        cells_of_row[column] = Segment(character, style)
            self._put_markers(line, style, cells, view)
        taken: set[tuple[int, int]] = set()
        for line in reversed(lines):
            self._put_letter(line, styles[line.run.name], cells, view, taken)
        return cells

    def _put_markers(self, line: RunLine, style: Style, cells: list[list[Segment]], view: View) -> None:
        rows, columns = len(cells), len(cells[0])
        wanted = range(MARKED_EVERY // 2 + 5 * line.run.place % MARKED_EVERY, columns, MARKED_EVERY)
        places = {column_of(mark.x, view, columns): mark for mark in line.marks}
        for column in wanted:
            if (mark := places.get(column)) is not None:
                cells[row_of(mark.last, view, rows)][column] = Segment(line.run.look.marker, style)

    def _put_letter(
        self, line: RunLine, style: Style, cells: list[list[Segment]], view: View, taken: set[tuple[int, int]]
    ) -> None:
        """The letter of a run behind its last value, with the sign of its state if it failed."""
        if not line.marks:
            return
        rows, columns = len(cells), len(cells[0])
        row = line.run.row
        sign = state_label(row.state)[0] if row is not None and row.state in ("crashed", "killed", "lost") else ""
        text = f"{line.run.letter} {sign}" if sign else line.run.letter
        last = line.marks[-1]
        column = min(max(0, column_of(last.x, view, columns) + 1), columns - len(text))
        middle = min(rows - 1, max(0, pixel_of(last.last, view, rows * 4) // 4))
        for distance in range(rows):
            for y in (middle - distance, middle + distance):
                places = {(y, column + i) for i in range(len(text))}
                if 0 <= y < rows and not places & taken:
                    taken |= places
                    for i, character in enumerate(text):
                        cells[y][column + i] = Segment(character, style + Style(bold=True))
                    return

    def x_labels(self, view: View, count: int) -> list[tuple[float, str]]:
        if self.comparison.x == "seconds":
            return cost_labels(view, count, self.store.price_per_hour)
        if self.comparison.x != "time":
            return [(at, axis_label(at, self.comparison.x)) for at in ticks(view.x_low, view.x_high, count)]
        unit = next(unit for unit, least in TIME_UNITS if view.x_high - view.x_low >= least)
        found = ticks(view.x_low / unit, view.x_high / unit, count)
        return [(at * unit, elapsed(at * unit)) for at in found]

    # values --------------------------------------------------------------------------------------------

    def _values(self, width: int, most: int) -> list[Text]:
        """The values at the crosshair, or the last ones, and their differences to the pinned run's."""
        muted = self.get_component_rich_style("chart--axis", partial=True)
        pinned = self._value(pin) if (pin := self.comparison.pin) is not None else None
        at = "last" if self.crosshair is None else f"at {self._place(self.crosshair)}"
        parts = [Text(at, style=muted)]
        for run in self.comparison.runs:
            value = self._value(run)
            part = Text.assemble((run.letter, self._style_of(run)), f" {metric_value(value)}")
            if value is None:
                part.append(self._why_none(run), style=muted)
            elif pinned is not None and run is not self.comparison.pin and math.isfinite(value - pinned):
                is_same = abs(value - pinned) <= ROUNDING * abs(pinned)
                part.append(" (=)" if is_same else f" ({signed(value - pinned)})", style=muted)
            parts.append(part)
        lines = [Text(no_wrap=True)]
        for index, part in enumerate(parts):
            if lines[-1] and lines[-1].cell_len + 3 + part.cell_len > width:
                if len(lines) == most:
                    more = Text(f"  … {len(parts) - index} more", style=muted)
                    lines[-1].truncate(width - more.cell_len)
                    lines[-1].append_text(more)
                    break
                lines.append(Text(no_wrap=True))
            lines[-1].append("   " if lines[-1] else "").append_text(part)
        return lines

    def values_text(self) -> str:
        """The values below the chart, all of them."""
        return "\n".join(line.plain for line in self._values(10_000, 1))

    def _value(self, run: Compared) -> float | None:
        """The value of a run at the crosshair as its line shows it, or the last one."""
        curves = run.curves
        curve = curves.curves.get(self.metric) if curves.axis == self.comparison.x else None
        if curve is None or not curve.marks or curves.first is None or curves.last is None:
            return None
        if self.crosshair is None:
            mark: Mark | None = curve.marks[-1]
        else:
            x = self.crosshair + curves.origin
            half = (curves.last - curves.first) / max(1, curves.width) / 2
            mark = curve.at(x) if curves.first - half <= x <= curves.last + half else None
        if mark is None:
            return None
        return mark.smooth if curves.smoothing else mark.last

    def _place(self, x: float) -> str:
        return place_label(x, self.comparison.x, self.store.price_per_hour)

    def _why_none(self, run: Compared) -> str:
        last, axis = run.curves.last, self.comparison.x
        if self.crosshair is None or last is None or run.curves.axis != axis:
            return ""
        last -= run.curves.origin
        if self.crosshair <= last:
            return ""
        return f" ({'ended at' if run.is_over else 'now at'} {self._place(last)})"

    def _why_empty(self) -> str:
        runs = self.comparison.runs
        if failed := [run for run in runs if run.curves.asking.problem]:
            return failed[0].curves.asking.instead()
        if missing := [run for run in runs if run.curves.axis != self.comparison.x]:
            return asking_words(_waited(missing)) if self.store.connected else ""
        return "not logged"


def marks_of(run: Compared, metric: str) -> list[Mark]:
    """The marks of a run from its origin on, smoothed unless that is off."""
    origin, marks = run.curves.origin, run.curves.curves[metric].marks
    shown = averages(marks) if run.curves.smoothing else marks
    return [one._replace(x=one.x - origin) for one in shown] if origin else list(shown)


def letters(runs: list[Compared]) -> str:
    """``A B``"""
    return " ".join(run.letter for run in runs)


def _waited(runs: list[Compared]) -> float:
    """Seconds since the first unanswered request."""
    return max(run.curves.asking.waited for run in runs)


def signed(value: float) -> str:
    """A difference with its sign: ``+0.040``, ``−0.040``."""
    return f"{'−' if value < 0 else '+'}{metric_value(abs(value))}"


def elapsed(seconds: float) -> str:
    """A time since the start of a run, in one unit where that is exact: ``2 h``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return duration(seconds) if seconds else "0"


def place_label(x: float, axis: str, price: float | None) -> str:
    """A place on the x axis in words. ``price``: dollars per hour."""
    if axis == "seconds":
        return cost(x, price)
    if axis == "time":
        return duration(x)
    return f"{compact_number(x)} tokens" if axis == "tokens" else f"{x:,.0f}"


def legend(run: Compared, name: str, is_pinned: bool, is_current: bool) -> Content:
    """``A lr 2e-6 ●━``"""
    look = run.look
    tone = "bold " if is_pinned else ""
    text = Content.from_markup(
        f"[{tone}$run-{look.id}]$letter[/] $name [$run-{look.id}]$marker$line[/]",
        letter=look.letter, name=name, marker=look.marker, line=look.line,
    )  # fmt: skip
    if is_pinned:
        text += Content.from_markup(" [$text-muted]pinned[/]")
    return text.stylize("reverse", 0, 1) if is_current else text


DASHES = {DASHED: "7 3", DOTTED: "2 3"}
NAMES = 40
"""Characters of a name in the legend."""


@dataclass(frozen=True)
class RunDrawing:
    """One run to draw."""

    look: RunLook
    name: str
    curves: Mapping[str, Sequence[Mark]]
    """Metric to marks, from the run's own origin on."""
    is_smoothed: bool


def compared_svg(
    title: str,
    metrics: Sequence[str],
    runs: Sequence[RunDrawing],
    logarithmic: set[str],
    ends: tuple[float, float],
    label: Callable[[float], str],
) -> str:
    """A chart per metric with a line per run; each line has a color, a pattern, and its letter at its end."""
    charts = [list(_chart(metric, runs, metric in logarithmic, ends, label)) for metric in metrics]
    return page(title, charts, [_legend(run) for run in runs])


def _chart(
    metric: str, runs: Sequence[RunDrawing], is_log: bool, ends: tuple[float, float], label: Callable[[float], str]
) -> list[str]:
    marks = [(run, scaled(run.curves.get(metric, ()), ends, is_log)) for run in runs]
    view = view_of(metric, [mark for _, found in marks for mark in found], ends, is_log)
    parts = list(axes(metric, "", view, ends, is_log, label))
    for run, found in marks:
        if found:
            parts += svg_line(found, view, run.is_smoothed, run.look.light, DASHES.get(run.look.line, ""))
    for run, found in marks:
        if found:
            x, y = end_of_line(found, view, run.is_smoothed)
            parts.append(
                f'<text x="{min(x + 3, WIDTH - 12):.1f}" y="{y + 4:.1f}" font-weight="bold" fill="{run.look.light}">'
                f"{run.look.letter}</text>"
            )
    return parts


def _legend(run: RunDrawing) -> str:
    """A line with letter, pattern and name."""
    dashes = DASHES.get(run.look.line, "")
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    name = run.name if len(run.name) <= NAMES else f"{run.name[: NAMES - 1]}…"
    return (
        f'<text y="4" font-weight="bold" fill="{run.look.light}">{run.look.letter}</text>'
        f'<path d="M14 0H44" stroke="{run.look.light}" stroke-width="1.6"{dashed}/>'
        f'<text x="52" y="4" fill="#1d2733">{escape(name)}</text>'
    )
