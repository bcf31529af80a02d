"""States of a run, the writer of ``status.json``, and stop requests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from grpo_train.run_dir import (
    END_STATES,
    LIVE_STATES,
    RunDir,
    RunDirError,
    StatusWriter,
    create_run,
    list_runs,
    observe,
)
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.run_dir.files import atomic_write, utc_now
from grpo_train.run_dir.processes import boot_id, identity, start_ticks
from grpo_train.run_dir.status import CHECKED_FILE, FRESH_S, LOCK_FILE, being_checked, write_from_reserve
from tests.support.clock import TestClock
from tests.support.mounts import fill, small_disk

LONG_AGO = "2020-01-01T00:00:00.000Z"


def status(**changes: object) -> dict[str, object]:
    me = identity()
    return {
        "state": "running",
        "pid": me.pid,
        "pid_start": me.pid_start,
        "host": me.host,
        "boot_id": me.boot_id,
        "updated_at": utc_now(),
        **changes,
    }


@pytest.mark.parametrize("state", sorted(END_STATES))
def test_an_end_is_recorded_on_a_full_disk(tmp_path: Path, state: str) -> None:
    """Why a run ended, and the report of its process, are written from a reserve, which the next start makes again."""
    with small_disk(tmp_path / "disk", 1 << 20):
        run = create_run(tmp_path / "disk", {}, "one")
        for _ in range(2):
            with closing(StatusWriter(run.path)) as writer:
                writer.update(state="running")
                filler = fill(tmp_path / "disk")
                with pytest.raises(OSError, match="No space left"):
                    writer.update(state="running")
                report = run.path / "control" / "error_rank0.json"
                write_from_reserve(run.path, lambda report=report: atomic_write(report, "x" * 5_000))
                writer.update(state=state, error={"code": "disk_full", "summary": "y" * 20_000})
            assert run.observed_state().state == state
            assert report.stat().st_size == 5_000
            assert (run.path / LOCK_FILE).stat().st_size == 0
            filler.unlink()


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_live_state_needs_its_process(state: str) -> None:
    assert observe(status(state=state)).state == state
    assert observe(status(state=state, pid_start=1)).state == "lost"
    assert observe(status(state=state, pid=2**22 + 1)).state == "lost"


def test_an_end_recorded_while_a_status_is_read_is_that_end(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor writes its last state and exits after the status was read, before its process is looked for."""

    evaluation = run.root / "eval_runs" / f"{run.name}_addition" / "status.json"
    evaluation.parent.mkdir(parents=True)
    files = (run.status_file, evaluation)

    def exits(pid: int, start: int) -> bool:
        for file in files:
            file.write_text(json.dumps(status(state="stopped", training_run=run.name)))
        return False

    monkeypatch.setattr("grpo_train.run_dir.status.is_alive", exits)
    for look in (
        lambda: run.observed_state().state,
        lambda: run.summary()["state"],
        lambda: list_evaluations(run.root, run.name)[0]["state"],
    ):
        for file in files:
            file.write_text(json.dumps(status(training_run=run.name)))
        assert look() == "stopped"


def test_reboot_loses_every_process() -> None:
    assert observe(status(boot_id="of another boot")).state == "lost"


def test_a_run_launched_before_a_reboot_is_lost(run: RunDir) -> None:
    """It has no status; it was launched seconds ago."""
    assert run.observed_state().state == "starting"
    launch = json.loads(run.launch_file.read_text())
    run.launch_file.write_text(json.dumps({**launch, "boot_id": "of another boot"}))
    assert run.observed_state().state == "lost"
    run.launch_file.write_text(json.dumps({**launch, "host": "far", "boot_id": "x"}))
    assert run.observed_state().state == "starting"


def test_state_of_another_host_needs_to_be_fresh() -> None:
    fresh = observe(status(host="far", boot_id="x", pid=1, pid_start=1))
    assert (fresh.state, fresh.host, fresh.is_live) == ("running", "far", True)
    assert observe(status(host="far", boot_id="x", updated_at=LONG_AGO)).state == "lost"


def test_end_state_needs_no_process() -> None:
    assert observe(status(state="finished", pid=1, pid_start=1, boot_id="", host="far")).state == "finished"


def test_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid) is None
    child.wait()


def test_run_without_status_is_starting_then_lost(run: RunDir) -> None:
    assert run.observed_state().state == "starting"
    run.launch_file.write_text(json.dumps({"time": LONG_AGO}))
    assert run.observed_state().state == "lost"


def test_a_run_starts_as_long_as_it_is_checked(run: RunDir) -> None:
    run.launch_file.write_text(json.dumps({"time": LONG_AGO}))
    clock = TestClock()
    with being_checked(run.path, clock):
        clock.wait_for_threads(1)
        for _ in range(2):
            assert run.observed_state().state == "starting"
            os.utime(run.path / CHECKED_FILE, (0, 0))
            assert run.observed_state().state == "lost", "its process was killed"
            clock.advance(FRESH_S / 6)
    assert not (run.path / CHECKED_FILE).exists()


def test_damaged_run_is_still_listed(run: RunDir) -> None:
    run.launch_file.write_text("{")
    run.status_file.write_text("\x00")
    assert run.observed_state().state == "lost"
    (row,) = (listed.summary() for listed in list_runs(run.root))
    assert (row["run"], row["state"]) == ("one", "unreadable")


def test_status_has_one_writer(run: RunDir) -> None:
    writer = StatusWriter(run.path, nproc=2)
    writer.update(state="running")
    with pytest.raises(RunDirError, match="another process is writing"):
        StatusWriter(run.path)
    writer.close()
    second = StatusWriter(run.path)
    assert second.fields["nproc"] == 2
    assert second.fields["host"] == socket.gethostname()
    assert second.fields["boot_id"] == boot_id()
    second.close()


def test_stop_is_requested_once_and_cleared(run: RunDir) -> None:
    run.request_stop(by="a")
    run.request_stop(by="b")
    assert run.stop_requested()
    assert [row["by"] for row in run.read_log("events.jsonl") if row["event"] == "stop_asked"] == ["a"]
    run.clear_stop()
    run.clear_stop()
    assert not run.stop_requested()
