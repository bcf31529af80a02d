"""Every row of the table of actions: by key, from the palette and by mouse it runs, or says why it does not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
from textual.command import CommandPalette

from grpo_tui.actions import ACTIONS, Action, key_label
from grpo_tui.app import GrpoApp
from grpo_tui.kit.bars import KeyBar, ViewBar
from grpo_tui.kit.desk import SelectRun
from grpo_tui.palette import commands
from tests.tui.conftest import Session, Start
from tests.tui.fake_rows import RUN
from tests.tui.test_actions import VIEWS
from tests.tui.views.compare.test_screen import box

STOPPED = "run_2026-11-19_09-30-00"
WIDE = (360, 40)
"""Room for every key in the key bar."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The actions that ran, in place of what they do."""
    found: list[str] = []
    target_of = GrpoApp.target_of

    def recorded(app: GrpoApp, action: Action) -> partial[Awaitable[None] | None]:
        def run() -> None:
            found.append(action.id)

        async def run_later() -> None:
            found.append(action.id)

        target = target_of(app, action)
        made: Callable[[], Awaitable[None] | None] = run_later if inspect.iscoroutinefunction(target) else run
        made.__doc__ = inspect.getdoc(target.func)
        return partial(made)

    monkeypatch.setattr(GrpoApp, "target_of", recorded)
    return found


async def show(session: Session, view: str, run: str = RUN) -> None:
    """Turn to a view, with what it needs."""
    app = session.app
    for row in app.store.runs or ():
        if row.name != STOPPED and view == "compare" and row.name not in app.store.marks:
            app.store.marks.toggle(row.name)
    app.post_message(SelectRun(run))
    app.views.show(view)
    await session.until(lambda: app.screen is app.views.shown and app.screen.query("#keys") and app.screen.focused)
    await session.until(lambda: app.store.selected == run and app.store.checkpoints())


async def does(session: Session, ran: list[str], action: Action, how: str) -> None:
    """Wait for what an action does now: it runs once, or its reason is shown."""
    reason = action.reason(session.app.situation())
    expected = [] if reason else [action.id]
    said = f"{action.label}: not available {reason}"
    await session.until(lambda: ran or session.said, f"{action.id} {how}")
    assert (ran, session.said) == (expected, [said] if reason else []), f"{action.id} {how}"
    ran.clear()
    session.app.messages.entries.clear()
    session.app.show_message()  # the bar is no longer covered


def actions_in(session: Session, view: str) -> Iterator[Action]:
    """The actions of a view, as the app has them."""
    session.app.messages.entries.clear()
    yield from (action for action in session.app.actions if action.is_in(view))


@pytest.mark.parametrize("run", [RUN, STOPPED])
async def test_each_key_of_every_view_runs_its_action(start: Start, ran: list[str], run: str) -> None:
    async with start(box, wait="87/200") as session:
        for view in VIEWS:
            await show(session, view, run)
            for action in actions_in(session, view):
                for key in action.keys:
                    await session.press(key)
                    if key == "ctrl+p":  # Textual's own key for it
                        await session.until(lambda: CommandPalette.is_open(session.app), key)
                        await session.press("escape")
                        await session.until(lambda: not CommandPalette.is_open(session.app), "the view")
                        continue
                    await does(session, ran, action, f"{key} in {view}")
                    if action.opens_line and action.reason(session.app.situation()):
                        await session.press("escape")  # else what follows is dropped


async def test_the_palette_of_every_view_runs_each_action(start: Start, ran: list[str]) -> None:
    async with start(box, wait="87/200") as session:
        for view in VIEWS:
            await show(session, view)
            offered = {command.title: command for command in commands(session.app)}
            for action in actions_in(session, view):
                if action.id == "palette":
                    continue
                command = offered.pop(f"{action.label}: {session.app.help_of(action)}")
                reason = action.reason(session.app.situation())
                about = f"not available: {reason}" if reason else ""
                assert (command.about, command.key) == (about, key_label(action.keys[0])), f"{action.id} in {view}"
                command.callback()
                await does(session, ran, action, f"palette in {view}")
            others = {"theme", "draw charts in blocks", "screenshot", "report", "tunnels", "sync", "messages"}
            assert {title.partition(":")[0] for title in offered} == others, view


async def test_a_click_on_a_key_of_every_view_runs_its_action(start: Start, ran: list[str]) -> None:
    async with start(box, size=WIDE, wait="87/200", paints=True) as session:
        for view in VIEWS:
            await show(session, view)
            bars = session.app.screen.query_one(KeyBar), session.app.screen.query_one(ViewBar)
            places = {name: (bar, (start, line)) for bar in bars for line, start, _, name in bar.spans}
            for action in actions_in(session, view):
                if action.in_bar:
                    bar, place = places.pop(action.id)
                    await session.pilot.click(bar, offset=place)
                    await does(session, ran, action, f"click in {view}")
            assert not places, view


def test_every_view_has_actions() -> None:
    assert {action.scope for action in ACTIONS} == {"", *VIEWS}


@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
async def test_a_short_terminal_has_the_views_as_digits(start: Start, ran: list[str], size: tuple[int, int]) -> None:
    async with start(box, size=size, wait="87/200") as session:
        await session.until(lambda: session.text().splitlines()[-1].endswith("▸1 2 3 4 5 6 7"), "the digits")
        places = {name: column for _, column, _, name in session.app.screen.query_one(KeyBar).spans}
        for view in VIEWS:
            await session.pilot.click("#keys", offset=(places[view] + 1, 0))
            await session.until(lambda view=view: ran == [view], view)
            ran.clear()


async def test_the_keys_of_a_view_are_shown(start: Start) -> None:
    async with start(box, size=(120, 40), wait="87/200") as session:
        for view, keys in (
            ("charts", ("M max", "E export")),
            ("rollouts", ("E export", "v evals", "F lost/gained")),
            ("compare", ("F problems", "E export")),
        ):
            await session.pilot.resize_terminal(120, 40)
            await show(session, view)
            *lines, last = (await session.until_text(": command  ? help  q quit")).splitlines()[-3:]
            assert all(f" {key} " in " ".join(lines) for key in keys)
            assert last.endswith(": command  ? help  q quit")
            assert "? help" not in " ".join(lines)
            bar = session.app.screen.query_one(KeyBar)
            line, start_of, _, name = next(span for span in bar.spans if span[0] == 1)
            assert line == 1
            assert lines[1][start_of:].startswith(session.app.key(name))
            await session.pilot.resize_terminal(80, 24)
            await session.until(lambda: session.text().splitlines()[-1].endswith("7"), "one line")
            short = [f" {key.partition(' ')[0]} " for key in keys]
            await session.until(lambda short=short: all(key in session.text().splitlines()[-1] for key in short))


OPENING = {
    "home": (
        "launch",
        "eval",
        "ask",
        "attach",
        "restore",
        "kill",
        "boxes",
        "terminable",
        "tracking",
        "help",
        "palette",
    ),
    "box": ("send_line", "spare", "get", "put"),
}
"""Actions that open each form and each kind of dialog, in their views."""


async def test_every_form_and_dialog_lives_in_any_size(start: Start) -> None:
    async with start(box, wait="87/200") as session:
        for view, names in OPENING.items():
            await show(session, view)
            shown = session.app.screen
            keys = {action.id: action.keys[0] for action in actions_in(session, view)}
            for name in names:
                await session.press(keys[name])
                await session.until(lambda shown=shown: session.app.screen is not shown, name)
                for size in ((1, 1), (11, 24), (300, 2), (120, 40)):
                    await session.pilot.resize_terminal(*size)
                    assert session.app.return_code is None, f"{name} ended the app at {size}"
                    await session.until(lambda size=size: session.app.size == size, f"{name} in {size}")
                    session.text()
                while session.app.screen is not shown:
                    await session.press("escape")
