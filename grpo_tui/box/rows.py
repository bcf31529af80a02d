"""What a box reports of its runs, typed: a run, its checkpoints, its workflow, work on its backups. No Textual."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.display import state_label
from grpo_train.run_dir.files import parse_time, to_float
from grpo_train.run_dir.sessions import session_name
from grpo_train.run_dir.verdict import RunVerdict, alarm_of
from grpo_train.run_dir.workflow_file import is_workflow
from grpo_tui.box.formatting import byte_size, counted, fraction, one_line, percent, short_duration, shortened
from remote.protocol.rows import UNREADABLE

PARTLY = 3
"""Exit status of a command that left something out."""
TEXT_WIDTH = 20
NAME_IN_MESSAGE = 40
"""Maximum cells of a run's name in the title of a message."""
WORK = {
    "backup": "being backed up",
    "restore": "being restored",
    "archive": "being archived",
    "cleanup": "being cleaned up",
    "verify": "being read back from its backup",
    "prune": "having its backups pruned",
}
"""What each command does to a run. Its session is COMMAND_RUN."""
_DONE = {
    "backup": ("{run} backed up", "every byte is proven to be in the store"),
    "restore": ("{run} restored", "every byte was hashed"),
    "archive": ("{run} archived", "the backup was read back first"),
    "cleanup": ("{run} cleaned up", "each removed checkpoint was read back from the backup first"),
    "verify": ("backup of {run} read back", "every object is as it was sent"),
}
_IN_PART = {
    "backup": "{run} backed up in part",
    "restore": "{run} restored in part",
    "archive": "{run} archived in part",
    "cleanup": "{run} cleaned up in part",
    "verify": "backup of {run} is damaged",
}


class Transfer(NamedTuple):
    """Progress of a command at work on the backups of a run, or of one that failed."""

    command: str
    phase: str
    destination: str
    what: str
    """The file at hand."""
    bytes: float
    bytes_total: float
    proven: float
    seconds: float
    rate: float
    """Bytes per second of late; 0 = not known."""
    error: str
    again: str
    """The command that continues, for a shell on the box."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Transfer:
        """From a row that passed the gate, see :class:`remote.protocol.runs.Transfer`."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def has_failed(self) -> bool:
        return self.phase == "failed"

    @property
    def moved(self) -> float:
        """Bytes of ``bytes_total`` that the present phase is done with."""
        return self.proven if self.phase == "proving" else self.bytes

    @property
    def share(self) -> float | None:
        """Of the present phase, from 0 to 1; None while that is not known."""
        moves = self.phase in ("sending", "reading", "proving") and self.bytes_total > 0
        return min(1.0, self.moved / self.bytes_total) if moves else None

    @property
    def pace(self) -> float:
        """Bytes per second; 0 = not known."""
        if self.rate or self.phase == "proving":
            return self.rate
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the present phase is done."""
        return max(0.0, self.bytes_total - self.moved) / self.pace if self.pace else None


def transfer_label(transfer: Transfer) -> str:
    """``↑ 42% 12 MB/s 3m``: how much is done, bytes per second, time left; else what it is doing."""
    if transfer.has_failed:
        return f"✖ {transfer.command} failed"[:TEXT_WIDTH]
    if transfer.share is None:
        return f"↑ {transfer.command} {transfer.phase}".rstrip()[:TEXT_WIDTH]
    if transfer.phase == "proving":
        return f"↑ proving {percent(transfer.share, '')}"
    label = f"{'↑' if transfer.phase == 'sending' else '↓'} {percent(transfer.share, '')}"
    return f"{label} {byte_size(transfer.pace)}/s {short_duration(transfer.left_s)}" if transfer.pace else label


def transfer_lines(transfer: Transfer, width: int) -> list[str]:
    """One or two lines of ``width`` cells: how far it is, and what is at hand; of a failed one, how to continue.

    ``sending 42% · 12 MB/s · 8m left``, ``4.2 GB of 10 GB to s3 · step_40/optimizer.pt``.
    """
    if transfer.has_failed:
        lines = [one_line(f"failed: {transfer.error}"), f"continue: {transfer.again}" if transfer.again else ""]
        return [line for line in lines if line]
    share, left_s = transfer.share, transfer.left_s
    parts, size = [transfer.phase], ""
    if share is not None:
        parts[0] += f" {percent(share, '')}"
        size = f"{byte_size(transfer.moved)} of {byte_size(transfer.bytes_total)} "
        if left_s is not None:
            parts += [f"{byte_size(transfer.pace)}/s", f"{short_duration(left_s)} left"]
    reads = transfer.phase == "reading" or transfer.command in ("restore", "verify")
    place = f"{size}{'from' if reads else 'to'} {transfer.destination}" if transfer.destination else size.rstrip()
    file = "/".join(one_line(transfer.what).split("/")[-2:])  # of a key, the run is known
    below = [place, shortened(file, max(9, width - len(place) - 3))]
    return [" · ".join(parts), *filter(None, [" · ".join(filter(None, below))])]


def command_of(session: str, run: str) -> str:
    """Which command on a run's backups a tmux session is for; "" for another session."""
    return next((command for command in WORK if session == session_name(f"{command}_{run}")), "")


def work_on(sessions: Iterable[str], run: str, transfer: Transfer | None) -> str:
    """What is being done to the backups of a run, such as ``being backed up``; "" for nothing."""
    commands = [command for session in sessions if (command := command_of(session, run))]
    if transfer is not None and not transfer.has_failed:
        commands.append(transfer.command)
    return next((WORK[command] for command in commands if command in WORK), "")


def done_notice(command: str, run: str) -> tuple[str, str]:
    """Title and message for a command that succeeded."""
    title, message = _DONE.get(command, (f"{command} of {{run}} done", ""))
    return f"✔ {title.format(run=shortened(run, NAME_IN_MESSAGE))}", message


def failure_title(command: str, run: str, code: int) -> str:
    """Title for a command that did not succeed, or left something out."""
    name = shortened(run, NAME_IN_MESSAGE)
    if code == PARTLY and command in _IN_PART:
        return f"▲ {_IN_PART[command].format(run=name)}"
    return f"✖ {command} of {name} failed"


class HeldOut(NamedTuple):
    """Result of the last evaluated checkpoint, and of the best one."""

    accuracy: float
    dataset: str
    step: int
    best: float | None = None
    best_step: int | None = None


class BackupState(NamedTuple):
    """How far a run is backed up."""

    destination: str
    same_disk: bool
    """It is lost with the box."""
    step: int
    """Newest checkpoint in it; 0 = none."""
    behind: int
    """Training steps that it lacks."""
    time: float
    """When it was made, by the store's clock."""


class SlurmJob(NamedTuple):
    """The job of a run in SLURM's queue."""

    id: str
    reason: str
    """Why it is pending."""
    requeues: int


def _held_out(row: dict[str, Any]) -> HeldOut:
    return HeldOut(row["accuracy"], row["dataset"], int(row["step"]), row.get("best"), _integer(row.get("best_step")))


@dataclass(frozen=True)
class RunRow:
    """Summary of one run. Unknown values are None or empty."""

    name: str
    state: str
    host: str = ""
    """Set if a live run is on another host than the agent's."""
    step: int = 0
    total_steps: int | None = None
    reward: float | None = None
    step_seconds: float | None = None
    logged_at: float | None = None
    """Times are seconds since the epoch on the box's clock."""
    run_seconds: float | None = None
    updated_at: float | None = None
    stage: str = ""
    error: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    nproc: int | None = None
    stop_requested: bool = False
    layout: str = "run"
    device: str = ""
    """Device that trains, such as ``NVIDIA H200`` or ``CPU``."""
    launched_at: float | None = None
    started: str = ""
    """When its newest supervisor started: a resume may have changed its configuration."""
    held_out: HeldOut | None = None
    alarm: str = ""
    """The alarm of its last step."""
    verdict: RunVerdict | None = None
    """None where it is too early to say, or not known yet."""
    note: str = ""
    reason: str = ""
    """Why it stopped by itself, or what failed in a workflow that is finished."""
    backup: BackupState | None = None
    transfer: Transfer | None = None
    job: SlurmJob | None = None
    """None also for a job that has ended."""
    unasked: str = ""
    """Why SLURM could not be asked about its job now."""
    has_workflow: bool = False
    """Whether its stages are more than training and scheduled evaluations."""

    @property
    def shown_state(self) -> str:
        """Its state for people: a run that was asked to stop is stopping, whatever it writes until it has ended."""
        return "stopping" if self.stop_requested and self.state in ("starting", "running") else self.state

    @property
    def label(self) -> tuple[str, str, str]:
        """Glyph, words and tone of the state: ``running on node1 requeued 2×``, ``pending (Priority)``."""
        alarm = alarm_of(self.verdict)
        glyph, word, tone = state_label(self.shown_state, self.host, alarm)
        if tone == "live" and self.verdict is not None and alarm:
            tone = self.verdict.tone
        if self.job and self.state == "pending" and self.job.reason:
            word += f" ({self.job.reason})"
        if self.job and self.job.requeues:
            word += f" requeued {self.job.requeues}×"
        if self.unasked:
            word += f"? (SLURM: {self.unasked})"
        return glyph, word, tone

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    @property
    def is_over(self) -> bool:
        """Whether it has ended. A run in an unknown state, or one that cannot be read, is neither live nor over."""
        return self.state in ("stopped", "finished", "crashed", "killed", "lost")

    @property
    def is_unreadable(self) -> bool:
        return self.state == UNREADABLE

    @classmethod
    def from_summary(cls, row: dict[str, Any]) -> RunRow:
        """From a row that passed the gate, see :class:`remote.protocol.runs.RunSummary`."""
        error, held, backup = row.get("error"), row.get("held_out"), row.get("backup")
        transfer = row.get("transfer")
        return cls(
            name=row["run"],
            state=row["state"],
            host=row.get("host") or "",
            step=_integer(row.get("step")) or 0,
            total_steps=_integer(row.get("total_steps")),
            reward=to_float(row.get("reward")),
            step_seconds=to_float(row.get("step_seconds")),
            logged_at=_time(row.get("logged_at")),
            run_seconds=to_float(row.get("run_seconds")),
            updated_at=_time(row.get("updated_at")),
            stage=row.get("stage") or "",
            error=error if isinstance(error, dict) else {"summary": error} if error else {},
            restarts=_integer(row.get("restarts")) or 0,
            nproc=_integer(row.get("nproc")),
            stop_requested=bool(row.get("stop_asked")),
            layout=row.get("layout", "run"),
            device=row.get("device") or "",
            launched_at=_time(row.get("launched_at")),
            started=row.get("started_at") or "",
            alarm=row.get("alarm") or "",
            verdict=RunVerdict.from_json(row.get("verdict")),
            reason=row.get("reason") or "",
            note=" ".join((row.get("note") or "").split()),
            held_out=_held_out(held) if held else None,
            backup=BackupState(
                backup["destination"], backup["same_disk"], int(backup["step"]), int(backup["behind"]), backup["time"]
            )
            if backup
            else None,
            transfer=Transfer.from_row(transfer) if transfer else None,
            job=SlurmJob(job["id"], job["reason"], int(job["requeues"])) if (job := row.get("job")) else None,
            unasked=row.get("unasked") or "",
            has_workflow=bool(row.get("workflow")),
        )


class RunRows:
    """The rows of a list: of a summary that is as before, the row is, too."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[dict[str, Any], RunRow]] = {}

    def of(self, summaries: list[dict[str, Any]]) -> list[RunRow]:
        """The rows of the list that was sent now."""
        rows, known = [], {}
        for summary in summaries:
            before, row = self._known.get(summary["run"], (None, None))
            if row is None or before != summary:
                row = RunRow.from_summary(summary)
            known[row.name] = (summary, row)
            rows.append(row)
        self._known = known
        return rows


def _integer(value: Any) -> int | None:
    found = to_float(value)
    return None if found is None else int(found)


def _time(value: Any) -> float | None:
    try:
        return parse_time(str(value)) if value else None
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class EvalResult:
    """Result of one evaluation of one checkpoint."""

    dataset: str
    figure: str
    """``.412``, or the progress or failure of an evaluation without a result."""
    spread: str = ""
    """Half of the 95 % interval, in the unit of ``figure``."""
    accuracy: float | None = None
    """0 … 1; None without a result."""


@dataclass(frozen=True)
class CheckpointView:
    """One ``step_N``. Step 0 is the starting model; it is listed once it has been evaluated."""

    step: int | None
    """None: it cannot be read."""
    problem: str = ""
    evaluations: tuple[EvalResult, ...] = ()

    @property
    def name(self) -> str:
        return "step_?" if self.step is None else f"step_{self.step}"

    @property
    def is_complete(self) -> bool:
        """Whether a run can resume from it."""
        return bool(self.step) and not self.problem


def checkpoint_views(run: str, reply: dict[str, Any]) -> list[CheckpointView]:
    """Checkpoints of a ``show_run`` reply, newest first; before them, what cannot be read.

    Evaluated steps without a checkpoint are left out.
    """
    views = []
    results: dict[int, list[EvalResult]] = {}
    for evaluation in reply.get("evaluations") or ():
        if reason := evaluation.get("unreadable"):
            views.append(CheckpointView(None, f"evaluation {evaluation['name']} is unreadable: {reason}"))
    for _, evaluated, result in evaluated_steps(run, reply):
        results.setdefault(evaluated, []).append(result)
    for checkpoint in reply.get("checkpoints") or ():
        step = None if checkpoint["step"] is None else int(checkpoint["step"])
        evaluations = () if step is None else tuple(results.get(step, ()))
        views.append(CheckpointView(step, checkpoint.get("problem") or "", evaluations))
    if 0 in results:
        views.append(CheckpointView(0, "", tuple(results[0])))
    return sorted(views, key=lambda view: (view.step is not None, -(view.step or 0)))


def evaluated_steps(run: str, reply: Mapping[str, Any]) -> Iterator[tuple[str, int, EvalResult]]:
    """Each evaluated step in a ``show_run`` reply: name of the evaluation, step, result."""
    for evaluation in reply.get("evaluations") or ():
        dataset = evaluation["name"].removeprefix(f"{run}_")
        for row in evaluation.get("metrics") or ():
            step = row.get("step") or ""
            if step.isascii() and step.isdigit() and len(step) <= 15:
                yield evaluation["name"], int(step), _result(dataset, row)


def _result(dataset: str, row: dict[str, Any]) -> EvalResult:
    """Result of a table row: accuracy with its 95 % interval, else progress (``done`` of ``total``) or failure."""
    accuracy, low, high = (_cell(row, column) for column in ("accuracy", "ci_low", "ci_high"))
    if accuracy is not None and math.isfinite(accuracy):
        spread = fraction((high - low) / 2) if low is not None and high is not None else ""
        return EvalResult(dataset, fraction(accuracy), spread, accuracy)
    status = row.get("status") or "failed"
    if status == "partial":
        done, total = _cell(row, "done"), _cell(row, "total")
        return EvalResult(dataset, f"{percent(done / total, '')} done" if done and total else "waiting")
    error = row.get("error") or ""
    return EvalResult(dataset, shortened(one_line(f"{status}: {error}" if error else status), 24))


def _cell(row: dict[str, Any], column: str) -> float | None:
    """The number in a table cell, which is text, or None."""
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        return None


NEXT = 3
"""Stages that are named behind the current one."""

AROUND = 1
"""Stages that are shown around an edit."""


class WorkflowPart(NamedTuple):
    text: str
    tone: str
    """``done``, ``now``, ``bad`` or ``muted``."""


def workflow_parts(workflow: Mapping[str, Any], row: RunRow | None) -> list[WorkflowPart]:
    """The line of a run; [] for one without a workflow. ``workflow``: of a reply to ``show_run``."""
    stages, done = _names(workflow.get("stages")), workflow.get("done")
    if row is None or not is_workflow(stages) or not isinstance(done, int) or not 0 <= done <= len(stages):
        return []
    failed = [name for name in _names(workflow.get("failed")) if name in stages]
    parts = [WorkflowPart(f"{done} of {len(stages)} done", "done" if done else "muted")]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        parts.append(WorkflowPart(f"✖ {failed[-1]}{more}", "bad"))
    left = stages[done:]
    if not left:
        return parts
    if row.is_over:
        return [
            *parts,
            WorkflowPart(one_line(f"{row.state}: {row.reason}" if row.reason else row.state), "bad"),
            *_rest(left),
        ]
    parts.append(WorkflowPart(f"▸ {left[0]}", "now"))
    return [*parts, *_rest(left[1:])]


class EditLine(NamedTuple):
    """A line of the comparison of an edited workflow."""

    sign: str
    """``-`` before, ``+`` now, ``✔`` done and kept, or a space."""
    text: str
    note: str = ""


def edit_lines(rows: Sequence[Mapping[str, Any]]) -> list[EditLine]:
    """The edits of a ``plan_resume`` reply with the stages around them; others are counted."""
    edited = [index for index, row in enumerate(rows) if row.get("change") != "kept"]
    near = {index + by for index in edited for by in range(-AROUND, AROUND + 1)}
    lines: list[EditLine] = []
    skipped = 0
    for index, row in enumerate(rows):
        if index in near:
            lines += _skipped(skipped)
            skipped = 0
            lines.append(_edit_line(row))
        else:
            skipped += 1
    return [*lines, *_skipped(skipped)]


def _edit_line(row: Mapping[str, Any]) -> EditLine:
    text, change, done = one_line(str(row.get("stage", ""))), row.get("change"), bool(row.get("done"))
    if change == "kept":
        return EditLine("✔" if done else " ", text)
    if change not in ("removed", "added"):
        return EditLine("?", text, "cannot be read")
    return EditLine("-" if change == "removed" else "+", text, "already done" if done else "")


def _skipped(count: int) -> list[EditLine]:
    return [EditLine(" ", f"… {counted(count, 'unchanged stage')}")] if count else []


def _rest(stages: list[str]) -> list[WorkflowPart]:
    """What follows, or what a resume would do."""
    more = " …" if len(stages) > NEXT else ""
    return [WorkflowPart(f"then {', '.join(stages[:NEXT])}{more}", "muted")] if stages else []


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
