"""Faults of the box that take longer to see: while a run starts, and with the real engine."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import open_run
from remote.agent.start import GONE
from remote.boxes import Box
from remote.events import RunsReported
from tests.link.test_box_faults import kill_server, machine, reached, reboot, shows
from tests.link.test_jobs import linked, row_of
from tests.remote.conftest import _own_directories, box, tmux_socket
from tests.remote.test_jobs import state
from tests.support.agent import ask, eventually
from tests.support.engine import config_text
from tests.support.job_faults import engines
from tests.support.machine import Machine

BIN = Path(sys.executable).parent
__all__ = ["_own_directories", "box", "machine", "tmux_socket"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "localfs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("same_boot", [False, True])
def test_a_box_rebooted_while_a_run_starts(machine: Machine, root: Path, tmp_path: Path, same_boot: bool) -> None:
    """Its supervisor had written no status yet."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {machine.engine} "$@"\nexec sleep 600\n')
    slow.chmod(0o755)
    box = machine.box(root=str(root), engine=[str(slow)])
    with reached(machine, box) as (client, recorder):
        ask(client, "launch", config_text="x", run_name="r")
        shows(recorder, {"r": "starting"})
        mark = reboot(machine, recorder, same_boot=same_boot)
        shows(recorder, {"r": "crashed"}, mark)
        states = {row["state"] for e in recorder.events[mark:] if isinstance(e, RunsReported) for row in e.runs}
        assert states == {"starting" if same_boot else "lost", "crashed"}
        assert row_of(client, "r")["error"]["summary"] == GONE


def test_a_tmux_server_killed_while_a_run_starts(box: Box, root: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {box.engine[0]} "$@"\nexec sleep 600\n')
    slow.chmod(0o755)
    with linked(dataclasses.replace(box, engine=[str(slow)])) as (client, recorder):
        ask(client, "launch", config_text="x", run_name="r")
        shows(recorder, {"r": "starting"})
        other = dataclasses.replace(box, tmux_socket=f"{box.tmux_socket}-other")
        with linked(other) as (_, elsewhere):  # its tmux has no such session, and never had
            kill_server(box)
            shows(recorder, {"r": "crashed"})
            assert row_of(client, "r")["error"]["summary"] == GONE
            shows(elsewhere, {"r": "crashed"})
    assert [row["event"] for row in open_run(root, "r").read_log("events.jsonl")] == ["launched", "crashed"]


def test_a_repeated_launch_starts_what_was_not_started(box: Box, root: Path) -> None:
    """An agent was killed after it created the run; the laptop asks again much later."""
    with linked(box) as (client, recorder):
        launch = {"config_text": "obedient", "run_name": "r", "idempotency_key": "k"}
        ask(client, "launch", **launch)
        eventually(lambda: state(root, "r") == "running")
        ask(client, "kill", run="r")
        run = open_run(root, "r")
        run.status_file.unlink()
        subprocess.run(["tmux", "-L", box.tmux_socket, "kill-session", "-t", "=r"], check=True)
        for record in (root / "training_runs").glob(".requests*/launch-*"):
            record.write_text("".join(line for line in record.open() if "reply" not in line))
        run.events_file.write_text("".join(line for line in run.events_file.open() if "launched" in line))
        shows(recorder, {"r": "crashed"}, recorder.mark())
        assert row_of(client, "r")["error"] == {"code": "not_started", "summary": GONE}
        assert ask(client, "launch", **launch)["started"]
        eventually(lambda: state(root, "r") == "running")
        assert len(engines(root, "r")) == 1
        ask(client, "kill", run="r")


def test_the_engine_saves_when_its_tmux_server_is_killed(box: Box, make_root: Callable[[], Path]) -> None:
    """The hangup is a request to stop; the run is resumed in a new server."""
    folder = make_root()
    real = dataclasses.replace(box, root=str(folder), engine=[str(BIN / "grpo-train")])
    with linked(real) as (client, recorder):
        ask(client, "launch", config_text=config_text(run__total_steps=5_000, run__save_every=1_000), run_name="r")
        run = open_run(folder, "r")
        eventually(lambda: run.last_step_row().get("step", 0) > 2, 120)
        mark = recorder.mark()
        kill_server(real)
        shows(recorder, {"r": "stopped"}, mark)
        step = run.newest_step()
        assert step == run.last_step_row()["step"]
        assert ask(client, "resume", run="r")["step"] == step
        eventually(lambda: run.last_step_row().get("step", 0) > step + 2, 120)
        eventually(lambda: row_of(client, "r")["state"] == "running", 20)  # at the next beat of the supervisor
        assert ask(client, "kill", run="r")["left"] == []
