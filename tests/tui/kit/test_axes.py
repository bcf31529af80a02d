"""The axes of a chart: even ticks, labels of the extremes, and events in a row of their own."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from grpo_tui.box.charts import ELAPSED
from grpo_tui.box.curves import Mark
from grpo_tui.box.formatting import extreme_labels, tick_labels
from grpo_tui.box.store import Store
from grpo_tui.kit.chart import CurveChart
from grpo_tui.kit.plot import (
    MOST_ROOM,
    View,
    XLabel,
    column_of,
    evened,
    fitting_ticks,
    pixel_of,
    row_of,
    view_of_marks,
    x_labels,
)
from tests.tui.conftest import Start

SPANS = st.floats(1e-6, 1e9)


def view_of_range(low: float, high: float) -> View:
    return view_of_marks([Mark(0, low, low, high, high, False)], 0, 1)


@given(st.floats(-1e6, 1e6), SPANS, st.integers(3, 60), st.booleans())
@example(0.0, 1.84, 12, False)
@example(-1.0, 1.64, 10, False)
def test_ticks_are_whole_rows_apart(low: float, span: float, rows: int, is_log: bool) -> None:
    high = low + (span := min(span, 600.0) if is_log else span)
    assume(span > 1e-6 * max(abs(low), abs(high)))
    view, levels = evened(view_of_range(low, high), rows, is_log, (low, high))
    assert all(0 <= pixel_of(value, view, rows * 4) < rows * 4 for value in (low, high)), "the extremes are drawn"
    if levels:
        places = [row_of(level, view, rows) for level in levels]
        assert len({before - after for before, after in pairwise(places)}) <= 1
        assert view.y_high - view.y_low <= MOST_ROOM * span * 1.2
        assert low < 0 or is_log or view.y_low >= 0 or view.y_low >= low - span, "no room below an axis from 0"


@given(st.integers(1, 60))
def test_the_axis_of_a_share_stays_and_has_both_ends(rows: int) -> None:
    view = View(0, 1, 0.0, 1.0)
    levels = fitting_ticks(view, rows, is_log=False)
    assert (levels[0], levels[-1]) == (0.0, 1.0)


def test_the_ends_of_the_axis_of_a_share_are_labeled() -> None:
    """Also where the highest value is in the row of 0."""
    chart = CurveChart(Store("box"), lambda: None, id="chart")
    assert chart.y_axis(View(0, 1, 0.0, 1.0), 3, (0.0, 0.156))[1] == {0: "1", 2: "0"}
    assert chart.y_axis(View(0, 1, 0.0, 1.0), 6, (0.03, 0.7))[1] == {0: "1.0", 1: "0.7", 3: "0.5", 5: "0"}


def test_extremes_have_the_digits_that_place_them() -> None:
    def labels(extremes: list[float], levels: list[float], *, is_log: bool = False) -> list[str]:
        base = "" if is_log else tick_labels(levels)[1]
        return [text for _, text in extreme_labels(extremes, levels, base, is_log)]

    assert labels([0.02, 1.8437], [0.5, 1.0, 1.5]) == ["1.84", "0.02"]
    assert labels([-0.9982, 0.64], [-1.0, -0.5, 0.0, 0.5]) == ["0.64", "-0.998"]
    assert labels([123.4, 5021.7], [2000.0, 4000.0]) == ["5022", "123"]
    assert labels([0.0, 1.2345e6], [0.0, 5e5, 1e6]) == ["1.234M", "0"]
    assert labels([0.99987, 1.00013], [0.9999, 1.0, 1.0001]) == ["1.00013", "0.99987"]
    assert labels([2.1e-5], [2e-5, 3e-5]) == ["2.1e-5"]
    assert labels([2.16e-6, 1.34e-5], [5e-6, 7.5e-6, 1e-5]) == ["1.34e-5", "2.16e-6"]
    assert labels([-5.0, 1.4409], [-4.0, -2.0, 0.0], is_log=True) == ["27.6", "1e-5"]
    assert labels([1.0, 1.0 + 2e-9], [1.0, 1.0 + 1e-9, 1.0 + 2e-9]) == ["+2e-9", "+0"]


def overlaps(labels: list[XLabel], columns: int) -> bool:
    ends = [one.start + len(one.text) for one in labels]
    return any(end > one.start - 1 for end, one in zip(ends, labels[1:], strict=False)) or max(ends) > columns


@given(
    st.floats(0, 1e9), st.floats(1.0, 1e9), st.integers(20, 220), st.sampled_from(("step", "time", ELAPSED, "tokens")),
    st.none() | st.floats(0.1, 40),
)  # fmt: skip
def test_labels_of_an_x_axis_do_not_overlap(
    low: float, span: float, columns: int, axis: str, price: float | None
) -> None:
    high = low + span
    labels = x_labels(low, high, columns, axis, price)
    assert labels
    assert not overlaps(labels, columns)
    assert labels[0].start <= max(1, column_of(math.ceil(low), View(low, high, 0, 1), columns))


def test_an_x_axis_has_both_ends_and_even_places_between() -> None:
    def line(*axis: object) -> str:
        cells = [" "] * 60
        for start, text, _ in x_labels(*axis):  # type: ignore[arg-type]
            cells[start : start + len(text)] = text
        return " ".join("".join(cells).split())

    assert line(1, 121, 60, "step") == "1 20 40 60 80 100 121"
    assert line(1, 100_000, 60, "step") == "1 20,000 40,000 60,000 80,000 100,000"
    assert line(0, 5_400, 60, ELAPSED) == "0 20 m 40 m 1 h 90 m"
    assert line(0, 9_000, 60, "seconds", 2.49) == "$0.00 $1 $2 $3 $4 $5 $6.23"
    assert line(12.5, 13.7, 60, "step") == "13"


async def test_events_have_a_row_of_their_own_in_low_charts(start: Start) -> None:
    """At 80 × 24, an evaluation is above the axis of every chart but that of the accuracy."""
    async with start(wait="87/200", size=(80, 24)) as session:
        await session.press("2")
        screen = await session.until_text("range: ", "◆")
        lines = screen.splitlines()
        rows = [at for at, line in enumerate(lines) if "◆" in line.partition("││")[0][22:] and "evaluation" not in line]
        assert rows
        for at in rows:
            plot = lines[at][22:].partition("│")[2].rstrip("│ ")
            assert not set(plot) - set("◆RSΔN+✖×│ "), "nothing but signs"
