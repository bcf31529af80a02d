"""What a box sends within its credit, or just below the bounds, takes bounded memory and does not bury the app."""

from __future__ import annotations

import json
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from grpo_tui.app import GrpoApp
from grpo_tui.box import curves, log
from grpo_tui.box.curves import Curves
from grpo_tui.box.events import CODE_LENGTH, records_of
from grpo_tui.box.log import RANGES_KEPT, RunLogs
from grpo_tui.box.needs import ANNOUNCED, Pace
from grpo_tui.box.store import CHECK_LENGTH, Store
from grpo_tui.files import Options
from grpo_tui.kit.gpu import GPUS_SHOWN, GpuPanel
from grpo_tui.kit.lists import Palette
from grpo_tui.kit.sources import CHECKPOINT_LINES, EVALUATION_LINES, CheckpointsSource, wrapped
from grpo_tui.views.home.runs import RunsPanel
from remote import gate
from remote.boxes import Box
from remote.protocol.check import matches, mismatch
from remote.protocol.logs import Columns
from remote.protocol.rows import ROWS
from tests.support.any_json import GPU, RESULTS, TABLE, UPDATES, mutated
from tests.tui.fake import FakeClient


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_rows_have_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    monkeypatch.setattr(log, "ROWS_WEIGHT", limit)
    logs = RunLogs("r")
    texts = {f"text{key}": "€" * 100 for key in range(40)}
    logs.feed("train_log", 0, lines(*({"step": step, "list": [[]] * 90, **texts} for step in range(400))))
    kept = sum(sys.getsizeof(value) for row in logs.rows for value in row.fields.values())
    assert 0 < kept < limit
    assert len(logs.rows) < 400
    assert logs.last_step == 399


def test_rows_beside_an_answer_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box may send rows without end and answer no request for curves."""
    monkeypatch.setattr(curves, "LIVE_KEPT", 100)
    shown, logs = Curves("r"), RunLogs("r")
    columns = Columns(*(array("d", [1.0]) for _ in range(7)))
    answer = {
        "x": "step", "state": "whole", "progress": 1.0, "first": 0, "last": 0, "low": 0, "high": 1,
        "rows": 1, "offset": 0, "series": [{"metric": "a", "columns": columns}],
    }  # fmt: skip
    shown.show(("a",), 1)
    assert shown.due()
    shown.answer(answer, logs)
    logs.feed("train_log", 0, lines(*({"step": step, "a": 1.0} for step in range(3_000))))
    shown.extend(logs)
    assert len(shown.curves["a"].marks) <= 102


def test_resumes_without_end_have_a_limit() -> None:
    logs = RunLogs("r")
    rows = lines(*({"step": step, "reward": 0.5} for step in range(200)))
    logs.feed("train_log", 0, rows)
    spans = [[at, at + 1] for at in range(2 * len(rows), 2 * len(rows) + 9_000, 3)] + [[-5, 4], [9, 2**70], [3, 3]]
    events = lines(*({"superseded": {"train_log.jsonl": span, f"other{i}": span}} for i, span in enumerate(spans)))
    logs.feed("events", 0, events)
    assert len(logs.rows) == 200
    assert set(logs.superseded) == {"train_log.jsonl"}
    assert len(logs.superseded["train_log.jsonl"]) == RANGES_KEPT


def test_health_records_are_short() -> None:
    (record,) = records_of([{"message": "x" * 10**6, "code": "y" * 10**6, "level": ["z" * 10**6]}])
    assert len(record["code"]) == len(record["level"]) == CODE_LENGTH
    assert len(record["message"]) < 1_000


def test_a_list_of_10000_gpus_shows_the_first() -> None:
    store = Store("b")
    store.apply(gate.topic_event("gpu", {"value": {"gpus": [GPU] * 10_000}}))
    assert GpuPanel(store).lines_wanted() == GPUS_SHOWN


def many_checkpoints() -> Store:
    store = Store("b")
    store.apply(gate.topic_event("runs", {"value": {"runs": [{"run": "r", "state": "running"}]}}))
    store.select("r")
    result = {**RESULTS["show_run"], "run": "r"}
    result["checkpoints"] = [{**result["checkpoints"][0], "step": step} for step in range(10_000)]
    tables = [{"name": f"r_{index}", "metrics": [{**TABLE, "step": "9999"}]} for index in range(1_000)]
    store.show("r", gate.reply("show_run", {"ok": True, "result": {**result, "evaluations": tables}}))
    return store


def test_a_list_of_10000_checkpoints_is_short() -> None:
    source = CheckpointsSource(many_checkpoints())
    first, end = source.bounds(80)
    lines = [source.line(index, 80, Palette()).plain for index in range(first, end)]
    assert "step_9999" in lines[0]
    assert "step_9998" in lines[EVALUATION_LINES]
    assert lines[-1] == f"{10_000 - 1 - (CHECKPOINT_LINES - EVALUATION_LINES):,} older checkpoints"


def test_a_page_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CheckpointsSource(many_checkpoints())
    layouts: list[int] = []
    layout = source.layout
    monkeypatch.setattr(source, "layout", lambda width, palette: layouts.append(width) or layout(width, palette))
    for _ in range(3):
        source.bounds(80)
        source.line(0, 80, Palette(muted="red"))
    assert len(layouts) == 2  # for the number of lines before there are colors, and with them


def test_10000_ends_at_once_are_not_all_announced() -> None:
    pace = Pace()
    assert pace.first(list(range(10_000))) == list(range(ANNOUNCED))
    assert pace.first(["one more"]) == []


def box_with_runs(box: Box, on_event: Any) -> FakeClient:
    client = FakeClient(box, on_event)
    client.runs = [{"run": f"r{index}", "state": "running"} for index in range(10_000)]
    return client


async def test_a_tick_looks_only_at_the_runs_on_screen() -> None:
    app = GrpoApp(Options(Box("b", kind="local"), None, None, None, False, {}), make_client=box_with_runs)  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        while app.store.runs is None:
            await pilot.pause()
        app.tick()
        await pilot.pause()
        looked: list[str] = []
        age = app.store.row_age
        app.store.row_age = lambda row: looked.append(row.name) or age(row)  # type: ignore[func-returns-value, method-assign]
        app.query_one(RunsPanel).tick()
        assert 0 < len(set(looked)) <= 40


def test_the_findings_of_a_doctor_are_short() -> None:
    store = Store("b")
    store.examined({"checks": [{"name": "engine", "ok": False, "detail": "x\n" * 10**5, "hint": "y" * 10**5}]})
    assert len(store.warning()) <= 2 * CHECK_LENGTH + 3


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab 界😀\u0301\n<>"), max_size=60), st.integers(2, 20))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    found = [line.plain for line in wrapped(Text(text), width)]
    assert "".join(found) == text.replace("\n", "")
    assert all(cell_len(line) <= width for line in found)


@settings(max_examples=200, deadline=None)
@given(mutated(UPDATES[:3]))
def test_a_value_that_does_not_match_has_a_reason(frame: Any) -> None:
    for topic, rows in (frame.get("value") if isinstance(frame.get("value"), dict) else {}).items():
        for row in rows if isinstance(rows, list) and topic in ROWS else ():
            assert matches(row, ROWS[topic].type) == (mismatch(row, ROWS[topic].type) == "")
