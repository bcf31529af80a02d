"""What launches in tmux and in SLURM share: the check of a start, and the lock from a run's creation to its start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_train.run_dir.files import open_lock
from remote.agent.ask_engine import ask_engine
from remote.agent.context import BoxContext
from remote.agent.ends import LAUNCH_LOCK
from remote.agent.engine import Engine, find_engine, running_version
from remote.protocol import RemoteError
from remote.protocol.jobs import LaunchRequest
from remote.protocol.slurm import JobOptions

CHECK_S = 30.0
"""For the check of a launch, which reads the data and, on a machine with a GPU, imports torch."""
UNCHECKED = ("slow_engine", "old_engine", "no_answer")
"""Codes of an engine that cannot check a start: it starts nevertheless, and the reply says so."""


def require_free(box: BoxContext, name: str) -> None:
    """Raise RemoteError ``name_taken`` if a run has the name; "" is free."""
    if name and (box.root / "training_runs" / name).exists():
        raise RemoteError("name_taken", f"a run named {name} already exists under {box.root}", "choose another name")


def check_launch(box: BoxContext, request: LaunchRequest, job: JobOptions | None = None) -> str:
    """Have the engine check a launch as its start will; returns what there is to know about it.

    ``job``: it will be a SLURM job. An engine that is too old or too slow to answer does not prevent a launch. Raises
    RemoteError with the engine's code and message, and ``no_engine``.
    """
    fields = {key: getattr(request, key) for key in ("config_text", "config_name", "overrides", "nproc", "ckpt")}
    asked = {**fields, "job": job and {"nodes": job.nodes, "gpus": job.gpus}}
    try:
        running_version(box, find_engine(box))
        answer = ask_engine(box, ["check-launch"], CHECK_S, text=json.dumps(asked))
    except RemoteError as error:
        if error.code not in UNCHECKED:
            raise
        return not_checked(error)
    return "\n".join(map(str, answer.get("notes") or [])) if isinstance(answer, dict) else ""


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

    While it is held, a run may have no session yet (:mod:`remote.agent.ends`).
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
