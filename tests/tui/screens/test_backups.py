"""Backups in the app: the column of the list, and the key that starts one."""

from __future__ import annotations

from typing import Any

import pytest

from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start
from tests.tui.fake import NOW, RUN, FakeClient, learning_box

STATES = {
    RUN: {"step": 40, "behind": 12, "same_disk": False},
    "run_2026-11-20_22-10-41": {"step": 100, "behind": 0, "same_disk": False},
    "run_2026-11-20_18-02-07": {"step": 10, "behind": 0, "same_disk": True},
}
LABELS = ("▲ 12 steps behind", "✔ step 100", "= same disk", "– none")


def backed_up(client: FakeClient) -> None:
    learning_box(client)
    for row in client.runs:
        if state := STATES.get(row["run"]):
            row["backup"] = {"destination": "s3", "time": NOW, **state}


async def test_the_list_shows_backups(start: Start) -> None:
    async with start(backed_up, size=(200, 40), wait="backup") as session:
        await session.until_text(*LABELS)
        session.app.home.set_filter("backup:none,behind")
        await session.until(lambda: len(session.app.home.runs.rows) == 2)
        session.app.home.set_filter('backup:"same disk"')
        await session.until(lambda: [row.name for row in session.app.home.runs.rows] == ["run_2026-11-20_18-02-07"])


async def test_no_column_without_a_backup(start: Start) -> None:
    async with start(size=(200, 40), wait="reward") as session:
        assert "backup" not in session.text()
        assert "– none" not in session.text()


async def test_a_chosen_column_is_always_shown(start: Start) -> None:
    async with start(size=(200, 40), columns=("state", "backup"), wait="– none") as session:
        assert session.text().count("– none") == 4


async def test_hostile_backups_cost_only_their_row(start: Start) -> None:
    def hostile(client: FakeClient) -> None:
        backed_up(client)
        bad: list[Any] = ["x", [], {"step": 1}, {**client.runs[0]["backup"], "behind": -1}]
        for row, value in zip(client.runs, bad, strict=True):
            row["backup"] = value
        client.runs[0]["backup"] = {"destination": "s3", "same_disk": False, "step": 7, "behind": 0, "time": 1e9}

    async with start(hostile, size=(200, 40), wait="✔ step 7") as session:
        rows = session.app.store.runs or []
        assert [row.is_unreadable for row in rows] == [False, True, True, True]


async def end(session: Session, code: int, output: str = "") -> None:
    """End the backup on the box."""
    client = session.client
    client.answers["capture_pane"] = {"session": f"backup_{RUN}", "text": output}
    client.sessions[-1].update(dead=True, exit_status=code, signal="")
    client.report()


@pytest.mark.parametrize(
    ("code", "output", "message"),
    [
        (0, "", "backed up every byte is proven"),
        (1, "error: no destination", "failed error: no destination"),
        (3, "warning: step_10 is damaged", "backed up in part warning: step_10 is damaged"),
    ],
)
async def test_a_key_starts_a_backup(start: Start, code: int, output: str, message: str) -> None:
    async with start(wait=RUN) as session:
        await session.press("B")
        await session.until(lambda: "started" in session.notifications())
        assert [params["run"] for params in session.client.asked_for("back_up")] == [RUN]
        await session.until(lambda: session.app.store.backup_session(RUN))
        await session.press("B")
        await session.until(lambda: "is being backed up" in session.notifications())
        assert len(session.client.asked_for("back_up")) == 1
        assert session.app.store.sessions_of(RUN)[0] == RUN  # what attach opens
        await end(session, code, output)
        await session.until(lambda: message in session.notifications(), message)
        assert not session.app.store.backup_session(RUN)


async def test_readonly_starts_no_backup(start: Start) -> None:
    async with start(wait=RUN, readonly=True) as session:
        await session.press("B")
        await session.until(lambda: "--readonly" in session.notifications())
        with pytest.raises(RemoteError):
            await session.app.request("back_up", run=RUN)
        assert not session.client.asked_for("back_up")


async def test_a_refused_backup_says_why(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("not_ours", f"{RUN} belongs to eve", "eve can back it up")

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["back_up"] = refuse

    async with start(script, wait=RUN) as session:
        await session.press("B")
        await session.until_text("belongs to eve", "eve can back it up")


async def test_progress_replaces_the_state(start: Start) -> None:
    transfer = {"command": "backup", "phase": "sending", "destination": "s3", "bytes": 4.2e9, "bytes_total": 1e10}
    transfer |= {"proven": 3e9, "seconds": 350.0}

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs[0]["transfer"] = transfer

    async with start(script, size=(200, 40), wait="↑ 42% 12 MB/s 8m") as session:
        for changes, text in (
            ({"phase": "proving"}, "↑ proving 30%"),
            ({"phase": "listing"}, "↑ backup listing"),
            ({"command": "restore", "phase": "reading", "seconds": 0.0}, "↓ 42%"),
        ):
            session.client.runs[0]["transfer"] = {**transfer, **changes}
            session.client.report()
            await session.until_text(text)
