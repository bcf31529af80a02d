"""One stage as a process tree: started, watched, ended. Torch-free.

Stop ladder: (1) ``control/stop``: the trainer saves and exits; (2) SIGTERM to the stage, without saving; (3) SIGKILL to
every process with the run's ID.
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.files import read_json, read_jsonl, to_float
from grpo_train.run_dir.processes import (
    find_by_run_id,
    kill_all,
    proc_text,
    reap_orphans,
    run_id_of,
    signal_quietly,
    variable_in,
)
from grpo_train.run_dir.run import WATCHDOG
from grpo_train.supervisor.failure import MAX_LINE, clear_reports, failure, has_failed_elsewhere
from grpo_train.supervisor.journal import Journal
from grpo_train.supervisor.notify import Notifier
from grpo_train.supervisor.stages import Stage, end_other_nodes, is_shielded, shielded, stage_environment
from grpo_train.supervisor.stop_requests import StopRequests
from grpo_train.supervisor.stop_rules import over_budget
from grpo_train.supervisor.watchdog import Watchdog

# what the processes of a stage are doing: state, wait channel, and stacks in ``console.log`` ---------------

WORDS = {"R": "running", "S": "sleeping", "D": "blocked in the kernel", "T": "stopped", "t": "traced", "Z": "ended"}
NO_HANDLER = frozenset("DTtZ")
"""States in which a process runs no signal handler."""
ANSWER_S, QUIET_S = 3.0, 0.3
"""Time for a process to print its stacks, and the silence after which they count as complete."""


def show_stacks(journal: Journal) -> list[dict[str, Any]]:
    """Have every process of the run print its stacks; returns pid, rank, state and wait channel of each.

    A process that runs no handler, or has none, is described from ``/proc``.
    """
    found = []
    for pid in sorted(find_by_run_id(run_id_of(journal.run.path))):
        facts = _facts(pid)
        if facts is None:
            continue
        found.append(facts)
        answers = facts["state"] not in NO_HANDLER and _catches(pid, signal.SIGUSR2)
        journal.say(f"{in_words(facts)}{'; its stacks:' if answers else ''}")
        if answers and signal_quietly(pid, signal.SIGUSR2):
            _await_output(journal)
    return found


def in_words(facts: dict[str, Any]) -> str:
    """A process in words: ``rank 0 (pid 12, worker): state T (stopped), waiting in do_signal_stop``."""
    rank = "" if facts["rank"] is None else f"rank {facts['rank']} "
    waiting = f", waiting in {facts['wchan']}" if facts["wchan"] else ""
    state = f"state {facts['state']} ({WORDS.get(facts['state'], 'unknown')})"
    return f"{rank}(pid {facts['pid']}, {facts['command']}): {state}{waiting}".lstrip()


def _facts(pid: int) -> dict[str, Any] | None:
    state = proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1]
    if not state:
        return None
    words, wchan = proc_text(f"/proc/{pid}/cmdline").split("\0"), proc_text(f"/proc/{pid}/wchan").strip("0\n ")
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name
    rank = variable_in(pid, "RANK")
    number = int(rank) if rank.isdigit() else 0 if module == "grpo_train.train" else None
    return {"pid": pid, "rank": number, "state": state[0], "wchan": wchan, "command": module}


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)", proc_text(f"/proc/{pid}/status"), re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def _await_output(journal: Journal) -> None:
    """Wait until the stage has printed something and is quiet again, or for ANSWER_S."""
    clock = journal.clock
    deadline = clock.monotonic() + ANSWER_S
    before, printed, quiet_since = journal.printed, journal.printed, clock.monotonic()
    while (now := clock.monotonic()) < deadline:
        if journal.printed != printed:
            printed, quiet_since = journal.printed, now
        elif printed != before and now - quiet_since >= QUIET_S:
            return
        clock.sleep(0.02)


LOOK_S = 0.1
"""Between looks at a stage."""
HEARTBEAT_S = 2.0
KILL_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""
STOP_GRACE_S = 15.0
"""Time for a stage that hangs to save after all, before SIGTERM."""
LEFT_OUT = 3
"""Exit code of a backup or cleanup that is done, except for what it named."""
BEYOND_S = 600.0
"""A run of an assistant that has not stopped so long after its budget was spent, and two steps more, is ended without
saving. One of a person saves, however long its step takes."""
GIVE_UP_S = 30.0
"""After SIGKILL: a process that is still there is blocked in the kernel, and not waited for."""


class StageOutcome(NamedTuple):
    """How a stage ended."""

    kind: str
    """``done``, ``stopped``, ``killed`` or ``crashed``."""
    error: dict[str, Any] | None = None


class StageRunner:
    """Runs the stages of a run, one after the other."""

    def __init__(
        self,
        run: RunDir,
        config: Config,
        journal: Journal,
        stops: StopRequests,
        notifier: Notifier,
        own_reason: Callable[[], str],
        *,
        nproc: int,
        threads: int,
    ) -> None:
        """``own_reason``: why the run stops by itself now; "" while it does not."""
        self._notifier, self._own_reason = notifier, own_reason
        self.stopped_because = ""
        """Why the run stopped by itself."""
        self._clock = journal.clock
        self._watchdog = Watchdog(run, config.run.stall_timeout, self._clock)
        self._run, self._config, self._journal, self._stops = run, config, journal, stops
        self._nproc, self._threads = nproc, threads
        self._meeting = ""
        self._stopping = False
        """Whether this stage was asked to stop. The trainer removes the request once it has saved."""
        self._overspends = False
        """Whether the budget was spent long ago."""

    def run(self, stage: Stage, command: list[str], meeting: str = "") -> StageOutcome:
        """Run one stage to its end. ``meeting``: the id of that of several machines."""
        run, journal = self._run, self._journal
        if self._stops.killing:
            return StageOutcome("killed")
        if self._stops.stop_requested:
            run.clear_stop()
            return StageOutcome("stopped")
        self._meeting = meeting
        clear_reports(run)
        journal.tail.clear()
        events_before = run.events_file.stat().st_size if run.events_file.exists() else 0
        journal.write(state=_first_state(stage), stage=stage.kind)
        try:
            child = subprocess.Popen(
                shielded(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=stage_environment(run, self._threads),
                start_new_session=True,  # the terminal's signals must reach the supervisor only
            )
        except OSError as error:  # torchrun is missing, or memory is
            summary = f"cannot start {command[0]}: {error.strerror}"
            return StageOutcome("crashed", {"code": code_of(error), "summary": summary})
        assert child.stdout is not None
        reader = threading.Thread(target=journal.copy_output, args=(child.stdout,), name="console", daemon=True)
        reader.start()
        stall = self._watch(child, stage, events_before)
        left = kill_all(run_id_of(run.path))
        reader.join(timeout=5)
        reap_orphans()
        if stall and not self._stops.killing:
            return self._stalled(stall, stage, left)
        return self._outcome(child, stage)

    def _stalled(self, stall: dict[str, Any], stage: Stage, left: list[int]) -> StageOutcome:
        """The error of a stage that hung and was ended."""
        if (read_json(self._run.stop_file) or {}).get("by") == WATCHDOG:
            self._run.clear_stop()
        tail = list(self._journal.tail)
        error = {"code": "stalled", "rank": None, "signal": None, "traceback": "", **stall, "console_tail": tail}
        if left:  # they may hold GPUs, so nothing is restarted
            error["code"] = "blocked"
            error["summary"] += f"; these processes cannot be ended (blocked in the kernel): {left}; reboot the box"
        self._journal.event("crashed", stage=stage.kind, error=error)
        return StageOutcome("crashed", error)

    def _outcome(self, child: subprocess.Popen[bytes], stage: Stage) -> StageOutcome:
        if self._stops.killing:
            return StageOutcome("killed")
        if self._overspends:
            self._run.clear_stop()
            return StageOutcome("stopped")
        if child.returncode == 0:
            reached = self._run.newest_step()
            if self._stopping and stage.kind == "train" and reached < self._config.run.total_steps:
                return StageOutcome("stopped")  # also after the last step of a stage: no evaluation follows
            return StageOutcome("done" if stage.kind != "train" or reached >= stage.until else "stopped")
        if stage.kind != "train" and self._stops.stop_requested:
            self._run.clear_stop()
            return StageOutcome("stopped")
        if stage.kind in ("backup", "cleanup") and child.returncode == LEFT_OUT:
            self._journal.event("stage_incomplete", stage=stage.name, console_tail=list(self._journal.tail)[-5:])
            self._journal.say(f"{stage.name}: done, but something was left out (see above)")
            return StageOutcome("done")
        process = {"train": "training process", "eval": "evaluation"}.get(stage.kind, stage.kind)
        tail = list(self._journal.tail)
        nproc = self._nproc if stage.kind == "train" else 1
        error = failure(self._run, child.pid, child.returncode, nproc, tail, process, self._meeting)
        if stage.kind in ("train", "eval"):
            self._journal.event("crashed", stage=stage.kind, error=error)
        return StageOutcome("crashed", error)

    def _watch(self, child: subprocess.Popen[bytes], stage: Stage, events_before: int) -> dict[str, Any]:
        """Wait for the stage, writing a heartbeat; go down the stop ladder on request, or if it hangs.

        Returns what is known of a hang; {} without one.
        """
        journal, stops, clock = self._journal, self._stops, self._clock
        term_at, kill_at, give_up_at = math.inf, math.inf, math.inf
        heartbeat_at = 0.0
        live = _first_state(stage)
        self._stopping = False
        stall: dict[str, Any] = {}
        self._watchdog.start(stage.kind)
        while child.poll() is None and clock.monotonic() < give_up_at:
            now = clock.monotonic()
            silent_s = None if stall else self._watchdog.silent_for(journal.printed)
            if silent_s is not None:
                stall = self._report_stall(stage, silent_s)
                live, term_at = "stalled", clock.monotonic() + (STOP_GRACE_S if stage.kind == "train" else 0.0)
            if not self._stopping and stops.stop_requested:
                self._stopping, heartbeat_at = True, now
            if now >= heartbeat_at:
                heartbeat_at = now + HEARTBEAT_S
                if not self._stopping and not stall:
                    self._stop_by_itself()
                if live == "starting" and (started := self._training_event(events_before)):
                    live = "running"
                    journal.status.fields["device"] = started.get("device")
                is_stopping = (self._stopping and not stall) or stops.killing
                journal.write(state="stopping" if is_stopping else live)
                if stage.kind == "train":
                    row = self._run.last_step_row()
                    step, seconds = int(to_float(row.get("step")) or 0), to_float(row.get("time/step"))
                    journal.terminal.update(step, self._config.run.total_steps, seconds)
                    self._end_if_overspent(seconds or 0.0)
            if stops.killing or self._overspends or (self._stopping and stage.kind != "train"):
                term_at = min(term_at, now)
            if term_at == math.inf and self._meeting and has_failed_elsewhere(self._run, self._meeting):
                term_at = now + KILL_GRACE_S  # this machine's processes may wait for the others
            if now >= term_at and kill_at == math.inf:
                child.terminate()
                kill_at = now + (0.0 if is_shielded() else KILL_GRACE_S)
            if now >= kill_at:
                end_other_nodes()
                child.kill()
                kill_all(run_id_of(self._run.path))
                give_up_at = min(give_up_at, now + GIVE_UP_S)
            clock.wait_exit(child, LOOK_S)
        return stall

    def _stop_by_itself(self) -> None:
        """Request a stop, as a user would, when a rule or the budget says so."""
        if reason := self._own_reason():
            self.stopped_because = reason
            self._journal.say(f"stopping: {reason}")
            with self._journal.writing(self._run.stop_file):
                self._run.request_stop(by=reason)

    def _end_if_overspent(self, step_seconds: float) -> None:
        """End a step that outlasts an assistant's money by far: its settings make steps as long as they like."""
        spent = self._journal.run_seconds
        if self._overspends or not over_budget(self._config, spent - BEYOND_S - 2 * step_seconds):
            return
        if not self._run.launch_text("grant") and not any(
            row.get("event") == "by_assistant" for _, row in self._run.events()
        ):
            return
        self._overspends = True
        self.stopped_because = self.stopped_because or over_budget(self._config, spent)
        self._journal.say(
            "ending now, without saving: the step goes far beyond the budget; the latest checkpoint is intact"
        )

    def _report_stall(self, stage: Stage, silent_s: float) -> dict[str, Any]:
        """Write what hangs to the status, the console and the events, and ask it to save."""
        journal = self._journal
        summary = f"no sign of life for {silent_s:.0f} s (run.stall_timeout)"
        journal.write(state="stalled")
        journal.say(f"{stage.kind} hangs: {summary}")
        processes = show_stacks(journal)
        if hung := [facts for facts in processes if facts["rank"] is not None]:
            summary += f": {'; '.join(map(in_words, hung))}"
        summary = f"{summary[:MAX_LINE]}; stacks are in logs/console.log"
        stall = {"summary": summary, "processes": processes}
        self._notifier.send("stalled", summary, processes=processes)
        journal.event("stalled", stage=stage.kind, silent_s=round(silent_s, 1), processes=processes)
        if stage.kind == "train" and not self._stops.stop_requested:
            with journal.writing(self._run.stop_file):
                self._run.request_stop(by=WATCHDOG)
        return stall

    def _training_event(self, after: int) -> dict[str, Any] | None:
        """The event with which the trainer of this stage reports that everything is loaded; None before it.

        ``after`` is an offset in the file: the clock may be set back in between.
        """
        for start, event in read_jsonl(self._run.events_file):
            if event.get("event") == "training" and start >= after:
                return event
        return None


def _first_state(stage: Stage) -> str:
    return {"train": "starting", "eval": "evaluating"}.get(stage.kind, "running")
