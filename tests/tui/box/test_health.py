from __future__ import annotations

from typing import Any

import pytest

from grpo_train.run_dir.formats import current_health
from grpo_tui.box.events import CONDITIONS_KEPT, MESSAGE_LENGTH, RECORDS_KEPT, Health, records_of, tone_of_level
from grpo_tui.box.log import RunLogs
from tests.tui.fake_rows import NEAR_ZERO, batch_advice, jsonl, no_signal, off_policy


def health_of(*rows: object) -> Health:
    health = Health()
    for step, records in enumerate(rows, start=1):
        health.take(step, records)
    return health


def test_condition_is_known_by_its_code() -> None:
    rows = [[no_signal(0.5 + step / 50), batch_advice(step * 99)] for step in range(1, 9)]
    dead, advice = health_of([NEAR_ZERO], *rows).now
    assert (dead.since, dead.last, dead.steps) == (2, 9, 8)
    assert dead.message == no_signal(0.66)["message"]
    assert advice.since == 2


def test_records_of_the_previous_format_have_no_code() -> None:
    rows = [current_health([f"warning: {share}% of the groups teach nothing ({share}% all right)"]) for share in (4, 5)]
    (condition,) = health_of(*rows).now
    assert (condition.level, condition.since, condition.steps) == ("warning", 1, 2)
    assert condition.message == "5% of the groups teach nothing (5% all right)"


def test_recurring_condition_keeps_its_first_step() -> None:
    low = [off_policy(0.44)]
    (now,) = health_of([], low, low, [], low).now
    assert (now.since, now.first, now.steps) == (5, 2, 3)


def test_past_lists_alarms_and_warnings_latest_first() -> None:
    health = health_of([off_policy(0.4), NEAR_ZERO], [no_signal(0.6)], [])
    assert [(one.tone, one.last) for one in health.past] == [("warn", 2), ("warn", 1)]
    assert health.now == []
    assert (health.is_logged, health.tone) == (True, "muted")


def test_row_without_health() -> None:
    assert not health_of(None).is_logged
    assert not health_of([no_signal(0.6)], None).now


@pytest.mark.parametrize(
    ("level", "tone"),
    [("alarm", "bad"), ("warning", "warn"), ("info", "muted"), ("alarming", "muted"), (None, "muted")],
)
def test_tone_of_a_level(level: object, tone: str) -> None:
    assert tone_of_level(level) == tone


@pytest.mark.parametrize("health", [None, "alarm: text", {"alarm": 1}, 3, [["nested"], 3, None, "", {}, {"code": "x"}]])
def test_other_values_are_not_records(health: Any) -> None:
    assert records_of(health) == []


def test_messages_are_one_line_and_bounded() -> None:
    (record,) = records_of([{"code": "x", "level": "alarm", "message": "\n two\tlines"}])
    assert record["message"] == "two lines"
    health = Health()
    for step in range(400):
        rows = [{"code": f"{step}_{index}", "level": "alarm", "message": "y" * 9999} for index in range(99)]
        health.take(step, rows)
    assert len(health.now) == RECORDS_KEPT
    assert len(health.now) + len(health.past) == CONDITIONS_KEPT
    assert max(len(one.message) for one in health.now) <= MESSAGE_LENGTH


def test_resume_removes_conditions_of_replaced_steps() -> None:
    rows = [{"step": step, "health": [off_policy(0.4)] if step > 1 else []} for step in range(1, 5)]
    logs = RunLogs("run")
    logs.feed("train_log", 0, jsonl(rows))
    assert logs.health.now[0].since == 2
    kept = len(jsonl(rows[:1]))
    event = {"event": "resumed", "from_step": 1, "superseded": {"train_log.jsonl": [kept, len(jsonl(rows))]}}
    logs.feed("events", 0, jsonl([event]))
    assert (logs.health.now, logs.health.past, logs.health.is_logged) == ([], [], True)


def test_what_began_before_the_end_of_a_long_log() -> None:
    rows = [{"step": step, "health": [off_policy(0.4)]} for step in range(41, 44)]
    logs = RunLogs("run")
    logs.feed("train_log", 900_000, jsonl(rows))
    assert logs.health_from == logs.health.now[0].since == 41
    whole = RunLogs("run")
    whole.feed("train_log", 0, jsonl(rows))
    assert whole.health_from is None
