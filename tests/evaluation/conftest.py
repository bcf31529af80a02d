"""Trained runs for evaluation tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir
from tests.support import micro

make_root, tiny_model = micro.make_root, micro.tiny_model


@pytest.fixture(scope="module")
def trained(make_root: Callable[[], Path]) -> RunDir:
    """Two steps of an adapter on additions."""
    from tests.support.engine import train_here, write_config

    root = make_root()
    return train_here(root, write_config(root, run__total_steps=2, model__adapter="lora"), "trained")


@pytest.fixture(scope="module")
def three_steps(make_root: Callable[[], Path]) -> RunDir:
    """Three steps of an adapter on additions; not to be changed."""
    from tests.support.engine import train_here, write_config

    root = make_root()
    return train_here(root, write_config(root, run__total_steps=3, model__adapter="lora"), "trained")


@pytest.fixture(scope="module")
def whole(trained: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The result files of step 2, evaluated without interruption."""
    from tests.support.evaluating import SAMPLED, copy_of, evaluate_here, files_of, step_of

    run = copy_of(trained, tmp_path_factory.mktemp("whole"))
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    return files_of(step_of(run))


@pytest.fixture
def run(trained: RunDir, tmp_path: Path) -> RunDir:
    """A copy of ``trained`` to evaluate."""
    from tests.support.evaluating import copy_of

    return copy_of(trained, tmp_path)
