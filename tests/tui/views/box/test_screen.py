"""The box view: GPUs over time, machine, disks, sessions, checks."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen
from textual.widgets import OptionList

from grpo_tui.kit.dialog import AttachScreen
from grpo_tui.views.box.charts import GpuChart
from grpo_tui.views.box.panels import SpareScreen
from grpo_tui.views.box.screen import BoxScreen, LineScreen
from remote.events import ClockMeasured, Link, LinkChanged, TopicFailed
from remote.gate import topic_event
from remote.protocol import OPERATIONS, RemoteError
from tests.tui.conftest import BOX, Session, Start, fill, opened
from tests.tui.fake import GPUS, FakeClient, learning_box
from tests.tui.fake_rows import LOGS, NOW, RUN, at, jsonl

IDLE = {
    **GPUS[0],
    "index": 1,
    "utilization_percent": 0.0,
    "memory_used_mib": 3.0,
    "power_w": 78.0,
    "free": True,
    "processes": [],
}


def gpu_rows(minutes: int = 100) -> list[dict[str, Any]]:
    """What the supervisor wrote every minute."""
    return [
        {"step": 1, "time": at(60.0 * ago), **{key: gpu[key] for key in gpu if key not in ("processes", "free")}}
        for ago in range(minutes, 0, -1)
        for gpu in (GPUS[0], IDLE)
    ]


def gpu_box(client: FakeClient) -> None:
    """A box with two GPUs, one of which is idle, and sessions that are ours and not."""
    learning_box(client)
    client.gpus = [GPUS[0], IDLE]
    client.files[f"{LOGS}/gpu.jsonl"] = jsonl(gpu_rows())
    client.sessions += [
        {"name": "notebook", "dead": False, "created": int(NOW) - 32_400, "attached": 1},
        {"name": f"eval_{RUN}", "run": RUN, "dead": True, "exit_status": 1, "created": int(NOW) - 7_800},
    ]
    client.answers["capture_pane"] = lambda client, params: {
        "session": params["session"], "text": f"first\nlast of {params['session']}\n\n",
    }  # fmt: skip
    client.answers["doctor"] = {
        "checks": [
            {"name": "engine", "ok": True, "detail": "0.2.0"},
            {"name": "shared memory", "ok": False, "detail": "/dev/shm has 8 MiB", "hint": "give it more"},
        ],
        "ok": False,
    }


async def box(session: Session, *texts: str) -> BoxScreen:
    await session.press("5")
    await session.until_text("CPU 14 %", *texts)
    return session.app.views.box


async def test_the_machine_is_seen_at_once(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session, "last 2 hours", "GPU 0 · use %  94", "GPU 1 · use %  0")
        await session.until_text("memory 112/140 GiB", "612 W", "61 °C", f"{RUN} (pid 4242)", "no process")
        await session.until_text("memory 61/1024 GiB", "588 GB of 1.0 TB")
        await session.until(lambda: "99 % ▲" in session.text() or "100 % ▲" in session.text(), "a full disk")
        await session.until_text("notebook", "not ours", "failed (1)", "last of notebook", f"last of {RUN}")
        await session.until_text("▲ shared memory /dev/shm has 8 MiB  give it more", "✔ engine 0.2.0")
        await session.until_text(
            "box   last 2 hours   2× H200 · 192.0.2.10 · up 9 h 12 m   ▲ GPU 1 idle for 1 h 40 m: "
        )
        session.client.on_event(LinkChanged(Link.LOST, "gone"))
        await session.until_text("box   last 2 hours   2× H200 · 192.0.2.10   ▲ GPU 1 idle for ")


async def test_a_clock_that_is_not_set_is_pointed_out(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session, "✔ clock within 1 s")
        session.client.on_event(ClockMeasured(44.6))
        await session.until_text("▲ clock 44 s behind  sudo timedatectl set-ntp true (on the box)")
        session.client.on_event(ClockMeasured(-7_200.0))
        await session.until_text("▲ clock 2 h 00 m ahead")


async def test_the_machine_is_named_where_there_is_room(start: Start) -> None:
    async with start(gpu_box, size=(80, 24), box=replace(BOX, price_per_hour=9999.0), wait="87/200") as session:
        await session.press("5")
        text = await session.until_text("box   last 2 hours", "▲ GPU 1 idle for 1 h 40 m: $8,")
        assert "H200 ·" not in text
        session.client.gpus = [GPUS[0]]
        session.client.report()
        await session.until_text("box   last 2 hours   1× H200 · 192.0.2.10 · up 9 h 12 m")


async def test_history_comes_from_the_logs_of_runs(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        screen = await box(session)
        await session.until(lambda: len(screen.view.history.filled.get(0, ())) > 80, "samples of the run")
        chart = next(iter(screen.query(GpuChart)))
        await session.until(lambda: chart.render_line(0).text.count("⣿") + chart.render_line(1).text.count("⣿") > 20)
        await session.press("plus", "plus")
        await session.until_text("last 10 minutes")
        await session.press(*["minus"] * 6)
        await session.until_text("the whole life of the box")
        low, high = screen.view.ends(session.app.store)
        assert high - low == 33_120


async def test_what_the_gpus_did_is_saved(start: Start, downloads: Path) -> None:
    async with start(gpu_box, wait="87/200") as session:
        screen = await box(session)
        await session.until(lambda: len(screen.view.history.filled.get(1, ())) > 80, "samples of the run")
        await session.press("E")
        await session.until(lambda: "saved 202 samples" in session.messages())
        head, *rows = csv.reader((downloads / "h200-a_gpus_last_2_hours.csv").read_text().splitlines())
        assert head == ["time", "gpu", "use_percent", "memory_mib", "power_w", "temperature_c"]
        assert [gpu for _, gpu, *_ in rows[:4]] == ["0", "1", "0", "1"]
        assert rows[0][2:] == ["94.0", "114700.0", "612.0", "61.0"]
        assert (len(rows), rows[0][0]) == (2 * 101, at(6_000.0))
        await session.press("plus", "plus", "E")
        await session.until((downloads / "h200-a_gpus_last_10_minutes.csv").exists)


async def test_memory_power_and_temperature_are_charted(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session, "GPU 0 · use %  94")
        for text in (
            "GPU 0 · memory GiB  112",
            "GPU 1 · power W  78",
            "GPU 0 · temperature °C  61",
            "GPU 0 · use %  94",
        ):
            await session.press("m")
            await session.until_text(text)


async def test_an_idle_gpu_costs_money(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session)
        await session.until_text("▲ GPU 1 idle for 1 h 40 m: $2.08, its share of the price")
        await session.press("1")
        await session.until_text("▲ idle 1 h 40 m ")


async def test_a_missing_price_is_named(start: Start) -> None:
    async with start(gpu_box, box=replace(BOX, price_per_hour=None), wait="87/200") as session:
        await box(session)
        await session.until_text("GPU 1 idle for 1 h 40 m", "no cost: set price_per_hour of this box in boxes.yaml")


async def test_idle_time_begins_with_this_app(start: Start) -> None:
    def script(client: FakeClient) -> None:
        gpu_box(client)
        del client.files[f"{LOGS}/gpu.jsonl"]

    async with start(script, wait="87/200") as session:
        screen = await box(session)
        history = screen.view.history
        await session.until(lambda: 1 in history._idle_since, "a sample")
        history._idle_since[1] = NOW - 22 * 60
        await session.until_text("▲ GPU 1 idle for 22 m: $0.46, its share of the price")


async def test_an_idle_gpu_has_a_way_out(start: Start) -> None:
    def script(client: FakeClient) -> None:
        gpu_box(client)
        client.runs[0]["nproc"] = 1
        client.gpus = [{**GPUS[0], "processes": [{**GPUS[0]["processes"][0], "rank": 0}]}, IDLE]

    async with start(script, wait="87/200") as session:
        screen = await box(session)
        await session.until_text(f"{RUN} (pid 4242, rank 0)", "no process")
        screen.view.history.last_used[1] = ("run_before", NOW - 23 * 60)
        screen.view.version += 1
        await session.until_text("no process; used by run_before until 23m ago")
        await session.until_text(f"→ s stops {RUN}, r resumes it on 2 GPUs")


async def test_checkpoints_are_listed_by_run(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session, "checkpoints  160 GB in 2 runs")
        text = await session.until_text("last 24 h: +96 GB", "d lists what can go", "120 GB   12×")
        assert "run_2026-11-20" in text.split("checkpoints  160 GB")[1]


async def test_what_can_go_and_its_paths(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    async with start(gpu_box, wait="87/200") as session:
        monkeypatch.setattr(session.app, "copy", lambda text, what: copied.append(text))
        screen = await box(session)
        await session.focus(screen.query_one("#disks"))
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, SpareScreen), "the list")
        await session.until_text("30 GB in 3 checkpoints of one run", "10–30 (3)", "step_{10,20,30}")
        assert str(session.app.screen.query_one(OptionList).get_option_at_index(0).prompt).startswith(f"{RUN} ")
        await session.press("y")
        await session.until(lambda: copied, "the paths")
        assert copied == [f"/data/training_runs/{RUN}/training_state/step_{{10,20,30}}"]
        assert not [op for op, params in session.client.asked if OPERATIONS[op].changes(params)]


async def test_what_can_go_may_be_nothing(start: Start) -> None:
    def script(client: FakeClient) -> None:
        gpu_box(client)
        client.answers["spare_checkpoints"] = {"spare": [], "more": 0, "problems": ["what is in use is not known: x"]}

    async with start(script, wait="87/200") as session:
        await box(session)
        await opened(session, "d", SpareScreen)
        await session.until_text("no checkpoint can go", "▲ what is in use is not known: x")
        assert not session.app.screen.query_one("#copy").display


async def test_a_refused_list_says_why(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> None:
        raise RemoteError("io", "the disk does not answer")

    def script(client: FakeClient) -> None:
        gpu_box(client)
        client.answers["spare_checkpoints"] = client.answers["checkpoint_sizes"] = refuse

    async with start(script, wait="87/200") as session:
        await box(session, "checkpoints  ✖ the disk does not answer")
        await opened(session, "d", SpareScreen)
        await session.until_text("✖ not listed: the disk does not answer")


async def test_a_lost_link_is_a_band(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        screen = await box(session)
        screen.view.history.lost.append((NOW - 3_600, NOW - 3_000))
        screen.view.history.filled.clear()
        screen.view.version += 1
        await session.until_text("░░░")
        session.client.on_event(LinkChanged(Link.LOST, "gone"))
        await session.until_text("link lost")


async def test_attach_is_to_the_session_under_the_cursor(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        await box(session, "notebook")
        await session.press("down", "y")
        await session.until(lambda: "copied: the command that attaches to notebook" in session.messages())
        assert session.app.clipboard.startswith("ssh ")
        assert "notebook" in session.app.clipboard
        await session.press("a")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        assert session.app.screen.session == "notebook"  # type: ignore[attr-defined]


async def test_no_gpu_says_so(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await box(session, "no GPU on this box; runs use its 2 CPU cores")
        assert not [chart for chart in screen.query(GpuChart) if chart.display]
        await session.press("tab", "enter")
        await session.until(lambda: screen.maximized is not None)
        await session.press("escape")
        await session.until(lambda: screen.maximized is None)
        await session.press("escape")
        assert session.app.views.name == "home"


async def test_a_lost_gpu_a_hidden_user_and_a_driver_that_fails(start: Start) -> None:
    lost = {"index": 1, "name": "NVIDIA H200", "free": False, "problem": "GPU is lost"}

    def script(client: FakeClient) -> None:
        learning_box(client).gpus = [IDLE | {"index": 0, "free": False}, lost]

    async with start(script, wait="87/200") as session:
        await session.until_text("in use, process n", "1 NVIDIA H200 · GPU is lost")
        await session.press("5")
        await session.until_text("in use, process not listed", "GPU is lost")
        session.client.on_event(TopicFailed("gpu", "nvidia-smi failed: no driver"))
        await session.until_text("nvidia-smi failed: no driver")

    def failing(client: FakeClient) -> None:
        learning_box(client)
        client.report = lambda: [  # type: ignore[method-assign]
            client.on_event(topic_event("runs", {"value": {"runs": client.runs}})),
            client.on_event(TopicFailed("gpu", "nvidia-smi failed: no driver")),
        ]

    async with start(failing, wait="87/200") as session:
        await session.until_text("? no GPU sample: nvidia-smi failed: no driver")
        await box(session, "? no GPU sample: nvidia-smi failed: no driver")


async def test_sessions_that_cannot_be_read_are_not_none(start: Start) -> None:
    error = {"code": "tmux", "message": "the socket was removed", "hint": "on the box: kill -USR1 7"}

    def script(client: FakeClient) -> None:
        learning_box(client).sessions = []

    async with start(script, wait="87/200") as session:
        await session.press("5")
        await session.until_text("no sessions")
        session.client.on_event(topic_event("sessions", {"error": error}))
        await session.until_text("the socket was removed; on the box: kill -USR1 7")
        assert "no sessions" not in session.text()


async def test_a_refusal_keeps_the_rest(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> None:
        raise RemoteError("io", "the disk does not answer")

    def script(client: FakeClient) -> None:
        gpu_box(client)
        client.answers["box_facts"] = refuse

    async with start(script, wait="87/200") as session:
        await session.press("5")
        await session.until_text("the disk does not answer", "GPU 0 · use %  94", "notebook")


async def test_a_small_terminal_shows_one_gpu(start: Start) -> None:
    async with start(gpu_box, size=(60, 15), wait="87/200") as session:
        await session.press("5")
        await session.until_text("GPU 0")
        screen = session.app.views.box
        (chart,) = (chart for chart in screen.query(GpuChart) if chart.display)
        assert chart.size.height >= 3
        assert not screen.query_one("#middle").display


async def test_the_engine_is_set_up_in_a_session(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        client = session.client
        client.answers["set_up"] = {"run": "", "session": "setup", "argv": ["bash"], "engine": "", "started": True}
        await box(session)
        await session.press("S")
        await session.until_text("setup of the engine started", "in tmux session setup; a attaches")

        def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
            raise RemoteError("no_repo", "no checkout is configured for this box", "set 'repo' in boxes.yaml")

        client.answers["set_up"] = refuse
        await session.press("S")
        await session.until_text("cannot set up the engine", "no checkout is configured", "set 'repo' in boxes.yaml")


async def test_a_shell_is_opened_and_attached_to(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        session.client.answers["open_shell"] = {"session": "shell_2"}
        await box(session)
        await session.press("n")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        await session.until_text("Terminal of shell_2")


async def test_a_line_is_sent_after_a_confirmation(start: Start) -> None:
    async with start(gpu_box, wait="87/200") as session:
        client = session.client
        client.answers["send_line"] = {"session": RUN}
        await box(session)
        name = session.app.views.box.session
        for confirms in (False, True):
            await opened(session, "i", LineScreen)
            fill(session, "answer", "nvidia-smi [1]")
            await session.press("enter")
            await session.until_text(
                "send this line?", f"session  {name}", "box      h200-a", "line     nvidia-smi [1]"
            )
            await session.focus("#yes" if confirms else "#cancel")
            await session.press("enter")
            await session.until(lambda: not isinstance(session.app.screen, ModalScreen))
        await session.until(lambda: f"sent to {name}" in session.messages())
        sent = [params for op, params in client.asked if op == "send_line"]
        assert [(params["session"], params["line"]) for params in sent] == [(name, "nvidia-smi [1]")]
