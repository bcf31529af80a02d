"""Requests that start, stop and end runs and evaluations, and their replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.code import NOW, THEN
from remote.protocol.fields import Label, Quantity
from remote.protocol.intake import Rule
from remote.protocol.messages import RemoteError

Text: TypeAlias = Annotated[str, Rule("a non-empty string", bool)]
Count: TypeAlias = Annotated[int, Rule("an integer of 1 or more", lambda value: value >= 1)]
Fraction: TypeAlias = Annotated[float, Rule("a number above 0 and at most 1", lambda value: 0 < value <= 1)]
Choice: TypeAlias = Annotated[str, Rule("then, now or empty", lambda value: value in ("", THEN, NOW))]
NonNegative: TypeAlias = Annotated[float, Rule("a number of 0 or more", lambda value: value >= 0)]


@dataclass(frozen=True, kw_only=True)
class ChangeRequest:
    """A request that changes state; :mod:`remote.protocol.operations` says what a key and ``recall`` do."""

    idempotency_key: str = ""
    recall: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandRequest(ChangeRequest):
    """A request that starts a command of the engine."""

    dry_run: bool = False
    """Answer what would be started, and start nothing."""


@dataclass(frozen=True)
class LaunchRequest(CommandRequest):
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
    slurm: list[str] = field(default_factory=list)
    """``key=value`` words that change what the job asks for, on a box with ``scheduler: slurm``."""


@dataclass(frozen=True)
class ResumeRequest(CommandRequest):
    run: Text
    from_step: int | str = "latest"
    additional_steps: Count | None = None
    nproc: Count | None = None
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``. Version 0.1.0 of the engine knows neither this nor ``nproc``."""
    confirmation: str = ""
    """Of an edited workflow, as ``plan_resume`` returns it; the box refuses another with ``workflow_edited``."""
    code: Choice = ""
    """``then``: the code of the run, ``now``: what was synced last; "" is refused with ``code_differs`` where they
    differ."""


@dataclass(frozen=True)
class PlanResumeRequest:
    """What a resume with these fields would do."""

    run: Text
    from_step: int | str = "latest"
    additional_steps: Count | None = None
    nproc: Count | None = None
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluateRequest(CommandRequest):
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

    def __post_init__(self) -> None:
        if not self.run and not self.ckpt_path:
            raise RemoteError("bad_request", "'run' or 'ckpt_path' is required")


@dataclass(frozen=True)
class StopRequest(ChangeRequest):
    run: Text
    by: str = ""


@dataclass(frozen=True)
class KillRequest(ChangeRequest):
    """Ends ``run``, or an evaluation by its ``session``."""

    run: str = ""
    session: str = ""
    by: str = ""
    patience_s: NonNegative | None = None
    """Seconds between SIGTERM and SIGKILL; None = 15, which is also the maximum."""

    def __post_init__(self) -> None:
        if not self.run and not self.session:
            raise RemoteError("bad_request", "'run' or 'session' is required")


class _JobReply(TypedDict, total=False):
    job: str
    """Id of the SLURM job, on a box with ``scheduler: slurm``; its session is ""."""
    note: str
    """What the engine's check of a launch or resume found besides problems, or why it was not checked."""


class JobReply(_JobReply):
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


class PlanResumeReply(TypedDict):
    run: Label
    host: Label
    step: Quantity
    """Step that it continues from."""
    total_steps: Quantity
    left: list[str]
    """Stages that would run, in order."""
    edits: list[dict[str, Any]]
    """StageRow: all stages, if the workflow was edited since the last start; else []."""
    confirmation: Label
    """Of the edits, to be sent with the resume; "" = none is needed."""


class StageRow(TypedDict):
    """A stage in the comparison of a workflow with its last start."""

    stage: str
    change: Label
    """``kept``, ``removed`` or ``added``."""
    done: bool
    """Whether it was done before."""


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
