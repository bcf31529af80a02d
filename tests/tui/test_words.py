from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.model.formatting import (
    STATES,
    bar,
    duration,
    figure,
    fitted,
    metric,
    one_line,
    printable,
    scale,
    short_age,
    shortened,
    state_words,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
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
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_short_age() -> None:
    assert [short_age(age) for age in (None, 8, 61, 7300, 200_000)] == ["–", "8s", "1m", "2h", "2d"]


@given(st.floats())
def test_a_figure_fits_its_column(value: float) -> None:
    assert 1 <= len(figure(value)) <= 7
    assert metric(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.61, "0.61"), (1e-6, "1e-6"), (12_345, "12.35k"), (-0.002, "-0.002"), (math.nan, "NaN"), (212.0, "212")],
)
def test_figures(value: float, words: str) -> None:
    assert figure(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(-0.3478, "-0.348"), (-0.0348, "-0.035"), (-0.99996, "-1"), (-0.5, "-0.5"), (0.3478, "0.3478")]
)
def test_a_narrow_figure_keeps_the_digits_that_tell(value: float, words: str) -> None:
    assert figure(value, 6) == words


def test_an_axis_has_the_same_decimals_everywhere_and_rounds_no_tick_away() -> None:
    assert scale([-0.0075, -0.005, -0.0025, 0.0, 0.0025]) == ["-0.0075", "-0.0050", "-0.0025", "0", "0.0025"]
    assert scale([1.0, 1.5, 2.0]) == ["1.0", "1.5", "2.0"]
    assert scale([20.0, 20.5]) == ["20.0", "20.5"]
    assert scale([0.0, 50_000.0, 100_000.0]) == ["0", "50k", "100k"]
    assert scale([1e-9, 2e-9]) == ["1e-9", "2e-9"]
    assert scale([0.25]) == ["0.25"]


@given(st.floats(), st.integers(1, 60))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    filled, rest = bar(share, width)
    assert len(filled) + len(rest) == width


def test_every_state_of_the_contract_has_a_glyph_and_a_word() -> None:
    from grpo_train.run_dir import END_STATES, LIVE_STATES

    assert {*LIVE_STATES, *END_STATES, "lost", "old layout"} <= set(STATES)
    assert state_words("running", "h200-b")[1] == "running on h200-b"
    assert state_words("something new") == ("?", "something new", "warn")


@given(st.text(max_size=40), st.integers(0, 30))
def test_a_shortened_text_fits_its_cells(text: str, width: int) -> None:
    from rich.cells import cell_len

    assert cell_len(shortened(text, width)) <= max(1, width)
    assert cell_len(fitted(shortened(text, width), width)) >= width


def test_names_keep_their_end() -> None:
    assert shortened("run_of_yesterday_17", 12) == "run…erday_17"
    assert shortened("日本語の実験の名前_17", 12).endswith("_17")


@given(st.text())
def test_nothing_printable_steers_the_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()


def test_escapes_are_left_out() -> None:
    assert one_line("\x1b[31mred\x1b[0m\tand \x1b]0;title\x07bell\x07") == "red and bell·"
