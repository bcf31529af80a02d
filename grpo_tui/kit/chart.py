"""A chart of one metric: its lines, axes and signs, the crosshair, the mouse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.content import Content
from textual.message import Message
from textual.strip import Strip

from grpo_train.run_dir.curves import apart
from grpo_train.run_dir.display import duration, metric_text
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import NOT_READ, seconds_waited
from grpo_tui.box.charts import CHARTS, ChartEvents, Gap, Placed, RunLook, accuracies, gaps_of
from grpo_tui.box.curves import Curve, Curves, Mark, left_out, percentiles
from grpo_tui.box.events import AlarmRule, RunEvent
from grpo_tui.box.formatting import extreme_labels, power_labels, tick_labels
from grpo_tui.box.store import Store
from grpo_tui.kit.panel import Panel, from_markup
from grpo_tui.kit.plot import (
    Bitmap,
    RunLine,
    Sign,
    View,
    bands_of,
    column_of,
    cut_off,
    evened,
    event_legend,
    fitting_ticks,
    lines_in_blocks,
    only_line,
    point,
    row_of,
    scaled,
    signs_at,
    signs_of,
    view_of,
    view_of_marks,
    x_labels,
)

LEFT, RIGHT = 1, 3
LEAST_DRAG = 2
"""Columns; a shorter drag is a click with an unsteady hand."""


class ChartMouse(Panel):
    """Messages of a chart. ``x_at`` and ``events_at`` say what is under the pointer."""

    dragged: tuple[int, int] | None = None
    """First and last column of the range under a drag, in cells of the widget."""
    _was_drag = False
    _points = False
    """Whether the crosshair follows the pointer, under a drag with the right button."""

    class Pointed(Message):
        """The user pointed at an x, or at the sign of events there."""

        def __init__(self, x: float, events: Sequence[RunEvent] = ()) -> None:
            super().__init__()
            self.x, self.events = x, events

    class Scrolled(Message):
        """The user turned the wheel over an x: +1 zooms in, -1 out."""

        def __init__(self, x: float, by: int) -> None:
            super().__init__()
            self.x, self.by = x, by

    class Dragged(Message):
        """The user dragged the pointer from one x to another."""

        def __init__(self, low: float, high: float) -> None:
            super().__init__()
            self.low, self.high = low, high

    def x_at(self, column: int) -> float | None:
        """The x of a column; None beside the plot."""
        raise NotImplementedError

    def events_at(self, column: int, row: int) -> Sequence[RunEvent]:
        """The events whose sign is in a cell."""
        return ()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        column = event.get_content_offset_capture(self).x
        if event.button in (LEFT, RIGHT) and self.x_at(column) is not None:
            self._was_drag, self._points = False, event.button == RIGHT
            self.dragged = None if self._points else (column, column)
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        column = event.get_content_offset_capture(self).x
        if (x := self.x_at(column)) is None:
            return
        if self._points:
            self.post_message(self.Pointed(x))
        elif self.dragged is not None:
            self.dragged = (self.dragged[0], column)
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        dragged, self.dragged, self._points = self.dragged, None, False
        self.release_mouse()
        if dragged is None:
            return
        low, high = (self.x_at(column) for column in sorted(dragged))
        self._was_drag = abs(dragged[1] - dragged[0]) >= LEAST_DRAG
        if self._was_drag and low is not None and high is not None:
            self.post_message(self.Dragged(low, high))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset_capture(self)
        if not self._was_drag and (x := self.x_at(offset.x)) is not None:
            self.post_message(self.Pointed(x, self.events_at(offset.x, offset.y)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll(event, -1)

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        if (x := self.x_at(event.get_content_offset_capture(self).x)) is not None:
            event.stop()
            self.post_message(self.Scrolled(x, by))


DENSE_DOTS = 6
"""Dots of a cell from which on a band is dense."""
LEAST_WITH_SIGNS = 3
"""Rows of a chart that has one for the signs of events; a lower one has none of them: within the plot, a sign is a
value."""
LEAST_BETWEEN, LOW = 2, 6
"""Fewest rows between the labels of an extreme and a tick; 1 in a plot of at most LOW rows."""
GUIDE = "┈"
"""Of the lines at the labels of the y axis, in a plot of more than LOW rows."""
LEAST_WITH_HIGHEST = 40
"""Cells of a chart whose frame has room for the highest value."""


class CurveChart(ChartMouse):
    """One metric of a view's curves. A chart of several runs defines :meth:`lines`, :attr:`ends` and what they need."""

    AXIS_FROM: ClassVar = 5
    """Rows of a chart that has an x axis."""
    HAS_RANGE: ClassVar = True
    """Whether a drag selects a range."""
    COMPONENT_CLASSES: ClassVar = {
        "chart--raw", "chart--line", "chart--axis", "chart--gap", "chart--empty", "chart--cross", "chart--event",
        "chart--alarm", "chart--guide",
    }  # fmt: skip

    DEFAULT_CSS = "".join(
        f"CurveChart.-color-{chart.id} > .chart--line {{ color: $chart-{chart.id}; }}\n"
        f"CurveChart.-color-{chart.id} > .chart--raw {{ color: $chart-{chart.id} 40%; }}\n"
        for chart in CHARTS
    )

    def __init__(
        self,
        store: Store,
        curves: Callable[[], Curves | None],
        metric: str = "",
        *,
        id: str,
        classes: str = "panel chart",
    ) -> None:
        super().__init__(store, id=id, classes=classes)
        self._curves = curves
        self.metric = metric
        self.is_log = False
        self.is_clipped = False
        """Whether the y axis leaves out the extremes."""
        self.crosshair: float | None = None
        self.value: float | None = None
        """What was logged at the crosshair."""
        self.highest: tuple[float, int] | None = None
        """A value far above the usual ones, and its step."""
        self.events = ChartEvents()
        """Of the run; shared by the charts of a view."""
        self.rules: Sequence[AlarmRule] = ()
        """The alarms of the metric."""
        self.has_legend = False
        """Whether the frame says what the signs mean."""
        self._signs: dict[int, dict[int, Sign]] = {}
        """Row to column to the sign there."""
        self._strips: list[Strip] = []
        self._key: tuple[object, ...] = ()
        self._view: View | None = None
        self._margin = 0
        self._hidden = ""
        """The points that a clipped axis leaves out."""
        self._base = ""
        """What is to be added to the numbers of the y axis."""
        self._trend_of: tuple[object, str] = (None, "")

    @property
    def curve(self) -> Curve | None:
        curves = self._curves()
        return curves.curves.get(self.metric) if curves is not None else None

    # what is drawn -------------------------------------------------------------------------------------

    def drawn_curves(self) -> list[Curve]:
        """The curves of the metric, as far as they are known."""
        return [curve] if (curve := self.curve) is not None else []

    def lines(self) -> tuple[list[RunLine], list[Gap]]:
        """The lines, the last one on top, and the times without training. Their marks are on a linear axis."""
        curves, curve = self._curves(), self.curve
        if curves is None or curve is None:
            return [], []
        line, gaps = self._apart(only_line(curve, curves.mean_over(curve)), curves.ends, 2 * self.size.width)
        return [line], gaps

    @property
    def ends(self) -> tuple[float, float] | None:
        """First and last x; None without a curve."""
        curves = self._curves()
        return curves.ends if curves is not None else None

    @property
    def axis(self) -> str:
        """The x axis of the curves."""
        curves = self._curves()
        return curves.axis if curves is not None and curves.axis else "step"

    def line_style(self, look: RunLook | None, run: str) -> Style:
        """The style of a run's line."""
        return self.rich_style + self.get_component_rich_style("chart--line")

    def values(self, width: int, height: int) -> list[Text]:
        """Lines of values below the x axis, of a chart with ``height`` rows."""
        return []

    def state(self) -> object:
        curves = self._curves()
        return (
            (curves.version, curves.run, curves.smoothing) if curves is not None else None,
            "" if self.drawn_curves() else self._why_empty(),
            self.metric, self.is_log, self.is_clipped, self.crosshair, self.value, self.events.version,
            self.has_legend,
        )  # fmt: skip

    @property
    def pixel_columns(self) -> int:
        """Pixel columns of the plot; a margin of six cells is usual."""
        return max(0, 2 * (self.size.width - (self._margin or 6)))

    # title ---------------------------------------------------------------------------------------------

    def refresh_titles(self) -> None:
        title = from_markup("$metric", metric=self.metric) + self.newest()
        if self.is_log:
            has_others = any(mark.low <= 0 for curve in self.drawn_curves() for mark in curve.marks)
            title += from_markup(f" [$text-muted]log{', only values > 0' * has_others}[/]")
        if self.is_clipped:
            title += from_markup(" [$warning]$what[/]", what=self._hidden or "clipped")
        if self._base:
            title += from_markup(" [$text-muted]axis: $base + …[/]", base=self._base)
        below = self._note(self._curves()) or self.age()
        if self.highest is not None and self.size.width >= LEAST_WITH_HIGHEST:
            value, step = self.highest
            text = f"{metric_text(self.metric, value)} at {step:,}"
            below = from_markup("[$text-muted]$text[/]  ", text=text) + below
        for rule in self.rules:
            below = from_markup("[$warning]$words[/]  ", words=rule.words) + below
        if self.has_legend and self._signs:
            shown = frozenset(sign.text for signs in self._signs.values() for sign in signs.values())
            words = event_legend(shown, self.size.width - below.cell_length - 4)
            below = Content("  ").join([words, below]) if words else below
        self.set_titles(title, below)

    def newest(self) -> Content:
        """The last value and where the curve goes, behind the name of the metric."""
        curves, curve = self._curves(), self.curve
        last = curve.last if curve is not None else self._last_logged()
        ended, text = self.store.metrics.ended.get(self.metric), Content()
        if last is not None:
            tone = "$foreground" if math.isfinite(last) else "$error"
            when, value = "last" if ended is None else f"at {ended:,}", metric_text(self.metric, last)
            text += from_markup(f"  [$text-muted]$when[/] [bold {tone}]$value[/]", when=when, value=value)
        if ended is None and curve is not None and curves is not None and not curves.is_coarse:
            text += from_markup(" [$text-muted]$trend[/]", trend=self._trend(curve))
        return text

    def _last_logged(self) -> float | None:
        """The last value, from the end of the log, while the curve is not there yet."""
        row = self.store.logs.rows.last if self.store.logs else None
        return to_float(row.fields.get(self.metric)) if row else None

    def _note(self, curves: Curves | None) -> Content | None:
        """Why the curve is not the whole one; None if it is."""
        if curves is None:
            return None
        asking, seconds = curves.asking, seconds_waited(curves.asking.waited)
        if asking.problem:
            return from_markup("[$warning]$text[/]", text=asking.problem)
        if curves.recalled_at is not None:
            age = duration(self.store.now() - curves.recalled_at)
            return from_markup("[$warning]as it was $age ago[/]", age=age)
        if curves.curves and curves.is_coarse:
            return from_markup(
                "[$warning]coarse, $share %$seconds[/]", share=f"{100 * curves.progress:.0f}", seconds=seconds
            )
        if asking.is_waiting and (seconds or not curves.curves):
            return from_markup("[$text-muted]$text[/]", text=asking.words())
        return None

    def _trend(self, curve: Curve) -> str:
        if (state := self.state()) != self._trend_of[0]:
            self._trend_of = (state, curve.direction())
        return self._trend_of[1]

    # paint ---------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        key = (self.state(), width, height, self.app.theme, self.has_focus, self.in_blocks, self.dragged)
        if key != self._key:
            self._key, self._strips = key, self._draw(width, height)
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    def _draw(self, width: int, height: int) -> list[Strip]:
        self._view, self._signs = None, {}
        (found, gaps), ends, values = self.lines(), self.ends, self.values(width, height)
        not_finite = self.curve.gaps if self.curve is not None else ()
        lines = [line.changed(partial(scaled, is_log=self.is_log)) for line in found]
        marks = [mark for line in lines for mark in line.extent]
        height -= len(values)
        if ends is None or not (marks or len(not_finite)) or width < 12 or height < 2:
            return self._empty(width, height, self.rich_style)
        results = self._results()
        shown = [*marks, *results.values()]
        view = view_of(self.metric, shown, ends, self.is_log)
        extremes = (min(mark.low for mark in shown), max(mark.high for mark in shown)) if shown else ()
        if self.is_clipped and marks:
            view, extremes = self._clipped(view, [mark for line in found for mark in line.extent], marks)
        has_axis = height >= self.AXIS_FROM
        elsewhere = [one for one in self.events.placed if one not in results]
        has_row = height >= LEAST_WITH_SIGNS and bool(elsewhere or len(not_finite))
        rows = height - has_axis - has_row
        view, labels = self.y_axis(view, rows, extremes)
        if self.is_clipped:
            lines = [line.changed(partial(cut_off, view=view)) for line in lines]
        self._margin = margin = max(len(text) for text in labels.values()) + 1
        columns = width - margin
        if columns < 4:
            return self._empty(width, height, self.rich_style)
        self._view = view
        names = ("raw", "line", "axis", "gap", "cross", "event", "alarm", "guide")
        styles = {name: self.rich_style + self.get_component_rich_style(f"chart--{name}") for name in names}
        bold = Style(bold=True)
        cells = [[(" ", styles["raw"])] * columns for _ in range(rows + has_row)]

        def put(places: Iterable[tuple[int, int, str]], style: Style) -> None:
            """Write characters by row and column, over those that are there."""
            for row, column, glyph in places:
                if 0 <= column < columns:
                    cells[row][column] = (glyph, style)

        def put_over(bitmap: Bitmap, band: Bitmap, style: Style) -> None:
            """Give the cells of a line the band's color behind it where the band is dense: no hole is left there."""
            for row, column, glyph in self._dots(bitmap):
                if band.cells[row][column].bit_count() >= DENSE_DOTS:
                    cells[row][column] = (glyph, style)

        drawn = [(line, self.line_style(line.look, line.name), *line.bitmaps(view, columns, rows)) for line in lines]
        for *_, band in drawn:
            put(self._dots(band), styles["raw"])
        for row in labels if rows > LOW else ():
            put([(row, at, GUIDE) for at in range(columns) if cells[row][at][0] == " "], styles["guide"])
        for row in self._limits(view, rows):
            put([(row, at, "-") for at in range(0, columns, 2) if cells[row][at][0] in " " + GUIDE], styles["alarm"])
        put([(rows // 2, at, glyph) for at, glyph in bands_of(gaps, view, columns).items()], styles["axis"])
        if self.crosshair is not None:
            put([(row, column_of(self.crosshair, view, columns), "│") for row in range(len(cells))], styles["cross"])
        for line, style, bitmap, band in drawn:
            put(self._dots(bitmap), style)
            put_over(bitmap, band, style + Style(bgcolor=styles["raw"].color))
            put(line.letters(view, columns, rows), style)
        if has_row:
            self._signs[rows] = signs_of(elsewhere, not_finite, view, columns)
        for row, column, sign in signs_at(results, view, columns, rows):
            self._signs.setdefault(row, {})[column] = sign
        for row, signs in self._signs.items():
            for column, sign in signs.items():
                put([(row, column, sign.text)], styles["gap" if sign.is_bad else "event"])
        row, value = point(self.metric, self.value, self.crosshair, view, columns, rows, is_log=self.is_log)
        put([(row, at, glyph) for at, glyph in value.items()], styles["line"] + bold)
        taken: set[tuple[int, int]] = set()
        for line, style, *_ in reversed(drawn):
            put(line.ending(view, columns, rows, taken), style + bold)
        strips = [self._row(labels.get(at, ""), row, styles["axis"]) for at, row in enumerate(cells)]
        if has_axis:
            strips.append(self._axis(view, columns, styles["axis"]))
        for text in values:
            text.truncate(width, pad=True)
            strips.append(Strip(list(text.render(self.app.console)), width).apply_style(self.rich_style))
        return strips

    def _row(self, label: str, cells: Sequence[tuple[str, Style]], axis: Style) -> Strip:
        """A row of the plot, with its part of the y axis. The range under a drag is inverted."""
        margin = self._margin
        ends = self.dragged if self.dragged is not None and self.HAS_RANGE else (0, 0)
        dragged = range(*(end - margin for end in sorted(ends)))
        segments = [Segment(f"{label:>{margin - 1}}" + ("┤" if label else "│"), axis)]
        for (style, is_dragged), group in groupby(enumerate(cells), lambda cell: (cell[1][1], cell[0] in dragged)):
            shown = style + Style(reverse=True) if is_dragged else style
            segments.append(Segment("".join(glyph for _, (glyph, _) in group), shown))
        return Strip(segments, margin + len(cells))

    def _dots(self, bitmap: Bitmap) -> Iterable[tuple[int, int, str]]:
        """Row, column and character of a bitmap."""
        for row in range(bitmap.rows):
            for column, glyph in enumerate(self.glyphs(bitmap, row)):
                if glyph != " ":
                    yield row, column, glyph

    def glyphs(self, bitmap: Bitmap, row: int) -> str:
        """A row of a bitmap, in the characters that the user chose."""
        return lines_in_blocks(bitmap.text(row)) if self.in_blocks else bitmap.text(row)

    def _limits(self, view: View, rows: int) -> set[int]:
        """The rows of the alarms' limits, as far as they are within the axis."""
        limits = [rule.limit for rule in self.rules]
        if self.is_log:
            limits = [math.log10(limit) for limit in limits if limit > 0]
        return {row_of(limit, view, rows) for limit in limits if view.y_low <= limit <= view.y_high}

    def _results(self) -> dict[Placed, Mark]:
        """The evaluations in the range, each with its accuracy on the axis: on a chart of the accuracy only."""
        found = {}
        for one, a in accuracies(self.metric, self.events.placed).items():
            if a > 0 or not self.is_log:
                (found[one],) = scaled([Mark(one.x, a, a, a, a, False)], self.is_log)
        return found

    def _apart(self, line: RunLine, ends: tuple[float, float], pixels: int) -> tuple[RunLine, list[Gap]]:
        """The line, not joined where the run did not train for more than a pixel column, and those gaps."""
        found = gaps_of(line.marks, self.events.pauses, ends) if self.events.pauses else []
        wide = [(place, gap) for place, gap in found if (gap.high - gap.low) * pixels > 2 * (ends[1] - ends[0])]
        if not wide:
            return line, []
        broken = {place for place, _ in wide}

        def apart(marks: Sequence[Mark]) -> Sequence[Mark]:
            return [mark._replace(broken=True) if i in broken else mark for i, mark in enumerate(marks)]

        return line.changed(apart), [gap for _, gap in wide]

    def _clipped(self, view: View, raw: Sequence[Mark], marks: Sequence[Mark]) -> tuple[View, tuple[float, float]]:
        """The view between the percentiles, and these."""
        low, high = percentiles(raw)
        if self.is_log:
            low, high = (math.log10(value) if value > 0 else view.y_low for value in (low, high))
        view = view_of_marks([Mark(0, low, low, high, high, False)], view.x_low, view.x_high)
        self._hidden = left_out(marks, view.y_low, view.y_high)
        return view, (low, high)

    def y_axis(self, view: View, rows: int, extremes: Sequence[float]) -> tuple[View, dict[int, str]]:
        """The view with room for even ticks; and row to number, of the extremes and of the ticks between them."""
        is_whole = not self.is_log and (view.y_low, view.y_high) == (0.0, 1.0)  # the axis of shares stays
        shown, levels = (view, []) if is_whole else evened(view, rows, self.is_log, extremes)
        levels = levels or fitting_ticks(view, rows, self.is_log)
        texts, self._base = (power_labels if self.is_log else tick_labels)(levels)
        # an end of that axis is labeled, also where the lowest or highest value is in its row
        found = {row_of(levels[end], shown, rows): texts[end] for end in (0, -1)} if is_whole else {}
        for extreme, text in extreme_labels(extremes, levels, self._base, self.is_log):
            found.setdefault(row_of(extreme, shown, rows), text)
        ends, between = tuple(found), LEAST_BETWEEN if rows > LOW else 1
        for level, text in zip(levels, texts, strict=True):
            if apart([row := row_of(level, shown, rows)], ends, between):
                found.setdefault(row, text)
        return shown, found

    def _axis(self, view: View, columns: int, style: Style) -> Strip:
        """Numbers below the curve."""
        line, margin = [" "] * columns, self._margin
        for start, text, _ in x_labels(view.x_low, view.x_high, columns, self.axis, self.store.price_per_hour):
            line[start : start + len(text)] = text
        return Strip([Segment(" " * margin + "".join(line), style)], margin + columns)

    def _empty(self, width: int, height: int, style: Style) -> list[Strip]:
        blank = Strip.blank(width, style)
        faint = style + self.get_component_rich_style("chart--empty")
        middle = Strip([Segment(self._why_empty()[:width].center(width), faint)], width)
        return [middle if row == height // 2 else blank for row in range(height)]

    def _why_empty(self) -> str:
        store, curves = self.store, self._curves()
        if store.logs is None or curves is None:
            return "no run selected"
        run = store.run
        if run and run.is_live and not store.step:
            return "waiting for the first step"
        if curves.asking.problem:
            return curves.asking.instead()
        if not self.metric and store.metrics.is_known:
            return "no metrics logged"
        if curves.is_answered or not store.connected:
            return "not logged" if curves.is_answered else NOT_READ
        if not self.metric:
            return store.metrics.asking.instead()
        return curves.asking.instead()

    # mouse ---------------------------------------------------------------------------------------------

    def x_at(self, column: int) -> float | None:
        view, columns = self._view, self.size.width - self._margin
        if view is None or not self._margin <= column < self._margin + columns:
            return None
        return view.x_low + (column - self._margin + 0.5) / columns * (view.x_high - view.x_low)

    def events_at(self, column: int, row: int) -> Sequence[RunEvent]:
        sign = self._signs.get(row, {}).get(column - self._margin)
        return sign.events if sign is not None else ()
