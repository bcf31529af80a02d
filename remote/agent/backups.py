"""Backups: the engine's commands in tmux sessions and how far they are; whether this box can be terminated.

See :mod:`grpo_train.backup.job`. A failed command is reported until another one of the same run is done.

The engine asks the store about every run, so it is asked only when nothing is live, and again only after something
changed (:mod:`remote.agent.box`) or after the answer has aged. An answer counts only while the root looks exactly
as it did before the engine was asked; whatever is changed while it is asked makes it void. So an old answer can be a
wrong "no", never a wrong "yes".
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from grpo_train.run_dir import check_name, open_run
from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.files import last_jsonl, to_float
from grpo_train.run_dir.machine import foreign_owner
from grpo_train.run_dir.rows import printable
from grpo_train.run_dir.sessions import session_name
from grpo_train.run_dir.status import read_state
from remote.agent.box import BoxContext, look_at
from remote.agent.engine import STORE_WAIT_S, ask_engine
from remote.agent.jobs import option, run_in_session
from remote.agent.once import RequestRecord
from remote.protocol import RemoteError
from remote.protocol.backups import (
    ALL_RUNS,
    MAX_LISTED,
    ArchiveRequest,
    BackUpAllRequest,
    BackUpRequest,
    CleanUpRequest,
    ListBackupsReply,
    ListBackupsRequest,
    ListDestinationsReply,
    PlanBackUpAllReply,
    PlanBackUpAllRequest,
    PlanCleanupReply,
    PlanCleanupRequest,
    RestoreRequest,
    SafeToTerminateReply,
    SafeToTerminateRequest,
    StoredHistoryReply,
    StoredHistoryRequest,
    VerifyBackupRequest,
)
from remote.protocol.jobs import JobReply
from remote.protocol.operations import NoParameters

EVERY_S = 1.0
"""A command writes its progress once a second."""
RATE_S = 20.0
"""The rate is that of the last seconds."""
KIND = "training_runs."
MAX_BYTES = 1e15
MAX_TEXT = 500
KILLED = "it was killed, or this box was restarted"
_LABELS, _TEXTS = ("command", "phase", "destination"), ("what", "error")
_NUMBERS = ("bytes", "bytes_total", "proven", "files", "files_total", "seconds")


class Transfers:
    """Run name to the progress of the command that is at work on it, or that failed last."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._folder, self._clock = root / "transfers", clock
        self._ended: dict[str, tuple[object, dict[str, Any]]] = {}
        """Folder to the signature of a status that is not live, and its row."""
        self._rates: dict[str, _Rate] = {}
        self._found: dict[str, dict[str, Any]] = {}
        self._read_at: float | None = None

    def results(self) -> dict[str, dict[str, Any]]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= EVERY_S:
            found = {name.removeprefix(KIND): self._progress(name) for name in self._folders()}
            self._found, self._read_at = {run: row for run, row in found.items() if row}, self._clock.monotonic()
        return self._found

    def _folders(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(KIND)]
        except OSError:
            return []

    def _progress(self, name: str) -> dict[str, Any]:
        """{} where the last command is done, or where it cannot be read."""
        folder = self._folder / name
        try:
            facts = (folder / "status.json").stat()
            signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            known, row = self._ended.get(name, (None, {}))
            if known == signature:
                return row
            status, state = read_state(folder)
            if status is None or state.state == "finished":
                row = {}
            else:
                row = _row(status, last_jsonl(folder / "progress.jsonl") or {}, failed=not state.is_live)
        except OSError:
            return {}
        if not state.is_live:
            self._rates.pop(name, None)
            self._ended[name] = signature, row
            return row
        rate = self._rates.setdefault(name, _Rate())
        return {**row, "rate": rate.after(row)}


class _Rate:
    """Bytes per second of late, in the present phase of a command."""

    def __init__(self) -> None:
        self._phase = ""
        self._points: deque[tuple[float, float]] = deque()
        """Seconds since the start of the command, and bytes by then."""

    def after(self, row: dict[str, Any]) -> float:
        seconds, moved = row["seconds"], row["proven" if row["phase"] == "proving" else "bytes"]
        points = self._points
        if row["phase"] != self._phase or (points and (seconds < points[-1][0] or moved < points[-1][1])):
            points.clear()
            self._phase = row["phase"]
        if not points or seconds > points[-1][0]:
            points.append((seconds, moved))
        while seconds - points[0][0] > RATE_S and len(points) > 2:
            points.popleft()
        passed = points[-1][0] - points[0][0]
        return (points[-1][1] - points[0][1]) / passed if passed > 0 else 0.0


def _row(status: dict[str, Any], progress: dict[str, Any], *, failed: bool) -> dict[str, Any]:
    """See :class:`remote.protocol.runs.Transfer`."""
    row = {**{key: status.get(key) for key in ("command", "destination")}, **progress}
    numbers = {key: min(max(to_float(row.get(key)) or 0.0, 0.0), MAX_BYTES) for key in _NUMBERS}
    labels = {key: _text(row.get(key), 64) for key in _LABELS}
    texts = {key: _text(row.get(key), MAX_TEXT) for key in _TEXTS}
    if failed:
        labels["phase"], texts["error"] = "failed", texts["error"] or KILLED
    argv = status.get("argv")
    words = [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else []
    return {**numbers, **labels, **texts, "rate": 0.0, "again": _text(shlex.join(words), MAX_TEXT)}


def _text(value: object, limit: int) -> str:
    return printable(value[:limit]) if isinstance(value, str) else ""


_IDENTITY = re.compile(r"--[0-9a-f]{16}$")
DESCRIBE_WAIT_S = 30.0


# --------------------------------------------------------------------------------------------------------- commands


def back_up(box: BoxContext, request: BackUpRequest, record: RequestRecord) -> JobReply:
    """Back up a run in a session ``backup_<run>``. Raises RemoteError ``not_ours`` for a run of another account.

    Its note cannot be written then, and the list would not show the backup.
    """
    run = open_run(box.root, request.run)
    if not os.access(run.path, os.W_OK) and (owner := foreign_owner(run.path)):
        raise RemoteError("not_ours", f"{run.name} belongs to {owner}", f"{owner} can back it up")
    arguments = ["backup", "--training-run", run.name, *option(request, "steps"), *option(request, "to")]
    return _start(box, "backup", run.name, arguments, request, record)


def back_up_all(box: BoxContext, request: BackUpAllRequest, record: RequestRecord) -> JobReply:
    """Back up everything below the root, one after the other, in a session ``backup_all-runs``."""
    return _start(box, "backup", ALL_RUNS, ["backup-all", *option(request, "to")], request, record)


def restore(box: BoxContext, request: RestoreRequest, record: RequestRecord) -> JobReply:
    """Restore a run in a session ``restore_<run>``, or in the run's own where it is resumed then."""
    name = check_name(request.as_name or _IDENTITY.sub("", request.run))
    arguments = ["restore", "--training-run", request.run]
    arguments += ["--from", request.source] if request.source else []
    arguments += [*option(request, "snapshot"), *option(request, "steps")]
    arguments += ["--as", name] if request.as_name else []
    if request.resume:
        return _start(box, "", name, [*arguments, "--resume"], request, record)
    return _start(box, "restore", name, arguments, request, record)


def archive(box: BoxContext, request: ArchiveRequest, record: RequestRecord) -> JobReply:
    """Archive a run, or a copy of a checkpoint, in a session ``archive_<run>``."""
    run = open_run(box.root, request.run)
    arguments = ["archive", run.name]
    for name in ("step", "note", "to"):
        arguments += option(request, name)
    return _start(box, "archive", run.name, arguments, request, record)


def clean_up(box: BoxContext, request: CleanUpRequest, record: RequestRecord) -> JobReply:
    """Remove checkpoints that the backup holds, in a session ``cleanup_<run>``. The client has confirmed the plan."""
    run = open_run(box.root, request.run)
    arguments = ["cleanup", "--training-run", run.name, *option(request, "keep"), *option(request, "to"), "--yes"]
    return _start(box, "cleanup", run.name, arguments, request, record)


def verify_backup(box: BoxContext, request: VerifyBackupRequest, record: RequestRecord) -> JobReply:
    """Read the backup of a run back in a session ``verify_<run>``."""
    run = open_run(box.root, request.run)
    return _start(box, "verify", run.name, ["verify-backup", run.name, *option(request, "to")], request, record)


def _start(
    box: BoxContext, command: str, run: str, arguments: list[str], request: Any, record: RequestRecord
) -> JobReply:
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


def plan_back_up_all(box: BoxContext, request: PlanBackUpAllRequest) -> PlanBackUpAllReply:
    """What a backup of everything would send. Raises RemoteError, with the engine's code."""
    plan = ask_engine(box, ["backup-all", *option(request, "to"), "--dry-run"], STORE_WAIT_S)
    done, failed = (_rows(plan.get(key)) if isinstance(plan, dict) else _rows(plan) for key in ("done", "failed"))
    sent = [row for row in done if (to_float(row.get("bytes_sent")) or 0) > 0]
    runs = sum(row.get("kind") == KIND.rstrip(".") for row in sent)
    return {
        "runs": runs,
        "others": len(sent) - runs,
        "bytes": sum(to_float(row["bytes_sent"]) or 0.0 for row in sent),
        "problems": [_text(f"{row.get('name')}: {row.get('reason')}", MAX_TEXT) for row in failed[:MAX_LISTED]],
    }


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


GOOD_S = 600.0
"""Backups may be removed from the store, where no file of this box changes."""
LIVE_GOOD_S = 30.0
"""A process that the engine found may end without changing a file."""
PAUSE_S = 15.0
AGAIN_S = 10.0
SHARE = 20.0
"""The engine is at work for at most one part in this many of the time, and asked again PAUSE_S later at the earliest;
likewise looks at the root, AGAIN_S."""


@dataclass(frozen=True)
class _Known:
    """The last answer of the engine."""

    asked_at: float
    """By the monotonic clock, before the engine was started."""
    cost_s: float
    signature: str
    """Of the root before and after; "" where these differ."""
    verdict: dict[str, Any] | None
    error: RemoteError | None


class _Checker:
    """Asks the engine about one root; one request after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def answer(self, box: BoxContext, *, now: bool) -> SafeToTerminateReply:
        with self._lock:
            clock = box.clock
            began = clock.monotonic()
            look = look_at(box.root)
            again_s = max(AGAIN_S, SHARE * (clock.monotonic() - began))
            if look.live and not now:
                verdict = {"safe": False, "kept": "", "obstacles": [*look.live]}
                return _reply(verdict, clock.monotonic() - began, again_s, whole=False)
            known = self._known
            if known is None or now or not self._holds(known, look.signature, clock):
                if known is not None and not now and began - known.asked_at < max(PAUSE_S, SHARE * known.cost_s):
                    return _reply(_CHANGED, clock.monotonic() - known.asked_at, again_s, whole=False)
                known = self._known = _ask(box, look.signature)
        if known.error is not None:
            raise known.error
        assert known.verdict is not None
        return _reply(known.verdict, clock.monotonic() - known.asked_at, again_s, whole=True)

    @staticmethod
    def _holds(known: _Known, signature: str, clock: Clock) -> bool:
        verdict = known.verdict or {"obstacles": []}
        is_live = any(row.get("code") == "live" for row in verdict["obstacles"])
        good_s = max(LIVE_GOOD_S if is_live else GOOD_S, SHARE * known.cost_s)
        return known.signature == signature and clock.monotonic() - known.asked_at < good_s


_CHANGED = {
    "safe": False,
    "kept": "",
    "obstacles": [
        {"kind": "", "name": "this box", "code": "changed", "reason": "it changed since it was checked", "command": ""}
    ],
}


def _ask(box: BoxContext, before: str) -> _Known:
    """Ask the engine, between two looks at the root."""
    began = box.clock.monotonic()
    verdict, error = None, None
    try:
        option = ["--persistent"] if box.settings.persistent else []
        verdict = _checked(ask_engine(box, ["safe-to-terminate", *option], STORE_WAIT_S))
    except RemoteError as refusal:
        error = refusal
    after = look_at(box.root)
    is_same = after.signature == before
    if verdict is not None and (after.live or not is_same):
        rows = [*after.live, *verdict["obstacles"]] or _CHANGED["obstacles"]
        verdict = {"safe": False, "kept": "", "obstacles": rows}
    return _Known(began, box.clock.monotonic() - began, before if is_same else "", verdict, error)


def _checked(answer: Any) -> dict[str, Any]:
    """The engine's verdict. Raises RemoteError for one that says two things at once."""
    safe = answer.get("safe") if isinstance(answer, dict) else None
    kept, rows = (answer.get(key) for key in ("kept", "obstacles")) if isinstance(safe, bool) else (None, None)
    if not isinstance(kept, str) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RemoteError("no_answer", "grpo-train safe-to-terminate did not print a verdict")
    if safe and kept != "mount" and (kept != "backup" or rows):
        raise RemoteError("no_answer", "grpo-train safe-to-terminate contradicts itself")
    return {"safe": safe, "kept": kept, "obstacles": rows}


def _reply(verdict: dict[str, Any], age_s: float, again_s: float, *, whole: bool) -> SafeToTerminateReply:
    rows = verdict["obstacles"]
    return {
        "safe": verdict["safe"],
        "kept": verdict["kept"],
        "obstacles": rows[:MAX_LISTED],
        "count": len(rows),
        "whole": whole,
        "age_s": age_s,
        "again_s": again_s,
    }


_checkers: dict[Path, _Checker] = {}


def safe_to_terminate(box: BoxContext, request: SafeToTerminateRequest) -> SafeToTerminateReply:
    """Whether this box can be terminated. Raises RemoteError, with the engine's code.

    To find out whether a store can be written and is on another disk, the engine writes a marker and removes it, which
    a client that only reads does not have done.
    """
    if box.settings.readonly:
        raise RemoteError("read_only", "not checked with --readonly: the check writes a marker to the store")
    return _checkers.setdefault(box.root, _Checker()).answer(box, now=request.now)
