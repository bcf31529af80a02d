"""The supervisor of a run: starts, watches and ends its stages, and writes ``status.json``. Torch-free.

A run is a list of stages, each a separate process tree: train to a boundary, evaluate, continue training. The
supervisor runs in the run's tmux pane or in a shell and samples the GPUs. It is a child subreaper, so processes that a
stage leaves behind become its children, are found by ``GRPO_RUN_ID`` and ended.

Stop ladder: (1) first SIGINT or SIGHUP: ``control/stop``, the trainer saves and exits; (2) second SIGINT, or SIGTERM:
SIGTERM to the stage, without saving; (3) SIGKILL to every process with the run's ID.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from io import FileIO
from types import FrameType, MappingProxyType
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.files import open_for_writing, read_json, read_jsonl, to_float, utc_now
from grpo_train.run_dir.processes import become_subreaper, find_by_run_id, kill_all, reap_orphans, run_id_of
from grpo_train.supervisor.progress_line import ProgressLine
from grpo_train.supervisor.stages import Stage, plan, stage_environment, thread_count
from grpo_train.tracking.gpu import sample_gpus

HEARTBEAT_S = 2.0
KILL_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""
HANGUP_ECHO_S = 3.0
"""A closing terminal may send SIGHUP twice; two within this time count as one."""
TAIL_LINES = 60
"""Console lines kept for an error: enough for every rank's message and the steps before it."""
MAX_LINE, MAX_TRACEBACK = 4_000, 200_000
"""Characters kept of each line and of a traceback: a ``status.json`` that is too large is not read."""


class Supervisor:
    """Runs the stages of a run until it ends, stops or crashes. One per run: it holds the status lock."""

    def __init__(
        self,
        run: RunDir,
        config: Config,
        *,
        ckpt: str | None = None,
        torchrun: bool = True,
        show_progress: bool = False,
    ) -> None:
        """Take the run's status lock. Raises RunDirError if the run is live.

        Args:
            config: the run's resolved config.
            ckpt: starting weights of a new run.
            torchrun: False starts a single process without torchrun.
            show_progress: draw a progress line below the log lines; stdout must be a terminal.
        """
        self._run, self._config, self._ckpt = run, config, ckpt
        self._nproc = config.run.nproc if torchrun else 1
        self._threads = thread_count(self._nproc)
        self._status = StatusWriter(run.path)
        self._terminal = ProgressLine(show_progress)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stop_requested_at = 0.0
        self._stopping = False
        """Whether this stage was asked to stop. The trainer removes the request once it has saved."""
        self._killing = False
        self._restarts = 0
        self._began = time.monotonic()
        self._seconds_before = to_float(self._status.fields.get("run_seconds")) or 0.0

    def run(self) -> int:
        """Supervise until the run ends; returns the exit code of the process."""
        config = self._config
        (self._run.path / "control").mkdir(exist_ok=True)
        if self._status.fields.get("state"):  # requested of an earlier start; a new run may be asked to stop already
            self._run.clear_stop()
        self._run.killed_file.unlink(missing_ok=True)
        become_subreaper()
        for handled in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(handled, self._on_signal)
        start = self._run.newest_step()
        self._write(
            state="starting",
            stage="train",
            started_at=utc_now(),
            exit_code=None,
            error=None,
            restarts=0,
            total_steps=config.run.total_steps,
            nproc=self._nproc,
            threads=self._threads,
        )
        stages = plan(start, config)
        outcome, error = "done", None
        with sample_gpus(self._run, config.tracking.gpu_interval):
            while stages:
                stage = stages[0]
                outcome, error = self._stage(stage)
                if outcome == "crashed" and stage.kind == "eval":
                    evaluation = f"evaluation of step {stage.until} {stage.dataset}".rstrip()
                    self._say(f"{evaluation} failed; training continues")
                    outcome, error = "done", None
                if outcome == "done":
                    stages.pop(0)
                elif error is None or not self._can_restart(error):
                    break
        return self._end("finished" if outcome == "done" else outcome, error)

    # one stage -----------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> tuple[str, dict[str, Any] | None]:
        """Run one stage; returns ``done``, ``stopped``, ``killed`` or ``crashed``, and the error."""
        if self._killing:
            return "killed", None
        if self._run.stop_requested():
            self._run.clear_stop()
            return "stopped", None
        for stale in (self._run.path / "control").glob("error_*.json"):
            stale.unlink(missing_ok=True)
        self._tail.clear()
        events = self._run.events_file
        events_before = events.stat().st_size if events.exists() else 0
        self._write(state="starting" if stage.kind == "train" else "evaluating", stage=stage.kind)
        command = stage.command(self._run, self._nproc, self._ckpt)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=stage_environment(self._run, self._threads),
                start_new_session=True,  # the terminal's signals must reach the supervisor only
            )
        except OSError as error:
            return "crashed", {"code": code_of(error), "summary": f"cannot start {command[0]}: {error.strerror}"}
        reader = threading.Thread(target=self._copy_output, args=(child,), name="console", daemon=True)
        reader.start()
        self._watch(child, stage, events_before)
        kill_all(run_id_of(self._run.path))
        reader.join(timeout=5)
        reap_orphans()
        if self._killing:
            return "killed", None
        if child.returncode == 0:
            reached = self._run.newest_step()
            if self._stopping and stage.kind == "train" and reached < self._config.run.total_steps:
                return "stopped", None  # also after the last step of a stage: no evaluation follows
            return ("done", None) if stage.kind == "eval" or reached >= stage.until else ("stopped", None)
        if stage.kind == "eval" and self._run.stop_requested():
            self._run.clear_stop()
            return "stopped", None
        failure = self._failure(child)
        self._event("crashed", stage=stage.kind, error=failure)
        return "crashed", failure

    def _watch(self, child: subprocess.Popen[bytes], stage: Stage, events_before: int) -> None:
        """Wait for the stage, writing a heartbeat; go down the stop ladder on request."""
        kill_at = heartbeat_at = 0.0
        live = "evaluating" if stage.kind == "eval" else "starting"
        self._stopping = False
        while child.poll() is None:
            now = time.monotonic()
            if not self._stopping and self._run.stop_requested():
                self._stopping, heartbeat_at = True, now
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_S
                if live == "starting" and (started := self._training_event(events_before)):
                    live = "running"
                    self._status.fields["device"] = started.get("device")
                self._write(state="stopping" if self._stopping or self._killing else live)
                if stage.kind == "train":
                    row = self._run.last_step_row()
                    step, seconds = int(to_float(row.get("step")) or 0), to_float(row.get("time/step"))
                    self._terminal.update(step, self._config.run.total_steps, seconds)
            if (self._killing or (self._stopping and stage.kind == "eval")) and not kill_at:
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
        with ExitStack() as stack:
            writes: list[Callable[[bytes], object]] = [self._terminal.write]
            try:
                writes.append(stack.enter_context(self._console_log()).write)
            except OSError as error:
                self._say(f"cannot write {error.filename}: {error.strerror}")
            for line in iter(child.stdout.readline, b""):
                self._tail.append(line.decode(errors="replace").rstrip("\n")[:MAX_LINE])
                for write in writes:
                    try:
                        write(line)
                    except OSError:
                        pass  # neither a full disk nor a closed terminal may end the run

    def _console_log(self) -> FileIO:
        return os.fdopen(open_for_writing(self._run.logs / "console.log"), "ab", buffering=0)

    # endings -------------------------------------------------------------------------------------------------

    def _failure(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Error of a failed stage: rank and signal, or the exception, with the last console lines."""
        control, exit_code = self._run.path / "control", child.returncode
        failures = (read_json(control / "error_torchrun.json") or {}).get("failures", [])
        if self._nproc == 1 and exit_code < 0:
            name = signal.Signals(-exit_code).name
            failures = [{"rank": 0, "pid": child.pid, "exit_code": exit_code, "signal": name}]
        # A rank killed by a signal is the cause. Ranks that failed in a collective afterwards, or got torchrun's
        # SIGTERM, are not.
        killed = [f for f in failures if f["exit_code"] < 0 and f["signal"] != "SIGTERM"]
        reports = [report for path in control.glob("error_rank*.json") if (report := read_json(path))]
        error: dict[str, Any] = {
            "code": "internal",
            "rank": None,
            "signal": None,
            "exit_code": exit_code,
            "traceback": "",
        }
        if killed:
            first = killed[0]
            hint = " (often: out of memory)" if first["signal"] == "SIGKILL" else ""
            error |= {"rank": first["rank"], "signal": first["signal"], "pid": first["pid"]}
            error["summary"] = f"rank {first['rank']} (pid {first['pid']}) was killed by {first['signal']}{hint}"
        elif reports:
            first = min(reports, key=lambda report: str(report["time"]))
            error |= {
                "rank": first["rank"],
                "traceback": first["traceback"][-MAX_TRACEBACK:],
                "code": first.get("code", "internal"),
            }
            error["summary"] = f"rank {first['rank']}: {first['message']}" if self._nproc > 1 else first["message"]
        else:
            error["summary"] = f"the training process ended with exit code {exit_code}"
        error["summary"] = error["summary"][:MAX_LINE]
        return {**error, "console_tail": list(self._tail)}

    def _end(self, outcome: str, error: dict[str, Any] | None) -> int:
        left = kill_all(run_id_of(self._run.path))
        code = {"finished": 0, "stopped": 0, "killed": 130}.get(outcome, 1)
        if outcome in ("killed", "finished"):
            self._event(outcome)
        self._run.clear_stop()
        self._write(state=outcome, stage="", exit_code=code, error=error)
        self._status.close()
        self._terminal.clear()
        if error:
            self._say(f"crashed: {error['summary']}")
        if left:
            self._say(f"these processes are still running (blocked in the kernel): {left}")
        self._say(f"{self._run.name}: {outcome}")
        return code

    def _can_restart(self, error: dict[str, Any]) -> bool:
        """Prepare another attempt after a crash, unless restarts are used up or the latest checkpoint is damaged.

        A damaged checkpoint is added to the error's summary.
        """
        if self._restarts >= self._config.run.max_restarts:
            return False
        try:
            self._run.resume_point()
        except RunDirError as damage:  # every restart would load the model and fail again
            if error.get("code") != damage.code:
                error["summary"] = f"{error['summary']}; cannot restart: {damage}"
            return False
        self._restarts += 1
        self._event("restarted", restart=self._restarts, error=error)
        self._say(f"restart {self._restarts} of {self._config.run.max_restarts} from the latest checkpoint")
        self._supersede()
        self._write(restarts=self._restarts, error=error)
        return True

    def _supersede(self) -> None:
        step = self._run.newest_step()
        if superseded := self._run.supersede_after(step):
            self._event("resumed", step=step, from_step=step, superseded=superseded)

    # signals and messages ------------------------------------------------------------------------------------

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if signal_number == signal.SIGHUP and self._stop_requested_at and now - self._stop_requested_at < HANGUP_ECHO_S:
            return
        if signal_number == signal.SIGTERM or self._stop_requested_at:
            self._killing = True
            self._say("ending now, without saving; the latest checkpoint is intact")
            return
        self._stop_requested_at = now
        try:
            self._run.request_stop(by=signal.Signals(signal_number).name)
        except OSError as error:
            self._say(f"cannot write {self._run.stop_file}: {error.strerror}; press Ctrl-C again to end the run now")
            return
        self._say("stop requested; saving after this step (Ctrl-C again: end now, without saving)")

    def _write(self, **fields: Any) -> None:
        seconds = self._seconds_before + time.monotonic() - self._began
        try:
            self._status.update(run_seconds=round(seconds, 1), **fields)
        except OSError as error:
            self._say(f"cannot write status.json: {error.strerror}")  # must not end the run

    def _event(self, event: str, **fields: Any) -> None:
        try:
            self._run.log_event(event, **fields)
        except OSError as error:
            self._say(f"cannot write events.jsonl: {error.strerror}")

    def _say(self, text: str) -> None:
        line = f"grpo-train: {text}\n".encode()
        try:
            with self._console_log() as log:
                log.write(line)
        except OSError:
            pass
        try:
            self._terminal.write(line)
        except (OSError, ValueError, RuntimeError):
            pass


def refuse_live(run: RunDir) -> None:
    """Raise RunDirError (``run_is_live``) if the run or any of its processes is live."""
    observed = run.observed_state()
    if observed.is_live:
        where = f" on {observed.host}" if observed.host else ""
        raise RunDirError(
            f"{run.name} is {observed.state}{where}; stop it first (grpo-train stop --training-run {run.name})",
            code="run_is_live",
        )
    if left := find_by_run_id(run_id_of(run.path)):
        raise RunDirError(
            f"processes of {run.name} are still running: {left} "
            f"(end them with  grpo-train stop --now --training-run {run.name})",
            code="run_is_live",
        )


def prepare_resume(
    run: RunDir, which: str, total: int, changes: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
) -> int:
    """Make a checkpoint the one to continue from; returns its step.

    Later checkpoints are set aside and later log lines superseded; ``changes`` (key to old and new value) are logged.
    The caller holds the status lock. Raises RunDirError, before anything is changed, if the checkpoint is missing or
    damaged (every checksum is verified) or has already reached step ``total``.
    """
    checkpoint = run.checkpoint(which, deep=True)
    if checkpoint.step >= total:
        raise RunDirError(
            f"{run.name} has already reached step {checkpoint.step} of {total}; train further with --additional-steps N"
        )
    moved = run.rewind(checkpoint.step)
    superseded = run.supersede_after(checkpoint.step)
    run.log_event(
        "resumed",
        step=checkpoint.step,
        from_step=checkpoint.step,
        superseded=superseded,
        moved=moved,
        changes={key: list(values) for key, values in changes.items()},
    )
    return checkpoint.step
