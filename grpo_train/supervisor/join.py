"""A machine that takes part in the training of a run that another one supervises (``grpo-train join``). Torch-free."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from grpo_train.run_dir import RunDir, RunDirError, open_run
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import atomic_write, open_for_writing, to_json, utc_now
from grpo_train.run_dir.processes import NODE_VARIABLE, become_subreaper, boot_id, kill_all, reap_orphans, run_id_of
from grpo_train.supervisor.nodes import Meeting, difference, read_meeting, take_place
from grpo_train.supervisor.stages import stage_environment, thread_count, torchrun_command

POLL_S = 0.5
GRACE_S = 10.0
"""Between SIGTERM and SIGKILL."""


def wait_for_run(root: Path, name: str, clock: Clock = CLOCK) -> RunDir:
    """A run, once it exists. Raises RunDirError for a name that no run can have."""
    said = False
    while True:
        try:
            return open_run(root, name)
        except RunDirError as error:
            if error.code != "no_run" or "/" in name:
                raise
        if not said:
            print(f"grpo-train: waiting for a run named {name} under {root}", file=sys.stderr, flush=True)
            said = True
        clock.sleep(POLL_S)


class JoinedMachine:
    """Owns this machine's processes of a run, stage after stage, until the run ends."""

    def __init__(self, run: RunDir, clock: Clock = CLOCK) -> None:
        self._run, self._clock, self._host = run, clock, socket.gethostname()
        self._asked = self._leaving = False

    def join(self) -> int:
        """Take part until the run has ended; returns 0 if it finished or stopped, 1 otherwise.

        Raises RunDirError where this machine supervises the run itself, or differs from the first one.
        """
        become_subreaper()
        for handled in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(handled, self._on_signal)
        self._say("waiting for its training to start")
        done, was_live = "", False
        while not self._leaving:
            state = self._run.observed_state()
            self._refuse_same_machine()
            meeting = read_meeting(self._run)
            if state.is_live and meeting is not None and meeting.id != done:
                self._take_part(meeting)
                done = meeting.id
            elif was_live and not state.is_live:
                self._say(state.state)
                return 0 if state.state in ("finished", "stopped") else 1
            was_live = was_live or state.is_live
            self._clock.sleep(POLL_S)
        return 1

    def _refuse_same_machine(self) -> None:
        run, status = self._run, self._run.read_status() or {}
        is_here = (status.get("host"), status.get("boot_id")) == (self._host, boot_id())
        if is_here and run.observed_state().is_live:
            message = f"{run.name} is supervised on this machine; run grpo-train join on another one"
            raise RunDirError(message, code="run_is_live")

    def _take_part(self, meeting: Meeting) -> None:
        """Run this machine's processes of a stage, until they or the stage have ended."""
        if problem := difference(self._run, meeting):
            message = f"{self._host}: {problem}"
            report = {"rank": None, "time": utc_now(), "code": "nodes_differ", "message": message, "traceback": ""}
            file = self._run.path / "control" / f"error_node.{meeting.id}.{self._host}.json"
            atomic_write(file, to_json(report) + "\n")
            raise RunDirError(problem, code="nodes_differ")
        train = ["grpo_train.train", "--run-dir", str(self._run.path), *meeting.train]
        options = meeting.torchrun(take_place(self._run, meeting))
        command = torchrun_command(self._run, options, meeting.processes, train)
        environment = stage_environment(self._run, thread_count(meeting.processes, 1))
        self._say(f"taking part with {meeting.processes} of {meeting.nodes * meeting.processes} processes")
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, NODE_VARIABLE: f"{meeting.id}.{self._host}"},
            start_new_session=True,
        )
        assert child.stdout is not None
        reader = threading.Thread(target=self._copy, args=(child.stdout,), name="console", daemon=True)
        reader.start()
        while child.poll() is None:
            current = read_meeting(self._run)
            if self._leaving or current is None or current.id != meeting.id or not self._run.observed_state().is_live:
                self._end(child)
                break
            self._clock.sleep(POLL_S)
        kill_all(run_id_of(self._run.path))
        reader.join(timeout=5)
        reap_orphans()

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """End what still runs of a stage: it may have saved already, so it has a moment."""
        if self._clock.wait_exit(child, 0 if self._leaving else GRACE_S):
            return
        child.terminate()
        if not self._clock.wait_exit(child, GRACE_S):
            child.kill()
            child.wait()

    def _copy(self, stream: IO[bytes]) -> None:
        """Copy output to the terminal and to ``logs/console_HOST.log``."""
        file = self._run.logs / f"console_{self._host}.log"
        with os.fdopen(open_for_writing(file), "ab", buffering=0) as log:
            for line in iter(stream.readline, b""):
                for write in (log.write, os.fdopen(1, "wb", buffering=0, closefd=False).write):
                    with suppress(OSError):  # a full disk, a closed terminal
                        write(line)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM or self._asked:
            self._leaving = True
            return
        self._asked = True
        try:
            self._run.request_stop(by=f"grpo-train join on {self._host}")
            self._say("stop requested; the run saves after this step (Ctrl-C again: leave now, without saving)")
        except OSError as error:  # a full disk
            self._say(f"cannot write {self._run.stop_file}: {error.strerror}; press Ctrl-C again to leave")

    def _say(self, text: str) -> None:
        print(f"grpo-train: {self._run.name}: {text}", file=sys.stderr, flush=True)
