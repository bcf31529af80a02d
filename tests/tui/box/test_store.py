from __future__ import annotations

import math

from grpo_train.run_dir.version import VERSION
from grpo_tui.box import store as progress
from grpo_tui.box.rows import RunRow
from grpo_tui.box.store import Store
from remote.events import (
    BoxGreeted,
    ClockMeasured,
    GpuSampled,
    Link,
    LinkChanged,
    LogArrived,
    LogRotated,
    RunsReported,
    SessionsReported,
    TopicFailed,
)
from remote.protocol import Cursor
from remote.protocol.frames import EngineVersion
from tests.tui.fake import GPUS
from tests.tui.fake_rows import NOW, at, jsonl, summary, train_rows


class Clock:
    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> float:
        return self.time


def store_with(*rows: dict, price: float | None = None) -> tuple[Store, Clock]:  # type: ignore[type-arg]
    clock = Clock()
    store = Store("box", price, clock)
    store.apply(LinkChanged(Link.CONNECTED, latency_ms=7.4))
    store.apply(RunsReported(list(rows)))
    return store, clock


def arrived(subscription: int, offset: int, data: bytes) -> LogArrived:
    return LogArrived(subscription, "path", offset, data, Cursor("path", offset + len(data)))


def test_only_logs_of_the_selected_run_are_kept() -> None:
    store, _ = store_with(summary("a", "running"), summary("b", "finished"))
    store.select("a")
    store.subscribed(1, "train_log")
    data = jsonl(train_rows(3))
    store.apply(arrived(1, 0, data))
    assert store.step == 3
    store.select("b")
    store.apply(arrived(1, len(data), jsonl(train_rows(9)[8:])))  # sent before the selection changed
    assert store.logs is not None
    assert store.logs.last_step is None
    assert store.step == 0


def test_replaced_log_is_reset() -> None:
    store, _ = store_with(summary("a", "running"))
    store.select("a")
    store.subscribed(1, "train_log")
    store.apply(arrived(1, 0, jsonl(train_rows(5))))
    store.apply(LogRotated(1, "path"))
    assert store.logs is not None
    assert not len(store.logs.rows)
    store.apply(arrived(1, 0, jsonl(train_rows(2))))
    assert store.step == 2


def test_versions_increase_on_change_only() -> None:
    store, _ = store_with(summary("a", "running"))
    before = dict(store.versions)
    store.select("a")
    store.select("a")
    assert store.versions["selected"] == before["selected"] + 1
    store.show("a", {"checkpoints": [{"step": 1}]})
    shown = store.versions["shown"]
    store.show("a", {"checkpoints": [{"step": 1}]})
    store.show("other", {"checkpoints": [{"step": 2}]})
    assert store.versions["shown"] == shown
    assert [view.step for view in store.checkpoints()] == [1]


def test_starting_run_is_not_stale() -> None:
    row = summary("a", "starting") | {"logged_at": at(3000), "updated_at": at(40)}
    store, clock = store_with(row)
    store.select("a")
    assert (store.freshness().tone, store.freshness().text) == ("live", "40s ago")
    clock.time += 200
    assert store.freshness().tone == "warn"


def test_only_live_runs_become_stale() -> None:
    store, clock = store_with(summary("a", "running", step_seconds=3.0), summary("b", "finished"))
    store.select("a")
    assert store.freshness().tone == "live"
    clock.time += 31
    assert store.freshness() == store.freshness()
    assert (store.freshness().tone, store.freshness().text) == ("warn", "stale 33s")
    store.select("b")
    assert store.freshness().tone == "rest"


def test_slow_steps_become_stale_later() -> None:
    store, clock = store_with(summary("a", "running", step_seconds=60.0))
    store.select("a")
    clock.time += 200
    assert store.freshness().tone == "live"
    clock.time += 200
    assert store.freshness().tone == "warn"


def test_link_stays_lost_while_reconnecting() -> None:
    store, clock = store_with(summary("a", "running"))
    store.select("a")
    store.apply(LinkChanged(Link.LOST, "silence", retry_in_s=4.0))
    clock.time += 1
    assert store.link_label() == ("link lost 1 s ago, retrying in 3 s", "bad")
    assert store.freshness().text == "link lost · 3s old"
    store.apply(LinkChanged(Link.CONNECTING))
    clock.time += 11
    assert store.link_label() == ("link lost 12 s ago, retrying now", "bad")
    store.apply(LinkChanged(Link.CONNECTED, latency_ms=20.4))
    assert store.link_label() == ("20 ms", "live")
    assert store.freshness().tone == "live"


def test_eta_and_cost() -> None:
    store, _ = store_with(summary("a", "running", step=100, total_steps=200, run_seconds=3600.0), price=2.49)
    store.select("a")
    eta, cost = progress.eta(store, store.run), progress.cost(store, store.run)
    assert eta is not None
    assert math.isclose(eta, 310.0)
    assert cost is not None
    assert math.isclose(cost, 2.49 * 3602 / 3600)
    store.price_per_hour = None
    assert progress.cost(store, store.run) is None
    store.apply(LinkChanged(Link.LOST, "silence", retry_in_s=4.0))
    assert progress.eta(store, store.run) is None, "nobody knows how far it is"


def test_which_metrics_are_no_longer_logged() -> None:
    table = progress.MetricTable()
    rows = [{"name": name, "last": 0.5, "last_step": step} for name, step in (("reward", 90), ("entropy", 41))]
    table.answer({"state": "whole", "metrics": [*rows, {"name": "odd", "last": None, "last_step": None}]})
    assert table.ended == {"entropy": 41}


def test_clock_skew_is_corrected() -> None:
    store, _ = store_with(summary("a", "running", logged_at=at(7200)))
    store.select("a")
    store.apply(BoxGreeted("agent", {"time": NOW - 7198}))
    assert store.freshness().text == "2s ago"
    store.apply(ClockMeasured(7195.0))  # the box's clock was stepped while connected
    assert store.freshness().text == "5s ago"


def test_summary_with_a_text_as_error() -> None:
    row = RunRow.from_summary({"run": "x", "state": "crashed", "error": "boom", "reward": "NaN"})
    assert row.error == {"summary": "boom"}
    assert row.reward is not None
    assert math.isnan(row.reward)
    assert row.logged_at is None


def test_a_failed_topic_keeps_its_last_value_and_says_its_age() -> None:
    store, clock = store_with(summary("a", "running"))
    clock.time += 40
    store.apply(TopicFailed("runs", "disk gone"))
    store.apply(TopicFailed("gpu", "driver gone"))
    assert [row.name for row in store.runs or ()] == ["a"]
    assert store.topic_problem("runs") == "list is 40 s old: disk gone"
    assert store.topic_problem("gpu") == "no GPU sample: driver gone"
    assert store.topic_problem_now == "list is 40 s old: disk gone"
    store.apply(RunsReported([summary("a", "running")]))
    assert store.topic_problem("runs") == ""
    assert store.topic_problem_now == "no GPU sample: driver gone"
    store.apply(LinkChanged(Link.LOST, "reset"))
    assert store.topic_problem_now == ""  # the link's own state says more


def test_live_sessions_of_a_run() -> None:
    store, _ = store_with(summary("run.1", "running"))
    store.apply(
        SessionsReported(
            [
                {"name": "eval_run_1", "run": "run.1", "dead": False},
                {"name": "run_1", "run": "run.1", "dead": False},
                {"name": "run_1_old", "run": "run.1", "dead": True},
                {"name": "other", "run": "", "dead": False},
            ]
        )
    )
    assert store.sessions_of("run.1") == ["run_1", "eval_run_1"]


def test_checkpoints_have_their_evaluations() -> None:
    store, _ = store_with(summary("a", "finished"))
    store.select("a")
    metrics = [
        {"step": "0", "accuracy": "0.25", "ci_low": "0.2", "ci_high": "0.3", "status": "ok"},
        {"step": "10", "accuracy": "0.5", "ci_low": "0.402", "ci_high": "0.598", "status": "ok"},
        {"step": "20", "accuracy": "", "status": "failed", "error": "timed out"},
    ]
    store.show(
        "a",
        {
            "checkpoints": [{"step": 10}, {"step": 20, "problem": "optimizer.pt is missing"}],
            "evaluations": [{"name": "a_gsm8k", "metrics": metrics}],
        },
    )
    newest, oldest, start = store.checkpoints()
    assert newest.problem == "optimizer.pt is missing"
    assert newest.evaluations[0].figure == "failed: timed out"
    assert (oldest.evaluations[0].figure, oldest.evaluations[0].spread) == (".500", ".098")
    assert oldest.evaluations[0].dataset == "gsm8k"
    assert (start.name, start.is_complete, start.evaluations[0].figure) == ("step_0", False, ".250")


def test_gpus_and_stage_times() -> None:
    store, clock = store_with(summary("a", "running"))
    store.apply(GpuSampled(GPUS))
    assert store.gpu_freshness().text == "now"
    clock.time += 40
    assert store.gpu_freshness().tone == "warn"
    store.select("a")
    store.subscribed(1, "train_log")
    store.apply(arrived(1, 0, jsonl(train_rows(5))))
    assert store.logs is not None
    assert store.logs.stage_times() == [("rollout", 1.9), ("train", 1.0), ("save", 0.05)]


def test_engine_of_another_format_is_a_warning() -> None:
    store, _ = store_with()
    assert store.warning() == ""
    store.apply(BoxGreeted("agent", {}, EngineVersion("9.0.0", 99)))
    assert store.warning() == f"box engine 9.0.0, app {VERSION}"
    store.examined({"checks": [{"name": "engine", "ok": False, "detail": "box engine 9", "hint": "upgrade"}]})
    assert store.warning() == "box engine 9 · upgrade"


def test_a_log_that_is_still_loading() -> None:
    store, _ = store_with(summary("a", "running", step=40))
    store.select("a")
    store.subscribed(1, "train_log")
    assert store.loading() == 0.0
    rows = [jsonl([row]) for row in train_rows(41)]
    store.apply(arrived(1, 0, b"".join(rows[:10])))
    assert (store.loading(), store.step) == (0.25, 40)  # the box knows the step
    store.apply(arrived(1, sum(map(len, rows[:10])), b"".join(rows[10:])))
    assert (store.loading(), store.step) == (None, 41)  # the log is newer than the list


def test_a_box_that_was_never_reached_has_no_lost_link() -> None:
    store = Store("box", None, Clock())
    store.apply(LinkChanged(Link.LOST, "Connection timed out", retry_in_s=4.0))
    assert store.link_label() == ("not reached yet, retrying in 4 s", "bad")
    store.apply(LinkChanged(Link.REFUSED, "not answered: password:"))
    assert store.link_label() == ("not connected", "bad")  # the user dismissed a question: nothing was refused
