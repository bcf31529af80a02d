"""Starts and ends the process that feeds W&B. Nothing here raises: tracking never ends or delays training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import open_for_writing
from grpo_train.run_dir.processes import RUN_ID_VARIABLE
from grpo_train.tracking.wandb.settings import is_installed, resolve, server

FINISH_S = 25.0
"""Time to send the rest once the run is over; ``grpo-train track`` sends what was left."""
WAIT_S = 30.0
"""Time until the process is killed: longer than it takes to give up by itself."""


@contextmanager
def track_run(run: RunDir, config: Config, say: Callable[[str], None], clock: Clock = CLOCK) -> Iterator[None]:
    """Feed W&B while the context is open, unless it is off."""
    process = _start(run, config, say)
    try:
        yield
    finally:
        if process is not None:
            _end(process, clock)


def _start(run: RunDir, config: Config, say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    if config.tracking.wandb == "off":
        return None
    mode = resolve(config.tracking.wandb)
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
        output = open_for_writing(run.path / "wandb" / "sidecar.log")
        try:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        finally:
            os.close(output)
    except OSError as error:
        say(f"W&B is off: {error.strerror}")
        return None


def _end(process: subprocess.Popen[bytes], clock: Clock) -> None:
    """Let the process send what is left; end it if that takes too long."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if not clock.wait_exit(process, WAIT_S):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
