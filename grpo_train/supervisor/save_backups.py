"""Backups after each save (``backup.every_save``) and of the run as it ended, each in a process of its own. Torch-free.

Nothing here raises or is waited for while the run trains: trouble is an event, a notification and the field ``backup``
of ``status.json``. A backup at work is ended when a stage backs up or cleans up; the next one continues where it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE
from grpo_train.supervisor.journal import Journal
from grpo_train.supervisor.notify import Notifier
from grpo_train.supervisor.stages import all_stages
from grpo_train.train.retention import prune_checkpoints

LOOK_S = 1.0
"""Between looks for a new checkpoint."""
AGAIN_S = 300.0
"""After a failure; a new save is backed up at once."""
NICE = 10
GIVE_UP_S = 30.0
"""After SIGTERM: a process that is still there is blocked in the kernel, and not waited for."""
MAX_MESSAGE = 200


class SaveBackups:
    """Backs up the checkpoints of one run as they appear."""

    def __init__(self, run: RunDir, config: Config, journal: Journal, notifier: Notifier) -> None:
        self._run, self._config, self._journal, self._notifier = run, config, journal, notifier
        self._clock = journal.clock
        self._thread = threading.Thread(target=self._loop, name="backups", daemon=True)
        self._ended, self._paused = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        """A signal came while the run was backed up as it ended."""
        self._at_work = threading.Lock()
        """Held while a backup runs, and by :meth:`paused`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._done, self._tried, self._tried_at = 0, 0, 0.0
        self._failing = False

    @contextmanager
    def beside(self) -> Iterator[SaveBackups]:
        """Back up while the context is open, if the config says so."""
        if not self._config.backup.every_save:
            yield self
            return
        self._note("waiting", self._done)
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._cut()
            self._thread.join(GIVE_UP_S)
            if not self._failing:
                self._journal.status.fields["backup"] = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No backup runs inside; one that runs is ended."""
        self._paused.set()
        self._cut()
        is_mine = self._at_work.acquire(timeout=GIVE_UP_S)
        try:
            yield
        finally:
            self._paused.clear()
            if is_mine:
                self._at_work.release()

    def last(self) -> bool:
        """Back up the run as it ended, wherever its config backs it up; its status is not written any more.

        ``run.keep_last`` may then remove checkpoints that no earlier backup had, which the next snapshot records.
        Returns False if a backup failed or was cut.
        """
        destinations = _destinations(self._config)
        if not destinations:
            return True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop())
        self._print(f"backing up {self._run.name}")
        is_stored = self._back_up_to_all(destinations)
        if is_stored and self._config.backup.every_save:
            keep_last, keep_every = self._config.run.keep_last, self._config.run.keep_every
            removed = prune_checkpoints(self._run, keep_last=keep_last, keep_every=keep_every, only_backed_up=True)
            is_stored = not removed or self._back_up_to_all(destinations)
        if not is_stored:
            name = self._run.name
            self._print(f"{name} is not backed up as it ended: grpo-train backup --training-run {name}")
        return is_stored

    def _back_up_to_all(self, destinations: list[str | None]) -> bool:
        stored = [not self._stopped.is_set() and self._back_up(self._newest(), to) for to in destinations]
        return all(stored)

    def _print(self, text: str) -> None:
        """On the terminal only: console.log is part of the backup."""
        with suppress(OSError, ValueError):  # a closed terminal
            print(f"grpo-train: {text}", flush=True)

    def _loop(self) -> None:
        while not self._clock.wait(self._ended, LOOK_S):
            with self._at_work:
                step = self._newest()
                new = step not in (0, self._done, self._tried)
                again = step == self._tried != self._done and self._clock.monotonic() - self._tried_at >= AGAIN_S
                if (new or again) and not (self._paused.is_set() or self._ended.is_set()):
                    self._back_up(step, self._config.backup.to)

    def _newest(self) -> int:
        """Step of the newest checkpoint; 0 without one, and where that cannot be read."""
        try:
            return self._run.newest_step()
        except (UserError, OSError):  # a checkpoint that is being pruned
            return 0

    def _back_up(self, step: int, to: str | None) -> bool:
        """Whether the run is in the store now."""
        self._tried, self._tried_at = step, self._clock.monotonic()
        self._note("running", step)
        try:
            answer = self._answer(to)
        except OSError as error:  # no memory for another process
            answer = {"error": {"code": "internal", "message": f"cannot start a backup: {error.strerror}"}}
        if "snapshot" in answer:
            self._done, self._failing = step, False
            self._note("done", step)
        elif self._is_cut() or answer.get("error", {}).get("code") == "busy":
            self._tried = self._done  # it was ended, or another backup is at work: soon again
            self._note("waiting", step)
        else:
            self._report(step, answer.get("error") or {"code": "killed", "message": "the backup was killed"})
        return "snapshot" in answer

    def _answer(self, to: str | None) -> dict[str, Any]:
        """The result of a backup, which its exit code is not: the supervisor's reaper may take that. Raises OSError."""
        command = [sys.executable, "-m", "grpo_train.cli", "backup", "--json"]
        command += ["--training-run", self._run.name, "--root", str(self._run.root)]
        command += ["--to", to] if to else []
        hidden = (RUN_ID_VARIABLE, PARENT_VARIABLE)  # what carries them is ended with each stage
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key not in hidden} | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._process = process
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        if self._is_cut():
            self._cut()
        assert process.stdout is not None
        with process.stdout:
            text = process.stdout.read()
        process.wait()
        self._process = None
        try:
            answer = json.loads(text)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def _is_cut(self) -> bool:
        """Whether this thread's backups are ended on purpose."""
        has_ended = self._ended.is_set() and self._is_beside()
        return self._paused.is_set() or self._stopped.is_set() or has_ended

    def _is_beside(self) -> bool:
        """Whether this is the thread that backs up beside the training."""
        return threading.current_thread() is self._thread

    def _stop(self) -> None:
        self._stopped.set()
        self._cut()

    def _cut(self) -> None:
        if process := self._process:
            with suppress(OSError):  # it has ended
                process.terminate()

    def _report(self, step: int, error: dict[str, Any]) -> None:
        code, message = str(error.get("code", "")), str(error.get("message", ""))[:MAX_MESSAGE]
        self._note("failed", step, code=code, error=message)
        if self._failing:
            return  # said once, until a backup succeeds
        self._failing = True
        self._journal.event("backup_failed", step=step, code=code, error=message)
        then = "; training continues" if self._is_beside() else ""
        self._journal.say(f"backup of step {step} failed: {message}{then}")
        self._notifier.send("stage_failed", f"backup of step {step} failed: {message}", step=step)

    def _note(self, state: str, step: int, **facts: str) -> None:
        """For the next heartbeat's status."""
        self._journal.status.fields["backup"] = {"state": state, "step": step, **facts}


def _destinations(config: Config) -> list[str | None]:
    """Where the config backs the run up, after saves or as a stage; None = the default destination."""
    found = [config.backup.to] if config.backup.every_save else []
    found += [stage.destination for stage in all_stages(config) if stage.kind in ("backup", "cleanup")]
    return list(dict.fromkeys(found))
