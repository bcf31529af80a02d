"""What the app says: one line at the bottom of every screen, and the list of all messages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Button, OptionList
from textual.widgets._toast import Toast

import grpo_tui
from grpo_tui.box.messages import READ_S, SHOWN_S, Messages, StatusMessage
from grpo_tui.dialogs.messages import MessagesScreen
from grpo_tui.dialogs.runs import OrderScreen
from grpo_tui.kit.bars import HeaderBar, StatusLine
from tests.support.clock import TestClock
from tests.tui.conftest import Session, Start, key_event, opened


def line_of(session: Session) -> StatusLine:
    return session.app.screen.query_one(StatusLine)


def bottom(session: Session) -> str:
    """The last line of the terminal."""
    return session.text().splitlines()[session.app.size.height - 1].strip()


def places(session: Session) -> list[Region]:
    """Where everything else is."""
    return [widget.region for widget in session.app.screen.query(Widget) if not isinstance(widget, StatusLine)]


# the model -----------------------------------------------------------------------------------------------------------


def warning(text: str, *, answers: bool = False) -> StatusMessage:
    return StatusMessage(text, severity="warning", answers=answers)


def shown(messages: Messages) -> str:
    found = messages.shown()
    return found.text if found is not None else ""


def test_information_leaves_and_warnings_stay_until_read() -> None:
    clock = TestClock()
    messages = Messages(clock.monotonic)
    messages.add(warning("first"))
    assert shown(messages) == "first"
    messages.add(warning("second"))
    messages.add(StatusMessage("saved"))
    assert shown(messages) == "saved"
    messages.used()
    assert len(messages.unread) == 2, "neither was on the line"
    clock.advance(SHOWN_S)
    assert shown(messages) == "second"
    messages.used()
    assert shown(messages) == "second", "a key that was on its way is not an answer to it"
    clock.advance(3600)
    assert shown(messages) == "second"
    messages.used()
    assert shown(messages) == "first"
    clock.advance(READ_S)
    messages.used()
    assert shown(messages) == ""
    assert [one.text for one in messages.entries] == ["first", "second", "saved"]


def test_an_answer_to_a_key_leaves_with_the_next_one() -> None:
    messages = Messages(TestClock().monotonic)
    messages.add(warning("not available", answers=True))
    assert shown(messages) == "not available"
    messages.used()
    assert (shown(messages), messages.unread) == ("", [])


def test_what_is_said_again_is_one_message() -> None:
    messages = Messages(TestClock().monotonic)
    for text in ("the link is slow", "another", "the link is slow"):
        messages.add(warning(text))
    assert [(one.text, one.times) for one in messages.entries] == [("another", 1), ("the link is slow", 2)]
    assert messages.entries[-1].line() == ("▲", " the link is slow (×2)")
    messages.read_all()
    messages.add(warning("another"))
    assert len(messages.entries) == 3, "one that was read and comes back is news"


def test_a_title_with_a_sign_keeps_it() -> None:
    assert StatusMessage("rank 0", "✖ run crashed", "error").line() == ("✖ run crashed", " · rank 0")
    assert StatusMessage("a\nb", "eval: not available", "warning").line() == ("▲ eval: not available", " · a b")


# the line ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_message_is_on_the_last_line_and_moves_nothing(start: Start, size: tuple[int, int]) -> None:
    async with start(wait="87/200", size=size) as session:
        await session.pass_time(SHOWN_S)  # the curves are there, and the panels where they stay
        before = session.text().splitlines()
        where = places(session)
        session.app.receipt("saved: curves.csv", "in the folder of this machine's downloads")
        after = (await session.until_text("saved: curves.csv · in the folder")).splitlines()
        assert [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [size[1] - 1]
        assert places(session) == where
        await session.until(lambda: bottom(session) == before[-1].strip(), "the keys again")


async def test_a_warning_counts_the_others_until_they_are_read(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.say("exit code 1, no output", "✖ evaluation of mine failed", "error")
        session.app.warn("is taken", "boxes.yaml: port 6006")
        await session.until(lambda: "+1 unread" in bottom(session))
        assert bottom(session).startswith("▲ boxes.yaml: port 6006 · is taken")
        await session.pass_time(60.0)
        await session.press("up")
        await session.until(lambda: bottom(session).startswith("✖ evaluation of mine failed"))
        assert "unread" not in bottom(session)
        await session.pass_time(READ_S)
        await session.press("up")
        await session.until(lambda: not line_of(session).display)


async def test_a_key_that_is_not_available_says_why_until_the_next_one(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("u")
        assert bottom(session) == "▲ unmark all: not available · no run is marked"
        await session.press("down")
        assert not line_of(session).display


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_dialog_shows_messages_beside_its_buttons(start: Start, size: tuple[int, int]) -> None:
    async with start(wait="87/200", size=size) as session:
        await opened(session, "o", OrderScreen)
        where = places(session)
        session.app.warn("a long message " * 20, "not saved")
        await session.until(lambda: bottom(session).startswith("▲ not saved · a long message"))
        assert ": all messages" in bottom(session)
        screen = session.app.screen
        assert places(session) == where
        line = line_of(session).region
        assert all(not line.overlaps(button.region) for button in screen.query(Button))
        await opened(session, "colon", MessagesScreen)


# the list ------------------------------------------------------------------------------------------------------------


async def test_messages_are_listed_in_full(start: Start) -> None:
    async with start(wait="87/200") as session:
        output = "\n".join(f"line {number} of the output" for number in range(5))
        session.app.say(output, "✖ evaluation of mine failed", "error", run="mine")
        session.app.receipt("saved 2 runs")
        for key in ("colon", *"messages", "enter"):  # faster than the palette opens
            session.app.post_message(key_event(key))
        await session.until(lambda: isinstance(session.app.screen, MessagesScreen))
        screen = await session.until_text("messages of this session", "· saved 2 runs", "✖ evaluation of mine failed")
        assert screen.index("saved 2 runs") < screen.index("evaluation of mine failed"), "the newest first"
        assert not session.app.messages.unread
        await session.press("down")
        await session.until_text("line 4 of the output", "h200-a · mine")
        await session.press("y")
        await session.until(lambda: session.app.clipboard == f"✖ evaluation of mine failed\n{output}")
        await session.until_text("· copied: the message")
        await session.press("slash", *"saved")
        await session.until(lambda: "evaluation" not in session.text())
        await session.press("enter")
        await session.until(lambda: session.app.screen.query_one(OptionList).has_focus, "the list")
        await session.press("slash", *"nowhere")
        await session.until_text("no message has it")
        await session.press("escape")
        await session.until_text("✖ evaluation of mine failed")
        await session.press("escape")
        await session.until(lambda: not isinstance(session.app.screen, MessagesScreen))


async def test_a_click_on_the_line_opens_the_list(start: Start) -> None:
    async with start(wait="87/200", paints=True) as session:
        session.app.warn("one", "first")
        await session.until(lambda: bottom(session).startswith("▲ first"))
        await session.pilot.click(StatusLine)
        await session.until(lambda: isinstance(session.app.screen, MessagesScreen))


async def test_without_messages_the_list_says_so(start: Start) -> None:
    async with start(wait="87/200", size=(80, 24)) as session:
        session.app.action_show_messages()
        await session.until_text("nothing was said yet")


# Textual's toasts ----------------------------------------------------------------------------------------------------


async def test_what_textual_says_is_a_message(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.notify("Saved screenshot to [b]a.svg[/b]", title="Screenshot")
        await session.until(lambda: bottom(session) == "· Screenshot · Saved screenshot to a.svg")
        assert not session.app.screen.query(Toast)
        assert session.app.screen.query_one(HeaderBar)


def test_nothing_calls_notify_of_textual() -> None:
    for file in Path(grpo_tui.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = [ast.unparse(call.func) for call in calls]
        assert not [name for name in named if name.endswith(".notify")], file
