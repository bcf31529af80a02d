"""What a box sends that cannot be read, or reads like markup, on the screen."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from textual.command import CommandPalette

from grpo_tui.dialogs.evaluate import EvalScreen
from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.kit.dialog import ConfirmScreen
from remote import gate
from remote.events import TopicFailed
from tests.support.any_json import GPU, LOG_ROWS, MARKUP, ODD, ROW, SESSION, paths, replaced
from tests.tui.conftest import Start, opened
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, RUN, jsonl, summary


def damaged_box(client: FakeClient) -> None:
    learning_box(client)
    client.runs.insert(1, summary("run_damaged", "running", step="Infinity"))
    client.runs.insert(2, summary("run_\x1b]0;x\x07", "running"))
    client.runs.append(summary("next", "compacting"))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_unreadable_run_says_why(start: Start, size: tuple[int, int]) -> None:
    async with start(damaged_box, size=size, wait="87/200") as session:
        await session.until_text("▲ run_damaged", "▲ run_·]0;x·")
        await session.press("end")  # the short list shows three runs
        await session.until_text("? next")
        await session.press("home", "down")
        await session.until_text("▲ unreadable", "step: must be a number from 0 to 10^15")
        await session.press("s")
        await session.until(lambda: "is not running (unreadable)" in session.messages())


async def test_an_unreadable_run_has_not_ended(start: Start) -> None:
    async with start(wait="87/200") as session:
        live = session.client.runs[0]
        session.client.runs[0] = {**live, "updated_at": 5}
        session.client.report()
        await session.until_text("▲ unreadable")
        session.client.runs[0] = live
        session.client.report()
        await session.until_text("● run")
        assert RUN not in session.messages()
        session.client.runs[0] = {**live, "state": "crashed"}
        session.client.report()
        await session.until(lambda: f"{RUN} crashed" in session.messages())


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_failed_topic_is_shown_with_the_age_of_its_data(start: Start, size: tuple[int, int]) -> None:
    async with start(size=size, wait="● 12 ms") as session:
        await session.until(lambda: "runs" in session.app.store.topic_at, "the list")
        session.app.store.topic_at["runs"] -= 40
        session.client.on_event(TopicFailed("runs", "Input/output error: [/] /data"))
        screen = await session.until_text("◍ 12 ms", "▲ list is 40 s old: Input/output error: [/] /data")
        assert "● 12 ms" not in screen  # the dot is not green
        await session.until(lambda: session.text().count("list is 40 s old") == 2, "header and panel")
        session.client.report()
        await session.until_text("● 12 ms")
        assert "old:" not in session.text()


async def test_a_list_that_was_never_read(start: Start) -> None:
    def script(client: FakeClient) -> None:
        client.report = lambda: client.on_event(TopicFailed("runs", "Permission denied: /data"))  # type: ignore

    async with start(script) as session:
        await session.until_text("h200-a cannot list its runs", "no list: Permission denied: /data")


async def test_a_failed_gpu_topic(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).gpus = [dict(GPU), {**GPU, "power_w": "x"}]

    async with start(script, wait="94 %") as session:
        await session.until_text("NVIDIA H200 unreadable: power_w")
        session.client.on_event(TopicFailed("gpu", "NVML failed"))
        await session.until_text("GPU sample is 0 s old: NVML failed")


async def test_names_are_not_markup(start: Start) -> None:
    run = "[/]x[@click=app.quit]y"

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs = [
            summary(run, "running", device=MARKUP, stage=MARKUP),
            summary("b" + MARKUP, "crashed", error={"summary": MARKUP, "signal": MARKUP, "console_tail": [MARKUP]}),
        ]
        client.sessions = [{"name": run, "run": run}, {"name": MARKUP, "run": "b" + MARKUP}]
        client.gpus = [{**GPU, "name": MARKUP, "processes": [{"pid": 1, "run": MARKUP}]}]
        client.answers["list_configs"] = {"configs": [{"name": f"a{MARKUP}.yaml"}], "folder": "/"}
        client.answers["list_weights"] = {"weights": [{"name": MARKUP, "path": "p", "kind": MARKUP}]}
        client.answers["doctor"] = {"checks": [{"name": "engine", "ok": False, "detail": MARKUP, "hint": MARKUP}]}
        rows = [{**LOG_ROWS["train_log"][0], f"time/{MARKUP}": 3.0, f"x/{MARKUP}": 1.0}]
        client.files[f"training_runs/{run}/logs/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait=run) as session:
        await session.until_text("[bold [@click")  # the doctor's finding
        await opened(session, "K", ConfirmScreen)
        await session.until_text(f"Kill {run}")
        await session.press("escape")
        await opened(session, "e", EvalScreen)
        await session.press("escape")
        await opened(session, "n", LaunchScreen)
        await session.press("escape")
        await session.press("down")
        await session.until_text("✖ crashed")
        await opened(session, "colon", CommandPalette)
        await session.press(*"stop")
        await session.until_text("stop: Stop the run", "not available: b[/] [bold")
        await session.press("escape")
        for _ in range(6):
            await session.press("l")
        assert session.app.is_running


async def test_any_value_in_any_field_leaves_the_app_running(start: Start) -> None:
    dice = random.Random(7)
    rows: list[Any] = [(kind, row, path) for kind, row in (("runs", ROW), ("sessions", SESSION), ("gpus", GPU))
                       for path in paths(row)]  # fmt: skip
    logs: list[Any] = [(log, row, path) for log, (row, *_) in LOG_ROWS.items() for path in paths(row)]

    async with start(wait="87/200") as session:
        client = session.client
        files = {"train_log": "train_log", "events": "events", "rollouts": "rollouts"}
        good = {"runs": client.runs, "sessions": client.sessions, "gpus": [GPU]}
        for _ in range(60):
            kind, row, path = dice.choice(rows)
            bad = replaced(row, path, dice.choice(ODD))
            good_rows = good[kind]
            for topic in ("runs", "sessions", "gpu"):
                key = "gpus" if topic == "gpu" else topic
                value = {key: [bad, *good_rows] if key == kind else good[key]}
                client.on_event(gate.topic_event(topic, {"value": value}))
            log, line, path = dice.choice(logs)
            data = json.dumps(replaced(line, path, dice.choice(ODD))).encode() + b"\n"
            client.append(f"{LOGS}/{files[log]}.jsonl", data)
            await session.pilot.pause()
            session.app._select(session.app.store.runs[0].name)  # type: ignore[index]
            session.app.tick()
            await session.pilot.pause()
            await session.press(dice.choice(["l", "down", "up", "end", "home"]))
            assert session.app.is_running
        assert "internal error" not in session.text()
        session.app._select(RUN)
        await session.until_text("● run")
