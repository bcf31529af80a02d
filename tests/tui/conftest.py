"""The app on a scripted box: ``async with start(…) as session``."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual._compositor import Compositor
from textual.css.model import RuleSet
from textual.css.parse import parse
from textual.css.tokenize import tokenize_values
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, REPLACED_KEYS
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input, Static

from grpo_tui.app import GrpoApp
from grpo_tui.box.asking import monotonic
from grpo_tui.box.fleet import Glance
from grpo_tui.box.log import RunLogs
from grpo_tui.files import Options
from remote.boxes import Box
from tests.support.event_loop import SkippingLoop, running_loop
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import NOW

BOX = Box("h200-a", host="192.0.2.10", price_per_hour=2.49)


FRAMES_S = 0.05
"""What is done after the next refresh, and is seen in the one after it, is on the screen by then."""


def key_event(key: str) -> events.Key:
    """The event of a key, by its character or its name."""
    if len(key) == 1:
        name = key if key.isalnum() else unicodedata.name(key).lower().replace("-", "_").replace(" ", "_")
        return events.Key(KEY_NAME_REPLACEMENTS.get(name, name), key)
    name = REPLACED_KEYS.get(key, key)
    try:
        return events.Key(key, unicodedata.lookup(KEY_TO_UNICODE_NAME.get(name, name)))
    except KeyError:
        return events.Key(key, None)


PAINT = Compositor.render_update


def paint(app: GrpoApp) -> Compositor:
    """Lay out and paint what has changed; a dialog that is painted otherwise has no screen behind it."""
    screen = app.screen
    screen._on_timer_update()
    PAINT(screen._compositor, screen_stack=app._background_screens)
    return screen._compositor


def text_of(app: GrpoApp) -> str:
    """The screen as text, once it is painted."""
    return "\n".join(strip.text.rstrip() for strip in paint(app).render_strips())


class Session:
    """A running app with its fake clients, and ways to wait for what it shows."""

    def __init__(
        self,
        app: GrpoApp,
        clients: list[FakeClient],
        pilot: Pilot[None],
        foreground: list[list[str]],
    ) -> None:
        self.app, self.clients, self.pilot, self.foreground = app, clients, pilot, foreground

    @property
    def client(self) -> FakeClient:
        return self.clients[-1]

    async def press(self, *keys: str) -> None:
        """Press keys, each once the screen has the effect of the one before.

        Letters that are typed into a field are seen together.
        """
        for key, following in zip_longest(keys, keys[1:], fillvalue=""):
            self.app.post_message(key_event(key))
            await running_loop().rest()
            if not (len(key) == len(following) == 1 and isinstance(self.app.focused, Input)):
                await self.pass_time(FRAMES_S)

    async def pass_time(self, seconds: float) -> None:
        """Let the app's time pass, and what it does meanwhile be done."""
        await running_loop().pass_time(seconds)

    async def focus(self, widget: str | Widget) -> Widget:
        """Give a widget the keys, once the screen is laid out: what is not seen takes none."""
        found = self.app.screen.query_one(widget) if isinstance(widget, str) else widget
        await self.until(lambda: found.focusable, f"room for {found}")
        found.focus()
        await self.until(lambda: found.has_focus, f"the focus on {found}")
        return found

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait for a condition. Fails with the screen. What painting leaves (where a sign is) needs ``paints=True``."""
        if not await running_loop().until(condition):
            raise AssertionError(f"timed out waiting for {what or 'a condition'}\n{self.text()}")

    async def until_text(self, *texts: str) -> str:
        """Wait until all texts are on the screen; returns the screen."""
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            shown = self.text()
            return all(text in shown for text in texts)

        await self.until(is_shown, f"{texts}")
        return shown

    def text(self) -> str:
        """The screen as text."""
        return text_of(self.app)

    @property
    def said(self) -> list[str]:
        """What the app said so far, each as often as it was said."""
        return [f"{one.title} {one.text}" for one in self.app.messages.entries for _ in range(one.times)]

    def messages(self) -> str:
        """The same as one text."""
        return "\n".join(self.said)


Start = Callable[..., AbstractAsyncContextManager[Session]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], SkippingLoop]]:
    """Tests of the app do not wait for its timers."""
    return {"skipping": SkippingLoop}


@pytest.fixture(scope="session", autouse=True)
def textual_for_tests() -> Iterator[None]:
    """Textual's timers read the clock of their event loop, and a style sheet is parsed once, not by each app."""
    tokens = cache(lambda values: tokenize_values(dict(values)))
    known: dict[tuple[Any, ...], list[RuleSet]] = {}

    def parse_once(scope: str, css: str, read_from: Any, *, variable_tokens: Any, **kind: Any) -> list[RuleSet]:
        key = (scope, css, read_from, id(variable_tokens), *sorted(kind.items()))
        if key not in known:
            known[key] = list(parse(scope, css, read_from, variable_tokens=variable_tokens, **kind))
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual._time.get_time", monotonic)
        patch.setattr("textual.css.stylesheet.tokenize_values", lambda values: tokens(tuple(values.items())))
        patch.setattr("textual.css.stylesheet.parse", parse_once)
        yield


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


async def press_button(session: Session) -> None:
    """Press the button of the open form once it is enabled and has the focus."""
    button = session.app.screen.query_one("#go")
    await session.until(lambda: not button.disabled and not button.has_class("-active"))  # the effect of the last press
    await session.focus(button)
    await session.press("enter")


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
    """Starts the app on a scripted box, with no configs on this machine and a clock that does not move.

    A frame that no test looks at is laid out and not painted, which would be a third of the time; ``text`` and the end
    of a test paint the whole screen. With ``paints``, every frame is painted.
    """

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.delenv("TMUX", raising=False)  # a copy would go through the tmux around the tests
    monkeypatch.setattr("grpo_tui.commands.start._local_configs", lambda explicit: (None, []))
    monkeypatch.setattr("grpo_tui.dialogs.boxes.Fleet", ScriptedFleet)
    monkeypatch.setattr(GrpoApp, "suspend", lambda self: nullcontext())  # a headless app has no terminal to hand over

    @asynccontextmanager
    async def run(
        script: Callable[[FakeClient], Any] = learning_box,
        *,
        size: tuple[int, int] = (120, 40),
        box: Box = BOX,
        wait: str = "",
        paints: bool = False,
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
        if not paints:
            monkeypatch.setattr(Compositor, "render_update", lambda compositor, **options: None)
        async with app.run_test(size=size) as pilot:
            session = Session(app, clients, pilot, calls)
            await session.until(lambda: clients, "the client")
            if wait:
                await session.until_text(wait)
                await session.pass_time(FRAMES_S)  # what does not fit is laid out then
            yield session
            if app.return_code is None:
                paint(app)

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
    monkeypatch.setattr("grpo_tui.files.folder", lambda: folder)
    return folder
