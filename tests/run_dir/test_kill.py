"""Ending a run by force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from grpo_train.run_dir import RunDir, RunDirError, StatusWriter
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.kill import kill_run, record_end, was_killed
from grpo_train.run_dir.processes import run_id_of
from tests.support.patience import PATIENCE

SLEEP = "print('up', flush=True); import time; time.sleep(300)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.mark.parametrize("program", [SLEEP, STUBBORN], ids=["obedient", "stubborn"])
def test_kill_ends_every_process_of_the_run(run: RunDir, program: str) -> None:
    environment = {**os.environ, "GRPO_RUN_ID": run_id_of(run.path)}
    child = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    killed = kill_run(run, by="test", patience_s=0.1)
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


def test_record_end_waits_for_the_lock(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_train.run_dir.kill.LOCK_WAIT_S", 0.1)
    status = StatusWriter(run.path)
    with pytest.raises(RunDirError) as caught:
        record_end(run, "killed", by="test")
    assert caught.value.code == "run_is_live"
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
