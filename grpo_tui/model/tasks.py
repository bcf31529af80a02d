"""The names of tasks that a box's engine knows: a form tells a misspelled one before anything starts. No Textual."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from typing import Any

from remote.protocol import RemoteError

Ask = Callable[..., Awaitable[dict[str, Any]]]
SHOWN = 8
"""Names that are told where none is near."""


class TaskNames:
    """Asked of the box once. Where it cannot say, every name is left to the engine."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._names: list[str] | None = None

    async def known(self) -> list[str]:
        """All names, sorted; none where the box cannot say."""
        async with self._lock:
            if self._names is None:
                try:
                    self._names = sorted((await self._ask("list_tasks")).get("tasks") or {})
                except RemoteError:
                    self._names = []
        return self._names

    async def problem(self, name: str) -> str:
        """Why a task cannot be called so, with the way out; "" where it can, or where only the engine can tell."""
        if ":" in name:  # one of the user's own, module:function
            return ""
        known = await self.known()
        if not known or name in known:
            return ""
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        some = ", ".join(known[:SHOWN]) + (", …" if len(known) > SHOWN else "")
        hint = f"did you mean {near[0]}?" if near else f"there are {some} (grpo-train tasks lists them)"
        return f"no task is called '{name}' on this box; {hint}"
