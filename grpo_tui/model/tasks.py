"""Names of the tasks that the box's engine knows, so that a form flags a misspelled one. No Textual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpo_train.run_dir.suggest import nearest
from remote.protocol import RemoteError

RequestFunction = Callable[..., Awaitable[dict[str, Any]]]
"""``await request(op, timeout=…, **params)``; raises RemoteError."""
NAMES_SHOWN = 8


class TaskNames:
    """Task names, requested from the box once. A box that cannot list them leaves the check to the engine."""

    def __init__(self, request: RequestFunction) -> None:
        self._request = request
        self._lock = asyncio.Lock()
        self._names: list[str] | None = None

    async def known(self) -> list[str]:
        """All names, sorted; empty if the box cannot list them."""
        async with self._lock:
            if self._names is None:
                try:
                    self._names = sorted((await self._request("list_tasks")).get("tasks") or {})
                except RemoteError:
                    self._names = []
        return self._names

    async def problem(self, name: str) -> str:
        """What is wrong with a task name and how to fix it; "" if it is known or only the engine can tell."""
        if ":" in name:  # a user's own task, module:function
            return ""
        known = await self.known()
        if not known or name in known:
            return ""
        near = nearest(name.lower(), known)
        some = ", ".join(known[:NAMES_SHOWN]) + (", …" if len(known) > NAMES_SHOWN else "")
        hint = f"did you mean {near}?" if near else f"known tasks: {some} (`grpo-train tasks` lists them all)"
        return f"unknown task '{name}' on this box; {hint}"
