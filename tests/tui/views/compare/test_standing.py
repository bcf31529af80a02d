"""Where runs are at the same step, tokens, time and cost."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.views.compare.standing import TRACKED, Track, goal, interpolate, round_down, table, track_of
from remote.protocol.logs import Columns


def track(rewards: list[float], seconds: float = 10.0, tokens: float = 100.0) -> Track:
    """A run whose steps all take ``seconds`` and ``tokens``."""
    steps = range(1, len(rewards) + 1)
    return Track(
        array("d", steps), array("d", rewards), array("d", [tokens * s for s in steps]),
        array("d", [seconds * s for s in steps]),
    )  # fmt: skip


def columns(*cells: list[float]) -> Columns:
    """One pixel column per list of values."""

    def each(of: Any) -> Any:
        return array("d", [of(cell) if cell else 0.0 for cell in cells])

    return Columns(
        min=each(min), max=each(max), first=each(lambda c: c[0]), last=each(lambda c: c[-1]), sum=each(sum),
        count=each(len), gaps=each(lambda c: 0),
    )  # fmt: skip


def reply(**metrics: Columns) -> dict[str, Any]:
    names = {"step": ":step", "time": ":time", "took": "time/step"}
    return {"series": [{"metric": names.get(name, name), "columns": found} for name, found in metrics.items()]}


def test_a_track_sums_the_time_of_its_steps() -> None:
    """A pause between two steps does not count, and columns without a row do not either."""
    found = track_of(
        reply(
            reward=columns([0.0, 1.0], [], [2.0]), step=columns([1, 2], [], [3]), num_tokens=columns([5, 9], [], [12]),
            took=columns([3.0, 4.0], [], [5.0]), time=columns([100.0, 104.0], [], [9_000.0]),
        )
    )  # fmt: skip
    assert found is not None
    assert list(found.step) == [2, 3]
    assert list(found.reward) == [0.5, 2.0]
    assert list(found.tokens) == [9, 12]
    assert list(found.seconds) == [7.0, 12.0]


def test_a_log_without_times_of_steps_uses_the_clock() -> None:
    found = track_of(reply(reward=columns([1.0], [2.0]), step=columns([1], [2]), time=columns([50.0], [56.0])))
    assert found is not None
    assert (list(found.seconds), list(found.tokens)) == ([0.0, 6.0], [])
    assert track_of(reply(reward=columns([], []), step=columns([1], [2]))) is None
    assert set(TRACKED) == {"reward", ":step", ":time", "num_tokens", "time/step"}


def test_runs_are_compared_at_what_all_have_reached() -> None:
    slow, fast = track([0.1 * s for s in range(1, 51)], seconds=36.0), track([0.2 * s for s in range(1, 41)])
    step, tokens, seconds, cost = table([slow, fast], [1, 4], price=2.0)
    assert (step.label, tokens.label) == ("step 40", "tokens 4000")
    assert [round(value, 3) for value in step.values if value] == [4.0, 8.0]
    assert seconds.label == "GPU time 26 m"  # four GPUs for 400 s
    assert [round(value, 3) for value in seconds.values if value] == [4.333, 7.8]
    assert cost.label == "cost $0.22"
    assert [round(value, 3) for value in cost.values if value] == [1.1, 7.92]
    assert [row.label.partition(" ")[0] for row in table([slow], [1], price=None)] == ["step", "tokens", "GPU"]


def test_a_run_that_ended_early_lowers_nothing() -> None:
    whole, crashed = track([1.0] * 100), track([0.5] * 3)
    row = table([whole, crashed, None], [1, 1, 1], None)[0]
    assert (row.label, row.values) == ("step 100", [1.0, None, None])
    assert table([None], [1], 1.0) == []


def test_the_step_at_which_a_reward_is_reached() -> None:
    rising, flat = track([0.0, 1.0, 2.0, 3.0, 4.0]), track([0.0] * 5)
    reward = goal([rising, flat, None])
    assert reward == 3.0
    assert (rising.reaches(reward), flat.reaches(reward)) == (4.0, None)
    assert rising.reaches(2.5) == 3.5
    assert goal([flat, None]) is None


@pytest.mark.parametrize("value", [0.0, -3.0, math.inf, math.nan])
def test_nothing_is_cut_to_zero(value: float) -> None:
    assert round_down(value) == 0.0


@given(st.floats(1e-6, 1e12))
def test_a_number_is_cut_to_two_digits(value: float) -> None:
    found = round_down(value)
    assert found <= value * (1 + 1e-9)
    assert found > value * 0.9
    assert f"{found:.1e}" == f"{found:e}"[:3] + f"{found:.1e}"[3:]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-10, 10)), min_size=1, max_size=20), st.floats(-10, 200))
def test_a_value_between_two_points_is_between(points: list[tuple[float, float]], x: float) -> None:
    points.sort()
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    found = interpolate(xs, ys, x)
    if x > xs[-1] * (1 + 1e-12):
        assert found is None
    else:
        assert found is not None
        assert min(ys) - 1e-9 <= found <= max(ys) + 1e-9
        assert math.isfinite(found)
