"""What launches in tmux and in SLURM share: the check of a start, its lock, and ends that no supervisor recorded.

A run must not be reported as starting when its tmux pane is dead or gone, nor as lost when it was killed. Whoever sees
such a run records its end, once (:func:`grpo_train.run_dir.kill.record_end` holds the lock of ``status.json``).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.files import open_lock
from grpo_train.run_dir.kill import record_end, was_killed
from grpo_train.run_dir.sessions import session_name
from remote.agent.box import BoxContext
from remote.agent.engine import Engine, ask_engine, find_engine, running_version
from remote.agent.sessions import Session, Sessions, socket_path
from remote.protocol import RemoteError
from remote.protocol.jobs import JobOptions, LaunchRequest

TAIL_LINES = 20
LOST_EVERY_S = 5.0
"""A lost run is looked at again this often: a disk may have room by then."""
LAUNCH_LOCK = ".launch.lock"
"""Held from the creation of a run to the start of its session."""
GONE_AFTER_S = 5.0
"""A run without a session is not started any more after this time: a repeated launch may be on its way."""
NOT_STARTED = "not_started"
"""Error code of a run that a repeated launch may start."""
GONE = "the supervisor did not start: it has no tmux session (the agent, the tmux server or the box ended before)"
_NOT_EXECUTED = (126, 127)
"""Exit status of a shell that cannot execute a command, or cannot find it."""


class EndRecorder:
    """Records missing ends; remembers when it last looked at a lost run."""

    def __init__(self, box: BoxContext) -> None:
        self._sessions, self._readonly, self._clock = Sessions(box), box.settings.readonly, box.clock
        self._socket = str(socket_path(box.settings.tmux_socket))
        self._looked: dict[Path, float] = {}
        self._silent: set[Path] = set()
        """Runs with a dead pane that was empty, or without a status: tmux may learn what was printed, and how the
        process ended, a moment later."""
        self._gone: dict[Path, float] = {}
        """Runs without a session and without a status, and when each was first seen so."""

    def settle(self, run: RunDir, state: str) -> bool:
        """Record the end of a run in this state, if it has ended; whether it did. A read-only agent records nothing."""
        if self._readonly:
            return False
        if state == "lost":
            now = self._clock.monotonic()
            if now - self._looked.get(run.path, -LOST_EVERY_S) < LOST_EVERY_S:
                return False
            self._looked[run.path] = now
        elif state != "starting" or run.status_file.exists():
            return False
        try:
            return self._settle(run, state)
        except (RemoteError, RunDirError, OSError):  # no tmux; another process writes the status; a full disk
            return False

    def _settle(self, run: RunDir, state: str) -> bool:
        never_started = not run.status_file.exists()
        ours = never_started and self._is_ours(run)  # first: a look at tmux starts a process
        session = self._session(run) if ours else None
        if session is not None and not session["dead"]:
            return False
        if (state == "lost" or session) and was_killed(run):
            return record_end(run, "killed", by="agent")
        if session is None:
            gone = ours and self._is_gone(run)
            return gone and record_end(run, "crashed", by="agent", error=GONE, code=NOT_STARTED)
        lines = self._sessions.output(session["name"], TAIL_LINES)
        status, signal = session["exit_status"], session["signal"]
        if (not lines or (status is None and not signal)) and run.path not in self._silent:
            self._silent.add(run.path)
            return False
        how = f"killed by {signal}" if signal else f"exit status {'unknown' if status is None else status}"
        return record_end(
            run,
            "crashed",
            by="agent",
            error=f"the supervisor did not start ({how})" + (f": {lines[-1]}" if lines else ""),
            code="no_engine" if status in _NOT_EXECUTED else "internal",
            details={"exit_code": status, "signal": signal or None, "console_tail": lines},
        )

    def _session(self, run: RunDir) -> Session | None:
        session = self._sessions.find(session_name(run.name))
        return session if session and session["run"] == run.name else None

    def _is_ours(self, run: RunDir) -> bool:
        """Whether a run that has not started needs a session in this account's tmux here."""
        launch = run.read_launch()
        return (launch.get("tmux"), launch.get("host")) == (self._socket, socket.gethostname())

    def _is_gone(self, run: RunDir) -> bool:
        """Whether a run has been without a session for a while, and none is being started."""
        if self._is_launching(run.root):
            return False
        now = self._clock.monotonic()
        return now - self._gone.setdefault(run.path, now) > GONE_AFTER_S

    @staticmethod
    def _is_launching(root: Path) -> bool:
        import fcntl  # POSIX only

        try:
            lock = open_lock(root / "training_runs" / LAUNCH_LOCK)
        except OSError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False


CHECK_S = 30.0
"""For the check of a launch, which reads the data and, on a machine with a GPU, imports torch."""
UNCHECKED = ("slow_engine", "old_engine", "no_answer")
"""Codes of an engine that cannot check a start: it starts nevertheless, and the reply says so."""


def require_free(box: BoxContext, name: str) -> None:
    """Raise RemoteError ``name_taken`` if a run has the name; "" is free."""
    if name and (box.root / "training_runs" / name).exists():
        raise RemoteError("name_taken", f"a run named {name} already exists under {box.root}", "choose another name")


def check_launch(box: BoxContext, request: LaunchRequest, job: JobOptions | None = None) -> dict[str, Any]:
    """Have the engine check a launch as its start will; returns what the reply says of it: ``note``, and ``estimate``
    for a dry run.

    ``job``: it will be a SLURM job. An engine that is too old or too slow to answer does not prevent a launch. Raises
    RemoteError with the engine's code and message, and ``no_engine``.
    """
    fields = {key: getattr(request, key) for key in ("config_text", "config_name", "overrides", "nproc", "ckpt")}
    asked = {**fields, "job": job and {"nodes": job.nodes, "gpus": job.gpus}, "estimate": request.dry_run}
    try:
        running_version(box, find_engine(box))
        answer = ask_engine(box, ["check-launch"], CHECK_S, text=json.dumps(asked))
    except RemoteError as error:
        if error.code not in UNCHECKED:
            raise
        return {"note": not_checked(error)}
    if not isinstance(answer, dict):
        return {}
    found = {"note": "\n".join(map(str, answer.get("notes") or [])), "estimate": answer.get("estimate")}
    return {name: value for name, value in found.items() if value}


def not_checked(error: RemoteError) -> str:
    """What to say of a start that the engine did not check."""
    return f"the config was not checked on the box: {error.message}"


def examine(box: BoxContext, engine: Engine) -> None:
    """Check that the engine runs. Raises RemoteError ``no_engine``; one that is slow to answer may still run."""
    try:
        running_version(box, engine)
    except RemoteError as error:
        if error.code != "slow_engine":
            raise


@contextmanager
def launch_lock(root: Path) -> Iterator[None]:
    """One launch at a time: after a reconnect, a second agent may get a request that the first still works on.

    While it is held, a run may have no session yet (:mod:`remote.agent.start`).
    """
    import fcntl

    descriptor = open_lock(root / "training_runs" / LAUNCH_LOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a mount without locks: create_run's own checks remain
        yield
    finally:
        os.close(descriptor)
