from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.box.log import COMPLETIONS_KEPT, FILES, LOGS, TEXT_KEPT, RunLogs
from tests.tui.fake_rows import jsonl, no_signal, off_policy, rollout_rows, train_rows


def chunks(data: bytes, places: list[int]) -> list[tuple[int, bytes]]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [(start, data[start:end]) for start, end in pairwise(edges)]


def facts(logs: RunLogs) -> dict[str, Any]:
    """Everything that widgets read."""
    return {
        "rows": [(row.offset, repr(row.fields)) for row in logs.rows],
        "completions": list(logs.completions),
        "console": list(logs.console),
        "superseded": logs.superseded,
        "health": (logs.health.is_logged, logs.health.now, logs.health.past),
        "last": (logs.last_step, logs.last_time, logs.recent("time/step")),
    }


def test_recent_values_are_the_newest() -> None:
    logs = RunLogs("run")
    logs.feed("train_log", 0, jsonl([{"step": step, "time/step": 100 if step <= 20 else 2} for step in range(1, 41)]))
    assert logs.recent("time/step") == 2


def resumed_files() -> dict[str, bytes]:
    """Logs of a run of 8 steps, resumed from step 4 and stopped at 6."""
    rows = [{**row, "health": [no_signal(row["step"] / 10)]} for row in train_rows(8, seed=1, nan_at=3)]
    first = jsonl(rows)
    again = jsonl([{**row, "health": [off_policy(0.4)]} for row in train_rows(6, seed=2)[4:]])
    start = len(jsonl(rows[:4]))
    rollouts = [row for step in range(1, 9) for row in rollout_rows(step, 2)]
    rollouts_again = [row for step in (5, 6) for row in rollout_rows(step + 100, 2)]
    kept = len(jsonl(rollouts[:8]))
    event = {
        "step": 4, "event": "resumed", "from_step": 4,
        "superseded": {"train_log.jsonl": [start, len(first)], "rollouts.jsonl": [kept, len(jsonl(rollouts))]},
    }  # fmt: skip
    return {
        "train_log": first + again,
        "events": jsonl([{"step": 0, "event": "launched"}, event]),
        "rollouts": jsonl(rollouts) + jsonl(rollouts_again),
        "console": "step 1\r50 %\rstep 1 done\n\x1b[31mred\x1b[0m\nÄ ✔\n".encode(),
    }


WHOLE = resumed_files()


def expected() -> dict[str, Any]:
    logs = RunLogs("run")
    for log in ("events", "train_log", "rollouts", "console"):
        logs.feed(log, 0, WHOLE[log])
    return facts(logs)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({log: st.lists(st.integers(0, len(WHOLE[log])), max_size=12) for log in LOGS}),
    st.randoms(use_true_random=False),
)
def test_chunks_and_stream_order_do_not_matter(places: dict[str, list[int]], dice: Any) -> None:
    logs = RunLogs("run")
    queues = {log: chunks(WHOLE[log], places[log]) for log in LOGS}
    while any(queues.values()):
        log = dice.choice([log for log in LOGS if queues[log]])
        logs.feed(log, *queues[log].pop(0))
    assert facts(logs) == expected()


def test_superseded_rows_are_replaced() -> None:
    logs, seen = RunLogs("run"), expected()
    assert not logs.feed("train_log", 0, WHOLE["train_log"])
    assert logs.feed("events", 0, WHOLE["events"]), "the curves are to be asked for again"
    assert [row.fields["step"] for row in logs.rows] == [1, 2, 3, 4, 5, 6]
    assert seen["last"][0] == 6
    assert [(one.since, one.last) for one in seen["health"][1]] == [(5, 6)]
    assert [(one.first, one.last) for one in seen["health"][2]] == [(1, 4)]
    assert len(seen["completions"]) == 8 + 4


def test_recent_values_are_finite() -> None:
    logs = RunLogs("run")
    logs.feed("train_log", 0, jsonl([{"step": 1, "loss": 0.5}, {"step": 2, "loss": math.nan}, {"step": 3}]))
    assert logs.recent("loss") == 0.5
    assert logs.recent("other") is None


def test_damaged_lines_are_skipped() -> None:
    logs = RunLogs("run")
    logs.feed(
        "train_log",
        0,
        b'{"step": 1, "reward": 0.5}\n{"step": 2, "rew\n[1]\n{"reward": 1}\n{"step": "NaN", "reward": 1}\n'
        b'{"step": 3, "reward": true}\n',
    )
    assert [row.fields.get("reward") for row in logs.rows] == [0.5, True]
    assert logs.last_step == 3


def test_completions_are_bounded() -> None:
    logs = RunLogs("run")
    row = {"step": 1, "prompt": "p" * 10 * TEXT_KEPT, "completion": "c" * 10 * TEXT_KEPT, "reward": 0}
    logs.feed("rollouts", 0, jsonl([row] * (COMPLETIONS_KEPT + 10)))
    assert len(logs.completions) == COMPLETIONS_KEPT
    last = logs.completions.last
    assert last is not None
    assert len(last.text) == len(last.prompt) == TEXT_KEPT


def test_console_lines_are_clean() -> None:
    logs = RunLogs("run")
    logs.feed("console", 0, b"50 %\r100 %\n\x1b[1;31mred\x1b[0m \x1b]0;title\x07end\r\nbell\x07 \xff\n")
    assert list(logs.console) == ["100 %", "red end", "bell· \ufffd"]


def test_replaced_log_starts_again() -> None:
    logs = RunLogs("run")
    logs.feed("train_log", 0, WHOLE["train_log"])
    logs.reset("train_log")
    logs.feed("train_log", 0, jsonl(train_rows(2)))
    assert [row.fields["step"] for row in logs.rows] == [1, 2]
    assert set(FILES) == set(LOGS)


def test_rows_of_the_previous_format_are_read() -> None:
    logs = RunLogs("run")
    row = {"step": 1, "groups/all_right": 0.5, "health": ["warning: samples are off-policy"]}
    logs.feed("train_log", 0, jsonl([row]))
    assert logs.recent("groups/all_correct") == 0.5
    assert [(one.level, one.message) for one in logs.health.now] == [("warning", "samples are off-policy")]
