"""How Home shares its rows."""

from __future__ import annotations

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.box.run_columns import DEFAULT, KNOWN
from grpo_tui.views.home.model import RUN, layout
from tests.support.engine import REPOSITORY


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


def test_a_saved_table_has_every_column_and_the_example_names_them() -> None:
    example = (REPOSITORY / "config" / "columns.example.yaml").read_text()
    known = re.search(r"# Known: (.*)\.", example)
    assert known is not None
    assert known[1].split(", ") == [name for name in KNOWN if name != "name"]
    assert set(RUN) == set(KNOWN)
    assert yaml.safe_load(example)["columns"] == list(DEFAULT)
