"""A run that is killed at random moments ends bit for bit like an undisturbed one. Part of ``make soak``.

The seed is printed; CHAOS_SEED repeats it and CHAOS_KILLS sets the number of kills.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from tests.support.engine import (
    GRPO_TRAIN,
    assert_same_run,
    grpo_train,
    run_of,
    running,
    steps_logged,
    train_here,
    wait_for,
    write_config,
)

STEPS = 400
KILLS = int(os.environ.get("CHAOS_KILLS", "25"))


def wait_for_a_step(log: Path, supervisor: subprocess.Popen[str]) -> None:
    """Wait until the run logs a step or ends."""

    def size() -> int:
        return log.stat().st_size if log.exists() else 0

    before = size()
    wait_for(lambda: size() > before or supervisor.poll() is not None, "a step", timeout=300)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("nproc", "changes"),
    [(1, {"model__adapter": "lora"}), (2, {"algorithm__num_iterations": 2})],
    ids=["one process, LoRA", "two processes, full weights, each buffer twice"],
)
def test_a_killed_run_equals_an_undisturbed_one(
    make_root: Callable[[], Path], nproc: int, changes: dict[str, Any]
) -> None:
    seed = os.environ.get("CHAOS_SEED") or secrets.token_hex(4)
    print(f"CHAOS_SEED={seed}")
    chance = random.Random(f"{seed} {nproc}")
    root = make_root()
    cfg = write_config(root, run__total_steps=STEPS, run__save_every=3, run__nproc=nproc, **changes)
    if nproc == 1:
        straight = train_here(root, cfg, "straight")
    else:
        done = grpo_train("train", "--cfg", cfg, "--run-name", "straight", root=root, timeout=600)
        assert done.returncode == 0, done.stdout
        straight = run_of(root, "straight")

    run = run_of(root, "chaos")
    command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", "chaos"]
    for kill in range(KILLS):
        with running(command, root, run_id_of(run.path)) as supervisor:
            if kill % 4:  # every fourth kill hits the startup
                wait_for_a_step(run.logs / "train_log.jsonl", supervisor)
            time.sleep(chance.uniform(0, 6))  # any moment will do
            victims = [supervisor.pid, *find_by_run_id(run_id_of(run.path))]
            victim = chance.choice(victims)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
            if victim != supervisor.pid:
                supervisor.wait(timeout=60)
        for checkpoint in run.checkpoints():
            run.checkpoint(checkpoint.step, deep=True)
        try:
            step = run.checkpoint("latest").step
        except RunDirError:  # killed before the first save: start a new run
            run = run_of(root, f"chaos{kill}")
            command = [*GRPO_TRAIN, "train", "--cfg", str(cfg), "--run-name", run.name]
            continue
        print(f"kill {kill}: pid {victim}, at step {step}")
        if step >= STEPS:
            break
        command = [*GRPO_TRAIN, "resume", "--training-run", run.name]
    if run.checkpoint("latest").step < STEPS:
        done = grpo_train("resume", "--training-run", run.name, root=root, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    assert steps_logged(run) == list(range(1, STEPS + 1))
    assert_same_run(run, straight, STEPS)
    assert find_by_run_id(run_id_of(run.path)) == []
