"""What a box sends, field by field: frames, facts about the host, and the rows of each list. Any field may be missing
except a row's name.

:mod:`remote.gate` admits what has these types. A row that has not is replaced by one that says so, see :data:`ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.backups import BackupRow, DestinationRow, ObstacleRow, PlannedRow, RecordRow, SizeRow, SpareRow
from remote.protocol.box import DiskRow, GpuHistoryRow
from remote.protocol.check import Count, Label, Metric, Name, Quantity, Time, ValueRule
from remote.protocol.jobs import StageRow
from remote.protocol.logs import LogFile, LogLine
from remote.protocol.record import record
from remote.protocol.runs import RunFacts, RunSummary

UNREADABLE = "unreadable"
"""State of a run, and code of its error, that cannot be read."""


# ---------------------------------------------------------------------------------------------------------- frames


Id: TypeAlias = Annotated[int, ValueRule("an integer from 0 to 2^62", lambda value: 0 <= value <= 2**62)]


class _Numbered(TypedDict):
    id: Id


class _Clock(TypedDict, total=False):
    time: Quantity
    """Seconds since the epoch on the box's clock; version 0.1.0 of the agent does not send it."""


class _Pong(_Clock):
    n: Id


class _Bytes(TypedDict, total=False):
    text: str
    base64: str
    head: list[Any]


class _Data(_Numbered, _Bytes):
    offset: Id


FRAMES: dict[str, type] = {
    "pong": _Pong,
    "response": _Numbered,
    "update": _Numbered,
    "data": _Data,
    "rotated": _Numbered,
    "closed": _Numbered,
}
"""Frames of the agent after its hello, without ``result``, ``value`` and ``error``."""


class HostFacts(TypedDict, total=False):
    """``host`` of a hello."""

    name: Label
    user: Label
    python: Label
    system: Label
    cpu_count: Count | None
    gpus: Count
    tmux: bool
    root: str
    repo: str
    pid: Count
    machine: Label
    """16 hex digits that only this machine has, as long as it is not installed anew; "" if it has none."""
    time: Quantity
    """Seconds since the epoch on the box's clock."""


# ------------------------------------------------------------------------------------------------------------ rows


class _Session(TypedDict):
    name: Name


class Session(_Session, total=False):
    """A tmux session."""

    run: Label
    created: Count
    attached: Count
    dead: bool
    exit_status: Count | None
    signal: Label


class GpuProcess(TypedDict, total=False):
    """A process on a GPU."""

    pid: Count
    memory_mib: Quantity | None
    run: Label | None
    name: Label | None
    rank: Count | None


class Gpu(TypedDict, total=False):
    """A sample of one GPU."""

    index: Count
    name: Label
    utilization_percent: Quantity | None
    memory_used_mib: Quantity | None
    memory_total_mib: Quantity | None
    power_w: Quantity | None
    temperature_c: Quantity | None
    processes: list[GpuProcess] | None
    """None where they could not be read."""
    free: bool | None
    """Whether nothing uses it, seen or not; None where the driver does not report enough to know."""
    problem: Label
    """Why it cannot be used, such as ``GPU is lost``."""


CHECK_LEVELS = ("ok", "warning", "error")
"""An error is what keeps the box from training."""
CheckLevel: TypeAlias = Annotated[
    str, ValueRule(f"one of {', '.join(map(repr, CHECK_LEVELS))}", lambda value: value in CHECK_LEVELS)
]


class _Check(TypedDict):
    name: Name


class Check(_Check, total=False):
    """A finding of ``doctor``."""

    ok: bool
    level: CheckLevel
    """``ok`` is true for the level "ok" alone."""
    detail: str
    hint: str
    fix: str
    """One command for a shell on the box that fixes it; "" where none does."""


class _Checkpoint(TypedDict):
    step: Count


class Checkpoint(_Checkpoint, total=False):
    """A checkpoint of a run."""

    complete: bool
    problem: str | None
    aliases: list[Label]
    path: str
    saved_at: Time


class _Evaluation(TypedDict):
    name: Name


class Evaluation(_Evaluation, total=False):
    """An evaluation of a run, or of a model without one."""

    state: Label
    dataset: Label
    model: str
    """Of a model without a run: ``OWNER/NAME@COMMIT`` or a directory."""
    started_at: Time
    """Of its newest start."""
    updated_at: Time
    target: Label
    """What is evaluated now, as ``step_10``: ``done`` of ``total`` samples."""
    done: Count
    total: Count
    problem: str
    """Why its status cannot be read."""
    metrics: list[dict[str, str | None]]
    """Rows of its table, as text."""


class _Comparison(TypedDict):
    name: Name
    run: Name
    dataset: Label
    step: Count
    n: Count
    """Problems that both were evaluated on."""
    difference: Quantity
    """In accuracy, with its 95 % interval."""
    low: Quantity
    high: Quantity


class ComparisonRow(_Comparison, total=False):
    """An evaluated step of a run against the same step of another."""

    accuracy: Quantity
    gained: Count
    lost: Count
    p_value: Quantity


class Event(TypedDict, total=False):
    """An event of a run."""

    step: Count | None
    time: Time
    event: Label
    from_step: Count | None
    by: str | None
    """Who asked for it."""
    device: str | None
    mode: str | None
    """Of its tracking."""
    url: str | None
    error: str | dict[str, Any] | None
    """Why a tracker failed; of a crash, what a summary has."""
    changes: dict[str, Any] | None
    """Of a resume: ``section.key`` to the value before and after."""
    task: str | None
    """Whose level was raised, …"""
    level: Count | None
    """… and to which one."""
    op: str | None
    """What an assistant asked for, …"""
    why: str | None
    grant: str | None
    """… under which account, and what it may cost."""
    dollars: Quantity | None


class _Config(TypedDict):
    name: Name


class ConfigFile(_Config, total=False):
    """A training config on the box."""

    size: Count
    modified: Time


class _Weights(TypedDict):
    name: Name
    path: str


class Weights(_Weights, total=False):
    """An adapter or model directory."""

    kind: Label
    modified: Time


class _Series(TypedDict):
    metric: Name
    columns: str
    """Packed; :class:`remote.protocol.logs.Columns` once unpacked."""


class SeriesRow(_Series, total=False):
    """A metric of a ``series`` reply."""

    last: Metric | None
    """Value of the last row that has the metric."""
    last_step: Quantity | None


class _MetricRow(TypedDict):
    name: Name


class MetricRow(_MetricRow, total=False):
    """A metric of a run, of a ``metrics`` reply."""

    last: Metric | None
    last_step: Quantity | None
    count: Count
    """Finite values."""
    gaps: Count
    """NaN and infinite values."""
    min: float | None
    min_step: Quantity | None
    max: float | None
    max_step: Quantity | None
    constant: bool
    unusual: Quantity
    """Robust z-score of the last 20 values against the run."""


class _Sample(TypedDict):
    offset: Count


class SampleRow(_Sample, total=False):
    """A completion of ``rollouts.jsonl``."""

    step: Quantity | None
    group: Count | None
    sample: Count | None
    problem: Count | None
    """Its number in the task's data."""
    reward: Metric | None
    advantage: Metric | None
    length: Count | None
    correct: bool | None
    formatted: bool | None
    flexible: bool | None
    truncated: bool | None
    discarded: bool | None
    """No step learned from it (``rollout.filter_groups``)."""
    reason: str | None
    excerpt: str
    prompt: str
    prompt_length: Count
    """Characters, with those that were cut."""
    completion: str
    completion_length: Count
    answer: str | None
    gold: str | None
    role: str | None
    task: str | None
    """Its task in a mixture."""
    time: str | None
    rewards: dict[str, Metric | None]
    facts: dict[str, Any]
    tokens: str
    """:mod:`grpo_train.run_dir.tokens`; where they were kept, and with texts. Places are those of ``completion``."""
    tokens_step: Quantity
    """The update whose pass gave their values."""
    unreadable: str
    """Why there is nothing else."""


class _Group(TypedDict):
    group: Quantity


class GroupRow(_Group, total=False):
    """A prompt of a step."""

    prompt: str
    """At most 200 characters: without what all prompts of the step begin and end with, or else the last ones."""


class LevelChangeRow(TypedDict):
    """Where a metric leaves its level, of a ``level_changes`` reply."""

    x: Quantity
    """On the axis of the request."""
    step: Quantity
    before: float
    """The medians of the values before the row and from it on."""
    after: float


class ProblemChangeRow(TypedDict):
    """A problem that a step samples again, of a ``problem_changes`` reply."""

    problem: Count
    group: Count | None
    prompt: str
    """As in :class:`GroupRow`."""
    now: float
    """Mean rewards."""
    before: float
    before_step: Quantity
    """The last step that sampled it before."""


@record(frozen=True)
class RowKind:
    """Rows of one list."""

    type: type
    key: str
    """The field that names a row."""
    unreadable: Callable[[str, str], dict[str, Any]]
    """The row that replaces one that cannot be read, from its name and the reason."""
    unique: bool = False
    """Whether a name stands for one row, as the app selects it by its name."""


def unreadable_run(run: str, reason: str) -> dict[str, Any]:
    """The row of a run that cannot be read."""
    return {
        "run": run, "state": UNREADABLE, "layout": "run", "step": 0, "error": {"code": UNREADABLE, "summary": reason},
    }  # fmt: skip


def _unreadable_check(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "ok": False, "detail": f"the answer cannot be read: {reason}"}


def _unreadable_checkpoint(name: str, reason: str) -> dict[str, Any]:
    return {"step": None, "problem": f"unreadable: {reason}"}


def _unreadable_place(name: str, reason: str) -> dict[str, Any]:
    return {"offset": None, UNREADABLE: reason}


def _named(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, UNREADABLE: reason}


ROWS: dict[str, RowKind] = {
    "runs": RowKind(RunSummary, "run", unreadable_run, unique=True),
    "sessions": RowKind(Session, "name", _named, unique=True),
    "facts": RowKind(RunFacts, "run", lambda name, reason: {"run": name, UNREADABLE: reason}, unique=True),
    "gpus": RowKind(Gpu, "name", _named),
    "checks": RowKind(Check, "name", _unreadable_check),
    "checkpoints": RowKind(Checkpoint, "step", _unreadable_checkpoint),
    "comparisons": RowKind(ComparisonRow, "name", _named),
    "evaluations": RowKind(Evaluation, "name", _named),
    "baselines": RowKind(Evaluation, "name", _named),
    "events": RowKind(Event, "event", lambda name, reason: {"event": UNREADABLE, UNREADABLE: reason}),
    "configs": RowKind(ConfigFile, "name", _named, unique=True),
    "series": RowKind(SeriesRow, "metric", lambda name, reason: {"metric": name, UNREADABLE: reason}),
    "metrics": RowKind(MetricRow, "name", _named, unique=True),
    "samples": RowKind(SampleRow, "offset", _unreadable_place),
    "matches": RowKind(SampleRow, "offset", _unreadable_place),
    "groups": RowKind(GroupRow, "group", lambda name, reason: {"group": None, UNREADABLE: reason}),
    "levels": RowKind(LevelChangeRow, "step", lambda name, reason: {"step": None, UNREADABLE: reason}),
    "repeated": RowKind(ProblemChangeRow, "problem", lambda name, reason: {"problem": None, UNREADABLE: reason}),
    "files": RowKind(LogFile, "path", lambda name, reason: {"path": name, UNREADABLE: reason}, unique=True),
    "lines": RowKind(LogLine, "offset", _unreadable_place),
    "disks": RowKind(DiskRow, "path", lambda name, reason: {"path": name, UNREADABLE: reason}),
    "sizes": RowKind(SizeRow, "run", lambda name, reason: {"run": name, UNREADABLE: reason}),
    "spare": RowKind(SpareRow, "run", lambda name, reason: {"run": name, UNREADABLE: reason}),
    "histories": RowKind(GpuHistoryRow, "index", lambda name, reason: {"index": -1, UNREADABLE: reason}),
    "destinations": RowKind(DestinationRow, "name", _named, unique=True),
    "backups": RowKind(BackupRow, "name", lambda name, reason: {"name": name, "identity": "?", UNREADABLE: reason}),
    "records": RowKind(RecordRow, "identity", lambda name, reason: {"identity": name, UNREADABLE: reason}),
    "removed": RowKind(PlannedRow, "path", lambda name, reason: {"path": name, UNREADABLE: reason}),
    "kept": RowKind(PlannedRow, "path", lambda name, reason: {"path": name, UNREADABLE: reason}),
    "edits": RowKind(StageRow, "stage", lambda name, reason: {"stage": name, UNREADABLE: reason}),
    "obstacles": RowKind(ObstacleRow, "name", _named),
    "weights": RowKind(Weights, "name", lambda name, reason: {"name": name, "path": name, "kind": UNREADABLE}),
}
"""The lists of replies and topics, by the name of their field in every reply: rows of another kind have another name.
:mod:`remote.gate` needs nothing else."""
