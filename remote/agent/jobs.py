"""Requests that change something: launch, evaluate, resume, stop, kill; setup, TensorBoard, notes.

Command lines are lists, for tmux, too. With ``dry_run`` a command checks everything, starts nothing, and returns the
exact ``argv``. A request with an idempotency key is carried out once (:mod:`remote.agent.once`).
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from grpo_train.run_dir import RunDir, RunDirError, check_name, create_run, open_run, prepare_root
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.configs import config_values
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.files import atomic_write, read_json
from grpo_train.run_dir.identity import write_note
from grpo_train.run_dir.kill import (
    TERM_WAIT_S,
    KillResult,
    kill_run,
    record_end,
    recorded_supervisor,
    started_at,
)
from grpo_train.run_dir.machine import account_file
from grpo_train.run_dir.processes import boot_id, is_alive, signal_quietly
from grpo_train.run_dir.root import Launch, find_by_key
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from grpo_train.run_dir.sessions import session_name
from grpo_train.run_dir.workflow_file import is_workflow, workflow_state
from remote.agent.box import BoxContext
from remote.agent.code import for_resume, for_session, worktree
from remote.agent.code import record as record_code
from remote.agent.engine import ask_engine, find_engine, not_installed
from remote.agent.once import RequestRecord
from remote.agent.sessions import Sessions, socket_path
from remote.agent.slurm import is_slurm, job_of, kill_job, launch_job, on_a_node, resume_job, stop_job
from remote.agent.start import NOT_STARTED, UNCHECKED, check_launch, examine, launch_lock, not_checked, require_free
from remote.protocol import RemoteError
from remote.protocol.grants import seconds_of
from remote.protocol.jobs import (
    MAX_ENV_BYTES,
    EvaluateRequest,
    JobReply,
    KillReply,
    KillRequest,
    LaunchReply,
    LaunchRequest,
    OpenTensorBoardReply,
    OpenTensorBoardRequest,
    PlaceEnvReply,
    PlaceEnvRequest,
    PlanResumeReply,
    PlanResumeRequest,
    ResumeReply,
    ResumeRequest,
    SetUpRequest,
    StopReply,
    StopRequest,
)
from remote.protocol.runs import NoteReply, NoteRequest

SIGKILL_WAIT_S = 2.0


# ----------------------------------------------------------------------------------------------------------- launch


def launch(box: BoxContext, request: LaunchRequest, record: RequestRecord) -> LaunchReply:
    """Create a run and start its supervisor in a session of the same name.

    A repeated idempotency key returns its run and starts nothing (unless its session never came up).
    """
    box, code = for_session(box, request.dry_run)
    if is_slurm(box):
        record_of_launch = {**_launch_record(box, request, code), "tmux": None}
        return launch_job(box, request, record, record_of_launch, _shell_argv(request))
    name = check_name(request.run_name) if request.run_name else ""
    sessions, engine = Sessions(box), find_engine(box)
    sessions.require()
    checked: dict[str, Any] = {}

    def reply(run: str, started: bool) -> LaunchReply:
        return {
            "run": run,
            "session": session_name(run),
            "argv": [*engine.argv, "supervise", run, "--root", str(box.root)],
            "engine": engine.reason,
            "shell_argv": [*_shell_argv(request), *(["--run-name", name] if name else []), *("--root", str(box.root))],
            "started": started,
            **checked,  # type: ignore[typeddict-item]
        }

    if request.dry_run or find_by_key(box.root, request.idempotency_key) is None:
        require_free(box, name)
        checked |= check_launch(box, request)
    if request.dry_run:
        return reply(name or datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S"), started=False)
    prepare_root(box.root)
    with launch_lock(box.root):
        run = find_by_key(box.root, request.idempotency_key)
        if run is None:
            if name:
                sessions.make_room(session_name(name))
            record.begin()
            run = create_run(box.root, _launch_record(box, request, code), name or None)
        planned = reply(run.name, started=True)
        session = sessions.find(planned["session"])
        if _has_started(run) or (session and session["run"] == run.name):
            return {**planned, "started": False}
        if request.recall:
            raise RemoteError("not_received", f"{run.name} was created, but not started", "launch it again")
        record_code(run, code)
        try:
            sessions.start(planned["session"], planned["argv"], box.directory, box, run.name, record.key)
        except RemoteError as error:
            message = f"the tmux session could not be started: {error.message}"
            record_end(run, "crashed", by="agent", error=message, code=error.code)
            raise
    return planned


def _has_started(run: RunDir) -> bool:
    """Whether a supervisor of the run has written its status, or its session showed why there is none."""
    error = (run.read_status() or {}).get("error")
    return run.status_file.exists() and not (isinstance(error, dict) and error.get("code") == NOT_STARTED)


def _launch_record(box: BoxContext, request: LaunchRequest, code: Code | None) -> dict[str, Any]:
    """Contents of ``launch.json``."""
    launch = Launch(
        argv=_shell_argv(request),
        config_name=request.config_name,
        config_text=request.config_text,
        overrides=request.overrides,
        ckpt=request.ckpt or None,
        nproc=request.nproc,
        by=request.by,
        idempotency_key=request.idempotency_key or None,
        tmux=str(socket_path(box.settings.tmux_socket)),
        code=code.to_json() if code else None,
        grant=box.grant.account if box.grant else None,
    )
    return asdict(launch)


def _shell_argv(request: LaunchRequest) -> list[str]:
    """The equivalent command for a shell on the box."""
    argv = ["grpo-train", "train", "--cfg", request.config_name or "config.yaml"]
    argv += ["--ckpt", request.ckpt] if request.ckpt else []
    argv += ["--nproc", str(request.nproc)] if request.nproc else []
    return [*argv, *set_options(request.overrides)]


def set_options(overrides: list[str]) -> list[str]:
    """Overrides as command-line options."""
    return [word for override in overrides for word in ("--set", override)]


# --------------------------------------------------------------------------------------------------------- evaluate


def evaluate(box: BoxContext, request: EvaluateRequest, record: RequestRecord) -> JobReply:
    """Evaluate checkpoints of a run, or one given by path, in a session ``eval_<run>``.

    On a SLURM cluster the session waits for a job of one node, which has the options of the box and ends with it.
    """
    arguments, run = ["eval"], request.run
    if run:
        in_older_layout = "/" not in run and (box.root / "rl_runs" / run).is_dir()
        run = run if in_older_layout else open_run(box.root, run).name
        arguments += ["--training-run", run]
    if request.steps not in ("", []):
        steps = request.steps if isinstance(request.steps, list) else [request.steps]
        arguments += ["--steps", ",".join(map(str, steps))]
    for field in fields(request):  # the others are options of ``grpo-train eval`` under the same name
        arguments += [] if field.name in _NOT_OPTIONS else option(request, field.name)
    label = run or check_name(request.name or Path(request.ckpt_path).name)
    record.begin()
    box, _ = for_session(box, request.dry_run)
    session = session_name(f"eval_{label}")
    node = on_a_node(box, session) if is_slurm(box) else []
    if box.grant is not None and (seconds := seconds_of(request)) is not None:
        # the engine's own limit is for each step, once it is loaded: an assistant has paid for no more than this
        if not shutil.which("timeout"):
            raise RemoteError("no_engine", "'timeout' of coreutils is not on PATH", "install coreutils on the box")
        node = [*node, "timeout", "--foreground", f"--kill-after={KILL_AFTER_S}", f"{seconds:.0f}"]
    return run_in_session(box, session, arguments, run, request.dry_run, record, node=node)


KILL_AFTER_S = 30
_NOT_OPTIONS = ("run", "steps", "dry_run", "idempotency_key", "recall", "why")


def option(request: Any, name: str) -> list[str]:
    """A field of a request as a command-line option; [] where it is not set."""
    value = getattr(request, name)
    return [] if value in (None, "") else [f"--{name.replace('_', '-')}", str(value)]


def run_in_session(
    box: BoxContext,
    session: str,
    arguments: list[str],
    run: str,
    dry_run: bool,
    record: RequestRecord,
    started_before: bool = False,
    node: Sequence[str] = (),
) -> JobReply:
    """Start ENGINE ``arguments --root ROOT`` in a session, in place of a dead one of the same name.

    ``node``: words before it that have another machine run it. Raises RemoteError ``session_live`` when a session of
    that name is alive.
    """
    sessions, engine = Sessions(box), find_engine(box)
    argv = [*node, *engine.argv, *arguments, "--root", str(box.root)]
    started_before = started_before or sessions.has_key(record.key)
    if not started_before:
        sessions.require_not_live(session)
        examine(box, engine)
    if not dry_run and not started_before:
        prepare_root(box.root)
        sessions.start(session, argv, box.directory, box, run, record.key)
    started = not dry_run and not started_before
    return {"run": run, "session": session, "argv": argv, "engine": engine.reason, "started": started}


# ---------------------------------------------------------------------------------------------------- stop and kill


def stop(box: BoxContext, request: StopRequest, record: RequestRecord) -> StopReply:
    """Ask a run to save and stop after the current step. Where a full disk takes no request, end it by SIGTERM."""
    run = open_run(box.root, request.run)
    if (job := job_of(box, run)) is not None:
        return stop_job(run, job, request, record, box.root)
    observed = run.observed_state()
    if record.found is not None and (not observed.is_live or started_since(run, record)):
        return {"run": run.name, "state": observed.state}  # it ended after an earlier agent asked it to stop
    if not observed.is_live:
        raise RemoteError("not_running", f"{run.name} is not running ({observed.state})")
    record.begin(started_at=started_at(run))
    reply: StopReply = {"run": run.name, "state": observed.state}
    try:
        run.request_stop(request.by)
    except OSError as error:
        targets = _live_supervisors(box, run)
        if code_of(error) != "disk_full" or observed.host or not targets:
            raise
        for pid, _ in targets:
            signal_quietly(pid, signal.SIGTERM)
        return {**reply, "note": f"{error.strerror}: it was sent SIGTERM instead and ends without saving"}
    if run.stop_file.exists() and not run.stop_file.stat().st_size:
        reply["note"] = "the disk is full: it may not be able to save"
    return reply


def kill(box: BoxContext, request: KillRequest, record: RequestRecord) -> KillReply:
    """End a run now, without saving (see :func:`grpo_train.run_dir.kill.kill_run`), or an evaluation's session."""
    if request.session:
        return _kill_session(box, request.session, record)
    run = open_run(box.root, request.run)
    if started_since(run, record):
        return {"run": run.name, "state": run.observed_state().state, "left": [], "forced": False}
    if (job := job_of(box, run)) is not None:
        return kill_job(run, job, request, record, box.root)
    record.begin(started_at=started_at(run))
    try:
        killed = kill_run(
            run,
            by=request.by,
            supervisors=_session_process(box, run),
            patience_s=TERM_WAIT_S if request.patience_s is None else min(request.patience_s, TERM_WAIT_S),
        )
    except RunDirError as error:
        if error.code != "not_running" or record.found is None:
            raise
        killed = KillResult([], False)  # an earlier agent was killed after the last process ended
        record_end(run, "killed", by=request.by)
    reply: KillReply = {"left": killed.left, "forced": killed.forced}
    if killed.unrecorded:
        reply["note"] = f"{killed.unrecorded.strerror}: the end is recorded when there is room"
    state = run.observed_state().state
    return {**reply, "run": run.name, "state": "killed" if killed.unrecorded and not killed.left else state}


def _kill_session(box: BoxContext, name: str, record: RequestRecord) -> KillReply:
    """End the process of a session that an agent started; the dead pane keeps its last output."""
    row = Sessions(box).find(name)
    process = {} if row is None else {"pid": row["pid"], "pid_start": row["start"], "boot_id": boot_id()}
    if record.found is not None and (row is None or row["dead"] or process != record.found):
        return {"session": name, "left": [], "forced": False}  # ended by an earlier agent
    if row is None:
        Sessions(box).require_none_lost()
    if row is None or row["dead"]:
        raise RemoteError("not_running", f"nothing of grpo-tui is running in a tmux session '{name}' on this box")
    if not row["marked"]:
        raise RemoteError(
            "not_ours", f"the tmux session '{name}' was not started by grpo-tui", "end it from inside the session"
        )
    pid = int(row["pid"])
    record.begin(**process)
    ended = end_process(pid, process["pid_start"])
    return {"session": name, "left": [pid] if ended.is_alive else [], "forced": ended.was_forced}


class ProcessEnd(NamedTuple):
    """What became of a process."""

    is_alive: bool
    was_forced: bool


def end_process(pid: int, start: int | None) -> ProcessEnd:
    """End a process by SIGTERM, then by SIGKILL. ``start``: its start ticks; None = it has ended."""
    for number, patience_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, SIGKILL_WAIT_S)):
        if start is not None and is_alive(pid, start):
            signal_quietly(pid, number)
        deadline = time.monotonic() + patience_s
        while (alive := start is not None and is_alive(pid, start)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not alive:
            break
    return ProcessEnd(alive, number == signal.SIGKILL)


def started_since(run: RunDir, record: RequestRecord) -> bool:
    """Whether the run was resumed after an earlier agent got the same request."""
    before = (record.found or {}).get("started_at")
    return bool(before) and before != started_at(run)


def _live_supervisors(box: BoxContext, run: RunDir) -> set[tuple[int, int]]:
    """Supervisors of a run that are alive on this host: the recorded one, and the process in its session."""
    return recorded_supervisor(run) | {target for target in _session_process(box, run) if is_alive(*target)}


def _session_process(box: BoxContext, run: RunDir) -> list[tuple[int, int]]:
    """(pid, start ticks) of the process in the run's tmux session, if any."""
    try:
        session = Sessions(box).find(session_name(run.name))
    except RemoteError:
        return []  # without tmux no session was started
    if not session or session["run"] != run.name or session["dead"] or not session["pid"]:
        return []
    return [] if session["start"] is None else [(session["pid"], session["start"])]


PLAN_WAIT_S = 45.0
"""The engine imports torch to check the GPUs."""


def resume(box: BoxContext, request: ResumeRequest, record: RequestRecord) -> ResumeReply:
    """Resume a run from a checkpoint, in the run's session.

    Raises RemoteError: ``code_differs`` where the synced code is not that of the run and ``request.code`` chooses none;
    ``workflow_edited`` for edits of the workflow that ``request.confirmation`` does not name. A repeated request has
    been confirmed.
    """
    run = open_run(box.root, request.run)
    resumed, observed = started_since(run, record), run.observed_state()
    repeated = resumed or (not is_slurm(box) and Sessions(box).has_key(record.key))
    if observed.is_live and not repeated:
        host = f" on {observed.host}" if observed.host else ""
        raise RemoteError("run_is_live", f"{run.name} is {observed.state}{host}", "stop it before you resume it")
    arguments = _arguments(run, request)
    checkpoint = run.checkpoint(str(request.from_step or "latest"))
    code = None if repeated else for_resume(box, run, request.code)
    note = ""
    if not repeated:
        must_answer = not request.dry_run and _may_be_edited(run, request)
        changes = not is_slurm(box) and bool(request.dry_run or request.overrides or request.nproc)
        confirmation, note = _check(box, arguments, must_answer) if must_answer or changes else ("", "")
        if confirmation and not request.dry_run:
            if confirmation != request.confirmation:
                message = f"the workflow of {run.name} was edited since its last start"
                raise RemoteError("workflow_edited", message, "confirm the edited stages")
            arguments += ["--yes"]
    record.begin(started_at=started_at(run))
    if code is not None and not request.dry_run:
        box = box.at(worktree(code, run))
        record_code(run, code)
    if is_slurm(box):
        return {**resume_job(box, run, arguments, request.dry_run, record, resumed), "step": checkpoint.step}
    reply = run_in_session(box, session_name(run.name), arguments, run.name, request.dry_run, record, resumed)
    return {**reply, "step": checkpoint.step, **({"note": note} if note else {})}  # type: ignore[typeddict-item]


def _check(box: BoxContext, arguments: list[str], must_answer: bool) -> tuple[str, str]:
    """Have the engine check a resume as its start will; returns the confirmation of an edited workflow, and what to say
    where the engine does not answer and need not. Raises RemoteError."""
    try:
        return _plan(box, arguments)["confirmation"], ""
    except RemoteError as error:
        if must_answer or error.code not in UNCHECKED:
            raise
        return "", not_checked(error)


def plan_resume(box: BoxContext, request: PlanResumeRequest) -> PlanResumeReply:
    """What a resume would do, and what of its workflow was edited. Raises RemoteError, with the engine's code."""
    return _plan(box, _arguments(open_run(box.root, request.run), request))


def _plan(box: BoxContext, arguments: list[str]) -> PlanResumeReply:
    plan = ask_engine(box, [*arguments, "--dry-run"], PLAN_WAIT_S)
    if not isinstance(plan, dict) or not isinstance(plan.get("confirmation"), str):
        raise RemoteError("no_answer", "grpo-train resume --dry-run did not print a plan")
    return cast(PlanResumeReply, plan)


def _arguments(run: RunDir, request: ResumeRequest | PlanResumeRequest) -> list[str]:
    """``--nproc`` and ``--set`` are passed only when requested: version 0.1.0 of the engine does not know them."""
    arguments = ["resume", "--training-run", run.name, "--from-step", str(request.from_step or "latest")]
    for name in ("additional_steps", "nproc"):
        arguments += option(request, name)
    return [*arguments, *set_options(request.overrides)]


def _may_be_edited(run: RunDir, request: ResumeRequest) -> bool:
    """Whether the engine has to compare the workflow: without one, before or now, it is not asked, which takes time."""
    with suppress(Unreadable, OSError):
        if (recorded := workflow_state(run.path)) is None:
            return False
        if is_workflow(recorded["stages"]) or any(word.startswith("workflow") for word in request.overrides):
            return True
        text = (read_bytes(run.config_file, MAX_RUN_FILE_BYTES) or b"").decode(errors="replace")
        return "\nworkflow:" in f"\n{text}" and config_values(text).get("workflow.stages") != ""
    return True


SETUP_SESSION = "setup"
SCRIPT = "scripts/setup.sh"


def place_env(box: BoxContext, request: PlaceEnvRequest, record: RequestRecord) -> PlaceEnvReply:
    """Put the variables where every job of this account reads them, readable by this account only.

    Raises RemoteError ``bad_request`` for a text that is too long.
    """
    data = request.text.encode(errors="surrogatepass")
    if len(data) > MAX_ENV_BYTES:
        raise RemoteError("bad_request", f"a .env of {len(data):,} bytes is too long; the limit is {MAX_ENV_BYTES:,}")
    file = account_file()
    replaced = file.exists()
    record.begin()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(file, data, mode=0o600)
    return {"path": str(file), "replaced": replaced}


def set_up(box: BoxContext, request: SetUpRequest, record: RequestRecord) -> JobReply:
    """Run the checkout's setup script in the session ``setup``; one that is running already is left to it.

    Raises RemoteError: ``bad_request`` for a box with an environment of its own, ``no_repo`` without a checkout,
    ``session_live`` where something else runs in a session of this name.
    """
    for key in ("engine", "activate"):
        if getattr(box.settings, key):
            message = f"nothing to set up: '{key}' in boxes.yaml names the environment of this box"
            raise RemoteError("bad_request", message, "grpo-tui doctor checks it")
    if box.repo is None:
        raise RemoteError("no_repo", "no checkout is configured for this box", "set 'repo' in boxes.yaml")
    script = box.repo / SCRIPT
    if not script.is_file():
        message = f"{box.repo} is not a checkout of grpo-tui" if box.repo.is_dir() else f"{box.repo} does not exist"
        raise RemoteError("no_repo", message, not_installed(box).hint)
    sessions = Sessions(box)
    sessions.require()
    argv = [shutil.which("bash") or "bash", str(script), "--box"]
    row = sessions.find(SETUP_SESSION)
    is_running = row is not None and not row["dead"] and row["marked"]
    starts = not is_running and not request.dry_run
    if starts:
        record.begin()
        sessions.start(SETUP_SESSION, argv, box.repo, box, key=record.key)
    return {"run": "", "session": SETUP_SESSION, "argv": argv, "engine": "", "started": starts}


START_S = 60.0
POLL_S = 0.1
OUTPUT_LINES = 5


def open_tensorboard(box: BoxContext, request: OpenTensorBoardRequest, record: RequestRecord) -> OpenTensorBoardReply:
    """Start TensorBoard, and wait until it listens. Raises RemoteError ``no_tensorboard`` with what it said."""
    run = open_run(box.root, request.run)
    sessions, session = Sessions(box), session_name(f"tensorboard_{run.name}")
    sessions.require()
    file = box.root / "training_runs" / f".tensorboard-{os.geteuid()}" / f"{run.name}.json"
    row = sessions.find(session)
    if row is None or row["dead"] or not row["marked"]:
        record.begin()
        file.unlink(missing_ok=True)
        arguments = ["tensorboard", "--training-run", run.name, "--address-file", str(file)]
        run_in_session(box, session, arguments, run.name, False, record)
    port, path = _wait_for(file, sessions, session)
    return {"session": session, "port": port, "path": path}


def _wait_for(file: Path, sessions: Sessions, session: str) -> tuple[int, str]:
    """Port and path, once they are announced."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        known = read_json(file) or {}
        if isinstance(known.get("port"), int) and isinstance(known.get("path"), str):
            return known["port"], known["path"]
        row = sessions.find(session)
        if row is None or row["dead"]:
            said = " ".join(sessions.output(session, OUTPUT_LINES)) if row else "its session is gone"
            raise RemoteError("no_tensorboard", f"TensorBoard did not start: {said}")
        time.sleep(POLL_S)
    raise RemoteError("no_tensorboard", f"TensorBoard did not start within {START_S:.0f} s", f"attach to {session}")


def note(box: BoxContext, request: NoteRequest, record: RequestRecord) -> NoteReply:
    """Put a note on a run, in place of its last one; an empty text removes it."""
    run = open_run(box.root, request.run)
    record.begin()
    return {"run": run.name, "note": write_note(run.path, request.text)}
