"""When a crashed run is tried again: the rule, and real supervisors whose trainer fails on purpose."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir.processes import run_id_of
from grpo_train.supervisor.restarts import Restarts
from tests.support.engine import GRPO_TRAIN, events, grpo_train, rows, run_of, running, wait_for, write_config

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


# ------------------------------------------------------------------------------------------------ real processes

REWARD = """
calls = 0
def broken(attempt, verdict):
    global calls
    calls += 1
    if calls > 2:  # the first calls are those before the run is made
        raise ValueError("a bug in the reward")
    return 1.0
"""


def train(root: Path, name: str, cfg: Path) -> list[str]:
    return [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", name, "--root", str(root)]


def test_a_bug_that_repeats_is_restarted_once(root: Path) -> None:
    (root / "reward.py").write_text(REWARD)
    cfg = write_config(
        root, run__max_restarts=5, run__restart_wait=[0.1], task__rewards=[f"{root / 'reward.py'}:broken"]
    )
    run = run_of(root, "bug")
    done = grpo_train("train", "--cfg", cfg, "--run-name", run.name, root=root, timeout=300)
    assert done.returncode == 1, done.stdout
    status = run.read_status() or {}
    assert (status["state"], status["restarts"]) == ("crashed", 1)
    assert status["error"]["summary"].endswith("no restart: the same error came twice at step 0")
    assert events(run).count("restarted") == 1


def test_a_stop_ends_the_wait_before_a_restart(root: Path) -> None:
    (root / "reward.py").write_text(REWARD)
    cfg = write_config(
        root, run__max_restarts=5, run__restart_wait=[100_000], task__rewards=[f"{root / 'reward.py'}:broken"]
    )
    run = run_of(root, "waiting")
    with running(train(root, run.name, cfg), root, run_id_of(run.path)) as supervisor:
        wait_for(lambda: "restarted" in events(run), "the restart", timeout=120)
        assert rows(run, "events.jsonl")[-1]["wait_s"] == 100_000
        wait_for(lambda: (run.read_status() or {}).get("state") == "starting", "the state of the wait")
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=120)
    assert (supervisor.returncode, (run.read_status() or {})["state"]) == (0, "stopped")


def test_torch_is_not_needed_to_decide() -> None:
    code = "import sys; import grpo_train.supervisor.restarts; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
