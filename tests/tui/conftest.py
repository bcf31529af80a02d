"""The app on a scripted box: ``async with start(…) as session``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input, Static

from grpo_tui.app import GrpoApp
from grpo_tui.fleet.glance import Glance
from grpo_tui.model.run_logs import RunLogs
from grpo_tui.options import Options
from remote.boxes import Box
from tests.support.patience import PATIENCE
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import NOW

BOX = Box("h200-a", host="192.0.2.10", price_per_hour=2.49)


class Session:
    """A running app with its fake clients, and ways to wait for what it shows."""

    def __init__(
        self,
        app: GrpoApp,
        clients: list[FakeClient],
        pilot: Pilot[None],
        foreground: list[list[str]],
        raised: list[str],
    ) -> None:
        self.app, self.clients, self.pilot, self.foreground, self.raised = app, clients, pilot, foreground, raised

    @property
    def client(self) -> FakeClient:
        return self.clients[-1]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def focus(self, widget: str | Widget) -> Widget:
        """Give a widget the keys, once the screen is laid out: what is not seen takes none."""
        found = self.app.screen.query_one(widget) if isinstance(widget, str) else widget
        await self.until(lambda: found.focusable, f"room for {found}")
        found.focus()
        await self.until(lambda: found.has_focus, f"the focus on {found}")
        return found

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait for a condition. Fails with the screen."""
        deadline = monotonic() + PATIENCE * 10
        while monotonic() < deadline:
            if condition():
                return
            await self.pilot.pause(0.025)
        raise AssertionError(f"timed out waiting for {what or 'a condition'}\n{self.text()}")

    async def until_text(self, *texts: str) -> str:
        """Wait until all texts are on the screen; returns the screen."""
        await self.until(lambda: all(text in self.text() for text in texts), f"{texts}")
        return self.text()

    def text(self) -> str:
        """The screen as text."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    def notifications(self) -> str:
        """All notifications so far, expired ones too."""
        return "\n".join(self.raised)


Start = Callable[..., AbstractAsyncContextManager[Session]]


async def opened(session: Session, key: str, screen: type) -> None:
    """Press a key and wait for the screen it opens."""
    await session.press(key)
    await session.until(lambda: isinstance(session.app.screen, screen), screen.__name__)


async def select(session: Session, run: str) -> None:
    """Move the cursor down the list to a run."""
    for _ in session.client.runs:
        selected = session.app.store.selected
        if selected == run:
            return
        await session.press("down")
        await session.until(lambda old=selected: session.app.store.selected != old, f"the run after {selected}")
    assert session.app.store.selected == run


def fill(session: Session, field: str, value: str) -> None:
    """Fill an input field of the open form."""
    session.app.screen.query_one(f"#{field}", Input).value = value


def problem(session: Session) -> str:
    """The problem that the open form shows."""
    return str(session.app.screen.query_one("#problem", Static).content)


def logs_of(session: Session) -> RunLogs:
    """Logs of the selected run."""
    assert session.app.store.logs is not None
    return session.app.store.logs


GLANCES = {
    "h200-b": Glance("h200-b", "192.0.2.11", 2.49, live=("maths", "code"), gpus=8, gpus_free=6, age_s=0.0),
    "local": Glance("local", "this machine", None, problem="no tmux on this machine"),
}
"""What other boxes say about themselves."""


class ScriptedFleet:
    """Boxes that say what GLANCES has, without a connection."""

    def __init__(self, boxes: Iterable[Box], current: str) -> None:
        self.names = [box.name for box in boxes]

    def start(self) -> None:
        pass

    def glance(self, name: str) -> Glance | None:
        return GLANCES.get(name)

    def close(self) -> None:
        pass


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts the app on a scripted box, with no configs on this machine and a clock that does not move."""

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("TMUX", raising=False)  # a copy would go through the tmux around the tests
    monkeypatch.setattr("grpo_tui.actions.forms._local_configs", lambda explicit: (None, []))
    monkeypatch.setattr("grpo_tui.screens.boxes.Fleet", ScriptedFleet)
    monkeypatch.setattr(GrpoApp, "suspend", lambda self: nullcontext())  # a headless app has no terminal to hand over

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
        raised: list[str] = []
        notify = app.notify

        def recorded(message: str, *, title: str = "", **options: Any) -> None:
            raised.append(f"{title} {message}")
            notify(message, title=title, **options)

        monkeypatch.setattr(app, "notify", recorded)
        async with app.run_test(size=size, notifications=True) as pilot:
            session = Session(app, clients, pilot, calls, raised)
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


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that files are saved into."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    monkeypatch.setattr("grpo_tui.downloads.folder", lambda: folder)
    return folder
