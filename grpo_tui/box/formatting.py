"""Text in cells: ages, ticks, bars, tables. No Textual.

What a quantity looks like is one function of :mod:`grpo_train.run_dir.display`, which the engine uses, too.
"""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_train.run_dir.curves import decimals_of
from grpo_train.run_dir.display import byte_size as byte_size
from grpo_train.run_dir.display import compact_number as compact_number
from grpo_train.run_dir.display import fraction as fraction
from grpo_train.run_dir.display import metric_value as metric_value
from grpo_train.run_dir.display import money as money
from grpo_train.run_dir.display import percent as percent
from grpo_train.run_dir.display import without_zeros

_SIZES = {"k": 1e3, "M": 1e6, "G": 1e9}
LONGEST_TICK = 9
"""Characters of the number at a tick of an axis whose range is a small part of its values."""


def short_age(seconds: float | None) -> str:
    """An age in one unit for a narrow column: ``8s``, ``41m``, ``3h``, ``2d``; ``–`` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = int(max(0.0, seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def short_duration(seconds: float | None) -> str:
    """A time span in at most two units for a narrow column: ``42s``, ``56m``, ``3h12m``, ``2d04h``; "" if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    whole = int(max(0.0, seconds))
    if whole < 3600:
        return f"{whole}s" if whole < 60 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things: ``1 step``, ``1,840 steps``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def power_labels(levels: list[float]) -> tuple[list[str], str]:
    """As :func:`tick_labels`, of an axis whose levels are exponents of ten; "" beyond the largest number."""
    values = [10.0**level if abs(level) < 308 else math.inf for level in levels]
    labels = [compact_number(value, 6) if math.isfinite(value) else "" for value in values]
    return tick_labels(values) if len(set(labels)) < len(labels) and max(values) < math.inf else (labels, "")


def tick_labels(levels: list[float]) -> tuple[list[str], str]:
    """Labels of an axis and what is to be added to them, mostly "": every tick has the number of decimals that the tick
    distance needs."""
    if len(levels) < 2:
        return [compact_number(level) for level in levels], ""
    distance = min(high - low for low, high in itertools.pairwise(levels))
    decimals = decimals_of(distance)
    compact = [_compact_tick(level, distance) for level in levels]
    exact = [f"{level:.{decimals}f}" if abs(level) > distance / 1e6 else "0" for level in levels]
    is_large = max(map(abs, levels)) >= 1e4
    for labels, room in ((exact, 0 if is_large else 7), (compact, 7), (exact, LONGEST_TICK)):
        if max(map(len, labels)) <= room and len(set(labels)) == len(labels):
            return labels, ""
    size = 10.0 ** math.ceil(math.log10(levels[-1] - levels[0]))
    base = math.floor(levels[0] / size + 1e-6) * size
    above = [level - base if level - base > distance / 1e3 else 0.0 for level in levels]
    return ["+" + without_zeros(f"{each:.3g}") for each in above], f"{base:.15g}"


def _compact_tick(level: float, distance: float) -> str:
    """A number with the digits of its tick, as short as it can be; too long for an axis where it needs many."""
    for text in (compact_number(level), without_zeros(f"{level:.2e}")):
        if abs(float(text.rstrip("kMG")) * _SIZES.get(text[-1], 1.0) - level) <= distance / 100:
            return text
    return f"{level:f}"


def extreme_labels(
    extremes: Sequence[float], levels: Sequence[float], base: str, is_log: bool
) -> list[tuple[float, str]]:
    """The lowest and highest value on an axis, the highest first, each with its label beside the ticks."""
    distance = min((high - low for low, high in itertools.pairwise(levels)), default=math.inf)
    if math.isinf(distance) and extremes:
        distance = max(extremes) - min(extremes)
    found = []
    for extreme in sorted(set(extremes), reverse=True):
        value = extreme if not is_log else 10.0**extreme if abs(extreme) < 308 else math.inf
        if math.isfinite(value):
            found.append((extreme, extreme_label(value, value * distance if is_log else distance, base)))
    return found


def extreme_label(value: float, distance: float, base: str = "") -> str:
    """The highest or lowest value beside the ticks of an axis, with three digits or as many as place it among them.

    ``distance``: of the ticks; ``base``: what is to be added to their labels.
    """
    if base:
        return "+" + without_zeros(f"{value - float(base):.3g}")
    if value == 0 or not math.isfinite(value):
        return compact_number(value)
    digits = next((n for n in range(3, 16) if abs(float(f"{value:.{n}g}") - value) <= distance / 20), 16)
    if not 1e-3 <= abs(value) < 1e4 and digits <= 4:
        return without_zeros(f"{value:.{digits - 1}e}") if abs(value) < 1e-3 else compact_number(value)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if len(text) <= LONGEST_TICK else without_zeros(f"{value:.{digits}g}")


def gibibytes(mib: float) -> str:
    """A memory size in GiB, given in MiB."""
    gib = mib / 1024
    return f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"


def bar(share: float, width: int) -> tuple[str, str]:
    """A horizontal bar in eighths of a cell: the filled part and the rest of its track."""
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    full, eighths = divmod(round(share * width * 8), 8)
    filled = "█" * full + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")
    return filled, " " * (width - len(filled))


def one_line(text: str) -> str:
    """Text on one line, whitespace collapsed."""
    return " ".join(text.split())


def padded(text: str, width: int, *, is_left: bool = True) -> str:
    """Text padded to ``width`` terminal cells, on its right where it ``is_left``; a wide character takes two."""
    from rich.cells import cell_len

    room = " " * max(0, width - cell_len(text))
    return text + room if is_left else room + text


def shortened(text: str, width: int) -> str:
    """Text in at most ``width`` cells. Cut in the middle: the end tells names apart."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    if width <= 8:
        return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    return set_cell_size(text, 3) + "…" + ending(text, width - 4)


def cut(text: str, width: int) -> str:
    """Text in at most ``width`` cells, whole words and values of it: a number that is cut reads as another one."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    kept = set_cell_size(text, max(0, width - 1))
    if text[len(kept)] not in " →":  # it ends within a word
        kept = kept[: max(kept.rfind(" "), kept.rfind("→")) + 1] or kept
    return kept.rstrip() + "…"


def ending(text: str, width: int) -> str:
    """The end of a text in at most ``width`` cells."""
    from rich.cells import cell_len

    end = text[-width:] if width > 0 else ""
    while cell_len(end) > width:
        end = end[1:]
    return end


GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True)
class Sized:
    """A column and the cells that its content needs."""

    id: str
    width: int
    """0: as many as each text has, without padding, in the last column."""
    rank: int = 0
    """The higher, the sooner it leaves."""
    title: str = ""
    is_left: bool = False
    """Whether its texts are aligned to the left."""
    gap: int = GAP
    """Cells before it, unless it is the first one."""

    def fitted(self, text: str) -> str:
        """A text cut and padded to the width of the column."""
        if not self.width:
            return text
        return padded(shortened(text, self.width), self.width, is_left=self.is_left)


def fit(first: Sized, others: Iterable[Sized], room: int, least: int, wanted: int, firm: int = 0) -> list[Sized]:
    """The first column, and those of the others that fit beside it, in their order.

    The first one gets ``least`` cells beside columns up to the rank ``firm``, and ``wanted`` beside the others; then
    what they leave of ``room``, up to its width.
    """
    others = list(others)
    kept: set[str] = set()
    used = 0
    for column in sorted(others, key=lambda column: column.rank):
        beside = least if column.rank <= firm else wanted
        if beside + used + column.gap + column.width > room:
            break
        used += column.gap + column.width
        kept.add(column.id)
    width = max(1, min(room - used, first.width))
    return [
        Sized(first.id, width, first.rank, first.title, first.is_left),
        *(column for column in others if column.id in kept),
    ]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows, numbers to the right."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    right = [all(is_number(row[index]) for row in rows) for index in range(len(columns))]
    widths = [max(len(line[index]) for line in [columns, *rows]) for index in range(len(columns))]
    for line in [columns, *rows]:
        cells = (
            cell.rjust(size) if is_right else cell.ljust(size)
            for cell, size, is_right in zip(line, widths, right, strict=True)
        )
        text = "  ".join(cells).rstrip()
        print(text[: width - 1] + "…" if width and len(text) > width else text)


def is_number(text: str) -> bool:
    """Whether a cell is a number, or empty: a column of them is aligned to the right."""
    return not text or (text.lstrip("$+-.")[:1].isdigit() and text[4:5] != "-")
