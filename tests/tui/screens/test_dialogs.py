"""Dialogs at every size of terminal: what is needed to decide and to leave is on the screen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Button

from grpo_tui.box.fleet import Glance
from grpo_tui.box.link import BoxTunnels
from grpo_tui.dialogs.boxes import AddBoxScreen, BoxesScreen, TunnelsScreen
from grpo_tui.dialogs.copies import GetForm, PutForm, UncommittedScreen
from grpo_tui.dialogs.demo import DemoSetupScreen
from grpo_tui.dialogs.resume import CodeDiffersScreen
from grpo_tui.kit.dialog import AttachScreen, ConfirmScreen, HostKeyScreen, MessageScreen, QuestionScreen
from grpo_tui.kit.help import HelpScreen
from grpo_tui.kit.panel import Excerpt
from grpo_tui.views.box.screen import LineScreen
from remote.boxes import Box
from remote.code import Checkout
from remote.events import Link, LinkChanged, QuestionAsked, TopicFailed
from tests.tui.conftest import Session, Start, opened
from tests.tui.fake import FakeClient, learning_box

SIZES = [(60, 15), (80, 24), (120, 40)]
LONG = "the file system of the box is full and nothing can be written to it; " * 20
NAME = "run_" + "a-name-made-by-a-script_" * 8
BOXES = [Box("h200-a", host="192.0.2.10", price_per_hour=2.49), Box("x" * 60, host="y" * 80, user="someone")]


def all_dialogs(folder: Path) -> list[tuple[Screen, str]]:
    """Each dialog with long text, and what must be readable without scrolling."""
    os.mkfifo(folder / "never-written")
    making = ["sh", "-c", 'read line < "$0"', str(folder / "never-written")]
    return [
        (MessageScreen(f"cannot stop {NAME}", LONG, "free disk space"), "→ free disk space"),
        (ConfirmScreen("kill run", [Content(f"Kill {NAME} on h200-a?"), Content(LONG)], "Kill run"), "run_a-name"),
        (AttachScreen(NAME, "h200-a", f"ssh -t {NAME} {LONG}", "ctrl+b d", "a note"), "To return: ctrl+b d"),
        (HostKeyScreen("h200-a", "ssh-ed25519", "SHA256:" + "x" * 43), "SHA256:" + "x" * 43),
        (QuestionScreen("h200-a", QuestionAsked(f"{LONG}\nPassword:", False, "password")), "not stored"),
        (BoxesScreen(BOXES, "h200-a", lambda: Glance("h200-a", "192.0.2.10", 2.49)), "$2.49/h"),
        (GetForm(NAME, [10, 20]), "weights of step 20"),
        (PutForm("h200-a"), "checkpoints/NAME"),
        (LineScreen(NAME), "followed by Enter"),
        (TunnelsScreen("h200-a", BoxTunnels()), "no tunnel is open"),
        (CodeDiffersScreen(f"the code of {NAME} differs: 1a then, 2b now", "h200-a"), "run_a-name"),
        (UncommittedScreen(Checkout(Path("/x"), "1a" * 20, "x", [f" M {NAME}"] * 99), "h200-a"), "with changes"),
        (AddBoxScreen(lambda box: box), "short name, used with --box"),
        (DemoSetupScreen(folder, making), "starting grpo-train"),
        (HelpScreen((), None, "home"), ""),  # type: ignore[arg-type]
    ]


def misplaced(dialog: Screen) -> str:
    """What is not on the screen, or should not be; "" if all is well."""
    frame = dialog.query_one("#dialog")
    if not dialog.region.contains_region(frame.region):
        return "frame"
    for button in dialog.query(Button):
        if button.display and button.region.intersection(frame.region).size != button.region.size:
            return f"button {button.id}"
    last = max(child.region.bottom for child in frame.children if child.display)
    return "empty rows at the end" if frame.region.bottom - last > 3 else ""


@pytest.mark.parametrize("size", SIZES)
async def test_every_dialog_fits_its_terminal(start: Start, size: tuple[int, int], tmp_path: Path) -> None:
    async with start(size=size, wait="● 12 ms") as session:
        for dialog, needed in all_dialogs(tmp_path):
            await session.app.push_screen(dialog)
            await session.until_text(needed)
            await session.until(lambda dialog=dialog: not misplaced(dialog), f"{type(dialog)}: {misplaced(dialog)}")
            dialog.dismiss(None)
            await session.pilot.pause()


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_a_page_without_runs_names_the_way_out(start: Start, size: tuple[int, int]) -> None:
    def quiet(client: FakeClient) -> None:
        client.quiet = True

    async with start(quiet, size=size) as session:
        for state in (Link.REFUSED, Link.LOST):
            session.client.on_event(LinkChanged(state, f"detail of {state.value}: {LONG}", retry_in_s=4.0))
            await session.until_text(f"detail of {state.value}", "choose or change the box", "try again", "quit")
        session.client.on_event(LinkChanged(Link.CONNECTED))
        session.client.on_event(TopicFailed("runs", "Permission denied"))
        screen = await session.until_text("cannot list its runs", "choose or change the box")
        assert "try again" not in screen  # it is tried again without a person; the key would do nothing


async def test_excerpts_end_in_an_ellipsis(start: Start) -> None:
    async with start(wait="87/200", size=(80, 24)) as session:
        await session.press("n")
        await session.until_text("launch a run")
        await session.until(lambda: session.app.screen.ready)  # type: ignore[attr-defined]
        problem = session.app.screen.query_one("#problem", Excerpt)
        session.app.screen.show_problem(LONG)  # type: ignore[attr-defined]
        await session.until(lambda: problem.size.height == 4)
        assert str(problem.render()).endswith("…")
        session.app.screen.show_problem("short")  # type: ignore[attr-defined]
        await session.until(lambda: problem.size.height == 1)
        assert str(problem.render()) == "✖ short"


async def test_a_short_terminal_shows_the_hint_of_the_field(start: Start) -> None:
    async with start(size=(80, 24), wait="87/200") as session:
        await session.app.push_screen(AddBoxScreen(lambda box: box))
        await session.until_text("short name, used with --box")
        await session.press("tab", "tab")
        await session.until_text("as ssh does")


async def test_an_invalid_name_does_not_blame_a_file(start: Start, boxes_file: Path) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await opened(session, "b", BoxesScreen)
        await session.press("tab", "tab", "enter")
        await session.until(lambda: isinstance(session.app.screen, AddBoxScreen))
        await session.press(*"h 1", "tab", *"192.0.2.1", "enter")
        assert str(boxes_file) not in await session.until_text("✖ 'name' must be up to 64 letters")


async def test_kill_does_not_claim_what_it_does_not_know(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).answers["show_run"] = unknown

    def unknown(client: FakeClient, params: dict[str, str]) -> dict[str, object]:
        from remote.protocol import RemoteError

        raise RemoteError("x", "y")

    async with start(script, wait="87/200") as session:
        store = session.app.store
        store.shown, store.shown_at, store._views = {}, None, []  # also an answer that is on its way is a new one
        await opened(session, kill_key(session), ConfirmScreen)
        await session.until_text("You lose the steps since the last checkpoint", "cancel, then press s")


async def test_kill_of_a_stopping_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.runs[0]["stop_asked"] = True
        session.client.report()
        await session.until_text("stopping")
        await opened(session, kill_key(session), ConfirmScreen)
        assert "press s" not in await session.until_text("A stop is already requested")


def kill_key(session: Session) -> str:
    return session.app.key("kill")


async def test_a_zoomed_panel_names_the_way_back(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("z")
        await session.until_text("esc: restore")
        await session.press("escape")
        await session.until(lambda: "esc: restore" not in session.text())
        await session.press("slash", *"crash", "enter")
        await session.until_text("1 of 4", "esc: show all")
        await session.press("escape")
        await session.until(lambda: "esc: show all" not in session.text())


async def test_readonly_is_on_the_screen(start: Start) -> None:
    async with start(lambda client: None, readonly=True) as session:
        screen = await session.until_text("read-only", "no runs yet", "started with --readonly")
        assert "to launch" not in screen


async def test_keys_on_the_screen_are_the_users(start: Start) -> None:
    keymap = {"boxes": "Z", "resume": "X", "launch": "N"}

    async with start(keymap=keymap, wait="87/200") as session:
        await session.press("down", "down")
        await session.until_text("press X to resume")
        session.client.on_event(LinkChanged(Link.REFUSED, "no"))
        await session.until_text("Z choose or change the box")
    async with start(lambda client: None, keymap=keymap) as session:
        await session.until_text("press N to launch a run")


async def test_a_long_name_does_not_fill_a_notification(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).runs.append({**client.runs[0], "run": NAME})

    async with start(script, wait="87/200") as session:
        session.client.runs[-1] = {**session.client.runs[-1], "state": "crashed"}
        session.client.report()
        await session.until(lambda: "crashed" in session.messages())
        title = session.said[-1].partition(" crashed")[0]
        assert title.startswith("✖ run…")
        assert len(title) <= 44
