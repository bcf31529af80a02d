"""Curves in a few cells, with every peak kept: lines, axes, marks, signs of events. Pure functions, no widgets.

A cell has 2 × 4 pixels. Per pixel column the first, lowest, highest and last value are drawn (M4 aggregation), which
gives the same raster as drawing all values. A NaN breaks the line.

A block has 2 × 2 pixels in place of the 2 × 4 dots of braille: two dots make a pixel, so no peak is lost.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from textual.content import Content

from grpo_train.history.cost import dollars
from grpo_train.run_dir.curves import NICE, SHARES, log_ticks, ticks, time_labels, time_ticks
from grpo_train.run_dir.display import CRASH, EVENT_WORDS, duration, metric_text
from grpo_tui.box.charts import DASHED, DOTTED, ELAPSED, NOT_FINITE, RUN_LOOKS, SEVERAL, Gap, Placed, RunLook, sign_of
from grpo_tui.box.curves import Curve, Mark
from grpo_tui.box.events import RunEvent
from grpo_tui.box.formatting import compact_number, money, tick_labels

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_STROKES = tuple(tuple(tuple(sum(bits[first : last + 1]) for last in range(4)) for first in range(4)) for bits in _BITS)
"""Per half of a cell, first and last of its four pixels: the bits of a stroke."""


@dataclass(frozen=True)
class View:
    """The part of the plane that a chart shows."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float


MOST_TICKS = 6
"""Of a y axis."""
MOST_ROOM = 1.4
"""How much longer an axis may become for even ticks."""
SPARSE = 24
"""Ticks that are closer by a row are worth this part of the axis."""
DECADES = (1, 2, 3, 5, *range(10, 1000, 10))
"""Distances of the ticks of a logarithmic axis."""


class Bitmap:
    """A canvas of braille dots, ``columns`` × ``rows`` cells."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.width, self.height = columns * 2, rows * 4
        self.cells = [bytearray(columns) for _ in range(rows)]

    def dot(self, x: int, y: int) -> None:
        """Set a pixel; (0, 0) is the top left. Pixels outside the canvas are ignored."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self.cells[y >> 2][x >> 1] |= _BITS[x & 1][y & 3]

    def stroke(self, x: int, y0: int, y1: int) -> None:
        """A vertical line."""
        top, bottom = max(0, min(y0, y1)), min(self.height - 1, max(y0, y1))
        if not 0 <= x < self.width or top > bottom:
            return
        column, strokes, first, last = x >> 1, _STROKES[x & 1], top >> 2, bottom >> 2
        if first == last:
            self.cells[first][column] |= strokes[top & 3][bottom & 3]
            return
        self.cells[first][column] |= strokes[top & 3][3]
        for row in range(first + 1, last):
            self.cells[row][column] |= strokes[0][3]
        self.cells[last][column] |= strokes[0][bottom & 3]

    def line(self, x0: int, y0: int, x1: int, y1: int) -> None:
        """Bresenham's line; a steep one, of which curves are made, as one stroke per pixel column."""
        dx, dy = abs(x1 - x0), abs(y1 - y0)
        sx, sy = (1 if x0 < x1 else -1), (1 if y0 < y1 else -1)
        if dy >= dx:
            begin = 0
            for number in range(dx + 1):
                end = dy + 1 if number == dx else -((2 * number + 1) * -dy // (2 * dx))
                self.stroke(x0 + sx * number, y0 + sy * begin, y0 + sy * (end - 1))
                begin = end
            return
        error = dx - dy
        while True:
            self.dot(x0, y0)
            if x0 == x1 and y0 == y1:
                return
            twice = 2 * error
            if twice >= -dy:
                error -= dy
                x0 += sx
            if twice <= dx:
                error += dx
                y0 += sy

    def keep_columns(self, pattern: Sequence[bool]) -> None:
        """Clear the pixel columns that a repeating pattern leaves out."""
        for column in range(self.columns):
            kept = [pattern[(2 * column + x) % len(pattern)] for x in (0, 1)]
            mask = sum(sum(_BITS[x]) for x in (0, 1) if kept[x])
            for row in self.cells:
                row[column] &= mask

    def text(self, row: int) -> str:
        """One row of cells as characters; an empty cell is a space."""
        return "".join(chr(0x2800 + bits) if bits else " " for bits in self.cells[row])


def view_of_marks(marks: Sequence[Mark], x_low: float, x_high: float) -> View:
    """The view of all values of the marks, with a small margin above and below."""
    if not marks:
        return View(x_low, x_high, 0.0, 1.0)
    y_low, y_high = min(mark.low for mark in marks), max(mark.high for mark in marks)
    if y_high - y_low < 1e-12 * max(abs(y_low), abs(y_high), 1e-280):  # practically constant
        spread = max(abs(y_low) * 0.1, 1e-280) if y_low else 1.0  # large enough that its inverse is finite
        return View(x_low, x_high, y_low - spread, y_high + spread)
    margin = (y_high - y_low) * 0.04
    return View(x_low, x_high, y_low - margin, y_high + margin)


def column_of(x: float, view: View, width: int) -> int:
    """The column, of ``width``, that shows an x; outside 0 … width - 1 it is not shown."""
    if x == view.x_high:
        return width - 1
    return math.floor((x - view.x_low) / (view.x_high - view.x_low) * width)


def pixel_of(y: float, view: View, height: int) -> int:
    """The pixel row, of ``height``, that shows a value."""
    return round((view.y_high - y) / (view.y_high - view.y_low) * (height - 1))


def row_of(y: float, view: View, rows: int) -> int:
    """The row of cells that shows a value."""
    return min(rows - 1, max(0, pixel_of(y, view, rows * 4) // 4))


def plot_marks(bitmap: Bitmap, view: View, marks: Sequence[Mark]) -> None:
    """Draw the values of each mark as a line from its lowest to its highest, joined to the next mark.

    With one mark per pixel column, this is the raster of all values: no peak is lost. The line breaks at a NaN.
    """
    previous: tuple[int, int] | None = None
    for mark in marks:
        x = column_of(mark.x, view, bitmap.width)
        if not 0 <= x < bitmap.width:
            previous = None if x < 0 else previous
            continue
        first = pixel_of(mark.first, view, bitmap.height)
        if previous is None or mark.broken:
            bitmap.dot(x, first)
        else:
            bitmap.line(*previous, x, first)
        if mark.low != mark.high:
            bitmap.line(x, pixel_of(mark.high, view, bitmap.height), x, pixel_of(mark.low, view, bitmap.height))
        previous = (x, pixel_of(mark.last, view, bitmap.height))


def evened(view: View, rows: int, is_log: bool, extremes: Sequence[float] = ()) -> tuple[View, list[float]]:
    """The view with as much room above and below the extremes that its round numbers are whole rows apart; and those
    numbers."""
    low, high = (min(extremes), max(extremes)) if extremes else (view.y_low, view.y_high)
    if not 1e-9 * max(abs(low), abs(high)) < high - low < math.inf:
        low, high = view.y_low, view.y_high
    pixels = rows * 4 - 1
    span = (high - low) * pixels / (pixels - 1)  # half a dot above and below: the view is moved by that much
    if rows < 3 or not 0 < span < math.inf:
        return view, []
    found = []
    for gap in range(-(-rows // MOST_TICKS), max(1, rows // 2) + 1):
        least = span * 4 * gap / pixels
        power = 10.0 ** math.floor(math.log10(least))
        sizes = DECADES if is_log else [power * factor for factor in NICE]
        size = next((size for size in sizes if size >= least * (1 - 1e-9)), math.inf)
        found.append((size * pixels / 4 / gap * (1 + gap / SPARSE), size, size * pixels / 4 / gap))
    _, size, wide = min(found)
    if not 0 < wide < MOST_ROOM * span:
        return view, []
    top = high + (wide - high + low) / 2
    level, dot = math.floor(top / size) * size, wide / pixels
    top = level + round((top - level) / dot) * dot  # a tick is in the middle of a dot
    if low >= 0 > top - wide:
        top = wide  # an axis of what is never negative begins at 0
    bottom = top - wide
    levels = [index * size for index in range(math.ceil(bottom / size - 1e-9), math.floor(top / size + 1e-9) + 1)]
    return replace(view, y_low=bottom, y_high=top), levels


def fitting_ticks(view: View, rows: int, is_log: bool) -> list[float]:
    """The ticks of an axis that stays as it is: as many as are as far from each other in rows, if there are some."""
    count = max(2, min(MOST_TICKS, rows // 2 + 1))
    of = log_ticks if is_log else ticks
    for fewer in range(count, 2, -1):
        places = [row_of(level, view, rows) for level in of(view.y_low, view.y_high, fewer)]
        if len(places) > 2 and len({low - high for low, high in itertools.pairwise(places)}) == 1:
            return of(view.y_low, view.y_high, fewer)
    return of(view.y_low, view.y_high, count)


_QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
"""By pixel: 1 upper left, 2 upper right, 4 lower left, 8 lower right."""
_DOTS = (0x03, 0x18, 0x44, 0xA0)
"""The dots of each of these pixels."""
_HEIGHTS = (("█", 0x09), ("▆", 0x12), ("▄", 0x24), ("▂", 0xC0))
"""A bar as high as the dots of a row, the highest first."""


def _quadrant(dots: int) -> str:
    return _QUADRANTS[sum(1 << pixel for pixel, mask in enumerate(_DOTS) if dots & mask)]


def _bar(dots: int) -> str:
    return next((bar for bar, mask in _HEIGHTS if dots & mask), " ")


_LINES = {0x2800 + dots: _quadrant(dots) for dots in range(256)}
_BARS = {0x2800 + dots: _bar(dots) for dots in range(256)}


def lines_in_blocks(braille: str) -> str:
    """A row of a line chart."""
    return braille.translate(_LINES)


def bars_in_blocks(braille: str) -> str:
    """A row of a bar chart, or a curve of one row: each cell is a bar as high as its highest dot."""
    return braille.translate(_BARS)


TIME_UNITS = ((86_400.0, 2 * 86_400), (3_600.0, 2 * 3_600), (60.0, 120), (1.0, 0))
"""Seconds of a unit on an axis of elapsed time, and the range from which it is used."""


def view_of(metric: str, marks: Sequence[Mark], ends: tuple[float, float], is_log: bool = False) -> View:
    """The view of all values of the marks; of a metric that is a share of a whole, from 0 to 1."""
    view = view_of_marks(marks, *ends)
    if is_log or not SHARES.fullmatch(metric) or any(mark.low < 0 or mark.high > 1 for mark in marks):
        return view
    return replace(view, y_low=0.0, y_high=1.0)


LEAST_LABEL = 8
"""Cells of a label on an x axis and the room beside it."""
BETWEEN = 2
"""Cells between two labels."""


class XLabel(NamedTuple):
    """A label below a plot."""

    start: int
    """Its first cell."""
    text: str
    place: float
    """The x that it is for."""


def x_labels(low: float, high: float, columns: int, axis: str, price: float | None = None) -> list[XLabel]:
    """The labels below a plot: its ends, and as many even places as fit between them. ``price``: dollars per hour."""
    ends = [float(math.ceil(low)), float(math.floor(high))] if axis == "step" else [low, high]
    if ends[0] > ends[1]:
        ends = [low, high]

    def laid(places: Sequence[float]) -> list[XLabel]:
        found = []
        for place, text in zip(places, axis_labels(places, axis, price), strict=True):
            center = min(columns - 1, math.floor((place - low) / (high - low) * columns))
            found.append(XLabel(min(max(0, center - len(text) // 2), columns - len(text)), text, place))
        return found

    def overlap(labels: Sequence[XLabel]) -> int | None:
        """The first label that the one after it would touch."""
        pairs = enumerate(itertools.pairwise(labels))
        return next((at for at, (one, after) in pairs if one.start + len(one.text) + BETWEEN > after.start), None)

    for count in range(max(2, columns // LEAST_LABEL), 0, -1):
        inner = [place for place in x_ticks(low, high, count, axis, price) if ends[0] < place < ends[1]]
        while (at := overlap(labels := laid([ends[0], *inner, ends[1]]))) is not None and inner:
            if at == 0:
                inner.pop(0)
            elif at == len(inner):
                inner.pop()
            else:
                break
        if at is None:
            return labels
    return [label for label in laid(ends[:1]) if len(label.text) <= columns]


def x_ticks(low: float, high: float, count: int, axis: str, price: float | None) -> list[float]:
    """At most ``count`` even places on an x axis."""
    if axis == "time":
        return time_ticks(low, high, count)
    unit = 1.0
    if axis == "seconds":
        unit = 1 / rate if (rate := dollars(price or 0.0, 1.0)) else 0.0
    elif axis == ELAPSED:
        unit = next(unit for unit, least in TIME_UNITS if high - low >= least)
    places = [level * unit for level in ticks(low / unit, high / unit, max(2, count))] if unit else []
    return [place for place in places if axis != "step" or place == int(place)]


def axis_labels(places: Sequence[float], axis: str, price: float | None) -> list[str]:
    """The labels of places on an x axis: its ends, and ticks, which have as many digits as their distance needs."""
    if axis == "time":
        return time_labels(places)
    if axis == "seconds":
        found, inner = (
            [cost_text(place, price) for place in places],
            [dollars(price or 0.0, one) for one in places[1:-1]],
        )
        texts, base = tick_labels(inner) if len(inner) > 1 else ([], "x")
        return found if base else [found[0], *(f"${text}" for text in texts), found[-1]]
    return [axis_label(place, axis) for place in places]


def axis_label(value: float, axis: str, price: float | None = None) -> str:
    """A number below a chart; "" for one that would say nothing (half a step). ``price``: dollars per hour."""
    if axis == "seconds":
        return cost_text(value, price)
    if axis == "time":
        return time.strftime("%H:%M", time.localtime(value))
    if axis == ELAPSED:
        return elapsed(value)
    if axis == "tokens":
        return compact_number(value)
    if value != int(value):
        return ""
    return f"{int(value):,}" if abs(value) < 1e6 else compact_number(value)


def cost_text(seconds: float, price: float | None) -> str:
    """What seconds of the box cost, with two digits also below a cent."""
    return money(dollars(price or 0.0, seconds))


def elapsed(seconds: float) -> str:
    """A time since the start of a run, in one unit where that is exact: ``2 h``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return duration(seconds) if seconds else "0"


MARKED_EVERY = 16
"""Columns between two letters on a line."""
PATTERNS = {DASHED: (True, True, True, True, True, True, False, False), DOTTED: (True, True, False, False)}
"""Which pixel columns of a line are drawn."""


class RunLine(NamedTuple):
    """The line of a run."""

    marks: Sequence[Mark]
    """Of the values, or of their mean."""
    band: Sequence[Mark] = ()
    """The values whose range is drawn below the line."""
    look: RunLook | None = None
    """Of one of several runs: its color, pattern and letter. None for the only run."""
    name: str = ""
    """Of the run."""
    end: str = ""
    """What is written behind the last mark."""
    is_patterned: bool = False
    """Whether gaps of the look's pattern may be left out: a peak of raw values is always drawn."""

    def changed(self, change: Callable[[Sequence[Mark]], Sequence[Mark]]) -> RunLine:
        """The line with other marks: scaled, cut off, or fewer of them."""
        return self._replace(marks=change(self.marks), band=change(self.band))

    @property
    def extent(self) -> Sequence[Mark]:
        """The marks that a chart must have room for."""
        return self.band or self.marks

    def bitmaps(self, view: View, columns: int, rows: int) -> tuple[Bitmap, Bitmap]:
        """The line, and its band."""
        line, band = Bitmap(columns, rows), Bitmap(columns, rows)
        plot_marks(line, view, self.marks)
        plot_marks(band, view, self.band)
        if self.is_patterned and self.look is not None and (pattern := PATTERNS.get(self.look.line)):
            line.keep_columns(pattern)
        return line, band

    def letters(self, view: View, columns: int, rows: int) -> Iterator[tuple[int, int, str]]:
        """Row, column and character of the letters on the line."""
        if self.look is None:
            return
        places = {column_of(mark.x, view, columns): mark for mark in self.marks}
        for column in range(MARKED_EVERY // 2 + 5 * RUN_LOOKS.index(self.look) % MARKED_EVERY, columns, MARKED_EVERY):
            if (mark := places.get(column)) is not None:
                yield row_of(mark.last, view, rows), column, self.look.letter

    def ending(
        self, view: View, columns: int, rows: int, taken: set[tuple[int, int]]
    ) -> Iterator[tuple[int, int, str]]:
        """Row, column and character of the text at the end. Its cells are added to those that are ``taken``."""
        if not self.marks or not self.end:
            return
        last = self.marks[-1]
        column = min(max(0, column_of(last.x, view, columns) + 1), columns - len(self.end))
        middle = row_of(last.last, view, rows)
        for row in (middle + way * distance for distance in range(rows) for way in (-1, 1)):
            places = {(row, column + i) for i in range(len(self.end))}
            if 0 <= row < rows and not places & taken:
                taken |= places
                yield from ((row, column + i, character) for i, character in enumerate(self.end))
                return


def only_line(curve: Curve, over: int) -> RunLine:
    """The line of the only run of a chart: its values, or the mean of ``over`` of them over the band of their range."""
    return RunLine(curve.means(over), curve.marks) if over else RunLine(curve.marks)


def scaled(marks: Sequence[Mark], is_log: bool) -> Sequence[Mark]:
    """Marks on an axis: of a logarithmic one exponents of ten. The line breaks where a mark has no positive value."""
    if not is_log:
        return marks
    after = [True, *(mark.high <= 0 for mark in marks)]
    positive = [
        mark._replace(broken=mark.broken or gap) for mark, gap in zip(marks, after, strict=False) if mark.high > 0
    ]
    floor = min((value for mark in positive for value in mark[1:5] if value > 0), default=1.0)
    return [_changed(mark, lambda value: math.log10(max(value, floor))) for mark in positive]


def cut_off(marks: Sequence[Mark], view: View) -> list[Mark]:
    """Marks whose values beyond the view are just outside of it: a line to them leaves the chart."""
    margin = (view.y_high - view.y_low) / 2
    least, most = view.y_low - margin, view.y_high + margin
    return [_changed(mark, lambda value: min(most, max(least, value))) for mark in marks]


def _changed(mark: Mark, change: Callable[[float], float]) -> Mark:
    first, low, high, last = map(change, mark[1:5])
    return Mark(mark.x, first, low, high, last, mark.broken, mark.rows)


def point(
    metric: str, value: float | None, x: float | None, view: View, columns: int, rows: int, *, is_log: bool
) -> tuple[int, dict[int, str]]:
    """A value at the crosshair: its row, and by column the characters of a point with the number beside it."""
    if value is None or x is None or not math.isfinite(value) or (is_log and value <= 0):
        return -1, {}
    y, place = math.log10(value) if is_log else value, column_of(x, view, columns)
    if not (view.y_low <= y <= view.y_high and 0 <= place < columns):
        return -1, {}
    number = metric_text(metric, value)
    text, start = (f"┼{number}", place) if place + len(number) < columns else (f"{number}┼", place - len(number))
    return row_of(y, view, rows), dict(zip(range(start, place + len(text)), text, strict=False))


BAND = "░"


class Sign(NamedTuple):
    """The sign of a column."""

    text: str
    events: list[RunEvent]

    @property
    def is_bad(self) -> bool:
        return self.text in (CRASH, NOT_FINITE)


def signs_of(placed: Iterable[Placed], not_finite: Iterable[float], view: View, columns: int) -> dict[int, Sign]:
    """The sign of each column that has one. NaN gives way to a crash only."""
    by_column: dict[int, list[RunEvent]] = {}
    for x, event in placed:
        if 0 <= (column := column_of(x, view, columns)) < columns:
            by_column.setdefault(column, []).append(event)
    signs = {column: Sign(sign_of(events), events) for column, events in by_column.items()}
    for column in {column_of(x, view, columns) for x in not_finite}:
        if 0 <= column < columns and (column not in signs or signs[column].text != CRASH):
            signs[column] = Sign(NOT_FINITE, by_column.get(column, []))
    return signs


def signs_at(results: Mapping[Placed, Mark], view: View, columns: int, rows: int) -> Iterator[tuple[int, int, Sign]]:
    """Row, column and sign of evaluations at the height of their results; one that a clipped axis leaves out is at its
    end."""
    for one, mark in results.items():
        column, row = column_of(one.x, view, columns), row_of(mark.last, view, rows)
        if 0 <= column < columns:
            yield min(rows - 1, max(0, row)), column, Sign(one.event.sign, [one.event])


@functools.lru_cache(64)
def event_legend(signs: frozenset[str], room: int) -> Content:
    """``S stop R resume``, as far as there is room."""
    words = {**EVENT_WORDS, SEVERAL: "several", NOT_FINITE: "NaN or Inf"}
    parts: list[Content] = []
    for sign, word in words.items():
        part = Content.from_markup("[b]$sign[/] [$text-muted]$word[/]", sign=sign, word=word)
        if sign in signs and sum(one.cell_length + 2 for one in parts) + part.cell_length <= room:
            parts.append(part)
    return Content("  ").join(parts)


def bands_of(gaps: Sequence[Gap], view: View, columns: int) -> dict[int, str]:
    """Column to character of the bands of gaps, each with its label where that fits."""
    cells: dict[int, str] = {}
    for gap in gaps:
        start = max(0, column_of(gap.low, view, columns) + 1)
        end = min(columns, column_of(gap.high, view, columns))
        width = end - start
        if width < 1:
            continue
        word = "stopped" if gap.has_end else "no step for"
        labels = (f" {word} {duration(gap.seconds)} ", f" {duration(gap.seconds)} ", "")
        label = next(text for text in labels if len(text) + 2 <= width or not text)
        cells.update(zip(range(start, end), label.center(width, BAND), strict=True))
    return cells
