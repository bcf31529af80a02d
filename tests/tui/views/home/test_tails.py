from __future__ import annotations

import pytest

from grpo_train.run_dir.display import metric_value
from grpo_tui.kit.lists import LinesPanel
from tests.tui.conftest import Start, logs_of
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, jsonl, train_rows


async def test_new_lines_do_not_move_the_reader(start: Start) -> None:
    async with start(wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        await session.until(lambda: panel._end == 87)
        await session.focus(panel)
        await session.press("pageup", "pageup")
        await session.until(lambda: panel._anchor is not None)
        before = panel._anchor
        top = panel.render_line(0).text
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(120)[87:]))
        await session.until_text("paused, 33 new")
        assert panel._anchor == before
        assert panel.render_line(0).text == top
        await session.press("end")
        await session.until(lambda: panel._anchor is None and "step 120" in session.text())


@pytest.mark.parametrize(("reward", "tone"), [(1.5, "chart-reward"), (0.0, "grpo-muted"), (-0.5, "error")])
async def test_only_a_positive_reward_is_green(start: Start, reward: float, tone: str) -> None:
    def script(client: FakeClient) -> None:
        rows = [{**row, "reward": reward} for row in train_rows(87)]
        learning_box(client).files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        await session.until(lambda: panel._end == 87)
        line = panel.source.line(86, 80, panel.palette)
        found = line.plain.index(f" {metric_value(reward)} ") + 1
        (style,) = (span.style for span in line.spans if span.start == found)
        assert style == session.app.theme_variables[tone]


async def test_dropped_lines_do_not_move_the_reader(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.box.log.ROWS_KEPT", 100)
    async with start(wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        await session.until(lambda: panel._end == 87)
        await session.focus(panel)
        await session.press("pageup")
        await session.until(lambda: panel._anchor is not None)
        top = panel.render_line(0).text
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(130)[87:]))
        await session.until(lambda: logs_of(session).rows.first == 30)
        await session.pass_time(2)
        assert panel.render_line(0).text == top


async def test_lines_that_arrive_before_the_panel_is_updated_are_shown(start: Start) -> None:
    """The screen may be painted at any time between two ticks."""

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[f"{LOGS}/console.log"] = b""

    async with start(script, wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        logs = session.app.store.logs
        assert logs is not None
        await session.press("l")
        await session.until_text("no output yet")
        panel.content_changed()  # as at a tick
        logs.feed("console", 0, b"first line\nlast line\n")
        assert "first line" not in session.text(), "painted, with what the last tick knew"
        panel.tick()
        await session.until_text("first line", "last line")


async def test_very_long_line_is_truncated(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[f"{LOGS}/console.log"] = b"x" * 900_000 + b"\nlast line\n"

    async with start(script, wait="87/200") as session:
        await session.press("l")
        await session.until_text("xxxx", "last line")
