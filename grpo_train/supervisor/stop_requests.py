"""Signals that ask a supervisor to stop its run, and the stop file that users and programs write. Torch-free.

In a batch script that requeues its job (:mod:`grpo_train.run_dir.slurm_job`), SIGUSR1 and SIGTERM ask to save and
requeue: SLURM announces a time limit and a preemption by them.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import stat_of
from grpo_train.run_dir.run import WATCHDOG
from grpo_train.run_dir.slurm_job import PREEMPTED, REQUEUE_VARIABLE
from grpo_train.supervisor.journal import Journal

HANGUP_ECHO_S = 3.0
"""A closing terminal may send SIGHUP twice; two within this time count as one."""


class StopRequests:
    """Whether the run was asked to stop, and whether it is to end without saving."""

    def __init__(self, run: RunDir, journal: Journal) -> None:
        self._run, self._journal = run, journal
        self._requested_at = 0.0
        self._requeues = bool(os.environ.get(REQUEUE_VARIABLE))
        self._preempted = False
        self._events_before = 0
        """Size of the events of earlier starts."""
        self.killing = False
        """Whether the run ends now, without saving."""

    def listen(self) -> None:
        """Handle SIGINT, SIGHUP and SIGTERM from now on, and SIGUSR1 where the job is requeued."""
        if facts := stat_of(self._run.events_file):
            self._events_before = facts.st_size
        for handled in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, *([signal.SIGUSR1] if self._requeues else [])):
            signal.signal(handled, self._on_signal)

    @property
    def stop_requested(self) -> bool:
        """Whether the run is asked to stop after its current step."""
        return self._run.stop_requested()

    @property
    def requeue_requested(self) -> bool:
        """Whether SLURM, and nobody else, has asked this start of the run to stop."""
        asked = [
            event.get("by")
            for start, event in self._run.events()
            if start >= self._events_before and event.get("event") == "stop_asked"
        ]
        return self._requeues and PREEMPTED in asked and set(asked) <= {PREEMPTED, WATCHDOG}

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        if self._requeues and signal_number in (signal.SIGTERM, signal.SIGUSR1) and not self._run.killed_file.exists():
            self._on_preemption(signal_number)
            return
        now = self._journal.clock.monotonic()
        if signal_number == signal.SIGHUP and self._requested_at and now - self._requested_at < HANGUP_ECHO_S:
            return
        if signal_number == signal.SIGTERM or self._requested_at:
            self.killing = True
            self._journal.say("ending now, without saving; the latest checkpoint is intact")
            return
        self._requested_at = now
        with self._journal.writing(self._run.stop_file, "; press Ctrl-C again to end the run now"):
            self._run.request_stop(by=signal.Signals(signal_number).name)
            self._journal.say("stop requested; saving after this step (Ctrl-C again: end now, without saving)")

    def _on_preemption(self, signal_number: int) -> None:
        """Save and requeue. Further signals change nothing: after the grace time SLURM sends SIGKILL anyway."""
        if self._preempted or self._run.stop_requested():
            return
        self._preempted = True  # first: SLURM and the batch script may send the same signal
        with self._journal.writing(self._run.stop_file, "; the job resumes from its last save"):
            self._run.request_stop(by=PREEMPTED)
            name = signal.Signals(signal_number).name
            self._journal.say(f"{name} from SLURM: saving after this step, then the job is requeued")
