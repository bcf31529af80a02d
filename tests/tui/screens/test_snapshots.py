"""Pictures of home and the forms at 120 x 40.

After an intended change: ``pytest tests/tui/screens/test_snapshots.py --snapshot-update``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from grpo_tui.app import GrpoApp
from grpo_tui.options import Options
from remote.boxes import Box
from tests.support.patience import PATIENCE
from tests.tui.conftest import BOX
from tests.tui.fake import GPUS, NOW, FakeClient, ailing_box

Compare = Callable[..., bool]


@pytest.fixture(autouse=True)
def fixed_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No configs on this machine, times in UTC, the default theme."""
    monkeypatch.setattr("grpo_tui.actions.forms._local_configs", lambda explicit: (None, []))
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def app() -> GrpoApp:
    def make_client(box: Box, on_event: Callable[..., object]) -> FakeClient:
        client = ailing_box(FakeClient(box, on_event))
        client.gpus = GPUS
        client.runs[0]["device"] = "NVIDIA H200"
        return client

    app = GrpoApp(Options(BOX), make_client=make_client, now=lambda: NOW)
    app.animation_level = "none"
    return app


STEADY = 4
"""Ticks without a change after which a screen counts as complete: a panel's new width is asked for at the next tick."""


async def wait(pilot: Pilot[None], ready: Callable[[], object], steady: int = STEADY) -> None:
    """Wait until a screen is complete and its picture stays the same over ``steady`` ticks."""
    deadline = time.monotonic() + PATIENCE * 10
    picture, same = "", 0
    while same < steady:
        assert time.monotonic() < deadline
        if not ready():
            await pilot.pause(0.025)
            continue
        pilot.app.tick()  # type: ignore[attr-defined]
        await pilot.pause(0.1)
        before, picture = picture, pilot.app.export_screenshot()
        same = same + 1 if picture == before else 0


def shows_home(pilot: Pilot[None]) -> bool:
    store = pilot.app.store  # type: ignore[attr-defined]
    logs = store.logs
    if not (logs and logs.last_step == 87 and len(logs.completions) and store.checkpoints()):
        return False
    if pilot.app.history.machine is None:  # type: ignore[attr-defined]
        return False
    curves = store.curves["home"]
    return bool(curves.curves and curves.is_answered)


def test_home(snap_compare: Compare) -> None:
    async def ready(pilot: Pilot[None]) -> None:
        await wait(pilot, lambda: shows_home(pilot))

    assert snap_compare(app(), terminal_size=(120, 40), run_before=ready)


KEYS = {"launch": ["n"], "evaluate": ["e"], "resume": ["down", "down", "down", "r"]}


@pytest.mark.parametrize("form", KEYS)
def test_form(snap_compare: Compare, form: str) -> None:
    async def ready(pilot: Pilot[None]) -> None:
        await wait(pilot, lambda: shows_home(pilot))
        for key in KEYS[form]:
            await pilot.press(key)
            await pilot.pause(0.3)
        await wait(pilot, lambda: getattr(pilot.app.screen, "ready", None))

    assert snap_compare(app(), terminal_size=(120, 40), run_before=ready)
