"""The rollouts view on evaluated checkpoints: problems that were lost and gained between them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, evaluated_box, learning_box
from tests.tui.fake_rows import RUN, jsonl
from tests.tui.views.rollouts.test_screen import at, rollouts


async def test_what_a_checkpoint_lost(start: Start) -> None:
    async with start(evaluated_box, wait="87/200") as session:
        screen = await rollouts(session)
        await session.press("F")
        assert "lost and gained problems are shown for evaluations" in session.messages()
        await session.until(lambda: session.app.store.shown_at is not None)
        await session.press("v")
        await session.until_text("evaluation of addition", "step 20 · problems", "4 problems", "2 evaluated")
        await session.press("F")
        await session.until_text("lost against step 10", "What is 2 + 1?", "1 of 4 problems", "before")
        await session.press("l")
        await session.until_text("sample 0 beside sample 0 of step 10", "✖ wrong", "✔ right")
        await session.press("ctrl+f")
        assert "each evaluated step has its own file" in session.messages()
        await session.press("escape", "F")
        await session.until_text("gained against step 10", "What is 1 + 1?")
        await session.press("slash", *"reward=7", "enter")
        await session.until_text("no problem that was gained", "none of them matches")
        await session.press("escape")
        await session.until_text("gained against step 10", "What is 1 + 1?")
        await session.press("F", "G")
        await session.until_text("4 problems")
        await session.until(lambda: at(screen)[1] == 3)
        await session.press("h", "j")
        await session.until(lambda: at(screen) == (10, 3, 0), "the same problem at the other checkpoint")
        await session.press("v")
        await session.until(lambda: at(screen)[0] == 87)


async def test_the_first_escape_clears_the_filter_of_lost_problems(start: Start) -> None:
    async with start(evaluated_box, wait="87/200") as session:
        await rollouts(session)
        await session.until(lambda: session.app.store.shown_at is not None)
        await session.press("v")
        await session.until_text("evaluation of addition", "step 20 · problems", "2 evaluated")
        await session.press("F")
        await session.until_text("lost against step 10", "What is 2 + 1?", "before")
        await session.press("slash", *"reward=7", "enter")
        await session.until_text("no problem that was lost")
        await session.press("escape")
        await session.until_text("What is 2 + 1?", "before")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"problems": "a", "split": "test"}, {"problems": "b", "split": "test"}, "other problems"),
        (
            {"problems": "a", "decoding": {"max_completion_length": 24}},
            {"problems": "a", "decoding": {"max_completion_length": 48}},
            "max_completion_length 24 against 48",
        ),
        ({"problems": "a"}, None, "the second one does not say how it was graded"),
    ],
)
async def test_steps_graded_differently_say_so(
    start: Start, before: dict[str, Any], now: dict[str, Any] | None, words: str
) -> None:
    def script(client: FakeClient) -> None:
        evaluated_box(client)
        for step, samples in ((10, before), (20, now)):
            if samples is not None:
                key = {"samples": {**samples, "weights": step, "seed": step}, "grading": {"grader": "g"}}
                file = f"eval_runs/{RUN}_addition/step_{step}_addition/summary.json"
                client.files[file] = jsonl([{"key": key}])

    async with start(script, wait="87/200") as session:
        screen = await rollouts(session)
        await session.until(lambda: session.app.store.shown_at is not None)
        await session.press("v")
        await session.until_text("step 20 · problems", "4 problems")
        await session.press("F")
        await session.until_text("▲ not comparable", "cannot be compared", "0 of 4 problems")
        assert words in screen._message()
        await session.press("F", "F")
        await session.until_text("4 problems", "What is 2 + 1?")


async def test_a_run_without_evaluations(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).answers["show_run"] = {"run": RUN, "checkpoints": [], "evaluations": []}

    async with start(script, wait="87/200") as session:
        await rollouts(session)
        await session.press("v")
        assert "no evaluated checkpoint" in session.messages()
