"""How the face says things: durations, ages, numbers, money, and the glyph and word of each state. No Textual."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

LIVE = frozenset({"starting", "running", "stopping", "evaluating"})

STATES = {
    "starting": ("◌", "starting", "live"),
    "running": ("●", "running", "live"),
    "stopping": ("◍", "stopping", "busy"),
    "evaluating": ("◆", "evaluating", "busy"),
    "stopped": ("■", "stopped", "rest"),
    "finished": ("✔", "finished", "good"),
    "crashed": ("✖", "crashed", "bad"),
    "killed": ("✖", "killed", "bad"),
    "lost": ("?", "lost", "warn"),
    "old layout": ("·", "old layout", "rest"),
}
"""Of a run's state: glyph, word, and the tone a theme colours. Never colour alone."""


def state_words(state: str, host: str = "") -> tuple[str, str, str]:
    """Glyph, word and tone of a run's state."""
    glyph, word, tone = STATES.get(state, ("?", state or "unknown", "warn"))
    return glyph, f"{word} on {host}" if host else word, tone


def duration(seconds: float) -> str:
    """A span in at most two units: ``8 s``, ``41 m``, ``3 h 05 m``, ``2 d 4 h``."""
    if not math.isfinite(seconds):
        return "–"
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        return f"{minutes} m {whole % 60:02d} s"
    if hours < 1:
        return f"{minutes} m"
    if days < 1:
        return f"{hours} h {minutes % 60:02d} m"
    return f"{days} d {hours % 24} h"


def short_age(seconds: float | None) -> str:
    """An age in one unit for a narrow column: ``8s``, ``41m``, ``3h``, ``2d``; ``–`` where unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = int(max(0.0, seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def money(amount: float | None) -> str:
    """Dollars and cents, or "" where unknown."""
    return "" if amount is None else f"${amount:,.2f}"


def figure(value: float | None, width: int = 7) -> str:
    """A number in at most ``width`` (≥ 6) characters that keeps about four significant digits."""
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
        if len(text) > width and size >= 10.0 ** (4 - width):  # a decimal less still leaves two digits that tell
            text = f"{value:.{width - 3}f}".rstrip("0").rstrip(".")
    return text if len(text) <= width else _scientific(value, width)


def scale(levels: list[float]) -> list[str]:
    """What stands at an axis's ticks: as many decimals as their distance needs, the same at each."""
    if len(levels) < 2 or max(map(abs, levels)) >= 1e4:
        return [figure(level) for level in levels]
    apart = min(high - low for low, high in itertools.pairwise(levels))
    decimals = next((d for d in range(7) if math.isclose(round(apart * 10**d), apart * 10**d, rel_tol=1e-6)), 7)
    texts = [f"{level:.{decimals}f}" if abs(level) > apart / 1e6 else "0" for level in levels]
    return texts if max(map(len, texts)) <= 7 else [figure(level) for level in levels]


def _scientific(value: float, width: int) -> str:
    for digits in (1, 0):
        mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= width:
            break
    return text


def metric(value: float | None) -> str:
    """A metric's value with fixed decimals, so that a live number does not jump about."""
    if value is None or not math.isfinite(value) or value == 0:
        return figure(value)
    size = abs(value)
    if size < 1e-3:
        return figure(value)
    if size < 10:
        return f"{value:.3f}"
    if size < 1000:
        return f"{value:.1f}"
    return figure(value)


def gibibytes(mib: float) -> str:
    """A memory size given in MiB, in GiB."""
    gib = mib / 1024
    return f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"


def bar(share: float, width: int) -> tuple[str, str]:
    """A horizontal bar to eighths of a cell: its filled part and the rest of its track."""
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    eighths = round(share * width * 8)
    full, part = divmod(eighths, 8)
    filled = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return filled, " " * (width - len(filled))


_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
"""What a program writes to colour or steer a terminal."""


def printable(text: str, keep: str = "") -> str:
    """A text that cannot steer the terminal: escapes left out, other control characters made visible."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return "".join(character if character.isprintable() or character in keep else "·" for character in text)


def one_line(text: str) -> str:
    """A text on one line, escapes left out, control characters made visible."""
    return printable(" ".join(text.split()))


def fitted(text: str, width: int) -> str:
    """A text padded to so many cells of a terminal: a wide character takes two."""
    from rich.cells import cell_len

    return text + " " * max(0, width - cell_len(text))


def shortened(text: str, width: int) -> str:
    """A text in at most ``width`` cells that keeps its beginning and, longer, its end: that tells names apart."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    if width <= 8:
        return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    end = text
    while cell_len(end) > width - 4:
        end = end[1:]
    return set_cell_size(text, 3) + "…" + end


@dataclass(frozen=True)
class Freshness:
    """How old what a panel shows is, as words and as a tone."""

    text: str = ""
    tone: str = "rest"
    """``rest`` (nothing is expected), ``live`` (fresh), ``warn`` (stale) or ``bad`` (the link is gone)."""


def command_line(argv: list[str]) -> str:
    """An argument vector as one would type it."""
    import shlex

    return shlex.join(argv)
