"""The list of a run's metrics, and its filter."""

from __future__ import annotations

import pytest

from grpo_tui.box.charts import ChartsView
from grpo_tui.views.charts.model import matches, metric_lines


def test_metrics_are_listed_by_family() -> None:
    rows = [
        {"name": "grad_norm", "unusual": 4.5}, {"name": "lr", "constant": True}, {"name": "reward"},
        {"name": "time/rollout"}, {"name": "time/train"},
    ]  # fmt: skip
    view = ChartsView(shown=["reward"])
    found = [(line.kind, line.text) for line in metric_lines(rows, view)]
    assert found == [
        ("metric", "reward"), ("metric", "grad_norm"), ("family", "time/"), ("metric", "rollout"),
        ("metric", "train"), ("note", "▲ unusual lately (3 σ)"), ("metric", "grad_norm"),
        ("note", "· constant: 1 hidden"),
    ]  # fmt: skip
    view.filter = "lr"
    assert [line.text for line in metric_lines(rows, view)] == ["lr"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("rew", True), ("REW", True), ("groups/*", False), ("*ward", True), ("~^re", True), ("~^x", False)],
)
def test_filter_of_metrics(pattern: str, expected: bool) -> None:
    assert matches("reward", pattern) is expected
