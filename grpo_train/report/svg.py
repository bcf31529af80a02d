"""Charts as SVG, drawn in a fixed picture of :data:`WIDTH` × :data:`HEIGHT` that scales with the page.

Curves are written in tenths of a unit and relative to the point before, which halves the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from grpo_train.report.blocks import ChartBlock, PointsBlock
from grpo_train.report.curves import Curve
from grpo_train.report.report import Event
from grpo_train.report.text import escape, number_text
from grpo_train.report.train_log import Floats
from grpo_train.run_dir.curves import LOGARITHMIC, SHARES, apart, decimals_of, log_ticks, ticks

WIDTH, HEIGHT = 360, 168
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 20
LETTER = 10
"""Height and width of a letter."""
SAME = 1e-9
"""Values that differ by less than this share of them are one value and its rounding."""


@dataclass(frozen=True)
class Scale:
    """From values to places in a picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, values: Floats) -> Floats:
        if self.is_log:
            values = np.log10(np.maximum(values, 1e-300))
        low, high = self.bounds
        # halves first: the span of the largest doubles overflows
        share = (values / 2 - low / 2) / (high / 2 - low / 2 or 1.0)
        return self.start + np.clip(share, 0.0, 1.0) * (self.end - self.start)

    def place(self, value: float) -> float:
        return float(self.at(np.array([value]))[0])

    @property
    def bounds(self) -> tuple[float, float]:
        return (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)


def chart_svg(chart: ChartBlock) -> str:
    """A metric's curves, as an ``<svg>`` element."""
    alone, is_log = len(chart.curves) == 1, is_logarithmic(chart.name, chart.curves)
    drawn = [(letter, piece) for letter, curve in chart.curves for piece in (positive(curve) if is_log else [curve])]
    curves = [(letter, curve) for letter, curve in drawn if len(curve.mean)]
    x = Scale(chart.first, max(chart.last, chart.first + 1), LEFT, WIDTH - RIGHT)
    low, high = _extremes(curves, alone)
    y = _y_scale(chart.name, low, high, is_log=is_log) if curves else _padded(low, high)
    parts = [_axes(x, y, [low, high] if curves else [])]
    parts += _events(x, chart.events)
    ends: dict[str, tuple[float, float]] = {}
    for letter, curve in curves:
        xs = x.at(curve.x)
        if alone and curve.over:
            outline = [*zip(xs, y.at(curve.high), strict=True), *zip(xs[::-1], y.at(curve.low)[::-1], strict=True)]
            if len(xs) > 1:
                parts.append(f'<path class="band" d="{_path(outline)}z" transform="scale(.1)"/>')
        series = _series_class(letter)
        ys = y.at(curve.line)
        if len(xs) == 1:
            parts.append(f'<circle class="dot {series}" cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="2.5"/>')
        else:
            parts.append(
                f'<path class="line {series}" d="{_path([*zip(xs, ys, strict=True)])}" transform="scale(.1)"/>'
            )
        ends[letter] = float(xs[-1]), float(ys[-1])
    parts += _letters([(letter, *end) for letter, end in ends.items() if letter])
    parts += [_crosses(x.at(curve.gaps)) for _, curve in chart.curves if len(curve.gaps)]
    parts.append(f'<line class="cross" x1="0" x2="0" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/>')
    label = escape(f"{chart.name} over steps {chart.first:,} to {chart.last:,}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def is_logarithmic(name: str, curves: Sequence[tuple[str, Curve]]) -> bool:
    """Whether the axis is logarithmic: of the metrics that the app draws so at first, as far as they are positive."""
    found = np.concatenate([np.empty(0), *(value for _, curve in curves for value in (curve.low, curve.high))])
    found = found[found > 0]
    return name in LOGARITHMIC and len(found) > 0 and bool(found.max() > found.min())


def positive(curve: Curve) -> list[Curve]:
    """The pieces of a curve between columns without a positive value; what is not positive is the smallest that is."""
    values = np.array([curve.low, curve.high, curve.mean, curve.line])
    kept = np.flatnonzero(curve.high > 0)
    if not len(kept):
        return []
    least = float(values[:, kept][values[:, kept] > 0].min())
    pieces = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    found = []
    for piece in pieces:
        low, high, mean, line = np.maximum(values[:, piece], least)
        first, last = curve.first[piece], curve.last[piece]
        found.append(replace(curve, first=first, last=last, low=low, high=high, mean=mean, line=line))
    return found


def points_svg(points: PointsBlock) -> str:
    """Estimates with their intervals, as an ``<svg>`` element."""
    x = Scale(points.first, max(points.last, points.first + 1), LEFT, WIDTH - RIGHT)
    everything = [point for _, series in points.series for point in series]
    low, high = min(p.low for p in everything), max(p.high for p in everything)
    y = _padded(low, high)
    parts = [_axes(x, y, [low, high])]
    for letter, series in points.series:
        name = _series_class(letter)
        places = [(x.place(p.step), y.place(p.value), y.place(p.low), y.place(p.high)) for p in series]
        if len(places) > 1:
            line = _path([(left, value) for left, value, _, _ in places])
            parts.append(f'<path class="line {name}" d="{line}" transform="scale(.1)"/>')
        for left, value, low, high in places:
            parts.append(
                f'<path class="bar {name}" d="M{left:.1f} {low:.1f}V{high:.1f}M{left - 3:.1f} {low:.1f}h6'
                f'M{left - 3:.1f} {high:.1f}h6"/><circle class="dot {name}" cx="{left:.1f}" cy="{value:.1f}" r="2.5"/>'
            )
        if letter and places:
            parts.append(
                f'<text class="letter {name}" x="{min(places[-1][0] + 4, WIDTH - 9):.1f}" '
                f'y="{places[-1][1] - 4:.1f}">{letter}</text>'
            )
    label = escape(f"{points.name} over steps {points.first:,} to {points.last:,}, with 95 % intervals")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _events(x: Scale, events: Sequence[Event]) -> Iterator[str]:
    """A line at each event, and its sign above; signs that would overlap are side by side over the first of them."""
    signs: list[tuple[float, list[str]]] = []
    for event in sorted(events, key=lambda event: event.step):
        at, sign = x.place(event.step), event.run + event.sign
        yield f'<line class="event" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        if not signs or at - signs[-1][0] > LETTER * (len(sign) + sum(map(len, signs[-1][1]))) / 2:
            signs.append((at, []))
        if sign not in signs[-1][1]:
            signs[-1][1].append(sign)
    for at, beside in signs:
        text = " ".join(beside)
        yield f'<text class="event" x="{at:.1f}" y="{TOP - 2}" text-anchor="middle">{text}</text>'


def _letters(ends: Sequence[tuple[str, float, float]]) -> list[str]:
    """The letters of curves at their ends (letter, x, y), one below the other where they would overlap."""
    placed: list[tuple[str, float, float]] = []
    for letter, x, y in sorted(ends, key=lambda end: end[2]):
        beside = [known for _, at, known in placed if abs(at - x) < LETTER]
        placed.append((letter, x, max([y, *(known + LETTER for known in beside)])))
    over = max((y for _, _, y in placed), default=0) - (HEIGHT - BOTTOM)
    return [
        f'<text class="letter {_series_class(letter)}" x="{min(x + 3, WIDTH - 9):.1f}" '
        f'y="{y + 4 - max(0.0, over):.1f}">{letter}</text>'
        for letter, x, y in placed
    ]


def x_places(chart: ChartBlock, steps: Floats) -> list[float]:
    """Where steps are in a chart's picture."""
    x = Scale(chart.first, max(chart.last, chart.first + 1), LEFT, WIDTH - RIGHT)
    return [round(place, 1) for place in x.at(steps).tolist()]


def _series_class(letter: str) -> str:
    return f"s{'ABCDEFGHIJKL'.index(letter) if letter else 0}"


def _extremes(curves: Sequence[tuple[str, Curve]], alone: bool) -> tuple[float, float]:
    """The lowest and the highest value that is drawn."""
    low = min((float((curve.low if alone else curve.line).min()) for _, curve in curves), default=0.0)
    high = max((float((curve.high if alone else curve.line).max()) for _, curve in curves), default=1.0)
    return low, high


def _y_scale(name: str, low: float, high: float, *, is_log: bool) -> Scale:
    if SHARES.fullmatch(name) and low >= 0 and high <= 1:
        return Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    if is_log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        return Scale(low, high, HEIGHT - BOTTOM, TOP, is_log=True)
    return _padded(low, high)


def _padded(low: float, high: float) -> Scale:
    """A scale with room above and below, also around a single value; what differs by rounding is one."""
    spread = high / 2 - low / 2
    room = spread / 8 if spread > SAME * max(abs(low), abs(high)) else abs(high) / 10 or 0.5
    bottom = 0.0 if 0 <= low < room else low - room
    return Scale(bottom, high + room, HEIGHT - BOTTOM, TOP)


def _axes(x: Scale, y: Scale, extremes: Sequence[float]) -> str:
    """The axes: even ticks between the labels of the extremes, which are the values of ``extremes``."""
    parts = []
    low, high = y.bounds
    found = (log_ticks if y.is_log else ticks)(low, high, 5)
    values = [10.0**level for level in found] if y.is_log else found
    step = 0.0 if y.is_log or len(found) < 2 else found[1] - found[0]
    finer = 10.0 ** math.floor(math.log10(step / 100)) if step else 0.0
    ends = {y.place(value): _tick(value, values[0], finer) for value in extremes if math.isfinite(value)}
    if len(ends) == 2 and max(ends) - min(ends) < LETTER:
        del ends[max(ends)]
    for value in values:
        at = y.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        if apart([at], list(ends), LETTER):
            parts.append(_y_label(at, _tick(value, values[0], step)))
    parts += [_y_label(at, text) for at, text in ends.items()]
    first, last = math.ceil(x.low), math.floor(x.high)
    width = max(len(f"{first:,}"), len(f"{last:,}")) * LETTER * 0.6 + 2
    inner = [step for step in ticks(x.low, x.high, 5) if step == int(step)]
    places = apart([x.place(step) for step in inner], [x.place(first), x.place(last)], width * 1.6)
    inner = [step for step in inner if x.place(step) in places]
    for value in sorted({first, *inner, last}):
        place = x.place(value)
        anchor = "end" if value == last else "middle"
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{int(value):,}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    return "".join(parts)


def _y_label(at: float, text: str) -> str:
    return f'<text x="{LEFT - 5}" y="{at + 3.5:.1f}" text-anchor="end">{text}</text>'


def _tick(value: float, first: float, step: float) -> str:
    """A number with the digits that tell it from its neighbors; where those are too many, what it is beyond the first.

    ``step``: from one tick to the next; 0 without a regular one.
    """
    if step and value != first and step < 1e-6 * abs(value):
        return f"+{value - first:.1g}"
    if step and 1e-7 < step < 1 and abs(value) < 1e4:
        text = f"{value:.{decimals_of(step)}f}" if value else "0"
    else:
        text = number_text(float(f"{value:.6g}"))
    return text if len(text) <= 9 else f"{value:.1e}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    """A line through places, in tenths of a unit."""
    rounded = [(round(float(x) * 10), round(float(y) * 10)) for x, y in places]
    (left, top), *_ = rounded
    text = [f"M{left} {top}l"]
    steps = [(x2 - x1, y2 - y1) for (x1, y1), (x2, y2) in pairwise(rounded)]
    text += [f"{dx}{dy}" if dy < 0 else f"{dx} {dy}" for dx, dy in steps]
    joined = [text[0]]
    for piece in text[1:]:
        joined.append(piece if piece.startswith("-") or joined[-1].endswith("l") else f" {piece}")
    return "".join(joined)


def _crosses(xs: Floats) -> str:
    """A cross below the axis for each place where a value is not finite: above it, it would be at a value's height."""
    bottom = HEIGHT - BOTTOM
    places = sorted({round(x) for x in xs.tolist()})
    return f'<path class="gap" d="{"".join(f"M{x - 2} {bottom + 1}l4 4m0-4l-4 4" for x in places)}"/>'
