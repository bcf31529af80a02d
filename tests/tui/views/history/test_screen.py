"""The History: the file of records as tables, with the query language of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_train.history.database import Database
from grpo_tui import cli
from grpo_tui.dialogs.runs import TrackingScreen
from grpo_tui.files import Options
from grpo_tui.views.history.model import HistoryQuery
from grpo_tui.views.history.panels import HistoryTable
from grpo_tui.views.history.screen import RecordScreen
from remote.boxes import Box
from remote.gate import reply
from remote.protocol import RemoteError
from tests.support.histories import fill_history
from tests.tui.conftest import Session, Start, opened
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_backups import page_of
from tests.tui.fake_rows import NOW, RUN

GONE = "night-2026-11-02"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history that the app only reads."""
    monkeypatch.setattr("grpo_tui.history.writer.HistoryWriter.put", lambda *answer: None)
    path = tmp_path / "history.sqlite"
    fill_history(path, NOW)
    return path


async def shown(session: Session) -> None:
    await session.press("7")
    await session.until_text("lr_scan_high", "W&B")


def names(session: Session) -> list[str]:
    """The first column of the table."""
    answer = session.app.views.history.view.answer
    return [row[0] for row in answer.rows.cells] if answer else []


async def ask(session: Session, query: str, *expected: str) -> None:
    """Type a query and wait for what it finds."""
    if not session.app.screen.query_one("#filter").display:
        await session.press("slash")
    session.app.screen.query_one("#filter").value = query  # type: ignore[attr-defined]
    await session.until(lambda: names(session) == [*expected], f"{query}: {expected}")


async def test_the_table_is_that_of_the_command(start: Start, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "--csv", "--file", str(file)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        answer = session.app.views.history.view.answer
        assert answer is not None
        assert list(answer.rows.columns) == header.split(",")
        assert names(session) == [line.partition(",")[0] for line in lines]


async def test_a_collapsed_run_is_not_green(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        table = session.app.screen.query_one(HistoryTable)
        columns = table.columns(300)
        cells = {
            column.id: (str(text), style)
            for column, (text, style) in zip(columns, table.cells(names(session).index(GONE), columns), strict=True)
        }
        tones = {tone: table.get_component_rich_style(f"history--{tone}", partial=True) for tone in ("rest", "bad")}
        assert cells["state"] == ("▼ finished", tones["rest"])
        assert cells["verdict"] == ("▼ collapsed", tones["bad"])


async def test_the_cursor_starts_at_the_selected_run(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        history = session.app.views.history
        history.view.asked = HistoryQuery("sort:reward")
        await shown(session)
        await session.until(lambda: history.record and history.record.name == RUN)
        assert names(session)[0] != RUN
        await session.press("g", "1", "7")
        await session.until(lambda: history.is_current)
        assert history.record is not None
        assert history.record.name == names(session)[0], "a cursor that was moved stays"
        await session.press("escape")
        await session.until_text("reward: last step")


async def test_a_query_finds_runs_and_points_to_mistakes(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        await ask(session, "task:gsm8k sort:reward", "lr_scan_high", RUN)
        await session.until_text("2 of 4")
        await ask(session, "max.kl<1 cost<7", GONE)
        await session.until_text("max.kl")  # a field that the query names is a column
        session.app.screen.query_one("#filter").value = "rewrd>1"  # type: ignore[attr-defined]
        await session.until_text("^ no run has a field 'rewrd'; did you mean reward?")
        assert names(session) == [GONE], "the last valid query stays"
        await ask(session, "box:disk", "selfplay")
        await session.press("enter", "escape")
        await session.until(lambda: len(names(session)) == 4)
        await session.press("escape")
        await session.until(lambda: session.app.views.name == "home")


async def test_costs_by_run_box_and_day(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        await session.press("t")
        await session.until_text("per 1,000", "$1.07 [$0.89, $1.34]", "total $81.30", "idle $43.58")
        await session.press("t")
        await session.until(lambda: names(session) == ["a100-old", "disk", "h200-a"])
        await session.until_text("30.00  $31.12", "without a price: disk")
        await session.press("t")
        await session.until(lambda: names(session)[:2] == sorted(names(session)[:2], reverse=True) != [])
        await session.press("o")
        assert "an order of their own" in session.messages()
        await session.press("escape")
        await session.until_text("launched↓")


async def test_runs_are_sorted_by_a_column(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        panel = session.app.views.history.query_one("#history-table")
        start_of = {column: first for first, _, column in panel._spans}  # type: ignore[attr-defined]
        await session.pilot.click("#history-table", offset=(start_of["reward"] + 3, 1))
        await session.until(lambda: names(session) == [RUN, GONE, "lr_scan_high", "selfplay"])
        await session.pilot.click("#history-table", offset=(start_of["reward"] + 3, 1))
        await session.until(lambda: names(session) == ["selfplay", "lr_scan_high", GONE, RUN])


async def test_enter_opens_a_run_where_it_is(start: Start, file: Path, tmp_path: Path) -> None:
    fill_history(file, NOW, box="h200-b", run="run_2026-11-20_22-10-41")
    boxes = tmp_path / "boxes.yaml"
    boxes.write_text("boxes: [{name: h200-a, host: a.test}, {name: h200-b, host: b.test, root: /data}]\n")
    async with start(history=file, boxes_file=boxes, wait="87/200") as session:
        await shown(session)
        await session.press("down", "down")
        await opened(session, "enter", RecordScreen)  # its box is not in boxes.yaml
        await session.until_text("held_out             .520", "1e-5")
        await session.press("escape", "up", "up", "enter")
        await session.until(lambda: session.app.store.box == "h200-b", "the other box")
        await session.until(lambda: session.app.store.selected == "run_2026-11-20_22-10-41", "its run")
        assert session.app.views.name == "home"


async def test_enter_opens_the_charts_of_a_run_of_this_box(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        await session.press("enter")
        await session.until(lambda: session.app.views.name == "charts")
        assert session.app.store.selected == RUN


async def test_what_is_known_of_the_tracking(start: Start, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr("grpo_tui.app.GrpoApp.copy_to_clipboard", lambda app, text: copied.append(text))
    monkeypatch.setattr("grpo_tui.dialogs.runs.has_browser", lambda: False)
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        await opened(session, "W", TrackingScreen)
        await session.until_text("sent online since", "https://wandb.ai/team/grpo-tui/runs/aaaa")
        await session.press("y", "o")
        await session.until(lambda: "no graphical browser" in session.messages())
        assert copied == ["https://wandb.ai/team/grpo-tui/runs/" + "a" * 16]
        await session.press("escape", "down", "down")
        await opened(session, "W", TrackingScreen)
        await session.until_text("CommError: 401 Unauthorized", f"grpo-train track --training-run {GONE}")


async def test_a_run_that_is_not_tracked_says_so(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        assert "held-out .620   at step 100   best .620   at step 100" in session.text()
        await session.press("down")
        await session.until_text("W&B      off", "error    rank 1 was killed by SIGKILL")


async def test_what_another_program_writes_is_shown(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        fill_history(file, NOW, run="renamed")
        await session.until(lambda: "renamed" in names(session))


async def test_a_damaged_file_is_said_and_what_was_read_stays(start: Start, file: Path) -> None:
    async with start(history=file, wait="87/200") as session:
        await shown(session)
        for name in ("-wal", "-shm"):
            file.with_name(file.name + name).unlink(missing_ok=True)
        file.write_bytes(b"not a database" * 1000)
        await session.until_text("is damaged", "lr_scan_high")
        fill_history(Database(file).path, NOW)
        await session.until(lambda: "is damaged" not in session.text(), "read again")


async def test_without_a_history_every_key_says_why(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("7")
        await session.until_text("started with --no-cache")
        await session.press("t")
        assert "started with --no-cache" in session.messages()
        await session.press("slash", *"se6")  # typed for a prompt that did not open
        await session.until_text("started with --no-cache")
        assert session.app.views.name == "history"
        assert not session.client.asked_for("stop")


def test_the_demo_says_that_it_keeps_none(tmp_path: Path) -> None:
    assert Options(Box("local")).no_history.startswith("started with --no-cache")
    assert Options(Box("local"), demo_root=tmp_path).no_history == "the demo keeps no history"
    assert Options(Box("local"), history=tmp_path / "history").no_history == ""


async def test_runs_of_the_box_s_backups_are_read_once(start: Start, tmp_path: Path) -> None:
    """When the history is shown first; a destination that cannot be read is named."""
    record = {
        "identity": "f" * 16, "root": "s3://runs/me", "name": "only_in_the_backup",
        "summary": {"state": "finished", "step": 40}, "config": {}, "metrics": {"reward": [0.7, 0.1, 0.7]},
        "evaluations": [], "events": [], "backup": "complete", "parent": "",
    }  # fmt: skip

    def page(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if params["source"] == "disk":
            raise RemoteError("unreachable", "/mnt/backups is not mounted")
        return reply("stored_history", {"ok": True, "result": page_of(record)})

    def script(client: FakeClient) -> None:
        learning_box(client).answers["stored_history"] = page

    async with start(script, history=tmp_path / "new.sqlite", wait="87/200") as session:
        assert not session.client.asked_for("stored_history")
        await session.press("7")
        await session.until_text("only_in_the_backup")
        await session.until(lambda: "disk: /mnt/backups is not mounted" in session.messages())
        await session.press("1")
        await session.press("7")
        await session.until_text("only_in_the_backup")
        assert [params["source"] for params in session.client.asked_for("stored_history")] == ["s3", "disk"]
