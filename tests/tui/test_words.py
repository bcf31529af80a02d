from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.words import STATES, bar, duration, figure, metric, short_age, state_words


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


@given(st.floats(), st.integers(1, 60))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    filled, rest = bar(share, width)
    assert len(filled) + len(rest) == width


def test_every_state_of_the_contract_has_a_glyph_and_a_word() -> None:
    from grpo_train.run_dir import END_STATES, LIVE_STATES

    assert {*LIVE_STATES, *END_STATES, "lost", "old layout"} <= set(STATES)
    assert state_words("running", "h200-b")[1] == "running on h200-b"
    assert state_words("something new") == ("?", "something new", "warn")
