"""Boxes with ``scheduler: slurm``: the login node of a cluster. A run is a job in place of a tmux session.

The agent writes ``slurm.sh`` into the run directory and submits it; SLURM's queue and accounting complete the states
of the run directories. Everything else reads the run directories on the shared file system, as on any box.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from grpo_train.run_dir import LIVE_STATES, RunDir, RunDirError, check_name, create_run, prepare_root
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.files import atomic_write, remove_tree, touch, utc_now
from grpo_train.run_dir.kill import record_end, started_at
from grpo_train.run_dir.root import find_by_key
from grpo_train.run_dir.safe_json import Unreadable, open_regular
from grpo_train.run_dir.sessions import root_mark
from grpo_train.run_dir.slurm_job import REQUEUE_EXIT, REQUEUE_VARIABLE, SCRIPT_FILE, read_job, write_job
from grpo_train.run_dir.status import END_STATES, REQUEUED
from remote.agent.box import BoxContext
from remote.agent.code import record as record_code
from remote.agent.engine import Engine, find_engine
from remote.agent.once import RequestRecord
from remote.agent.start import check_launch, examine, launch_lock, require_free
from remote.protocol import RemoteError
from remote.protocol.jobs import (
    JobOptions,
    JobReply,
    KillReply,
    KillRequest,
    LaunchReply,
    LaunchRequest,
    StopReply,
    StopRequest,
)

COMMAND_WAIT_S = 30.0
"""A busy controller is slow to answer."""
_FIELDS = {"JobID": 20, "State": 30, "Reason": 60, "NodeList": 120, "RestartCnt": 10, "Comment": 300}
"""Columns of squeue, and their widths."""


def run_slurm(*argv: str, directory: Path | None = None, text: str | None = None) -> str:
    """Output of a command. Raises RemoteError: ``no_slurm`` where it is not installed, ``slurm`` where it refused."""
    if not shutil.which(argv[0]):
        hint = "this box is not a login node; remove 'scheduler' from boxes.yaml, or set PATH in its 'env'"
        raise RemoteError("no_slurm", f"{argv[0]} is not on PATH on this box", hint)
    try:
        done = subprocess.run(
            argv,
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_WAIT_S,
            cwd=directory,
        )
    except subprocess.TimeoutExpired:
        raise RemoteError("slurm", f"{argv[0]} did not answer within {COMMAND_WAIT_S:.0f} s", "try again") from None
    except OSError as error:
        raise RemoteError("slurm", f"{argv[0]} could not be started: {error.strerror}") from error
    if done.returncode:
        words = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise RemoteError("slurm", words[:2000] or f"{argv[0]} ended with exit code {done.returncode}")
    return str(done.stdout)


def comment(root: Path, run: str, key: str = "") -> str:
    """Comment of a run's jobs: it tells whose they are, also while nothing else has recorded their id."""
    return ":".join(("grpo", root_mark(root), run, key))


@dataclass(frozen=True)
class QueuedJob:
    """A job of a run that is pending or running."""

    id: str
    state: str
    """SLURM's word, such as ``PENDING``."""
    reason: str
    """Why it is pending, such as ``Priority``."""
    nodes: str
    requeues: int
    run: str
    key: str
    """Digest of the idempotency key of the request that submitted it."""

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD")


def queue(root: Path) -> dict[str, QueuedJob]:
    """The jobs of a root that this account submitted, by run. Raises RemoteError."""
    columns = ",".join(f"{name}:{width}|" for name, width in _FIELDS.items())
    found: dict[str, QueuedJob] = {}
    for line in run_slurm("squeue", "--me", "--noheader", "--states=all", "-O", columns).splitlines():
        job = _parse(line, root_mark(root))
        if job is not None and not _has_ended(job.state) and int(job.id) >= int(getattr(found.get(job.run), "id", 0)):
            found[job.run] = job
    return found


def _parse(line: str, mark: str) -> QueuedJob | None:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) < len(_FIELDS) or not cells[0].isdigit():
        return None
    job_id, state, reason, nodes, requeues, words = cells[: len(_FIELDS)]
    program, _, rest = words.partition(":")
    root, _, rest = rest.partition(":")
    run, _, key = rest.partition(":")
    if program != "grpo" or root != mark:
        return None
    count = int(requeues) if requeues.isdigit() else 0
    return QueuedJob(job_id, state, "" if reason == "None" else reason, nodes, count, run, key)


_ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
)  # fmt: skip


def _has_ended(state: str) -> bool:
    return state.split("+")[0].split(" ")[0] in _ENDED


_NO_ANSWER_EVER = ("Invalid job id", "accounting storage is disabled", "accounting_storage/none")
"""What SLURM says of a job that its controller has forgotten, and on a cluster without accounting."""


def final_state(job_id: str) -> tuple[str | None, str]:
    """How a job ended, as SLURM says it (``OUT_OF_MEMORY``); "" where it is no longer known.

    None where it is not known yet: accounting lags behind and still has the job as running, or one of the two does not
    answer; then with its words. Accounting knows the steps, too, of which one may have run out of memory.
    """
    is_early, unasked = False, ""
    for show, *arguments in (
        ("sacct", "--noheader", "--parsable2", "--format=State", f"--jobs={job_id}"),
        ("scontrol", "-o", "show", "job", job_id),
    ):
        try:
            output = run_slurm(show, *arguments)
        except RemoteError as error:  # no accounting; a job that is forgotten; a controller that is away
            if error.code == "slurm" and not any(words in error.message for words in _NO_ANSWER_EVER):
                is_early, unasked = True, f"{show}: {error.message}"
            continue
        lines = [line for line in output.splitlines() if line.strip()]
        words = output.split() if show == "scontrol" else [f"JobState={line}" for line in lines]
        states = [word.removeprefix("JobState=").split(" ")[0] for word in words if word.startswith("JobState=")]
        if states and _has_ended(states[0]):
            return "OUT_OF_MEMORY" if "OUT_OF_MEMORY" in states else states[0], ""
        is_early |= bool(states)
    return None if is_early else "", unasked


def options_text(arguments: Sequence[str]) -> str:
    """Options as lines of a batch script."""
    return "".join(f"#SBATCH {argument}\n" for argument in arguments)


SAVE_BEFORE_S = 120
"""SLURM sends SIGUSR1 this long before the time limit."""
LOG = "slurm.log"
"""In the run's logs: what script and supervisor print, and why the node's daemon ended them."""

_SCRIPT = """\
#!/bin/bash
{options}
# Written by grpo-tui. The supervisor saves on SIGUSR1 and SIGTERM and exits with {requeue}: the job is requeued.
exec >>{log} 2>&1 # also where --output was changed
cd {directory} || exit
{exports}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -e {config} ]; then
    set -- {again}
else
    set -- {first}
fi
child=
for name in TERM USR1 INT; do trap '[ -z "$child" ] || kill -s '$name' "$child" 2>/dev/null' "$name"; done
"$@" &
child=$!
while wait "$child"; kill -0 "$child" 2>/dev/null; do :; done
wait "$child"
code=$?
case $code in {requeue} | 138 | 143) # 138, 143: a signal came before the supervisor handled it
    case $(scontrol -o show job "$SLURM_JOB_ID") in *JobState=RUNNING*) # else SLURM itself has ended or requeued it
        if [ ! -e {killed} ] && scontrol requeue "$SLURM_JOB_ID"; then sleep 60; fi ;;
    esac ;;
esac
exit $code
"""


def batch_script(
    run: RunDir,
    options: JobOptions,
    note: str,
    directory: Path,
    environment: Mapping[str, str],
    first: Sequence[str],
    again: Sequence[str],
) -> str:
    """Text of the script.

    Args:
        note: comment of the job.
        directory: where commands run.
        environment: variables that they get.
        first: command of the first start.
        again: command after a requeue, once the run has a config.
    """
    log = run.logs / LOG
    arguments = [
        f"--job-name={run.name}",
        f"--comment={note}",
        f"--output={shlex.quote(str(log).replace('%', '%%'))}",  # %j and the like are patterns
        *("--open-mode=append", "--requeue", f"--signal=B:USR1@{SAVE_BEFORE_S}"),
        *options.arguments(),
    ]
    variables = {**environment, REQUEUE_VARIABLE: "1"}
    return _SCRIPT.format(
        options=options_text(arguments),
        requeue=REQUEUE_EXIT,
        log=shlex.quote(str(log)),
        directory=shlex.quote(str(directory)),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        config=shlex.quote(str(run.config_file)),
        killed=shlex.quote(str(run.killed_file)),
        first=shlex.join(first),
        again=shlex.join(again),
    )


EVERY_S = 2.0
"""The queue is read this often at most: controllers are shared."""
QUEUE_WAIT_S = 2.0
"""The list of runs waits this long for the queue."""
GONE_AFTER_S = 6.0
"""A job that has left the queue has ended after this time: its last status may still be on its way to this host."""
UNKNOWN_AFTER_S = 600.0
"""An end that SLURM does not name by then is recorded without a name: accounting may never learn of it."""
TAIL_LINES, MAX_TAIL_BYTES = 20, 8_192


class JobFailure(NamedTuple):
    """Error of a run whose job ended by itself."""

    code: str
    words: str


FAILURES = {
    "OUT_OF_MEMORY": JobFailure(code="out_of_memory", words="out of memory"),
    "TIMEOUT": JobFailure(code="time_limit", words="the time limit ended it before it had saved"),
    "DEADLINE": JobFailure(code="time_limit", words="its deadline ended it before it had saved"),
    "NODE_FAIL": JobFailure(code="node_failed", words="its node failed"),
    "BOOT_FAIL": JobFailure(code="node_failed", words="its node did not boot"),
    "PREEMPTED": JobFailure(code="preempted", words="preempted, and not requeued"),
}
"""SLURM's word for the end of a job, and the error."""


class Jobs:
    """The queue, read again every few seconds; where SLURM does not answer, the last one."""

    def __init__(self, box: BoxContext) -> None:
        self._root, self._readonly, self._clock = box.root, box.settings.readonly, box.clock
        self._queue: dict[str, QueuedJob] | None = None
        """None before the first answer."""
        self._read_at = 0.0
        self._is_read = threading.Event()
        """Whether the reading that began last has ended."""
        self._is_read.set()
        self._problem = "squeue has not answered yet"
        """Why the queue could not be read; "" after an answer."""
        self._gone: dict[str, float] = {}
        """Runs whose job is not in the queue, and when each was first seen so."""
        self._asked: dict[str, float] = {}
        """When SLURM was last asked how each of them ended."""

    def refresh(self) -> None:
        """Read the queue, unless that was done a moment ago. A controller that is slow is not waited for."""
        if self._is_read.is_set():
            if self._read_at and self._clock.monotonic() - self._read_at < EVERY_S:
                return
            self._is_read.clear()
            threading.Thread(target=self._read, name="slurm-queue", daemon=True).start()
        self._clock.wait(self._is_read, QUEUE_WAIT_S)

    def _read(self) -> None:
        try:
            self._queue, self._problem = queue(self._root), ""
        except RemoteError as error:
            self._problem = error.message
        finally:
            self._read_at = self._clock.monotonic()
            self._is_read.set()

    def apply(self, run: RunDir, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the list with what SLURM knows of the run; ``unasked`` says why SLURM could not be asked now."""
        if row["state"] == "unreadable":
            return row
        problem = self._problem
        unasked = {"unasked": problem} if problem else {}
        job = (self._queue or {}).get(run.name)
        if job is not None:
            self._gone.pop(run.name, None)
            return {**row, **_seen(run, row, job), **unasked}
        if row["state"] in (*LIVE_STATES, REQUEUED, "lost") and (job_id := read_job(run.path)):
            if problem:
                is_certain = row["state"] in LIVE_STATES and row["state"] != "starting"
                return row if is_certain else {**row, "state": "starting", **unasked}
            now = self._clock.monotonic()
            since = self._gone.setdefault(run.name, now)
            if now - max(since, self._asked.get(run.name, since)) > GONE_AFTER_S and not self._readonly:
                self._asked[run.name] = now
                if _record_end(run, job_id, is_late=now - since > UNKNOWN_AFTER_S):
                    self._gone.pop(run.name, None)
                    return run.summary()
            return {**row, "state": "starting"} if row["state"] == "lost" else row
        return row


def _seen(run: RunDir, row: dict[str, Any], job: QueuedJob) -> dict[str, Any]:
    """The fields of a row that a job in the queue decides."""
    facts = {"id": job.id, "state": job.state, "reason": job.reason, "nodes": job.nodes, "requeues": job.requeues}
    if job.is_pending:
        return {"job": facts, "state": "pending", "host": ""}
    state = row["state"]
    if state in END_STATES or state in (REQUEUED, "lost"):
        written = (run.read_status() or {}).get("job")
        ours = isinstance(written, dict) and (written.get("id"), written.get("requeues")) == (job.id, job.requeues)
        state = state if ours and state != "lost" else "starting"  # the last start wrote it
    return {"job": facts, "state": state, "host": job.nodes if state in LIVE_STATES else ""}


def _record_end(run: RunDir, job_id: str, *, is_late: bool = False) -> bool:
    """Record how a job ended whose supervisor did not, once SLURM knows it; at once where it ``is_late``."""
    word, unasked = final_state(job_id)
    if word is None and not is_late:
        return False
    code, words = FAILURES.get(word or "", JobFailure(code="internal", words="it ended without a status"))
    try:
        if word == "CANCELLED":
            return record_end(run, "killed", by="SLURM")
        lines = _last_lines(run.logs / LOG)
        last = f": {lines[-1]}" if lines and code == "internal" else ""
        how = f", {word}" if word else f"; SLURM could not be asked how: {unasked}" if unasked else ""
        summary = f"{words} (job {job_id}{how}){last}"
        return record_end(run, "crashed", by="SLURM", error=summary, code=code, details={"console_tail": lines})
    except (RunDirError, OSError):  # a full disk; another process writes the status
        return False


def _last_lines(file: Path) -> list[str]:
    """The last lines of a log; [] without one."""
    try:
        with open_regular(file) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_TAIL_BYTES))
            text = log.read(MAX_TAIL_BYTES).decode(errors="replace")
    except (OSError, Unreadable):
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]


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
    box: BoxContext, request: LaunchRequest, record: RequestRecord, launch: dict[str, object], shell_argv: list[str]
) -> LaunchReply:
    """Create a run and submit its job. A refusal leaves nothing behind."""
    name = check_name(request.run_name) if request.run_name else ""
    engine, options = find_engine(box), job_options(box, request.slurm)
    checked: dict[str, Any] = {}

    def reply(run: str, started: bool, job: str = "") -> LaunchReply:
        argv = ["sbatch", str(box.root / "training_runs" / run / SCRIPT_FILE)]
        common = {"run": run, "session": "", "argv": argv, "engine": engine.reason, "started": started, "job": job}
        named = [*shell_argv, *(["--run-name", name] if name else []), "--root", str(box.root)]
        return {**common, "shell_argv": named, **checked}  # type: ignore[typeddict-item]

    planned = name or datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S")
    if request.dry_run or find_by_key(box.root, request.idempotency_key) is None:
        require_free(box, name)
        checked |= check_launch(box, request, options)
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
    box: BoxContext, run: RunDir, arguments: list[str], dry_run: bool, record: RequestRecord, started_before: bool
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


def stop_job(run: RunDir, job: QueuedJob, request: StopRequest, record: RequestRecord, root: Path) -> StopReply:
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


def kill_job(run: RunDir, job: QueuedJob, request: KillRequest, record: RequestRecord, root: Path) -> KillReply:
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
