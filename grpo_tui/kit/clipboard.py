"""Copying to the clipboard of the terminal, which may be far from this program: OSC 52, and through tmux.

tmux ignores the OSC 52 of a program unless its ``set-clipboard`` is ``on``; the default, ``external``, lets only tmux
itself set the terminal's clipboard. Within tmux it is therefore asked to (``tmux load-buffer -w``, tmux 3.2), which
works with both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from remote.protocol.text import clean

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
