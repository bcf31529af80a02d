"""How Home shares its rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.views.home.model import layout


@given(
    st.integers(40, 250), st.integers(9, 70), st.integers(0, 300), st.integers(0, 12), st.integers(3, 6),
    st.integers(0, 10),
)  # fmt: skip
def test_home_fits_its_rows(width: int, rows: int, runs: int, error: int, summary: int, needs: int) -> None:
    summary = summary if width >= 104 else summary % 2
    found = layout(width, rows, runs=runs, error=error, summary=summary, needs=needs)
    if found.is_stacked:
        assert found.runs + found.error + found.summary + found.charts + found.needs + found.log == rows
    else:
        assert found.runs + found.error + found.summary + found.charts <= rows
        assert found.runs + found.needs + found.log == rows
    assert found.runs >= 4
    assert not found.charts or found.charts >= 4
    assert bool(found.charts) == bool(found.chart_count)
    assert not error or found.error > 2
