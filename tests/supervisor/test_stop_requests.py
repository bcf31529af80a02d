"""What signals ask a supervisor for, in a shell and in a SLURM job that is requeued."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.slurm_job import REQUEUE_VARIABLE, current_job, is_earlier_attempt
from grpo_train.supervisor.journal import Journal, ProgressLine
from grpo_train.supervisor.stop_requests import HANGUP_ECHO_S, StopRequests
from tests.support.clock import TestClock

HANDLED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield create_run(tmp_path, {"config_text": ""}, "run")
    for number, handler in before.items():
        signal.signal(number, handler)


def listening(run: RunDir, clock: Clock = CLOCK) -> StopRequests:
    stops = StopRequests(run, Journal(run, ProgressLine(False), clock))
    stops.listen()
    return stops


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_of_slurm_save_and_requeue(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv(REQUEUE_VARIABLE, "1")
    stops = listening(run)
    for _ in range(2):  # SLURM sends SIGTERM again before it kills
        os.kill(os.getpid(), number)
    assert (stops.stop_requested, stops.requeue_requested, stops.killing) == (True, True, False)


def test_a_stop_by_a_user_is_not_requeued(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUEUE_VARIABLE, "1")
    stops = listening(run)
    os.kill(os.getpid(), signal.SIGUSR1)
    run.request_stop(by="me")
    assert stops.stop_requested
    assert not stops.requeue_requested


def test_a_job_that_is_killed_does_not_save(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUEUE_VARIABLE, "1")
    stops = listening(run)
    run.killed_file.touch()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (stops.killing, stops.requeue_requested) == (True, False)


def test_sigterm_ends_a_run_outside_of_slurm(run: RunDir) -> None:
    stops = listening(run)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (stops.killing, stops.stop_requested) == (True, False)


@pytest.mark.parametrize(("first", "second", "seconds", "ends"), [
    (signal.SIGINT, signal.SIGINT, 0.0, True),
    (signal.SIGHUP, signal.SIGHUP, HANGUP_ECHO_S - 0.1, False),  # a closing terminal may send it twice
    (signal.SIGHUP, signal.SIGHUP, HANGUP_ECHO_S, True),
    (signal.SIGINT, signal.SIGHUP, HANGUP_ECHO_S - 0.1, False),
])  # fmt: skip
def test_the_second_request_ends_a_run(
    run: RunDir, first: signal.Signals, second: signal.Signals, seconds: float, ends: bool
) -> None:
    clock = TestClock()
    stops = listening(run, clock)
    os.kill(os.getpid(), first)
    assert (stops.stop_requested, stops.killing) == (True, False)
    clock.advance(seconds)
    os.kill(os.getpid(), second)
    assert stops.killing == ends
    said = (run.logs / "console.log").read_text()
    assert "stop requested; saving after this step (Ctrl-C again: end now, without saving)" in said
    assert ("ending now, without saving; the latest checkpoint is intact" in said) == ends


def test_an_earlier_start_of_the_same_job_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"state": "running", "job": {"id": "7", "requeues": 0, "nodes": 1}}
    assert not is_earlier_attempt(written)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not is_earlier_attempt(written)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert current_job() is not None
    assert is_earlier_attempt(written)
    assert not is_earlier_attempt({"job": {"id": "8", "requeues": 0}})
