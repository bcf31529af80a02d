"""Text for run states, verdicts and quantities, shared by the app and ``grpo-train``. Standard library only.

One function per quantity: a reward, an accuracy, a learning rate or an amount of money is written the same wherever a
person reads it. A share that is not exactly 0 or 1 is never written as 0 or 1: ``>.999``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from grpo_train.run_dir.curves import SHARES

STATES = {
    "pending": ("○", "pending", "rest"),
    "starting": ("◌", "starting", "live"),
    "running": ("●", "running", "live"),
    "stopping": ("◍", "stopping", "busy"),
    "evaluating": ("◆", "evaluating", "busy"),
    "stalled": ("◐", "stalled", "bad"),
    "requeued": ("↺", "requeued", "rest"),
    "stopped": ("■", "stopped", "rest"),
    "finished": ("✔", "finished", "good"),
    "crashed": ("✖", "crashed", "bad"),
    "killed": ("✖", "killed", "bad"),
    "lost": ("?", "lost", "warn"),
    "unreadable": ("▲", "unreadable", "warn"),
    "old layout": ("·", "old layout", "rest"),
}
"""Glyph, word and tone of each state. A theme colors the tone; glyph and word carry the meaning without it."""


CRASH, CHANGE, RESUME, STOP, LEVEL, AGENT, EVALUATION = "✖", "Δ", "R", "S", "N", "@", "◆"
EVENT_WORDS = {
    CRASH: "crash or kill", CHANGE: "changed config", RESUME: "resume", STOP: "stop", LEVEL: "next level",
    AGENT: "asked for by an agent", EVALUATION: "held-out evaluation",
}  # fmt: skip
"""The signs on the axis of a chart, the one that matters most first, and what they mean. A to L are runs."""


def state_label(state: str, host: str = "", alarm: str = "") -> tuple[str, str, str]:
    """Glyph, word and tone of a run state; ``host`` is set when the run is live on another host.

    ``alarm``: the sign of a verdict that is not good, which a good end has in place of its own.
    """
    glyph, word, tone = STATES.get(state, ("?", state or "unknown", "warn"))
    if alarm and tone == "good":
        glyph, tone = alarm, "rest"
    return glyph, f"{word} on {host}" if host else word, tone


def duration(seconds: float) -> str:
    """A time span in at most two units: ``8 s``, ``41 m``, ``3 h 05 m``, ``2 d 4 h``."""
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


def short_hours(hours: float) -> str:
    """Hours without a unit: ``12.3``, ``0.0061``."""
    return f"{hours:{'.1f' if hours >= 1 else '.2g'}}"


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
    if size >= 1e12 or size < 1e-3:
        return _scientific(value, width)
    if size >= 1e9:
        text = f"{value / 1e9:.4g}G"
    elif size >= 1e6:
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
    """A reward or another metric in at most 7 characters, with fixed decimals: a live value does not change its width.

    ``0`` is exactly 0.
    """
    if value is None or not math.isfinite(value) or value == 0:
        return compact_number(value)
    size = abs(value)
    if 1e-3 <= size < 10:
        return f"{value:.3f}" if size >= 0.00995 else f"{value:.4f}"  # two digits at least
    if 10 <= size < 1000:
        return f"{value:.1f}"
    return compact_number(value)


def metric_text(name: str, value: float | None) -> str:
    """A metric as its quantity is written: an accuracy or another share as such, a learning rate as in a config."""
    if value is not None and name.rpartition("/")[2] == "learning_rate" and math.isfinite(value):
        return setting(value)
    if value is not None and SHARES.fullmatch(name) and 0 <= value <= 1:
        return fraction(value)
    return metric_value(value)


def fraction(value: float) -> str:
    """An accuracy or another share, with three decimals: ``.412``; ``1.000`` is all of them, ``>.999`` is not."""
    if 0 < value < 1 and (text := f"{value:.3f}") in ("0.000", "1.000"):
        return "<.001" if text == "0.000" else ">.999"
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def signed(value: float, text: Callable[[float], str] = metric_value) -> str:
    """A difference: ``+0.040``, ``-0.040``; of accuracies, with :func:`fraction`, ``+.040``."""
    return f"{'-' if value < 0 else '+'}{text(abs(value))}"


def percent(share: float, space: str = " ", decimals: int = 0) -> str:
    """A share of a whole: ``72 %``; in a table, without ``space``, ``72%``. ``>99 %`` is not all."""
    text, step = f"{100 * share:.{decimals}f}", 10.0**-decimals
    if 0 < share < 1 and float(text) in (0, 100):
        text = f"<{step:.{decimals}f}" if float(text) == 0 else f">{100 - step:.{decimals}f}"
    return f"{text}{space}%"


_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


def setting(value: object) -> str:
    """A value of a config, such as a learning rate: ``3e-5`` for 0.00003 and ``3.0e-05``, ``0.04``, ``yes``, ``–``.

    A number is rounded, the text of one is not.
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        short = setting(float(value))
        return short if float(short) == float(value) else value
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if value and not 0.01 <= abs(value) < 1e6:
        return without_zeros(f"{value:.2e}")
    return f"{value:.6g}" if abs(value) >= 1000 else f"{value:.4g}"


def money(dollars: float | None) -> str:
    """Dollars and cents, or "" if unknown. Less than ten cents has two digits: ``$0.012``."""
    if dollars is None:
        return ""
    return f"${without_zeros(f'{dollars:.2g}')}" if 0 < abs(dollars) < 0.1 else f"${dollars:,.2f}"


def byte_size(count: float) -> str:
    """A size of a file: ``230 kB``, ``1.4 GB``, in at most 6 characters."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 9.95 and unit != "B" else f"{count:.0f} {unit}"


def without_zeros(text: str) -> str:
    """A number without zeros that say nothing: ``2.00e-08`` as ``2e-8``."""
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return mantissa
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def _scientific(value: float, width: int) -> str:
    for digits in (1, 0):
        text = without_zeros(f"{value:.{digits}e}")
        if len(text) <= width:
            break
    return text
