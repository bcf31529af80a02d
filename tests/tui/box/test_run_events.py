"""Events of a run: which signs they have, and where they are on the axis of a chart."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir.display import EVENT_WORDS
from grpo_tui.box.charts import ChartEvents, Gap, Placed, gaps_of, sign_of
from grpo_tui.box.curves import Mark
from grpo_tui.box.events import Pause, RunEvent, RunEvents
from grpo_tui.box.log import RunLogs
from grpo_tui.kit.plot import View, bands_of, column_of, event_legend, signs_of
from tests.support.any_json import values

VIEW = View(0, 100, 0, 1)


def events_of(*rows: dict[str, Any]) -> RunEvents:
    """What is read from rows of ``events.jsonl``, one a second."""
    logs = RunLogs("r")
    timed = [{"time": f"2026-11-20T10:00:{second:02d}Z", **row} for second, row in enumerate(rows)]
    logs.feed("events", 0, "".join(json.dumps(row) + "\n" for row in timed).encode())
    return logs.happened


def signs(*rows: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(one.sign, one.step, one.text) for one in events_of(*rows).events]


def test_a_stop_is_one_event() -> None:
    asked = {"event": "stop_asked", "step": 39, "by": "ann@laptop"}
    assert signs(asked) == [("S", 39, "stop requested by ann@laptop")]
    assert signs(asked, {"event": "saved", "step": 40}, {"event": "stopped", "step": 40}) == [
        ("S", 40, "stopped, stop requested by ann@laptop")
    ]
    assert signs(asked, {"event": "finished", "step": 40}) == []


def test_a_crash_has_its_reason() -> None:
    found = signs(
        {"event": "crashed", "step": 912, "error": {"summary": "CUDA out of memory\non rank 0"}},
        {"event": "restarted", "step": 912},
        {"event": "killed", "step": 950},
    )
    assert found == [
        ("✖", 912, "crashed: CUDA out of memory on rank 0"),
        ("R", 912, "restarted after a crash"),
        ("✖", 950, "killed"),
    ]


def test_a_resume_says_what_it_changed() -> None:
    changes = {"run.total_steps": [3, 6], "optimizer.learning_rate": [1e-6, 2e-6]}
    assert signs({"event": "resumed", "step": 3, "changes": changes}) == [
        ("Δ", 3, "resumed from step 3, optimizer.learning_rate 1e-6 → 2e-6")
    ]
    assert signs({"event": "resumed", "step": 3, "changes": {"run.total_steps": [3, 6]}}) == [
        ("R", 3, "resumed from step 3")
    ]


def test_what_an_agent_did_is_said_with_its_reason() -> None:
    stop = {"event": "stop_asked", "by": "an assistant of ann@laptop", "step": 4}
    act = {"event": "by_assistant", "step": 4, "op": "stop", "why": "reward fell at 3"}
    assert signs(stop, act) == [("S", 4, "stop requested by an agent: reward fell at 3")]
    assert signs(stop, act, {"event": "stopped", "step": 5}) == [
        ("S", 5, "stopped, stop requested by an agent: reward fell at 3")
    ]
    assert signs({**act, "op": "evaluate", "why": ""}) == [("@", 4, "evaluation requested by an agent")]


def test_a_pause_ends_when_training_starts() -> None:
    events = events_of(
        {"event": "training", "step": 0},
        {"event": "stopped", "step": 10},
        {"event": "resumed", "step": 10},
        {"event": "training", "step": 10},
        {"event": "training", "step": 20},
    )
    first, second = events.pauses
    assert first.start is not None
    assert first.end - first.start == 2
    assert second.start is None, "no event says what ended: an evaluation between two stages"


@given(st.lists(st.dictionaries(st.sampled_from(["event", "step", "time", "changes", "by", "error"]), values)))
def test_no_row_is_too_strange(rows: list[dict[str, Any]]) -> None:
    for event in events_of(*({**row, "event": row.get("event", "resumed")} for row in rows)).events:
        assert event.sign in EVENT_WORDS
        assert "\n" not in event.text


EVENTS = st.builds(
    Placed,
    st.floats(0, 100),
    st.builds(RunEvent, st.sampled_from(list(EVENT_WORDS)), st.integers(0, 100), st.none(), st.just("text")),
)


@given(st.lists(EVENTS), st.lists(st.floats(0, 100)), st.integers(1, 200))
def test_every_sign_is_in_its_column(placed: list[Placed], nan: list[float], columns: int) -> None:
    found = signs_of(placed, nan, VIEW, columns)
    assert set(found) == {column_of(x, VIEW, columns) for x in (*nan, *(one.x for one in placed))}
    for x, event in placed:
        sign = found[column_of(x, VIEW, columns)]
        assert event in sign.events
        assert event.sign != "✖" or sign.text == "✖", "a crash is always seen"


def test_a_stop_and_its_resume_are_one_sign() -> None:
    stop, resume, later = (RunEvent(sign, step, None, "") for sign, step in (("S", 10), ("R", 10), ("◆", 11)))
    assert sign_of([stop, resume]) == "R"
    assert sign_of([later, later]) == "◆"
    assert sign_of([stop, resume, later]) == "+"


def test_the_legend_has_what_there_is_room_for() -> None:
    assert event_legend(frozenset("S◆R"), 60).plain == "R resume  S stop  ◆ held-out evaluation"
    assert event_legend(frozenset("S◆R"), 20).plain == "R resume  S stop"
    assert event_legend(frozenset(), 60).plain == ""


def mark(x: float) -> Mark:
    return Mark(x, 0, 0, 0, 0, False)


def test_a_gap_is_where_no_step_was_logged() -> None:
    marks = [mark(10), mark(20), mark(80), mark(90)]
    ((place, gap),) = gaps_of(marks, [Pause(25, 70)], (0, 100))
    assert (place, gap.low, gap.high, gap.seconds) == (2, 25, 80, 45)
    ((place, gap),) = gaps_of(marks, [Pause(None, 70)], (0, 100))
    assert (place, gap.low, gap.high, gap.seconds) == (2, 20, 80, 50)
    assert gaps_of(marks, [Pause(200, 300)], (0, 100)) == []


def test_a_gap_says_how_long_it_is() -> None:
    gap = Gap(25, 80, 45, True)
    assert "".join(bands_of([gap], VIEW, 50).values()) == "░░░░░░░ stopped 45 s ░░░░░░"
    assert "".join(bands_of([gap], VIEW, 20).values()) == "░░ 45 s ░░"
    assert "".join(bands_of([gap], VIEW, 10).values()) == "░░░░░"
    assert bands_of([Gap(25, 26, 1, True)], VIEW, 10) == {}


def test_events_are_found_by_place() -> None:
    events = ChartEvents()
    events.placed = [Placed(x, RunEvent("S", int(x), None, "")) for x in (10, 20, 20, 30)]
    assert [one.x for one in events.beside(None, -1)] == [30]
    assert [one.x for one in events.beside(30, -1)] == [20, 20]
    assert [one.x for one in events.beside(10, 1)] == [20, 20]
    assert events.beside(30, 1) == []
    assert len(events.between(20, 20)) == 2
