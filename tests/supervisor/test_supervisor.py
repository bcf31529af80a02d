"""The supervisor, by a clock that stands; tests/end_to_end/test_faults.py runs it with real training."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.run_dir.files import append_jsonl
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from grpo_train.supervisor.join import JoinedMachine
from grpo_train.supervisor.journal import Journal, ProgressLine
from grpo_train.supervisor.nodes import read_meeting
from grpo_train.supervisor.process import HEARTBEAT_S, KILL_GRACE_S, LEFT_OUT, LOOK_S
from grpo_train.supervisor.resume import refuse_live
from grpo_train.supervisor.stages import Stage, stage_environment, stages_left, thread_count
from grpo_train.supervisor.supervisor import Supervisor
from tests.support.engine import config_text, wait_for
from tests.support.supervising import supervised


@given(st.integers(0, 30), st.integers(1, 30), st.integers(0, 12))
def test_plan_evaluates_at_every_multiple(start: int, total: int, every: int) -> None:
    stages = stages_left(start, load_config(config_text(run__total_steps=total, run__eval_every=every)))
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
    stages = stages_left(0, config)
    assert [(stage.until, stage.dataset) for stage in stages if stage.kind == "eval"] == both
    assert [stage.kind for stage in stages[:3]] == ["eval", "eval", "train"], "the starting model is evaluated first"
    assert [(stage.until, stage.dataset) for stage in stages_left(2, config) if stage.kind == "eval"] == both[4:]
    assert stages_left(4, config) == []
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
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True", "every torch reads this name"
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


def config_of(**changes: Any) -> Config:
    return load_config(config_text(**changes))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, {}, "one")


def test_a_stopping_run_stays_stopping(run: RunDir) -> None:
    """Also once the trainer has saved and removed the request."""
    with supervised(run, config_of(run__total_steps=9), {"train": [["train:3", "obeys", "waits"]]}) as it:
        wait_for(lambda: run.newest_step() == 3, "the steps")
        it.clock.advance(HEARTBEAT_S + LOOK_S)
        assert it.status["state"] == "running"
        run.request_stop(by="test")
        it.clock.advance(LOOK_S)
        it.prints("obeyed")
        for _ in range(5):
            it.clock.advance(HEARTBEAT_S)
            assert it.status["state"] == "stopping"
        (run.path / "control" / "go").touch()
        assert (it.ended(), it.status["state"]) == (0, "stopped")


def test_a_stop_in_the_last_step_of_a_stage_is_obeyed(run: RunDir) -> None:
    """No evaluation follows."""
    config = config_of(run__total_steps=9, run__eval_every=5)
    with supervised(run, config, {"train": [["train:5", "obeys"]], "eval": [["hangs"]]}) as it:
        wait_for(lambda: run.newest_step() == 5, "the steps")
        run.request_stop(by="test")
        it.clock.advance(LOOK_S)
        assert (it.ended(), it.status["state"]) == (0, "stopped")
    assert [stage.kind for stage in it.starts] == ["train"]


# ------------------------------------------------------------------------------------------------------ the ladder


@pytest.mark.parametrize(("kind", "ask"), [("train", "kill"), ("backup", "stop")])
def test_what_ignores_sigterm_is_killed(run: RunDir, kind: str, ask: str) -> None:
    """Once KILL_GRACE_S have passed, with its workers in other sessions. A stop is enough for what cannot save."""
    stages = {"backup": ["backup", "train"], "train": ["train"]}[kind]
    config = config_of(run__total_steps=9, workflow__stages=stages)
    with supervised(run, config, {kind: [["deaf"]]}) as it:
        it.prints("deaf")
        processes = find_by_run_id(run_id_of(run.path))
        if ask == "kill":
            it.supervisor.stops.killing = True
        else:
            run.request_stop(by="test")
        it.clock.advance(LOOK_S)
        it.prints("SIGTERM")
        assert it.status["state"] in ("starting", "running", "stopping")
        it.clock.advance(KILL_GRACE_S - 2 * LOOK_S)
        assert it.status["state"] == "stopping"
        assert find_by_run_id(run_id_of(run.path)) == processes
        assert len(processes) == 2
        it.clock.advance(3 * LOOK_S)
        code = it.ended()
    assert (code, it.status["state"]) == ((130, "killed") if ask == "kill" else (0, "stopped"))
    assert it.console.count("SIGTERM") == 1
    assert find_by_run_id(run_id_of(run.path)) == []


def test_what_obeys_sigterm_is_not_waited_for(run: RunDir) -> None:
    with supervised(run, config_of(), {"train": [["train:2", "hangs"]]}) as it:
        it.prints("hangs")
        it.supervisor.stops.killing = True
        it.clock.advance(LOOK_S)
        assert (it.ended(), it.status["state"], it.status["error"]) == (130, "killed", None)
    assert run.newest_step() == 2


def test_a_stage_whose_steps_are_there_is_not_trained_again(run: RunDir) -> None:
    """Its process was killed after its last step, and before it ended."""
    config = config_of(run__total_steps=9, run__eval_every=5)
    with supervised(run, config, {"train": [["train:5", "hangs"]]}) as it:
        it.prints("hangs")
        it.supervisor.stops.killing = True
        it.clock.advance(LOOK_S)
        assert it.ended() == 130
    with supervised(run, config, {"train": [["train:9"]], "eval": [[]]}) as it:
        assert (it.ended(), it.status["state"]) == (0, "finished")
    assert [stage.kind for stage in it.starts] == ["eval", "train", "eval"]


def test_a_failure_of_another_machine_ends_this_ones_processes(run: RunDir) -> None:
    """They may wait for it for ever; a moment later its failure is the run's."""
    run.config_file.write_text(config_text(run__nodes=2, run__nproc=2))
    config = config_of(run__nodes=2, run__nproc=2)
    with supervised(run, config, {"train": [["hangs"]]}) as it:
        it.prints("hangs")
        meeting = read_meeting(run)
        assert meeting is not None
        older = replace(meeting, versions={**meeting.versions, "torch": "2.8.0"})
        with pytest.raises(RunDirError, match="engine differs from the first one's: torch "):
            JoinedMachine(run)._take_part(older)
        it.clock.advance(KILL_GRACE_S)
        assert it.thread.is_alive()
        it.clock.advance(2 * LOOK_S)
        assert it.ended() == 1
    assert it.status["error"]["code"] == "nodes_differ"
    assert it.status["error"]["summary"].startswith(f"{socket.gethostname()}: this machine's engine differs")


def test_a_meeting_without_all_machines_is_named(run: RunDir) -> None:
    run.config_file.write_text(config_text(run__nodes=2, run__nproc=2))
    with supervised(run, config_of(run__nodes=2, run__nproc=2), {"train": [["exit:1"]]}) as it:
        assert it.ended() == 1
    error = it.status["error"]
    assert (error["code"], error["summary"]) == (
        "nodes_missing",
        f"1 of 2 machines took part; on each other one: grpo-train join one --root {run.root}",
    )


def test_a_failed_evaluation_is_passed_over(run: RunDir) -> None:
    config = config_of(run__total_steps=2, run__eval_every=1)
    with supervised(run, config, {"train": [["train:1"], ["train:2"]], "eval": [["exit:1"]]}) as it:
        assert (it.ended(), it.status["state"]) == (LEFT_OUT, "finished")
    assert [stage.name for stage in it.starts] == [
        "train to step 1", "evaluate step 1", "train to step 2", "evaluate step 2",
    ]  # fmt: skip
    said = "the store says no"
    assert f"evaluation of step 1 failed: {said}; training continues" in it.console
    assert it.status["reason"] == f"failed: evaluate step 1: {said}; evaluate step 2: {said}"


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


def test_the_progress_line_stays_below_the_log(root: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    run = create_run(root, {}, "one")
    config = load_config(config_text(run__total_steps=60))
    with supervised(run, config, {"train": [["log:15", "waits"]]}, show_progress=True) as it:
        it.prints("waits")
        it.clock.advance(HEARTBEAT_S + LOOK_S)
        bar = f"{'━' * 6}{'─' * 18}  15/60  25%  ETA 4 s".encode()
        shown = capsysbinary.readouterr().out
        assert shown.endswith(b"\r\x1b[K" + bar)
        it.supervisor._journal.say("a line of the log")
        assert capsysbinary.readouterr().out.endswith(b"\r\x1b[Kgrpo-train: a line of the log\n" + bar)
        it.supervisor.stops.killing = True
        it.clock.advance_until(lambda: not it.thread.is_alive())
    assert bar not in capsysbinary.readouterr().out.splitlines()[-1]


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    run = create_run(tmp_path, {}, "one")
    run.events_file.unlink()
    run.events_file.mkdir()
    journal = Journal(run, ProgressLine(False))
    journal.event("stalled")
    (run.logs / "console.log").rename(run.path / "said")
    (run.logs / "console.log").mkdir()
    journal.event("stalled")
    journal.copy_output(io.BytesIO(b"step 1\n"))
    journal.close()
    assert (run.path / "said").read_text() == "grpo-train: cannot write events.jsonl: Is a directory\n"
    assert list(journal.tail) == ["step 1"]
