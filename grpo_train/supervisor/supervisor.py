"""The parent of a run's stages: starts them, watches them, ends them, and says in ``status.json`` what is.

A run is a list of stages, each a process tree of its own: train to a boundary, evaluate, train on. The supervisor runs
in the run's tmux pane (or in a shell), owns the status, samples the GPUs, and is a child subreaper, so that whatever
a stage leaves behind is its child, found by ``GRPO_RUN_ID`` and ended. Torch-free.

Stopping, in this order: (1) first SIGINT or SIGHUP: ``control/stop``, the trainer saves and exits; (2) second SIGINT,
or SIGTERM: SIGTERM to the stage, nothing is saved; (3) SIGKILL to whatever carries the run's id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from types import FrameType
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter
from grpo_train.run_dir.files import read_json, read_jsonl, utc_now
from grpo_train.run_dir.processes import become_subreaper, find_by_run_id, kill_all, reap_orphans, run_id_of
from grpo_train.supervisor.stages import Stage, plan, stage_environment, thread_count
from grpo_train.tracking.gpu import GpuSampler

HEARTBEAT_S = 2.0
KILL_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""
HANGUP_ECHO_S = 3.0
"""A closing terminal may send SIGHUP twice; so close together they are one."""
TAIL_LINES = 60
"""Enough for what a rank says when another is killed, and the steps before it."""


class Supervisor:
    """Runs a run's stages to the end, a stop, or a crash. One per run: it holds the status lock."""

    def __init__(self, run: RunDir, config: Config, *, ckpt: str | None = None, torchrun: bool = True) -> None:
        """``torchrun=False`` starts a single process without it. Raises RunDirError when the run is already live."""
        self._run, self._config, self._ckpt = run, config, ckpt
        self._nproc = config.run.nproc if torchrun else 1
        self._threads = thread_count(self._nproc)
        self._status = StatusWriter(run.path)
        self._child: subprocess.Popen[bytes] | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._asked_at = 0.0
        self._killing = False
        self._began = time.monotonic()
        self._seconds_before = float(self._status.fields.get("run_seconds") or 0.0)

    def run(self) -> int:
        """Supervise until the run ends; returns the process's exit code."""
        config = self._config
        (self._run.path / "control").mkdir(exist_ok=True)
        self._run.clear_stop()
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        start = max((c.step for c in self._run.checkpoints() if not c.problem), default=0)
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
        sampler = GpuSampler(self._run, config.tracking.gpu_interval)
        sampler.start()
        restarts = 0
        stages = plan(start, config)
        outcome, error = "finished", None
        try:
            while stages:
                stage = stages[0]
                outcome, error = self._stage(stage)
                if outcome == "done":
                    outcome = "finished"
                    stages.pop(0)
                    continue
                if outcome == "crashed" and stage.kind == "eval":
                    self._say(
                        f"the evaluation of step {stage.until} {stage.dataset}".rstrip() + " failed; training goes on"
                    )
                    outcome = "finished"
                    stages.pop(0)
                    continue
                if outcome == "crashed" and restarts < config.run.max_restarts:
                    if damage := self._damage():  # every restart would end there, after loading all there is to load
                        told = str((error or {}).get("summary", ""))
                        summary = told if damage in told else f"{told}; it cannot restart: {damage}"
                        error = {**(error or {}), "summary": summary}
                        break
                    restarts += 1
                    self._event("restarted", restart=restarts, error=error)
                    self._say(f"restart {restarts} of {config.run.max_restarts} from the latest checkpoint")
                    self._supersede()
                    self._write(restarts=restarts, error=error)
                    continue
                break
        finally:
            sampler.stop()
        return self._end(outcome, error)

    # one stage -----------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> tuple[str, dict[str, Any] | None]:
        """Run one stage; returns done, stopped, killed or crashed, and what went wrong."""
        if self._killing:
            return "killed", None
        if self._run.stop_requested():
            self._run.clear_stop()
            return "stopped", None
        for stale in (self._run.path / "control").glob("error_*.json"):
            stale.unlink(missing_ok=True)
        self._tail.clear()
        stage_began = utc_now()
        self._write(state="starting" if stage.kind == "train" else "evaluating", stage=stage.kind)
        command = stage.command(self._run, self._nproc, self._ckpt)
        try:
            child = self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=stage_environment(self._run, self._threads),
                start_new_session=True,  # the terminal's own signals reach the supervisor alone
            )
        except OSError as error:
            return "crashed", {"summary": f"cannot start {command[0]}: {error.strerror}"}
        reader = threading.Thread(target=self._copy_output, args=(child,), name="console", daemon=True)
        reader.start()
        self._watch(child, stage, stage_began)
        kill_all(run_id_of(self._run.path), exclude=frozenset({os.getpid()}))
        reader.join(timeout=5)
        reap_orphans()
        if self._killing:
            return "killed", None
        if child.returncode == 0:
            reached = max((c.step for c in self._run.checkpoints() if not c.problem), default=0)
            return ("done", None) if stage.kind == "eval" or reached >= stage.until else ("stopped", None)
        if stage.kind == "eval" and self._run.stop_requested():
            self._run.clear_stop()
            return "stopped", None
        failure = self._what_failed(child.returncode)
        self._event("crashed", stage=stage.kind, error=failure)
        return "crashed", failure

    def _watch(self, child: subprocess.Popen[bytes], stage: Stage, began: str) -> None:
        """Wait for the stage with a heartbeat; walk down the stop ladder when asked."""
        kill_at = 0.0
        beat = 0.0
        live = "evaluating" if stage.kind == "eval" else "starting"
        stopping = False
        while child.poll() is None:
            now = time.monotonic()
            if now >= beat:
                beat = now + HEARTBEAT_S
                stopping = self._run.stop_requested()
                if live == "starting" and self._is_training(began):
                    live = "running"
                self._write(state="stopping" if stopping or self._killing else live)
            if (self._killing or (stopping and stage.kind == "eval")) and not kill_at:
                child.terminate()
                kill_at = now + KILL_GRACE_S
            if kill_at and now >= kill_at:
                child.kill()
                kill_all(run_id_of(self._run.path), exclude=frozenset({os.getpid()}))
            try:
                child.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                pass

    def _is_training(self, since: str) -> bool:
        """Whether the trainer of this stage has loaded everything and begun (it says so in the events)."""
        events = read_jsonl(self._run.events_file)
        return any(event.get("event") == "training" and str(event.get("time", "")) >= since for _, event in events)

    def _copy_output(self, child: subprocess.Popen[bytes]) -> None:
        """All that the stage prints goes to ``logs/console.log`` and on to the terminal."""
        assert child.stdout is not None
        with (self._run.logs / "console.log").open("ab", buffering=0) as log:
            for line in iter(child.stdout.readline, b""):
                self._tail.append(line.decode(errors="replace").rstrip("\n"))
                for write in (log.write, self._to_terminal):
                    try:
                        write(line)
                    except OSError:
                        pass  # a full disk, or a terminal that is gone: the run goes on

    def _to_terminal(self, line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    # endings -------------------------------------------------------------------------------------------------

    def _what_failed(self, code: int) -> dict[str, Any]:
        """Why a stage failed: the rank and signal, or the exception, and the console's last lines."""
        control = self._run.path / "control"
        failures = (read_json(control / "error_torchrun.json") or {}).get("failures", [])
        if self._nproc == 1 and code < 0:
            pid = self._child.pid if self._child else 0
            failures = [{"rank": 0, "pid": pid, "exit_code": code, "signal": signal.Signals(-code).name}]
        # A rank killed by a signal is the cause; ranks that then failed in a collective, or were ended by
        # torchrun's SIGTERM, are not.
        killed = [f for f in failures if f["exit_code"] < 0 and f["signal"] != "SIGTERM"]
        reports = sorted(
            (report for path in control.glob("error_rank*.json") if (report := read_json(path))),
            key=lambda report: str(report["time"]),
        )
        error: dict[str, Any] = {"rank": None, "signal": None, "exit_code": code, "traceback": ""}
        if killed:
            first = killed[0]
            hint = " (often the kernel out of memory)" if first["signal"] == "SIGKILL" else ""
            error |= {"rank": first["rank"], "signal": first["signal"], "pid": first["pid"]}
            error["summary"] = f"rank {first['rank']} (pid {first['pid']}) was killed by {first['signal']}{hint}"
        elif reports:
            first = reports[0]
            error |= {"rank": first["rank"], "traceback": first["traceback"]}
            error["summary"] = f"rank {first['rank']}: {first['message']}" if self._nproc > 1 else first["message"]
        else:
            error["summary"] = f"the training process ended with exit code {code}"
        return {**error, "console_tail": list(self._tail)}

    def _end(self, outcome: str, error: dict[str, Any] | None) -> int:
        left = kill_all(run_id_of(self._run.path), exclude=frozenset({os.getpid()}))
        code = {"finished": 0, "stopped": 0, "killed": 130}.get(outcome, 1)
        if outcome == "killed":
            self._event("killed")
        elif outcome == "finished":
            self._event("finished")
        self._run.clear_stop()
        self._write(state=outcome, stage="", exit_code=code, error=error if outcome == "crashed" else None)
        self._status.close()
        if error and outcome == "crashed":
            self._say(f"crashed: {error['summary']}")
        if left:
            self._say(f"these processes would not end (blocked in the kernel): {left}")
        self._say(f"{self._run.name}: {outcome}")
        return code

    def _damage(self) -> str:
        """Why a restart cannot go on from the latest checkpoint, in words that name the newest complete one; or ""."""
        try:
            self._run.resume_point()
        except RunDirError as error:
            return str(error)
        return ""

    def _supersede(self) -> None:
        step = max((c.step for c in self._run.checkpoints() if not c.problem), default=0)
        if void := self._run.supersede_after(step):
            self._event("resumed", step=step, from_step=step, superseded=void)

    # small things --------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP and self._asked_at and now - self._asked_at < HANGUP_ECHO_S:
            return
        if number == signal.SIGTERM or self._asked_at:
            self._killing = True
            self._say("ending now, without saving; the latest checkpoint is intact")
            return
        self._asked_at = now
        try:
            self._run.request_stop(by=signal.Signals(number).name)
        except OSError as error:
            self._say(f"cannot write {self._run.stop_file}: {error.strerror}; Ctrl-C again ends it now")
            return
        self._say("stopping after this step, saved (Ctrl-C again: end now, without saving)")

    def _write(self, **fields: Any) -> None:
        seconds = self._seconds_before + time.monotonic() - self._began
        try:
            self._status.update(run_seconds=round(seconds, 1), **fields)
        except OSError as error:
            self._say(f"cannot write status.json: {error.strerror}")  # a full disk must not end the run

    def _event(self, event: str, **fields: Any) -> None:
        try:
            self._run.log_event(event, **fields)
        except OSError as error:
            self._say(f"cannot write events.jsonl: {error.strerror}")

    def _say(self, text: str) -> None:
        line = f"grpo-train: {text}\n".encode()
        try:
            with (self._run.logs / "console.log").open("ab") as log:
                log.write(line)
        except OSError:
            pass
        try:
            self._to_terminal(line)
        except (OSError, ValueError, RuntimeError):
            pass


def live_processes(run: RunDir) -> list[int]:
    """Pids of a run's stages on this host."""
    return find_by_run_id(run_id_of(run.path), frozenset({os.getpid()}))


def refuse_live(run: RunDir) -> None:
    """Raises RunDirError when the run is live, or something of it still is."""
    observed = run.observed_state()
    if observed.is_live:
        where = f" on {observed.host}" if observed.host else ""
        raise RunDirError(
            f"{run.name} is {observed.state}{where}: stop it first (grpo-train stop --training-run {run.name})"
        )
    if left := live_processes(run):
        raise RunDirError(
            f"processes of {run.name} are still there: {left} "
            f"(end them: grpo-train stop --now --training-run {run.name})"
        )


def prepare_resume(run: RunDir, which: str, total: int) -> int:
    """Make the run go on from a checkpoint: later ones aside, superseded log lines named. Returns its step.

    To be called by the holder of the status lock. Raises RunDirError, before anything is touched, when the checkpoint
    is missing or damaged (every checksum is verified), or has reached ``total`` already.
    """
    checkpoint = run.checkpoint(which, deep=True)
    if checkpoint.step >= total:
        raise RunDirError(
            f"{run.name} has done all {total} steps at step_{checkpoint.step}: "
            "say how many more with --additional-steps"
        )
    moved = run.rewind(checkpoint.step)
    void = run.supersede_after(checkpoint.step)
    run.log_event("resumed", step=checkpoint.step, from_step=checkpoint.step, superseded=void, moved=moved)
    return checkpoint.step
