"""Starts and ends the process that feeds W&B. Nothing here raises: tracking never ends or delays training."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import closing_descriptor, open_for_writing
from grpo_train.run_dir.processes import RUN_ID_VARIABLE
from grpo_train.tracking.wandb.settings import is_installed, resolve_mode, server

FINISH_S = 25.0
"""Time to send the rest once the run is over; ``grpo-train track`` sends what was left."""
WAIT_S = 30.0
"""Time until the process is killed: longer than it takes to give up by itself."""


@contextmanager
def track_run(run: RunDir, config: Config, say: Callable[[str], None], clock: Clock = CLOCK) -> Iterator[None]:
    """Feed W&B while the context is open, unless it is off. What W&B lacks then is recorded, and said at the end."""
    mode = "off" if config.tracking.wandb == "off" else resolve_mode(config.tracking.wandb)
    earlier = failure_of(run)
    process = None if config.tracking.wandb == "off" else _start(run, config, mode, say)
    try:
        yield
    finally:
        if process is not None:
            problem = _end(process, clock)
            failure = failure_of(run)
            if problem and (process.returncode == -signal.SIGKILL or failure in (None, earlier)):
                failure = report_failure(run, mode, problem)
            if problem and failure:
                say(f"W&B: {failure['error']}; {failure['hint']}")


def report_failure(run: RunDir, mode: str, message: str) -> dict[str, Any]:
    """Record in the run's events that W&B lacks something; returns what is recorded."""
    words = ["--training-run", run.name, *(["--mode", mode] if mode == "offline" else []), "--root", str(run.root)]
    hint = f"training is not affected; send it later: {shlex.join(['grpo-train', 'track', *words])}"
    failure = {"service": "wandb", "mode": mode, "error": message, "hint": hint}
    with suppress(OSError):  # a full disk
        run.log_event("tracking_failed", **failure)
    return failure


def failure_of(run: RunDir) -> dict[str, Any] | None:
    """The event of what W&B lacks of a run, unless it was opened again since."""
    found = None
    for _, event in run.events():
        if event.get("event") in ("tracking", "tracking_failed"):
            found = event if event["event"] == "tracking_failed" else None
    return found


def _start(run: RunDir, config: Config, mode: str, say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    if mode == "off" or not is_installed():
        say("W&B is off: no API key or the package wandb is not installed")
        return None
    if config.tracking.wandb == "auto":  # the config keeps it: a resume may have a route
        say(f"tracking.wandb: auto -> {mode} ({server()} {'can' if mode == 'online' else 'cannot'} be reached)")
    # Not with the run's ID: what carries it is ended after each stage.
    environment = {key: value for key, value in os.environ.items() if key != RUN_ID_VARIABLE}
    command = [sys.executable, "-m", "grpo_train.tracking.wandb.sidecar", str(run.path), mode]
    try:
        (run.path / "wandb").mkdir(exist_ok=True)
        with closing_descriptor(open_for_writing(run.path / "wandb" / "sidecar.log")) as output:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
            )
    except OSError as error:  # a full disk
        say(f"W&B is off: {error.strerror}")
        report_failure(run, mode, f"the process that feeds W&B could not be started: {error.strerror}")
        return None


def _end(process: subprocess.Popen[bytes], clock: Clock) -> str:
    """Let the process send what is left; end it if that takes too long. Returns what went wrong, or ""."""
    assert process.stdin is not None
    with suppress(OSError):  # it has ended
        process.stdin.close()
    if not clock.wait_exit(process, WAIT_S):
        with suppress(OSError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # blocked in the kernel
            process.wait(timeout=5)
        return f"the process that feeds W&B had not ended {WAIT_S:g} s after the run, and was killed"
    code = process.returncode
    if code < 0:
        return f"the process that feeds W&B was killed (signal {-code})"
    return f"the process that feeds W&B failed (exit code {code}): wandb/sidecar.log" if code else ""
