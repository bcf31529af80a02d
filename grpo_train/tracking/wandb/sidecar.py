"""``python -m grpo_train.tracking.wandb.sidecar RUN MODE``: feeds W&B while a run is supervised.

It ends when its standard input does: the supervisor closes it, or has died. Nothing is kept of how far the log was
sent: online, W&B says which steps it has; offline, the whole log is written again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from grpo_train.config import load_config, read_config_text
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import closing_descriptor, lock_if_free, open_lock
from grpo_train.run_dir.machine import give_way, set_umask
from grpo_train.tracking.wandb import process
from grpo_train.tracking.wandb.rows import Generation, generations
from grpo_train.tracking.wandb.session import WandbSession
from grpo_train.tracking.wandb.settings import WandbError, WandbSettings, settings_of

EVERY_S = 2.0
RETRY_S = (30.0, 60.0, 300.0, 600.0)
REFUSED = ("401", "403", "permission", "api_key", "api key", "unauthorized")
"""In the messages of errors that no repeat changes."""
MAX_MESSAGE = 300


class Sidecar:
    """Feeds one run."""

    def __init__(self, run: RunDir, settings: WandbSettings, done: threading.Event) -> None:
        self._run, self._settings, self._done = run, settings, done

    def run(self) -> int:
        """Feed until the run is over; returns the exit code."""
        failures = 0
        while True:
            try:
                self._feed()
                return 0
            except Exception as error:  # whatever W&B raises must end here
                if not self._failed(error, failures):
                    return 1
            if self._done.wait(RETRY_S[min(failures, len(RETRY_S) - 1)]):
                return 1
            failures += 1

    def _failed(self, error: Exception, failures: int) -> bool:
        """Record a failure; returns whether another try may help."""
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]
        is_refused = any(word in message.lower() for word in REFUSED)
        if is_refused or not failures:
            process.report_failure(self._run, self._settings.mode, message)
        print(message, flush=True)
        return not is_refused

    def _feed(self) -> None:
        generation = self._generation()
        session = self._open(generation)
        while True:
            is_over = self._done.wait(EVERY_S)
            if (latest := self._generation()).index != generation.index:
                session.finish("superseded")
                generation = latest
                session = self._open(generation)
            session.feed()
            if is_over:
                break
        session.finish(self._run.observed_state().state)

    def _open(self, generation: Generation) -> WandbSession:
        session = WandbSession(self._run, self._settings, generation)
        with contextlib.suppress(OSError):  # a full disk
            self._run.log_event("tracking", service="wandb", mode=self._settings.mode, url=session.url)
        return session

    def _generation(self) -> Generation:
        return generations(event for _, event in self._run.events())[-1]


@contextlib.contextmanager
def only_one(run: RunDir, until: threading.Event | None = None) -> Iterator[None]:
    """Hold the lock of a run's tracking; wait for it ``until`` an event is set. Raises WandbError if it is taken."""
    (run.path / "wandb").mkdir(exist_ok=True)
    with closing_descriptor(open_lock(run.path / "wandb" / ".lock")) as descriptor:
        while not lock_if_free(descriptor):
            if until is None or until.wait(1.0):
                raise WandbError(f"{run.name} is being tracked by another process", code="busy")
        yield


def main(argv: list[str], clock: Clock = CLOCK) -> int:
    """The process."""
    run, mode = RunDir(Path(argv[0])), argv[1]
    set_umask()
    give_way()
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    done = threading.Event()
    threading.Thread(target=_wait_for_end, args=(run, mode, done, clock), daemon=True).start()
    try:
        config = load_config(read_config_text(run.config_file), source=str(run.config_file))
        with only_one(run, done):  # an earlier one may still be sending
            return Sidecar(run, settings_of(config, run.name, mode=mode), done).run()
    except UserError as error:  # an earlier one is still sending; no key
        process.report_failure(run, mode, str(error))
        return 1


def _wait_for_end(run: RunDir, mode: str, done: threading.Event, clock: Clock) -> None:
    """Wait for the end of the standard input; some time later end this process, whatever it does."""
    while os.read(0, 4096):
        pass
    done.set()
    clock.sleep(process.FINISH_S)
    process.report_failure(run, mode, f"not everything was sent within {process.FINISH_S:g} s after the end of the run")
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # not the timer's time
