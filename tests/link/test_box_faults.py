"""Faults of the box: rebooted, restarted, tmux killed. What is shown is true, and the next launch works."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, open_run, write_manifest
from grpo_train.run_dir.files import atomic_write, read_json
from remote.agent.box import BoxContext
from remote.agent.operations import HANDLERS
from remote.agent.sessions import Sessions
from remote.agent.start import GONE, GONE_AFTER_S, LAUNCH_LOCK, launch_lock
from remote.agent.topics import RunTable
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import Link, LinkChanged, RunsReported, SessionsReported
from remote.protocol.jobs import KillRequest, LaunchRequest
from tests.link.test_jobs import linked, row_of
from tests.remote.test_jobs import state
from tests.support.agent import Recorder, ask, connected, eventually, refusal
from tests.support.clock import TestClock
from tests.support.job_faults import engines
from tests.support.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root for namespaces")
    with Machine(tmp_path, sets_clock=False) as machine:
        yield machine


@contextmanager
def reached(machine: Machine, box: Box) -> Iterator[tuple[BoxClient, Recorder]]:
    """A client that is connected."""
    with connected(box, host_keys_file=machine.hosts) as (client, recorder):
        recorder.wait_link(Link.CONNECTED, 60)
        yield client, recorder


def shows(recorder: Recorder, states: dict[str, str], after: int = 0) -> None:
    """Wait until the list of runs has these states."""
    recorder.wait(
        lambda e: isinstance(e, RunsReported) and {row["run"]: row["state"] for row in e.runs} == states, 30, after
    )


def reboot(machine: Machine, recorder: Recorder, *, same_boot: bool = False) -> int:
    """Cut the power and start again; returns the index of the first event of the new connection."""
    mark = recorder.mark()
    machine.power_off()
    recorder.wait_link(Link.LOST, 30, mark)
    machine.start() if same_boot else machine.power_on()
    assert recorder.client
    recorder.client.reconnect_now()
    recorder.wait_link(Link.CONNECTED, 60, mark)
    return next(i for i, e in enumerate(recorder.events) if i >= mark and getattr(e, "state", None) is Link.CONNECTED)


def checkpoint(run: RunDir) -> None:
    folder = run.training_state / "step_1"
    folder.mkdir()
    (folder / "model").write_bytes(b"weights")
    write_manifest(folder, step=1)
    (run.training_state / "step_latest").symlink_to("step_1")


def test_a_rebooted_box(machine: Machine, root: Path) -> None:
    """Every process is gone at once; the next boot gives the same process numbers to others."""
    box = machine.box(root=str(root))
    with reached(machine, box) as (client, recorder):
        ask(client, "launch", config_text="obedient", run_name="r")
        shows(recorder, {"r": "running"})
        ask(client, "evaluate", ckpt_path="models/x", idempotency_key="e")
        evaluation = ask(client, "evaluate", ckpt_path="models/x", idempotency_key="e")["session"]
        ask(client, "kill", session=evaluation, idempotency_key="k")
        run = open_run(root, "r")
        checkpoint(run)

        mark = reboot(machine, recorder)
        shows(recorder, {"r": "lost"}, mark)
        states = {row["state"] for e in recorder.events[mark:] if isinstance(e, RunsReported) for row in e.runs}
        assert states == {"lost"}
        assert row_of(client, "r")["error"] is None
        assert ask(client, "list_sessions")["sessions"] == []
        for op in ("stop", "kill"):
            assert refusal(client, op, run="r").code == "not_running"

        # a process of this boot with the numbers of the run's supervisor, and of the evaluation's
        stranger = int(machine.run("sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"))
        ticks = int(machine.run("cat", f"/proc/{stranger}/stat").rpartition(")")[2].split()[19])
        status = read_json(run.status_file) or {}
        atomic_write(run.status_file, json.dumps({**status, "pid": stranger, "pid_start": ticks}))
        assert row_of(client, "r")["state"] == "lost"
        assert refusal(client, "kill", run="r").code == "not_running"
        ask(client, "evaluate", ckpt_path="models/x")
        pane = machine.run("tmux", "-L", machine.tmux_socket, "display-message", "-p", "-t", evaluation, "#{pane_pid}")
        (record,) = (root / "training_runs").glob(".requests*/kill-*")
        (found,) = [row["found"] for row in map(json.loads, filter(str.strip, record.open())) if "found" in row]
        record.write_text(json.dumps({"found": {**found, "pid": int(pane)}}) + "\n")
        assert ask(client, "kill", session=evaluation, idempotency_key="k")["left"] == []
        assert not next(row for row in ask(client, "list_sessions")["sessions"] if row["name"] == evaluation)["dead"]
        assert machine.run("cat", f"/proc/{stranger}/comm") == "sleep\n"

        ask(client, "resume", run="r")
        shows(recorder, {"r": "running"}, recorder.mark())
        assert ask(client, "launch", config_text="obedient", run_name="next")["started"]
        shows(recorder, {"next": "running", "r": "running"}, mark)

        mark = reboot(machine, recorder, same_boot=True)  # a container: the kernel is the same
        shows(recorder, {"next": "lost", "r": "lost"}, mark)
        assert refusal(client, "kill", run="next").code == "not_running"
        states_of_link = {e.state for e in recorder.events if isinstance(e, LinkChanged)}
        assert states_of_link == {Link.CONNECTING, Link.CONNECTED, Link.LOST}


def kill_server(box: Box) -> None:
    """SIGKILL: the sessions get no notice; the kernel hangs up their terminals."""
    format_ = ["display-message", "-p", "#{pid}"]
    done = subprocess.run(["tmux", "-L", box.tmux_socket, *format_], capture_output=True, text=True, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_killed_tmux_server(box: Box, root: Path) -> None:
    """One run ends by the hangup; two ignore it and are still running, stopped and killed without tmux."""
    with linked(box) as (client, recorder):
        for name, behavior in (("r", "obedient"), ("deaf", "deaf"), ("deafer", "deaf")):
            ask(client, "launch", config_text=behavior, run_name=name)
            eventually(lambda name=name: state(root, name) == "running")
        kill_server(box)
        mark = recorder.mark()
        shows(recorder, {"r": "lost", "deaf": "running", "deafer": "running"}, mark)
        recorder.wait(lambda e: isinstance(e, SessionsReported) and e.sessions == [], after=mark)
        assert row_of(client, "r")["error"] is None
        assert refusal(client, "capture_pane", session="deaf").code == "no_session"
        assert refusal(client, "launch", config_text="x", run_name="deaf").code == "name_taken"
        assert ask(client, "launch", config_text="obedient", run_name="next")["started"]
        eventually(lambda: state(root, "next") == "running")
        ask(client, "stop", run="deaf")
        assert ask(client, "kill", run="deafer")["state"] == "killed"
        shows(recorder, {"r": "lost", "deaf": "stopped", "deafer": "killed", "next": "running"}, mark)
        eventually(lambda: engines(root, "deaf") == engines(root, "deafer") == [])
        ask(client, "kill", run="next")
        assert client.link is Link.CONNECTED


def test_a_launch_that_was_never_started(box: Box, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent was killed after it created the run, or tmux was while the supervisor started."""
    clock = TestClock()
    settings = {"root": str(root), "engine": box.engine, "tmux_socket": box.tmux_socket}
    request = LaunchRequest("obedient", run_name="r", idempotency_key="k")
    context = dataclasses.replace(BoxContext.from_settings(settings, clock), given_repo=None)
    with monkeypatch.context() as patch:
        patch.setattr(Sessions, "start", lambda *_: None)
        HANDLERS["launch"](context, request)
    for record in (root / "training_runs").glob(".requests*/launch-*"):
        record.unlink()
    run = open_run(root, "r")
    elsewhere = BoxContext.from_settings({**settings, "tmux_socket": "another"}, clock)  # never had such a session
    table, other = RunTable(context), RunTable(elsewhere)
    assert [row["state"] for row in table.rows()] == ["starting"]
    clock.advance(GONE_AFTER_S + 1)
    with launch_lock(root):  # a launch is in progress
        assert [row["state"] for row in table.rows()] == ["starting"]
    assert [row["state"] for row in other.rows()] == ["starting"]
    lock, aside = root / "training_runs" / LAUNCH_LOCK, root / "lock"
    lock.rename(aside)
    lock.mkdir()  # a lock that cannot be opened may be held
    assert [row["state"] for row in table.rows()] == ["starting"]
    lock.rmdir()
    aside.rename(lock)
    (row,) = table.rows()
    assert (row["state"], row["error"]) == ("crashed", {"code": "not_started", "summary": GONE})
    assert HANDLERS["launch"](context, request)["started"]
    eventually(lambda: run.observed_state().state == "running")
    assert not HANDLERS["launch"](context, request)["started"]
    HANDLERS["kill"](context, KillRequest(run="r"))
