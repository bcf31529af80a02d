from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Button, Input, Select

from grpo_tui.dialogs.evaluate import EvalScreen
from grpo_tui.views.home.screen import HomeScreen
from remote.protocol import RemoteError
from tests.tui.conftest import Start, fill, opened, problem
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, knowing_box, learning_box
from tests.tui.fake_rows import RUN


async def test_evaluate(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("e")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen))
        await session.until_text("--training-run run_gsm8k_demo --steps latest")
        session.app.screen.query_one("#steps", Select).value = "list"
        session.app.screen.query_one("#list", Input).value = "10,40"
        await session.until_text("step 40 has no complete checkpoint")
        session.app.screen.query_one("#list", Input).value = "10, 20"
        session.app.screen.query_one("#fraction", Input).value = "0.25"
        session.app.screen.query_one("#samples", Input).value = "0"
        await session.until_text("samples: must be an integer of 1 or more")
        session.app.screen.query_one("#samples", Input).value = "8"
        session.app.screen.query_one("#temperature", Input).value = "0"
        await session.until_text("greedy samples are identical")
        session.app.screen.query_one("#temperature", Input).value = "hot"
        await session.until_text("temperature: must be a number, not 'hot'")
        session.app.screen.query_one("#temperature", Input).value = "0.6"
        await session.until_text("--steps 10,20")
        await session.until_text("✔ steps 10, 20 on the task of the run · 25 % of the held-out problems · 8 samples")
        await session.focus("#go")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        request = session.client.asked_for("evaluate")[-1]
        assert (request["steps"], request["subset_frac"], request["dry_run"]) == ("10,20", 0.25, False)
        assert (request["num_samples"], request["temperature"]) == (8, 0.6)
        await session.until(lambda: "evaluation started" in session.messages())


async def test_failed_evaluation_shows_its_output(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["capture_pane"] = {
            "text": "evaluating\n\nerror: no task is called 'gsm9k'; did you mean gsm8k?\nPane is dead (status 2)\n\n"
        }
        client.sessions.append({"name": f"eval_{RUN}", "run": RUN, "dead": False})

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.evaluating())
        session.client.sessions[-1] |= {"dead": True, "exit_status": 2}
        session.client.report()
        await session.until(lambda: "no task is called 'gsm9k'; did you mean gsm8k?" in session.messages())
        assert "Pane is dead" not in session.messages()


async def test_enter_evaluates_the_latest(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("e")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen) and session.app.focused is not None)
        await session.until_text("--steps latest")
        assert session.app.focused is not None
        assert session.app.focused.id == "go"
        await session.press("enter")
        await session.until(lambda: session.client.asked_for("evaluate")[-1]["dry_run"] is False)


async def test_misspelled_dataset_is_flagged(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "aditon")
        await session.until_text("unknown task 'aditon' on this box; did you mean addition?")
        assert session.app.screen.query_one("#go", Button).disabled
        fill(session, "dataset", "imagenet")
        await session.until(lambda: "known tasks: addition, gsm8k, gsm8k_r1_template, mbpp" in problem(session))
        for right in ("gsm8k_r1_template", "my_tasks:riddles", "mbpp"):
            fill(session, "dataset", right)
            await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled, right)
        assert len(session.client.asked_for("list_tasks")) == 1


async def test_dataset_name_is_completed(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until(lambda: session.app.screen.query_one("#dataset", Input).suggester is not None)
        await session.focus("#dataset")
        await session.press("A", "d", "d")
        await session.until_text("Addition")
        await session.press("right")
        assert session.app.screen.query_one("#dataset", Input).value == "addition"


async def test_unlisted_tasks_are_left_to_the_engine(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("no_answer", "grpo-train tasks did not list its tasks")

    def script(client: FakeClient) -> None:
        knowing_box(client).answers["list_tasks"] = refuse

    async with start(script, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "brand_new")
        await session.until(
            lambda: "brand_new" in [request.get("eval_dataset") for request in session.client.asked_for("evaluate")]
        )
        await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled)


async def test_invalid_numbers_are_flagged(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        go = session.app.screen.query_one("#go", Button)
        for field, value, message in (
            ("samples", "nan", "samples: must be an integer of 1 or more, not nan"),
            ("samples", "inf", "samples: must be an integer of 1 or more, not inf"),
            ("samples", "2.5", "samples: must be an integer of 1 or more, not 2.5"),
            ("samples", "eight", "samples: must be a number, not 'eight'"),
            ("temperature", "-1", "temperature: must be 0 (greedy) or more, not -1"),
            ("temperature", "nan", "temperature: must be 0 (greedy) or more, not nan"),
            ("fraction", "50%", "fraction: must be a number, not '50%'"),
            ("fraction", "nan", "fraction: must be above 0 and at most 1, not nan"),
        ):
            await session.until(lambda: not go.disabled, "a valid form")
            fill(session, field, value)
            await session.until_text(message)
            assert go.disabled, message
            fill(session, field, "")


async def test_list_of_steps(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until_text("--steps latest")
        assert "step numbers separated by commas" not in session.text()
        session.app.screen.query_one("#steps", Select).value = "list"
        await session.until_text("step numbers separated by commas: 10,20,30", "steps: enter step numbers")
        assert session.app.focused is session.app.screen.query_one("#list")
        for typed, message in (
            ("10, 20,, 10 ,", "--steps 10,20"),
            ("²", "'²' is not a step number"),
            ("5-20", "'5-20' is not a step"),
        ):
            fill(session, "list", typed)
            await session.until_text(message)
        session.app.screen.query_one("#steps", Select).value = "0,10,20,30"
        await session.until_text("all checkpoints (3) and the starting model", "--steps 0,10,20,30")
        session.app.screen.query_one("#steps", Select).value = "all"
        await session.until_text("--steps all")
        assert "step numbers separated by commas" not in session.text()


async def test_dataset_path_is_sent(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "gsm8k")
        fill(session, "path", " /data/my sums ")
        await session.until(lambda: session.app.screen.ready and session.app.screen.ready.eval_path)
        session.app.screen.query_one("#go", Button).press()
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        request = session.client.asked_for("evaluate")[-1]
        assert (request["eval_dataset"], request["eval_path"]) == ("gsm8k", "/data/my sums")


async def test_failed_evaluation_shows_last_lines_only(start: Start) -> None:
    output = "".join(f"noise {line}\n" for line in range(9)) + "error: task.path is not set\nset task.path\n"

    def script(client: FakeClient) -> None:
        knowing_box(client).answers["capture_pane"] = {"text": output + "Pane is dead (status 2)\n"}
        client.sessions.append({"name": f"eval_{RUN}", "run": RUN, "dead": False})

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.evaluating())
        session.client.sessions[-1] |= {"dead": True, "exit_status": 2}
        session.client.report()
        await session.until(lambda: "error: task.path is not set set task.path" in session.messages())
        assert "noise 0" not in session.messages()


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_an_evaluation_at_work_is_counted_beside_the_checkpoints(start: Start, size: tuple[int, int]) -> None:
    def script(client: FakeClient) -> None:
        show = DEFAULT_ANSWERS["show_run"]
        work = {"name": f"{RUN}_gsm8k", "target": "step_20", "done": 512, "total": 1_024}
        found = {"evaluations": [{**work, "metrics": []}]}
        learning_box(client).answers["show_run"] = lambda *asked: {**show(*asked), **found}
        client.sessions.append({"name": f"eval_{RUN}", "run": RUN, "dead": False})

    async with start(script, wait="87/200", size=size) as session:
        await session.until(lambda: session.app.store.evaluating() == "step_20: 512/1,024 done")
        await session.until_text("◆ step_20: 512/1,024 done", "step_30 ")
