from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList

from grpo_tui.app import GrpoApp
from grpo_tui.dialogs.boxes import AddBoxScreen
from grpo_tui.kit.help import HelpScreen
from grpo_tui.kit.lists import LinesPanel
from grpo_tui.views.home.runs import RunsPanel
from remote.boxes import Box, load_boxes
from remote.events import Link, LinkChanged
from tests.tui.conftest import Session, Start, logs_of, opened
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, knowing_box, learning_box
from tests.tui.fake_rows import LOGS, RUN, ailing_rows, healthy, jsonl, no_signal, rollout_rows, summary, train_rows


async def test_home_follows_the_live_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step_20", ".710", "reward", "step 87", "correct: ", "no GPU on this box")
        assert sorted(session.client.follows.values()) == sorted(
            f"{LOGS}/{name}" for name in ("train_log.jsonl", "events.jsonl", "rollouts.jsonl", "console.log")
        )
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(91)[87:]))
        await session.until_text("91/200", "step 91")
        session.client.append(f"{LOGS}/rollouts.jsonl", jsonl(rollout_rows(91, 1)))
        await session.until(lambda: re.search(r"correct: \S+   step 91", session.text()))


async def test_device_is_in_the_header(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).runs[0]["device"] = "NVIDIA H200"

    async with start(script, wait="87/200") as session:
        await session.until_text("running · H200")


async def test_why_a_run_ended_is_in_the_header(start: Start) -> None:
    """Apart from the device beside it, and cut at its end where there is no room."""

    def script(client: FakeClient) -> None:
        reason = "the budget of 10.0 hours is used up"
        learning_box(client).runs[0] |= {"state": "stopped", "device": "NVIDIA H200", "reason": reason}

    async with start(script, size=(120, 40)) as session:
        await session.until_text("stopped · H200 · the budget of 10.0 hours is used up")
    async with start(script, size=(80, 24)) as session:
        await session.until_text("stopped · H200 · the budget of 10.0")


async def test_engine_of_another_version_is_named(start: Start) -> None:
    def script(client: FakeClient) -> None:
        mismatch = {"name": "engine", "ok": False, "detail": "box engine 0.0.9, app 0.2.0", "hint": "on the box: make"}
        learning_box(client).answers["doctor"] = {"checks": [mismatch], "ok": False}

    async with start(script, wait="87/200") as session:
        await session.until_text("▲ box engine 0.0.9, app 0.2.0 · on the box: make")


async def test_all_bytes_are_credited(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until(
            lambda: sum(session.client.consumed_bytes.values()) == sum(map(len, session.client.files.values()))
        )


async def test_only_the_selected_run_is_followed(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down")
        await session.until_text("run_2026-11-20_22-10-41  finished")
        await session.until(lambda: all("22-10-41" in path for path in session.client.follows.values()))
        await session.press("down")
        screen = await session.until_text("rank 1 was killed by SIGKILL", "torch.OutOfMemoryError", "press r to resume")
        assert "crashed" in screen


async def test_cursor_stays_on_its_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down")
        session.client.runs.insert(0, summary("run_newer", "starting"))
        session.client.report()
        await session.until_text("newer")
        await session.until(lambda: session.app.store.selected == "run_2026-11-20_22-10-41", "the cursor's run")
        assert session.app.home.query_one(RunsPanel).cursor == 2


async def test_ended_run_is_announced(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.runs[0] = summary(RUN, "crashed", step=90, error={"summary": "rank 0: ValueError: x [y]"})
        session.client.report()
        await session.until(lambda: "crashed" in session.messages())
        assert "rank 0: ValueError: x [y]" in session.messages()


async def test_lost_link_does_not_end_the_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.on_event(LinkChanged(Link.LOST, "no word for 15 s", retry_in_s=4.0))
        await session.until_text("link lost", "retrying in 4 s", "runs continue", "running when last seen")
        await session.press("s")
        await session.until(lambda: "not connected to the box" in session.messages())
        assert not session.client.asked_for("stop")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_why_the_link_broke_is_on_the_screen(start: Start, size: tuple[int, int]) -> None:
    async with start(wait="87/200", size=size) as session:
        session.client.on_event(LinkChanged(Link.LOST, "192.0.2.10:22: No route to host", retry_in_s=14.0))
        text = await session.until_text("link lost 0 s ago, retrying in 14 s", "No route to host")
        assert ("; runs continue  ▲ 192.0.2.10:22: No route" in text) == (size[0] > 80)


@pytest.mark.parametrize("size", [(60, 16), (240, 70)])
async def test_home_fits_every_size(start: Start, size: tuple[int, int]) -> None:
    async with start(size=size, wait="87/200") as session:
        screen = await session.until_text("reward", "running" if size[0] > 60 else RUN[:12], "quit")
        assert max(map(len, screen.splitlines())) <= size[0]
        assert session.app.export_screenshot().startswith("<svg")
        shown = {chart.id for chart in session.app.screen.query(".chart") if chart.display}
        assert len(shown) == (4 if size[0] >= 170 else 1 if size[1] < 20 else 2)


async def test_compact_home_has_more_log_tabs(start: Start) -> None:
    tabs = (["UserWarning"], ["then answer"], ["correct: "], [".710"], ["no health logged"], ["step 87"])
    async with start(size=(80, 24), wait="train_log") as session:
        for texts in tabs:
            await session.press("l")
            await session.until_text(*texts)


async def test_zoom_and_back(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.focus("#chart-reward")
        await session.press("enter")
        await session.until(lambda: session.app.screen.maximized is not None)
        assert session.app.screen.maximized.id == "chart-reward"
        await session.until(lambda: session.app.screen.query_one("#chart-reward").size.height > 30)
        await session.press("escape")
        await session.until(lambda: session.app.screen.maximized is None)
        await session.press("m")
        await session.until(lambda: "curves: light" in session.messages())
        assert session.app.store.curves["home"].smoothing == "light"


async def test_nan_is_shown(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(
            [
                {"step": step, "time": train_rows(1)[0]["time"], "reward": float("nan"), "loss": float("nan")}
                for step in range(1, 88)
            ]
        )

    async with start(script, wait="87/200") as session:
        await session.until_text("reward  last NaN", "×")


async def test_stage_bar_leaves_out_idle_stages(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        rows = [{**row, "time/reward": 0.0} for row in ailing_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, size=(200, 60), wait="87/200") as session:
        await session.until_text("rollout 1.9", "score")
        assert "reward" not in [name for name, _ in logs_of(session).stage_times()]


async def test_the_time_of_a_step_is_shown_without_its_stages(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        stages = ("time/rollout", "time/train", "time/score", "time/reward", "time/save")
        rows = [{key: row[key] for key in row if key not in stages} | {"time/step": 82.4} for row in ailing_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, size=(120, 40), wait="87/200") as session:
        await session.until_text("step time    82.4 s  (its stages are not logged)")


async def test_older_completions_can_be_browsed(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("correct: ")
        await session.focus("#completion")
        await session.press("left", "left")
        await session.until_text("2 back")
        await session.press("right", "right")
        await session.until(lambda: "back" not in session.text())


async def test_run_text_cannot_steer_the_terminal(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        error = {"summary": "\x1b[31mboom", "console_tail": ["\x1b[2J\x1b[1;1Hsteered [/] [red]", "\ttab\x07"]}
        client.runs[0] = summary("n" * 120, "crashed", error=error)

    async with start(script, size=(80, 24)) as session:
        screen = await session.until_text("boom", "steered [/] [red]", "nnn…", "crashed")
        assert "\x1b" not in screen
        assert "[31m" not in screen


async def test_long_error_summary_is_shown_in_full(start: Start) -> None:
    def script(client: FakeClient) -> None:
        why = "model.backbone 'nosuchmodel' is not a model directory, hub id or preset; " * 2 + "END"
        client.runs = [summary("r1", "crashed", error={"summary": why})]
        client.answers["show_run"] = {**DEFAULT_ANSWERS["show_run"](client, {"run": "r1"}), "checkpoints": []}

    async with start(script) as session:
        await session.until(lambda: session.app.store.shown_at is not None)
        screen = await session.until_text("model.backbone", "END")
        assert "press r" not in screen


async def test_key_bar_can_be_clicked(start: Start) -> None:
    async with start(wait="87/200") as session:
        keys, views = session.text().splitlines()[-2:]
        await session.pilot.click("#views", offset=(views.index("charts"), 0))
        await session.until(lambda: session.app.views.name == "charts")
        await session.press("escape")
        await session.pilot.click("#keys", offset=(keys.index("filter"), 0))
        await session.until(lambda: session.app.screen.query_one("#filter").has_focus)
        await session.press("escape")
        await session.pilot.click("#views", offset=(views.index("help"), 0))
        await session.until(lambda: isinstance(session.app.screen, HelpScreen))


@pytest.mark.parametrize("size", [(80, 24), (110, 30), (104, 24)])
async def test_tab_names_are_not_cut(start: Start, size: tuple[int, int]) -> None:
    async with start(knowing_box, size=size, wait="87/200") as session:
        tabs = ("train_log", "console", "completion", "checkpoints", "health ")
        await session.until(lambda: any(all(tab in line for tab in tabs) for line in session.text().splitlines()))


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_second_dataset_is_not_cut(start: Start, size: tuple[int, int]) -> None:
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
        session.app.home.query_one("#log", LinesPanel).show_tab(4)
        await session.until_text(".571 ±.030 addition", ".123 ±.030 gsm8k", "not evaluated")


@pytest.mark.parametrize("evaluated", [False, True])
async def test_finished_run_suggests_an_evaluation(start: Start, evaluated: bool) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        if not evaluated:
            client.answers["show_run"] = {"checkpoints": [{"step": 10}], "evaluations": []}

    async with start(script, wait="87/200") as session:
        await session.until_text("step_30" if evaluated else "step_10")
        session.client.runs[0].update(state="finished", step=200)
        session.client.report()
        await session.until(lambda: "finished" in session.messages())
        assert ("press e to evaluate its checkpoints" in session.messages()) is not evaluated


async def test_rewards_are_aligned(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        for row, reward in zip(client.runs, (1.93, -0.45312, 12.5, -123.4567), strict=True):
            row["reward"] = reward

    async with start(script, wait="87/200") as session:
        await session.until_text("  1.930", " -0.453", "   12.5", " -123.5")


async def test_a_held_arrow_key_moves_a_row_per_press(start: Start) -> None:
    def many(client: FakeClient) -> None:
        learning_box(client).runs += [summary(f"run_{index}", "finished") for index in range(40)]

    async with start(many, wait="87/200") as session:
        app = session.app
        for key in ["down"] * 20 + ["up"] * 5:
            app.simulate_key(key)
        await session.until(lambda: app.store.runs and app.store.selected == app.store.runs[15].name)
        app.simulate_key("end")
        await session.until_text("run_39  finished")


async def test_a_key_acts_on_the_run_under_the_cursor(start: Start) -> None:
    async with start(wait="87/200") as session:
        for key in ("down", "down", "s"):
            session.app.simulate_key(key)
        await session.until(lambda: "run_2026-11-20_18-02-07 is not running" in session.messages())
        assert not session.client.asked_for("stop")


async def test_a_curve_that_is_not_whole_says_so(start: Start) -> None:
    """The box makes its index: the curve of a part of the rows has the word, and no trend."""

    def coarse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        return {**client.index.answer("series", client.files, params), "state": "coarse", "progress": 0.34}

    def script(client: FakeClient) -> None:
        learning_box(client).answers["series"] = coarse

    async with start(script, wait="87/200") as session:
        screen = await session.until_text("coarse, 34 %")
        assert "↗" not in screen
        del session.client.answers["series"]
        await session.until(lambda: "coarse" not in session.text() and "reward  last 1.709 ↗" in session.text())


async def test_vi_keys_move(start: Start) -> None:
    async with start(wait="87/200", boxes_file=None) as session:
        names = [row.name for row in session.app.store.runs or ()]
        for key, index in (("j", 1), ("j", 2), ("k", 1), ("G", 3), ("g", 0)):
            await session.press(key)
            await session.until(lambda index=index: session.app.store.selected == names[index], key)
        log = session.app.home.query_one("#log", LinesPanel)
        await session.focus(log)
        await session.until(lambda: log.scroll_offset.y > 0)
        bottom = log.scroll_offset.y
        await session.press("k")
        await session.until(lambda: log.scroll_offset.y == bottom - 1)
        await session.press("g")
        await session.until(lambda: log.scroll_offset.y == 0)
        await session.press("G")
        await session.until(lambda: log.scroll_offset.y == bottom)
        for key, tab in (("l", 1), ("l", 2), ("h", 1)):
            await session.press(key)
            assert log.active == tab
        await session.focus("#runs")
        await session.press("l")
        assert log.active == 2  # from the list, too
        await session.press("b")
        await session.until_text("boxes", "this machine")
        first = session.app.screen.query_one(OptionList)
        await session.press("j")
        assert first.highlighted == 1
        await session.press("k")
        assert first.highlighted == 0
        assert not session.client.asked_for("kill")


async def test_a_users_key_is_not_taken_by_vi(start: Start) -> None:
    async with start(wait="87/200", keymap={"kill": "k"}) as session:
        await session.press("k")
        await session.until_text("kill run")


async def test_a_panel_that_is_not_seen_takes_no_key(start: Start) -> None:
    async with start(wait="87/200", size=(60, 15)) as session:
        log = session.app.home.query_one("#log", LinesPanel)
        await session.until(lambda: not log.focusable)
        await session.press("l")
        await session.until(lambda: "the logs are not on the screen" in session.messages())
        assert log.active == 0
        for _ in range(4):
            await session.press("tab")
            assert session.app.focused is not log
        await session.pilot.resize_terminal(80, 24)
        await session.until(lambda: log.focusable)
        await session.press("l")
        await session.until(lambda: log.active == 1)
        await session.focus(log)
        await session.pilot.resize_terminal(60, 15)
        await session.until(lambda: session.app.focused is session.app.home.query_one("#runs"))


async def test_reconnect_reads_boxes_yaml_again(start: Start, boxes_file: Path) -> None:
    def reload_box(box: Box) -> Box:
        return next(one for one in load_boxes(boxes_file) if one.name == box.name)

    async with start(wait="87/200", boxes_file=boxes_file, reload_box=reload_box) as session:
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused"))
        await session.until_text("not connected to h200-a")
        boxes_file.write_text(boxes_file.read_text().replace("192.0.2.10", "192.0.2.99"))
        await session.press("c")
        await session.until(lambda: len(session.clients) == 2)
        assert session.clients[1].box.host == "192.0.2.99"


async def test_box_without_runs(start: Start) -> None:
    async with start(lambda client: None) as session:
        await session.until_text("no runs yet", "press n to launch")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("has_engine", [True, False])
async def test_a_first_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: tuple[int, int], has_engine: bool
) -> None:
    monkeypatch.setattr("grpo_tui.views.home.panels.find_spec", lambda name: has_engine or None)
    file = tmp_path / "boxes.yaml"
    options = {"box": Box("local", kind="local"), "has_no_boxes": True, "boxes_file": file}
    file.write_text("boxes:\n")
    async with start(lambda client: None, size=size, **options) as session:
        text = await session.until_text("Welcome to grpo-tui", "in four steps", "b adds it here", "grpo-tui --demo")
        assert ("n launches a run here" in text) == has_engine
        assert ("needs the engine first" in " ".join(text.split())) == (not has_engine)
        assert "runs ━" not in text, "no empty list below it"
        await opened(session, "b", AddBoxScreen)
        session.app.screen.query_one("#box-name", Input).value = "first"
        session.app.screen.query_one("#box-host", Input).value = "192.0.2.9"
        await session.press("enter")
        await session.until_text("no runs yet", "press n to launch")
        assert session.client.box.host == "192.0.2.9"


def starting(client: FakeClient) -> None:
    """A box whose only run loads its model."""
    learning_box(client)
    client.files = {f"{LOGS}/console.log": b"".join(b"loading shard %d\n" % number for number in range(40))}
    client.runs = [{**client.runs[0], "state": "starting", "step": 0, "reward": None, "logged_at": None}]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_starting_run_shows_its_console(start: Start, size: tuple[int, int]) -> None:
    async with start(starting, size=size, wait="loading shard 39") as session:
        log = session.app.home.query_one("#log", LinesPanel)
        assert log.size.width > size[0] - 8
        assert "waiting for the first step" not in session.text()
        assert "no completions yet" not in session.text()
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl(train_rows(1)))
        await session.until_text("step 1 ", "reward")
        assert log.active == 0


async def test_the_age_of_a_run_that_is_over_is_said_once(start: Start) -> None:
    async with start(wait="87/200") as session:
        assert session.text().count("2s ago") >= 4
        await session.press("down")
        await session.until(lambda: session.app.store.selected == "run_2026-11-20_22-10-41")
        await session.until(lambda: session.text().count("5h ago") == 1)


async def test_a_condition_is_marked_where_it_begins(start: Start) -> None:
    rows = [healthy(row, no_signal(0.9)) if row["step"] > 84 else row for row in train_rows(87)]

    def script(client: FakeClient) -> None:
        learning_box(client).files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="step 87") as session:
        await session.until(lambda: all(f"step {step}  " in session.text() for step in (84, 85, 86)))
        lines = [line for line in session.text().splitlines() if re.search(r":\d\d  step 8[4-7]  ", line)]
        assert ["▲" in line.split("step 8")[1][:6] for line in lines] == [False, True, False, False]


async def test_without_a_link_no_run_is_green_and_nothing_is_asked_for(start: Start) -> None:
    async with start(wait="87/200") as session:
        runs = session.app.home.query_one(RunsPanel)
        assert runs._state_tone(runs.runs.rows[0]) == runs._tone("live")
        session.client.on_event(LinkChanged(Link.LOST, "192.0.2.10:22: No route to host"))
        await session.until(lambda: not session.app.store.connected)
        assert runs._state_tone(runs.runs.rows[0]) == runs._tone("rest")
        for key in ("4", "5"):
            await session.press(key)
            await session.until_text("not connected: not read yet")
            assert "asking the box" not in session.text()
        await session.press("2")
        await session.until_text("┃ not read yet ")
        assert "no metrics logged yet" not in session.text()


async def test_connecting_refused_and_no_engine(start: Start) -> None:
    def script(client: FakeClient) -> None:
        client.quiet = True

    async with start(script) as session:
        await session.until_text("connecting to h200-a")
        session.client.on_event(LinkChanged(Link.REFUSED, "the key was refused [publickey]"))
        await session.until_text("not connected to h200-a", "the key was refused [publickey]", "try again")
        await session.press("c")
        assert session.client.reconnects == 1

    hint = "on the box: cd /x && make setup"

    def bare(client: FakeClient) -> None:
        client.answers["doctor"] = {
            "checks": [{"name": "engine", "ok": False, "detail": "not installed", "hint": hint}]
        }

    async with start(bare) as session:
        await session.until_text("this box cannot train yet", "cd /x && make setup")


async def test_client_that_cannot_start(start: Start) -> None:
    def broken(client: FakeClient) -> None:
        raise RuntimeError("no such module")

    from grpo_tui.app import Options

    app = GrpoApp(Options(Box("x", host="y")), make_client=lambda box, on_event: broken(FakeClient(box, on_event)))  # type: ignore[arg-type, return-value]
    async with app.run_test(size=(100, 30)) as pilot:
        session = Session(app, [], pilot, [])
        await session.until_text("cannot start the client: no such module")
