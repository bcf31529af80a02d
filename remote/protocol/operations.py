"""The table of operations: each request's parameters, its reply, and whether it changes state.

Agent, client and app all read this table. To add a request: its types in the file of its subject beside this one
(some of runs and sessions are here), a row here, a handler in the file of its subject in :mod:`remote.agent`, and its
line in :mod:`remote.agent.operations`.

A request that changes state has an ``idempotency_key``: a repeated key changes nothing and gets the first answer, so a
request with a key may be sent again after a broken link. ``recall`` asks what became of it, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.backups import (
    ArchiveRequest,
    BackUpAllRequest,
    BackUpRequest,
    CheckpointSizesReply,
    CheckpointSizesRequest,
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
    SpareCheckpointsReply,
    SpareCheckpointsRequest,
    StoredHistoryReply,
    StoredHistoryRequest,
    VerifyBackupRequest,
)
from remote.protocol.box import (
    BoxFactsReply,
    BoxFactsRequest,
    GpuHistoryReply,
    GpuHistoryRequest,
    ReportReply,
    ReportRequest,
    unpack_gpu_history,
    unpack_page,
)
from remote.protocol.check import ValueRule
from remote.protocol.grants import GrantReply
from remote.protocol.jobs import (
    AskReply,
    AskRequest,
    CancelAnswerReply,
    CancelAnswerRequest,
    CloseAskReply,
    CloseAskRequest,
    Count,
    EvaluateRequest,
    JobReply,
    KillReply,
    KillRequest,
    LaunchReply,
    LaunchRequest,
    OpenAskReply,
    OpenAskRequest,
    OpenShellReply,
    OpenShellRequest,
    OpenTensorBoardReply,
    OpenTensorBoardRequest,
    PlaceEnvReply,
    PlaceEnvRequest,
    PlanResumeReply,
    PlanResumeRequest,
    ResumeReply,
    ResumeRequest,
    SendLineReply,
    SendLineRequest,
    SetUpRequest,
    StopReply,
    StopRequest,
    Text,
)
from remote.protocol.logs import (
    LevelChangesReply,
    LevelChangesRequest,
    LogBytesReply,
    LogBytesRequest,
    LogFilesReply,
    LogFilesRequest,
    MetricsReply,
    MetricsRequest,
    ProblemChangesReply,
    ProblemChangesRequest,
    ReadLogReply,
    ReadLogRequest,
    RolloutStepReply,
    RolloutStepRequest,
    RolloutStepsReply,
    RolloutStepsRequest,
    SamplesReply,
    SamplesRequest,
    SearchLogReply,
    SearchLogRequest,
    SearchRolloutsReply,
    SearchRolloutsRequest,
    SeriesReply,
    SeriesRequest,
    ShowStepReply,
    ShowStepRequest,
    unpack_bytes,
    unpack_rollout_steps,
    unpack_series,
)
from remote.protocol.record import record
from remote.protocol.runs import (
    NoteReply,
    NoteRequest,
    RunFactsReply,
    RunFactsRequest,
    VerdictReply,
    VerdictRequest,
)

MAX_COMPARED = 32
"""Runs that one is compared with."""
Others: TypeAlias = Annotated[
    list[Text], ValueRule(f"a list of 1 to {MAX_COMPARED} run names", lambda value: 1 <= len(value) <= MAX_COMPARED)
]
Steps: TypeAlias = Annotated[list[int], ValueRule("a list of at most 64 steps", lambda value: len(value) <= 64)]
Row: TypeAlias = dict[str, Any]


# --------------------------------------------------------------------------------------------------------- requests


@record(frozen=True)
class NoParameters:
    """A request without parameters."""


@record(frozen=True)
class ListRunsRequest:
    verdicts: bool = False
    """Wait for the verdicts on the runs."""


@record(frozen=True)
class DoctorRequest:
    """Checks of the box, and of the room for a run of a config where its text is given."""

    config_text: str = ""
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``, over the config's values."""


@record(frozen=True)
class ShowRunRequest:
    run: Text
    verdict: bool = False
    """Add the verdict on the run to its summary."""


@record(frozen=True)
class CompareEvaluationsRequest:
    """Evaluated steps of ``others`` against the same steps of ``run``, on the problems that both have."""

    run: Text
    others: Others
    steps: Steps = field(default_factory=list)
    """Empty = all that are evaluated."""


@record(frozen=True)
class ReadConfigRequest:
    name: Text
    """A name that ``list_configs`` lists."""


@record(frozen=True)
class CheckWeightsRequest:
    path: Text
    """A directory on the box, absolute or relative to the root."""


@record(frozen=True)
class CapturePaneRequest:
    session: Text
    lines: Count = 200


# ---------------------------------------------------------------------------------------------------------- replies


class DoctorReply(TypedDict):
    checks: list[Row]
    """Check."""
    ok: bool


class ListRunsReply(TypedDict):
    runs: list[Row]
    """As the ``runs`` topic has them."""


class _ShowRunReply(TypedDict):
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


class ShowRunReply(_ShowRunReply, total=False):
    workflow: Row
    """``stages`` (names in order), ``done`` (how many), ``failed`` (names); {} without a ``workflow.json``."""
    baselines: list[Row]
    """Models evaluated without a run on the datasets of its evaluations; rows as those."""
    config_problem: str
    """Why ``config_text`` is empty although the run has a config; "" without a problem."""


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


# ------------------------------------------------------------------------------------------------------------ table


@record(frozen=True)
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
        has_dry_run = any(field.name == "dry_run" for field in fields(self.request))
        return self.changes_state and not (has_dry_run and params.get("dry_run"))


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("doctor", DoctorRequest, DoctorReply),
        Operation("list_runs", ListRunsRequest, ListRunsReply),
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
        Operation("verdict", VerdictRequest, VerdictReply),
        Operation("show_step", ShowStepRequest, ShowStepReply),
        Operation("level_changes", LevelChangesRequest, LevelChangesReply),
        Operation("problem_changes", ProblemChangesRequest, ProblemChangesReply),
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
        Operation("list_destinations", NoParameters, ListDestinationsReply),
        Operation("list_backups", ListBackupsRequest, ListBackupsReply),
        Operation("stored_history", StoredHistoryRequest, StoredHistoryReply),
        Operation("plan_resume", PlanResumeRequest, PlanResumeReply),
        Operation("plan_back_up_all", PlanBackUpAllRequest, PlanBackUpAllReply),
        Operation("plan_cleanup", PlanCleanupRequest, PlanCleanupReply),
        Operation("safe_to_terminate", SafeToTerminateRequest, SafeToTerminateReply),
        Operation("show_grant", NoParameters, GrantReply),
        Operation("launch", LaunchRequest, LaunchReply, changes_state=True),
        Operation("resume", ResumeRequest, ResumeReply, changes_state=True),
        Operation("evaluate", EvaluateRequest, JobReply, changes_state=True),
        Operation("back_up", BackUpRequest, JobReply, changes_state=True),
        Operation("back_up_all", BackUpAllRequest, JobReply, changes_state=True),
        Operation("restore", RestoreRequest, JobReply, changes_state=True),
        Operation("archive", ArchiveRequest, JobReply, changes_state=True),
        Operation("clean_up", CleanUpRequest, JobReply, changes_state=True),
        Operation("verify_backup", VerifyBackupRequest, JobReply, changes_state=True),
        Operation("stop", StopRequest, StopReply, changes_state=True),
        Operation("kill", KillRequest, KillReply, changes_state=True),
        Operation("open_ask", OpenAskRequest, OpenAskReply, changes_state=True),
        Operation("ask", AskRequest, AskReply, changes_state=True),
        Operation("cancel_answer", CancelAnswerRequest, CancelAnswerReply, changes_state=True),
        Operation("close_ask", CloseAskRequest, CloseAskReply, changes_state=True),
        Operation("note", NoteRequest, NoteReply, changes_state=True),
        Operation("place_env", PlaceEnvRequest, PlaceEnvReply, changes_state=True),
        Operation("set_up", SetUpRequest, JobReply, changes_state=True),
        Operation("open_tensorboard", OpenTensorBoardRequest, OpenTensorBoardReply, changes_state=True),
        Operation("open_shell", OpenShellRequest, OpenShellReply, changes_state=True),
        Operation("send_line", SendLineRequest, SendLineReply, changes_state=True),
    )
}
