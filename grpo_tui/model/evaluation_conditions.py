"""Whether two evaluated steps can be compared problem by problem, and if not, why. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_tui.model.formatting import one_line

WORDS = {"problems": "other problems", "grader": "another grader", "label": "another task"}
"""What a difference means whose values are hashes."""
MOST = 3


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """``max_completion_length 24 against 48, another grader``; "" for the same conditions, or if neither is known."""
    if not before and not now:
        return ""
    if not before or not now:
        return f"the {'first' if not before else 'second'} one does not say how it was graded"
    found = []
    for name in dict.fromkeys([*WORDS, *before, *now]):
        if before.get(name) != now.get(name):
            short = name.removeprefix("decoding.")
            values = f"{short} {_text(before.get(name))} against {_text(now.get(name))}"
            found.append(WORDS.get(name, values))
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def _text(value: Any) -> str:
    return "–" if value is None else one_line(str(value))[:24]
