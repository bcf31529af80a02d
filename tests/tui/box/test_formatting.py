from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir import END_STATES, LIVE_STATES
from grpo_train.run_dir.display import STATES, duration, state_label
from grpo_tui.box.formatting import (
    bar,
    compact_number,
    counted,
    cut,
    metric_value,
    one_line,
    padded,
    power_labels,
    short_age,
    shortened,
    tick_labels,
)
from grpo_tui.kit.plot import ticks


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (350, "5 m 50 s"),
        (2460, "41 m"),
        (11_100, "3 h 05 m"),
        (187_200, "2 d 4 h"),
        (math.inf, "–"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_short_age() -> None:
    assert [short_age(age) for age in (None, 8, 61, 7300, 200_000)] == ["–", "8s", "1m", "2h", "2d"]


def test_counted() -> None:
    assert [counted(1, "run"), counted(1840, "match", "matches")] == ["1 run", "1,840 matches"]


@given(st.floats())
def test_compact_number_fits_its_column(value: float) -> None:
    assert 1 <= len(compact_number(value)) <= 7
    assert 1 <= len(metric_value(value)) <= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.61, "0.61"), (1e-6, "1e-6"), (12_345, "12.35k"), (-0.002, "-0.002"), (math.nan, "NaN"), (212.0, "212")],
)
def test_compact_number(value: float, text: str) -> None:
    assert compact_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-0.3478, "-0.348"), (-0.0348, "-0.035"), (-0.99996, "-1"), (-0.5, "-0.5"), (0.3478, "0.3478")]
)
def test_narrow_number_keeps_two_digits(value: float, text: str) -> None:
    assert compact_number(value, 6) == text


def test_ticks_have_the_same_decimals() -> None:
    labels = ["-0.0075", "-0.0050", "-0.0025", "0", "0.0025"]
    assert tick_labels([-0.0075, -0.005, -0.0025, 0.0, 0.0025]) == (labels, "")
    assert tick_labels([1.0, 1.5, 2.0]) == (["1.0", "1.5", "2.0"], "")
    assert tick_labels([20.0, 20.5]) == (["20.0", "20.5"], "")
    assert tick_labels([0.0, 50_000.0, 100_000.0]) == (["0", "50k", "100k"], "")
    assert tick_labels([1e-9, 2e-9]) == (["1e-9", "2e-9"], "")
    assert tick_labels([7.5e-6, 1e-5, 1.25e-5]) == (["7.5e-6", "1e-5", "1.25e-5"], "")
    assert tick_labels([1_002_500.0, 1_005_000.0]) == (["1002500", "1005000"], "")
    assert tick_labels([0.25]) == (["0.25"], "")


def test_ticks_of_a_nearly_constant_metric_differ() -> None:
    assert tick_labels([0.999999, 1.0, 1.000001]) == (["0.999999", "1.000000", "1.000001"], "")
    assert tick_labels([1.0, 1.0 + 1e-9, 1.0 + 2e-9]) == (["+0", "+1e-9", "+2e-9"], "1")
    assert tick_labels([123_456.0, 123_456.25, 123_456.5]) == (["123456.00", "123456.25", "123456.50"], "")
    assert tick_labels([1_234_567.12, 1_234_567.14]) == (["+0.02", "+0.04"], "1234567.1")
    assert power_labels([0.30102, 0.30103])[1] == "1.9999"


@given(st.floats(1e-9, 1e12), st.sampled_from([1, -1]), st.floats(1e-10, 100), st.integers(2, 6))
def test_any_two_ticks_differ(size: float, sign: int, share: float, count: int) -> None:
    low = sign * size
    levels = ticks(low, low + size * share, count)
    labels, _ = tick_labels(levels)
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 10


@given(st.floats(), st.integers(1, 60))
def test_bar_has_its_width(share: float, width: int) -> None:
    filled, rest = bar(share, width)
    assert len(filled) + len(rest) == width


def test_every_state_has_a_label() -> None:
    assert {*LIVE_STATES, *END_STATES, "lost", "old layout"} <= set(STATES)
    assert state_label("running", "h200-b")[1] == "running on h200-b"
    assert state_label("something new") == ("?", "something new", "warn")


@given(st.text(max_size=40), st.integers(0, 30))
def test_shortened_text_fits_its_cells(text: str, width: int) -> None:
    from rich.cells import cell_len

    assert cell_len(shortened(text, width)) <= max(1, width)
    assert cell_len(padded(shortened(text, width), width)) >= width


def test_shortened_name_keeps_its_end() -> None:
    assert shortened("run_of_yesterday_17", 12) == "run…erday_17"
    assert shortened("日本語の実験の名前_17", 12).endswith("_17")


def test_one_line_collapses_whitespace() -> None:
    assert one_line(" red\tand\n\n blue ") == "red and blue"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (60, "learning_rate 1e-4→0.03, max_grad_norm 0.05→1000"),
        (47, "learning_rate 1e-4→0.03, max_grad_norm 0.05→…"),
        (24, "learning_rate 1e-4→…"),
        (25, "learning_rate 1e-4→0.03,…"),
        (22, "learning_rate 1e-4→…"),
        (8, "learnin…"),
        (1, "…"),
    ],
)
def test_what_is_cut_keeps_no_part_of_a_number(width: int, text: str) -> None:
    assert cut("learning_rate 1e-4→0.03, max_grad_norm 0.05→1000", width) == text
