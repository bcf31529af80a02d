"""When a crashed run is tried again: the rule, and supervisors whose trainer fails on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import load_config
from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.supervisor.process import LOOK_S
from grpo_train.supervisor.restarts import Restarts
from tests.support.engine import config_text, events, rows, steps_logged
from tests.support.supervising import supervised

KILLED: dict[str, Any] = {"code": "internal", "summary": "rank 0 was killed by SIGKILL"}


def raised(message: str = "ValueError: no", rank: int = 0) -> dict[str, Any]:
    return {"code": "internal", "summary": f"rank {rank}: {message}", "exception": message}


@given(st.integers(0, 6), st.lists(st.floats(0, 100), max_size=4))
def test_attempts_without_progress_are_limited(limit: int, waits: list[float]) -> None:
    restarts = Restarts(limit, waits, progress_steps=10)
    given_waits = []
    for _ in range(20):
        wait_s = restarts.decide(KILLED, step=3, resumes_from=0).wait_s
        if wait_s is None:
            break
        given_waits.append(wait_s)
    padded = [*waits, *([waits[-1] if waits else 0.0] * 20)]
    assert given_waits == padded[:limit]


@given(st.integers(1, 5), st.integers(1, 20), st.lists(st.integers(0, 40), max_size=30))
def test_progress_counts_restarts_anew(limit: int, save_every: int, steps: list[int]) -> None:
    restarts, resumed, left = Restarts(limit, [1.0], save_every), 0, limit
    for ahead in steps:
        step = resumed + ahead
        if ahead >= save_every:
            left = limit
        resumes_from = resumed + ahead // save_every * save_every
        wait_s = restarts.decide(KILLED, step, resumes_from).wait_s
        assert (wait_s is None) == (left == 0)
        if wait_s is None:
            return
        left, resumed = left - 1, resumes_from


def test_the_same_exception_at_a_step_ends_the_run() -> None:
    restarts = Restarts(9, [0.0], progress_steps=2)
    assert restarts.decide(raised(), 4, 4).wait_s == 0
    assert restarts.decide(raised(), 6, 6).wait_s == 0, "another step"
    assert restarts.decide(raised("KeyError: 3"), 6, 6).wait_s == 0, "another exception"
    decision = restarts.decide(raised("KeyError: 3", rank=1), 6, 6)
    assert decision == (None, "no restart: the same error came twice at step 6")


def test_objects_in_a_message_do_not_hide_it() -> None:
    restarts = Restarts(9, [0.0], progress_steps=2)
    assert restarts.decide(raised("TypeError: <A at 0x7f10>"), 1, 0).wait_s == 0
    assert restarts.decide(raised("TypeError: <A at 0x8e22>"), 1, 0).wait_s is None


def test_a_kill_twice_at_a_step_is_retried() -> None:
    restarts = Restarts(9, [0.0], progress_steps=2)
    assert [restarts.decide(KILLED, 4, 4).wait_s for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("code", ["bad_config", "bad_task", "bad_model", "bad_checkpoint", "no_gpu", "no_sandbox"])
def test_errors_of_config_and_data_are_not_retried(code: str) -> None:
    decision = Restarts(9, [0.0], progress_steps=2).decide({**raised(), "code": code}, 0, 0)
    assert (decision.wait_s, "would fail in the same way" in decision.reason) == (None, True)


# ------------------------------------------------------------------------------------------------------ supervised


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, {}, "one")


def config_of(**changes: Any) -> Config:
    return load_config(config_text(run__total_steps=4, **changes))


def test_a_crash_restarts_after_a_wait(run: RunDir) -> None:
    """The waits of the defaults; progress begins them anew. A step that was not saved is superseded."""
    attempts = [["log:1", "killed"], ["killed"], ["train:1", "log:2", "killed"], ["train:4"]]
    with supervised(run, config_of(run__max_restarts=2), {"train": attempts}) as it:
        for restart, (wait_s, attempt) in enumerate([(10, 1), (60, 2), (10, 1)], 1):
            it.waits_for("restarted", restart)
            assert (it.status["state"], it.status["restarts"]) == ("starting", restart)
            assert it.status["error"]["signal"] == "SIGKILL"
            assert f"restart {attempt} of 2 from the latest checkpoint in {wait_s} s" in it.console
            it.clock.advance(wait_s - 2 * LOOK_S)
            assert len(it.starts) == restart
            it.clock.advance(3 * LOOK_S)
            assert len(it.starts) == restart + 1
        assert it.ended() == 0
    assert (it.status["state"], it.status["restarts"], it.status["error"]) == ("finished", 3, None)
    assert [row["wait_s"] for row in rows(run, "events.jsonl") if row["event"] == "restarted"] == [10, 60, 10]
    assert steps_logged(run) == [1, 2, 3, 4]
    assert events(run).count("crashed") == 3


def test_a_bug_that_repeats_is_restarted_once(run: RunDir) -> None:
    with supervised(run, config_of(run__max_restarts=5), {"train": [["report:ValueError: a bug in the reward"]]}) as it:
        it.waits_for("restarted")
        it.clock.advance(10 + LOOK_S)
        assert it.ended() == 1
    assert (it.status["state"], it.status["restarts"]) == ("crashed", 1)
    summary = "ValueError: a bug in the reward; no restart: the same error came twice at step 0"
    assert it.status["error"]["summary"] == summary
    assert events(run).count("restarted") == 1


def test_a_stop_ends_the_wait_before_a_restart(run: RunDir) -> None:
    config = config_of(run__max_restarts=5, run__restart_wait=[100_000])
    with supervised(run, config, {"train": [["killed"]]}) as it:
        it.waits_for("restarted")
        it.clock.advance(1000)
        assert (len(it.starts), it.status["state"]) == (1, "starting")
        run.request_stop(by="test")
        it.clock.advance(LOOK_S)
        assert (it.ended(), it.status["state"]) == (0, "stopped")
    assert not run.stop_requested()


def test_a_damaged_checkpoint_is_not_restarted_from(run: RunDir) -> None:
    """Every attempt would load the model and fail again."""
    with supervised(run, config_of(run__max_restarts=5), {"train": [["train:1", "waits", "killed"]]}) as it:
        it.prints("waits")
        (run.training_state / "step_1" / "optimizer.pt").unlink()
        (run.path / "control" / "go").touch()
        assert it.ended() == 1
    assert "cannot restart: checkpoint" in it.status["error"]["summary"]
    assert "restarted" not in events(run)


def test_torch_is_not_needed_to_decide() -> None:
    code = "import sys; import grpo_train.supervisor.restarts; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
