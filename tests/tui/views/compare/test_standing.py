"""Where runs are at the same step, tokens, time and cost."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.views.compare.standing import TRACKED, Track, goal, interpolate, mean_of, round_down, table, track_of
from remote.protocol.logs import Columns


def track(rewards: list[float], seconds: float = 10.0, tokens: float = 100.0) -> Track:
    """A run whose steps all take ``seconds`` and ``tokens``."""
    steps = range(1, len(rewards) + 1)
    return Track(
        array("d", steps), array("d", rewards), array("d", [1.0] * len(rewards)),
        array("d", [tokens * s for s in steps]), array("d", [seconds * s for s in steps]),
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
    assert (list(found.sums), list(found.counts)) == ([1.0, 2.0], [2.0, 1.0])
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
    assert [round(value, 3) for value in step.values if value] == [3.55, 7.1]  # means of steps 31 to 40
    assert seconds.label == "GPU time 26 m"  # four GPUs for 400 s
    assert [round(value, 3) for value in seconds.values if value] == [3.883, 6.9]
    assert cost.label == "cost $0.22"
    assert [round(value, 3) for value in cost.values if value] == [0.65, 7.02]
    assert [row.label.partition(" ")[0] for row in table([slow], [1], price=None)] == ["step", "tokens", "GPU"]


def test_a_run_that_ended_early_lowers_nothing() -> None:
    whole, other, crashed = track([1.0] * 100), track([0.75] * 90), track([0.5] * 3)
    row = table([whole, other, crashed, None], [1, 1, 1, 1], None)[0]
    assert (row.label, row.values) == ("step 90", [1.0, 0.75, None, None])
    assert table([None], [1], 1.0) == []


def test_at_least_two_runs_are_compared() -> None:
    """A run that is far longer than all others does not set a place that it alone has reached."""
    row = table([track([1.0] * 100), track([0.5] * 12), track([0.5] * 10)], [1, 1, 1], None)[0]
    assert (row.label, row.values) == ("step 10", [1.0, 0.5, 0.5])


def test_the_step_at_which_a_reward_is_reached() -> None:
    """The first one whose mean is that high; it does not look at later values."""
    jump, flat = track([0.0] * 20 + [2.0] * 20), track([0.0] * 5)
    over = mean_of([jump, flat, None])
    reward = goal([jump, flat, None])
    assert (over, reward) == (10, 1.0)
    assert (jump.reaches(reward, over), flat.reaches(reward, over)) == (25.0, None)
    assert goal([flat, None]) is None


def test_all_values_are_means_of_as_many_steps() -> None:
    """Also at the end of a run, and where the box reduced a long one to columns of several rows."""
    short = track([0.0] * 11 + [9.0])
    thin = Track(*(array("d", part) for part in ([4, 8, 12], [4.0, 8.0, 12.0], [4.0, 4.0, 4.0], [], [])))
    assert short.at("step", 12, mean_of([short, thin])) == 1.5
    assert list(thin.means(6)) == [1.0, pytest.approx((2 + 8) / 6), pytest.approx((4 + 12) / 6)]
    assert mean_of([track([1.0] * 6)]) == 3
    assert mean_of([short, track([1.0] * 100), None]) == 10
    assert mean_of([Track(*(array("d", part) for part in ([400, 900], [1, 2], [400.0, 500.0], [], [])))]) == 500


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
