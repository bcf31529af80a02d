"""The charts of a view as one SVG file, drawn as lines: it looks the same without the terminal's font. :func:`png_of`
makes a PNG of it. No Textual."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import resvg_py

from grpo_train.run_dir.curves import apart, log_ticks, ticks
from grpo_train.run_dir.display import CRASH, EVALUATION, EVENT_WORDS, metric_text
from grpo_tui.box.charts import DASHED, DOTTED, Placed, RunLook, accuracies
from grpo_tui.box.curves import Mark
from grpo_tui.box.formatting import extreme_labels, power_labels, tick_labels
from grpo_tui.kit.plot import RunLine, View, XLabel, scaled, view_of, x_labels

WIDTH, HEIGHT = 480, 240
"""Of one chart."""
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 34, 26
SIGNS = HEIGHT - BOTTOM - 6
"""Height of the signs of events, in a strip of their own above the axis …"""
STRIP = 13
"""… of this height."""
LETTER = 6.2
"""Width of a letter."""
LABEL = 11
"""Height of a label."""
LEGEND = 16
"""Height of a line of a legend."""
ACROSS = 2
"""Charts side by side."""
FONTS = "Helvetica, Arial, Roboto, 'DejaVu Sans', 'Liberation Sans', 'Noto Sans', sans-serif"
"""Of every system one: the renderer of :func:`png_of` has no font to fall back to."""
SHARPNESS = 2
"""Pixels of a PNG per unit of the SVG."""
DASHES = {DASHED: "7 3", DOTTED: "2 3"}
NAMES = 40
"""Characters of a run's name in the legend."""


@dataclass(frozen=True)
class Drawing:
    """One chart to draw: of one run, or a line for each of several runs."""

    metric: str
    lines: Sequence[RunLine]
    """On a linear axis."""
    is_log: bool
    color: str = ""
    """Of the line of an only run; those of several have their own."""
    last: float | None = None
    """The last value of an only run."""
    not_finite: Sequence[float] = ()
    """Where NaN and infinite values are."""
    events: Sequence[Placed] = ()
    """What happened to the run, in the range that is drawn."""


def charts_svg(
    title: str, charts: Sequence[Drawing], ends: tuple[float, float], axis: str = "step", price: float | None = None
) -> str:
    """The charts below a title and a legend of the runs and events. ``ends``: first and last x; ``price``: dollars per
    hour."""
    runs = {line.name: line.look for chart in charts for line in chart.lines}
    legend = [_run(look, name) for name, look in runs.items() if look is not None]
    if signs := {one.event.sign for chart in charts for one in chart.events}:
        legend.append("".join(_legend(signs)))
    return _page(title, [list(_chart(chart, ends, axis, price)) for chart in charts], legend)


def _page(title: str, charts: Sequence[Sequence[str]], legend: Sequence[str]) -> str:
    """Charts, each a list of elements, below a title and the lines of a legend."""
    across = min(ACROSS, max(1, len(charts)))
    top = 30 + LEGEND * len(legend)
    width, height = across * WIDTH, top + -(-len(charts) // across) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONTS}" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="22" font-size="14" font-weight="bold" fill="#1d2733">{_escape(title)}</text>',
    ]
    for place, line in enumerate(legend):
        parts.append(f'<g transform="translate(16 {40 + LEGEND * place})">{line}</g>')
    for place, chart in enumerate(charts):
        parts.append(f'<g transform="translate({place % across * WIDTH} {top + place // across * HEIGHT})">')
        parts += chart
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def png_of(svg: str) -> bytes | None:
    """A picture for chats and slides that take no SVG; None where this machine has no font to write with."""
    blank, word = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20" font-family="{FONTS}">{inside}</svg>'
        for inside in ("", '<text y="15">M</text>')
    )
    if resvg_py.svg_to_bytes(svg_string=blank) == resvg_py.svg_to_bytes(svg_string=word):
        return None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=SHARPNESS))


def _chart(chart: Drawing, ends: tuple[float, float], axis: str, price: float | None) -> Iterator[str]:
    def shown(marks: Sequence[Mark]) -> Sequence[Mark]:
        return scaled([mark for mark in marks if ends[0] <= mark.x <= ends[1]], chart.is_log)

    lines = [line.changed(shown) for line in chart.lines]
    found = accuracies(chart.metric, chart.events)
    results = shown([Mark(one.x, a, a, a, a, False) for one, a in found.items()])
    drawn = [*(mark for line in lines for mark in line.extent), *results]
    view = view_of(chart.metric, drawn, ends, chart.is_log)
    extremes = [min(mark.low for mark in drawn), max(mark.high for mark in drawn)] if drawn else []
    said = metric_text(chart.metric, chart.last) if chart.last is not None else ""
    if any(line.band for line in lines):
        said = f"last {said}, line: mean"
    columns = int((WIDTH - LEFT - RIGHT) / LETTER)
    yield from _axes(chart, said, view, extremes, x_labels(*ends, columns, axis, price))
    for line in lines:
        yield from _line(line, view, line.look.light if line.look is not None else chart.color)
    for x in chart.not_finite:
        if ends[0] <= x <= ends[1]:
            yield _cross(_x(x, view), SIGNS)
    for result in results:
        yield _diamond(_x(result.x, view), _y(result.last, view))
    for one in chart.events:
        if one not in found:
            yield _sign(one.event.sign, _x(one.x, view), SIGNS)
    for line in lines:
        if line.look is not None and line.marks:
            x, y = _x(line.marks[-1].x, view), _y(line.marks[-1].last, view)
            yield _letter(line.look, min(x + 3, WIDTH - 12), y + 4)


def _line(line: RunLine, view: View, color: str) -> Iterator[str]:
    """The range of the values as a band, the values as a thin line, and the line itself."""
    for part in _unbroken(line.band):
        outline = [(mark.x, mark.high) for mark in part] + [(mark.x, mark.low) for mark in reversed(part)]
        yield f'<path d="{_path(outline, view)}Z" fill="{color}" fill-opacity="0.2"/>'
    if line.band:  # where a column has one value, the band has no area
        yield '<g opacity="0.35">'
        yield from _curve(line.band, view, color, width=0.8)
        yield "</g>"
    yield from _curve(line.marks, view, color, _dashed(line.look))


def _curve(marks: Sequence[Mark], view: View, color: str, dashed: str = "", width: float = 1.6) -> Iterator[str]:
    """A line through some marks, broken at NaN."""
    for part in _unbroken(marks):
        points = [(mark.x, y) for mark in part for y in _values(mark)]
        yield (
            f'<path d="{_path(points, view)}" fill="none" stroke="{color}" stroke-width="{width}"{dashed} '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )


def _dashed(look: RunLook | None) -> str:
    dashes = DASHES.get(look.line) if look is not None else None
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _letter(look: RunLook, x: float, y: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="bold" fill="{look.light}">{look.letter}</text>'


def _run(look: RunLook, name: str) -> str:
    """A run in the legend: its letter, line and name."""
    shown = name if len(name) <= NAMES else f"{name[: NAMES - 1]}…"
    return (
        f'{_letter(look, 0, 4)}<path d="M14 0H44" stroke="{look.light}" stroke-width="1.6"{_dashed(look)}/>'
        f'<text x="52" y="4" fill="#1d2733">{_escape(shown)}</text>'
    )


def _legend(signs: set[str]) -> Iterator[str]:
    """What signs mean."""
    x = 4.0
    for sign, word in EVENT_WORDS.items():
        if sign in signs:
            yield _sign(sign, x, -4)
            yield f'<text x="{x + 8}" fill="#5d6b7a">{_escape(word)}</text>'
            x += 28 + 6 * len(word)


def _sign(sign: str, x: float, y: float) -> str:
    """The sign of an event around a point; shapes are drawn, as not every font has them."""
    if sign == CRASH:
        return _cross(x, y)
    if sign == EVALUATION:
        return _diamond(x, y)
    return f'<text x="{x:.1f}" y="{y + 3}" font-size="9" fill="#1d2733" text-anchor="middle">{_escape(sign)}</text>'


def _cross(x: float, y: float) -> str:
    """Of a crash, or a value that is not a number."""
    return f'<path d="M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6" stroke="#c02a1c" fill="none"/>'


def _diamond(x: float, y: float) -> str:
    """Of an evaluation."""
    return f'<path d="M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4Z" fill="#6a3fc0" stroke="#ffffff" stroke-width="0.6"/>'


def _axes(chart: Drawing, said: str, view: View, extremes: Sequence[float], labels: Sequence[XLabel]) -> Iterator[str]:
    """Title, axes and their labels: the extremes, and the ticks between them."""
    is_log = chart.is_log
    yield f'<text x="{LEFT}" y="20" font-weight="bold" fill="#1d2733">{_escape(chart.metric)}</text>'
    levels = (log_ticks if is_log else ticks)(view.y_low, view.y_high, 5)
    texts, base = (power_labels if is_log else tick_labels)(levels)
    words = " ".join(filter(None, [said, "log" if is_log else "", f"axis: {base} + …" if base else ""]))
    yield f'<text x="{WIDTH - RIGHT}" y="20" text-anchor="end" fill="#5d6b7a">{_escape(words)}</text>'
    ends = {_y(one, view): text for one, text in extreme_labels(extremes, levels, base, is_log)}
    if len(ends) == 2 and max(ends) - min(ends) < LABEL:
        del ends[max(ends)]
    for level, text in zip(levels, texts, strict=True):
        y = f"{_y(level, view):.1f}"
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e2ded2" stroke-width="1"/>'
        if apart([_y(level, view)], list(ends), LABEL):
            yield _label(float(y), text, "#5d6b7a")
    for y_end, text in ends.items():
        yield _label(y_end, text, "#1d2733")
    for label in labels:
        x, text = _x(label.place, view), _escape(label.text)
        anchor = "end" if x > WIDTH - RIGHT - 20 else "middle"
        yield f'<text x="{x:.1f}" y="{HEIGHT - 9}" text-anchor="{anchor}" fill="#5d6b7a">{text}</text>'
    yield f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#5d6b7a" fill="none"/>'


def _label(y: float, text: str, color: str) -> str:
    return f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{color}">{_escape(text)}</text>'


def _values(mark: Mark) -> tuple[float, ...]:
    """The values of a column in an order that a line passes through all of them."""
    return (mark.first,) if mark.low == mark.high else (mark.first, mark.low, mark.high, mark.last)


def _unbroken(marks: Sequence[Mark]) -> list[list[Mark]]:
    """The marks, cut where a NaN lies between two."""
    parts: list[list[Mark]] = []
    for mark in marks:
        if mark.broken or not parts:
            parts.append([])
        parts[-1].append(mark)
    return parts


def _x(x: float, view: View) -> float:
    return LEFT + (x - view.x_low) / (view.x_high - view.x_low) * (WIDTH - LEFT - RIGHT)


def _y(y: float, view: View) -> float:
    return TOP + (view.y_high - y) / (view.y_high - view.y_low) * (HEIGHT - TOP - BOTTOM - STRIP)


def _path(places: Sequence[tuple[float, float]], view: View) -> str:
    return "M" + "L".join(f"{_x(x, view):.1f} {_y(y, view):.1f}" for x, y in places)


def _escape(text: str) -> str:
    """A text as an element has it, whatever a box sent."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return html.escape(shown, quote=True)
