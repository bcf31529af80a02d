"""Reduction of curves, drawing, and picking completions: pure logic."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.report.blocks import ChartBlock, ChartsBlock, Page
from grpo_train.report.curves import LARGEST, MAIN, Curve, reduce
from grpo_train.report.html import to_html
from grpo_train.report.markdown import to_markdown
from grpo_train.report.report import Event
from grpo_train.report.samples import FAR, NEAR, _Rollouts, pick
from grpo_train.report.svg import BOTTOM, HEIGHT, LEFT, TOP, _padded, chart_svg, is_logarithmic
from grpo_train.report.train_log import Metric
from grpo_train.run_dir.curves import DENSE, LEVELS
from grpo_train.run_dir.display import metric_text
from grpo_tui.box.charts import PlotView

values = st.one_of(st.floats(-1e6, 1e6), st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
logs = st.lists(st.tuples(st.integers(1, 9), values), min_size=1, max_size=60)


def metric_of(log: list[tuple[int, float]]) -> Metric:
    """A metric whose steps rise by the given amounts."""
    steps, numbers = zip(*log, strict=True)
    return Metric("m", np.cumsum(np.array(steps, dtype=float)), np.array(numbers, dtype=float))


@pytest.mark.parametrize("smoothing", LEVELS)
def test_a_constant_metric_has_a_constant_line(smoothing: str) -> None:
    """Whatever the number of values in its columns."""
    curve = reduce(metric_of([(1 + n % 3, 2.5) for n in range(500)]), 0, 1000, 20, smoothing)
    assert curve.line.tolist() == pytest.approx([2.5] * len(curve.line))


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [
        (10.0, 26.0, (9.0, 27.0)),
        (-8.0, 8.0, (-9.0, 9.0)),
        (0.5, 16.5, (0.0, 17.5)),
        (2.0, 2.0, (1.8, 2.2)),
        (0, 0, (0, 0.5)),
    ],
)
def test_an_axis_has_room_beyond_its_extremes(low: float, high: float, ends: tuple[float, float]) -> None:
    """A sixteenth of the range at each end, but not below zero for what is not."""
    assert _padded(low, high).bounds == pytest.approx(ends)


@given(logs, st.integers(1, 30), st.sampled_from(LEVELS))
def test_extremes_and_means_are_those_of_the_data(log: list[tuple[int, float]], width: int, smoothing: str) -> None:
    metric = metric_of(log)
    curve = reduce(metric, metric.steps[0], metric.steps[-1], width, smoothing)
    usable = np.abs(metric.values) < LARGEST
    kept, steps = metric.values[usable], metric.steps[usable]
    assert len(curve.gaps) == len(metric.values) - len(kept)
    assert len(curve.mean) <= (width if curve.over else len(kept))
    seen = 0
    for first, last, low, high, mean in zip(curve.first, curve.last, curve.low, curve.high, curve.mean, strict=True):
        inside = kept[(steps >= first) & (steps <= last)]
        seen += len(inside)
        assert (low, high) == (inside.min(), inside.max())
        assert low <= mean * (1 + 1e-9 * np.sign(mean)) + 1e-300
        assert mean <= high + abs(high) * 1e-9 + 1e-300
    assert seen == len(kept)


@given(logs, st.integers(1, 30))
def test_few_values_are_the_line(log: list[tuple[int, float]], width: int) -> None:
    metric = metric_of(log)
    curve = reduce(metric, metric.steps[0], metric.steps[-1], width, "raw")
    kept = metric.values[np.abs(metric.values) < LARGEST]
    assert (curve.over == 0) == (len(kept) <= DENSE * width)
    if not curve.over:
        assert curve.line.tolist() == kept.tolist()


@settings(max_examples=60)
@given(logs)
def test_charts_are_drawn_from_any_values(log: list[tuple[int, float]]) -> None:
    metric = metric_of(log)
    first, last = int(metric.steps[0]), int(metric.steps[-1])
    svg = chart_svg(ChartBlock("m", [("", reduce(metric, first, last, 5, "raw"))], first, last))
    assert not re.search(r'="[^"]*(nan|inf)', svg.partition('aria-label="')[2].partition('"')[2])


def y_labels(svg: str) -> list[tuple[float, str]]:
    """Height and text of the labels on the y axis."""
    found = re.findall(rf'<text x="{LEFT - 5}" y="([\d.]+)" text-anchor="end">([^<]+)</text>', svg)
    return [(float(y), text) for y, text in found]


@settings(max_examples=60)
@given(logs)
def test_the_extremes_are_labeled_and_no_label_covers_another(log: list[tuple[int, float]]) -> None:
    metric = metric_of(log)
    first, last = int(metric.steps[0]), int(metric.steps[-1])
    curve = reduce(metric, first, last, 5, "raw")
    labels = y_labels(chart_svg(ChartBlock("m", [("", curve)], first, last)))
    heights = sorted(y for y, _ in labels)
    assert all(low + 9.9 <= high <= HEIGHT for low, high in itertools.pairwise(heights))
    assert not len(curve.low) or labels
    assert all(6.2 * len(text) <= LEFT - 5 for _, text in labels), "no sign is cut off"


def test_the_highest_and_lowest_value_are_on_the_axis() -> None:
    metric = metric_of([(1, 0.013), (2, 1.84), (3, 0.97)])
    svg = chart_svg(ChartBlock("reward", [("", reduce(metric, 1, 3, 100, "raw"))], 1, 3))
    assert [text for _, text in sorted(y_labels(svg))] == ["1.840", "1.5", "1.0", "0.5", "0.013"]


@pytest.mark.parametrize(
    ("name", "values", "labels"),
    [("accuracy", [0.0, 1.0], ["0.75", "0.50", "0.25"]), ("learning_rate", [1.3e-6, 1e-4], ["0.000025"])],
)
def test_a_tick_has_the_digits_of_its_value(name: str, values: list[float], labels: list[str]) -> None:
    curve = reduce(Metric(name, np.array([1.0, 2.0]), np.array(values)), 1, 2, 100, "raw")
    found = y_labels(chart_svg(ChartBlock(name, [("", curve)], 1, 2)))
    assert {*labels} <= {text for _, text in found}


def band(svg: str) -> list[tuple[float, float]]:
    """The outline of the band of a chart."""
    (path,) = re.findall(r'class="band" d="M([^"]+)z"', svg)
    start, _, steps = path.partition("l")
    moves = [int(number) for number in re.findall(r"-?\d+", steps)]
    places = [tuple(map(int, start.split())), *zip(moves[::2], moves[1::2], strict=True)]
    xs, ys = (itertools.accumulate(each) for each in zip(*places, strict=True))
    return [(x / 10, y / 10) for x, y in zip(xs, ys, strict=True)]


def test_the_band_has_an_area_and_holds_all_values() -> None:
    metric = metric_of([(1, 5.0 if n == 123 else n % 7 / 7) for n in range(500)])
    outline = band(chart_svg(ChartBlock("reward", [("", reduce(metric, 1, 500, 20, "raw"))], 1, 500)))
    upper, lower = outline[: len(outline) // 2], outline[: len(outline) // 2 - 1 : -1]
    assert all(high < low for (_, high), (_, low) in zip(upper, lower, strict=True))
    assert min(y for _, y in outline) < TOP + (HEIGHT - BOTTOM - TOP) / 7, "the highest value is in it"


def test_a_comparison_has_no_room_for_what_it_does_not_draw() -> None:
    spiked = [(1, 5.0 if n == 123 else 0.5) for n in range(500)]
    curves = [(letter, reduce(metric_of(spiked), 1, 500, 20, "raw")) for letter in "AB"]
    labels = [float(text) for _, text in y_labels(chart_svg(ChartBlock("reward", curves, 1, 500)))]
    assert max(labels) == pytest.approx(max(curves[0][1].line), abs=1e-3)


@pytest.mark.parametrize("name", ["ess/token", "reward"])
def test_rounding_is_no_change(name: str) -> None:
    metric = metric_of([(1, 1.0 - n % 2 * 6e-13) for n in range(20)])
    (path,) = re.findall(r'class="line s0" d="([^"]+)"', chart_svg(ChartBlock(name, [("", whole(metric))], 1, 20)))
    assert {int(step) for step in re.findall(r"-?\d+", path.partition("l")[2])[1::2]} == {0}


def whole(metric: Metric) -> Curve:
    return reduce(metric, metric.steps[0], metric.steps[-1], 100, "raw")


def test_the_app_and_the_report_have_one_rule_of_axes() -> None:
    curve = whole(metric_of([(1, 1e-5), (1, 1.0), (1, 0.2)]))
    for name in MAIN:
        assert is_logarithmic(name, [("", curve)]) == (name in PlotView().logarithmic), name
    zeros = whole(metric_of([(1, 0.0), (1, 0.02), (1, 1.0), (1, 0.0)]))
    assert is_logarithmic("grad_norm", [("", zeros)])
    assert not is_logarithmic("grad_norm", [("", whole(metric_of([(1, 0.0), (1, 0.0)])))])
    labels = [float(text) for _, text in y_labels(chart_svg(ChartBlock("grad_norm", [("", zeros)], 1, 4)))]
    assert 0 < min(labels) <= 0.02, "of the positive values"
    assert "log, only values &gt; 0" in to_html(
        Page("", "", [ChartsBlock([ChartBlock("grad_norm", [("", zeros)], 1, 4)])], "")
    )


def test_quantities_are_written_as_in_the_app() -> None:
    wanted = {"reward": (1.5, "1.500"), "accuracy": (1019 / 1024, ".995"), "learning_rate": (0.002, "2e-3")}
    charts = [
        ChartBlock(name, [("", reduce(metric_of([(1, 0.0), (1, value)]), 1, 2, 100, "raw"))], 1, 2)
        for name, (value, _) in wanted.items()
    ]
    page = Page("", "", [ChartsBlock(charts)], "")
    html, table = to_html(page), to_markdown(page)
    for name, (value, text) in wanted.items():
        assert metric_text(name, value) == text
        assert f"| {text} |" in table
        assert f">{text}<" in html


def test_signs_of_events_do_not_overlap() -> None:
    curve = reduce(metric_of([(1, 1.0), (99, 2.0)]), 1, 100, 100, "raw")
    events = [Event(80, "Δ", "B"), Event(10, "R", "A"), Event(82, "S", "A"), Event(82, "Δ", "B")]
    svg = chart_svg(ChartBlock("reward", [("A", curve), ("B", curve)], 1, 100, events))
    assert re.findall(r'<text class="event"[^>]*>([^<]+)<', svg) == ["AR", "BΔ AS"]
    assert svg.count('<line class="event"') == 4


@st.composite
def rollout_logs(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int]], dict[int, list[int]]]:
    """Lines of a log, its superseded byte ranges, and the valid rows of each step, by their number."""
    lines: list[bytes] = []
    ranges: list[tuple[int, int]] = []
    valid: dict[int, list[int]] = {}
    step = 0
    for number in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(["row", "row", "row", "next", "damaged", "resume"]))
        if kind == "damaged":
            lines.append(b'{"step": 10000, broken\n')
            continue
        if kind == "resume" and step:
            back = draw(st.integers(0, step - 1))
            start = 0
            for line in lines:
                row = json.loads(line) if b"broken" not in line else {"step": 0}
                if row["step"] > back and not any(low <= start < high for low, high in ranges):
                    break
                start += len(line)
            ranges.append((start, sum(map(len, lines))))
            valid = {known: rows for known, rows in valid.items() if known <= back}
            step = back
        step += 1 if kind != "row" or not step else 0
        lines.append(json.dumps({"step": step, "n": number, "pad": "x" * draw(st.integers(0, 40))}).encode() + b"\n")
        valid.setdefault(step, []).append(number)
    return lines, ranges, valid


@settings(max_examples=80)
@given(rollout_logs(), st.integers(0, 25), st.sampled_from([0, NEAR, FAR]))
def test_completions_are_found_as_by_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    log: tuple[list[bytes], list[tuple[int, int]], dict[int, list[int]]],
    wanted: int,
    reach: int,
) -> None:
    lines, ranges, valid = log
    path = Path(tmp_path_factory.getbasetemp()) / "rollouts.jsonl"
    path.write_bytes(b"".join(lines))
    step, rows = _Rollouts(path, ranges).at(wanted, reach)
    nearest = max((known for known in valid if wanted - reach <= known <= wanted), default=None)
    assert step == nearest
    assert [row["n"] for row in rows] == ([] if nearest is None else valid[nearest])


def test_each_kind_of_completion_is_picked() -> None:
    rows = [
        {"reward": 0.0, "correct": False, "length": 9, "truncated": True, "n": "cut"},
        {"reward": 0.0, "correct": False, "length": 3, "truncated": False, "n": "wrong"},
        {"reward": 2.0, "correct": True, "length": 4, "truncated": False, "n": "right"},
    ]
    picked = {sample.row["n"]: sample.why for sample in pick(7, rows)}
    assert picked == {"right": ["correct"], "wrong": ["wrong"], "cut": ["longest", "truncated"]}


def test_without_verdicts_rewards_decide() -> None:
    rows = [{"reward": value, "length": 1} for value in (0.5, "NaN", -1.0)]
    assert [sample.why for sample in pick(1, rows)] == [["highest reward", "longest"], ["lowest reward"]]


def test_discarded_completions_are_not_picked(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward": 1.0, "n": "kept"}, {"step": 1, "reward": 2.0, "discarded": "no_spread"}]
    log = tmp_path / "rollouts.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, found = _Rollouts(log, []).at(1, FAR)
    assert [row.get("n") for row in found] == ["kept"]
