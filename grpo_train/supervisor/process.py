"""One stage as a process tree: started, watched, ended. Torch-free.

Stop ladder: (1) ``control/stop``: the trainer saves and exits; (2) SIGTERM to the stage, without saving; (3) SIGKILL to
every process with the run's ID.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.files import read_jsonl, to_float
from grpo_train.run_dir.processes import kill_all, reap_orphans, run_id_of
from grpo_train.supervisor.failure import MAX_LINE, clear_reports, failure
from grpo_train.supervisor.journal import Journal
from grpo_train.supervisor.stages import Stage, stage_environment
from grpo_train.supervisor.stop_requests import StopRequests

HEARTBEAT_S = 2.0
KILL_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""


class Outcome(NamedTuple):
    """How a stage ended."""

    kind: str
    """``done``, ``stopped``, ``killed`` or ``crashed``."""
    error: dict[str, Any] | None = None


class StageRunner:
    """Runs the stages of a run, one after the other."""

    def __init__(
        self, run: RunDir, config: Config, journal: Journal, stops: StopRequests, *, nproc: int, threads: int
    ) -> None:
        self._run, self._config, self._journal, self._stops = run, config, journal, stops
        self._nproc, self._threads = nproc, threads
        self._stopping = False
        """Whether this stage was asked to stop. The trainer removes the request once it has saved."""

    def run(self, stage: Stage, command: list[str]) -> Outcome:
        """Run one stage to its end."""
        run, journal = self._run, self._journal
        if self._stops.killing:
            return Outcome("killed")
        if self._stops.stop_requested:
            run.clear_stop()
            return Outcome("stopped")
        clear_reports(run)
        journal.tail.clear()
        events_before = run.events_file.stat().st_size if run.events_file.exists() else 0
        journal.write(state=_first_state(stage), stage=stage.kind)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=stage_environment(run, self._threads),
                start_new_session=True,  # the terminal's signals must reach the supervisor only
            )
        except OSError as error:
            summary = f"cannot start {command[0]}: {error.strerror}"
            return Outcome("crashed", {"code": code_of(error), "summary": summary})
        reader = threading.Thread(target=self._copy_output, args=(child,), name="console", daemon=True)
        reader.start()
        self._watch(child, stage, events_before)
        kill_all(run_id_of(run.path))
        reader.join(timeout=5)
        reap_orphans()
        return self._outcome(child, stage)

    def _outcome(self, child: subprocess.Popen[bytes], stage: Stage) -> Outcome:
        if self._stops.killing:
            return Outcome("killed")
        if child.returncode == 0:
            reached = self._run.newest_step()
            if self._stopping and stage.kind == "train" and reached < self._config.run.total_steps:
                return Outcome("stopped")  # also after the last step of a stage: no evaluation follows
            return Outcome("done" if stage.kind == "eval" or reached >= stage.until else "stopped")
        if stage.kind == "eval" and self._stops.stop_requested:
            self._run.clear_stop()
            return Outcome("stopped")
        error = failure(self._run, child.pid, child.returncode, self._nproc, list(self._journal.tail))
        self._journal.event("crashed", stage=stage.kind, error=error)
        return Outcome("crashed", error)

    def _watch(self, child: subprocess.Popen[bytes], stage: Stage, events_before: int) -> None:
        """Wait for the stage, writing a heartbeat; go down the stop ladder on request."""
        journal, stops = self._journal, self._stops
        kill_at = heartbeat_at = 0.0
        live = _first_state(stage)
        self._stopping = False
        while child.poll() is None:
            now = time.monotonic()
            if not self._stopping and stops.stop_requested:
                self._stopping, heartbeat_at = True, now
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_S
                if live == "starting" and (started := self._training_event(events_before)):
                    live = "running"
                    journal.status.fields["device"] = started.get("device")
                journal.write(state="stopping" if self._stopping or stops.killing else live)
                if stage.kind == "train":
                    row = self._run.last_step_row()
                    step, seconds = int(to_float(row.get("step")) or 0), to_float(row.get("time/step"))
                    journal.terminal.update(step, self._config.run.total_steps, seconds)
            if (stops.killing or (self._stopping and stage.kind == "eval")) and not kill_at:
                child.terminate()
                kill_at = now + KILL_GRACE_S
            if kill_at and now >= kill_at:
                child.kill()
                kill_all(run_id_of(self._run.path))
            try:
                child.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                pass

    def _training_event(self, after: int) -> dict[str, Any] | None:
        """The event with which the trainer of this stage reports that everything is loaded; None before it.

        ``after`` is an offset in the file: the clock may be set back in between.
        """
        for start, event in read_jsonl(self._run.events_file):
            if event.get("event") == "training" and start >= after:
                return event
        return None

    def _copy_output(self, child: subprocess.Popen[bytes]) -> None:
        """Copy the output of the stage to ``logs/console.log`` and to the terminal."""
        assert child.stdout is not None
        journal = self._journal
        with ExitStack() as stack:
            writes: list[Callable[[bytes], object]] = [journal.terminal.write]
            try:
                writes.append(stack.enter_context(journal.console_log()).write)
            except OSError as error:
                journal.say(f"cannot write {error.filename}: {error.strerror}")
            for line in iter(child.stdout.readline, b""):
                journal.tail.append(line.decode(errors="replace").rstrip("\n")[:MAX_LINE])
                for write in writes:
                    try:
                        write(line)
                    except OSError:
                        pass  # neither a full disk nor a closed terminal may end the run


def _first_state(stage: Stage) -> str:
    return "evaluating" if stage.kind == "eval" else "starting"
