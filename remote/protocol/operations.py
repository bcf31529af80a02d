"""The table of operations: each request's parameters, its reply, and whether it changes state.

Agent, client and app all read this table. To add a request: add its types and a row here, and a handler in
:mod:`remote.agent.operations`.

A request that changes state has an ``idempotency_key``: a repeated key changes nothing and gets the first answer, so a
request with a key may be sent again after a broken link. ``recall`` asks what became of it, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.checkpoints import (
    CheckpointSizesReply,
    CheckpointSizesRequest,
    SpareCheckpointsReply,
    SpareCheckpointsRequest,
)
from remote.protocol.host import (
    BoxFactsReply,
    BoxFactsRequest,
    GpuHistoryReply,
    GpuHistoryRequest,
    unpack_gpu_history,
)
from remote.protocol.index import (
    MetricsReply,
    MetricsRequest,
    RolloutStepReply,
    RolloutStepRequest,
    RolloutStepsReply,
    RolloutStepsRequest,
    SamplesReply,
    SamplesRequest,
    SearchRolloutsReply,
    SearchRolloutsRequest,
    SeriesReply,
    SeriesRequest,
    ShowStepReply,
    ShowStepRequest,
    unpack_rollout_steps,
    unpack_series,
)
from remote.protocol.intake import Rule
from remote.protocol.listed_runs import NoteReply, NoteRequest, RunFactsReply, RunFactsRequest
from remote.protocol.logs import (
    LogBytesReply,
    LogBytesRequest,
    LogFilesReply,
    LogFilesRequest,
    ReadLogReply,
    ReadLogRequest,
    SearchLogReply,
    SearchLogRequest,
    unpack_bytes,
)
from remote.protocol.messages import RemoteError
from remote.protocol.report import ReportReply, ReportRequest, unpack_page

MAX_COMPARED = 32
"""Runs that one is compared with."""
Text: TypeAlias = Annotated[str, Rule("a non-empty string", bool)]
Count: TypeAlias = Annotated[int, Rule("an integer of 1 or more", lambda value: value >= 1)]
Fraction: TypeAlias = Annotated[float, Rule("a number above 0 and at most 1", lambda value: 0 < value <= 1)]
Others: TypeAlias = Annotated[
    list[Text], Rule(f"a list of 1 to {MAX_COMPARED} run names", lambda value: 1 <= len(value) <= MAX_COMPARED)
]
Steps: TypeAlias = Annotated[list[int], Rule("a list of at most 64 steps", lambda value: len(value) <= 64)]
NonNegative: TypeAlias = Annotated[float, Rule("a number of 0 or more", lambda value: value >= 0)]
Row: TypeAlias = dict[str, Any]


# --------------------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class NoParameters:
    """A request without parameters."""


@dataclass(frozen=True)
class ShowRunRequest:
    run: Text


@dataclass(frozen=True)
class CompareEvaluationsRequest:
    """Evaluated steps of ``others`` against the same steps of ``run``, on the problems that both have."""

    run: Text
    others: Others
    steps: Steps = field(default_factory=list)
    """Empty = all that are evaluated."""


@dataclass(frozen=True)
class ReadConfigRequest:
    name: Text
    """A name that ``list_configs`` lists."""


@dataclass(frozen=True)
class CheckWeightsRequest:
    path: Text
    """A directory on the box, absolute or relative to the root."""


@dataclass(frozen=True)
class CapturePaneRequest:
    session: Text
    lines: Count = 200


@dataclass(frozen=True)
class LaunchRequest:
    config_text: Text
    config_name: str = ""
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``, over the config's values."""
    run_name: str = ""
    """"" = named after the time."""
    ckpt: str = ""
    """Starting weights: an adapter or model directory, absolute or relative to the root."""
    nproc: Count | None = None
    by: str = ""
    """Who asks, for the run's records."""
    dry_run: bool = False
    idempotency_key: str = ""
    recall: bool = False


@dataclass(frozen=True)
class ResumeRequest:
    run: Text
    from_step: int | str = "latest"
    additional_steps: Count | None = None
    nproc: Count | None = None
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``. Version 0.1.0 of the engine knows neither this nor ``nproc``."""
    dry_run: bool = False
    idempotency_key: str = ""
    recall: bool = False


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluates checkpoints of ``run``, or the one at ``ckpt_path``."""

    run: str = ""
    steps: list[int | str] | int | str = ""
    """"" = every complete checkpoint."""
    eval_dataset: str = ""
    eval_path: str = ""
    ckpt_path: str = ""
    name: str = ""
    split: str = ""
    subset_frac: Fraction | None = None
    temperature: NonNegative | None = None
    """0 = greedy."""
    batch_size: Count | None = None
    max_completion_length: Count | None = None
    num_samples: Count | None = None
    num_problems: Count | None = None
    nproc: Count | None = None
    timeout: Count | None = None
    dry_run: bool = False
    idempotency_key: str = ""
    recall: bool = False

    def __post_init__(self) -> None:
        if not self.run and not self.ckpt_path:
            raise RemoteError("bad_request", "'run' or 'ckpt_path' is required")


@dataclass(frozen=True)
class BackUpRequest:
    """Backs up ``run`` and its evaluations to the first destination of the box's backup.yaml."""

    run: Text
    dry_run: bool = False
    idempotency_key: str = ""
    recall: bool = False


@dataclass(frozen=True)
class StopRequest:
    run: Text
    by: str = ""
    idempotency_key: str = ""
    recall: bool = False


@dataclass(frozen=True)
class KillRequest:
    """Ends ``run``, or an evaluation by its ``session``."""

    run: str = ""
    session: str = ""
    by: str = ""
    patience_s: NonNegative | None = None
    """Seconds between SIGTERM and SIGKILL; None = 15, which is also the maximum."""
    idempotency_key: str = ""
    recall: bool = False

    def __post_init__(self) -> None:
        if not self.run and not self.session:
            raise RemoteError("bad_request", "'run' or 'session' is required")


# ---------------------------------------------------------------------------------------------------------- replies


class DoctorReply(TypedDict):
    checks: list[Row]
    """name, ok, detail, hint."""
    ok: bool


class ListRunsReply(TypedDict):
    runs: list[Row]
    """As the ``runs`` topic has them."""


class ShowRunReply(TypedDict):
    run: str
    layout: str
    """``run``, or ``rl_runs`` for the older layout, which can only be listed and evaluated."""
    path: str
    """Relative to the root."""
    summary: Row
    status: Row
    launch: Row
    config_text: str
    checkpoints: list[Row]
    """step, complete, problem, aliases, path, saved_at."""
    evaluations: list[Row]
    events: list[Row]
    superseded: dict[str, list[Any]]
    """Log file to the byte ranges that a resume from an earlier step replaced."""


class CompareEvaluationsReply(TypedDict):
    comparisons: list[Row]
    """ComparisonRow."""
    problems: list[str]
    """Why a step is not compared."""


class ListConfigsReply(TypedDict):
    configs: list[Row]
    """name, size, modified."""
    folder: str


class ReadConfigReply(TypedDict):
    name: str
    text: str


class ListTasksReply(TypedDict):
    tasks: dict[str, str]
    """Name to description."""


class ListWeightsReply(TypedDict):
    weights: list[Row]
    """name, path (relative to the root), kind (``adapter`` or ``model``), modified."""


class CheckWeightsReply(TypedDict):
    path: str
    kind: str
    """``adapter``, ``model``, or "" where the directory cannot be used."""
    problem: str


class ListSessionsReply(TypedDict):
    sessions: list[Row]


class CapturePaneReply(TypedDict):
    session: str
    text: str


class JobReply(TypedDict):
    run: str
    session: str
    argv: list[str]
    engine: str
    """Why this engine command."""
    started: bool
    """False for a dry run, and for a repeated idempotency key."""


class LaunchReply(JobReply):
    shell_argv: list[str]
    """The equivalent command for a shell on the box."""


class ResumeReply(JobReply):
    step: int


class _StopReply(TypedDict):
    run: str
    state: str


class StopReply(_StopReply, total=False):
    note: str
    """What differs from an ordinary stop: a full disk."""


class _KillReply(TypedDict):
    left: list[int]
    """Processes that even SIGKILL did not end."""
    forced: bool
    """SIGTERM was not enough."""


class KillReply(_KillReply, total=False):
    run: str
    state: str
    session: str
    note: str
    """Why the end is not recorded yet: a full disk."""


# ------------------------------------------------------------------------------------------------------------ table


@dataclass(frozen=True)
class Operation:
    """One row of the table."""

    name: str
    request: type
    reply: type
    changes_state: bool = False
    unpack: Callable[[Row], Row] | None = None
    """Unpacks a reply whose fields have passed the gate. Raises ValueError."""

    def changes(self, params: Mapping[str, Any]) -> bool:
        """Whether a request with these parameters changes anything on the box; a dry run does not."""
        return self.changes_state and not (params.get("dry_run") and "dry_run" in self.request.__dataclass_fields__)


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("doctor", NoParameters, DoctorReply),
        Operation("list_runs", NoParameters, ListRunsReply),
        Operation("show_run", ShowRunRequest, ShowRunReply),
        Operation("compare_evaluations", CompareEvaluationsRequest, CompareEvaluationsReply),
        Operation("report", ReportRequest, ReportReply, unpack=unpack_page),
        Operation("run_facts", RunFactsRequest, RunFactsReply),
        Operation("list_configs", NoParameters, ListConfigsReply),
        Operation("read_config", ReadConfigRequest, ReadConfigReply),
        Operation("list_tasks", NoParameters, ListTasksReply),
        Operation("list_weights", NoParameters, ListWeightsReply),
        Operation("check_weights", CheckWeightsRequest, CheckWeightsReply),
        Operation("list_sessions", NoParameters, ListSessionsReply),
        Operation("capture_pane", CapturePaneRequest, CapturePaneReply),
        Operation("series", SeriesRequest, SeriesReply, unpack=unpack_series),
        Operation("metrics", MetricsRequest, MetricsReply),
        Operation("show_step", ShowStepRequest, ShowStepReply),
        Operation("rollout_steps", RolloutStepsRequest, RolloutStepsReply, unpack=unpack_rollout_steps),
        Operation("rollout_step", RolloutStepRequest, RolloutStepReply),
        Operation("samples", SamplesRequest, SamplesReply),
        Operation("search_rollouts", SearchRolloutsRequest, SearchRolloutsReply),
        Operation("log_files", LogFilesRequest, LogFilesReply),
        Operation("read_log", ReadLogRequest, ReadLogReply),
        Operation("search_log", SearchLogRequest, SearchLogReply),
        Operation("log_bytes", LogBytesRequest, LogBytesReply, unpack=unpack_bytes),
        Operation("box_facts", BoxFactsRequest, BoxFactsReply),
        Operation("checkpoint_sizes", CheckpointSizesRequest, CheckpointSizesReply),
        Operation("spare_checkpoints", SpareCheckpointsRequest, SpareCheckpointsReply),
        Operation("gpu_history", GpuHistoryRequest, GpuHistoryReply, unpack=unpack_gpu_history),
        Operation("launch", LaunchRequest, LaunchReply, changes_state=True),
        Operation("resume", ResumeRequest, ResumeReply, changes_state=True),
        Operation("evaluate", EvaluateRequest, JobReply, changes_state=True),
        Operation("back_up", BackUpRequest, JobReply, changes_state=True),
        Operation("stop", StopRequest, StopReply, changes_state=True),
        Operation("kill", KillRequest, KillReply, changes_state=True),
        Operation("note", NoteRequest, NoteReply, changes_state=True),
    )
}
