"""Signals to the terminal for new entries of "needs you": its bell, and notifications. No Textual.

OSC 9 is for iTerm2, WezTerm, kitty, Ghostty and Windows Terminal; OSC 777 is for urxvt, foot and VTE.

Within tmux a notification is wrapped, and reaches the terminal where tmux has ``allow-passthrough on``; the bell does
anyway.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grpo_tui.model.alarms import BELL, OSC_9, OSC_777
from grpo_tui.model.formatting import one_line
from remote.protocol.text import clean

if TYPE_CHECKING:
    from textual.app import App

    from grpo_tui.model.needs import Need

MAX_TEXT = 200


def tell(app: App[None], box: str, needs: Sequence[Need], ways: Sequence[str]) -> None:
    """Tell the terminal about new entries, newest first; it gets one bell and one notification for all of them.

    Through the private driver of the app: Textual has no public way to send the terminal a sequence between its own.
    """
    more = f" and {len(needs) - 1} more" if len(needs) > 1 else ""
    if BELL in ways:
        app.bell()
    sequence = notification(ways, f"grpo-tui {box}", needs[0].text + more)
    if sequence and not app.is_headless and app._driver is not None:
        app._driver.write(sequence)


def notification(ways: Sequence[str], title: str, body: str, environment: Mapping[str, str] = os.environ) -> str:
    """The escape sequences of a notification; its texts cannot end them early or steer the terminal."""
    title, body = _text(title), _text(body)
    found = f"\x1b]9;{title}: {body}\x07" if OSC_9 in ways else ""
    found += f"\x1b]777;notify;{title};{body}\x07" if OSC_777 in ways else ""
    if found and environment.get("TMUX"):
        escaped = found.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{escaped}\x1b\\"
    return found


def _text(text: str) -> str:
    """One line without control characters, and without the semicolon, which separates the fields of both."""
    return one_line(clean(text[:MAX_TEXT], "")).replace(";", ",")
