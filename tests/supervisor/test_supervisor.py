"""Logic of the supervisor; tests/end_to_end/test_faults.py runs it with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.processes import run_id_of
from grpo_train.supervisor.resume import refuse_live
from grpo_train.supervisor.stages import Stage, plan, stage_environment, thread_count
from grpo_train.supervisor.supervisor import Supervisor
from tests.support.engine import config_text


@given(st.integers(0, 30), st.integers(1, 30), st.integers(0, 12))
def test_plan_evaluates_at_every_multiple(start: int, total: int, every: int) -> None:
    stages = plan(start, load_config(config_text(run__total_steps=total, run__eval_every=every)))
    trained = [stage.until for stage in stages if stage.kind == "train"]
    evaluated = [stage.until for stage in stages if stage.kind == "eval"]
    if start >= total:
        assert stages == []
        return
    assert trained == sorted(set(trained))
    assert trained[-1] == total
    assert evaluated == (trained if every else [])
    if every:
        assert set(trained) == {s for s in range(start + 1, total + 1) if s % every == 0} | {total}
        assert stages == [Stage(kind, step) for step in trained for kind in ("train", "eval")]


def test_plan_with_initial_evaluation_and_datasets() -> None:
    text = config_text(
        run__total_steps=4, run__eval_every=2, run__eval_initial=True, eval__datasets=["addition", "mbpp"]
    )
    both = [(step, dataset) for step in (0, 2, 4) for dataset in ("addition", "mbpp")]
    config = load_config(text)
    stages = plan(0, config)
    assert [(stage.until, stage.dataset) for stage in stages if stage.kind == "eval"] == both
    assert [stage.kind for stage in stages[:3]] == ["eval", "eval", "train"], "the starting model is evaluated first"
    assert [(stage.until, stage.dataset) for stage in plan(2, config) if stage.kind == "eval"] == both[4:]
    assert plan(4, config) == []
    run = RunDir(Path("/root/training_runs/x"))
    assert stages[1].command(run, 2, None)[-4:] == ["--steps", "0", "--eval-dataset", "mbpp"]


def test_thread_count_is_set_or_a_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count(2, 1) == 3
    for invalid in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", invalid)
        assert thread_count(1, 1) == len(os.sched_getaffinity(0))
        assert thread_count(10_000, 1) == 1


def test_stage_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path, {}, "one")
    environment = stage_environment(run, 2)
    expected = {
        "GRPO_RUN_ID": run_id_of(run.path), "LOCALFS_ROOT": str(tmp_path), "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive", "GRPO_PARENT_PID": str(os.getpid()),
    }  # fmt: skip
    assert expected.items() <= environment.items()
    assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        with monkeypatch.context() as users:
            users.setenv(name, "backend:native")
            given = {key: value for key, value in stage_environment(run, 2).items() if "ALLOC" in key}
            assert given == {name: "backend:native"}


def test_run_has_one_supervisor(tmp_path: Path) -> None:
    run, config = create_run(tmp_path, {}, "one"), load_config(config_text())
    first = Supervisor(run, config)
    with pytest.raises(RunDirError, match="is the run still active"):
        Supervisor(run, config)
    first._journal.close()


def test_a_clock_set_back_hides_no_training(tmp_path: Path) -> None:
    """The event of this stage is known by its place in the file."""
    run, config = create_run(tmp_path, {}, "one"), load_config(config_text())
    run.log_event("training", device="earlier")
    supervisor, before = Supervisor(run, config), run.events_file.stat().st_size
    assert supervisor._stages._training_event(before) is None
    append_jsonl(run.events_file, {"time": "2020-01-01T00:00:00.000Z", "event": "training", "device": "cpu"})
    assert (supervisor._stages._training_event(before) or {})["device"] == "cpu"
    supervisor._journal.close()


OBEYS_A_STOP = """
import pathlib, sys, time
stop, status = map(pathlib.Path, sys.argv[1:])
while not (status.exists() and '"stopping"' in status.read_text()):
    time.sleep(0.01)
stop.unlink()
time.sleep(0.5)
"""


def test_a_stopping_run_stays_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_train.supervisor.process.HEARTBEAT_S", 0.05)
    run, states = create_run(tmp_path, {}, "one"), []
    supervisor = Supervisor(run, load_config(config_text(run__total_steps=9)))
    write = supervisor._journal.write

    def recorded(**fields: Any) -> None:
        states.append(fields["state"])
        write(**fields)
        if states == ["starting"]:
            run.request_stop(by="test")

    monkeypatch.setattr(supervisor._journal, "write", recorded)
    child = subprocess.Popen([sys.executable, "-c", OBEYS_A_STOP, str(run.stop_file), str(run.status_file)])
    supervisor._stages._watch(child, Stage("train", 5), 0)
    supervisor._journal.close()
    asked = states.index("stopping")
    assert set(states[:asked]) == {"starting"}
    assert set(states[asked:]) == {"stopping"}


def test_a_stop_in_the_last_step_of_a_stage_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path, {}, "one")
    (run.path / "control").mkdir(exist_ok=True)
    supervisor = Supervisor(run, load_config(config_text(run__total_steps=9, run__eval_every=5)))
    command = [sys.executable, "-c", OBEYS_A_STOP, str(run.stop_file), str(run.status_file)]
    monkeypatch.setattr(type(run), "newest_step", lambda self: 5)
    request = threading.Timer(0.3, run.request_stop, kwargs={"by": "test"})
    request.start()
    assert supervisor._stages.run(Stage("train", 5), command) == ("stopped", None)
    supervisor._journal.close()


def test_leftover_processes_prevent_a_resume(tmp_path: Path) -> None:
    run = RunDir(create_run(tmp_path, {"time": "2020-01-01T00:00:00Z"}, "one").path)
    environment = {"GRPO_RUN_ID": run_id_of(run.path)}
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    try:
        with pytest.raises(RunDirError, match=rf"processes of one are still running: \[{left.pid}\] .*stop --now"):
            refuse_live(run)
    finally:
        left.kill()
        left.wait()
    refuse_live(run)
