"""Requests about backups, about the room that checkpoints take, and whether a box can be terminated."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.check import Count, Label, Name, Positive, Quantity, Row, Text, Time, ValueRule
from remote.protocol.jobs import CommandRequest
from remote.protocol.record import record

Step: TypeAlias = Annotated[int, ValueRule("an integer of 0 or more", lambda value: value >= 0)]


ALL_RUNS = "all-runs"
"""In place of a run's name, for the backup of everything."""

# --------------------------------------------------------------------------------------------------------- requests


@record(frozen=True)
class BackUpRequest(CommandRequest):
    """Backs up ``run`` and its evaluations."""

    run: Text
    steps: str = ""
    """``all``, ``latest``, ``final`` or steps such as ``10,20``; "" = all."""
    to: str = ""
    """A destination of the box's backup.yaml; "" = the first."""


@record(frozen=True)
class BackUpAllRequest(CommandRequest):
    """Backs up every run, evaluation and sweep of the root; what is in the destination already is not sent."""

    to: str = ""


@record(frozen=True)
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


@record(frozen=True)
class ArchiveRequest(CommandRequest):
    """Archives a finished run, or a copy of one checkpoint, after a proven backup."""

    run: Text
    step: Step | None = None
    note: str = ""
    to: str = ""


@record(frozen=True)
class CleanUpRequest(CommandRequest):
    """Removes checkpoints that a backup holds, each after it was read back."""

    run: Text
    keep: Positive = 1
    """Number of newest checkpoints to keep."""
    to: str = ""


@record(frozen=True)
class VerifyBackupRequest(CommandRequest):
    """Reads the backup of a run back, with its evaluations."""

    run: Text
    to: str = ""


@record(frozen=True)
class ListBackupsRequest:
    """What a destination holds."""

    source: str = ""
    """"" = the first destination."""


@record(frozen=True)
class StoredHistoryRequest:
    """The history of the runs in a destination, a page at a time."""

    source: Text
    after: str = ""
    """``next`` of the page before; "" = read what is new in the destination, and return the first page."""


@record(frozen=True)
class PlanBackUpAllRequest:
    """What a backup of everything would send."""

    to: str = ""


@record(frozen=True)
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


class PlanBackUpAllReply(TypedDict):
    runs: Count
    """Runs of which something would be sent …"""
    others: Count
    """… and evaluations and sweeps."""
    bytes: Quantity
    problems: list[str]
    """What could not be looked at, and why."""


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


MAX_SIZES = 500
"""Runs of a ``checkpoint_sizes`` reply, the largest ones."""
MAX_SPARE = 5_000
"""Checkpoints of a ``spare_checkpoints`` reply."""


@record(frozen=True)
class CheckpointSizesRequest:
    """Bytes of the checkpoints of each run. A request measures for a bounded time; the next one continues."""


@record(frozen=True)
class SpareCheckpointsRequest:
    """The checkpoints that nothing needs."""


class CheckpointSizesReply(TypedDict):
    sizes: list[Row]
    """SizeRow, the largest first."""
    runs: Count
    """Runs with checkpoints, among those measured."""
    checkpoints: Count
    bytes: Count
    """Of all runs that are measured."""
    day_bytes: Count
    """Of those saved in the last 24 hours."""
    unmeasured: Count
    """Runs that are not measured yet."""


class SpareCheckpointsReply(TypedDict):
    spare: list[Row]
    """SpareRow, by run and step."""
    more: Count
    """Checkpoints left out of a list that is too long."""
    problems: list[str]
    """Why checkpoints of a run, or of all runs, are not listed."""


class _Size(TypedDict):
    run: Name


class SizeRow(_Size, total=False):
    """The checkpoints of a run."""

    count: Count
    bytes: Count


class _Spare(TypedDict):
    run: Name


class SpareRow(_Spare, total=False):
    """A checkpoint that nothing needs."""

    step: Count
    bytes: Count
    saved_at: Time
    evaluated: Label
    """Its accuracy on each dataset; "" where it is not evaluated."""


MAX_LISTED = 500
"""Obstacles of a reply."""


@record(frozen=True)
class SafeToTerminateRequest:
    """Whether the box can be terminated without losing anything."""

    now: bool = False
    """Ask the engine even while something is live, or where nothing changed since it was asked last."""


class SafeToTerminateReply(TypedDict):
    safe: bool
    kept: Label
    """``backup``, ``mount`` (on the mount only, no second copy), or "" where it is not safe."""
    obstacles: list[dict[str, Any]]
    """ObstacleRow."""
    count: Count
    """Obstacles, with those that are not listed."""
    whole: bool
    """False while something is live: only that is listed then."""
    age_s: Quantity
    """Seconds since the engine was asked, or since the box was looked at."""
    again_s: Quantity
    """Seconds after which the box may be asked again at little cost; an answer is old after some of these."""


class _Obstacle(TypedDict):
    name: Name


class ObstacleRow(_Obstacle, total=False):
    """What would be lost with the box, or cut off."""

    kind: Label
    code: Label
    """As in :mod:`grpo_train.backup.terminate`, or ``changed``: files changed since the engine was asked."""
    reason: str
    command: str
    """What ends it; "" where no single command does."""
