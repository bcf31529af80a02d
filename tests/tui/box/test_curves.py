"""Curves from the index, continued by live rows, are those of the whole log."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.box.asking import SOON_S
from grpo_tui.box.charts import ChartsView
from grpo_tui.box.curves import MOST_LIVE, Curves, Window
from grpo_tui.box.log import ROWS_KEPT, RunLogs
from tests.tui.fake import Index
from tests.tui.fake_rows import jsonl

PATH = "training_runs/run/logs/train_log.jsonl"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Viewer:
    """A view of a log that grows: what it asks is answered by the index of the box."""

    def __init__(self, index: Index, **window: Any) -> None:
        self.clock, self.data = Clock(), b""
        self.curves = Curves("run", Window(**window), now=self.clock)
        self.logs = RunLogs("run")
        self.index = index
        self.requests = 0

    def log(self, rows: list[dict[str, Any]]) -> None:
        added = jsonl(rows)
        self.logs.feed("train_log", len(self.data), added)
        self.data += added
        self.curves.extend(self.logs)

    def ask(self) -> dict[str, Any] | None:
        """Answer what the view asks now."""
        params = self.curves.due()
        if params is not None:
            self.requests += 1
            self.curves.answer(self.index.answer("series", {PATH: self.data}, params), self.logs)
        return params


@pytest.fixture(scope="module")
def index() -> Index:
    return Index()


def rows_of(values: list[float], first: int = 1) -> list[dict[str, Any]]:
    return [{"step": first + i, "reward": value, "num_tokens": 10 * i} for i, value in enumerate(values)]


NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(NUMBERS, NUMBERS, st.integers(1, 40))
def test_every_extreme_is_in_a_mark(early: list[float], late: list[float], width: int) -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of(early))
    viewer.curves.show(("reward",), width)
    viewer.ask()
    viewer.log(rows_of(late, first=1 + len(early)))
    curve = viewer.curves.curves["reward"]
    finite = [value for value in early + late if math.isfinite(value)]
    assert curve.count == len(finite)
    assert min((mark.low for mark in curve.marks), default=None) == min(finite, default=None)
    assert max((mark.high for mark in curve.marks), default=None) == max(finite, default=None)
    assert repr(curve.last) == repr(float((early + late)[-1]))
    assert len(curve.gaps) <= len(early) + len(late) - len(finite)
    assert bool(len(curve.gaps)) == (len(finite) < len(early) + len(late))


def test_means_go_on_over_live_rows(index: Index) -> None:
    values = [math.sin(i / 7) + i / 50 for i in range(90)]
    whole, cut = Viewer(index), Viewer(Index())
    whole.log(rows_of(values))
    cut.log(rows_of(values[:61]))
    for viewer in (whole, cut):
        viewer.curves.show(("reward",), 200)
        viewer.ask()
    cut.log(rows_of(values[61:], first=62))
    expected, found = ([mark.last for mark in one.curves.curves["reward"].means(20)] for one in (whole, cut))
    assert found == pytest.approx(expected, rel=1e-9)
    assert expected[45] == pytest.approx(sum(values[36:55]) / 20 + (values[35] + values[55]) / 40)
    assert cut.curves.ends == (1.0, 90.0)


def test_a_live_row_is_taken_once() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([0.0] * 10))
    viewer.curves.show(("reward",), 20)
    params = viewer.curves.due()
    assert params is not None
    answer = viewer.index.answer("series", {PATH: viewer.data}, params)
    viewer.log(rows_of([1.0, 2.0], first=11))  # while the answer travels
    viewer.curves.answer(answer, viewer.logs)
    viewer.curves.extend(viewer.logs)
    assert viewer.curves.curves["reward"].count == 12
    assert viewer.curves.curves["reward"].last == 2.0


@pytest.mark.parametrize("arrived", [0, 4])
def test_rows_of_an_answer_that_arrive_after_it(arrived: int) -> None:
    """The box answers from its index at once; the end of the log may come later."""
    viewer = Viewer(Index())
    rows = rows_of([float(i) for i in range(10)])
    viewer.data = jsonl(rows)
    viewer.curves.show(("reward",), 20)
    viewer.logs.feed("train_log", 0, jsonl(rows[:arrived]))
    viewer.ask()
    viewer.logs.feed("train_log", len(jsonl(rows[:arrived])), jsonl(rows[arrived:]))
    viewer.log(rows_of([10.0], first=11))
    curve = viewer.curves.curves["reward"]
    assert curve.count == 11
    assert [mark.x for mark in curve.marks] == sorted(mark.x for mark in curve.marks)


def test_the_last_value_may_be_nan() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0, math.nan]))
    viewer.curves.show(("reward",), 20)
    viewer.ask()
    assert math.isnan(viewer.curves.curves["reward"].last or 0.0)


def test_it_asks_again_for_what_changed() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([float(i) for i in range(40)]))
    assert viewer.ask() is None, "no chart is shown yet"
    viewer.curves.show(("reward",), 20)
    assert viewer.ask()
    assert viewer.ask() is None
    viewer.curves.window = Window(low=10, high=20)
    params = viewer.ask()
    assert params is not None
    assert (params["low"], params["high"]) == (10, 20)
    assert viewer.curves.ends == (10, 20)
    viewer.curves.invalidate()
    assert viewer.ask()
    viewer.curves.show(("reward",), 30)
    assert viewer.ask()
    assert viewer.requests == 4


def test_only_one_request_is_in_flight() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0]))
    viewer.curves.show(("reward",), 20)
    params = viewer.curves.due()
    assert params is not None
    viewer.curves.window = Window(low=2.0)
    assert viewer.curves.due() is None
    viewer.curves.answer(viewer.index.answer("series", {PATH: viewer.data}, params), viewer.logs)
    assert not viewer.curves.curves, "the answer was for another window"
    assert viewer.ask()


def test_an_answer_with_more_metrics_than_shown_is_enough() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0]))
    viewer.curves.show(("reward", "num_tokens"), 20)
    params = viewer.curves.due()
    assert params is not None
    viewer.curves.show(("reward",), 20)  # a chart is hidden while the answer travels
    viewer.curves.answer(viewer.index.answer("series", {PATH: viewer.data}, params), viewer.logs)
    assert viewer.curves.curves["reward"].last == 1.0
    assert viewer.ask() is None
    viewer.curves.show(("reward", "num_tokens"), 20)
    assert viewer.ask() is None
    viewer.curves.show(("reward", "step"), 20)
    assert viewer.ask()


def test_a_zoomed_view_is_not_moved_by_new_rows() -> None:
    viewer = Viewer(Index(), low=5.0, high=20.0)
    viewer.log(rows_of([float(i) for i in range(40)]))
    viewer.curves.show(("reward",), 20)
    viewer.ask()
    version = viewer.curves.version
    viewer.log(rows_of([9.0] * (2 * MOST_LIVE), first=41))
    viewer.clock.seconds += 100
    assert viewer.ask() is None
    assert (viewer.curves.ends, viewer.curves.version) == ((5.0, 20.0), version)


def test_many_live_rows_are_asked_for() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0] * 10))
    viewer.curves.show(("reward",), 20)
    viewer.ask()
    viewer.log(rows_of([2.0] * (MOST_LIVE + 1), first=11))
    assert viewer.ask() is None, "not sooner than after a pause"
    viewer.clock.seconds += SOON_S
    assert viewer.ask()
    assert len(viewer.curves.curves["reward"].marks) <= 20


def test_rows_that_are_no_longer_kept_are_asked_for() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0] * 10))
    viewer.curves.show(("reward",), 20)
    viewer.ask()
    added = rows_of([2.0] * (ROWS_KEPT + 20), first=11)
    viewer.logs.feed("train_log", len(viewer.data), jsonl(added))  # all of them between two looks
    viewer.data += jsonl(added)
    viewer.curves.extend(viewer.logs)
    viewer.clock.seconds += SOON_S
    assert viewer.ask()
    assert viewer.curves.curves["reward"].count == 10 + len(added)


def test_a_refused_request_waits() -> None:
    viewer = Viewer(Index())
    viewer.log(rows_of([1.0]))
    viewer.curves.show(("reward",), 20)
    assert viewer.curves.due()
    viewer.curves.fail("the disk is away")
    assert viewer.curves.asking.problem == "the disk is away"
    assert viewer.ask() is None
    viewer.clock.seconds += 10
    assert viewer.ask()
    assert not viewer.curves.asking.problem


@pytest.mark.parametrize(("axis", "ends"), [("tokens", (0.0, 110.0)), ("step", (1.0, 12.0))])
def test_live_rows_on_every_axis(axis: str, ends: tuple[float, float]) -> None:
    viewer = Viewer(Index(), x=axis)
    rows = rows_of([float(i) for i in range(12)])
    viewer.log(rows[:10])
    viewer.curves.show(("reward",), 20)
    viewer.ask()
    viewer.log(rows[10:])
    assert viewer.curves.ends == ends


def test_windows() -> None:
    window = Window().zoomed((0, 100), 80, 0.5)
    assert (window.low, window.high, window.follows) == (40, 90, False)
    following = window.following((40, 90))
    assert (following.span, following.follows) == (50, True)
    assert following.whole() == Window()


def test_metrics_are_shown_hidden_and_moved() -> None:
    names = ["reward", "loss", "entropy", *(f"m{i}" for i in range(20))]
    logged: dict[str, Any] = {name: {"name": name} for name in names}
    view = ChartsView()
    assert view.metrics(logged) == ["reward", "loss", "entropy"]
    view.toggle("reward", logged)
    view.toggle("reward", logged)
    assert view.metrics(logged) == ["reward", "loss", "entropy"], "back where it was"
    view.toggle("loss", logged)
    view.move("entropy", -1, logged)
    assert view.metrics(logged) == ["entropy", "reward"]
    assert all(view.toggle(f"m{i}", logged) for i in range(10))
    assert not view.toggle("m11", logged), "no room"


def test_smoothing_turns_through_its_levels() -> None:
    view = ChartsView()
    assert [view.smooth(1) for _ in range(3)] == ["light", "strong", "raw"]
    assert [view.smooth(-1) for _ in range(3)] == ["strong", "light", "raw"]
    view.restore({"smoothing": 46}, has_price=False)  # of an earlier version
    assert view.smoothing == "raw"
    view.restore({"smoothing": "strong"}, has_price=False)
    assert view.to_json()["smoothing"] == "strong"


def test_pages_have_all_metrics_that_change() -> None:
    names = ["loss", "kl", "reward", "accuracy", *(f"m{i}" for i in range(9))]
    logged: dict[str, Any] = {name: {"name": name, "constant": name in ("kl", "reward", "m3")} for name in names}
    view = ChartsView()
    pages = view.pages(logged, 6)
    assert pages[0] == ["reward", "loss", "accuracy", "m0", "m1", "m2"]  # that the reward is constant is news
    assert sorted(name for page in pages for name in page) == sorted({*names} - {"kl", "m3"})
    view.shown = ["kl", "loss"]
    assert view.pages(logged, 6)[:2] == [["kl", "loss"], ["reward", "accuracy", "m0", "m1", "m2", "m4"]]
    assert view.pages(logged, 1)[:2] == [["kl"], ["loss"]]
    assert view.pages({}, 6) == [[]]
    share = {name: {"name": name, "min": 0.996, "max": 1.0} for name in ("ess/token", "entropy", "accuracy")}
    assert ChartsView().pages(share, 6) == [["accuracy", "entropy"]], "a level line is not drawn"
