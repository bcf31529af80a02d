"""Launch, stop, kill and resume with the agent or the laptop killed (SIGKILL).

It is killed once the request was sent, has begun on the box, or was answered; with a ``delay``, a random time later.

After each the box must agree with the answer: one run, one supervisor, and each thing done once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir, list_runs, open_run, write_manifest
from grpo_train.run_dir.processes import signal_quietly
from remote.boxes import Box
from remote.events import Link
from remote.protocol import RemoteError
from tests.support.agent import agents, connected, eventually

MOMENTS = {"launch": 0.8, "stop": 0.03, "kill": 0.2, "resume": 0.15}
"""Operation to the longest delay, in seconds, before the kill."""
POINTS = ("sent", "begun", "answered")
Delay = Callable[[float], None]


def no_delay(seconds: float) -> None:
    """Kill at once."""


class JobTrial:
    """One operation on one run, interrupted."""

    def __init__(self, box: Box, op: str, dice: random.Random, name: str) -> None:
        self.box, self.op, self.name = box, op, name
        self.root = Path(box.root)
        self.point, self.delay_s = dice.choice(POINTS), dice.uniform(0, MOMENTS[op])
        self.key = f"{dice.getrandbits(96):024x}"
        self.starts_before = 0

    @property
    def params(self) -> dict[str, Any]:
        if self.op == "launch":
            return {"config_text": "obedient", "run_name": self.name, "idempotency_key": self.key}
        return {"run": self.name, "idempotency_key": self.key}

    @property
    def run(self) -> RunDir:
        return open_run(self.root, self.name)

    def state(self) -> str:
        return self.run.observed_state().state

    def events(self, event: str) -> int:
        return sum(row["event"] == event for row in self.run.read_log("events.jsonl"))

    def starts(self) -> int:
        file = self.run.path / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def supervisors(self) -> list[int]:
        """Pids of the run's engines."""
        return engines(self.root, self.name)

    def prepare(self, ask: Callable[..., dict[str, Any]]) -> None:
        """Bring the run into the state that the operation needs."""
        if self.op == "launch":
            return
        ask("launch", config_text="obedient", run_name=self.name)
        eventually(lambda: self.state() == "running")
        if self.op == "resume":
            ask("stop", run=self.name)
            eventually(lambda: self.state() == "stopped")
            eventually(lambda: all(row["dead"] for row in ask("list_sessions")["sessions"] if row["name"] == self.name))
            folder = self.run.training_state / "step_1"
            folder.mkdir()
            (folder / "model").write_bytes(b"weights")
            write_manifest(folder, step=1)
            (self.run.training_state / "step_latest").symlink_to("step_1")
        self.starts_before = self.starts()

    def wait(self, answered: Callable[[], bool], delay: Delay) -> None:
        """Wait for the moment of the kill."""
        records = self.root / "training_runs"
        if self.point == "begun":
            files = f".requests-*/{self.op}-*"
            eventually(lambda: answered() or any(file.stat().st_size for file in records.glob(files)))
        elif self.point == "answered":
            eventually(answered, 45)
        delay(self.delay_s)

    def happened(self) -> bool:
        """Whether the box shows the operation."""
        if self.op == "launch":
            return self.name in [run.name for run in list_runs(self.root)]
        if self.op == "resume":
            return self.starts() > self.starts_before or self.state() != "stopped"
        return self.state() != "running"

    def check(self, done: bool) -> None:
        """The box agrees with the answer: the operation was carried out once, or not at all."""
        names = [run.name for run in list_runs(self.root)]
        assert names.count(self.name) == len([n for n in names if n.startswith(self.name)]) <= 1
        if self.op == "launch" and not done:
            assert self.name not in names
            return
        if self.op in ("launch", "resume"):
            if done:
                eventually(lambda: self.state() == "running", what=f"{self.name} runs")
            assert self.starts() == self.starts_before + done
            assert len(self.supervisors()) == done
        elif self.op == "stop":
            eventually(lambda: self.state() == ("stopped" if done else "running"), what=f"{self.name} stops")
            assert self.events("stop_asked") <= done  # the file is written before the event
        elif done:
            eventually(lambda: self.state() == "killed", what=f"{self.name} is killed")
            assert not self.supervisors()
            assert self.events("killed") == 1
            assert not self.events("crashed")
        else:
            assert self.state() == "running"
            assert self.events("kill_asked") == 0

    def clean_up(self) -> None:
        if self.name in [run.name for run in list_runs(self.root)]:
            for pid in self.supervisors():
                signal_quietly(pid, signal.SIGKILL)


def agent_killed(box: Box, op: str, dice: random.Random, name: str, delay: Delay = no_delay) -> str:
    """Kill the agent in the middle; the client asks again by itself. Returns how it went."""
    trial = JobTrial(box, op, dice, name)
    with connected(box, process=True, reconnects=True) as (client, _):

        def ask(op: str, **params: Any) -> dict[str, Any]:
            for _ in range(20):
                eventually(lambda: client.link is Link.CONNECTED, 60)
                try:
                    return client.request(op, 40, **params).result(45)
                except RemoteError as error:
                    if error.code != "unreachable":  # not sent: the link is down
                        raise
            raise AssertionError("the link does not stay up")

        try:
            eventually(lambda: client.link is Link.CONNECTED, 60)
            trial.prepare(ask)
            pids = own_agents()
            future = client.request(op, 40, **trial.params)
            trial.wait(future.done, delay)
            answered = future.done()
            for pid in pids:
                signal_quietly(pid, signal.SIGKILL)
            reply = future.result(45)
            assert reply["run"] == name
            if op == "kill":
                assert (reply["state"], reply["left"]) == ("killed", [])
            trial.check(done=True)
            again = ask(op, **trial.params)
            assert again["run"] == name
            trial.check(done=True)
            return "after the answer" if answered else "before the answer"
        finally:
            trial.clean_up()


def laptop_killed(box: Box, op: str, dice: random.Random, name: str, delay: Delay = no_delay) -> str:
    """Kill the laptop in the middle; started again, it says what happened. Returns how it went."""
    trial = JobTrial(box, op, dice, name)
    try:
        with connected(box) as (client, _):
            trial.prepare(lambda op, **params: client.request(op, 40, **params).result(45))
        with laptop(box, op, json.dumps(trial.params)) as process:
            assert process.stdout is not None
            said_so_far: list[str] = []
            reader = threading.Thread(target=lambda: said_so_far.extend(iter(process.stdout.readline, "")))  # type: ignore[union-attr]
            reader.start()
            eventually(lambda: any("sending" in line for line in said_so_far), 60)
            trial.wait(lambda: any('"reply"' in line for line in said_so_far), delay)
            process.kill()
            reader.join()
            rest = "".join(said_so_far)
        if dice.random() < 0.5:  # its agent, too, which would finish the request
            for pid in own_agents():
                signal_quietly(pid, signal.SIGKILL)
        answered = '"reply"' in rest
        assert '"error"' not in rest, rest
        with laptop(box) as process:
            said = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
        told = [line for line in said if "told" in line]
        if not told:  # it was killed before it kept the request, or after it forgot it
            happened = trial.happened()
            assert happened or not answered
            trial.check(happened)
            return "after the answer" if happened else "before the request"
        assert len(told) == 1
        done = "was not carried out" not in told[0]["told"]
        assert done or (op != "launch" and "did not reach" in told[0]["detail"]), told
        trial.check(done)
        return "asked again: done" if done else "asked again: not received"
    finally:
        trial.clean_up()


def laptop(box: Box, *arguments: str) -> subprocess.Popen[str]:
    """A laptop as a process (:mod:`tests.support.laptop`)."""
    command = [sys.executable, "-m", "tests.support.laptop", json.dumps(asdict(box)), *arguments]
    repository = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository)


def engines(root: Path, run: str) -> list[int]:
    """Pids of the fake engines that supervise a run of a root."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word.endswith("fake_engine.py") for word in argv[:2]) and {run, str(root)} <= set(argv):
                found.append(int(entry.name))
    return found


def own_agents() -> list[int]:
    """Agents of this test session."""
    return agents(Path(os.environ["XDG_CACHE_HOME"]))
