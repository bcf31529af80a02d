"""Home: from a checkpoint to its completions; what the list does not know."""

from __future__ import annotations

import pytest

from grpo_tui.widgets.checkpoints_line import CheckpointsLine
from grpo_tui.widgets.summary import SummaryPanel
from tests.tui.conftest import Start
from tests.tui.fake import evaluated_box


async def test_enter_on_a_checkpoint_opens_its_completions(start: Start) -> None:
    async with start(evaluated_box, wait="87/200") as session:
        await session.until(lambda: session.app.store.shown_at is not None, "the checkpoints")
        panel = session.app.home.query_one(SummaryPanel)
        await session.focus(panel)
        await session.press("right")
        await session.until(lambda: panel.checkpoint is not None and panel.checkpoint.step == 20, "the cursor")
        await session.press("right", "left", "enter")
        await session.until_text("evaluation of addition", "step 20 · problems", "4 problems")
        await session.press("escape")
        await session.until(lambda: session.app.views.name == "home", "one step out")
        await session.press("left", "enter")
        await session.until(lambda: "step_30 has no evaluation; e evaluates it" in session.notifications())
        assert session.app.views.name == "home"


async def test_a_click_on_a_checkpoint_opens_it(start: Start) -> None:
    async with start(evaluated_box, wait="87/200", size=(160, 40), paints=True) as session:
        await session.until(lambda: session.app.store.shown_at is not None, "the checkpoints")
        line = session.app.home.query_one(CheckpointsLine)
        await session.until(lambda: any(step == 20 for *_, step in line._spans), "the line is laid out")
        start_x = next(begin for begin, _, step in line._spans if step == 20)
        await session.pilot.click(CheckpointsLine, offset=(start_x + 1, 0))
        await session.until_text("evaluation of addition", "step 20 · problems")


async def test_the_list_says_which_runs_have_no_metrics(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.model.run_list.MOST_RUNS", 3)
    async with start(wait="87/200") as session:
        assert "newest" not in session.text()
        await session.press("slash", *"lr>0", "enter")
        await session.until_text("▲ config and metrics of the newest", "not of 1 older")
