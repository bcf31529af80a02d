"""Held keys in every list, and terminals of any size in every view while data arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual import events

from grpo_tui.kit.lists import ListPanel
from grpo_tui.views.home.runs import RunsPanel
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient
from tests.tui.fake_rows import LOGS, NOW, RUN, jsonl, rollout_rows, summary, train_rows
from tests.tui.views.box.test_screen import gpu_box
from tests.tui.views.compare.test_screen import box as three_runs
from tests.tui.views.logs.test_screen import window

HELD = 60


def full_box(client: FakeClient) -> None:
    """A box with more of everything than fits on a screen."""
    gpu_box(client)
    sessions, gpus = client.sessions, client.gpus
    three_runs(client)
    client.gpus = gpus
    client.runs += [summary(f"old_{index}", "finished", step=200) for index in range(250)]
    others = [{"name": f"other_{index}", "dead": False, "created": int(NOW) - index} for index in range(250)]
    client.sessions = [*sessions, *others]
    client.files[f"{LOGS}/console.log"] = "".join(f"[{line}] one of many\n" for line in range(1, 901)).encode()
    client.files[f"{LOGS}/rollouts.jsonl"] = jsonl([row for step in range(1, 231) for row in rollout_rows(step, 4)])


async def hold(session: Session, key: str, times: int, per_second: float = 0.0) -> None:
    """Send a key many times, as a terminal does while it is held."""
    for _ in range(times):
        session.app.post_message(events.Key(key, None))
        if per_second:
            await session.pass_time(1 / per_second)


LISTS = {
    "#runs": ("1", 254), "#metrics": ("2", 0), "#steps": ("3", 230), "#groups": ("3", 1), "#samples": ("3", 4),
    "#files": ("4", 0), "#sessions": ("5", 253),
}  # fmt: skip
"""Each list with the key of its view, and its lines if each of them takes the cursor."""


async def hold_in(session: Session, name: str) -> None:
    """Hold keys in a list."""
    view, count = LISTS[name]
    await session.press(view)
    await session.until(lambda: session.app.screen.query(name), name)
    panel = session.app.screen.query_one(name, ListPanel)
    await session.until(lambda: panel.count == count if count else panel.count > 5, f"the lines of {name}")
    await session.focus(panel)
    await session.press("end")
    last = min(HELD, count - 1) if count else panel.cursor
    await session.press("home")
    first = panel.cursor
    await hold(session, "down", HELD)
    await session.until(lambda: panel.cursor == last, f"line {last} of {name}")
    by = min(15, last)
    await hold(session, "up", by, per_second=30)
    if count:
        await session.until(lambda: panel.cursor == last - by, f"line {last - by} of {name}")
    await hold(session, "up", HELD)
    await session.until(lambda: panel.cursor == first, f"the first line of {name}")


async def test_a_held_key_moves_a_line_each_time(start: Start) -> None:
    async with start(full_box, wait="87/200") as session:
        for name in LISTS:
            await hold_in(session, name)


SIZES = ((60, 15), (200, 60), (80, 24), (104, 32), (61, 16), (120, 40), (60, 15), (170, 50))


def place_in_home(session: Session) -> object:
    panel = session.app.home.query_one(RunsPanel)
    return panel.runs.rows[panel.cursor].name


def place_in_charts(session: Session) -> object:
    view = session.app.views.charts.view
    return view.crosshair, view.window, tuple(view.shown)


def place_in_rollouts(session: Session) -> object:
    reader = session.app.views.rollouts.reader
    page = reader.rollouts.page if reader is not None else None
    if reader is None or page is None or page.step != reader.step or reader.group is None or reader.sample is None:
        return None
    return reader.step, reader.group.number, reader.sample["sample"]


def place_in_logs(session: Session) -> object:
    known = window(session)
    return known.path, known.cursor


def place_in_box(session: Session) -> object:
    return session.app.views.box.query_one("#sessions").current  # type: ignore[attr-defined]


def place_in_compare(session: Session) -> object:
    comparison = session.app.views.compare.comparison
    return comparison.current, [run.name for run in comparison.runs]


PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Session], object]]] = {
    "home": ((), ("down", "down"), place_in_home),
    "charts": (("2",), ("left", "left"), place_in_charts),
    "rollouts": (("3",), ("down", "down"), place_in_rollouts),
    "logs": (("4",), ("up", "up", "up"), place_in_logs),
    "box": (("5",), ("down", "down"), place_in_box),
    "compare": (("space", "down", "space", "6"), ("down",), place_in_compare),
}
"""The keys to a view, the keys to a place in it, and what the place is."""
READY = {
    "home": "254", "charts": "range: 1–87", "rollouts": "samples of the group", "logs": "line 900",
    "box": "CPU 14 %", "compare": "2 runs (A pinned)",
}  # fmt: skip


def has_step(session: Session, step: int) -> bool:
    return any((row.name, row.step) == (RUN, step) for row in session.app.store.runs or ())


def fills(session: Session, columns: int, rows: int) -> bool:
    """Whether the screen has this size."""
    lines = session.text().splitlines()
    return len(lines) == rows and max(map(len, lines)) <= columns


@pytest.mark.parametrize("view", PLACES)
async def test_a_resize_keeps_the_place(start: Start, view: str) -> None:
    there, within, place = PLACES[view]
    async with start(full_box, wait="87/200") as session:
        await session.press(*there)
        await session.until_text(READY[view])
        if view == "box":
            await session.focus("#sessions")
        await session.until(lambda: place(session), "the first place")
        at_first = place(session)
        for key in within:
            await session.press(key)
        await session.until(lambda: place(session) not in (at_first, None), "another place")
        here = place(session)
        for index, size in enumerate(SIZES):
            await session.pilot.resize_terminal(*size)
            client = session.client
            client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(88 + index)[-1:]))
            client.append(f"{LOGS}/console.log", b"one more\n")
            client.runs[0]["step"] = 88 + index
            client.report()
            await session.until(lambda step=88 + index: has_step(session, step), "the new step")
            await session.until(lambda size=size: fills(session, *size), f"{size}")
            assert place(session) == here, size
        assert session.app.views.name == view
