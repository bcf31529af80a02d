"""Pictures of the views: three sizes, both themes; without colors, while loading, empty, after a failure. Forms.

After an intended change: ``pytest tests/tui/screens/test_snapshots.py --snapshot-update``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from grpo_tui.app import GrpoApp
from grpo_tui.files import Options
from grpo_tui.kit.theme import THEMES
from grpo_tui.views.ask.screen import AskScreen
from remote.boxes import Box
from remote.protocol import RemoteError
from tests.support.event_loop import SkippingLoop, running_loop
from tests.support.histories import fill_history
from tests.tui.conftest import BOX, text_of
from tests.tui.fake import GPUS, FakeClient, ailing_box, learning_box, token_box
from tests.tui.fake_ask import ANSWERS_FILE, completion, piece, question, question_id, ready
from tests.tui.fake_rows import LOGS, NOW, RUN, ailing_rows, at, jsonl
from tests.tui.screens.test_backups import TRANSFER, backed_up
from tests.tui.views.box.test_screen import gpu_box
from tests.tui.views.compare.test_screen import CRASHED, FINISHED
from tests.tui.views.compare.test_screen import box as three_runs

Compare = Callable[..., bool]
Script = Callable[[FakeClient], Any]
SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.fixture(autouse=True)
def fixed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No configs on this machine, no answer about termination, times in UTC, the default theme with its colors."""
    monkeypatch.setattr("grpo_tui.commands.start._local_configs", lambda explicit: (None, []))
    monkeypatch.setattr("grpo_tui.box.backups.FIRST_S", 1e9)
    for name in ("TEXTUAL_THEME", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def one_gpu_box(client: FakeClient) -> None:
    """A box with warnings in the log of its live run, and a GPU."""
    ailing_box(client).gpus = GPUS
    client.runs[0]["device"] = "NVIDIA H200"


def full_box(client: FakeClient) -> None:
    """A box with everything that a view can show."""
    gpu_box(client)
    gpus, sessions, doctor = client.gpus, client.sessions, client.answers["doctor"]
    three_runs(client)
    client.gpus, client.sessions, client.answers["doctor"] = gpus, sessions, doctor
    rows = [{**row, "num_tokens": 1000 * row["step"]} for row in ailing_rows(87)]
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)
    client.runs[1]["held_out"] = {"accuracy": 0.712, "dataset": "addition", "step": 100}


class Client(FakeClient):
    """Answers for curves once the logs are read: which rows come after an answer would depend on the machine."""

    silent: tuple[str, ...] = ()
    """Operations that are never answered."""

    def __init__(self, box: Box, on_event: Any) -> None:
        super().__init__(box, on_event)
        self._held: list[tuple[Future[dict[str, Any]], dict[str, Any]]] | None = []

    def request(self, op: str, reply_s: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        if op not in self.silent and (op != "series" or self._held is None):
            return super().request(op, reply_s, **params)
        future: Future[dict[str, Any]] = Future()
        if op not in self.silent and self._held is not None:
            self._held.append((future, params))
        return future

    @property
    def is_read(self) -> bool:
        """Whether the app has all of the logs that it follows."""
        sizes = {number: len(self.files.get(path, b"")) for number, path in self.follows.items()}
        return bool(sizes) and all(self.consumed_bytes.get(number, 0) >= size for number, size in sizes.items())

    def release(self) -> None:
        """Answer what was held back."""
        held, self._held = self._held or [], None
        for future, params in held:
            answer = self.request("series", **params)
            if answer.exception() is not None:
                future.set_exception(answer.exception())
            else:
                future.set_result(answer.result())


def app(script: Script, theme: str = "grpo-dark", silent: tuple[str, ...] = (), history: Path | None = None) -> GrpoApp:
    """The app on a box."""

    def make_client(box: Box, on_event: Callable[..., object]) -> FakeClient:
        client = Client(box, on_event)
        client.silent = silent
        script(client)
        return client

    made = GrpoApp(Options(BOX, history=history), make_client=make_client, now=lambda: NOW)
    made.animation_level = "none"
    made.theme = theme

    def run(**options: Any) -> Any:
        with closing(SkippingLoop()) as loop:
            picture = GrpoApp.run(made, loop=loop, **options)
            loop.run_until_complete(loop.shutdown_default_executor())
            return picture

    made.run = run  # type: ignore[method-assign]  # which snap_compare calls
    return made


STEADY = 2
"""Ticks after which a screen counts as complete: a panel's new width is asked for at the next tick."""


async def wait(pilot: Pilot[None], ready: Callable[[], object], steady: int = STEADY) -> None:
    """Wait until a screen is complete over ``steady`` ticks."""
    loop = running_loop()
    same = 0
    while same < steady:
        assert await loop.until(ready)
        pilot.app.tick()  # type: ignore[attr-defined]
        await loop.pass_time(0.1)
        same = same + 1 if ready() else 0


async def read(pilot: Pilot[None]) -> GrpoApp:
    """Wait for the runs and the logs, and let the box answer for the curves."""
    shown = pilot.app
    assert isinstance(shown, GrpoApp)

    def is_read() -> bool:
        client = shown.connection.client
        return bool(shown.store.run and shown.store.checkpoints() and isinstance(client, Client) and client.is_read)

    await wait(pilot, is_read, steady=1)
    assert isinstance(shown.connection.client, Client)
    shown.connection.client.release()
    return shown


def shows_home(pilot: Pilot[None]) -> bool:
    store = pilot.app.store  # type: ignore[attr-defined]
    logs = store.logs
    if not (logs and logs.last_step == 87 and len(logs.completions) and store.checkpoints()):
        return False
    if pilot.app.history.machine is None:  # type: ignore[attr-defined]
        return False
    curves = store.curves["home"]
    return bool(curves.curves and curves.is_answered)


def test_home(snap_compare: Compare) -> None:
    async def ready(pilot: Pilot[None]) -> None:
        await read(pilot)
        await wait(pilot, lambda: shows_home(pilot))

    assert snap_compare(app(one_gpu_box), terminal_size=(120, 40), run_before=ready)


KEYS = {"launch": ["n"], "evaluate": ["e"], "resume": ["down", "down", "down", "r"]}


@pytest.mark.parametrize("form", KEYS)
def test_form(snap_compare: Compare, form: str) -> None:
    async def ready(pilot: Pilot[None]) -> None:
        await read(pilot)
        await wait(pilot, lambda: shows_home(pilot), steady=1)
        for key in KEYS[form]:
            await pilot.press(key)
            await running_loop().pass_time(0.3)
        await wait(pilot, lambda: getattr(pilot.app.screen, "ready", None))

    assert snap_compare(app(one_gpu_box), terminal_size=(120, 40), run_before=ready)


def backed_up_box(client: FakeClient) -> None:
    """A box with backups, one at work and one that failed."""
    backed_up(client)
    client.runs[0]["transfer"] = {**TRANSFER, "phase": "proving", "rate": 2.1e8}
    error = "s3.example.com cannot be reached: no route to host"
    client.runs[2]["transfer"] = {**TRANSFER, "phase": "failed", "error": error}


DIALOGS: dict[str, tuple[tuple[str, str], ...]] = {
    "back_up": (("down", ""), ("P", "all checkpoints")),
    "restore": (("R", "on this box"),),
    "restore_form": (("R", "on this box"), ("enter", "every byte is hashed")),
    "archive": (("down", ""), ("A", "read back first")),
    "cleanup": (("down", ""), ("C", "Remove 9 checkpoints")),
    "failed_transfer": (("down", ""), ("down", "continue:")),
}
"""The keys to each dialog of backups, and what is shown after each."""


@pytest.mark.parametrize("dialog", DIALOGS)
def test_backups(snap_compare: Compare, dialog: str) -> None:
    async def ready(pilot: Pilot[None]) -> None:
        shown = await read(pilot)
        await wait(pilot, lambda: shows_home(pilot), steady=1)
        for key, text in DIALOGS[dialog]:
            await pilot.press(key)
            await wait(pilot, lambda: text in text_of(shown) and getattr(shown.screen, "ready", True))  # noqa: B023

    assert snap_compare(app(backed_up_box), terminal_size=(120, 40), run_before=ready)


def test_ask(snap_compare: Compare) -> None:
    made = app(one_gpu_box)
    first, second = question_id(1), question_id(2)
    right, wrong = ({"correct": is_right, "rewards": {"accuracy": 2.0 * is_right}} for is_right in (True, False))
    rows = [
        *ready("step_30", "step_0"), question(first, "What is 58 + 67?", 12, "125"),
        completion(first, "step_30", 0, "<think>8 + 7 = 15, carry 1</think>\n<answer>125</answer>", **right),
        completion(first, "step_0", 0, "58 + 67 is\x1b[2J 日本語", **wrong, reason="no_answer", truncated=True),
        {"event": "done", "id": first}, question(second, "Why?"), piece(second, "step_30", 0, "Because it is"),
    ]  # fmt: skip

    async def before(pilot: Pilot[None]) -> None:
        await read(pilot)
        await wait(pilot, lambda: shows_home(pilot), steady=1)
        await pilot.press("Q")
        await wait(pilot, lambda: isinstance(made.screen, AskScreen), steady=1)
        for field in made.screen.query(Input):
            field.cursor_blink = False
        made.screen.query_one("#checkpoints", Input).value = "30,0"
        await pilot.press(*"#12", "enter")
        client = made.connection.client
        assert isinstance(client, FakeClient)
        await wait(pilot, lambda: client.asked_for("ask"), steady=1)
        client.append(ANSWERS_FILE, jsonl(rows))
        await wait(pilot, lambda: "Because it is" in text_of(made))

    assert snap_compare(made, terminal_size=(120, 40), run_before=before)


def is_whole(curves: Any) -> bool:
    return bool(curves and curves.curves and curves.is_answered and not curves.is_coarse)


def home_is_ready(app: GrpoApp) -> object:
    trends = app.home.runs.trends
    known = all(trends.of(run) for run in (RUN, FINISHED, CRASHED))
    return known and is_whole(app.store.curves.get("home")) and app.store.checkpoints() and len(app.home.needs.entries)


def charts_are_ready(app: GrpoApp) -> object:
    screen = app.views.charts
    return is_whole(screen.curves) and app.store.metrics.rows and screen.drawn


def rollouts_are_ready(app: GrpoApp) -> object:
    reader = app.views.rollouts.reader
    return reader and reader.shown and reader.rollouts.text(reader.shown[0]) and reader.rollouts.steps.is_known


def logs_are_ready(app: GrpoApp) -> object:
    window = app.views.logs.window
    return window and window.lines and window.leveled >= 1


def box_is_ready(app: GrpoApp) -> object:
    view = app.views.box.view
    return view.facts and len(view.lines) >= 3 and len(view.history.filled.get(0, ())) > 80


def comparison_is_ready(app: GrpoApp) -> object:
    comparison, screen = app.views.compare.comparison, app.views.compare
    whole = comparison.runs and all(run.curves.track and is_whole(run.curves) for run in comparison.runs)
    return whole and not comparison.facts_due() and screen.logged[1].rows and screen.paired.pairs


VIEWS: dict[str, tuple[tuple[str, ...], Callable[[GrpoApp], object]]] = {
    "home": ((), home_is_ready),
    "charts": (("2",), charts_are_ready),
    "rollouts": (("3",), rollouts_are_ready),
    "logs": (("4",), logs_are_ready),
    "box": (("5",), box_is_ready),
    "compare": (("space", "down", "space", "down", "space", "6"), comparison_is_ready),
}
"""The keys to each view, and when all of it has arrived."""


async def turn_to(pilot: Pilot[None], view: str, ready: Callable[[GrpoApp], object]) -> None:
    """Turn to a view once the logs are read, and wait for its picture."""
    shown = await read(pilot)
    for key in VIEWS[view][0]:
        await pilot.press(key)
    await wait(pilot, lambda: shown.views.name == view and ready(shown))


@cache
def pictures(
    script: Script, texts: tuple[tuple[str, str], ...], sizes: tuple[tuple[int, int], ...] = ((120, 40),),
    themes: tuple[str, ...] = ("grpo-dark",), silent: tuple[str, ...] = (),
) -> dict[tuple[str, tuple[int, int], str], str]:  # fmt: skip
    """Views of a box from one app, each once a text is on the screen, or without one once it is complete."""
    made, found = app(script, silent=silent), {}

    async def take(pilot: Pilot[None]) -> None:
        for view, text in texts:
            ready = partial(lambda text, app: text in text_of(app), text) if text else VIEWS[view][1]
            await pilot.press("1")
            await turn_to(pilot, view, ready)
            for size in sizes:
                await pilot.resize_terminal(*size)
                for made.theme in themes:
                    await wait(pilot, partial(ready, made))
                    found[view, size, made.theme] = made.export_screenshot(title=made.title, simplify=True)
        made.exit()

    made.run(headless=True, size=sizes[0], auto_pilot=take)
    return found


def same(compare: Compare, picture: str) -> bool:
    """Whether a picture that was taken is as before."""
    made = app(learning_box)
    made.run = lambda **options: picture  # type: ignore[method-assign]
    return compare(made)


USUAL = ((120, 40), "grpo-dark")


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("view", VIEWS)
def test_view(snap_compare: Compare, view: str, size: tuple[int, int], theme: Any) -> None:
    themes = tuple(each.name for each in THEMES)
    assert same(snap_compare, pictures(full_box, ((view, ""),), SIZES, themes)[view, size, theme.name])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_tokens(snap_compare: Compare, theme: Any) -> None:
    made = app(token_box, theme.name)

    async def ready(pilot: Pilot[None]) -> None:
        await turn_to(pilot, "rollouts", rollouts_are_ready)
        await pilot.press(*"tttt", *["right"] * 5)
        await wait(pilot, lambda: "token 6 of" in text_of(made))

    assert snap_compare(made, terminal_size=(120, 40), run_before=ready)


@pytest.mark.parametrize("view", ["home", "compare"])
def test_without_colors(snap_compare: Compare, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert same(snap_compare, pictures(full_box, (("home", ""), ("compare", "")))[(view, *USUAL)])


@pytest.mark.parametrize("view", ["charts", "box"])
def test_loading(snap_compare: Compare, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # No seconds: the machine's speed would be in the picture.
    monkeypatch.setattr("grpo_tui.box.asking.WAIT_S", math.inf)
    texts = (("charts", "asking the box"), ("box", "asking the box"))
    assert same(snap_compare, pictures(full_box, texts, silent=("series", "box_facts"))[(view, *USUAL)])


def new_run(client: FakeClient) -> None:
    """A box whose only run has not logged anything yet."""
    learning_box(client).gpus = GPUS
    client.files = {}
    client.runs = [{**client.runs[0], "step": 0, "reward": None, "logged_at": None, "started_at": at(20)}]


EMPTY = {
    "charts": "no metrics logged yet", "rollouts": "has not logged a completion", "compare": "side by side",
}  # fmt: skip


@pytest.mark.parametrize("view", EMPTY)
def test_empty(snap_compare: Compare, view: str) -> None:
    assert same(snap_compare, pictures(new_run, tuple(EMPTY.items()))[(view, *USUAL)])


def broken_box(client: FakeClient) -> None:
    """A box whose disk has an error."""

    def fail(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("io_error", "train_log.jsonl: input/output error", "see dmesg on the box")

    full_box(client)
    client.answers |= dict.fromkeys(("series", "rollout_steps", "rollout_step"), fail)


@pytest.mark.parametrize("view", ["charts", "rollouts"])
def test_failed(snap_compare: Compare, view: str) -> None:
    texts = (("charts", "input/output error"), ("rollouts", "input/output error"))
    assert same(snap_compare, pictures(broken_box, texts)[(view, *USUAL)])


@pytest.mark.parametrize("table", ["runs", "cost"])
def test_history(snap_compare: Compare, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.history.writer.HistoryWriter.put", lambda *answer: None)
    fill_history(tmp_path / "history.sqlite", NOW)
    made = app(full_box, history=tmp_path / "history.sqlite")

    async def ready(pilot: Pilot[None]) -> None:
        await read(pilot)
        await pilot.press(*("7" if table == "runs" else "7t"))
        text = "run_gsm8k_demo ─" if table == "runs" else "per point [95 %]"
        await wait(pilot, lambda: text in text_of(made))

    assert snap_compare(made, terminal_size=(120, 40), run_before=ready)
