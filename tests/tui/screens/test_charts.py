"""The charts view: any metric, one range, one crosshair."""

from __future__ import annotations

from tests.tui.conftest import Session, Start


async def charts(session: Session) -> str:
    """Turn to the charts; returns the screen once the curves are there."""
    await session.press("2")
    await session.until(lambda: session.app.view == "charts" and session.app.charts.curves.curves, "curves")
    return session.text()


async def test_metrics_are_drawn(start: Start) -> None:
    async with start(wait="87/200") as session:
        text = await charts(session)
        print(text)
        await session.press("left", "left", "left")
        await session.until_text("step 85")
        print(session.text())
        await session.press("plus")
        await session.until_text("range: ")
        await session.pilot.pause(0.5)
        print(session.text())
        assert "grad_norm" in text
