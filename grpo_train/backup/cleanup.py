"""Removing checkpoints that a backup holds. Each was read back and hashed in the same command.

Never removed: the last checkpoint, ``step_latest``, ``step_final``, milestones, the best evaluated step of each
dataset, what a live evaluation or backup reads, what another run started from, a live run's, and whatever is not in the
newest complete snapshot with the same digest. Logs, configs and evaluations are never removed.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_train.backup.collect import LocalStep, local_steps, read_step
from grpo_train.backup.job import CommandProgress, OnProgress, working_on
from grpo_train.backup.record import read_record
from grpo_train.backup.snapshot import Home, Snapshot, StoredStep
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.transfer import TRANSFERS
from grpo_train.backup.verify import read_back_all
from grpo_train.config.yaml_text import InvalidYaml, section_of
from grpo_train.run_dir import Checkpoint, RunDir, RunDirError, StatusWriter, list_evaluations
from grpo_train.run_dir.errors import prefixed
from grpo_train.run_dir.keeping import accuracies_of, checkpoint_size, links_of, reasons_to_keep
from grpo_train.run_dir.processes import RUN_ID_VARIABLE, find_by_run_id, is_alive, run_id_of
from grpo_train.run_dir.safe_json import Unreadable
from grpo_train.run_dir.status import writer_of
from grpo_train.train.retention import is_within, paths_read, remove_unless_read

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination


@dataclass(frozen=True)
class Spare:
    """A checkpoint that can be removed."""

    path: str
    """Relative to the run."""
    step: int
    bytes: int


@dataclass(frozen=True)
class KeptCheckpoint:
    path: str
    step: int
    reason: str


@dataclass(frozen=True)
class CleanupPlan:
    """What :func:`clean_up` would remove from this host, and what stays."""

    run: str
    host: str
    destination: str
    store: str
    """URL of the destination."""
    snapshot: int
    read_back: int
    """The newest snapshot that was read back in whole; 0 = none. A cleanup reads what it removes back again."""
    read_back_age_s: float | None
    """Seconds since then, by the store's clock; None where that is not known."""
    spare: tuple[Spare, ...]
    kept: tuple[KeptCheckpoint, ...]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.spare)


@dataclass(frozen=True)
class CleanupResult:
    """Outcome of :func:`clean_up`."""

    run: str
    destination: str
    snapshot: int
    removed: tuple[Spare, ...]
    kept: tuple[KeptCheckpoint, ...]
    """Also those whose objects turned out damaged."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.removed)


def plan_cleanup(run: RunDir, to: Destination, keep: int = 1) -> CleanupPlan:
    """The checkpoints to remove, but the newest ``keep`` and those that must stay.

    Raises RunDirError: ``same_disk``, ``run_is_live``, ``no_backup``, ``unreadable``; StoreError, OSError.
    """
    return _plan(run, to, keep)[0]


def clean_up(
    run: RunDir, to: Destination, keep: int = 1, *, transfers: int = TRANSFERS, show: OnProgress | None = None
) -> CleanupResult:
    """Plan anew, then read each checkpoint's objects back and remove it. Raises as :func:`plan_cleanup`, and ``busy``.

    The run cannot be resumed meanwhile: its status lock is held, by its supervisor where this is one of its stages.
    """
    working = working_on(run.root, "training_runs", run.name, "cleanup", to.name, show)
    with working as job, nullcontext() if is_own_stage(run) else closing(StatusWriter(run.path)):
        plan, snapshot, stored = _plan(run, to, keep)
        removed, kept = [], list(plan.kept)
        for spare in plan.spare:
            if reason := _problem(run, spare, snapshot, stored, job, transfers):
                kept.append(KeptCheckpoint(spare.path, spare.step, reason))
            elif _remove(run, spare):
                removed.append(spare)
                _note(run, spare, to)
            else:
                kept.append(KeptCheckpoint(spare.path, spare.step, "in use"))
    return CleanupResult(run.name, to.name, plan.snapshot, tuple(removed), tuple(kept))


def _plan(run: RunDir, to: Destination, keep: int) -> tuple[CleanupPlan, Snapshot, StoredRun]:
    if to.trust.same_disk:
        raise RunDirError(
            f"{to.name} ({to.store.url}) is on the same disk as {run.root}, so a copy there is lost with it; use "
            "another destination with --to",
            code="same_disk",
        )
    refuse_at_work(run)
    record = read_record(run.path)
    known, home = record.of(to.trust.store_id), Home("training_runs", run.name, record.identity)
    stored = StoredRun(to.store, home)
    newest = stored.newest()
    if newest is None or newest.manifest is None:
        raise RunDirError(
            f"{run.name} has no complete snapshot in {to.name}; run  grpo-train backup --training-run {run.name}",
            code="no_backup",
        )
    spare, kept = [], []
    found = local_steps("training_runs", run.path)
    reasons = _reasons(run, found, keep)
    backed_up = {(step.step, step.digest) for step in newest.manifest.steps}
    for step in found:
        if (step.step, step.digest) not in backed_up:
            kept.append(KeptCheckpoint(step.path, step.step, f"not in snapshot {newest.number}"))
        elif reason := reasons.get(step.path):
            kept.append(KeptCheckpoint(step.path, step.step, reason))
        else:
            spare.append(Spare(step.path, step.step, checkpoint_size(run.path / step.path)))
    plan = CleanupPlan(
        run.name, socket.gethostname(), to.name, to.store.url, newest.number, known.read_back,
        max(0.0, to.store.now() - known.read_at) if known.read_at else None, tuple(spare), tuple(kept),
    )  # fmt: skip
    return plan, newest.manifest, stored


def is_own_stage(run: RunDir) -> bool:
    """Whether the run's supervisor has started this process as a stage: nothing trains meanwhile."""
    pid, start = writer_of(run.read_status() or {})
    is_marked = os.environ.get(RUN_ID_VARIABLE) == run_id_of(run.path)
    return is_marked and pid == os.getppid() and is_alive(pid, start)


def refuse_at_work(run: RunDir) -> None:
    """Raise RunDirError (``run_is_live``) if the run or one of its processes is live, unless it has started this."""
    if is_own_stage(run):
        return
    if run.observed_state().is_live or find_by_run_id(run_id_of(run.path)):
        raise RunDirError(
            f"{run.name} is active; stop it first (grpo-train stop --training-run {run.name})", code="run_is_live"
        )


def _keep_every(run: RunDir) -> int:
    """``run.keep_every``. Raises InvalidYaml naming the file, and OSError."""
    try:
        found = section_of(run.config_file.read_text(encoding="utf-8"), "run").get("keep_every", 0)
        if type(found) is not int:
            raise InvalidYaml("'run.keep_every' must be an integer")
    except ValueError as error:
        raise InvalidYaml(f"{run.config_file} is damaged: {error}") from error
    return found


def _reasons(run: RunDir, found: list[LocalStep], keep: int) -> dict[str, str]:
    """Path to the reason why a checkpoint stays. Raises RunDirError (``unreadable``) where that is not known."""
    current = {step.step: step for step in found if "superseded/" not in step.path}
    accuracies = {row["name"]: accuracies_of(row["metrics"]) for row in list_evaluations(run.root, run.name)}
    try:
        keep_every = _keep_every(run)
        paths = paths_read(run.root)
        in_use = {step.path for step in found if is_within(run.path / step.path, paths)}
    except (OSError, ValueError, Unreadable) as error:
        message = f"{run.name}: cannot tell which checkpoints are needed: {error}"
        raise RunDirError(message, code="unreadable") from error
    links = links_of(run.training_state)
    reasons = reasons_to_keep(list(current), links, accuracies, keep_last=keep, keep_every=keep_every)
    found_reasons = {current[step].path: reason for step, reason in reasons.items()}
    for path in in_use:
        found_reasons[path] = ", ".join(filter(None, [found_reasons.get(path), "in use"]))
    return found_reasons


def _problem(
    run: RunDir, spare: Spare, snapshot: Snapshot, stored: StoredRun, job: CommandProgress, transfers: int
) -> str:
    """Why a checkpoint may not be removed: the backup does not hold, at this moment, the checkpoint that is here."""
    try:
        here = read_step(run.path, spare.path)
    except (Unreadable, OSError) as error:  # removed or damaged since it was listed
        return str(error)
    there = next((s for s in snapshot.steps if (s.step, s.digest) == (here.step, here.digest)), None)
    if there is None or not _same_files(here, there):
        return f"differs from the one in snapshot {snapshot.number}"
    problems, _ = read_back_all(stored.store, [part for file in there.files for part in file.parts], job, transfers)
    return f"its backup is damaged: {problems[0][1]}; run  grpo-train verify-backup {run.name}" if problems else ""


def _same_files(here: LocalStep, there: StoredStep) -> bool:
    """Whether the backup holds every file of a checkpoint, with the hash in its manifest."""
    stored = {file.path: tuple(part.sha256 for part in file.parts) for file in there.files}
    return all(stored.get(file.path) == (file.sha256,) for file in here.files)


def _remove(run: RunDir, spare: Spare) -> bool:
    """Remove a checkpoint that nobody reads. Raises Unreadable, OSError."""
    with prefixed(f"{run.name}: cannot tell whether {spare.path} is in use: "):
        return remove_unless_read(run, Checkpoint(spare.step, run.path / spare.path))


def _note(run: RunDir, spare: Spare, to: Destination) -> None:
    """Log a removal, and remember where the step is."""
    run.log_event("cleaned_up", steps=[spare.step], path=spare.path, destination=to.name)
    if "superseded/" not in spare.path:
        record = read_record(run.path)
        record.removed[str(spare.step)] = to.name
        record.save(run.path)
