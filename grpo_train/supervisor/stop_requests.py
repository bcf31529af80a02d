"""Signals that ask a supervisor to stop its run, and the stop file that users and programs write. Torch-free."""

from __future__ import annotations

import signal
import time
from types import FrameType

from grpo_train.run_dir import RunDir
from grpo_train.supervisor.journal import Journal

HANGUP_ECHO_S = 3.0
"""A closing terminal may send SIGHUP twice; two within this time count as one."""


class StopRequests:
    """Whether the run was asked to stop, and whether it is to end without saving."""

    def __init__(self, run: RunDir, journal: Journal) -> None:
        self._run, self._journal = run, journal
        self._requested_at = 0.0
        self.killing = False
        """Whether the run ends now, without saving."""

    def listen(self) -> None:
        """Handle SIGINT, SIGHUP and SIGTERM from now on."""
        for handled in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(handled, self._on_signal)

    @property
    def stop_requested(self) -> bool:
        """Whether the run is asked to stop after its current step."""
        return self._run.stop_requested()

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if signal_number == signal.SIGHUP and self._requested_at and now - self._requested_at < HANGUP_ECHO_S:
            return
        if signal_number == signal.SIGTERM or self._requested_at:
            self.killing = True
            self._journal.say("ending now, without saving; the latest checkpoint is intact")
            return
        self._requested_at = now
        try:
            self._run.request_stop(by=signal.Signals(signal_number).name)
        except OSError as error:
            stop_file = self._run.stop_file
            self._journal.say(f"cannot write {stop_file}: {error.strerror}; press Ctrl-C again to end the run now")
            return
        self._journal.say("stop requested; saving after this step (Ctrl-C again: end now, without saving)")
