"""Every key, on a scripted box."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList, Select, TextArea

from grpo_tui.forms.evaluate import EvalScreen
from grpo_tui.forms.launch import LaunchScreen
from grpo_tui.forms.resume import ResumeScreen
from grpo_tui.screens.boxes import AddBoxScreen, BoxesScreen
from grpo_tui.screens.demo_setup import DemoSetupScreen
from grpo_tui.screens.dialog import AttachScreen, ConfirmScreen, HostKeyScreen, MessageScreen
from grpo_tui.screens.help import HelpScreen
from grpo_tui.screens.home import HomeScreen
from grpo_tui.widgets.health import HealthLine
from grpo_tui.widgets.lines_panel import LinesPanel
from remote.boxes import Box, load_boxes
from remote.events import HostKeyAsked, Link, LinkChanged
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start
from tests.tui.fake import (
    NEAR_ZERO,
    FakeClient,
    ailing_box,
    ailing_rows,
    healthy,
    jsonl,
    learning_box,
    rollout_rows,
    summary,
    train_rows,
)

RUN = "run_gsm8k_demo"
LOGS = f"training_runs/{RUN}/logs"


def logs_of(session: Session):  # type: ignore[no-untyped-def]
    assert session.app.store.logs is not None
    return session.app.store.logs


# ------------------------------------------------------------------------------------------------------- watching


async def test_home_shows_the_live_run_and_follows_it(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step_20", ".710", "reward", "step 87", "right answer", "no GPU on this box")
        assert sorted(session.client.follows.values()) == sorted(
            f"{LOGS}/{name}" for name in ("train_log.jsonl", "events.jsonl", "rollouts.jsonl", "console.log")
        )
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(91)[87:]))
        await session.until_text("91/200", "step 91")
        session.client.append(f"{LOGS}/rollouts.jsonl", jsonl(rollout_rows(91, 1)))
        await session.until(lambda: "step 91   right answer" in session.text())


async def test_all_bytes_are_given_back_as_credit(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until(
            lambda: sum(session.client.consumed_bytes.values()) == sum(map(len, session.client.files.values()))
        )


async def test_turning_to_another_run_follows_that_one_only(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down")
        await session.until_text("run_2026-11-20_22-10-41  finished")
        await session.until(lambda: all("22-10-41" in path for path in session.client.follows.values()))
        await session.press("down")
        screen = await session.until_text("rank 1 was killed by SIGKILL", "torch.OutOfMemoryError", "resumes from")
        assert "crashed" in screen


async def test_the_cursor_stays_on_its_run_when_the_list_changes(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down")
        session.client.runs.insert(0, summary("run_newer", "starting"))
        session.client.report()
        await session.until_text("run_newer")
        assert session.app.store.selected == "run_2026-11-20_22-10-41"


async def test_a_run_that_ends_is_announced(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.runs[0] = summary(RUN, "crashed", step=90, error={"summary": "rank 0: ValueError: x [y]"})
        session.client.report()
        await session.until(lambda: "crashed" in session.told())
        assert "rank 0: ValueError: x [y]" in session.told()


async def test_link_lost_is_said_and_the_run_is_not_called_dead(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.on_event(LinkChanged(Link.LOST, "no word for 15 s", retry_in_s=4.0))
        await session.until_text("link lost", "retrying in 4 s", "the run goes on", "running when last seen")
        await session.press("s")
        assert "the link to the box is down" in session.told()
        assert not session.client.asked_for("stop")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (60, 16), (240, 70)])
async def test_every_size_shows_what_matters(start: Start, size: tuple[int, int]) -> None:
    async with start(size=size, wait="87/200") as session:
        screen = await session.until_text("reward", "running" if size[0] > 60 else RUN[:12], "quit")
        assert max(map(len, screen.splitlines())) <= size[0]
        assert session.app.export_screenshot().startswith("<svg")
        shown = {chart.id for chart in session.app.screen.query(".chart") if chart.display}
        assert len(shown) == (2 if size[1] < 32 else 6 if size[0] >= 170 else 4)


async def test_compact_has_completion_and_checkpoints_as_tabs(start: Start) -> None:
    async with start(size=(80, 24), wait="87/200") as session:
        console, health = ["[087] step 87 done"], ["no word of its health"]
        for words in (console, ["→"], ["right answer"], ["step_20", ".710"], health, ["step 87"]):
            await session.press("l")
            if words == ["[087] step 87 done"]:
                words = ["UserWarning"]
            await session.until_text(*words)


async def test_zoom_and_back(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("tab", "tab", "enter")
        await session.until(lambda: session.app.screen.maximized is not None)
        assert session.app.screen.maximized.id == "chart-reward"
        await session.until(lambda: session.app.screen.query_one("#chart-reward").size.height > 30)
        await session.press("escape")
        await session.until(lambda: session.app.screen.maximized is None)
        await session.press("m")
        assert "raw curves" in session.told()


async def test_a_reader_is_not_moved_by_new_lines(start: Start) -> None:
    async with start(wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        await session.until(lambda: panel.scroll_offset.y > 0)
        panel.focus()
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


async def test_a_reader_is_not_moved_when_old_lines_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.model.run_logs.ROWS_KEPT", 100)
    async with start(wait="87/200") as session:
        panel = session.app.screen.query_one("#log", LinesPanel)
        await session.until(lambda: panel.scroll_offset.y > 0)
        panel.focus()
        await session.press("pageup")
        await session.until(lambda: panel._anchor is not None)
        top = panel.render_line(0).text
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(130)[87:]))
        await session.until(lambda: logs_of(session).rows.first == 30)
        await session.pilot.pause(0.5)
        assert panel.render_line(0).text == top


async def test_a_very_long_line_is_cut(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[f"{LOGS}/console.log"] = b"x" * 900_000 + b"\nlast line\n"

    async with start(script, wait="87/200") as session:
        await session.press("l")
        await session.until_text("xxxx", "last line")


async def test_nan_is_shown_and_breaks_nothing(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(
            [
                {"step": step, "time": train_rows(1)[0]["time"], "reward": float("nan"), "loss": float("nan")}
                for step in range(1, 88)
            ]
        )

    async with start(script, wait="87/200") as session:
        await session.until_text("reward  NaN", "×")


def healthy_box(client: FakeClient, *sentences: str) -> None:
    learning_box(client)
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl([healthy(row, *sentences) for row in train_rows(87)])


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40), (200, 60)])
async def test_a_warning_stands_on_home_at_every_size_and_goes_when_it_is_over(
    start: Start, size: tuple[int, int]
) -> None:
    async with start(ailing_box, size=size, wait="87/200") as session:
        screen = await session.until_text("▲ warning: 57% of the groups teach nothing", "+2")
        assert "['" not in screen
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([healthy(row) for row in train_rows(88)[87:]]))
        await session.until_text("88/200")
        await session.until(lambda: "▲ warning: " not in session.text())


async def test_an_alarm_comes_first_and_is_red(start: Start) -> None:
    async with start(ailing_box, wait="87/200") as session:
        row = healthy(train_rows(88)[87], "alarm: loss not finite: this update was left out", NEAR_ZERO)
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([row]))
        await session.until_text("✖ alarm: loss not finite: this update was left out  +1", "step 88  ✖ reward")
        line = session.app.screen.query_one(HealthLine).render()
        assert any("$error" in str(span.style) for span in line.spans)


async def test_a_remark_takes_no_row_where_there_is_none_to_spare(start: Start) -> None:
    for size, shown in (((80, 24), False), ((120, 40), True)):
        async with start(lambda client: healthy_box(client, NEAR_ZERO), size=size, wait="87/200") as session:
            await session.until_text("step 87  ")
            line = session.app.screen.query_one(HealthLine)
            await session.until(lambda line=line, shown=shown: line.display is shown)
            await session.until(lambda shown=shown: (NEAR_ZERO[:40] in session.text()) is shown)


async def test_an_old_log_has_no_health_line(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step 87")
        assert not session.app.screen.query_one(HealthLine).display


async def test_the_health_page_has_every_sentence_what_held_before_and_the_figures(start: Start) -> None:
    async with start(ailing_box, wait="87/200") as session:
        await session.until_text("57% of the groups")
        await session.pilot.click(HealthLine)
        session.app.screen.query_one("#log", LinesPanel).focus()
        await session.press("enter")
        screen = await session.until_text(
            "since 60", "since 1 ", "a loss near zero is expected", "since 10", "about 212 prompt groups",
            "last 32", "effective sample size 43%", "· in 3 steps", "sequence 0.441", "b_simple 212.4",
            "b_simple_low NaN",
        )  # fmt: skip
        assert screen.index("since 60") < screen.index("since 10") < screen.index("last 32")


async def test_nothing_that_stands_out_is_said_in_words(start: Start) -> None:
    async with start(healthy_box, wait="87/200") as session:
        await session.press("l", "l", "l")
        await session.until_text("✔ nothing stands out", "all_right 0.500")


@pytest.mark.parametrize("level", ["strong", "weak"])
async def test_the_sandbox_that_programs_ran_in_is_on_top_and_in_the_health_page(start: Start, level: str) -> None:
    def script(client: FakeClient) -> None:
        healthy_box(client)
        more = {"sandbox/isolation": level, "sandbox/denied_socket": 0.25, "hacking/hardcoded": 0.125}
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl([{**healthy(row), **more} for row in train_rows(87)])

    async with start(script, wait="87/200") as session:
        await session.until_text(f"sandbox {level}")
        await session.press("l", "l", "l")
        session.app.screen.query_one("#log", LinesPanel).focus()
        await session.press("enter")
        await session.until_text(f"isolation {level}", "denied_socket 0.250", "hardcoded 0.125")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_figures_of_self_play_come_first_and_no_name_is_parted_from_its_value(
    start: Start, size: tuple[int, int]
) -> None:
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
        log.focus()
        await session.press("enter")
        screen = await session.until_text(
            "turns 5.750", "invalid_rate 0.750", "no_reasoning 1.000", "same_opening 0.500",
            "tictactoe/O   reward -0.875   win_rate 0.250", "tictactoe/X   reward 0.125   win_rate 0.625",
            "sequence_clipped 0.520", "b_simple_completions 1699",
        )  # fmt: skip
        assert screen.index("turns 5.750") < screen.index("tictactoe/O") < screen.index("token_clipped")
        assert screen.count("self_play") == 1


async def test_scoring_has_its_share_of_the_stage_bar_and_what_takes_no_time_has_none(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = [{**row, "time/reward": 0.0} for row in ailing_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, size=(200, 60), wait="87/200") as session:
        await session.until_text("rollout 1.9", "score 0.4")
        assert "reward" not in [name for name, _ in session.app.store.stage_times()]


async def test_browsing_completions(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("right answer")
        session.app.screen.query_one("#completion", LinesPanel).focus()
        await session.press("left", "left")
        await session.until_text("2 back")
        await session.press("right", "right")
        await session.until(lambda: "back" not in session.text())


async def test_filter(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash")
        await session.until_text("/crash", "1 of 4")
        await session.press("enter", "escape")
        await session.until(lambda: "1 of 4" not in session.text())


async def test_after_filtering_the_keys_act_on_a_run_that_is_shown(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash", "enter")
        await session.until_text("crashed", "rank 1 was killed by SIGKILL")
        assert session.app.store.run is not None
        assert session.app.store.run.state == "crashed"


async def test_a_filter_is_shown_as_it_was_typed(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"[red", "enter")
        await session.until_text("runs /[red 0 of 4", "no run matches /[red")
        assert session.app.store.selected == RUN


async def test_what_a_run_says_cannot_steer_the_terminal(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        error = {"summary": "\x1b[31mboom", "console_tail": ["\x1b[2J\x1b[1;1Hsteered [/] [red]", "\ttab\x07"]}
        client.runs[0] = summary("n" * 120, "crashed", error=error)

    async with start(script, size=(80, 24)) as session:
        screen = await session.until_text("boom", "steered [/] [red]", "nnn…", "crashed")
        assert "\x1b" not in screen
        assert "[31m" not in screen


async def test_why_a_run_never_began_is_told_whole(start: Start) -> None:
    def script(client: FakeClient) -> None:
        why = "model.backbone 'nosuchmodel' is no model directory (with a config.json), hub id or preset; " * 2 + "END"
        client.runs = [summary("r1", "crashed", error={"summary": why})]

    async with start(script) as session:
        screen = await session.until_text("model.backbone", "END")
        assert "r resumes" not in screen


async def test_try_again_takes_the_box_as_it_is_written_now(start: Start, boxes_file: Path) -> None:
    def look_up(box: Box) -> Box:
        return next(one for one in load_boxes(boxes_file) if one.name == box.name)

    async with start(wait="87/200", boxes_file=boxes_file, look_up=look_up) as session:
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused"))
        await session.until_text("h200-a refused")
        boxes_file.write_text(boxes_file.read_text().replace("192.0.2.10", "192.0.2.99"))
        await session.press("c")
        await session.until(lambda: len(session.clients) == 2)
        assert session.clients[1].box.host == "192.0.2.99"


# ------------------------------------------------------------------------------------------------------ empty states


async def test_no_runs_yet(start: Start) -> None:
    async with start(lambda client: None) as session:
        await session.until_text("no runs yet", "press n to launch")


async def test_connecting_refused_and_a_box_without_engine(start: Start) -> None:
    def script(client: FakeClient) -> None:
        client.quiet = True

    async with start(script) as session:
        await session.until_text("connecting to h200-a")
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused [publickey]"))
        await session.until_text("h200-a refused", "the key was refused [publickey]", "try again")
        await session.press("c")
        assert session.client.reconnects == 1

    hint = "on the box: cd /x && make setup"

    def bare(client: FakeClient) -> None:
        client.answers["doctor"] = {
            "checks": [{"name": "engine", "ok": False, "detail": "not installed", "hint": hint}]
        }

    async with start(bare) as session:
        await session.until_text("this box cannot train yet", "cd /x && make setup")


async def test_a_client_that_cannot_start_is_words(start: Start) -> None:
    def broken(client: FakeClient) -> None:
        raise RuntimeError("no such module")

    from grpo_tui.app import GrpoApp, Options

    app = GrpoApp(Options(Box("x", host="y")), make_client=lambda box, on_event: broken(FakeClient(box, on_event)))  # type: ignore[arg-type, return-value]
    async with app.run_test(size=(100, 30)) as pilot:
        session = Session(app, [], pilot, [])
        await session.until_text("the client could not start: no such module")


# ---------------------------------------------------------------------------------------------------------- actions


async def test_launch(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until(lambda: isinstance(session.app.screen, LaunchScreen))
        await session.until_text("/opt/grpo-train supervise run_new", "as by hand", "5 steps of 32 prompts")
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
        session.app.screen.query_one("#go").focus()
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        order = session.client.asked_for("launch")[-1]
        assert order["dry_run"] is False
        assert (order["nproc"], order["run_name"], order["overrides"]) == (2, "mine", ["run.total_steps=9"])
        assert order["ckpt"].endswith("step_30")
        keys = {params["idempotency_key"] for params in session.client.asked_for("launch")}
        assert len(keys) == 1, "a repeated launch must be known as the same"
        await session.until(lambda: session.app.store.selected == "mine")
        assert "mine launched" in session.told()


async def test_overrides_are_split_as_a_shell_would(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until_text("5 steps of 32 prompts")
        session.app.screen.query_one("#overrides", Input).value = "'task.path=/my data"
        await session.until_text("overrides: no closing quotation", "a value with spaces goes in quotes")
        assert session.app.screen.query_one("#go").disabled
        session.app.screen.query_one("#overrides", Input).value = "'task.path=/my data' run.total_steps=9"
        await session.until_text("9 steps of 32 prompts")
        assert session.client.asked_for("launch")[-1]["overrides"] == ["task.path=/my data", "run.total_steps=9"]


async def test_the_launch_form_scrolls_where_it_does_not_fit(start: Start) -> None:
    async with start(size=(60, 15), wait="87/200") as session:
        await session.press("n")
        screen = await session.until_text("5 steps of", "supervise run_new", "Cancel", "Launch")
        assert "run name" not in screen
        session.app.screen.query_one("#run-name").focus()
        await session.until_text("run name", "Cancel", "Launch")


async def test_the_configs_text_can_be_changed_and_is_checked(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("n")
        await session.until_text("5 steps of 32 prompts")
        session.app.screen.query_one("#text", TextArea).text = "run:\n  total_steps: many\n"
        await session.until_text("line 2", "total_steps")
        session.app.screen.query_one("#text", TextArea).text = "rollout:\n  buffer_size: 7\n"
        await session.until_text("rollout.buffer_size 7 does not divide")


async def test_a_refused_launch_stays_in_the_form(start: Start) -> None:
    def refuse(client: FakeClient, params: dict) -> dict:  # type: ignore[type-arg]
        raise RemoteError("no_tmux", "tmux is not installed on this box", "sudo apt-get install -y tmux")

    async with start(wait="87/200") as session:
        session.client.answers["launch"] = refuse
        await session.press("n")
        await session.until_text("tmux is not installed on this box", "sudo apt-get install -y tmux")
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_stop(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("s")
        await session.until(lambda: session.client.asked_for("stop"))
        assert session.client.asked_for("stop")[0]["run"] == RUN
        await session.until(lambda: "stop asked" in session.told())
        assert "step 88" in session.told()
        session.client.runs[0]["stop_asked"] = True
        session.client.report()
        await session.until_text("stopping")
        await session.press("s")
        await session.until(lambda: "asked already" in session.told())
        assert len(session.client.asked_for("stop")) == 1


async def test_an_error_of_the_box_is_a_dialog(start: Start) -> None:
    def refuse(client: FakeClient, params: dict) -> dict:  # type: ignore[type-arg]
        raise RemoteError("disk", "the disk is full [0 bytes left]", "free some space")

    async with start(wait="87/200") as session:
        session.client.answers["stop"] = refuse
        await session.press("s")
        await session.until(lambda: isinstance(session.app.screen, MessageScreen))
        await session.until_text("the disk is full [0 bytes left]", "free some space")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_eval(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("e")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen))
        await session.until_text("--training-run run_gsm8k_demo --steps latest")
        session.app.screen.query_one("#steps", Select).value = "list"
        session.app.screen.query_one("#list", Input).value = "10,40"
        await session.until_text("step 40 has no complete checkpoint")
        session.app.screen.query_one("#list", Input).value = "10, 20"
        session.app.screen.query_one("#share", Input).value = "0.25"
        session.app.screen.query_one("#samples", Input).value = "0"
        await session.until_text("samples: a whole number, 1 or more")
        session.app.screen.query_one("#samples", Input).value = "8"
        session.app.screen.query_one("#temperature", Input).value = "0"
        await session.until_text("several samples of a greedy model are all the same")
        session.app.screen.query_one("#temperature", Input).value = "hot"
        await session.until_text("a number, 0 = greedy, not 'hot'")
        session.app.screen.query_one("#temperature", Input).value = "0.6"
        await session.until_text("--steps 10,20")
        session.app.screen.query_one("#go").focus()
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        order = session.client.asked_for("evaluate")[-1]
        assert (order["steps"], order["subset_frac"], order["dry_run"]) == ("10,20", 0.25, False)
        assert (order["num_samples"], order["temperature"]) == (8, 0.6)
        assert "evaluation started" in session.told()


async def test_killing_where_only_an_evaluation_goes_on_ends_that(start: Start) -> None:
    async with start(wait="87/200") as session:
        run = "run_2026-11-20_22-10-41"
        session.client.sessions.append({"name": f"eval_{run}", "run": run, "dead": False})
        session.client.report()
        await session.press("down")
        await session.until_text(f"{run}  finished", "evaluating")
        await session.press("k")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.until_text("End the evaluation of")
        await session.press("tab", "enter")
        await session.until(lambda: session.client.asked_for("kill"))
        order = session.client.asked_for("kill")[-1]
        assert (order["session"], order.get("run")) == (f"eval_{run}", None)
        await session.until(lambda: f"evaluation of {run} ended" in session.told())


async def test_a_failed_evaluation_says_why(start: Start) -> None:
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
        await session.until(lambda: "no task is called 'gsm9k'; did you mean gsm8k?" in session.told())
        assert "Pane is dead" not in session.told()


async def test_ctrl_c_ends_nothing_and_says_how_to_leave(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("ctrl+c")
        await session.until(lambda: "ctrl+q leaves" in session.told())
        assert session.app.is_running


async def test_eval_with_one_more_enter(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("e")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen) and session.app.focused is not None)
        await session.until_text("--steps latest")
        assert session.app.focused is not None
        assert session.app.focused.id == "go"
        await session.press("enter")
        await session.until(lambda: session.client.asked_for("evaluate")[-1]["dry_run"] is False)


async def test_resume(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("r")
        assert "stop it first" in session.told()
        await session.press("down", "down", "down")
        await session.until_text("run_2026-11-19_09-30-00  stopped")
        await session.press("r")
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        await session.until_text("--from-step latest", "from step 30 to 200", "steps 31 to 40 of the log are replaced")
        session.app.screen.query_one("#from", Select).value = "20"
        session.app.screen.query_one("#more", Input).value = "15"
        await session.until_text("--from-step 20", "from step 20 to 35")
        session.app.screen.query_one("#go").focus()
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        order = session.client.asked_for("resume")[-1]
        assert (order["from_step"], order["additional_steps"]) == ("20", 15)


async def test_a_finished_run_needs_more_steps(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs = [summary("done", "finished", step=30, total_steps=30)]

    async with start(script, wait="done") as session:
        await session.press("r")
        await session.until_text("say how many steps more")


async def test_kill_asks_and_cancel_has_the_focus(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step_30")
        await session.press("k")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.until_text(RUN, "h200-a", "step 87", "57 steps since the last checkpoint")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        assert not session.client.asked_for("kill")
        await session.press("k")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.press("tab", "enter")
        await session.until(lambda: session.client.asked_for("kill"))
        await session.until(lambda: "no process of it is left" in session.told())


async def test_attach_says_how_to_come_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr("grpo_tui.attach.tmux_prefix", lambda socket: "C-a")
    async with start(wait="87/200", box=Box("local", kind="local", tmux_socket="jobs")) as session:
        await session.press("a")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        await session.until_text("ctrl+a d", RUN)
        await session.press("enter")
        await session.until(lambda: session.foreground)
        assert session.foreground[0][-5:] == ["-L", "jobs", "attach-session", "-t", f"={RUN}"]
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_attach_that_fails_leaves_the_app_whole(start: Start) -> None:
    def explode(argv: list[str]) -> int:
        raise FileNotFoundError("no tmux here")

    async with start(wait="87/200", box=Box("local", kind="local"), foreground=explode) as session:
        await session.press("a")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        await session.press("enter")
        await session.until_text("cannot attach", "no tmux here")


async def test_host_key(start: Start) -> None:
    async with start(wait="87/200") as session:
        for keys, answer in ((["enter"], False), (["tab", "enter"], True)):
            session.client.on_event(HostKeyAsked("192.0.2.10", "ssh-ed25519", "SHA256:abcdef"))
            await session.until(lambda: isinstance(session.app.screen, HostKeyScreen))
            await session.until_text("SHA256:abcdef", "never been seen")
            await session.press(*keys)
            await session.until(lambda answer=answer: session.client.host_key_answers[-1:] == [answer])


async def test_boxes_switch_and_add(start: Start, boxes_file: Path) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        first = session.client
        await session.press("b")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        await session.until_text("h200-b", "192.0.2.11", "this machine")
        assert session.app.screen.query_one(OptionList).highlighted == 0
        await session.press("down", "enter")
        await session.until(lambda: len(session.clients) == 2 and first.closed)
        await session.until_text("h200-b", "87/200")
        await session.press("b")
        await session.until(lambda: isinstance(session.app.screen, BoxesScreen))
        await session.press("tab", "tab", "enter")
        await session.until(lambda: isinstance(session.app.screen, AddBoxScreen))
        await session.press(*"h200-a", "enter")
        await session.until_text("host: an address or an alias")
        session.app.screen.query_one("#box-host", Input).value = "192.0.2.99"
        await session.press("enter")
        await session.until_text("named 'h200-a' already")
        session.app.screen.query_one("#box-name", Input).value = "third"
        session.app.screen.query_one("#box-price_per_hour", Input).value = "$1.99"
        await session.press("enter")
        await session.until(lambda: len(session.clients) == 3)
        await session.until_text("third", "$1.99/h")
        assert "192.0.2.99" in boxes_file.read_text()


async def test_help_has_every_action(start: Start) -> None:
    async with start(wait="87/200", size=(120, 60)) as session:
        await session.press("question_mark")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))
        from grpo_tui.actions import ACTIONS

        await session.until_text(*(action.help for action in ACTIONS))
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_palette_has_every_action(start: Start) -> None:
    async with start(wait="87/200") as session:
        from grpo_tui.actions import ACTIONS

        offered = {command.title for command in session.app.get_system_commands(session.app.screen)}
        assert {action.label for action in ACTIONS if action.id != "palette"} <= offered
        assert {"screenshot", "theme"} <= offered
        await session.press("colon")
        await session.until_text("Search for commands")
        await session.press(*"evaluate check", "enter")
        await session.until(lambda: isinstance(session.app.screen, EvalScreen))


async def test_the_key_bar_can_be_clicked(start: Start) -> None:
    async with start(wait="87/200") as session:
        line = session.text().splitlines()[-1]
        await session.pilot.click("#keys", offset=(line.index("help"), 0))
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))


async def test_quit_says_that_the_run_goes_on(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("q")
        await session.until(lambda: not session.app.is_running or session.app._exit)
        words = str(session.app._exit_renderables)
        assert "goes on, on box h200-a" in words
        assert RUN in words
        assert not session.client.asked_for("kill")
    assert session.client.closed


async def test_readonly_asks_nothing_of_the_box(start: Start) -> None:
    async with start(wait="87/200", readonly=True) as session:
        await session.press("n", "s", "k")
        await session.until(lambda: session.told().count("--readonly") >= 3)
        assert isinstance(session.app.screen, HomeScreen)
        with pytest.raises(RemoteError, match="--readonly"):
            await session.app.operations.ask("kill", run=RUN)


async def test_a_keymap_changes_key_bar_and_key(start: Start) -> None:
    from grpo_tui.actions import with_keymap

    keymap = {"help": "f5"}
    async with start(wait="87/200", keymap=keymap, actions=with_keymap(keymap)) as session:
        assert "f5 help" in session.text()
        await session.press("f5")
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))


# ------------------------------------------------------------------------------------------------------------- demo


async def test_demo_makes_the_model_then_two_keys_launch(start: Start, tmp_path: Path) -> None:
    maker = tmp_path / "maker.py"
    maker.write_text(
        "import sys, pathlib\n"
        "print('progress 0.50 warm start, step 10', flush=True)\n"
        "out = pathlib.Path(sys.argv[-1]); out.mkdir(parents=True)\n"
        "(out / 'config.json').write_text('{}'); (out / 'model.safetensors').write_text('')\n"
        "print('progress 1.00 done', flush=True)\n"
    )

    def script(client: FakeClient) -> None:
        client.answers["list_configs"] = {"configs": [{"name": "demo.yaml"}], "folder": "/elsewhere"}

    async with start(
        script, box=Box("demo", kind="local"), demo_root=tmp_path, model_command=[sys.executable, str(maker)]
    ) as session:
        await session.until(lambda: (tmp_path / "models/tiny/config.json").exists())
        await session.until_text("no runs yet", "press n, then enter")
        await session.press("n")
        await session.until(lambda: isinstance(session.app.screen, LaunchScreen))
        await session.until(lambda: session.app.focused is not None and session.app.focused.id == "go")
        await session.press("enter")
        await session.until(lambda: session.app.store.selected == "run_new")


async def test_demo_says_why_the_model_could_not_be_made(start: Start, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('boom: no torch'); raise SystemExit(3)"]
    async with start(lambda client: None, demo_root=tmp_path, model_command=command) as session:
        await session.until(lambda: isinstance(session.app.screen, DemoSetupScreen))
        await session.until_text("the tiny model could not be made", "boom: no torch", "Try again")
