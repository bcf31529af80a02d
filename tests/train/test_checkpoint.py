"""Checkpoints: whole or invisible, whatever ends the process that writes them."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_train.checkpoint import (
    CheckpointError,
    generator_states,
    load_training_state,
    remove_leftovers,
    restore_generators,
    save_checkpoint,
    seed_everything,
)
from grpo_train.config import Model
from grpo_train.distributed import Group
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.processes import start_ticks
from grpo_train.run_dir import RunDir, create_run
from grpo_train.worker import main
from tests.engine import assert_same_run, grpo_train, resume_here, rows, run_of, train_here, write_config
from tests.killing import killed_at, touches


@dataclass
class Trainer:
    """All that a checkpoint holds."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: Any

    def save(self, run: RunDir, step: int, final: bool = False) -> None:
        save_checkpoint(
            run, step, self.policy, self.optimizer, self.scheduler, Group(), info={"num_tokens": step}, final=final
        )


@pytest.fixture(scope="module")
def trainer(tiny_model: Path) -> Trainer:
    torch.set_num_threads(1)
    policy = load_policy(Model(backbone=str(tiny_model), adapter="none"), Path("/"), torch.device("cpu"))
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-4)
    for parameter in policy.trainable():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return Trainer(policy, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "root", {}, "one")


# -------------------------------------------------------------------------------------------------------- kill -9


def whole(run: RunDir) -> list[int]:
    """Steps whose every checksum is right; fails where a visible step is not whole or an alias dangles."""
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    for step in steps:
        run.checkpoint(step, deep=True)
    for alias in run.training_state.glob("step_[lf]*"):
        assert alias.exists(), f"{alias.name} dangles"
    return steps


def test_a_kill_at_any_touch_of_the_disk_leaves_whole_checkpoints(trainer: Trainer, run: RunDir) -> None:
    trainer.save(run, 1)
    made = touches(lambda: trainer.save(run, 2, final=True))
    assert len(made) > 40
    assert {"fsync", "rename", "replace", "symlink", "torch.save"} <= set(made)
    shutil.rmtree(run.training_state)
    trainer.save(run, 1)
    seen = set()
    for n in range(len(made)):
        killed_at(n, lambda: trainer.save(run, 2, final=True))
        steps = whole(run)
        assert steps in ([1], [1, 2])
        assert run.checkpoint("latest").step == steps[-1]
        seen.add(len(steps))
        remove_leftovers(run)
        assert not list(run.training_state.glob(".*.tmp")), f"left by a kill before touch {n}, {made[n]}"
        if len(steps) == 2:  # as a start does that goes on from the step before
            shutil.rmtree(run.training_state / "step_2")
            for alias in run.training_state.glob("step_[lf]*"):
                alias.unlink()
    assert seen == {1, 2}, "both sides of the rename were met"
    trainer.save(run, 2, final=True)
    assert whole(run) == [1, 2]


def test_a_kill_at_any_touch_of_a_rewind_leaves_a_run_to_resume(trainer: Trainer, run: RunDir) -> None:
    for step in (1, 2, 3):
        trainer.save(run, step, final=step == 3)
    kept = shutil.copytree(run.training_state, run.path / "kept", symlinks=True)
    for n in range(len(touches(lambda: run.rewind(1) and None))):
        shutil.rmtree(run.training_state)
        shutil.copytree(kept, run.training_state, symlinks=True)
        killed_at(n, lambda: run.rewind(1) and None)
        assert whole(run)[0] == 1
        run.rewind(1)
        assert whole(run) == [1]
        assert run.checkpoint("latest").step == 1


def test_what_a_living_process_is_writing_is_left_alone(run: RunDir) -> None:
    own = subprocess.Popen(["sleep", "60"])
    theirs = run.training_state / f".step_2.{own.pid}-{start_ticks(own.pid)}-aa.tmp"
    dead = run.training_state / f".step_2.{own.pid}-1-aa.tmp"
    link = run.training_state / ".step_latest.12ab.tmp"
    theirs.mkdir()
    dead.mkdir()
    link.symlink_to("step_1")
    remove_leftovers(run)
    own.kill()
    own.wait()
    assert os.listdir(run.training_state) == [theirs.name]


# ------------------------------------------------------------------------------------------------------- full disks


@pytest.fixture
def full_after_the_first_save(trainer: Trainer, tmp_path: Path) -> Iterator[Path]:
    """A root with room for one checkpoint and a half: a small tmpfs, or a limit on the size of files."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(root)]
    if os.geteuid() == 0 and subprocess.run(mount).returncode == 0:
        yield root
        subprocess.run(["umount", "-l", str(root)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield root
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(root: Path, leave: int) -> None:
    """Leave so many bytes on the disk (or allow files no larger)."""
    if os.path.ismount(root):
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        (root / "ballast").write_bytes(b"\0" * max(0, free - leave))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (leave, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("room", [300_000, 4_500_000], ids=["for no weights", "for no optimizer"])
def test_a_full_disk_keeps_what_was_saved(trainer: Trainer, full_after_the_first_save: Path, room: int) -> None:
    run = create_run(full_after_the_first_save, {}, "one")
    trainer.save(run, 1)
    fill(full_after_the_first_save, room)
    with pytest.raises(CheckpointError) as caught:
        trainer.save(run, 2)
    assert f"cannot save {run.training_state / 'step_2'}" in str(caught.value)
    assert "earlier checkpoints are intact; make room" in str(caught.value)
    assert os.listdir(run.training_state).count("step_1") == 1
    assert sorted(os.listdir(run.training_state)) == ["step_1", "step_latest"]
    assert whole(run) == [1]


def test_a_full_disk_ends_a_run_in_words_and_it_goes_on_later(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """Through the command line: exit code, status, message; then room is made, and the run goes on bit for bit."""
    reference_root = make_root()
    straight = train_here(reference_root, write_config(reference_root, run__total_steps=4), "straight")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=36m", "none", str(disk)]
    mounted = os.geteuid() == 0 and subprocess.run(mount).returncode == 0
    try:
        shutil.copytree(reference_root / "models", disk / "models")
        cfg = write_config(disk, run__total_steps=4)
        if mounted:  # room for two checkpoints of 10.5 MB and a bit
            done = grpo_train("train", "--cfg", cfg, "--run-name", "one", root=disk)
        else:
            done = grpo_train(
                "train", "--cfg", cfg, "--run-name", "one", root=disk,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000)),
            )  # fmt: skip
        run = run_of(disk, "one")
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stdout + done.stderr
        assert "cannot save" in done.stdout
        assert "make room" in done.stdout
        status = run.read_status() or {}
        assert status["state"] == "crashed"
        assert "cannot save" in status["error"]["summary"]
        saved = whole(run)
        assert saved == list(range(1, len(saved) + 1))
        assert len(saved) < 4
        assert not list(run.training_state.glob(".*"))
        if saved:
            if mounted:
                subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
            done = grpo_train("resume", "--training-run", "one", root=disk)
            assert done.returncode == 0, done.stdout + done.stderr
            assert_same_run(run, straight, 4)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)


# ------------------------------------------------------------------------------------------------------- what is kept


def test_generators_come_back_exactly() -> None:
    def draw() -> tuple[Any, ...]:
        numbers = (random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn()))
        return *numbers, torch.rand(2)

    seed_everything(3, 1)
    draw()
    states = generator_states()
    first = draw()
    restore_generators(states)
    again = draw()
    assert first[:4] == again[:4]
    assert torch.equal(first[4], again[4])
    seed_everything(3, 0)
    assert draw()[0] != first[0]


def test_the_state_is_loaded_as_it_was(trainer: Trainer, run: RunDir) -> None:
    trainer.save(run, 1, final=True)
    other = torch.optim.AdamW(trainer.policy.trainable(), lr=7.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(other, lambda done: 1.0)
    info = load_training_state(run.checkpoint("final"), other, scheduler, Group())
    assert (info["step"], info["num_tokens"], info["world_size"], info["format"]) == (1, 1, 1, 1)
    assert scheduler.state_dict() == trainer.scheduler.state_dict()
    for key, value in trainer.optimizer.state_dict()["state"].items():
        for name, tensor in value.items():
            assert torch.equal(tensor, other.state_dict()["state"][key][name])


def test_a_run_killed_during_a_save_goes_on_from_the_step_before(make_root: Callable[[], Path]) -> None:
    """Whole training processes, forked: one is killed in the save of step 3, the next makes the run's end."""
    root = make_root()
    cfg = write_config(root, run__total_steps=4)
    straight = train_here(root, cfg, "straight")

    def third_step(run: RunDir) -> Callable[[], None]:
        return lambda: main(["--run-dir", str(run.path), "--until", "3"]) and None  # type: ignore[func-returns-value]

    made = touches(third_step(train_here(root, cfg, "counted", "--until", "2")))
    rename = len(made) - 1 - made[::-1].index("rename")  # the one that makes the step visible
    for name, point in (("half_optimizer", made.index("torch.save") + 1), ("hidden", rename), ("no_link", rename + 1)):
        run = train_here(root, cfg, name, "--until", "2")
        killed_at(point, third_step(run))
        assert whole(run) == ([1, 2, 3] if name == "no_link" else [1, 2])
        resume_here(run, total=4)
        assert_same_run(run, straight, 4)
        assert len(rows(run)) == 4
