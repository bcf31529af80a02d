from __future__ import annotations

from grpo_tui.actions.registry import ACTIONS
from grpo_tui.forms.evaluate import EvalScreen
from grpo_tui.screens.help import HelpScreen
from grpo_tui.screens.home import HomeScreen
from grpo_tui.widgets.key_table import KeyTable
from tests.tui.conftest import Start
from tests.tui.fake import RUN


async def test_ctrl_c_does_not_quit(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("ctrl+c")
        await session.until(lambda: "Ctrl+Q quits" in session.notifications())
        assert session.app.is_running


async def test_help_lists_every_action(start: Start) -> None:
    async with start(wait="87/200", size=(120, 60)) as session:
        await session.press("question_mark")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))
        table = session.app.screen.query_one(KeyTable)
        await session.until(lambda: table.size.width > 40)
        text = "\n".join(line.plain for line in table.lines(table.size.width))
        assert [action.id for action in ACTIONS if action.is_in("home") and action.help not in text] == []
        await session.until_text("Panels")
        await session.press("G")
        await session.until_text("Quit; runs on the box continue")
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_palette_lists_every_action(start: Start) -> None:
    async with start(wait="87/200") as session:
        offered = {command.title for command in session.app.get_system_commands(session.app.screen)}
        assert {
            f"{action.label}: {action.help}" for action in ACTIONS if action.id != "palette" and action.is_in("home")
        } <= offered
        assert {"screenshot", "theme"} <= offered
        await session.press("colon")
        await session.until_text("Search for commands")
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
        assert "f5 help" in session.text()
        await session.press("f5")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))


async def test_the_way_back_names_the_root(start: Start) -> None:
    async with start(wait="87/200", root="/my runs") as session:
        await session.press("q")
        await session.until(lambda: session.app._exit)
        assert "grpo-tui --box h200-a --root '/my runs'" in str(session.app._exit_renderables)
