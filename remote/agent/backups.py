"""Backups: the engine's commands in tmux sessions, and its answers about what a destination holds."""

from __future__ import annotations

import os
import re
from typing import Any, cast

from grpo_train.run_dir import check_name, open_run
from grpo_train.run_dir.owners import foreign_owner
from grpo_train.run_dir.sessions import session_name
from remote.agent.ask_engine import STORE_WAIT_S, ask_engine
from remote.agent.context import BoxContext
from remote.agent.jobs import option, run_in_session
from remote.agent.once import Record
from remote.protocol import RemoteError
from remote.protocol.backups import (
    ArchiveRequest,
    BackUpRequest,
    CleanUpRequest,
    ListBackupsReply,
    ListBackupsRequest,
    ListDestinationsReply,
    PlanCleanupReply,
    PlanCleanupRequest,
    RestoreRequest,
    StoredHistoryReply,
    StoredHistoryRequest,
    VerifyBackupRequest,
)
from remote.protocol.jobs import JobReply
from remote.protocol.operations import NoParameters

_IDENTITY = re.compile(r"--[0-9a-f]{16}$")
DESCRIBE_WAIT_S = 30.0


# --------------------------------------------------------------------------------------------------------- commands


def back_up(box: BoxContext, request: BackUpRequest, record: Record) -> JobReply:
    """Back up a run in a session ``backup_<run>``. Raises RemoteError ``not_ours`` for a run of another account.

    Its note cannot be written then, and the list would not show the backup.
    """
    run = open_run(box.root, request.run)
    if not os.access(run.path, os.W_OK) and (owner := foreign_owner(run.path)):
        raise RemoteError("not_ours", f"{run.name} belongs to {owner}", f"{owner} can back it up")
    arguments = ["backup", "--training-run", run.name, *option(request, "steps"), *option(request, "to")]
    return _start(box, "backup", run.name, arguments, request, record)


def restore(box: BoxContext, request: RestoreRequest, record: Record) -> JobReply:
    """Restore a run in a session ``restore_<run>``, or in the run's own where it is resumed then."""
    name = check_name(request.as_name or _IDENTITY.sub("", request.run))
    arguments = ["restore", "--training-run", request.run]
    arguments += ["--from", request.source] if request.source else []
    arguments += [*option(request, "snapshot"), *option(request, "steps")]
    arguments += ["--as", name] if request.as_name else []
    if request.resume:
        return _start(box, "", name, [*arguments, "--resume"], request, record)
    return _start(box, "restore", name, arguments, request, record)


def archive(box: BoxContext, request: ArchiveRequest, record: Record) -> JobReply:
    """Archive a run, or a copy of a checkpoint, in a session ``archive_<run>``."""
    run = open_run(box.root, request.run)
    arguments = ["archive", run.name]
    for name in ("step", "note", "to"):
        arguments += option(request, name)
    return _start(box, "archive", run.name, arguments, request, record)


def clean_up(box: BoxContext, request: CleanUpRequest, record: Record) -> JobReply:
    """Remove checkpoints that the backup holds, in a session ``cleanup_<run>``. The client has confirmed the plan."""
    run = open_run(box.root, request.run)
    arguments = ["cleanup", "--training-run", run.name, *option(request, "keep"), *option(request, "to"), "--yes"]
    return _start(box, "cleanup", run.name, arguments, request, record)


def verify_backup(box: BoxContext, request: VerifyBackupRequest, record: Record) -> JobReply:
    """Read the backup of a run back in a session ``verify_<run>``."""
    run = open_run(box.root, request.run)
    return _start(box, "verify", run.name, ["verify-backup", run.name, *option(request, "to")], request, record)


def _start(box: BoxContext, command: str, run: str, arguments: list[str], request: Any, record: Record) -> JobReply:
    """Start a command in the session ``COMMAND_<run>``, or in the run's own without a command."""
    record.begin()
    session = session_name(f"{command}_{run}" if command else run)
    return run_in_session(box, session, arguments, run, request.dry_run, record)


# ---------------------------------------------------------------------------------------------------------- answers


def list_destinations(box: BoxContext, request: NoParameters) -> ListDestinationsReply:
    """The destinations that the box's backup.yaml describes. Raises RemoteError."""
    return {"destinations": _rows(ask_engine(box, ["destinations"], DESCRIBE_WAIT_S, root=False))}


def list_backups(box: BoxContext, request: ListBackupsRequest) -> ListBackupsReply:
    """What a destination holds. Raises RemoteError, with the engine's code."""
    source = ["--from", request.source] if request.source else []
    return {"backups": _rows(ask_engine(box, ["list-backups", *source, "--no-compare"], STORE_WAIT_S))}


def stored_history(box: BoxContext, request: StoredHistoryRequest) -> StoredHistoryReply:
    """A page of what is known of the runs in a destination. Raises RemoteError, with the engine's code."""
    after = ["--after", request.after] if request.after else []
    page = ask_engine(box, ["history", "--from", request.source, "--records", *after], STORE_WAIT_S)
    if not isinstance(page, dict):
        raise RemoteError("no_answer", "grpo-train history --records did not print a page")
    return cast(StoredHistoryReply, page)


def plan_cleanup(box: BoxContext, request: PlanCleanupRequest) -> PlanCleanupReply:
    """What a cleanup would remove, and what stays. Raises RemoteError, with the engine's code."""
    run = open_run(box.root, request.run)
    arguments = ["cleanup", "--training-run", run.name, *option(request, "keep"), *option(request, "to"), "--dry-run"]
    plan = ask_engine(box, arguments, STORE_WAIT_S)
    if not isinstance(plan, dict):
        raise RemoteError("no_answer", "grpo-train cleanup --dry-run did not print a plan")
    return {**plan, "removed": plan.get("spare")}  # type: ignore[typeddict-item]


def _rows(answer: Any) -> list[dict[str, Any]]:
    if not isinstance(answer, list):
        raise RemoteError("no_answer", "the engine did not print a list")
    return answer
