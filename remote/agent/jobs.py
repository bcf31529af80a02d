"""Requests that change something: launch, resume, evaluate, stop, kill.

Command lines are lists until tmux gets them. With ``dry_run`` the first three check everything, start nothing, and
return the exact ``argv``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir, check_name, create_run, open_run, prepare_root
from grpo_train.run_dir.kill import TERM_WAIT_S, kill_run, record_end
from grpo_train.run_dir.processes import is_alive, signal_quietly, start_ticks
from grpo_train.run_dir.root import Launch, find_by_key
from remote.agent.context import BoxContext
from remote.agent.engine import find_engine, verify_engine
from remote.agent.sessions import Sessions, session_name
from remote.protocol import RemoteError
from remote.protocol.operations import (
    EvaluateRequest,
    JobReply,
    KillReply,
    KillRequest,
    LaunchReply,
    LaunchRequest,
    ResumeReply,
    ResumeRequest,
    StopReply,
    StopRequest,
)

SIGKILL_WAIT_S = 2.0


# ----------------------------------------------------------------------------------------------------------- launch


def launch(box: BoxContext, request: LaunchRequest) -> LaunchReply:
    """Create a run and start its supervisor in a session of the same name.

    A repeated idempotency key returns its run and starts nothing (unless its session never came up).
    """
    name = check_name(request.run_name) if request.run_name else ""
    sessions, engine = Sessions(box), find_engine(box)
    sessions.require()

    def reply(run: str, started: bool) -> LaunchReply:
        return {
            "run": run,
            "session": session_name(run),
            "argv": [*engine.argv, "supervise", run, "--root", str(box.root)],
            "engine": engine.reason,
            "shell_argv": [*_shell_argv(request), *(["--run-name", name] if name else []), *("--root", str(box.root))],
            "started": started,
        }

    if request.dry_run:
        if name and (box.root / "training_runs" / name).exists():
            raise RemoteError(
                "name_taken", f"a run named {name} already exists under {box.root}", "choose another name"
            )
        return reply(name or datetime.now().strftime("run_%Y-%m-%d_%H-%M-%S"), started=False)
    prepare_root(box.root)
    verify_engine(box, engine)
    with _launch_lock(box.root):
        run = find_by_key(box.root, request.idempotency_key)
        if run is None:
            if name:
                sessions.make_room(session_name(name))
            run = create_run(box.root, _launch_record(request), name or None)
        planned = reply(run.name, started=True)
        session = sessions.find(planned["session"])
        if run.status_file.exists() or (session and session["run"] == run.name):
            return {**planned, "started": False}
        try:
            sessions.start(planned["session"], planned["argv"], box.directory, box.session_environment(), run.name)
        except RemoteError as error:
            message = f"the tmux session could not be started: {error.message}"
            record_end(run, "crashed", by="agent", error=message, code=error.code)
            raise
    return planned


def _launch_record(request: LaunchRequest) -> dict[str, Any]:
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
    )
    return asdict(launch)


def _shell_argv(request: LaunchRequest) -> list[str]:
    """The equivalent command for a shell on the box."""
    argv = ["grpo-train", "train", "--cfg", request.config_name or "config.yaml"]
    argv += ["--ckpt", request.ckpt] if request.ckpt else []
    argv += ["--nproc", str(request.nproc)] if request.nproc else []
    return [*argv, *_set_options(request.overrides)]


def _set_options(overrides: list[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


@contextmanager
def _launch_lock(root: Path) -> Iterator[None]:
    """One launch at a time: after a reconnect, a second agent may get a request that the first still works on."""
    import fcntl

    descriptor = os.open(root / "training_runs" / ".launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a mount without locks: create_run's own checks remain
        yield
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------- resume and evaluate


def resume(box: BoxContext, request: ResumeRequest) -> ResumeReply:
    """Resume a run from a checkpoint, in the run's session.

    ``--nproc`` and ``--set`` are passed only when requested: version 0.1.0 of the engine does not know them.
    """
    run = open_run(box.root, request.run)
    observed = run.observed_state()
    if observed.is_live:
        host = f" on {observed.host}" if observed.host else ""
        raise RemoteError("run_is_live", f"{run.name} is {observed.state}{host}", "stop it before you resume it")
    from_step = str(request.from_step or "latest")
    checkpoint = run.checkpoint(from_step)
    arguments = ["resume", "--training-run", run.name, "--from-step", from_step]
    for option in ("additional_steps", "nproc"):
        arguments += _option(request, option)
    arguments += _set_options(request.overrides)
    reply = _run_in_session(box, session_name(run.name), arguments, run.name, request.dry_run)
    return {**reply, "step": checkpoint.step}


def evaluate(box: BoxContext, request: EvaluateRequest) -> JobReply:
    """Evaluate checkpoints of a run, or one given by path, in a session ``eval_<run>``."""
    arguments, run = ["eval"], request.run
    if run:
        in_older_layout = "/" not in run and (box.root / "rl_runs" / run).is_dir()
        run = run if in_older_layout else open_run(box.root, run).name
        arguments += ["--training-run", run]
    if request.steps not in ("", []):
        steps = request.steps if isinstance(request.steps, list) else [request.steps]
        arguments += ["--steps", ",".join(map(str, steps))]
    for option in fields(request):  # the others are options of ``grpo-train eval`` under the same name
        arguments += [] if option.name in ("run", "steps", "dry_run") else _option(request, option.name)
    label = run or check_name(request.name or Path(request.ckpt_path).name)
    return _run_in_session(box, session_name(f"eval_{label}"), arguments, run, request.dry_run)


def _option(request: Any, name: str) -> list[str]:
    """A field of a request as a command-line option; [] where it is not set."""
    value = getattr(request, name)
    return [] if value in (None, "") else [f"--{name.replace('_', '-')}", str(value)]


def _run_in_session(box: BoxContext, session: str, arguments: list[str], run: str, dry_run: bool) -> JobReply:
    """Start ENGINE ``arguments --root ROOT`` in a session, in place of a dead one of the same name.

    Raises RemoteError ``session_live`` when a session of that name is alive.
    """
    sessions, engine = Sessions(box), find_engine(box)
    argv = [*engine.argv, *arguments, "--root", str(box.root)]
    sessions.require_not_live(session)
    if not dry_run:
        prepare_root(box.root)
        verify_engine(box, engine)
        sessions.start(session, argv, box.directory, box.session_environment(), run)
    return {"run": run, "session": session, "argv": argv, "engine": engine.reason, "started": not dry_run}


# ---------------------------------------------------------------------------------------------------- stop and kill


def stop(box: BoxContext, request: StopRequest) -> StopReply:
    """Ask a run to save and stop after the current step."""
    run = open_run(box.root, request.run)
    observed = run.observed_state()
    if not observed.is_live:
        raise RemoteError("not_running", f"{run.name} is not running ({observed.state})")
    run.request_stop(request.by)
    return {"run": run.name, "state": observed.state}


def kill(box: BoxContext, request: KillRequest) -> KillReply:
    """End a run now, without saving (see :func:`grpo_train.run_dir.kill.kill_run`), or an evaluation's session."""
    if request.session:
        return _kill_session(box, request.session)
    run = open_run(box.root, request.run)
    killed = kill_run(
        run,
        by=request.by,
        supervisors=_session_process(box, run),
        patience_s=TERM_WAIT_S if request.patience_s is None else min(request.patience_s, TERM_WAIT_S),
    )
    return {"run": run.name, "state": run.observed_state().state, "left": killed.left, "forced": killed.forced}


def _kill_session(box: BoxContext, name: str) -> KillReply:
    """End the process of a session that an agent started; the dead pane keeps its last output."""
    row = Sessions(box).find(name)
    if row is None or row["dead"]:
        raise RemoteError("not_running", f"nothing is running in a tmux session '{name}' on this box")
    if not row["marked"]:
        raise RemoteError(
            "not_ours", f"the tmux session '{name}' was not started by grpo-tui", "end it from inside the session"
        )
    pid, start = int(row["pid"]), start_ticks(row["pid"])
    for number, patience_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, SIGKILL_WAIT_S)):
        signal_quietly(pid, number)
        deadline = time.monotonic() + patience_s
        while (alive := start is not None and is_alive(pid, start)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not alive:
            break
    return {"session": name, "left": [pid] if alive else [], "forced": number == signal.SIGKILL}


def _session_process(box: BoxContext, run: RunDir) -> list[tuple[int, int]]:
    """(pid, start ticks) of the process in the run's tmux session, if any."""
    try:
        session = Sessions(box).find(session_name(run.name))
    except RemoteError:
        return []  # without tmux no session was started
    if not session or session["run"] != run.name or session["dead"] or not session["pid"]:
        return []
    ticks = start_ticks(session["pid"])
    return [] if ticks is None else [(session["pid"], ticks)]
