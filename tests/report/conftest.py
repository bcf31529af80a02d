"""Runs that reports are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir


@pytest.fixture(scope="session")
def two_runs(golden: Callable[[str], RunDir]) -> Path:
    """A root with ``first`` and ``second``, which differ in learning rate and warmup: trained for two steps and
    evaluated before and after. Not to be changed."""
    return golden("first").root


@pytest.fixture
def root_of_two(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of :func:`two_runs` to change."""
    import shutil

    return Path(shutil.copytree(two_runs, tmp_path / "root", symlinks=True))


@pytest.fixture
def first(root_of_two: Path) -> RunDir:
    return RunDir(root_of_two / "training_runs" / "first")
