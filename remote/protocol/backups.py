"""Requests about backups: the engine's commands that run in tmux sessions, and what it answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.fields import Count, Label, Name, Quantity
from remote.protocol.intake import Rule
from remote.protocol.jobs import CommandRequest, Text
from remote.protocol.jobs import Count as Positive

Step: TypeAlias = Annotated[int, Rule("an integer of 0 or more", lambda value: value >= 0)]
Row: TypeAlias = dict[str, Any]


# --------------------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class BackUpRequest(CommandRequest):
    """Backs up ``run`` and its evaluations."""

    run: Text
    steps: str = ""
    """``all``, ``latest``, ``final`` or steps such as ``10,20``; "" = all."""
    to: str = ""
    """A destination of the box's backup.yaml; "" = the first."""


@dataclass(frozen=True)
class RestoreRequest(CommandRequest):
    """Restores a run from a backup, or adds missing checkpoints to one that is on the box."""

    run: Text
    """NAME, or NAME--IDENTITY where a destination holds several of that name."""
    source: str = ""
    """A destination; "" = the first."""
    snapshot: Positive | None = None
    """None = the newest."""
    steps: str = ""
    """``all``, ``latest``, ``logs`` or steps such as ``10,20``; "" = all."""
    as_name: str = ""
    """Restore a separate run of this name."""
    resume: bool = False
    """Then resume it, in the run's session."""


@dataclass(frozen=True)
class ArchiveRequest(CommandRequest):
    """Archives a finished run, or a copy of one checkpoint, after a proven backup."""

    run: Text
    step: Step | None = None
    note: str = ""
    to: str = ""


@dataclass(frozen=True)
class CleanUpRequest(CommandRequest):
    """Removes checkpoints that a backup holds, each after it was read back."""

    run: Text
    keep: Positive = 1
    """Number of newest checkpoints to keep."""
    to: str = ""


@dataclass(frozen=True)
class VerifyBackupRequest(CommandRequest):
    """Reads the backup of a run back, with its evaluations."""

    run: Text
    to: str = ""


@dataclass(frozen=True)
class ListBackupsRequest:
    """What a destination holds."""

    source: str = ""
    """"" = the first destination."""


@dataclass(frozen=True)
class StoredHistoryRequest:
    """The history of the runs in a destination, a page at a time."""

    source: Text
    after: str = ""
    """``next`` of the page before; "" = read what is new in the destination, and return the first page."""


@dataclass(frozen=True)
class PlanCleanupRequest:
    """What a cleanup would remove."""

    run: Text
    keep: Positive = 1
    to: str = ""


# ---------------------------------------------------------------------------------------------------------- replies


class ListDestinationsReply(TypedDict):
    destinations: list[Row]
    """DestinationRow; the first is the default."""


class ListBackupsReply(TypedDict):
    backups: list[Row]
    """BackupRow."""


class StoredHistoryReply(TypedDict):
    records: list[Row]
    """RecordRow, by identity."""
    next: Label
    """"" = the last page."""
    count: Count
    """Of all records of the destination that are known to the box."""
    complete: bool
    """False: there was no time for all of its runs; ask for the first page again to continue."""
    problems: list[str]
    """Runs that cannot be read, with the reason."""


class PlanCleanupReply(TypedDict):
    run: Label
    host: Label
    destination: Label
    store: str
    """URL of the destination."""
    snapshot: Count
    read_back: Count
    """The newest snapshot that was read back in whole; 0 = none."""
    read_back_age_s: Quantity | None
    """Seconds since then, by the store's clock."""
    removed: list[Row]
    """PlannedRow: what would be removed."""
    kept: list[Row]
    """PlannedRow: what stays, with the reason."""


# ------------------------------------------------------------------------------------------------------------- rows


class _Destination(TypedDict):
    name: Name


class DestinationRow(_Destination, total=False):
    """A destination of the box's backup.yaml."""

    kind: Label
    """``folder`` or ``s3``."""
    where: str


class SnapshotRow(TypedDict, total=False):
    number: Count
    state: Label
    """``complete``, ``marked`` (complete, to be removed by a prune), ``incomplete`` or ``damaged``."""
    reason: str
    age_s: Quantity
    steps: list[Count]
    bytes: Count
    run_state: Label


class _Backup(TypedDict):
    name: Name
    identity: Name


class BackupRow(_Backup, total=False):
    """A run in a destination."""

    kind: Label
    """``training_runs``, ``eval_runs``, ``sweeps``, …"""
    parent: Label
    same_disk: bool | None
    here: bool
    """Whether the run is below the root of the box."""
    snapshots: list[SnapshotRow]
    """Newest first."""
    error: str


class _Planned(TypedDict):
    path: Name


class PlannedRow(_Planned, total=False):
    """A checkpoint in the plan of a cleanup."""

    step: Count
    bytes: Count
    reason: str


class _Record(TypedDict):
    identity: Name
    name: Name


class RecordRow(_Record, total=False):
    """What is kept of a run in the history, see :mod:`grpo_train.history.record`."""

    root: str
    """URL of the store."""
    summary: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    backup: Label
    parent: Label
