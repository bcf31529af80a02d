"""Only what changed is painted again: what is on the screen must be what painting all of it anew gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.segment import Segment

from grpo_tui.background import AWAKE, REST, Pulse
from grpo_tui.kit.lists import LinesPanel
from grpo_tui.kit.theme import LIGHT
from remote.events import Link, LinkChanged, LogRotated
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, RUN, jsonl, train_rows

OTHER = "run_2026-11-20_22-10-41"
TRAIN_LOG = f"{LOGS}/train_log.jsonl"
Change = Callable[[Session], Awaitable[Any]]


def two_runs(client: FakeClient) -> None:
    """:func:`learning_box` where another run has a log of as many lines, too."""
    learning_box(client)
    client.files[TRAIN_LOG.replace(RUN, OTHER)] = jsonl(train_rows(87, seed=1, last_age=5_000))


def screen(session: Session) -> list[list[Segment]]:
    return [list(strip) for strip in session.app.screen._compositor.render_strips()]


async def still(session: Session) -> None:
    """Wait until nothing moves any more."""
    before: list[list[Segment]] = []

    def is_still() -> bool:
        session.app.tick()
        nonlocal before
        old, before = before, screen(session)
        return old == before and all(worker.is_finished for worker in session.app.workers)

    await session.until(is_still, "a screen that does not move")


def check_nothing_is_old(session: Session) -> None:
    """Paint all of the screen again, and compare."""
    session.app.tick()
    shown = screen(session)
    for widget in session.app.screen.walk_children():
        widget.refresh()
    anew = screen(session)
    assert [y for y, line in enumerate(shown) if line != anew[y]] == []


def log_lines(session: Session) -> list[str]:
    panel = session.app.home.query_one("#log", LinesPanel)
    return [panel.line_at(y, panel.rich_style)[1].plain for y in range(panel.size.height)] or [""]


async def change_a_row(session: Session) -> None:
    session.client.runs[1].update(state="crashed", step=1_234, total_steps=5_678, reward=0.125)
    session.client.report()
    await session.until_text("1234/5678")


async def grow_the_log(session: Session) -> None:
    session.client.append(TRAIN_LOG, jsonl(train_rows(91)[87:]))
    await session.until_text("91/200", "step 91")


async def scroll_and_grow_the_log(session: Session) -> None:
    panel = await session.focus("#log")
    await session.press("pageup", "up")
    session.client.append(TRAIN_LOG, jsonl(train_rows(91)[87:]))
    await session.until_text("paused, 4 new")
    assert panel.has_focus


async def rotate_the_log(session: Session) -> None:
    """The new file has as many lines: each has the index of an old one."""
    (subscription,) = (number for number, path in session.client.follows.items() if path == TRAIN_LOG)
    before = log_lines(session)
    session.client.on_event(LogRotated(subscription, TRAIN_LOG))
    rows = [{**row, "reward": 77.5} for row in train_rows(87)]
    session.client.arrive(subscription, 0, jsonl(rows))
    await session.until(lambda: all("77.5" in line for line in log_lines(session)), "the new log")
    assert not set(before) & set(log_lines(session))


async def select_another_run(session: Session) -> None:
    before = log_lines(session)
    await session.press("down")
    await session.until(lambda: session.app.store.selected == OTHER)
    await session.until(lambda: "step 87" in log_lines(session)[-1] and not set(before) & set(log_lines(session)))


async def turn_the_theme(session: Session) -> None:
    before = screen(session)
    session.app.theme = LIGHT.name
    await session.until(lambda: all(old != new for old, new in zip(before, screen(session), strict=True)))


async def resize(session: Session) -> None:
    await session.pilot.resize_terminal(150, 45)
    await session.until(lambda: len(screen(session)) == 45)


async def lose_the_link(session: Session) -> None:
    session.client.on_event(LinkChanged(Link.LOST, "no route", retry_in_s=9.0))
    await session.until_text("link lost", "running when last seen")


async def mark_sort_and_name(session: Session) -> None:
    await session.press("space", "w")
    session.app.home.sort_by("reward")
    await session.until_text("1 marked (*)")


async def filter_and_clear(session: Session) -> None:
    await session.press("slash", *"crashed", "enter")
    await session.until_text("of 4 · sorted")
    await still(session)
    check_nothing_is_old(session)
    await session.press("escape")
    await session.until(lambda: "of 4 · sorted" not in session.text())


async def open_and_close_a_dialog(session: Session) -> None:
    await session.press("question_mark")
    await session.until(lambda: len(session.app.screen_stack) == 2)
    session.client.append(TRAIN_LOG, jsonl(train_rows(91)[87:]))
    session.client.runs[1].update(step=1_234, total_steps=5_678)
    session.client.report()
    await session.until(lambda: session.app.store.step == 91)
    await session.press("escape")
    await session.until_text("91/200", "step 91", "1234/5678")


CHANGES: list[Change] = [
    change_a_row, grow_the_log, scroll_and_grow_the_log, rotate_the_log, select_another_run, turn_the_theme, resize,
    lose_the_link, mark_sort_and_name, filter_and_clear, open_and_close_a_dialog,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_nothing_old_stays_on_the_screen(start: Start, change: Change) -> None:
    async with start(two_runs, wait="87/200", paints=True) as session:
        await session.until(lambda: "step 87" in log_lines(session)[-1])
        await still(session)
        await change(session)
        await still(session)
        check_nothing_is_old(session)


async def test_another_row_paints_one_line_of_the_list(start: Start) -> None:
    async with start(two_runs, wait="87/200", paints=True) as session:
        await still(session)
        runs = session.app.home.query_one("#runs")
        painted: list[int] = []
        render = runs.render_line
        runs.render_line = lambda y: painted.append(y) or render(y)  # type: ignore[func-returns-value,method-assign]
        session.client.append(TRAIN_LOG, jsonl(train_rows(91)[87:]))
        await session.until_text("91/200", "step 91")
        assert len(set(painted)) == 1


def beats(pulse: Pulse, count: int) -> str:
    return "".join("x" if pulse.beat() else "." for _ in range(count))


def test_views_rest_while_nothing_happens() -> None:
    pulse = Pulse()
    assert beats(pulse, AWAKE) == "x" * AWAKE
    assert beats(pulse, 2 * REST) == ("." * (REST - 1) + "x") * 2


def test_input_wakes_the_views() -> None:
    pulse = Pulse()
    beats(pulse, AWAKE + 1)
    pulse.wake()
    assert beats(pulse, AWAKE + 1) == "x" * AWAKE + "."


def test_news_after_a_rest_are_shown_at_once() -> None:
    pulse = Pulse()
    beats(pulse, AWAKE + REST + 1)
    pulse.news()
    assert beats(pulse, 2) == "x."


def test_frequent_news_are_shown_together() -> None:
    pulse = Pulse()
    beats(pulse, AWAKE + REST)
    shown = 0
    for _ in range(10 * REST):
        pulse.news()
        shown += pulse.beat()
    assert shown == 10
