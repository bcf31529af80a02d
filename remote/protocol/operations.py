"""The table of operations: each request's parameters, its reply, and whether it changes state.

Agent, client and app all read this table. To add a request: its types in the file of its subject beside this one, a row
here, a handler in the file of its subject in :mod:`remote.agent`, and its line in :mod:`remote.agent.operations`.

A request that changes state has an ``idempotency_key``: a repeated key changes nothing and gets the first answer, so a
request with a key may be sent again after a broken link. ``recall`` asks what became of it, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

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
    CapturePaneReply,
    CapturePaneRequest,
    DoctorReply,
    DoctorRequest,
    GpuHistoryReply,
    GpuHistoryRequest,
    ListSessionsReply,
    ReportReply,
    ReportRequest,
    unpack_gpu_history,
    unpack_page,
)
from remote.protocol.check import Row
from remote.protocol.grants import GrantReply
from remote.protocol.jobs import (
    AskReply,
    AskRequest,
    CancelAnswerReply,
    CancelAnswerRequest,
    CheckWeightsReply,
    CheckWeightsRequest,
    CloseAskReply,
    CloseAskRequest,
    EvaluateRequest,
    JobReply,
    KillReply,
    KillRequest,
    LaunchReply,
    LaunchRequest,
    ListConfigsReply,
    ListTasksReply,
    ListWeightsReply,
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
    ReadConfigReply,
    ReadConfigRequest,
    ResumeReply,
    ResumeRequest,
    SendLineReply,
    SendLineRequest,
    SetUpRequest,
    StopReply,
    StopRequest,
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
    CompareEvaluationsReply,
    CompareEvaluationsRequest,
    ListRunsReply,
    ListRunsRequest,
    NoteReply,
    NoteRequest,
    RunFactsReply,
    RunFactsRequest,
    ShowRunReply,
    ShowRunRequest,
    VerdictReply,
    VerdictRequest,
)


@record(frozen=True)
class NoParameters:
    """A request without parameters."""


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
