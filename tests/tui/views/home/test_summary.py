from __future__ import annotations

import pytest

from grpo_tui.kit.lists import LinesPanel
from grpo_tui.views.home.panels import HealthLine
from grpo_tui.views.home.summary import CheckpointsLine, SummaryPanel
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, ailing_box, evaluated_box, healthy_box
from tests.tui.fake_rows import LOGS, NEAR_ZERO, healthy, jsonl, train_rows

ALARM = {"code": "loss_not_finite", "level": "alarm", "message": "loss is NaN or Inf; the update was skipped"}


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40), (200, 60)])
async def test_warning_is_shown_while_it_holds(start: Start, size: tuple[int, int]) -> None:
    async with start(ailing_box, size=size, wait="87/200") as session:
        screen = await session.until_text("▲ warning: 57% of groups carry", "+2")
        assert "['" not in screen
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([healthy(row) for row in train_rows(88)[87:]]))
        await session.until_text("88/200")
        await session.until(lambda: "▲ warning: " not in session.text())


async def test_alarm_comes_first_in_red(start: Start) -> None:
    async with start(ailing_box, wait="87/200") as session:
        row = healthy(train_rows(88)[87], ALARM, NEAR_ZERO)
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([row]))
        await session.until_text("✖ alarm: loss is NaN or Inf; the", "+1", "step 88  ✖ reward")
        line = session.app.screen.query_one(HealthLine).render()
        assert any("$error" in str(span.style) for span in line.spans)


async def test_info_is_hidden_on_short_screens(start: Start) -> None:
    for size, shown in (((80, 24), False), ((120, 40), True)):
        async with start(lambda client: healthy_box(client, NEAR_ZERO), size=size, wait="87/200") as session:
            await session.until_text("step 87  ")
            await session.until(lambda shown=shown: (NEAR_ZERO["message"][:30] in session.text()) is shown)


async def test_log_without_health_has_no_line(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step 87")
        assert not session.app.screen.query_one(HealthLine).display


async def test_health_page_lists_everything(start: Start) -> None:
    async with start(ailing_box, wait="87/200") as session:
        await session.until_text("57% of groups")
        await session.pilot.click(HealthLine)
        await session.focus("#log")
        await session.press("enter")
        screen = await session.until_text(
            "since 60", "since 1 ", "a loss near zero is expected", "since 10", "about 212 prompt groups",
            "last 32", "effective sample size 43%", "· 3 steps since 30", "sequence .441", "b_simple 212.4",
            "b_simple_low NaN",
        )  # fmt: skip
        assert screen.index("since 60") < screen.index("since 10") < screen.index("last 32")


async def test_healthy_run_says_so(start: Start) -> None:
    async with start(healthy_box, wait="87/200") as session:
        await session.press("l", "l", "l", "l")
        await session.until_text("✔ healthy", "all_correct .500")


@pytest.mark.parametrize("level", ["strong", "weak"])
async def test_sandbox_level_is_shown(start: Start, level: str) -> None:
    def script(client: FakeClient) -> None:
        healthy_box(client)
        more = {"sandbox/isolation": level, "sandbox/denied_socket": 0.25, "hacking/hardcoded": 0.125}
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl([{**healthy(row), **more} for row in train_rows(87)])

    async with start(script, wait="87/200") as session:
        await session.until_text(f"sandbox {level}")
        await session.press("l", "l", "l", "l")
        await session.focus("#log")
        await session.press("enter")
        await session.until_text(f"isolation {level}", "denied_socket 0.250", "hardcoded 0.125")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_self_play_metrics_are_grouped(start: Start, size: tuple[int, int]) -> None:
    figures = {
        "self_play/turns": 5.75, "self_play/tictactoe/O/reward": -0.875, "self_play/tictactoe/X/reward": 0.125,
        "self_play/draw_rate": 0.0, "self_play/invalid_rate": 0.75, "self_play/no_reasoning": 1.0,
        "self_play/same_opening": 0.5, "self_play/tictactoe/O/win_rate": 0.25, "self_play/tictactoe/X/win_rate": 0.625,
    }  # fmt: skip

    def script(client: FakeClient) -> None:
        healthy_box(client)
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl([{**healthy(row), **figures} for row in train_rows(87)])

    async with start(script, size=size, wait="87/200") as session:
        log = session.app.screen.query_one("#log", LinesPanel)
        log.show_tab(next(at for at, source in enumerate(log.sources) if source.title == "health"))
        await session.focus(log)
        await session.press("enter")
        screen = await session.until_text(
            "turns 5.750", "invalid_rate 0.750", "no_reasoning 1.000", "same_opening 0.500",
            "tictactoe/O   reward -0.875   win_rate 0.250", "tictactoe/X   reward 0.125   win_rate 0.625",
            "sequence_clipped .520", "b_simple_completions 1699",
        )  # fmt: skip
        assert screen.index("turns 5.750") < screen.index("tictactoe/O") < screen.index("token_clipped")
        assert screen.count("self_play") == 1


async def test_metrics_of_a_new_task_are_shown(start: Start) -> None:
    def script(client: FakeClient) -> None:
        healthy_box(client)
        more = {"code_execution/right_output": 0.375, "memory/peak_gib": 3.5}
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl([{**healthy(row), **more} for row in train_rows(87)])

    async with start(script, wait="87/200") as session:
        await session.press("l", "l", "l", "l")
        await session.focus("#log")
        await session.press("enter")
        screen = await session.until_text("code_execution  right_output 0.375", "peak_gib 3.500")
        assert screen.index("all_correct") < screen.index("code_execution") < screen.index("sequence_clipped")
        assert screen.index("gns") < screen.index("peak_gib")


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
        await session.until(lambda: "step_30 has no evaluation; e evaluates it" in session.messages())
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
    monkeypatch.setattr("grpo_tui.box.run_list.MOST_RUNS", 3)
    async with start(wait="87/200") as session:
        assert "newest" not in session.text()
        await session.press("slash", *"lr>0", "enter")
        await session.until_text("▲ config and metrics of the newest", "not of 1 older")
