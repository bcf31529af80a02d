"""Every action of a box whose disk has failed: what it says is on the screen or in the messages, and the app lives."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.kit.desk import SelectRun
from remote.protocol import OPERATIONS, RemoteError
from tests.tui.conftest import Session, Start, opened, problem
from tests.tui.fake import FakeClient
from tests.tui.fake_rows import RUN
from tests.tui.test_actions import VIEWS
from tests.tui.test_every_action import actions_in, show
from tests.tui.views.compare.test_screen import box

SAID = "the disk of the box has failed"
ELSEWHERE = ("quit", "suspend", "palette", "attach", "attach_session", "shell")
"""They leave the app, or are other programs."""


UNASKED = {"capture_pane", "series", "show_run"}
"""What views ask for by themselves."""


def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
    raise RemoteError("io", SAID)


async def leave(session: Session) -> None:
    """Close what an action opened."""
    view = session.app.views.shown
    for _ in range(4):
        if session.app.screen is view:
            return
        await session.press("escape")
    raise AssertionError(f"what opened does not close\n{session.text()}")


@pytest.mark.parametrize("view", VIEWS)
async def test_each_action_says_why(start: Start, view: str) -> None:
    async with start(box, wait="87/200") as session:
        await show(session, view)
        client = session.client
        client.answers = dict.fromkeys(OPERATIONS, refuse)
        silent = []
        for action in [one for one in actions_in(session, view) if one.id not in ELSEWHERE]:
            session.app.post_message(SelectRun(RUN))
            session.app.views.show(view)
            await session.until(lambda: session.app.screen is session.app.views.shown)
            await session.until(lambda: session.app.store.selected == RUN)
            asked, said = len(client.asked), len(session.said)
            await session.press(action.keys[0])
            await session.press(*["escape"] * (action.id == "launch"))  # the form covers the line at the bottom
            await session.pass_time(1.0)
            text = session.text() + "\n".join(session.said[said:])
            assert session.app.return_code is None, action.id
            new = [op for op, _ in client.asked[asked:] if op not in UNASKED]
            if new and SAID not in " ".join(text.split()):
                silent.append((action.id, new, session.text()))
            await leave(session)
        print(*(f"{name} {ops}\n{shown}" for name, ops, shown in silent), sep="\n")
        assert not [name for name, *_ in silent]


async def test_checks_that_failed_say_so(start: Start) -> None:
    def script(client: FakeClient) -> None:
        box(client)
        client.answers["doctor"] = refuse

    async with start(script, wait="87/200") as session:
        await session.press("5")
        await session.until_text(f"✖ {SAID}; asked again with the next link")


async def test_a_config_that_cannot_be_read_says_so(start: Start) -> None:
    def script(client: FakeClient) -> None:
        box(client)
        client.answers["list_configs"] = {"folder": "/x", "configs": [{"name": "theirs.yaml", "description": ""}]}
        client.answers |= {"read_config": refuse, "list_weights": refuse}

    async with start(script, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until(lambda: SAID in problem(session))
