"""What needs the user, notes, trends, and what is remembered between starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.box.events import AlarmRule
from grpo_tui.files import Preferences, preferences_path
from grpo_tui.kit.lists import LinesPanel
from grpo_tui.views.home.panels import NeedsPanel
from grpo_tui.views.home.runs import RunsPanel
from tests.tui.conftest import Session, Start
from tests.tui.fake import GPUS, FakeClient, learning_box
from tests.tui.fake_rows import LOGS, NOW, RUN, jsonl, train_rows

CRASHED, FINISHED = "run_2026-11-20_18-02-07", "run_2026-11-20_22-10-41"


def keys(session: Session) -> list[str]:
    return [need.run or need.text for need in session.app.home.needs.entries]


async def test_what_happened_needs_you(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text(f"{CRASHED} crashed at step 12", "resume at 30", "evaluate it")
        await session.until_text("rank 1 was killed by SIGKILL")
        assert keys(session) == [FINISHED, CRASHED]  # newest first; the third was asked to stop
        session.client.runs[0].update(state="finished", step=200)
        session.client.report()
        await session.until(lambda: keys(session) == [RUN, FINISHED, CRASHED])
        session.client.runs[0]["held_out"] = {"accuracy": 0.8, "dataset": "gsm8k", "step": 200}
        session.client.report()
        await session.until(lambda: keys(session) == [FINISHED, CRASHED])


async def test_new_entries_are_told_to_the_terminal(start: Start) -> None:
    failed = {
        "command": "backup", "phase": "failed", "destination": "s3", "what": "", "bytes": 5.0, "bytes_total": 9.0,
        "proven": 0.0, "files": 0.0, "files_total": 1.0, "seconds": 1.0, "rate": 0.0, "error": "no route to the store",
        "again": "grpo-train backup --training-run x",
    }  # fmt: skip
    async with start(wait="87/200") as session:
        rung: list[int] = []
        session.app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        await session.until(lambda: keys(session) == [FINISHED, CRASHED])
        assert not rung  # they were there already
        live, done, _, stopped = session.client.runs
        live["state"] = "stalled"
        done["transfer"] = failed
        session.client.report()
        await session.until_text("is stalled at step 87", "its stacks are in console.log")
        await session.until_text(f"backup of {FINISHED} failed", "no route to the store")
        assert len(rung) == 1
        live.update(state="finished", workflow={"stages": 3, "done": 3})
        done.pop("transfer")
        stopped["reason"] = "plateau: reward"
        session.client.report()
        await session.until_text("finished its workflow")
        assert f"backup of {FINISHED} failed" not in session.text()
        assert len(rung) == 2


async def test_entries_are_opened_and_dismissed(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("needs you 2")
        panel = session.app.home.query_one(NeedsPanel)
        panel.focus()
        await session.press("down", "enter")
        await session.until(lambda: session.app.store.selected == CRASHED)
        assert session.app.views.name == "home"
        panel.focus()
        await session.press("d")
        await session.until(lambda: keys(session) == [FINISHED])
        await session.pilot.click("#needs", offset=(15, 1))
        await session.until(lambda: session.app.store.selected == FINISHED)
        await session.press("d")  # the list of runs has the keys: nothing is dismissed unseen
        await session.until(lambda: panel.has_focus)
        assert keys(session) == [FINISHED]
        await session.press("I")
        await session.until(lambda: len(keys(session)) == 2)
        await session.press("d", "d")
        await session.until(lambda: "needs you" not in session.text())
    async with start(wait="87/200") as session:
        await session.until(lambda: session.app.home.needs.dismissed, "what was dismissed")
        assert keys(session) == []


async def test_a_rule_needs_you_and_is_a_line(start: Start) -> None:
    rules = (AlarmRule.parse("entropy < 0.1"), AlarmRule.parse("grad_norm > 1"))
    async with start(wait="87/200", alarms=rules) as session:
        rung: list[int] = []
        session.app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        await session.until(lambda: keys(session))
        assert RUN not in keys(session)
        await session.press("2")
        await session.until_text("alarm above 1", "alarm below 0.1", "- - -")
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([{**train_rows(88)[87], "entropy": 0.05}]))
        await session.until(lambda: rung, "the bell, in any view")
        await session.press("1")
        await session.until_text("entropy 0.050: alarm below 0.1")
        session.client.append(f"{LOGS}/train_log.jsonl", jsonl([{**train_rows(89)[88], "entropy": 0.04}]))
        await session.until_text("entropy 0.040")
        assert len(rung) == 1


async def test_an_idle_gpu_costs_money(start: Start) -> None:
    clock = [NOW]

    def script(client: FakeClient) -> None:
        learning_box(client).gpus = [
            *GPUS,
            {**GPUS[0], "index": 1, "utilization_percent": 0.0, "free": True, "processes": []},
        ]

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.gpus)
        session.app.tick()
        session.app.store.now = lambda: clock[0]
        clock[0] += 1200
        session.client.report()
        await session.until_text("GPU 1 idle for 20 m", "$0.42 at this price; 5 shows what to do")  # half of the box
        session.client.gpus[1]["utilization_percent"] = 50.0
        session.client.report()
        await session.until(lambda: "idle for" not in session.text())


async def test_an_alarm_needs_you(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.runs[0]["alarm"] = "loss is NaN or Inf; the update was skipped"
        session.client.report()
        await session.until_text(f"{RUN} at step 87", "loss is NaN or Inf; the update was skipped")


async def test_a_small_terminal_has_no_room_for_needs(start: Start) -> None:
    async with start(size=(60, 15), wait="87/200") as session:
        await session.until(lambda: len(keys(session)) == 2)
        await session.until(lambda: not session.app.home.query_one(NeedsPanel).display)
        await session.until(lambda: not session.app.home.query_one("#log", LinesPanel).is_seen)


async def test_a_note_is_put_on_a_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("t")
        await session.until_text("note on run_gsm8k_demo")
        await session.press(*"best so far", "enter")
        await session.until_text("note         best so far")
        assert session.client.asked_for("note")[0]["text"] == "best so far"
        await session.press("slash", *"note:best", "enter")
        await session.until_text("1 of 4")
        await session.press("escape", "t")
        await session.until_text("note on run_gsm8k_demo")
        await session.press("ctrl+u", "enter")
        await session.until(lambda: "best so far" not in session.text())


async def test_the_list_shows_trends(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until(lambda: session.app.home.runs.trends.of(RUN), "the curve of the run")
        trend = session.app.home.runs.trends.of(RUN)
        assert trend is not None
        await session.until_text(f"{trend.last:.3f} {trend.arrow}", trend.curve)
        session.app.home.sort_by("trend")
        assert session.app.home.runs.rows[0].name == RUN, "the only one with a direction"


async def test_choices_are_remembered(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.home.sort_by("reward")
        runs = session.app.home.runs
        await session.press("w", "down", "down")
        chosen = runs.rows[session.app.home.query_one(RunsPanel).cursor].name
        await session.until(lambda: session.app.store.selected == chosen)
        assert chosen != RUN
        await session.press("2")
        await session.until(lambda: session.app.views.name == "charts")
        await session.until(lambda: chosen in runs.facts.configs)
        session.app.tick()
        session.app.views.charts.view.shown = ["loss", "entropy"]
        await session.press("x", "x")
        session.app.theme = "grpo-light"
        session.app.tick()
    async with start() as session:
        await session.until(lambda: session.app.views.name == "charts")
        app = session.app
        assert (app.store.selected, app.theme) == (chosen, "grpo-light")
        assert (app.home.runs.order.column, app.home.runs.full_names) == ("reward", True)
        assert app.views.charts.view.window.x == "time"
        await session.until(lambda: app.views.charts.view.shown == ["loss", "entropy"], "the metrics of the task")
    kept = preferences_path().read_text()
    async with start(wait="87/200", fresh=True) as session:
        assert (session.app.store.selected, session.app.theme) == (RUN, "grpo-dark")
        session.app.home.sort_by("name")
    assert preferences_path().read_text() == kept


def test_damaged_preferences_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    preferences_path().parent.mkdir()
    for text in ("", "[]", "{", '{"theme": 3, "runs": {"a": 1}, "looks": []}'):
        preferences_path().write_text(text)
        assert Preferences.load() == Preferences()
    preferences = Preferences.load()
    preferences.box = "h200-a"
    preferences.save()
    assert Preferences.load().box == "h200-a"
    assert Preferences.load(fresh=True) == Preferences()
