"""Saved charts: a CSV with every step, from the index as the box answers, and an SVG of lines."""

from __future__ import annotations

import csv
import io
import math
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from array import array
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.run_dir.files import to_float, to_json
from grpo_tui import files
from grpo_tui.box.charts import ELAPSED, RUN_LOOKS, Placed
from grpo_tui.box.curves import AXES, Curve, Mark
from grpo_tui.box.events import CRASH, EVALUATION, STOP, RunEvent
from grpo_tui.box.export import header_of, lines_of, pages, request_of, steps_between
from grpo_tui.kit import svg as chart_svg
from grpo_tui.kit.plot import RunLine, only_line, scaled
from grpo_tui.kit.svg import LEFT, Drawing, charts_svg, png_of
from remote.protocol.logs import MAX_CELLS, MAX_WIDTH, Columns
from tests.support.index import Box, make_run

METRICS = ["reward", "loss"]
NUMBERS = st.one_of(
    st.floats(-1e9, 1e9), st.integers(-(10**6), 10**6), st.sampled_from(["NaN", "Infinity", "-Infinity", None])
)
LOGS = st.lists(st.tuples(st.integers(1, 40), NUMBERS, NUMBERS), min_size=1, max_size=40)


def expected(value: Any) -> str | float:
    number = to_float(value)
    return "" if number is None else "NaN" if not math.isfinite(number) else number


def read(cell: str) -> str | float:
    return cell if cell in ("", "NaN") else float(cell)


@settings(max_examples=40)
@given(LOGS, st.integers(1, 30))
def test_the_table_has_each_step_as_logged(log: list[tuple[int, Any, Any]], most: int) -> None:
    rows, step = {}, 0
    for ahead, reward, loss in log:
        step += ahead
        rows[step] = {"step": step, "time": "2026-11-20T10:00:00.000Z", "reward": reward, "loss": loss}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_tui.box.export.MAX_WIDTH", most)  # several pages
        root = Path(folder)
        (make_run(root) / "train_log.jsonl").write_text("".join(to_json(row) + "\n" for row in rows.values()))
        box, text = Box(root, root / "cache"), header_of(METRICS)
        logged = {name for row in rows.values() for name in METRICS if row[name] is not None}
        for first, last in pages(METRICS, 1, step):
            request = request_of("one", METRICS, first, last)
            text += "".join(lines_of(box.whole("series", **request), first))
    head, *lines = csv.reader(io.StringIO(text))
    assert head == ["step", *METRICS]
    wanted = [
        [each, *(expected(row[name]) for name in METRICS)]
        for each, row in rows.items()
        if any(row[name] is not None and name in logged for name in METRICS)
    ]
    assert [[int(line[0]), *map(read, line[1:])] for line in lines] == wanted


@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 10**5))
def test_pages_are_within_the_limits(count: int, first: int, steps: int) -> None:
    metrics = [f"m{n}" for n in range(count)]
    found = list(pages(metrics, first, first + steps))
    assert found[0][0] == first
    assert found[-1][1] == first + steps
    assert all(after[0] == before[1] + 1 for before, after in pairwise(found))
    for start, end in found:
        assert end - start + 1 <= MAX_WIDTH
        assert (end - start + 1) * count <= MAX_CELLS


def test_steps_of_a_range_are_inside_it() -> None:
    assert steps_between(1, 87) == (1, 87)
    assert steps_between(22.5, 65.5) == (23, 65)


def test_a_name_is_not_a_formula() -> None:
    assert header_of(["=cmd()", "a,b", "grad_norm"]) == 'step,\'=cmd(),"a,b",grad_norm\n'


def test_files_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "folder", lambda: tmp_path)
    first = files.new_file("../run\n/x.csv")
    assert first.parent == tmp_path
    first.touch()
    second = files.new_file("../run\n/x.csv")
    assert second.name == f"{first.stem}-2.csv"


def curve_of(values: list[float]) -> Curve:
    """A curve with one value a column; NaN is a gap."""
    kept = [value if math.isfinite(value) else 0.0 for value in values]
    numbers = array("d", kept)
    count = array("d", [float(math.isfinite(value)) for value in values])
    gaps = array("d", [float(not math.isfinite(value)) for value in values])
    columns = Columns(numbers, numbers, numbers, numbers, numbers, count, gaps)
    return Curve({"columns": columns, "last": values[-1]}, 0.0, float(len(values)))


@settings(max_examples=60)
@given(
    st.text(max_size=10),
    st.lists(st.one_of(st.floats(-1e300, 1e300), st.just(math.nan)), min_size=1, max_size=30),
    st.booleans(),
    st.integers(0, 40),
    st.sampled_from([*AXES, ELAPSED]),
)
def test_the_picture_is_valid_for_any_values(
    name: str, values: list[float], is_log: bool, over: int, axis: str
) -> None:
    curve = curve_of(values)
    one = Drawing(name, [only_line(curve, over)], is_log, "#00775a", curve.last, curve.gaps)
    runs = [RunLine(curve.marks, look=look, name=f"{name}{look.id}") for look in RUN_LOOKS[:3]]
    ends = (0.0, float(len(values)))
    svg = charts_svg(name, [one, one, Drawing(name, runs, is_log)], ends, axis, 2.5)
    root = ElementTree.fromstring(svg)
    assert not [each for each in root.iter() if "nan" in each.get("d", "") or "inf" in each.get("d", "")]
    tags = {each.tag.partition("}")[2] for each in root.iter()}
    assert tags <= {"svg", "rect", "text", "g", "path"}
    assert not any(0x2800 <= ord(c) < 0x2900 and c not in name for c in svg), "braille"


def test_a_picture_has_the_values_and_from_two_a_column_their_range() -> None:
    curve = curve_of([0.5, 1.5, 0.0])
    places = {}
    for over in (0, 3):
        svg = charts_svg("gsm8k", [Drawing("reward", [only_line(curve, over)], False, "#00775a")], (0.0, 3.0))
        places[over] = re.findall(r'<path d="([^"]+)" fill="none" stroke="#00775a" stroke-width="([\d.]+)"', svg)
        assert svg.count("fill-opacity") == bool(over)
    assert [width for _, width in places[0]] == ["1.6"], "the values are the line"
    assert [width for _, width in places[3]] == ["0.8", "1.6"], "the values are thin, the mean is the line"
    assert places[3][0][0] == places[0][0][0] != places[3][1][0]


@pytest.mark.parametrize(
    ("values", "value", "expected"),
    [([0.02] * 9, 0.9, 45.0), ([0.02] * 9, 0.03, None), ([-0.001, 0.001, 0.002] * 3, 0.9, None)],
    ids=["a spike", "usual", "about 0"],
)
def test_how_unusual_a_value_is(values: list[float], value: float, expected: float | None) -> None:
    assert curve_of(values).times_usual(value) == (expected and pytest.approx(expected))


def test_no_line_is_drawn_over_what_a_logarithmic_axis_leaves_out() -> None:
    marks = scaled(curve_of([0.1, 0.1, 0.0, 1.0, 1.0]).marks, True)
    assert [(mark.last, mark.broken) for mark in marks[1:]] == [(-1, False), (0, True), (0, False)]
    drawing = Drawing("grad_norm", [RunLine(curve_of([0.1, 0.1, 0.0, 1.0, 1.0]).marks)], True, "#00775a")
    svg = charts_svg("r", [drawing], (0.0, 5.0))
    assert len(re.findall(r'<path d="[^"]+" fill="none" stroke="#00775a"', svg)) == 2


def test_noise_has_no_direction() -> None:
    random = Random(1)
    curves = [[random.gauss(0.9, 0.2) for _ in range(140)] for _ in range(40)]
    found = [curve_of(values).direction() for values in curves]
    assert found.count("→") >= 38
    rising = [[value + index / 50 for index, value in enumerate(values)] for values in curves]
    assert {curve_of(values).direction() for values in rising} == {"↗"}


def test_a_picture_has_its_words() -> None:
    drawing = Drawing("reward", [only_line(curve_of([1.0, 2.0]), 0)], False, "#00775a")
    svg = charts_svg("gsm8k", [drawing], (1.0, 2.0))
    wordless = re.sub("<text.*?</text>", "", svg)
    assert wordless != svg
    assert png_of(svg) != png_of(wordless)


def test_a_picture_has_the_events() -> None:
    """Evaluations at their accuracy, a crash as a cross, others as their letter."""
    events = [
        Placed(1.0, RunEvent(EVALUATION, 1, None, "evaluated", accuracy=0.5)),
        Placed(1.5, RunEvent(STOP, 1, None, "stopped")),
        Placed(2.0, RunEvent(CRASH, 2, None, "crashed")),
    ]
    pictures = {}
    for metric in ("accuracy", "reward"):
        line = only_line(curve_of([0.2, 0.8]), 0)
        drawing = Drawing(metric, [line], False, "#00775a", events=events)
        pictures[metric] = charts_svg("gsm8k", [drawing], (0.0, 2.0))
        assert ">held-out evaluation</text>" in pictures[metric], "what the sign means"
        pictures[metric] = pictures[metric].partition(f">{metric}<")[2]
        assert [pictures[metric].count(sign) for sign in (">S</text>", "#c02a1c", "#6a3fc0")] == [1, 1, 1]
    heights = {metric: re.search(r'd="M[\d.]+ ([\d.]+)l4 4', svg) for metric, svg in pictures.items()}
    accuracy, reward = (float(found[1]) for found in heights.values() if found)
    assert accuracy < reward, "at its accuracy; elsewhere above the axis"


def test_a_picture_has_the_extremes_and_a_strip_for_events() -> None:
    marks = [
        Mark(float(step), value, value, value, value, False) for step, value in ((1, 0.02), (60, 1.84), (121, 0.5))
    ]
    chart = Drawing("reward", [RunLine(marks)], False, "#000", events=[Placed(40.0, RunEvent(STOP, 40, None, ""))])
    svg = charts_svg("run", [chart], (1.0, 121.0))
    texts = re.findall(rf'<text x="{LEFT - 6}" y="([\d.]+)" text-anchor="end" fill="#\w+">([^<]+)</text>', svg)
    assert [text for _, text in sorted(texts, key=lambda one: float(one[0]))] == ["1.84", "1.5", "1.0", "0.5", "0.02"]
    lowest = max(float(y) for y, _ in texts)
    (event,) = re.findall(r'y="([\d.]+)" font-size="9" fill="#1d2733" text-anchor="middle">S<', svg)
    assert float(event) > lowest, "below the lowest value"


def test_no_picture_without_a_font(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_svg, "FONTS", "Of no machine")
    assert png_of("<svg xmlns='http://www.w3.org/2000/svg'/>") is None
