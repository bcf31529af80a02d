from __future__ import annotations

import pytest
from textual.widgets import TextArea

from grpo_tui.actions import ACTIONS
from grpo_tui.dialogs.evaluate import EvalScreen
from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.kit.help import PANELS, HelpScreen, KeyTable
from grpo_tui.palette import commands
from grpo_tui.views.home.screen import HomeScreen
from remote.events import Link, LinkChanged
from tests.tui.conftest import Start, opened
from tests.tui.fake_rows import RUN


async def test_ctrl_c_does_not_quit(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("ctrl+c")
        await session.until(lambda: "Ctrl+Q quits" in session.messages())
        assert session.app.is_running


async def test_ctrl_z_is_heard_in_dialogs_and_undoes_in_a_text(start: Start) -> None:
    async with start(wait="87/200") as session:
        for key, screen in (("", HomeScreen), ("e", EvalScreen), ("escape", HomeScreen), ("n", LaunchScreen)):
            await session.press(*filter(None, [key]))
            await session.until(lambda screen=screen: isinstance(session.app.screen, screen))  # type: ignore[misc]
            before = session.messages().count("cannot be suspended")
            await session.press("ctrl+z")
            await session.until(
                lambda before=before: session.messages().count("cannot be suspended") > before  # type: ignore[misc]
            )
        area = session.app.screen.query_one("#text", TextArea)
        await session.focus(area)
        text = area.text
        await session.press("x")
        assert area.text != text
        await session.press("ctrl+z")
        assert area.text == text


async def test_help_lists_every_action(start: Start) -> None:
    async with start(wait="87/200", size=(120, 60)) as session:
        await session.press("question_mark")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))
        table = session.app.screen.query_one(KeyTable)
        await session.until(lambda: table.size.width > 40)
        text = "\n".join(line.plain for line in table.lines(90))
        here = [action for action in ACTIONS if action.is_in("home")]
        assert [action.id for action in here if session.app.help_of(action) not in text] == []
        await session.until_text("Panels")
        await session.press(*["pagedown"] * 6)
        await session.until_text("Quit; runs on the box continue")
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_help_opens_again_at_its_top_with_what_holds_then(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("question_mark")
        await session.until_text("esc closes")
        await session.press(*["pagedown"] * 8)
        await session.until_text("Quit; runs on the box continue")
        await session.press("escape", "question_mark")
        await session.until_text("esc closes", "Launch a run")
        assert "not connected to the box" not in session.text()
        await session.press("escape")
        session.client.on_event(LinkChanged(Link.LOST, "gone"))
        await session.until(lambda: not session.app.store.connected)
        await session.press("question_mark")
        await session.until_text("not connected to the box")


async def test_help_shows_the_keys_of_each_view(start: Start) -> None:
    async with start(wait="87/200", size=(120, 60)) as session:
        for key, view in (("2", "charts"), ("3", "rollouts"), ("1", "home")):
            await session.press(key)
            await session.until(lambda view=view: session.app.views.name == view)
            await session.press("question_mark")
            await session.until_text("esc closes", view.title())
            table = session.app.screen.query_one(KeyTable)
            shown = [row.help for row in table.rows if row.keys]
            here = [session.app.help_of(action) for action in ACTIONS if action.is_in(view)]
            assert sorted(shown) == sorted([*here, *(text for _, text in PANELS)])
            await session.press("escape")


@pytest.mark.parametrize(("size", "columns"), [((80, 24), 1), ((120, 40), 2), ((200, 60), 2)])
async def test_help_is_filtered(start: Start, size: tuple[int, int], columns: int) -> None:
    async with start(wait="87/200", size=size) as session:
        await opened(session, "question_mark", HelpScreen)
        table = session.app.screen.query_one(KeyTable)
        await session.until(lambda: table.size.width > 60)
        headings = table.lines(table.size.width)[0].plain.split()
        assert len(headings) == columns, headings
        for typed, found, hidden in (("read back", "Verify the backup", "Launch a run"), ("B", "Back up", "Verify")):
            await session.press(*("space" if letter == " " else letter for letter in typed))
            await session.until(
                lambda found=found, hidden=hidden: found in session.text() and hidden not in session.text()  # type: ignore[misc]
            )
            await session.press("escape")
            await session.until_text("Mark the run")
        await session.press(*"xyzzy")
        await session.until_text("no action has “xyzzy”")
        await session.press("escape", "escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_help_fits_a_terminal_that_was_resized(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("question_mark")
        await session.until_text("esc closes")
        await session.press("escape")
        await session.pilot.resize_terminal(80, 24)
        await session.press("question_mark")
        await session.until_text("esc closes")
        frame = session.app.screen.query_one("#dialog")
        await session.until(lambda: frame.region.height == 24, "the frame on the whole screen")
        assert session.app.screen.region.contains_region(frame.region)


async def test_palette_lists_every_action(start: Start) -> None:
    async with start(wait="87/200") as session:
        offered = {command.title for command in commands(session.app)}
        assert {
            f"{action.label}: {session.app.help_of(action)}"
            for action in ACTIONS
            if action.id != "palette" and action.is_in("home")
        } <= offered
        assert {"screenshot", "theme"} <= offered
        await session.press("colon")
        text = await session.until_text("Search for commands", "archive: ")
        lines = {line.split(":")[0].strip(): line.rstrip(" ▁▂▃▄▅▆▇█") for line in text.splitlines() if ": " in line}
        assert lines["archive"].endswith(" A"), "one line a command, its key at the right"
        assert lines["clean up"].endswith("has no backup  C")
        await session.press(*"evaluate check")
        await session.until_text("eval: Evaluate checkpoints")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen))


async def test_quit_names_the_live_runs(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("q")
        await session.until(lambda: not session.app.is_running or session.app._exit)
        message = str(session.app._exit_renderables)
        assert "continues on box h200-a" in message
        assert RUN in message
        assert not session.client.asked_for("kill")
    assert session.client.closed


async def test_keymap_changes_key_and_key_bar(start: Start) -> None:
    keymap = {"help": "f5"}
    async with start(wait="87/200", keymap=keymap) as session:
        await session.until_text("f5 help")
        await session.press("f5")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))


async def test_the_way_back_names_the_root(start: Start) -> None:
    async with start(wait="87/200", root="/my runs") as session:
        await session.press("q")
        await session.until(lambda: session.app._exit)
        assert "grpo-tui --box h200-a --root '/my runs'" in str(session.app._exit_renderables)
