from __future__ import annotations

from grpo_tui.kit.dialog import QuestionScreen
from remote.events import QuestionAsked, QuestionWithdrawn
from tests.tui.conftest import Start


async def test_questions_of_ssh(start: Start) -> None:
    async with start(wait="87/200") as session:
        client = session.client
        for kind, keys, answer in (
            ("password", [*"s3cret", "enter"], "s3cret"),
            ("prompt", [*"123456", "tab", "tab", "enter"], "123456"),
            ("passphrase", ["escape"], None),
            ("confirm", ["tab", "enter"], "yes"),
            ("confirm", ["enter"], None),
        ):
            given = len(client.answers_given)
            client.on_event(QuestionAsked("root@192.0.2.10's password:", False, kind))
            await session.until(lambda: isinstance(session.app.screen, QuestionScreen))
            await session.until_text("log in to", "root@192.0.2.10's password:")
            await session.press(*keys[:-1])
            assert "s3cret" not in session.text()
            await session.press(keys[-1])
            await session.until(lambda given=given: len(client.answers_given) > given)
            assert client.answers_given[-1] == answer
            await session.until(lambda: not isinstance(session.app.screen, QuestionScreen))


async def test_a_key_to_touch(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.on_event(QuestionAsked("Confirm user presence for key ED25519-SK", False, "touch"))
        await session.until_text("user presence", "closes by itself")
        session.client.on_event(QuestionWithdrawn())
        await session.until(lambda: not isinstance(session.app.screen, QuestionScreen))
        assert session.client.answers_given == []
