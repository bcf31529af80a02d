"""Launch, resume, stop and kill of runs that are SLURM jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from grpo_train.run_dir import RunDir, RunDirError, check_name, create_run, prepare_root
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.files import atomic_write, remove_tree, touch, utc_now
from grpo_train.run_dir.kill import record_end, started_at
from grpo_train.run_dir.root import find_by_key
from grpo_train.run_dir.slurm_job import SCRIPT_FILE, read_job, write_job
from remote.agent.code import record as record_code
from remote.agent.context import BoxContext
from remote.agent.engine import Engine, find_engine
from remote.agent.once import Record
from remote.agent.slurm.commands import QueuedJob, comment, queue, run_slurm
from remote.agent.slurm.script import batch_script
from remote.agent.start import check_launch, examine, launch_lock, require_free
from remote.protocol import RemoteError
from remote.protocol.jobs import JobReply, KillReply, KillRequest, LaunchReply, LaunchRequest, StopReply, StopRequest
from remote.protocol.slurm import JobOptions

END_WAIT_S = 40.0
"""Time for a cancelled job to end: SLURM's KillWait is 30 s unless the cluster says otherwise."""
NOT_NOW_OR_NEVER = "Requested node configuration is not available"
"""What SLURM says of a job that has to wait for nodes, and of one that can never start."""


def is_slurm(box: BoxContext) -> bool:
    return box.settings.scheduler == "slurm"


def job_options(box: BoxContext, words: list[str]) -> JobOptions:
    """Options of the box, changed by ``key=value`` words. Raises RemoteError ``bad_request``."""
    try:
        return JobOptions().changed(box.settings.slurm).with_words(words)
    except ValueError as error:
        raise RemoteError("bad_request", f"slurm: {error}") from error


def on_a_node(box: BoxContext, name: str) -> list[str]:
    """Words before a command that run it as a job of one node: ``srun`` shows its output, waits for it and ends it.

    Raises RemoteError ``no_slurm``, and ``slurm`` where SLURM refuses the options.
    """
    options = replace(job_options(box, []), nodes=1)
    _check("#!/bin/sh\n", *options.arguments())
    return ["srun", f"--job-name={name}", "--unbuffered", *options.arguments()]


# ----------------------------------------------------------------------------------------------------------- launch


def launch_job(
    box: BoxContext, request: LaunchRequest, record: Record, launch: dict[str, object], shell_argv: list[str]
) -> LaunchReply:
    """Create a run and submit its job. A refusal leaves nothing behind."""
    name = check_name(request.run_name) if request.run_name else ""
    engine, options, note = find_engine(box), job_options(box, request.slurm), ""

    def reply(run: str, started: bool, job: str = "") -> LaunchReply:
        argv = ["sbatch", str(box.root / "training_runs" / run / SCRIPT_FILE)]
        common = {"run": run, "session": "", "argv": argv, "engine": engine.reason, "started": started, "job": job}
        named = [*shell_argv, *(["--run-name", name] if name else []), "--root", str(box.root)]
        return {**common, "shell_argv": named, **({"note": note} if note else {})}  # type: ignore[typeddict-item]

    planned = name or datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S")
    if request.dry_run or find_by_key(box.root, request.idempotency_key) is None:
        require_free(box, name)
        note = check_launch(box, request, options)
        run = RunDir(box.root / "training_runs" / planned)
        _check(_script(box, run, engine, options, ""), directory=_folder(box))
    if request.dry_run:
        return reply(planned, started=False)
    prepare_root(box.root)
    with launch_lock(box.root):
        found = find_by_key(box.root, request.idempotency_key)
        if found is None:
            record.begin()
            found = create_run(box.root, {**launch, "slurm": request.slurm}, name or None)
        if job := read_job(found.path) or _queued(box, found):
            return reply(found.name, started=False, job=job)
        if found.status_file.exists():
            return reply(found.name, started=False)
        if request.recall:
            raise RemoteError("not_received", f"{found.name} was created, but not submitted", "launch it again")
        try:
            record_code(found, Code.from_json(launch.get("code")))
            job = submit(box, found, engine, options, record.key)
        except BaseException:
            gone = found.path.with_name(f".refused-{found.name}")
            with suppress(OSError):
                found.path.rename(gone)
                remove_tree(gone)
            raise
    return reply(found.name, started=True, job=job)


def _check(text: str, *options: str, directory: Path | None = None) -> None:
    """Ask SLURM whether it would take a batch script. Raises RemoteError ``slurm``.

    ``--test-only`` also refuses, in the same words, what cannot start at this moment because nodes are down, drained or
    not heard of since the controller restarted. ``sbatch`` and ``srun`` let such a job wait, and refuse what can never
    start.
    """
    try:
        run_slurm("sbatch", "--test-only", *options, directory=directory, text=text)
    except RemoteError as error:
        if NOT_NOW_OR_NEVER not in error.message:
            raise


def submit(
    box: BoxContext,
    run: RunDir,
    engine: Engine,
    options: JobOptions,
    key: str,
    first: Sequence[str] = (),
) -> str:
    """Write the batch script of a run and submit it; returns the job's id. Raises RemoteError."""
    script = run.path / SCRIPT_FILE
    atomic_write(script, _script(box, run, engine, options, key, first))
    submitted_at = utc_now()
    answer = run_slurm("sbatch", "--parsable", str(script), directory=_folder(box))
    job = answer.strip().splitlines()[-1].split(";")[0]  # ID;CLUSTER
    write_job(run.path, job, submitted_at)
    run.log_event("submitted", job=job)
    return job


def _script(
    box: BoxContext, run: RunDir, engine: Engine, options: JobOptions, key: str, first: Sequence[str] = ()
) -> str:
    where = ["--root", str(box.root)]
    begin = [*engine.argv, *(first or ("supervise", run.name)), *where]
    again = [*engine.argv, "resume", "--training-run", run.name, "--yes", *where]
    note = comment(box.root, run.name, key)
    return batch_script(run, options, note, _folder(box), box.session_environment(), begin, again)


def _folder(box: BoxContext) -> Path:
    return box.directory if box.directory.is_dir() else Path("/")


def _queued(box: BoxContext, run: RunDir) -> str:
    """Id of a job in the queue that nothing has recorded: its agent was killed."""
    job = queue(box.root).get(run.name)
    if job is not None:
        write_job(run.path, job.id, utc_now())
    return job.id if job else ""


# ----------------------------------------------------------------------------------------------------------- resume


def resume_job(
    box: BoxContext, run: RunDir, arguments: list[str], dry_run: bool, record: Record, started_before: bool
) -> JobReply:
    """Submit a job that resumes a run; ``arguments`` are those of the engine."""
    engine = find_engine(box)
    job = queue(box.root).get(run.name)
    repeated = started_before or (job is not None and bool(record.key) and job.key == record.key)
    if job is not None and not repeated:
        raise RemoteError("run_is_live", f"{run.name} has job {job.id} ({job.state})", "stop it before you resume it")
    options = job_options(box, [str(word) for word in run.read_launch().get("slurm") or []])
    job_id = job.id if job else ""
    if not repeated:
        examine(box, engine)
        text = _script(box, run, engine, options, record.key, arguments)
        _check(text, directory=_folder(box))
        if not dry_run:
            run.killed_file.unlink(missing_ok=True)
            job_id = submit(box, run, engine, options, record.key, arguments)
    started = not dry_run and not repeated
    argv = ["sbatch", str(run.path / SCRIPT_FILE)]
    return {"run": run.name, "session": "", "argv": argv, "engine": engine.reason, "started": started, "job": job_id}


# ---------------------------------------------------------------------------------------------------- stop and kill


def job_of(box: BoxContext, run: RunDir) -> QueuedJob | None:
    """The job of a run that is pending or running; None on a box without SLURM. Raises RemoteError."""
    return queue(box.root).get(run.name) if is_slurm(box) and read_job(run.path) else None


def stop_job(run: RunDir, job: QueuedJob, request: StopRequest, record: Record, root: Path) -> StopReply:
    """Save and stop; a job that is pending is cancelled: there is nothing to save.

    A job may start or end after it was seen; what SLURM answers then does not say so, and the queue is asked again.
    """
    record.begin(started_at=started_at(run))
    if job.is_pending:
        refused = None
        try:
            run_slurm("scancel", "--state=PENDING", job.id)
        except RemoteError as error:
            refused = error
        left = queue(root).get(run.name)
        if left is None:
            if refused is None:
                run.log_event("stop_asked", by=request.by)
                record_end(run, "stopped", by=request.by)
            return {"run": run.name, "state": run.observed_state().state}
        if left.is_pending:
            raise refused or RemoteError("slurm", f"job {job.id} is still pending", "stop it again")
    asked, state = run.stop_requested(), run.observed_state().state
    run.request_stop(request.by)
    if not asked:  # a second SIGINT would end it without saving
        try:
            run_slurm("scancel", "--batch", "--signal=INT", job.id)
        except RemoteError:
            if run.observed_state().is_live and run.name in queue(root):
                raise
    return {"run": run.name, "state": state}


def kill_job(run: RunDir, job: QueuedJob, request: KillRequest, record: Record, root: Path) -> KillReply:
    """Cancel a job without saving, and record the end."""
    record.begin(started_at=started_at(run))
    run.log_event("kill_asked", by=request.by, started_at=started_at(run))
    touch(run.killed_file)  # its script and supervisor see that it is not a preemption
    run_slurm("scancel", job.id)
    deadline = time.monotonic() + END_WAIT_S
    while (left := queue(root).get(run.name)) is not None and time.monotonic() < deadline:
        time.sleep(0.3)
    reply: KillReply = {"run": run.name, "left": [], "forced": False, "state": "killed"}
    if left is not None:
        return {**reply, "note": f"SLURM is still ending job {job.id} ({left.state})"}
    with suppress(RunDirError):  # its supervisor on a node that is gone may still hold the lock
        record_end(run, "killed", by=request.by)
    return reply
