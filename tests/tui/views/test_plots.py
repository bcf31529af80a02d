"""What the charts of one run and of several have in common: crosshair, axes, smoothing, full screen, export."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from grpo_tui.kit.chart import CurveChart
from grpo_tui.views.plots import PlotScreen
from tests.tui.conftest import Session, Start
from tests.tui.views.compare.test_screen import box, compare

SAVED = {
    "charts": ("saved 87 steps", ["step", "reward"]),
    "compare": ("of 2 runs", ["run", "step", "num_tokens", "reward"]),
}

both = pytest.mark.parametrize("name", SAVED)


async def opened(session: Session, name: str) -> PlotScreen:
    """The view, with its curves."""
    if name == "compare":
        return await compare(session, 2)
    await session.press("2")
    screen = session.app.views.charts
    await session.until(lambda: screen.curves and screen.curves.curves and screen.drawn, "curves")
    return screen


def shown(screen: PlotScreen) -> list[CurveChart]:
    return [chart for chart in screen.query(CurveChart) if chart.display]


@both
async def test_one_crosshair_in_all_charts(start: Start, name: str) -> None:
    async with start(box, wait="87/200", paints=True) as session:
        screen = await opened(session, name)
        ends = screen.ends
        assert ends is not None
        places = []
        for key in ("left", "h", "l", "shift+left", "H", "L", "right"):
            await session.press(key)
            places.append(screen.view.crosshair)
        assert places[0] == places[2] == places[-1] == ends[1]
        assert places[1] < places[0]
        assert places[3] == ends[1] - 1
        assert places[4] < places[3] - 5
        charts = shown(screen)
        assert len(charts) > 1
        await session.until(lambda: {chart.crosshair for chart in charts} == {screen.view.crosshair})
        await session.until(lambda: charts[0].size.height > 5 and charts[0]._view)
        await session.pilot.click(f"#{charts[0].id}", offset=(25, 4))
        await session.until(lambda: screen.view.crosshair != ends[1], "the click")
        await session.press("escape")
        await session.until(lambda: screen.view.crosshair is None)
        await session.press("escape")
        assert session.app.views.name == "home"


@both
async def test_axes_and_smoothing(start: Start, name: str) -> None:
    async with start(box, wait="87/200") as session:
        screen = await opened(session, name)
        assert screen.view.logarithmic == {"grad_norm"}
        await session.press("equals_sign")
        await session.until_text("log")
        assert screen.view.logarithmic == {"grad_norm", "reward"}
        shown(screen)[1].focus()
        await session.press("equals_sign")
        await session.until(lambda: screen.view.logarithmic == {"reward"})
        await session.press("comma")
        level = screen.view.smoothing
        assert level == "strong"  # both open with raw values
        await session.until_text(f"line: {level}")
        for axis in ("tokens", "time", "cost", "step"):
            await session.press("left", "x")
            assert screen.view.crosshair is None
            await session.until_text(f"x: {axis}")
            await session.until(lambda: screen.curves and screen.curves.axis == screen.view.x and screen.ends, axis)
        await session.until_text(f"line: {level}")


@both
async def test_a_chart_in_full_screen_is_saved_alone(start: Start, name: str, downloads: Path) -> None:
    saved, columns = SAVED[name]
    async with start(box, wait="87/200") as session:
        screen = await opened(session, name)
        assert len(screen.drawn) > 1
        await session.press("z")
        await session.until(lambda: isinstance(screen.maximized, CurveChart) and screen.maximized.metric == "reward")
        await session.press("E")
        await session.until(lambda: saved in session.messages())
        await session.press("escape")
        await session.until(lambda: screen.maximized is None)
    (table,), (picture,) = downloads.glob("*.csv"), downloads.glob("*.svg")
    head, *_ = csv.reader(table.read_text().splitlines())
    assert head == columns
    texts = {each.text for each in ElementTree.parse(picture).iter() if each.tag.endswith("text")}
    assert texts & set(screen.drawn) == {"reward"}
