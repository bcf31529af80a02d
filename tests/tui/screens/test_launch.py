from __future__ import annotations

from dataclasses import replace

import pytest
from rich.text import Text
from textual import events
from textual.widgets import Button, Input, Select, TextArea

from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.views.home.screen import HomeScreen
from remote.protocol import RemoteError
from tests.tui.conftest import BOX, Start, fill, opened, problem
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, knowing_box, learning_box
from tests.tui.fake_rows import RUN


async def test_launch(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until(lambda: isinstance(session.app.screen, LaunchScreen))
        await session.until_text("/opt/grpo-train supervise run_new", "shell equivalent", "5 steps of 32 prompts")
        session.app.screen.query_one("#overrides", Input).value = "run.total_steps=9 run.save_evry=1"
        await session.until_text("unknown key 'run.save_evry'; did you mean run.save_every?")
        assert session.app.screen.query_one("#go").disabled
        session.app.screen.query_one("#overrides", Input).value = "run.total_steps=9"
        session.app.screen.query_one("#nproc", Input).value = "2"
        session.app.screen.query_one("#run-name", Input).value = "mine"
        await session.until_text("supervise mine", "9 steps of 32 prompts", "2 processes")
        checkpoints = session.app.screen.query_one("#ckpt", Select)
        checkpoints.value = f"training_runs/{RUN}/training_state/step_30"
        await session.until(lambda: session.client.asked_for("launch")[-1].get("ckpt"))
        await session.until(lambda: not session.app.screen.query_one("#go").disabled)
        await session.focus("#go")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        request = session.client.asked_for("launch")[-1]
        assert request["dry_run"] is False
        assert (request["nproc"], request["run_name"], request["overrides"]) == (2, "mine", ["run.total_steps=9"])
        assert request["ckpt"].endswith("step_30")
        assert request["idempotency_key"]
        await session.until(lambda: session.app.store.selected == "mine")
        await session.until(lambda: "mine launched" in session.messages())


async def test_weights_on_the_box_are_offered(start: Start) -> None:
    def script(client: FakeClient) -> None:
        weights = {"name": "mine/step_10", "path": "lora_checkpoints/mine/step_10", "kind": "adapter", "modified": ""}
        learning_box(client).answers["list_weights"] = {"weights": [weights]}

    async with start(script, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        select = session.app.screen.query_one("#ckpt", Select)
        await session.until(
            lambda: (Text("mine/step_10  (adapter)"), "lora_checkpoints/mine/step_10") in select._options
        )
        select.value = "lora_checkpoints/mine/step_10"
        path = "lora_checkpoints/mine/step_10"
        await session.until(lambda: path in [one.get("ckpt") for one in session.client.asked_for("launch")])


async def test_path_of_weights_is_checked_by_the_box(start: Start) -> None:
    def check(client: FakeClient, params: dict[str, str]) -> dict[str, str]:
        right = params["path"] == "/data/model"
        return {"path": params["path"], "kind": "model" * right, "problem": "" if right else "not a directory"}

    def script(client: FakeClient) -> None:
        learning_box(client).answers["check_weights"] = check

    async with start(script, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until_text("5 steps of 32 prompts")
        session.app.screen.query_one("#ckpt", Select).value = "path"
        await session.until_text("start from: enter a directory on the box")
        fill(session, "ckpt-path", "/data/modle")
        await session.until(lambda: "start from: /data/modle: not a directory" in problem(session))
        assert session.app.screen.query_one("#go").disabled
        fill(session, "ckpt-path", "/data/model")
        await session.until(lambda: not session.app.screen.query_one("#go").disabled)
        assert session.client.asked_for("launch")[-1]["ckpt"] == "/data/model"


async def test_pasted_lines_are_one_line(start: Start) -> None:
    async with start(wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.focus("#overrides")
        session.app.post_message(events.Paste("run.total_steps=9\nrun.seed=3\r\n"))
        words = ["run.total_steps=9", "run.seed=3"]
        await session.until(lambda: any(asked["overrides"] == words for asked in session.client.asked_for("launch")))


async def test_overrides_are_split_like_in_a_shell(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until_text("5 steps of 32 prompts")
        session.app.screen.query_one("#overrides", Input).value = "'task.path=/my data"
        await session.until_text("overrides: no closing quotation", "quote a value with spaces")
        assert session.app.screen.query_one("#go").disabled
        session.app.screen.query_one("#overrides", Input).value = "'task.path=/my data' run.total_steps=9"
        await session.until_text("9 steps of 32 prompts")
        assert session.client.asked_for("launch")[-1]["overrides"] == ["task.path=/my data", "run.total_steps=9"]


async def test_what_a_job_asks_for_is_shown_and_changed(start: Start) -> None:
    box = replace(BOX, scheduler="slurm", slurm={"partition": "gpu", "gpus": 8, "options": ["--exclusive"]})
    async with start(box=box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until_text(
            "· job: partition=gpu", "gpus=8 options=--exclusive", "changes for this run: time=2:00:00 gpus=4"
        )
        fill(session, "job", "gpus=many")
        await session.until(lambda: "job: 'gpus' must be an integer" in problem(session))
        fill(session, "job", "gpus=4 time=2:00:00")
        await session.until_text("job: partition=gpu", "time=2:00:00 gpus=4 options=--exclusive")
        await session.focus("#go")
        await session.press("enter")
        await session.until(lambda: not isinstance(session.app.screen, LaunchScreen))
        assert session.client.asked_for("launch")[-1]["slurm"] == ["gpus=4", "time=2:00:00"]


async def test_form_scrolls_on_tiny_screens(start: Start) -> None:
    async with start(size=(60, 15), wait="87/200") as session:
        await session.press("n")
        screen = await session.until_text("5 steps of", "supervise run_new", "Cancel", "Launch")
        assert "run name" not in screen
        await session.focus("#run-name")
        await session.until_text("run name", "Cancel", "Launch")


async def test_edited_config_is_validated(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until_text("5 steps of 32 prompts")
        session.app.screen.query_one("#text", TextArea).text = "run:\n  total_steps: many\n"
        await session.until_text("line 2", "total_steps")
        session.app.screen.query_one("#text", TextArea).text = "rollout:\n  buffer_size: 7\n"
        await session.until_text("rollout.buffer_size 7 is not divisible")


async def test_refused_launch_stays_in_the_form(start: Start) -> None:
    def refuse(client: FakeClient, params: dict) -> dict:  # type: ignore[type-arg]
        raise RemoteError("no_tmux", "tmux is not installed on this box", "sudo apt-get install -y tmux")

    async with start(wait="87/200") as session:
        session.client.answers["launch"] = refuse
        await session.press("n")
        await session.until_text("tmux is not installed on this box", "sudo apt-get install -y tmux")
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_misspelled_tasks_are_flagged(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        text, go = session.app.screen.query_one("#text", TextArea), session.app.screen.query_one("#go", Button)
        await session.until(lambda: text.text)
        for config, message in (
            ("task: {name: aditon}\n", "task.name: unknown task 'aditon' on this box; did you mean addition?"),
            ("eval: {datasets: [gsm8k, mpbb]}\n", "eval.datasets: unknown task 'mpbb' on this box; did you mean mbpp?"),
        ):
            text.text = config
            await session.until(lambda message=message: message in problem(session), message)
            assert go.disabled
            text.text = "task: {name: addition}\n"
            await session.until(lambda: not go.disabled)


@pytest.mark.parametrize(("size", "shown"), [((120, 40), 5), ((80, 24), 2)])
async def test_many_problems_are_counted(start: Start, size: tuple[int, int], shown: int) -> None:
    async with start(knowing_box, size=size, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until(lambda: session.app.screen.query_one("#text", TextArea).text)
        session.app.screen.query_one("#text", TextArea).text = "".join(f"nonsense{number}: 1\n" for number in range(9))
        await session.until(lambda: "unknown key" in problem(session))
        message = problem(session).splitlines()
        assert (len(message), message[-1]) == (shown + 1, f"… and {9 - shown} more")


async def test_the_name_that_is_shown_is_used(start: Start) -> None:
    names = [f"run_2026-11-22_02-05-{second}" for second in (19, 20, 21, 22, 23, 24, 25, 26, 27)]

    def launch(client: FakeClient, params: dict) -> dict:  # type: ignore[type-arg]
        run = params.get("run_name") or names.pop(0)
        if not params["dry_run"] and run in taken:
            raise RemoteError("name_taken", f"a run named {run} already exists")
        return {"run": run, "argv": ["grpo-train", "supervise", run], "started": not params["dry_run"]}

    taken: list[str] = []

    async with start(wait="87/200") as session:
        session.client.answers["launch"] = launch
        await opened(session, "n", LaunchScreen)
        await session.until(lambda: session.app.screen.ready)  # type: ignore[attr-defined]
        shown = session.app.screen._shown_reply["run"]  # type: ignore[attr-defined]
        await session.until_text(f"supervise {shown}")
        taken.append(shown)  # by somebody else, in the same second
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        sent = [request["run_name"] for request in session.client.asked_for("launch") if not request["dry_run"]]
        assert sent[0] == shown
        assert len(sent) == 2
        assert sent[1] not in taken


async def test_time_and_cost_are_estimated_before(start: Start) -> None:
    """From the box's seconds, at the price of boxes.yaml."""

    def script(client: FakeClient) -> None:
        launch = DEFAULT_ANSWERS["launch"]
        found = {"low": 11_400.0, "high": 18_000.0, "basis": "bench of NVIDIA H100 80GB HBM3", "factor": 1.5}
        learning_box(client).answers["launch"] = lambda *asked: {**launch(*asked), "estimate": found}

    async with start(script, wait="87/200", box=replace(BOX, price_per_hour=2.99)) as session:
        await opened(session, "n", LaunchScreen)
        await session.until_text(
            "about 3 h 10 m to 5 h 00 m, $9.47 to $14.95 at $2.99/h · within a factor of 1.5",
            "from bench of NVIDIA H100 80GB HBM3",
        )


async def test_what_the_box_says_about_a_launch_is_shown(start: Start) -> None:
    def script(client: FakeClient) -> None:
        planned = DEFAULT_ANSWERS["launch"]
        learning_box(client).answers["launch"] = lambda *asked: {
            **planned(*asked),
            "note": "notify.url: $HOOK is not set",
        }

    async with start(script, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until_text("5 steps of 32 prompts", "notify.url: $HOOK is not set")
