"""Ending a run by force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, RunDirError, StatusWriter, create_run
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.kill import LOCK_WAIT_S, TERM_WAIT_S, kill_run, record_end, was_killed
from grpo_train.run_dir.processes import find_by_run_id, kill_all, run_id_of
from tests.support.clock import LeapingClock
from tests.support.engine import command_here, wait_for
from tests.support.patience import PATIENCE

SLEEP = "print('up', flush=True); import time; time.sleep(300)"
FAKE_ENGINE = str(Path(__file__).parents[1] / "support" / "fake_engine.py")
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.mark.parametrize("program", [SLEEP, STUBBORN], ids=["obedient", "stubborn"])
def test_kill_ends_every_process_of_the_run(run: RunDir, program: str) -> None:
    environment = {**os.environ, "GRPO_RUN_ID": run_id_of(run.path)}
    child = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    killed = kill_run(run, by="test")
    assert (killed.left, killed.forced) == ([], True)
    assert child.wait(timeout=60 * PATIENCE) == -signal.SIGKILL
    assert run.observed_state().state == "killed"
    assert [row["event"] for row in run.read_log("events.jsonl")] == ["launched", "kill_asked", "killed"]


def test_kill_needs_a_live_run_on_this_host(run: RunDir) -> None:
    status = StatusWriter(run.path)
    status.update(state="running", host="far", boot_id="x")
    with pytest.raises(RunDirError, match="is running on far; kill it there") as caught:
        kill_run(run, by="test")
    assert caught.value.code == "elsewhere"
    status.update(state="finished")
    with pytest.raises(RunDirError, match=r"is not running \(finished\)") as caught:
        kill_run(run, by="test")
    assert caught.value.code == "not_running"
    status.close()


@contextmanager
def supervised(run: RunDir, behavior: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process that writes the run's status, and the pids of it and its workers."""
    run.launch_file.write_text(json.dumps({"config_text": behavior}))
    command = [sys.executable, FAKE_ENGINE, "supervise", run.name, "--root", str(run.root)]
    environment = {**os.environ, "LOCALFS_ROOT": str(run.root), "GRPO_RUN_ID": run_id_of(run.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as supervisor:
        try:
            wait_for(lambda: run.last_step_row(), "a step of the supervisor")
            yield supervisor, find_by_run_id(run_id_of(run.path))
        finally:
            kill_all(run_id_of(run.path))


def test_a_supervisor_that_ignores_sigterm_is_killed(run: RunDir) -> None:
    """With its workers in other sessions, once TERM_WAIT_S have passed."""
    clock = LeapingClock()
    began = clock.monotonic()
    with supervised(run, "stubborn") as (supervisor, pids):
        assert len(pids) == 3
        killed = kill_run(run, by="test", clock=clock)
        assert (killed.left, killed.forced) == ([], True)
        assert supervisor.wait(60 * PATIENCE) == -signal.SIGKILL
    assert clock.monotonic() - began == pytest.approx(TERM_WAIT_S, abs=0.1)
    assert find_by_run_id(run_id_of(run.path)) == []
    assert (run.read_status() or {})["state"] == "killed"


def test_a_kill_leaves_other_roots_alone(tmp_path: Path) -> None:
    """Two runs of one name: one is killed, the other continues. A link to a root names the same root."""
    real, demo = (create_run(tmp_path / root, {}, "same") for root in ("real", "demo"))
    (tmp_path / "link").symlink_to(real.root)
    with supervised(real, "obedient") as (kept, pids), supervised(demo, "obedient") as (ended, _):
        stop = ("stop", "--training-run", "same", "--now")
        assert "no processes left" in command_here(*stop, root=demo.root).stdout
        assert ended.wait(60 * PATIENCE) == -signal.SIGTERM
        assert (demo.observed_state().state, find_by_run_id(run_id_of(demo.path))) == ("killed", [])
        assert (kept.poll(), find_by_run_id(run_id_of(real.path))) == (None, pids)
        assert real.observed_state().state == "running"
        assert "no processes left" in command_here(*stop, root=tmp_path / "link").stdout
        assert kept.wait(60 * PATIENCE) == -signal.SIGTERM
        assert find_by_run_id(run_id_of(real.path)) == []
    assert real.observed_state().state == "killed"


def test_record_end_waits_for_the_lock(run: RunDir) -> None:
    clock = LeapingClock()
    began = clock.monotonic()
    status = StatusWriter(run.path)
    with pytest.raises(RunDirError) as caught:
        record_end(run, "killed", by="test", clock=clock)
    assert caught.value.code == "run_is_live"
    assert clock.monotonic() - began == pytest.approx(LOCK_WAIT_S, abs=0.1)
    status.close()
    record_end(run, "crashed", by="test", error="no tmux", code="no_tmux")
    recorded = run.read_status() or {}
    assert (recorded["state"], recorded["error"]) == ("crashed", {"code": "no_tmux", "summary": "no tmux"})


def test_a_clock_set_back_hides_no_kill(run: RunDir) -> None:
    """The kill belongs to the start that it names, whatever the times are."""
    started = "2026-01-02T00:00:00.000Z"
    with closing(StatusWriter(run.path)) as status:
        status.update(state="running", pid_start=1, started_at=started)
    kill = {"time": "2026-01-01T19:00:00.000Z", "event": "kill_asked", "by": "test"}
    append_jsonl(run.events_file, kill)  # of an older version
    assert not was_killed(run)
    append_jsonl(run.events_file, {**kill, "started_at": started})
    assert was_killed(run)
    append_jsonl(run.events_file, {**kill, "time": "2026-01-03T00:00:00.000Z", "started_at": "another start"})
    assert not was_killed(run)
