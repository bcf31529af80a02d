"""A run that hangs is noticed, shown, ended and restarted: stages that stop, and a trainer that deadlocks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.processes import find_by_run_id, run_id_of, start_ticks
from grpo_train.run_dir.signs import SIGNS_VARIABLE, downloading, sign_of_life
from grpo_train.supervisor.process import KILL_GRACE_S, LOOK_S, STOP_GRACE_S
from grpo_train.supervisor.watchdog import FIRST_S, Watchdog, signs_file
from tests.support.clock import TestClock
from tests.support.engine import config_text, events, rows, steps_logged, wait_for
from tests.support.supervising import supervised

STALL_S = 60.0
DEADLOCK = """
import threading
from pathlib import Path
calls, lock = 0, threading.Lock()
def reward(attempt, verdict):
    global calls
    calls += 1
    if calls > 20:
        lock.acquire()
        Path({folder!r}, "locked").touch()
        lock.acquire()
    return float(verdict.correct)
"""


def test_a_stopped_process_is_restarted(run: RunDir) -> None:
    """It is asked to save, then to end, then killed, each after its time; and the next attempt finishes."""
    config = load_config(config_text(run__max_restarts=2, run__stall_timeout=STALL_S, run__total_steps=6))
    with supervised(run, config, {"train": [["train:2", "stopped"], ["train:6"]]}) as it:
        wait_for(lambda: run.newest_step() == 2, "two steps")
        (pid,) = find_by_run_id(run_id_of(run.path))
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T", "its stop")
        it.clock.advance(STALL_S - 1)
        assert (it.status["state"], "stalled" in events(run)) == ("running", False)
        it.clock.advance_until(lambda: "stalled" in events(run), 4)
        it.clock.advance(STOP_GRACE_S - 1)
        assert (it.status["state"], start_ticks(pid) is not None) == ("stalled", True)
        assert run.stop_requested()
        it.clock.advance(KILL_GRACE_S)
        assert start_ticks(pid) is not None
        it.clock.advance(1 + 3 * LOOK_S)
        it.waits_for("restarted")
        assert not run.stop_requested()
        it.clock.advance(10 + LOOK_S)
        assert it.ended() == 0
    assert (it.status["state"], it.status["restarts"]) == ("finished", 1)
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    (event,) = [row for row in rows(run, "events.jsonl") if row["event"] == "stalled"]
    assert STALL_S <= event["silent_s"] <= STALL_S + 2
    (process,) = event["processes"]
    assert (process["pid"], process["state"]) == (pid, "T")
    assert f"(pid {pid}, {Path(sys.executable).name}): state T (stopped)" in it.console
    crash = next(row for row in rows(run, "events.jsonl") if row["event"] == "crashed")
    assert crash["error"]["code"] == "stalled"


def test_a_deadlocked_reward_shows_its_stack(root: Path) -> None:
    """A real trainer, whose reward function runs in a process of its own."""
    (root / "own.py").write_text(DEADLOCK.format(folder=str(root)))
    config = config_text(run__stall_timeout=STALL_S, task__rewards=[f"{root / 'own.py'}:reward"])
    run = create_run(root, {}, "blocked")
    run.config_file.write_text(config)
    with supervised(run, load_config(config)) as it:
        wait_for((root / "locked").exists, "the deadlock", timeout=300)
        ranks = [pid for pid in find_by_run_id(run_id_of(run.path)) if is_rank(pid)]
        it.clock.advance_until(lambda: "stalled" in events(run), 2 * STALL_S)
        it.prints("in reward")
        it.clock.advance_until(lambda: not it.thread.is_alive())
        assert it.ended() == 1
    assert steps_logged(run) == [1]
    (event,) = [row for row in rows(run, "events.jsonl") if row["event"] == "stalled"]
    assert [one["pid"] for one in event["processes"] if one["rank"] == 0] == ranks
    assert f"rank 0 (pid {ranks[0]}, grpo_train.train): state " in it.console
    stack = it.console.partition("its stacks:")[2]
    assert f'File "{root / "own.py"}"' in stack
    assert "in reward" in stack
    assert it.status["error"]["code"] == "stalled"


def is_rank(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[1:3] == [b"-m", b"grpo_train.train"]


# ---------------------------------------------------------------------------------------------------- the rule


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    run = create_run(tmp_path, {}, "one")
    (run.path / "control").mkdir(exist_ok=True)
    monkeypatch.setenv(SIGNS_VARIABLE, str(signs_file(run)))
    return run


def wait(watchdog: Watchdog, clock: TestClock, seconds: float, printed: int = 0) -> float | None:
    """Look every two seconds; the silence when it was too long."""
    for _ in range(round(seconds / 2)):
        clock.advance(2)
        if (silent := watchdog.silent_for(printed)) is not None:
            return silent
    return None


def log_step(run: RunDir, step: int) -> None:
    with (run.logs / "train_log.jsonl").open("a") as log:
        log.write(f'{{"step": {step}}}\n')


def test_before_the_first_step_there_is_an_hour(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    watchdog.start("train")
    assert wait(watchdog, clock, FIRST_S - 60) is None
    log_step(run, 1)
    assert wait(watchdog, clock, 50) is None
    assert wait(watchdog, clock, 20) == pytest.approx(60, abs=4)


def test_auto_is_ten_median_steps(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, "auto", clock)
    watchdog.start("train")
    watchdog.silent_for(0)
    for step in range(5):
        wait(watchdog, clock, 200)
        log_step(run, step)
    wait(watchdog, clock, 4)
    assert watchdog.limit_s == pytest.approx(2000, abs=50)
    assert wait(watchdog, clock, 1900) is None
    assert wait(watchdog, clock, 200) is not None


def test_short_steps_still_have_ten_minutes(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, "auto", clock)
    watchdog.start("train")
    watchdog.silent_for(0)
    for step in range(5):
        wait(watchdog, clock, 4)
        log_step(run, step)
    wait(watchdog, clock, 4)
    assert watchdog.limit_s == 600


def test_a_growing_download_is_a_sign_of_life(run: RunDir, clock: TestClock, tmp_path: Path) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    watchdog.start("train")
    cache = tmp_path / "cache"
    cache.mkdir()
    with downloading(cache):
        for part in range(4):
            (cache / f"part{part}").write_bytes(b"x" * 5_000)
            assert wait(watchdog, clock, 3_500) is None
        assert wait(watchdog, clock, 200) is not None, "it does not grow any more"


def test_saved_files_and_chunks_are_signs_of_life(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    for kind, sign in (("train", "save"), ("eval", "chunk")):
        watchdog.start(kind)
        watchdog.silent_for(0)
        log_step(run, 1)
        sign_of_life("chunk")
        for _ in range(5):
            assert wait(watchdog, clock, 50) is None
            sign_of_life(sign)
        assert wait(watchdog, clock, 100) is not None


def test_an_attempt_before_says_nothing_about_this_one(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    sign_of_life("chunk")
    watchdog.start("eval")
    watchdog.silent_for(0)
    sign_of_life("started")  # the model of the next attempt is loaded now
    assert wait(watchdog, clock, FIRST_S - 60) is None
    sign_of_life("chunk")
    assert wait(watchdog, clock, 100) is not None


def test_a_suspended_supervisor_calls_nothing_stalled(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    watchdog.start("train")
    watchdog.silent_for(0)
    log_step(run, 1)
    wait(watchdog, clock, 4)
    clock.advance(100_000)
    assert watchdog.silent_for(0) is None


def test_printing_keeps_only_commands_alive(run: RunDir, clock: TestClock) -> None:
    watchdog = Watchdog(run, 60.0, clock)
    for kind, ends in (("backup", False), ("train", True)):
        watchdog.start(kind)
        watchdog.silent_for(0)
        log_step(run, 1)
        printed = [wait(watchdog, clock, 50, printed) for printed in range(90)]
        assert any(silent is not None for silent in printed) == ends


def test_a_process_without_a_supervisor_writes_no_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIGNS_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    sign_of_life("step")
    assert list(tmp_path.iterdir()) == []
