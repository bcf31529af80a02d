from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from grpo_tui.app import GrpoApp, Options
from remote.boxes import Box
from tests.tui.fake import NOW, FakeClient, learning_box

BOX = Box("h200-a", host="192.0.2.10", price_per_hour=2.49)


class Session:
    """A running app with its fake client, and ways to wait for what should come."""

    def __init__(
        self, app: GrpoApp, clients: list[FakeClient], pilot: Pilot[None], foreground: list[list[str]]
    ) -> None:
        self.app, self.clients, self.pilot, self.foreground = app, clients, pilot, foreground

    @property
    def client(self) -> FakeClient:
        return self.clients[-1]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait for a condition; fails with the screen."""
        for _ in range(400):
            if condition():
                return
            await self.pilot.pause(0.025)
        raise AssertionError(f"{what or 'it'} did not come\n{self.text()}")

    async def until_text(self, *words: str) -> str:
        """Wait until all the words stand on the screen; returns the screen."""
        await self.until(lambda: all(word in self.text() for word in words), f"{words}")
        return self.text()

    def text(self) -> str:
        """The screen as text."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    def told(self) -> str:
        """All notifications so far."""
        return "\n".join(f"{note.title} {note.message}" for note in self.app._notifications)


Start = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """``async with start(…) as session``: the app on a scripted box, after its first events."""

    monkeypatch.setattr("grpo_tui.operations.local_configs", lambda: [])

    @asynccontextmanager
    async def run(
        script: Callable[[FakeClient], Any] = learning_box,
        *,
        size: tuple[int, int] = (120, 40),
        box: Box = BOX,
        wait: str = "",
        foreground: Callable[[list[str]], int] | None = None,
        model_command: list[str] | None = None,
        **options: Any,
    ) -> AsyncIterator[Session]:
        clients: list[FakeClient] = []
        calls: list[list[str]] = []

        def make(box: Box, on_event: Any) -> FakeClient:
            client = FakeClient(box, on_event)
            script(client)
            clients.append(client)
            return client

        def in_foreground(argv: list[str]) -> int:
            calls.append(argv)
            return foreground(argv) if foreground else 0

        app = GrpoApp(
            Options(box, **options), make_client=make, run_foreground=in_foreground, now=lambda: NOW,
            make_model_command=model_command,
        )  # fmt: skip
        app.animation_level = "none"
        async with app.run_test(size=size, notifications=True) as pilot:
            session = Session(app, clients, pilot, calls)
            await session.until(lambda: clients, "the client")
            if wait:
                await session.until_text(wait)
            yield session

    return run


@pytest.fixture
def boxes_file(tmp_path: Path) -> Path:
    file = tmp_path / "boxes.yaml"
    file.write_text("boxes:\n  - name: h200-a\n    host: 192.0.2.10\n  - name: h200-b\n    host: 192.0.2.11\n")
    return file
