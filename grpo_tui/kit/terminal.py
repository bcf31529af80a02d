"""The terminal of this program: clipboard, bell and notifications.

tmux ignores the OSC 52 of a program unless its ``set-clipboard`` is ``on``; the default, ``external``, lets only tmux
itself set the terminal's clipboard. Within tmux it is therefore asked to (``tmux load-buffer -w``, tmux 3.2), which
works with both.

OSC 9 is for iTerm2, WezTerm, kitty, Ghostty and Windows Terminal; OSC 777 is for urxvt, foot and VTE.

Within tmux a notification is wrapped, and reaches the terminal where tmux has ``allow-passthrough on``; the bell does
anyway.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grpo_tui.box.events import BELL, OSC_9, OSC_777
from grpo_tui.box.formatting import one_line
from remote.protocol.text import clean

if TYPE_CHECKING:
    from textual.app import App

    from grpo_tui.box.needs import Need

SAFE_BYTES = 74_994
"""Of a text; xterm and some others ignore a longer OSC 52."""
TMUX_S = 3.0


async def problems(text: str) -> list[str]:
    """Give the tmux around this program a text that was copied; returns why a terminal may not have it."""
    problem = await load_into_tmux(text) if os.environ.get("TMUX") else ""
    found = [problem] if problem else []
    if (size := len(text.encode(errors="replace"))) > SAFE_BYTES:
        found.append(f"{size / 1000:,.0f} kB: some terminals take only {SAFE_BYTES // 1000} kB")
    return found


async def load_into_tmux(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Let the tmux around this program pass a text to its terminal; returns why it does not, "" if it does."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        tmux = await asyncio.create_subprocess_exec(
            "tmux", "load-buffer", "-w", "-", stdin=pipe, stdout=null, stderr=pipe, env=dict(environment)
        )
    except OSError as error:
        return f"tmux does not forward it: {error.strerror}"
    try:
        _, told = await asyncio.wait_for(tmux.communicate(text.encode(errors="replace")), TMUX_S)
    except asyncio.TimeoutError:
        tmux.kill()
        return "tmux does not answer"
    if tmux.returncode:
        why = clean(told.decode(errors="replace"), "").strip()[:100]
        return f"tmux does not forward it ({why}); tmux 3.2 or newer is required"
    return ""


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
