"""A run that hangs is noticed, shown, ended and restarted: real trainers that stop, block and deadlock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.processes import find_by_run_id, run_id_of, variable_in
from grpo_train.run_dir.signs import SIGNS_VARIABLE, downloading, sign_of_life
from grpo_train.supervisor.watchdog import FIRST_S, Watchdog, signs_file
from tests.support.engine import (
    GRPO_TRAIN,
    SHORT_GRACE,
    Running,
    assert_same_run,
    at_start,
    rows,
    run_of,
    running,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)

STALL_S = 6.0
"""A step takes 0.25 s; this one must not be mistaken for a hang on a busy machine, and only costs time."""
HANGS: dict[str, Any] = {
    "run__max_restarts": 2,
    "run__restart_wait": [0.1],
    "run__stall_timeout": STALL_S,
    "run__total_steps": 6,
}
DEADLOCK = """
import threading
from pathlib import Path
calls, lock = 0, threading.Lock()
def reward(attempt, verdict):
    global calls
    calls += 1
    done = Path({folder!r}) / "done"
    if calls > 20 and not done.exists():
        done.touch()
        lock.acquire()
        lock.acquire()
    return float(verdict.correct)
"""


def train(root: Path, run: RunDir, cfg: Path) -> list[str]:
    return [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", run.name, "--root", str(root)]


def ranks(run: RunDir) -> list[int]:
    """Pids of the training processes."""

    def is_rank(pid: int) -> bool:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[1:3] == [b"-m", b"grpo_train.train"] or variable_in(pid, "RANK") != ""

    return [pid for pid in find_by_run_id(run_id_of(run.path)) if is_rank(pid)]


@contextmanager
def started(root: Path, run: RunDir, cfg: Path) -> Iterator[Running]:
    short = at_start(root / "short", SHORT_GRACE)
    with running(train(root, run, cfg), root, run_id_of(run.path), **short) as supervisor:
        yield supervisor


@contextmanager
def hung(root: Path, run: RunDir, cfg: Path) -> Iterator[Running]:
    """A training run whose second step is logged."""
    with started(root, run, cfg) as supervisor:
        wait_for(lambda: len(steps_logged(run)) >= 2 or supervisor.poll() is not None, "two steps", timeout=300)
        yield supervisor


def recovered(run: RunDir, supervisor: Running) -> tuple[str, dict[str, Any]]:
    """Console and the event of the hang of a run that has finished after one restart."""
    output, _ = supervisor.communicate(timeout=600)
    status = run.read_status() or {}
    assert (supervisor.returncode, status["state"], status["restarts"]) == (0, "finished", 1), output
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    (event,) = [row for row in rows(run, "events.jsonl") if row["event"] == "stalled"]
    assert STALL_S <= event["silent_s"] <= STALL_S + 5
    return (run.logs / "console.log").read_text(), event


def test_a_stopped_process_is_restarted(root: Path) -> None:
    cfg = write_config(root, **HANGS)
    run = run_of(root, "stopped")
    with hung(root, run, cfg) as supervisor:
        (pid,) = ranks(run)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: (run.read_status() or {})["state"] == "stalled", "the state 'stalled'", timeout=120)
        console, event = recovered(run, supervisor)
    (process,) = [one for one in event["processes"] if one["rank"] == 0]
    assert (process["pid"], process["state"]) == (pid, "T")
    assert f"rank 0 (pid {pid}, grpo_train.train): state T (stopped)" in console
    crash = next(row for row in rows(run, "events.jsonl") if row["event"] == "crashed")
    assert crash["error"]["code"] == "stalled"
    assert_same_run(run, train_here(root, cfg, "straight"), 6)


def test_a_deadlocked_reward_shows_its_stack(root: Path) -> None:
    (root / "own.py").write_text(DEADLOCK.format(folder=str(root)))
    cfg = write_config(root, **HANGS, task__rewards=[f"{root / 'own.py'}:reward"])
    run = run_of(root, "blocked")
    with started(root, run, cfg) as supervisor:
        console, _ = recovered(run, supervisor)
    stack = console.partition("its stacks:")[2]
    assert f'File "{root / "own.py"}"' in stack
    assert "in reward" in stack


# ---------------------------------------------------------------------------------------------------- the rule


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advance the watchdog's clock."""
    now = time.monotonic()

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("grpo_train.supervisor.watchdog.time.monotonic", lambda: now)
    return advance


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    run = create_run(tmp_path, {}, "one")
    (run.path / "control").mkdir(exist_ok=True)
    monkeypatch.setenv(SIGNS_VARIABLE, str(signs_file(run)))
    return run


def wait(watchdog: Watchdog, clock: Callable[[float], None], seconds: float, printed: int = 0) -> float | None:
    """Look every two seconds; the silence when it was too long."""
    for _ in range(round(seconds / 2)):
        clock(2)
        if (silent := watchdog.silent_for(printed)) is not None:
            return silent
    return None


def log_step(run: RunDir, step: int) -> None:
    with (run.logs / "train_log.jsonl").open("a") as log:
        log.write(f'{{"step": {step}}}\n')


def test_before_the_first_step_there_is_an_hour(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, 60.0)
    watchdog.start("train")
    assert wait(watchdog, clock, FIRST_S - 60) is None
    log_step(run, 1)
    assert wait(watchdog, clock, 50) is None
    assert wait(watchdog, clock, 20) == pytest.approx(60, abs=4)


def test_auto_is_ten_median_steps(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, "auto")
    watchdog.start("train")
    watchdog.silent_for(0)
    for step in range(5):
        wait(watchdog, clock, 200)
        log_step(run, step)
    wait(watchdog, clock, 4)
    assert watchdog.limit_s == pytest.approx(2000, abs=50)
    assert wait(watchdog, clock, 1900) is None
    assert wait(watchdog, clock, 200) is not None


def test_short_steps_still_have_ten_minutes(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, "auto")
    watchdog.start("train")
    watchdog.silent_for(0)
    for step in range(5):
        wait(watchdog, clock, 4)
        log_step(run, step)
    wait(watchdog, clock, 4)
    assert watchdog.limit_s == 600


def test_a_growing_download_is_a_sign_of_life(run: RunDir, clock: Callable[[float], None], tmp_path: Path) -> None:
    watchdog = Watchdog(run, 60.0)
    watchdog.start("train")
    cache = tmp_path / "cache"
    cache.mkdir()
    with downloading(cache):
        for part in range(4):
            (cache / f"part{part}").write_bytes(b"x" * 5_000)
            assert wait(watchdog, clock, 3_500) is None
        assert wait(watchdog, clock, 200) is not None, "it does not grow any more"


def test_saved_files_and_chunks_are_signs_of_life(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, 60.0)
    for kind, sign in (("train", "save"), ("eval", "chunk")):
        watchdog.start(kind)
        watchdog.silent_for(0)
        log_step(run, 1)
        sign_of_life("chunk")
        for _ in range(5):
            assert wait(watchdog, clock, 50) is None
            sign_of_life(sign)
        assert wait(watchdog, clock, 100) is not None


def test_an_attempt_before_says_nothing_about_this_one(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, 60.0)
    sign_of_life("chunk")
    watchdog.start("eval")
    watchdog.silent_for(0)
    sign_of_life("started")  # the model of the next attempt is loaded now
    assert wait(watchdog, clock, FIRST_S - 60) is None
    sign_of_life("chunk")
    assert wait(watchdog, clock, 100) is not None


def test_a_suspended_supervisor_calls_nothing_stalled(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, 60.0)
    watchdog.start("train")
    watchdog.silent_for(0)
    log_step(run, 1)
    wait(watchdog, clock, 4)
    clock(100_000)
    assert watchdog.silent_for(0) is None


def test_printing_keeps_only_commands_alive(run: RunDir, clock: Callable[[float], None]) -> None:
    watchdog = Watchdog(run, 60.0)
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
