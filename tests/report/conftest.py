"""Runs that reports are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir


@pytest.fixture(scope="session")
def two_runs(make_root: Callable[[], Path]) -> Path:
    """A root with ``first`` and ``second``, which differ in learning rate and warm-up: trained for two steps and
    evaluated before and after. Not to be changed."""
    from tests.support.engine import train_here, write_config
    from tests.support.evaluating import evaluate_here

    root = make_root()
    for name, changes in (("first", {}), ("second", {"optimizer__learning_rate": 1e-3, "optimizer__warmup_steps": 0})):
        config = write_config(root, run__total_steps=2, **changes)
        train_here(root, config, name)
        assert evaluate_here(root, name, steps="0,2", num_problems=12) == 0
    return root


@pytest.fixture
def root_of_two(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of :func:`two_runs` to change."""
    import shutil

    return Path(shutil.copytree(two_runs, tmp_path / "root", symlinks=True))


@pytest.fixture
def first(root_of_two: Path) -> RunDir:
    return RunDir(root_of_two / "training_runs" / "first")
