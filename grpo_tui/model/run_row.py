"""A run as the list of runs shows it. No Textual."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.display import state_label
from grpo_train.run_dir.files import parse_time, to_float
from grpo_tui.model.transfers import Transfer
from remote.protocol.rows import UNREADABLE


class HeldOut(NamedTuple):
    """Result of the last evaluated checkpoint."""

    accuracy: float
    dataset: str
    step: int


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
        glyph, word, tone = state_label(self.shown_state, self.host)
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
        """From a row that passed the gate, see :class:`remote.protocol.rows.RunSummary`."""
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
            reason=row.get("reason") or "",
            note=" ".join((row.get("note") or "").split()),
            held_out=HeldOut(held["accuracy"], held["dataset"], int(held["step"])) if held else None,
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
