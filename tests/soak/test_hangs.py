"""More hangs: some ranks of several, a blocked write, without restarts, with a stop. Part of ``make soak``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDir, list_evaluations
from grpo_train.run_dir.processes import find_by_run_id, run_id_of, variable_in
from grpo_train.run_dir.signs import read_sign
from grpo_train.supervisor.watchdog import signs_file
from tests.support.engine import (
    GRPO_TRAIN,
    Running,
    events,
    rows,
    run_of,
    running,
    steps_logged,
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
BLOCKED_WRITE = """
import os
from pathlib import Path
calls = 0
def reward(attempt, verdict):
    global calls
    calls += 1
    fifo = Path({folder!r}) / "fifo"
    if calls > 20 and not fifo.exists():  # in the second step, once
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDWR)
        os.write(os.open(fifo, os.O_WRONLY), bytes(1 << 24))  # nobody reads it
    return 1.0
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
def hung(root: Path, run: RunDir, cfg: Path) -> Iterator[Running]:
    """A training run whose second step is logged."""
    with running(train(root, run, cfg), root, run_id_of(run.path)) as supervisor:
        wait_for(lambda: len(steps_logged(run)) >= 2 or supervisor.poll() is not None, "two steps", timeout=300)
        yield supervisor


def recovered(run: RunDir, supervisor: Running) -> tuple[str, dict[str, Any]]:
    """Console and the event of the hang of a run that has finished after one restart."""
    output, _ = supervisor.communicate(timeout=600)
    status = run.read_status() or {}
    assert (supervisor.returncode, status["state"], status["restarts"]) == (0, "finished", 1), output
    assert steps_logged(run) == [1, 2, 3, 4, 5, 6]
    (event,) = [row for row in rows(run, "events.jsonl") if row["event"] == "stalled"]
    assert event["silent_s"] >= STALL_S
    return (run.logs / "console.log").read_text(), event


@pytest.mark.parametrize("how_many", [1, 2], ids=["one rank", "all ranks"])
def test_stopped_ranks_are_restarted(root: Path, how_many: int) -> None:
    cfg = write_config(root, **HANGS, run__nproc=2)
    run = run_of(root, "ranks")
    with hung(root, run, cfg) as supervisor:
        stopped = ranks(run)[:how_many]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        console, event = recovered(run, supervisor)
    states = {one["pid"]: one["state"] for one in event["processes"] if one["rank"] is not None}
    assert len(states) == 2
    assert {pid for pid, state in states.items() if state == "T"} == set(stopped)
    if how_many == 1:  # the other one waits for it, and shows where
        assert "all_gather" in console or "all_reduce" in console or "broadcast" in console


def test_a_blocked_write_shows_its_stack(root: Path) -> None:
    (root / "own.py").write_text(BLOCKED_WRITE.format(folder=str(root)))
    cfg = write_config(root, **HANGS, task__rewards=[f"{root / 'own.py'}:reward"])
    run = run_of(root, "blocked")
    with running(train(root, run, cfg), root, run_id_of(run.path)) as supervisor:
        console, _ = recovered(run, supervisor)
    stack = console.partition("its stacks:")[2]
    assert f'File "{root / "own.py"}"' in stack
    assert "in reward" in stack


def test_without_restarts_a_hang_ends_the_run(root: Path) -> None:
    cfg = write_config(root, **{**HANGS, "run__max_restarts": 0})
    run = run_of(root, "once")
    with hung(root, run, cfg) as supervisor:
        os.kill(ranks(run)[0], signal.SIGSTOP)
        supervisor.communicate(timeout=400)
    status = run.read_status() or {}
    assert (supervisor.returncode, status["state"], status["error"]["code"]) == (1, "crashed", "stalled")
    assert "state T (stopped)" in status["error"]["summary"]
    assert find_by_run_id(run_id_of(run.path)) == []


def test_a_stop_of_a_run_that_hangs_is_obeyed(root: Path) -> None:
    cfg = write_config(root, **{**HANGS, "run__total_steps": 5000})
    run = run_of(root, "asked")
    with hung(root, run, cfg) as supervisor:
        os.kill(ranks(run)[0], signal.SIGSTOP)
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=400)
    assert (supervisor.returncode, (run.read_status() or {})["state"]) == (0, "stopped")
    assert "stalled" in events(run)


def test_a_stopped_evaluation_is_restarted(root: Path) -> None:
    changes = {"run__total_steps": 2, "run__eval_every": 2, "eval__num_problems": 400, "eval__subset_frac": 1.0}
    cfg = write_config(root, **{**HANGS, **changes}, eval__batch_size=1)
    run = run_of(root, "evaluated")

    def workers() -> list[int]:
        module = b"grpo_train.evaluation.workers"
        return [
            pid for pid in find_by_run_id(run_id_of(run.path)) if module in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    with running(train(root, run, cfg), root, run_id_of(run.path)) as supervisor:
        wait_for(lambda: read_sign(signs_file(run))[0] == "chunk", "the first chunk", timeout=300)
        (pid,) = workers()
        os.kill(pid, signal.SIGSTOP)
        output, _ = supervisor.communicate(timeout=600)
    status = run.read_status() or {}
    assert (supervisor.returncode, status["state"], status["restarts"]) == (0, "finished", 1), output
    assert status["reason"] is None
    assert f"pid {pid}, grpo_train.evaluation.workers): state T (stopped)" in output
    (evaluation,) = list_evaluations(root, run.name)
    assert [(row["name"], row["status"]) for row in evaluation["metrics"]] == [("step_2", "ok")]
