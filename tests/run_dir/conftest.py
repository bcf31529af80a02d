"""A run without a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.run_dir import RunDir, create_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path, {"by": "test"}, "one")
