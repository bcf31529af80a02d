"""Backups in the app: the column of the list, progress, and what the keys start."""

from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Select

from grpo_tui.dialogs.backups import ArchiveScreen, BackUpScreen, CleanUpScreen, RestoreScreen, StoredRunsScreen
from grpo_tui.dialogs.form import RequestScreen
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start, fill, opened, problem
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_backups import BACKUP_ANSWERS, LOST, STORED
from tests.tui.fake_rows import NOW, RUN

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
    async with start(size=(200, 40), wait="87/200") as session:
        assert "backup" not in session.text()
        assert "– none" not in session.text()


async def test_a_chosen_column_is_always_shown(start: Start) -> None:
    async with start(size=(200, 40), columns=("state", "backup"), wait="– none") as session:
        await session.until(lambda: session.text().count("– none") == 4)


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


def working(session: Session) -> str:
    """What is being done to the backups of the selected run."""
    row = session.app.store.run
    return session.app.store.backup_work(row) if row else ""


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
        await session.until(lambda: "started" in session.messages())
        assert [params["run"] for params in session.client.asked_for("back_up")] == [RUN]
        await session.until(lambda: working(session))
        await session.press("B")
        await session.until(lambda: "is being backed up" in session.messages())
        assert len(session.client.asked_for("back_up")) == 1
        assert session.app.store.sessions_of(RUN)[0] == RUN  # what attach opens
        await end(session, code, output)
        await session.until(lambda: message in session.messages(), message)
        assert not working(session)


async def test_a_refused_backup_says_why(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("not_ours", f"{RUN} belongs to eve", "eve can back it up")

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["back_up"] = refuse

    async with start(script, wait=RUN) as session:
        await session.press("B")
        await session.until_text("belongs to eve", "eve can back it up")


TRANSFER = {
    "command": "backup", "phase": "sending", "destination": "s3", "what": "step_40/optimizer.pt", "bytes": 4.2e9,
    "bytes_total": 1e10, "proven": 3e9, "files": 3, "files_total": 8, "seconds": 350.0, "rate": 0.0, "error": "",
    "again": "grpo-train backup --training-run run_gsm8k_demo",
}  # fmt: skip


def transferring(client: FakeClient) -> None:
    learning_box(client)
    client.runs[0]["transfer"] = TRANSFER


async def test_progress_of_a_transfer(start: Start) -> None:
    async with start(transferring, size=(200, 40), wait="↑ 42% 12 MB/s 8m") as session:
        await session.until_text("sending 42% · 12 MB/s · 8m left", "4.2 GB of 10 GB to s3 · step_40/optimizer.pt")
        changes: dict[str, Any]
        for changes, cell, line in (
            ({"phase": "proving", "rate": 1e8}, "↑ proving 30%", "3.0 GB of 10 GB to s3"),
            ({"phase": "listing"}, "↑ backup listing", "to s3"),
            ({"command": "restore", "phase": "reading", "seconds": 0.0}, "↓ 42%", "4.2 GB of 10 GB from s3"),
        ):
            session.client.runs[0]["transfer"] = {**TRANSFER, **changes}
            session.client.report()
            await session.until_text(cell, line)


async def test_a_failed_transfer_says_how_to_continue(start: Start) -> None:
    async with start(transferring, size=(200, 40), wait="↑ 42%") as session:
        failed = {**TRANSFER, "phase": "failed", "error": "no route to s3.example.com"}
        session.client.runs[0]["transfer"] = failed
        session.client.report()
        await session.until_text(
            "✖ backup failed", "failed: no route to s3.example.com", f"continue: {failed['again']}"
        )
        assert not working(session), "the next command may start"
        del session.client.runs[0]["transfer"]
        session.client.report()
        await session.until(lambda: "continue:" not in session.text())


# ----------------------------------------------------------------------------------------------- forms and dialogs


def choose(session: Session, field: str, value: object) -> None:
    session.app.screen.query_one(f"#{field}", Select).value = value


async def sent(session: Session, op: str) -> dict[str, Any]:
    """Press the button of the open form once its command is checked; returns what was sent."""
    form = session.app.screen
    assert isinstance(form, RequestScreen)
    await session.until(lambda: form.ready is not None, "the check")
    form.query_one("#go").focus()
    await session.press("enter")
    await session.until(lambda: "started" in session.messages())
    (params,) = [params for params in session.client.asked_for(op) if not params.get("dry_run")]
    return params


async def test_a_backup_to_a_chosen_destination(start: Start) -> None:
    async with start(wait=RUN) as session:
        await opened(session, "P", BackUpScreen)
        choose(session, "to", "disk")
        choose(session, "steps", "list")
        await session.until(lambda: "enter step numbers" in problem(session))
        fill(session, "list", "20, 10")
        params = await sent(session, "back_up")
        assert (params["run"], params["to"], params["steps"]) == (RUN, "disk", "20,10")
        assert f"backup of {RUN} started" in session.messages()


async def test_no_destination_names_the_file(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["list_destinations"] = {"destinations": []}

    async with start(script, wait=RUN) as session:
        for key in "BPR":
            await session.press(key)
            await session.until_text("no destination for backups is described", "backup.example.yaml")
            await session.press("escape")
            await session.until(lambda: session.app.screen is session.app.home)
        assert not session.client.asked_for("back_up")


async def test_a_run_that_is_not_here_is_restored(start: Start) -> None:
    async with start(wait=RUN) as session:
        await opened(session, "R", StoredRunsScreen)
        text = await session.until_text(LOST, "step 300", "on this box", "COMPLETE is missing")
        assert f"{RUN}_addition" not in text, "evaluations come with their run"
        assert text.count(LOST) == 1, "it was archived later"
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, RestoreScreen))
        choose(session, "snapshot", "7")
        choose(session, "steps", "logs")
        choose(session, "resume", "yes")
        await session.until(lambda: "needs a checkpoint" in problem(session))
        choose(session, "steps", "latest")
        fill(session, "as-name", "found_again")
        params = await sent(session, "restore")
        assert {key: params[key] for key in ("run", "source", "snapshot", "steps", "as_name", "resume")} == {
            "run": f"{LOST}--0123456789abcdef", "source": "s3", "snapshot": 7, "steps": "latest",
            "as_name": "found_again", "resume": True,
        }  # fmt: skip
        session.client.runs.insert(0, {**session.client.runs[-1], "run": "found_again"})
        session.client.report()
        await session.until(lambda: session.app.store.selected == "found_again")


async def test_a_store_that_does_not_answer_is_named(start: Start) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if params["source"] == "s3":
            raise RemoteError("unreachable", "s3.example.com cannot be reached")
        return {"backups": STORED}

    def script(client: FakeClient) -> None:
        learning_box(client)
        client.answers["list_backups"] = refuse

    async with start(script, wait=RUN) as session:
        await opened(session, "R", StoredRunsScreen)
        await session.until_text("s3.example.com cannot be reached")
        choose(session, "to", "disk")
        await session.until_text(LOST)
        await session.press("escape")
        await session.until(lambda: session.app.screen is session.app.home)


async def test_a_finished_run_is_archived(start: Start) -> None:
    async with start(wait=RUN) as session:
        await session.press("down")
        await opened(session, "A", ArchiveScreen)
        fill(session, "note", "the first that learned")
        params = await sent(session, "archive")
        assert params["run"] == "run_2026-11-20_22-10-41"
        assert (params["note"], params["to"], params.get("step")) == ("the first that learned", "s3", None)


async def test_of_a_live_run_a_checkpoint_is_archived(start: Start) -> None:
    async with start(wait=RUN) as session:
        await opened(session, "A", ArchiveScreen)
        assert (await sent(session, "archive"))["step"] == 30


async def test_cleanup_shows_its_plan_first(start: Start) -> None:
    async with start(backed_up, wait=RUN) as session:
        await session.press("down")
        await opened(session, "C", CleanUpScreen)
        screen = session.app.screen
        text = await session.until_text("Remove 9 checkpoints", "88 GB")
        for fact in (
            "gpu-17 (h200-a)", "run_2026-11-20_22-10-41", "10–90 (9)", "snapshot 3 in s3 (s3://runs/me)",
            "snapshot 3, 3 h 05 m ago", "step 100: one of the newest",
        ):  # fmt: skip
            assert fact in text
        assert screen.query_one("#cancel").has_focus
        await session.press("enter")
        await session.until(lambda: session.app.screen is session.app.home)
        assert not session.client.asked_for("clean_up"), "Cancel is the default"

        await opened(session, "C", CleanUpScreen)
        await session.until_text("Remove 9 checkpoints")
        choose(session, "keep", 3)
        await session.until_text("Remove 7 checkpoints")
        session.app.screen.query_one("#remove").focus()
        await session.press("enter")
        await session.until(lambda: "cleanup of" in session.messages())
        (params,) = session.client.asked_for("clean_up")
        assert (params["run"], params["keep"], params["to"]) == ("run_2026-11-20_22-10-41", 3, "s3")


@pytest.mark.parametrize("removed", [None, []])
async def test_nothing_to_clean_up_cannot_be_confirmed(start: Start, removed: list[Any] | None) -> None:
    def plan(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if removed is None:
            raise RemoteError("unreadable", "cannot tell which checkpoints are needed")
        return {**BACKUP_ANSWERS["plan_cleanup"](client, params), "removed": removed}

    def script(client: FakeClient) -> None:
        backed_up(client)
        client.answers["plan_cleanup"] = plan

    async with start(script, wait=RUN) as session:
        await session.press("down")
        await opened(session, "C", CleanUpScreen)
        await session.until_text("cannot tell" if removed is None else "Nothing can be removed")
        assert session.app.screen.query_one("#remove").disabled


async def test_verify_reads_the_backup_back(start: Start) -> None:
    async with start(backed_up, wait=RUN) as session:
        await session.press("V")
        await session.until(lambda: "verification of" in session.messages())
        assert [(each["run"], each["to"]) for each in session.client.asked_for("verify_backup")] == [(RUN, "s3")]
        session.client.answers["capture_pane"] = {"session": f"verify_{RUN}", "text": "  a/b differs; spoils step_10"}
        session.client.sessions[-1].update(dead=True, exit_status=3, signal="")
        session.client.report()
        await session.until(lambda: f"backup of {RUN} is damaged a/b differs" in session.messages())


async def test_what_cannot_be_done_says_why(start: Start) -> None:
    async with start(backed_up, wait=RUN) as session:
        for keys, reason in (
            (("C",), "is running; stop it first"),
            (("down", "down", "C"), "on the same disk: no second copy"),
            (("down", "C"), "has no backup"),
            (("V",), "has no backup"),
        ):
            session.app.messages.entries.clear()
            await session.press(*keys)
            await session.until(lambda reason=reason: reason in session.messages(), reason)


async def test_readonly_changes_no_backup(start: Start) -> None:
    async with start(backed_up, wait=RUN, readonly=True) as session:
        for count, key in enumerate("BPVRAC", 1):
            await session.press(key)
            await session.until(lambda: session.messages().count("--readonly") == count)  # noqa: B023
        for op in ("back_up", "restore", "archive", "clean_up", "verify_backup"):
            with pytest.raises(RemoteError) as caught:
                await session.app.request(op, run=RUN)
            assert caught.value.code == "read_only"
            assert not session.client.asked_for(op)


async def test_one_command_on_a_run_at_a_time(start: Start) -> None:
    def script(client: FakeClient) -> None:
        backed_up(client)
        client.runs[1]["transfer"] = {**TRANSFER, "command": "restore"}

    async with start(script, wait=RUN) as session:
        await session.press("down")
        for count, key in enumerate("BPVAC", 1):
            await session.press(key)
            await session.until(lambda: session.messages().count("is being restored") == count)  # noqa: B023
