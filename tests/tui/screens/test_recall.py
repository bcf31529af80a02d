"""What the laptop kept of a box is on the screen before the link stands, with its age, and gives way to the box."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from grpo_tui.box.kept import FILE
from grpo_tui.kit.sources import NOT_READ
from remote.events import Link, LinkChanged
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import NOW, RUN


def silent(client: FakeClient) -> None:
    learning_box(client)
    client.quiet = True
    client.files = {}


def is_kept(session: Session) -> bool:
    store = session.app.store
    curves = store.curves.get("home")
    return bool(curves and curves.is_answered and not curves.is_coarse and store.checkpoints() and curves.curves)


async def test_a_known_run_is_shown_before_the_link(start: Start, tmp_path: Path) -> None:
    async with start(cache=tmp_path, wait="87/200") as session:
        await session.until(lambda: is_kept(session))
        await session.press("2")
        await session.until(lambda: session.app.store.metrics.rows)
        session.app._cache.flush()  # type: ignore[union-attr]
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("UPDATE answers SET at = at - 7200")

    async with start(silent, cache=tmp_path, fresh=True) as session:
        await session.until_text("as it was 2 h", "run_2026-11-20_22", "step_20 .710", RUN, NOT_READ)
        await session.until(lambda: session.app.store.curves["home"].curves, "the curves")
        assert session.app.store.curves["home"].recalled_at == NOW - 7_200
        assert "ETA" not in session.text()
        await session.until(lambda: session.text().count("as it was 2 h") >= 3, "the age of each chart")
        await session.press("s")
        await session.until(lambda: "not connected" in session.messages())
        await session.press("2")
        await session.until_text("grad_norm", "▪ reward")

        learning_box(client := session.client)
        client.on_event(LinkChanged(Link.CONNECTED, latency_ms=9.0))
        client.runs = client.runs[:2]
        client.report()
        await session.until(lambda: len(session.app.store.runs or ()) == 2)
        await session.press("1")
        await session.until(lambda: "as it was" not in session.text(), "the box's own answers")


async def test_nothing_is_kept_without_a_cache(start: Start, tmp_path: Path) -> None:
    async with start(wait="87/200"):
        pass
    async with start(silent) as session:
        await session.until_text("connecting")
        assert session.app.store.runs is None
    assert not list(tmp_path.iterdir())
