"""Runs shared by the training tests. All are of the micro model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_train.run_dir import RunDir, create_run
from tests.support import micro
from tests.support.engine import train_here, write_config
from tests.support.saving import small_checkpoint

make_root, tiny_model = micro.make_root, micro.tiny_model


@pytest.fixture(scope="session", params=["none", "lora"])
def straight(request: pytest.FixtureRequest, make_root: Callable[[], Path]) -> RunDir:
    """Six uninterrupted steps, with full weights and with LoRA. Tests may add runs to its root, not change it."""
    torch.set_num_threads(1)
    root = make_root()
    cfg = write_config(root, model__adapter=request.param, tracking__tensorboard=True)
    return train_here(root, cfg, "straight")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with steps 1 to 5, untrained."""
    run = create_run(tmp_path / "root", {}, "one")
    for step in range(1, 6):
        small_checkpoint(run, step)
    return run
