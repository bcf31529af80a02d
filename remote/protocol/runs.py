"""The rows of runs, and requests about the runs of the list. Any field of a row may be missing."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, TypeAlias, TypedDict

from grpo_train.run_dir.identity import MAX_NOTE
from remote.protocol.check import ConfigValue, Count, Label, Metric, Name, Quantity, Row, Text, Time, ValueRule
from remote.protocol.jobs import ChangeRequest
from remote.protocol.logs import Names
from remote.protocol.record import record


class RunError(TypedDict, total=False):
    """Why a run failed."""

    code: Label
    summary: str
    rank: Count | None
    signal: Label | None
    console_tail: list[str]


class _HeldOut(TypedDict):
    accuracy: float
    dataset: Label
    step: Count


class HeldOut(_HeldOut, total=False):
    """Result of the last checkpoint of a run that was evaluated, and of the best one."""

    best: float
    best_step: Count


class BackupState(TypedDict):
    """How far a run is backed up, see :mod:`grpo_train.run_dir.backup_note`."""

    destination: Label
    same_disk: bool
    step: Count
    behind: Count
    time: Quantity


class Transfer(TypedDict):
    """Progress of a command at work on the backups of a run, or of one that failed: :mod:`grpo_train.backup.job`."""

    command: Label
    phase: Label
    """As in ``progress.jsonl``; ``failed`` also for a command that was killed."""
    destination: Label
    what: str
    """The file at hand."""
    bytes: Count
    bytes_total: Count
    proven: Count
    files: Count
    files_total: Count
    seconds: Quantity
    rate: Count
    """Bytes per second of late; 0 = not known yet."""
    error: str
    again: str
    """The command that continues, for a shell on the box."""


class SlurmJob(TypedDict):
    """The job of a run that is in SLURM's queue."""

    id: Label
    state: Label
    """SLURM's word, such as ``PENDING``."""
    reason: Label
    """Why it is pending, such as ``Priority``; "" = SLURM gives none."""
    nodes: Label
    requeues: Count


class WorkflowCount(TypedDict):
    """How far a run with a workflow is."""

    stages: Count
    done: Count


class VerdictRow(TypedDict):
    """What the curves, evaluations and events of a run say, see :class:`grpo_train.run_dir.verdict.RunVerdict`."""

    word: Label
    since: Count
    until: Count
    metric: Label
    before: float
    after: float
    cause: str
    cause_step: Count
    how: Label
    text: str


class _Run(TypedDict):
    run: Name
    state: Label


class RunSummary(_Run, total=False):
    """A row of :meth:`grpo_train.run_dir.RunDir.summary`."""

    identity: Label | None
    """See :mod:`grpo_train.run_dir.identity`."""
    parent: Label | None
    host: Label | None
    layout: Label
    step: Count | None
    total_steps: Count | None
    reward: Metric | None
    step_seconds: Metric | None
    logged_at: Time | None
    updated_at: Time | None
    launched_at: Time | None
    sweep: Label | None
    started_at: Time | None
    run_seconds: Quantity | None
    stage: Label | None
    error: RunError | str | None
    reason: Label | None
    """Why it stopped by itself, or what failed in a workflow that is finished."""
    restarts: Count | None
    nproc: Count | None
    device: Label | None
    stop_asked: bool
    held_out: HeldOut | None
    alarm: str | None
    verdict: VerdictRow | None
    """None where it is too early to say, or not known yet."""
    note: str
    backup: BackupState | None
    transfer: Transfer | None
    workflow: WorkflowCount | None
    job: SlurmJob
    unasked: Label
    """Why SLURM could not be asked about its job: what the row says of it may be old."""


class _RunFacts(TypedDict):
    run: Name


class RunFacts(_RunFacts, total=False):
    """A run of a ``run_facts`` reply."""

    config: dict[str, ConfigValue]
    """``section.key`` to value."""
    metrics: dict[str, Metric]


Note: TypeAlias = Annotated[
    str, ValueRule(f"a text of at most {MAX_NOTE} characters", lambda value: len(value) <= MAX_NOTE)
]
MAX_FACTS = 100
"""Runs of one ``run_facts`` request."""
Runs: TypeAlias = Annotated[
    list[Text], ValueRule(f"a list of at most {MAX_FACTS} names", lambda value: len(value) <= MAX_FACTS)
]


@record(frozen=True)
class RunFactsRequest:
    """Configuration, and last values of metrics, of several runs."""

    runs: Runs
    metrics: Names = field(default_factory=list)
    config: bool = True


@record(frozen=True)
class VerdictRequest:
    """What the curves, evaluations and events of a run say about it."""

    run: Text


@record(frozen=True)
class NoteRequest(ChangeRequest):
    """A note on a run, in place of its last one; an empty text removes it."""

    run: Text
    text: Note = ""
    by: str = ""


class RunFactsReply(TypedDict):
    facts: list[Row]
    """RunFacts; a run that cannot be read is left out."""
    same: dict[str, ConfigValue]
    """What is the same in the configuration of all of them, which their rows leave out."""


class VerdictReply(TypedDict):
    run: str
    is_known: bool
    """False while a long log is being read."""
    verdict: VerdictRow | None


class NoteReply(TypedDict):
    run: str
    note: str
    """As it is kept, on one line."""


MAX_COMPARED = 32
"""Runs that one is compared with."""
Others: TypeAlias = Annotated[
    list[Text], ValueRule(f"a list of 1 to {MAX_COMPARED} run names", lambda value: 1 <= len(value) <= MAX_COMPARED)
]
Steps: TypeAlias = Annotated[list[int], ValueRule("a list of at most 64 steps", lambda value: len(value) <= 64)]


@record(frozen=True)
class ListRunsRequest:
    verdicts: bool = False
    """Wait for the verdicts on the runs."""


class ListRunsReply(TypedDict):
    runs: list[Row]
    """As the ``runs`` topic has them."""


@record(frozen=True)
class ShowRunRequest:
    run: Text
    verdict: bool = False
    """Add the verdict on the run to its summary."""


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


@record(frozen=True)
class CompareEvaluationsRequest:
    """Evaluated steps of ``others`` against the same steps of ``run``, on the problems that both have."""

    run: Text
    others: Others
    steps: Steps = field(default_factory=list)
    """Empty = all that are evaluated."""


class CompareEvaluationsReply(TypedDict):
    comparisons: list[Row]
    """ComparisonRow."""
    problems: list[str]
    """Why a step is not compared."""
