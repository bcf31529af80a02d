"""Text for values: ages, numbers, money, bars. No Textual."""

from __future__ import annotations

import itertools
import math


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


def fraction(value: float) -> str:
    """A share with three decimals: ``.412``."""
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def money(dollars: float | None) -> str:
    """Dollars and cents, or "" if unknown."""
    return "" if dollars is None else f"${dollars:,.2f}"


def compact_number(value: float | None, width: int = 7) -> str:
    """A number in at most ``width`` (≥ 6) characters with about four significant digits."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e9 or size < 1e-3:
        return _scientific(value, width)
    if size >= 1e6:
        text = f"{value / 1e6:.4g}M"
    elif size >= 1e4:
        text = f"{value / 1e3:.4g}k"
    elif size >= 1:
        text = f"{value:.4g}"
    else:
        text = f"{value:.4f}".rstrip("0").rstrip(".")
        if len(text) > width and size >= 10.0 ** (4 - width):  # one decimal fewer keeps two significant digits
            text = f"{value:.{width - 3}f}".rstrip("0").rstrip(".")
    return text if len(text) <= width else _scientific(value, width)


def metric_value(value: float | None) -> str:
    """A metric with fixed decimals, so that a live value does not change its width."""
    if value is None or not math.isfinite(value) or value == 0:
        return compact_number(value)
    size = abs(value)
    if 1e-3 <= size < 10:
        return f"{value:.3f}"
    if 10 <= size < 1000:
        return f"{value:.1f}"
    return compact_number(value)


def power_labels(levels: list[float]) -> list[str]:
    """Labels of a logarithmic axis, whose levels are exponents of ten; "" beyond the largest number."""
    return [compact_number(10.0**level, 6) if abs(level) < 308 else "" for level in levels]


def tick_labels(levels: list[float]) -> list[str]:
    """Labels of an axis: every tick has the number of decimals that the tick distance needs."""
    if len(levels) < 2 or max(map(abs, levels)) >= 1e4:
        return [compact_number(level) for level in levels]
    distance = min(high - low for low, high in itertools.pairwise(levels))
    decimals = next((d for d in range(7) if math.isclose(round(distance * 10**d), distance * 10**d, rel_tol=1e-6)), 7)
    labels = [f"{level:.{decimals}f}" if abs(level) > distance / 1e6 else "0" for level in levels]
    return labels if max(map(len, labels)) <= 7 else [compact_number(level) for level in levels]


def _scientific(value: float, width: int) -> str:
    for digits in (1, 0):
        mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= width:
            break
    return text


def gibibytes(mib: float) -> str:
    """A memory size in GiB, given in MiB."""
    gib = mib / 1024
    return f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"


def byte_size(count: float) -> str:
    """A size of a file: ``230 kB``, ``1.4 GB``, in at most 6 characters."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def bar(share: float, width: int) -> tuple[str, str]:
    """A horizontal bar in eighths of a cell: the filled part and the rest of its track."""
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    full, eighths = divmod(round(share * width * 8), 8)
    filled = "█" * full + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")
    return filled, " " * (width - len(filled))


def one_line(text: str) -> str:
    """Text on one line, whitespace collapsed."""
    return " ".join(text.split())


def padded(text: str, width: int) -> str:
    """Text padded to ``width`` terminal cells; a wide character takes two."""
    from rich.cells import cell_len

    return text + " " * max(0, width - cell_len(text))


def shortened(text: str, width: int) -> str:
    """Text in at most ``width`` cells. Cut in the middle: the end tells names apart."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    if width <= 8:
        return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    end = text[-width:]
    while cell_len(end) > width - 4:
        end = end[1:]
    return set_cell_size(text, 3) + "…" + end
