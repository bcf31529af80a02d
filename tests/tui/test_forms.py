"""What a clumsy hand gets from the forms: every slip is told in the form, before anything starts."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Button, Input, Select, Static, TextArea

from grpo_tui.forms.evaluate import EvalScreen
from grpo_tui.forms.launch import LaunchScreen
from grpo_tui.model.checkpoints import checkpoint_views
from grpo_tui.model.tasks import TaskNames
from grpo_tui.operations import local_configs
from grpo_tui.screens.dialog import ConfirmScreen, MessageScreen
from grpo_tui.screens.home import HomeScreen
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box

TASKS = {"addition": "sums", "gsm8k": "school", "gsm8k_r1_template": "school", "mbpp": "programs"}


def knowing_box(client: FakeClient) -> FakeClient:
    """A box whose engine lists its tasks."""
    learning_box(client)
    client.answers["list_tasks"] = {"tasks": TASKS}
    return client


async def opened(session: Session, key: str, screen: type) -> None:
    await session.press(key)
    await session.until(lambda: isinstance(session.app.screen, screen))


def fill(session: Session, field: str, value: str) -> None:
    session.app.screen.query_one(f"#{field}", Input).value = value


def problem(session: Session) -> str:
    """What the form says is wrong."""
    return str(session.app.screen.query_one("#problem", Static).content)


async def test_a_misspelled_dataset_is_told_in_the_form(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "aditon")
        await session.until_text("no task is called 'aditon' on this box; did you mean addition?")
        assert session.app.screen.query_one("#go", Button).disabled
        fill(session, "dataset", "imagenet")
        await session.until(lambda: "there are addition, gsm8k, gsm8k_r1_template, mbpp" in problem(session))
        for right in ("gsm8k_r1_template", "my_tasks:riddles", "mbpp"):
            fill(session, "dataset", right)
            await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled, right)
        assert len(session.client.asked_for("list_tasks")) == 1


async def test_the_rest_of_a_datasets_name_is_offered(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until(lambda: session.app.screen.query_one("#dataset", Input).suggester is not None)
        session.app.screen.query_one("#dataset", Input).focus()
        await session.press("A", "d", "d")
        await session.until_text("Addition")
        await session.press("right")
        assert session.app.screen.query_one("#dataset", Input).value == "addition"


async def test_a_box_that_cannot_list_its_tasks_leaves_names_to_the_engine(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("no_tasks", "the engine did not list its tasks")

    def script(client: FakeClient) -> None:
        knowing_box(client).answers["list_tasks"] = refuse

    async with start(script, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "brand_new")
        await session.until(
            lambda: "brand_new" in [order.get("eval_dataset") for order in session.client.asked_for("evaluate")]
        )
        await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled)


async def test_no_name_is_near_nothing() -> None:
    async def ask(op: str, **params: Any) -> dict[str, Any]:
        return {"tasks": {f"task_{number:02}": "" for number in range(20)}}

    words = await TaskNames(ask).problem("über")
    assert "there are task_00, task_01" in words
    assert "task_09" not in words
    assert await TaskNames(ask).problem("TASK_07") == "no task is called 'TASK_07' on this box; did you mean task_07?"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("task: {name: aditon}\n", "task.name: no task is called 'aditon' on this box; did you mean addition?"),
        (
            "eval: {datasets: [gsm8k, mpbb]}\n",
            "eval.datasets: no task is called 'mpbb' on this box; did you mean mbpp?",
        ),
    ],
)
async def test_a_misspelled_task_is_told_before_the_launch(start: Start, config: str, words: str) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until(lambda: session.app.screen.query_one("#text", TextArea).text)
        session.app.screen.query_one("#text", TextArea).text = config
        await session.until(lambda: words in problem(session), words)
        assert session.app.screen.query_one("#go", Button).disabled
        session.app.screen.query_one("#text", TextArea).text = "task: {name: addition}\n"
        await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled)


@pytest.mark.parametrize(("size", "shown"), [((120, 40), 5), ((80, 24), 2)])
async def test_of_many_problems_it_says_how_many_more(start: Start, size: tuple[int, int], shown: int) -> None:
    async with start(knowing_box, size=size, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.until(lambda: session.app.screen.query_one("#text", TextArea).text)
        session.app.screen.query_one("#text", TextArea).text = "".join(f"nonsense{number}: 1\n" for number in range(9))
        await session.until(lambda: "unknown key" in problem(session))
        words = problem(session).splitlines()
        assert (len(words), words[-1]) == (shown + 1, f"… and {9 - shown} more")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("samples", "nan", "samples: a whole number, 1 or more, not nan"),
        ("samples", "inf", "samples: a whole number, 1 or more, not inf"),
        ("samples", "2.5", "samples: a whole number, 1 or more, not 2.5"),
        ("samples", "eight", "samples: how many completions of each problem, not 'eight'"),
        ("temperature", "-1", "temperature: 0 (greedy) or more, not -1"),
        ("temperature", "nan", "temperature: 0 (greedy) or more, not nan"),
        ("share", "50%", "share: a number between 0 and 1, not '50%'"),
        ("share", "nan", "share: above 0 and at most 1, not nan"),
    ],
)
async def test_no_number_is_taken_for_one(start: Start, field: str, value: str, words: str) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, field, value)
        await session.until_text(words)
        assert session.app.screen.query_one("#go", Button).disabled


async def test_the_list_of_steps_is_there_when_it_is_chosen(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until_text("--steps latest")
        assert "step numbers with commas" not in session.text()
        session.app.screen.query_one("#steps", Select).value = "list"
        await session.until_text("step numbers with commas: 10,20,30", "steps: numbers with commas")
        assert session.app.focused is session.app.screen.query_one("#list")
        for typed, words in (
            ("10, 20,, 10 ,", "--steps 10,20"),
            ("²", "'²' is no step number"),
            ("5-20", "'5-20' is no step"),
        ):
            fill(session, "list", typed)
            await session.until_text(words)
        session.app.screen.query_one("#steps", Select).value = "0,10,20,30"
        await session.until_text("all 3 and the model that the run started from", "--steps 0,10,20,30")
        session.app.screen.query_one("#steps", Select).value = "all"
        await session.until_text("--steps all")
        assert "step numbers with commas" not in session.text()


async def test_enter_in_a_field_goes_to_the_button_even_while_it_is_checked(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until_text("--steps latest")
        session.app.screen.query_one("#dataset", Input).focus()
        await session.pilot.press(*"gsm8k", "enter", "enter")  # faster than the check
        assert not [order for order in session.client.asked_for("evaluate") if not order["dry_run"]]
        await session.until(lambda: session.app.screen.query_one("#go", Button).has_focus)
        await session.pilot.press("enter", "enter", "enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        orders = [order for order in session.client.asked_for("evaluate") if not order["dry_run"]]
        assert [order["eval_dataset"] for order in orders] == ["gsm8k"]


async def test_what_was_typed_last_is_never_left_out(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        go = session.app.screen.query_one("#go", Button)
        await session.until(lambda: not go.disabled)
        fill(session, "overrides", "run.seed=1")
        go.press()  # before anybody was told of the change
        await session.pilot.pause(0.1)
        assert not [order for order in session.client.asked_for("launch") if not order["dry_run"]]
        await session.until(lambda: not go.disabled)
        go.press()
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        orders = [order for order in session.client.asked_for("launch") if not order["dry_run"]]
        assert [order["overrides"] for order in orders] == [["run.seed=1"]]


async def test_a_dataset_may_lie_anywhere_on_the_box(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "dataset", "gsm8k")
        fill(session, "path", " /data/my sums ")
        await session.until(lambda: not session.app.screen.query_one("#go", Button).disabled)
        session.app.screen.query_one("#go", Button).press()
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        order = session.client.asked_for("evaluate")[-1]
        assert (order["eval_dataset"], order["eval_path"]) == ("gsm8k", "/data/my sums")


async def test_why_an_evaluation_failed_is_told_without_the_noise_before_it(start: Start) -> None:
    said = "a library's warning\nand another\nerror: task.path is not set\nand the hub is far:\nset task.path\n"

    def script(client: FakeClient) -> None:
        knowing_box(client).answers["capture_pane"] = {"text": said + "Pane is dead (status 2)\n"}
        client.sessions.append({"name": "eval_run_gsm8k_demo", "run": "run_gsm8k_demo", "dead": False})

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.evaluating())
        session.client.sessions[-1] |= {"dead": True, "exit_status": 2}
        session.client.report()
        words = "failed task.path is not set and the hub is far: set task.path"
        await session.until(lambda: words in session.told(), words)
        assert "warning" not in session.told()


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ([], "87 steps are lost: no checkpoint is saved yet."),
        ([80], "7 steps since the last checkpoint (step_80) are lost."),
        ([86], "1 step since the last checkpoint (step_86) is lost."),
        ([87], "No step is lost."),
    ],
)
async def test_a_kill_says_what_is_lost(start: Start, saved: list[int], words: str) -> None:
    def script(client: FakeClient) -> None:
        shown = {"checkpoints": [{"step": step} for step in saved], "evaluations": []}
        learning_box(client).answers["show_run"] = shown

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.shown_at is not None)
        await opened(session, "k", ConfirmScreen)
        await session.until_text(words)
        await session.press("enter")  # Cancel has the focus
        assert not session.client.asked_for("kill")


@pytest.mark.filterwarnings("error")
async def test_leaving_right_after_another_key_leaves_no_words_behind(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await session.app.action_act("launch")
        await session.app.action_act("quit")  # before the form could open
    gc.collect()  # a coroutine that nobody awaited would be told of here


async def test_escape_in_the_middle_leaves_nothing_behind(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        for key, screen in (("e", EvalScreen), ("n", LaunchScreen)):
            await opened(session, key, screen)
            await session.press("escape")
            await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        await session.pilot.pause(0.4)  # longer than a field's rest
        assert not [order for order in session.client.asked_for("launch") if not order["dry_run"]]
        assert session.told() == ""


async def test_a_form_survives_every_size(start: Start) -> None:
    async with start(knowing_box, size=(120, 40), wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "samples", "8")
        for size in ((60, 18), (80, 24), (200, 60), (30, 8), (120, 40)):
            await session.pilot.resize_terminal(*size)
            await session.pilot.pause()
        await session.until_text("Evaluate", "the exact command")
        assert session.app.screen.query_one("#samples", Input).value == "8"


@pytest.mark.parametrize("size", [(80, 24), (110, 30), (104, 24)])
async def test_every_tab_of_the_log_has_its_whole_name(start: Start, size: tuple[int, int]) -> None:
    async with start(knowing_box, size=size, wait="87/200") as session:
        tabs = ("train_log", "console", "rollouts", "completion", "checkpoints", "health ")
        await session.until(lambda: any(all(tab in line for tab in tabs) for line in session.text().splitlines()))


async def test_a_long_message_is_read_by_the_keys(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.show_error("trouble", RemoteError("long", "\n".join(f"line {n}" for n in range(80)), "the way out"))
        await session.until(lambda: isinstance(session.app.screen, MessageScreen))
        await session.until_text("line 0")
        for _ in range(12):
            await session.press("pagedown")
        await session.until_text("the way out")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("partial: 0 of 1024 samples", "waiting"),
        ("partial: 512 of 1024 samples", "50% done"),
        ("failed: out of memory", "failed: out of memory"),
    ],
)
def test_what_stands_where_a_figure_is_not_there_yet(status: str, words: str) -> None:
    shown = {
        "checkpoints": [{"step": 10}],
        "evaluations": [{"name": "one_addition", "metrics": [{"step": "10", "status": status, "accuracy": ""}]}],
    }
    assert [result.figure for result in checkpoint_views("one", shown)[0].evaluations] == [words]


@pytest.mark.parametrize(("size", "beside"), [((120, 40), False), ((200, 60), True)])
async def test_a_second_dataset_is_not_cut_off(start: Start, size: tuple[int, int], beside: bool) -> None:
    def results(name: str, accuracy: float) -> dict[str, Any]:
        row = {
            "status": "ok",
            "accuracy": str(accuracy),
            "ci_low": str(accuracy - 0.03),
            "ci_high": str(accuracy + 0.03),
        }
        return {"name": f"run_gsm8k_demo_{name}", "metrics": [{"step": "10", **row}]}

    def script(client: FakeClient) -> None:
        found = [results("addition", 0.571), results("gsm8k", 0.123)]
        learning_box(client).answers["show_run"] = {"checkpoints": [{"step": 10}, {"step": 5}], "evaluations": found}

    async with start(script, size=size, wait="87/200") as session:
        screen = await session.until_text(".571 ±.030 addition", ".123 ±.030 gsm8k", "not evaluated")
        assert (".571 ±.030 addition  .123" in screen) is beside


@pytest.mark.parametrize("evaluated", [False, True])
async def test_a_finished_run_says_how_to_evaluate_it_where_nobody_has(start: Start, evaluated: bool) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        if not evaluated:
            client.answers["show_run"] = {"checkpoints": [{"step": 10}], "evaluations": []}

    async with start(script, wait="87/200") as session:
        await session.until_text("step_10")
        session.client.runs[0].update(state="finished", step=200)
        session.client.report()
        await session.until(lambda: "finished" in session.told())
        assert ("e evaluates its checkpoints" in session.told()) is not evaluated


async def test_rewards_stand_under_each_other(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        for row, reward in zip(client.runs, (1.93, -0.45312, 12.5, -123.4567), strict=True):
            row["reward"] = reward

    async with start(script, wait="87/200") as session:
        await session.until_text("  1.930", " -0.453", "   12.5", " -123.5")


def test_the_configs_of_this_machine_with_those_of_subfolders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.yaml", "boxes.example.yaml", "keymap.yaml", "a/z.yaml", ".git/x.yaml", "a/deeper/no.yaml", "b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr("grpo_tui.operations.config_folder", lambda: tmp_path)
    assert local_configs() == [("b.yaml", "b.yaml"), ("a/z.yaml", "a/z.yaml")]
