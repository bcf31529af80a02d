"""The supervisor of a run: runs its stages, restarts what crashed, and writes ``status.json``. Torch-free.

A run is a list of stages, each a separate process tree (:mod:`grpo_train.supervisor.process`): train to a boundary,
evaluate, continue training. The supervisor runs in the run's tmux pane or in a shell and samples the GPUs. It is a
child subreaper, so processes that a stage leaves behind become its children, are found by ``GRPO_RUN_ID`` and ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import code_of, message_of
from grpo_train.run_dir.files import to_float, utc_now
from grpo_train.run_dir.processes import become_subreaper, kill_all, run_id_of
from grpo_train.run_dir.slurm_job import REQUEUE_EXIT, job_fields, node_count
from grpo_train.supervisor.journal import Journal, ProgressLine
from grpo_train.supervisor.nodes import announced, count_joined
from grpo_train.supervisor.notify import Notifier
from grpo_train.supervisor.process import HEARTBEAT_S, LEFT_OUT, LOOK_S, StageOutcome, StageRunner
from grpo_train.supervisor.restarts import Restarts
from grpo_train.supervisor.save_backups import SaveBackups
from grpo_train.supervisor.stages import Stage, thread_count
from grpo_train.supervisor.stop_requests import StopRequests
from grpo_train.supervisor.stop_rules import StopRules, over_budget
from grpo_train.supervisor.workflow import RunWorkflow
from grpo_train.tracking.gpu import sample_gpus
from grpo_train.tracking.wandb.process import track_run

MAX_REASON = 200
"""Characters of the reason in ``status.json``; the events have it whole."""
USAGE_ERROR = 2
"""Exit code of a command that another attempt does not change."""


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
        clock: Clock = CLOCK,
    ) -> None:
        """Take the run's status lock. Raises RunDirError if the run is live.

        Args:
            config: the run's resolved config.
            ckpt: starting weights of a new run.
            torchrun: False starts a single process without torchrun.
            show_progress: draw a progress line below the log lines; stdout must be a terminal.
        """
        self._run, self._config, self._ckpt, self._clock = run, config, ckpt, clock
        self._nproc = config.run.nproc if torchrun else 1
        self._nodes = node_count(config.run.nodes) if torchrun else 1
        self._threads = thread_count(self._nproc, self._nodes)
        self._journal = Journal(run, ProgressLine(show_progress), clock)
        self.stops = StopRequests(run, self._journal)
        """What asks the run to stop."""
        self._notifier = Notifier(run, config.notify)
        self._backups = SaveBackups(run, config, self._journal, self._notifier)
        self._stages = StageRunner(
            run,
            config,
            self._journal,
            self.stops,
            self._notifier,
            self._reason_to_stop,
            nproc=self._nproc,
            threads=self._threads,
        )
        self._tries = 0
        """Failed attempts of the current backup or cleanup."""
        self._restarts = Restarts(config.run.max_restarts, config.run.restart_wait, config.run.save_every)

    def run(self, *, owns_process: bool = True) -> int:
        """Supervise until the run ends; returns the exit code of the process.

        ``owns_process``: handle its signals and adopt its orphans. A supervisor in a thread does not.
        """
        config, journal = self._config, self._journal
        (self._run.path / "control").mkdir(exist_ok=True)
        if journal.status.fields.get("state"):  # requested of an earlier start; a new run may be asked to stop already
            self._run.clear_stop()
        self._run.killed_file.unlink(missing_ok=True)
        if owns_process:
            become_subreaper()
            self.stops.listen()
        journal.write(
            state="starting",
            stage="train",
            started_at=utc_now(),
            directory=os.getcwd(),
            exit_code=None,
            error=None,
            reason=None,
            restarts=0,
            total_steps=config.run.total_steps,
            nproc=self._nproc,
            threads=self._threads,
            job=job_fields(),
        )
        with track_run(self._run, config, journal.say, self._clock):
            with sample_gpus(self._run, config.tracking.gpu_interval, self._clock), self._backups.beside():
                outcome = self._run_stages()
            code = self._end(outcome)
        # SLURM does not wait for a backup; the next start makes it.
        if outcome.kind != "killed" and code != REQUEUE_EXIT and not self._backups.last():
            return code or LEFT_OUT
        return code

    @cached_property
    def _workflow(self) -> RunWorkflow:
        """Made when the run starts: a resume from an earlier step has moved its checkpoints by then."""
        return RunWorkflow(self._run, self._config)

    @cached_property
    def _rules(self) -> StopRules:
        return StopRules(self._run, self._config, self._workflow.rules_from)

    # stages --------------------------------------------------------------------------------------------------

    def _run_stages(self) -> StageOutcome:
        workflow = self._workflow
        self._record(workflow.write)
        while (stage := workflow.current) is not None:
            if stage.kind == "train" and stage.until <= self._run.newest_step():
                self._record(workflow.advance)
                continue
            if reason := over_budget(self._config, self._journal.run_seconds):
                self._stages.stopped_because = reason
                return StageOutcome("stopped")
            began = self._clock.monotonic()
            with self._backups.paused() if stage.kind in ("backup", "cleanup") else nullcontext():
                outcome = self._run_stage(stage)
            if outcome.kind == "crashed" and not self._try_again(stage, outcome.error or {}):
                if stage.kind == "train":
                    return outcome
                self._pass_over(stage, outcome.error or {})
            elif outcome.kind == "done":
                seconds = round(self._clock.monotonic() - began, 3)
                self._journal.event("stage_done", stage=stage.name, kind=stage.kind, seconds=seconds)
                self._record(workflow.advance)
                self._tries = 0
            elif outcome.kind != "crashed":
                return outcome
        return StageOutcome("done")

    def _run_stage(self, stage: Stage) -> StageOutcome:
        run = self._run
        if stage.kind != "train" or self._nodes == node_count():
            return self._stages.run(stage, stage.command(run, self._nproc, self._ckpt))
        join = f"on each other one: grpo-train join {run.name} --root {run.root}"
        try:
            with announced(run, self._config, stage.train_options(self._ckpt)) as meeting:
                self._journal.say(f"training on {self._nodes} machines that meet at {meeting.endpoint}; {join}")
                command = stage.command(run, self._nproc, self._ckpt, meeting)
                outcome = self._stages.run(stage, command, meeting.id)
                joined, error = count_joined(run, meeting), outcome.error or {}
                if error.get("code") == "internal" and error.get("rank") is None and joined < self._nodes:
                    summary = f"{joined} of {self._nodes} machines took part; {join}"
                    return outcome._replace(error={**error, "code": "nodes_missing", "summary": summary})
                return outcome
        except (RunDirError, OSError) as error:  # a wrong address of this machine; a full disk
            return StageOutcome("crashed", {"code": code_of(error), "summary": message_of(error)})

    def _try_again(self, stage: Stage, error: dict[str, Any]) -> bool:
        """Whether a failed stage is to be run again; waits before."""
        if stage.kind == "train":
            return self._restart(error)
        if (error.get("signal") or error.get("code") == "stalled") and self._restart(error):
            return True  # it did not fail, it was ended
        if stage.kind == "eval":
            return False
        waits = self._config.run.restart_wait
        # Training does not wait for a backup: the next one carries what this one did not.
        if error.get("exit_code") == USAGE_ERROR or self._workflow.trains_again or self._tries >= len(waits):
            return False
        self._journal.say(f"{stage.name} failed; next attempt in {waits[self._tries]:g} s")
        self._wait(waits[self._tries], state="running")
        self._tries += 1
        return True

    def _pass_over(self, stage: Stage, error: dict[str, Any]) -> None:
        """Continue after a failed stage."""
        if stage.kind == "eval":
            what, then = f"evaluation of step {stage.until} {stage.dataset}".rstrip(), "training continues"
        else:
            what, then = stage.name, "the workflow continues"
        why = str(error.get("summary", ""))
        self._journal.say(f"{what} failed: {why}; {then}")
        self._journal.event("stage_failed", stage=stage.name, kind=stage.kind, error=error)
        self._notifier.send("stage_failed", f"{stage.name} failed: {why}")
        self._record(lambda: self._workflow.advance(failure=why))
        self._tries = 0

    def _reason_to_stop(self) -> str:
        return over_budget(self._config, self._journal.run_seconds) or self._rules.broken()

    def _record(self, write: Callable[[], None]) -> None:
        """Write the cursor; on a full disk the stage may be run again, which does no harm."""
        with self._journal.writing("workflow.json"):
            write()

    # restarts ------------------------------------------------------------------------------------------------

    def _restart(self, error: dict[str, Any]) -> bool:
        """Prepare another attempt after a crash and wait for its time; False if there is none.

        The reason, where it is not the number of restarts, is added to the error's summary. A request to stop or to end
        is left for the next stage to obey.
        """
        restarts = self._restarts
        if not restarts.limit:
            return False
        try:
            checkpoint = self._run.resume_point()
        except RunDirError as damage:  # every restart would load the model and fail again
            if error.get("code") != damage.code:
                error["summary"] = f"{error['summary']}; cannot restart: {damage}"
            return False
        step = int(to_float(self._run.last_step_row().get("step")) or 0)
        decision = restarts.decide(error, step, checkpoint.step if checkpoint else 0)
        if decision.wait_s is None:
            error["summary"] = "; ".join(filter(None, [str(error["summary"]), decision.reason]))
            return False
        attempt = f"restart {restarts.count} of {restarts.limit} from the latest checkpoint"
        self._journal.event("restarted", restart=restarts.total, wait_s=decision.wait_s, error=error)
        self._journal.say(f"{attempt} in {decision.wait_s:g} s" if decision.wait_s else attempt)
        self._supersede()
        self._wait(decision.wait_s, restarts=restarts.total, error=error)
        return True

    def _wait(self, seconds: float, **fields: Any) -> None:
        """Wait before a restart; a request to stop or to end cuts it short."""
        until, heartbeat_at = self._clock.monotonic() + seconds, 0.0
        while True:
            now = self._clock.monotonic()
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_S
                self._journal.write(**{"state": "starting", **fields})
            if now >= until or self.stops.killing or self.stops.stop_requested:
                return
            self._clock.sleep(LOOK_S)

    def _supersede(self) -> None:
        step = self._run.newest_step()
        if superseded := self._run.supersede_after(step):
            self._journal.event("resumed", step=step, from_step=step, superseded=superseded)

    # endings -------------------------------------------------------------------------------------------------

    def _end(self, outcome: StageOutcome) -> int:
        journal, error = self._journal, outcome.error
        state = "finished" if outcome.kind == "done" else outcome.kind
        if state == "stopped" and self.stops.requeue_requested:
            state = "requeued"
        left = kill_all(run_id_of(self._run.path))
        done = LEFT_OUT if self._workflow.failed else 0
        code = {"finished": done, "stopped": 0, "killed": 130, "requeued": REQUEUE_EXIT}.get(state, 1)
        if state in ("killed", "finished"):
            journal.event(state)
        self._run.clear_stop()
        reason = self._reason_of_end(state)
        journal.write(state=state, stage="", exit_code=code, error=error, reason=reason[:MAX_REASON] or None)
        journal.close()
        if error:
            journal.say(f"crashed: {error['summary']}")
            self._notifier.send("crashed", str(error["summary"]), step=self._run.newest_step())
        if left:
            journal.say(f"these processes are still running (blocked in the kernel): {left}")
        journal.say(f"{self._run.name}: {state}{f' ({reason})' if reason else ''}")
        return code

    def _reason_of_end(self, state: str) -> str:
        """Why the run stopped by itself, or what failed on the way of one that is finished; "" for any other."""
        own, step = self._stages.stopped_because, self._run.newest_step()
        if state == "stopped" and own:
            self._workflow.rules_from = step
            self._record(self._workflow.write)
            self._journal.event("stopped_by_itself", reason=own)
            self._notifier.send("stopped_by_itself", f"stopped at step {step}: {own}", step=step)
            return own
        failures = self._workflow.failures if state == "finished" else ""
        reason = f"failed: {failures}" if failures else ""
        if state == "finished":
            self._notifier.send("finished", f"finished at step {step}{f' ({reason})' if reason else ''}", step=step)
        return reason
