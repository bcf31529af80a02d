"""Texts of a run made safe for a page, and numbers as a report shows them."""

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from typing import Any

from grpo_train.run_dir.display import without_zeros

_KEPT = "\n\t\u200c\u200d"
"""New lines, tabs, and the joiners that some scripts and emoji need."""
_ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")
_ACTIVE = re.compile(r"[\\`*_\[\]<>|~&@$#]|^[+=-](?=[\s+=-]|$)|:(?=//)|(?<=www)\.", re.IGNORECASE)
_ORDERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_BACKTICKS = re.compile(r"`+")


def visible(text: str) -> str:
    """A text without characters that act: controls, marks of writing direction and halves of a pair become codes."""
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(_code(c) if unicodedata.category(c) in _ACTING and c not in _KEPT else c for c in text)


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) > 0xFF else f"\\x{ord(character):02x}"


def escape(text: object) -> str:
    """A text as HTML, for content and for attributes in quotes."""
    return html.escape(visible(str(text)), quote=True)


def script_json(value: Any) -> str:
    """A value as JSON that can stand in a ``<script>`` element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plain_markdown(text: object) -> str:
    """A text as one line of Markdown without any markup."""
    line = _ACTIVE.sub(r"\\\g<0>", " ".join(visible(str(text)).split()))
    return _ORDERED.sub(r"\1\\\2", line)


def code(text: object) -> str:
    """A text as a code span that can stand in a table; an en dash for an empty one."""
    line = " ".join(visible(str(text)).split())
    if not line:
        return "–"
    fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    # GFM takes the backslash of \| away before it reads code, and only of \|
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")


def code_block(text: object) -> str:
    """A text as a fenced block that nothing inside can end."""
    shown = visible(str(text))
    fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def shorten(text: str, limit: int) -> str:
    """The first characters of a text, and how many are left out."""
    return text if len(text) <= limit else f"{text[:limit]}\n… ({len(text) - limit:,} more characters)"


def shorten_start(text: str, limit: int) -> str:
    """The last characters of a text, and how many are left out: a prompt ends with its question."""
    return text if len(text) <= limit else f"({len(text) - limit:,} characters before) …\n{text[-limit:]}"


def number_text(value: float | None) -> str:
    """Four significant digits: ``0.4531``, ``1,840``, ``2e-6``; an en dash for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    size = abs(value)
    if value == int(value) and size < 1e9:
        return f"{int(value):,}"
    if size >= 1e6 or size < 1e-3:
        return without_zeros(f"{value:.2e}")
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"
