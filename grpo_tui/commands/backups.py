"""Commands on backups: back up, restore, archive, clean up, verify."""

from __future__ import annotations

from typing import Any

from grpo_tui.kit.desk import Desk, SelectRun
from remote.protocol import RemoteError

NO_DESTINATION = "no destination for backups is described on this box"
DESCRIBE = "on the box: copy config/backup.example.yaml to ~/.config/grpo-tui/backup.yaml and edit it"


async def back_up(app: Desk) -> None:
    """Back up the run and its evaluations; it may be training."""
    if (run := app.store.selected) and await _destinations(app):
        await _start(app, "back_up", "backup", run)


async def back_up_all(app: Desk) -> None:
    """Back up every run of the box, after a confirmation with their number and bytes."""
    from grpo_tui.dialogs.backups import BackUpAllScreen

    if (destinations := await _destinations(app)) and await app.show_dialog(
        BackUpAllScreen(app.request, destinations[0], app.store.box)
    ):
        await _start(app, "back_up_all", "backup", "all runs")


async def choose(app: Desk) -> None:
    """Back up the run: choose the destination and the checkpoints."""
    from grpo_tui.dialogs.backups import BackUpScreen

    run = app.store.selected
    if run and (destinations := await _destinations(app)):
        reply = await app.show_dialog(BackUpScreen(app.request, run, destinations))
        _receipt(app, "backup", run, reply)


async def verify(app: Desk) -> None:
    """Verify the backup of the run: read all of it back."""
    row = app.store.run
    if row is not None and row.backup is not None:
        await _start(app, "verify_backup", "verification", row.name, to=row.backup.destination)


async def archive(app: Desk) -> None:
    """Archive the run, or a copy of one checkpoint, after its backup is proven."""
    from grpo_tui.dialogs.backups import ArchiveScreen

    row = app.store.run
    if row is None or not (destinations := await _destinations(app)):
        return
    try:
        app.store.show(row.name, await app.request("show_run", run=row.name))
    except RemoteError as error:
        app.show_error(f"cannot read {row.name}", error.message, error.hint)
        return
    steps = app.store.complete_steps()
    if not row.is_over and not steps:
        app.warn(f"{row.name} is {row.state}, and has no complete checkpoint to copy")
        return
    reply = await app.show_dialog(ArchiveScreen(app.request, row, steps, destinations))
    _receipt(app, "archive", row.name, reply)


async def restore(app: Desk) -> None:
    """Restore a run from a backup, also one that is not on this box."""
    from grpo_tui.dialogs.backups import RestoreScreen, StoredRunsScreen

    if not (destinations := await _destinations(app)):
        return
    chosen = await app.show_dialog(StoredRunsScreen(app.request, destinations))
    if chosen is None:
        return
    reply = await app.show_dialog(RestoreScreen(app.request, chosen))
    if reply is not None:
        run = str(reply.get("run", ""))
        app.post_message(SelectRun(run))
        _receipt(app, "restore", run, reply)


async def clean_up(app: Desk) -> None:
    """Remove checkpoints that the backup holds (asks first)."""
    from grpo_tui.dialogs.backups import CleanUpScreen

    row = app.store.run
    if row is None or row.backup is None:
        return
    plan = await app.show_dialog(CleanUpScreen(app.request, row.name, row.backup.destination, app.store.box))
    if plan is not None:
        await _start(app, "clean_up", "cleanup", row.name, keep=plan.keep, to=plan.destination)


async def _destinations(app: Desk) -> list[dict[str, Any]]:
    """The destinations that the box describes. Says so if there are none."""
    try:
        reply = await app.request("list_destinations", reply_s=40.0)
    except RemoteError as error:
        app.show_error("cannot list the destinations of backups", error.message, error.hint)
        return []
    if not reply["destinations"]:
        app.show_error(NO_DESTINATION, "Backups need a bucket, or a directory on another disk.", DESCRIBE)
    return list(reply["destinations"])


async def _start(app: Desk, op: str, what: str, run: str, **params: Any) -> None:
    params |= {} if op == "back_up_all" else {"run": run}
    try:
        reply = await app.request(op, reply_s=60.0, **params)
    except RemoteError as error:
        app.show_error(f"cannot start the {what} of {run}", error.message, error.hint)
        return
    _receipt(app, what, run, reply)


def _receipt(app: Desk, what: str, run: str, reply: dict[str, Any] | None) -> None:
    if reply is not None:
        app.receipt(f"{what} of {run} started", f"in tmux session {reply['session']}")
