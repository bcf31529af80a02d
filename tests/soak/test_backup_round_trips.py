"""Moved runs of every kind resume bit for bit. Part of ``make soak``; the LoRA run is in ``tests/backup``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_train.backup.runs import back_up_run, restore_run
from grpo_train.run_dir import RunDir
from tests.support.backups import folder_destination
from tests.support.engine import assert_same_run, run_of, train_here, write_config
from tests.support.moving import TOTAL, assert_moves_bit_for_bit, resume_until


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__adapter": "none", "algorithm__beta": 0.1},
        {
            "model__adapter": "lora", "task__name": "tictactoe", "task__template": "compact",
            "rollout__num_generations": 9, "rollout__max_prompt_length": 64, "algorithm__beta": 0.1,
        },
        {"model__adapter": "lora", "algorithm__num_iterations": 2, "algorithm__beta": 0.1},
    ],
    ids=["full weights", "self-play", "pending buffer"],
)  # fmt: skip
def test_moved_runs_continue_bit_for_bit(
    make_root: Callable[[], Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    cfg = write_config(tmp_path, **changes)
    straight = train_here(make_root(), cfg, "straight")
    assert_moves_bit_for_bit(straight, make_root(), cfg, tmp_path)


def test_moved_rewound_run_continues_bit_for_bit(make_root: Callable[[], Path], tmp_path: Path) -> None:
    cfg = write_config(tmp_path, model__adapter="lora")
    root = make_root()
    straight = train_here(root, cfg, "straight")
    there = assert_moves_bit_for_bit(straight, make_root(), cfg, tmp_path, before=lambda run: resume_until(run, "1", 2))
    assert sorted(path.name for path in there.training_state.glob("superseded/*/*")) == ["step_2", "step_3"]


def test_start_from_the_older_layout_travels_along(make_root: Callable[[], Path], tmp_path: Path) -> None:
    """``rl_runs/OLD/step_2`` has no manifest; a run with a KL penalty needs it in every resume."""
    cfg = write_config(tmp_path, model__adapter="lora", algorithm__beta=0.1)
    roots = [make_root(), make_root()]
    source = train_here(roots[0], cfg, "source", "--until", "2")
    for root in roots:
        older = root / "rl_runs" / "old" / "step_2"
        shutil.copytree(source.training_state / "step_2", older)
        (older / "MANIFEST.json").unlink()
    start = ["--ckpt", str(roots[0] / "rl_runs" / "old" / "step_2")]
    straight = train_here(roots[0], cfg, "straight", *start)
    start[1] = str(roots[1] / "rl_runs" / "old" / "step_2")
    there = assert_moves_bit_for_bit(straight, roots[1], cfg, tmp_path, *start)
    assert (there.root / "rl_runs" / "old" / "step_2" / "model").is_dir()


def test_older_run_is_restored_and_started_from(make_root: Callable[[], Path], tmp_path: Path) -> None:
    cfg = write_config(tmp_path, model__adapter="lora")
    root = make_root()
    source = train_here(root, cfg, "source", "--until", "2")
    shutil.copytree(source.training_state / "step_2", root / "rl_runs" / "old" / "step_2")
    (root / "rl_runs" / "old" / "step_2" / "MANIFEST.json").unlink()
    straight = train_here(root, cfg, "straight", "--ckpt", str(root / "rl_runs" / "old" / "step_2"))
    disk = folder_destination(tmp_path / "disk")
    back_up_run(root, "rl_runs", "old", disk)
    elsewhere = make_root()
    restore_run(elsewhere, "old", disk)
    again = train_here(elsewhere, cfg, "again", "--ckpt", str(elsewhere / "rl_runs" / "old" / "step_2"))
    assert_same_run(straight, again, TOTAL)


def test_run_moves_twice(make_root: Callable[[], Path], tmp_path: Path) -> None:
    cfg = write_config(tmp_path, model__adapter="none")
    straight = train_here(make_root(), cfg, "straight")
    root: Path = make_root()
    disk = folder_destination(tmp_path / "disk")
    run: RunDir = train_here(root, cfg, "moved", "--until", "2")
    for number, until in enumerate((4, 6)):
        back_up_run(root, "training_runs", "moved", disk)
        shutil.rmtree(root)
        root = tmp_path / f"root_{number}"
        restore_run(root, "moved", disk, steps="latest")
        run = run_of(root, "moved")
        resume_until(run, "latest", until)
    result = back_up_run(root, "training_runs", "moved", disk)
    assert result.steps == (1, 2, 3, 4, 5, 6), "steps that stayed behind are carried forward"
    assert_same_run(straight, run, 6)
