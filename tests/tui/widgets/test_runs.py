from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.widgets.runs import Columns, columns_of
from tests.tui.conftest import Start
from tests.tui.fake import GPUS, FakeClient, learning_box

widths = st.integers(20, 200)


@given(widths, st.integers(1, 200), st.integers(1, 40), st.integers(1, 30))
def test_columns_fit_and_leave_in_order(width: int, name: int, state: int, steps: int) -> None:
    found = columns_of(width, name=name, state=state, steps=steps)
    others = (found.steps, found.reward, found.age, found.state)
    assert 2 + found.name + sum(others) <= width
    assert list(map(bool, others)) == sorted(map(bool, others), reverse=True)
    assert not found.steps or found.steps > steps


def test_usual_lists_keep_their_columns() -> None:
    assert columns_of(36, name=23, state=8, steps=7) == Columns(name=13, steps=8, reward=7, age=5)
    assert columns_of(58, name=23, state=8, steps=7) == Columns(name=23, state=12, steps=8, reward=7, age=5)
    assert columns_of(36, name=23, state=8, steps=13) == Columns(name=12, steps=14, reward=7)


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40), (200, 60)])
async def test_many_steps_do_not_break_the_columns(start: Start, size: tuple[int, int]) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client).gpus = GPUS
        client.runs[1].update(step=98_765, total_steps=100_000, reward=-12_345.678)
        client.runs[2].update(step=40_000, total_steps=1_000_000)

    async with start(script, size=size, wait="98765/100000") as session:
        steps = ("87/200", "98765/100000", "40000/1000000")
        rows = [line for line in session.text().splitlines() if line.startswith("│")]
        lines = [next(line for line in rows if text in line) for text in steps]
        (end,) = {line.index(text) + len(text) for line, text in zip(lines, steps, strict=True)}
        assert all("…" not in line[end : line.index("│", 1)] for line in lines)
