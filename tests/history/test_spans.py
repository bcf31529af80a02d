"""When a run ran, from its events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.history.spans import Span, clipped, joined, remove_spans, run_spans, seconds
from grpo_train.run_dir.files import utc_from

T = 1_790_000_000.0


def events(*pairs: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"time": utc_from(T + at), "event": kind, "step": 0} for at, kind in pairs]


def relative(spans: list[Span]) -> list[tuple[float, float]]:
    return [(round(start - T, 3), round(end - T, 3)) for start, end in spans]


@pytest.mark.parametrize(
    ("logged", "updated", "measured", "expected"),
    [
        ([(0, "launched"), (100, "finished")], 100, 100, [(0, 100)]),
        ([(0, "launched"), (60, "stopped"), (500, "resumed"), (540, "finished")], 540, 100, [(0, 60), (500, 540)]),
        ([(0, "launched"), (50, "crashed"), (50, "restarted"), (90, "killed")], 90, 90, [(0, 50), (50, 90)]),
        ([(0, "launched")], 30, 30, [(0, 30)]),  # still running
        ([(0, "launched"), (10, "stopped"), (99, "note")], 10, 10, [(0, 10)]),
        ([(0, "launched"), (10, "finished")], 10, None, [(0, 10)]),
        ([(0, "launched"), (10, "stopped"), (99, "backed_up"), (120, "tracking")], 10, 10, [(0, 10)]),
        ([], 100, 40, [(60, 100)]),
        ([], 100, None, []),
    ],
)
def test_spans_follow_starts_and_ends(
    logged: list[tuple[float, str]], updated: float, measured: float | None, expected: list[tuple[float, float]]
) -> None:
    assert relative(run_spans(events(*logged), utc_from(T + updated), measured)) == expected


def test_time_of_a_reboot_is_not_counted() -> None:
    found = run_spans(events((0, "launched"), (900, "training"), (1000, "finished")), utc_from(T + 1000), 200)
    assert seconds(found) == pytest.approx(200)
    assert found[-1][1] == T + 1000


def test_unreadable_times_are_skipped() -> None:
    assert run_spans([{"event": "launched", "time": "soon"}, {"event": 3}], "never", None) == []


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))), max_size=8)


@given(SPANS, SPANS, st.integers(0, 50), st.integers(0, 50))
def test_spans_are_sets_of_moments(one: list[Span], other: list[Span], low: int, high: int) -> None:
    def moments(spans: list[Span]) -> set[float]:
        return {at + 0.5 for start, end in spans for at in range(int(start), int(end))}

    assert moments(joined(one)) == moments(one)
    assert seconds(joined(one)) == len(moments(one))
    assert moments(remove_spans(one, joined(other))) == moments(one) - moments(other)
    assert moments(clipped(one, low, high)) == {at for at in moments(one) if low < at < high}
