from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from grpo_tui.dialogs.boxes import AddBoxScreen, BoxesScreen
from grpo_tui.kit.dialog import ConfirmScreen, HostKeyScreen
from remote.events import BoxGreeted, HostKeyAsked, MachineChanged
from tests.tui.conftest import GLANCES, Start, opened
from tests.tui.fake import FakeClient


async def test_host_key(start: Start) -> None:
    async with start(wait="87/200") as session:
        for keys, answer in ((["enter"], False), (["tab", "enter"], True)):
            session.client.on_event(HostKeyAsked("192.0.2.10", "ssh-ed25519", "SHA256:abcdef"))
            await session.until(lambda: isinstance(session.app.screen, HostKeyScreen))
            await session.until_text("SHA256:abcdef", "First connection")
            await session.press(*keys)
            await session.until(lambda answer=answer: session.client.host_key_answers[-1:] == [answer])


async def test_an_agent_in_memory_is_explained(start: Start, boxes_file: Path) -> None:
    def full(client: FakeClient) -> None:
        check = {"name": "agent", "ok": True, "detail": "runs from memory (/home/x: No space left)", "hint": "set it"}
        client.answers["doctor"] = {"checks": [check], "ok": True}

    async with start(full, wait="no runs yet", boxes_file=boxes_file) as session:
        await session.until(lambda: bool(session.app.store.checks))
        await session.press("b")
        await session.until_text("The agent runs from memory", "No space left", "set it")
        await session.press("down")
        await session.until(lambda: "The agent" not in session.text())


async def test_a_row_has_the_age_of_what_it_says(
    start: Start, boxes_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await session.press("b")
        text = await session.until_text("6 of 8 GPUs free · 2 live: maths, code", "no tmux on this machine")
        assert text.count(" now ") == 2, "the current box and h200-b"
        lost = replace(GLANCES["h200-b"], problem="no answer for 16 s", age_s=16.0)
        monkeypatch.setitem(GLANCES, "h200-b", lost)
        await session.until_text("2 live: maths, code · no answer for 16 s", "16s ago")


async def test_switch_and_add_boxes(start: Start, boxes_file: Path) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        first = session.client
        await session.press("b")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        await session.until_text("h200-b", "192.0.2.11", "this machine", "h200-a connects over ")
        await session.until_text("1 live: run", "6 of 8 GPUs free · 2 live: maths, code", "no tmux on this machine")
        assert session.app.screen.query_one(OptionList).highlighted == 0
        await session.press("down", "enter")
        await session.until(lambda: len(session.clients) == 2 and first.closed)
        await session.until_text("h200-b", "87/200")
        await session.press("b")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        await session.press("tab", "tab", "enter")
        await session.until(lambda: isinstance(session.app.screen, AddBoxScreen))
        await session.press(*"h200-a", "enter")
        await session.until_text("host: required")
        session.app.screen.query_one("#box-host", Input).value = "192.0.2.99"
        await session.press("enter")
        await session.until_text("already exists")
        session.app.screen.query_one("#box-name", Input).value = "third"
        session.app.screen.query_one("#box-price_per_hour", Input).value = "$1.99"
        await session.press("enter")
        await session.until(lambda: len(session.clients) == 3)
        await session.until_text("third", "$1.99/h")
        assert "192.0.2.99" in boxes_file.read_text()


COMMENTED = """\
# mine
boxes:
  - name: h200-a  # the shown one
    host: 192.0.2.10
  # nfs there
  - name: h200-b
    host: 192.0.2.11  # moves
    env: {A: "1"}
"""


async def test_a_box_is_edited(start: Start, boxes_file: Path) -> None:
    boxes_file.write_text(COMMENTED)
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await opened(session, "b", BoxesScreen)
        await session.until_text("enter switch · a add · e edit · d remove")
        await session.press("down")
        await opened(session, "e", AddBoxScreen)
        await session.until_text("edit h200-b", "192.0.2.11", "Save")
        session.app.screen.query_one("#box-host", Input).value = ""
        await session.press("enter")
        await session.until_text("host: required")
        session.app.screen.query_one("#box-host", Input).value = "192.0.2.99"
        session.app.screen.query_one("#box-port", Input).value = "2222"
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        await session.until_text("192.0.2.99:2222")
        assert session.app.screen.query_one(OptionList).highlighted == 1
        assert boxes_file.read_text() == COMMENTED.replace("11  # moves", "99  # moves") + "    port: 2222\n"
        assert len(session.clients) == 1, "another box than the shown one"


async def test_the_shown_box_connects_anew_after_an_edit(start: Start, boxes_file: Path) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await opened(session, "b", BoxesScreen)
        await opened(session, "e", AddBoxScreen)
        session.app.screen.query_one("#box-root", Input).value = "/other"
        await session.press("enter")
        await session.until(lambda: len(session.clients) == 2 and session.clients[0].closed)
        assert session.client.box.root == "/other"
        await session.until(lambda: session.app.screen is session.app.home)


async def test_a_box_is_removed(start: Start, boxes_file: Path) -> None:
    boxes_file.write_text(COMMENTED)
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await opened(session, "b", BoxesScreen)
        await session.press("down", "down", "d")
        await session.until_text("local is this machine: it is listed without an entry")
        await session.press("up")
        await opened(session, "d", ConfirmScreen)
        await session.until_text("Remove h200-b (192.0.2.11)?", "forgotten", "nothing there is touched")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        assert boxes_file.read_text() == COMMENTED, "Cancel has the focus"
        await opened(session, "delete", ConfirmScreen)
        await session.press("tab", "enter")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        assert boxes_file.read_text() == COMMENTED[: COMMENTED.index("  - name: h200-b")]
        assert not session.clients[0].closed
        await opened(session, "d", ConfirmScreen)
        await session.until_text("disconnects from it and shows local")
        await session.press("tab", "enter")
        await session.until(lambda: len(session.clients) == 2 and session.clients[0].closed)
        assert session.client.box.is_local
        assert "h200" not in boxes_file.read_text()
        assert "# nfs there" in boxes_file.read_text()


async def test_another_machine_is_named_once(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.on_event(MachineChanged("192.0.2.10"))
        session.client.on_event(BoxGreeted("agent", session.client.greeting))
        await session.until_text("h200-a: another machine", "its disk is a copy")
        await session.press("enter")
        session.client.on_event(BoxGreeted("agent", session.client.greeting))
        await session.until(lambda: "another machine" not in session.text())
