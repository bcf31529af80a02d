"""Each line of the half hour on a CPU, with a tiny model: names that have moved, and errors of its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.engine import REPOSITORY


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU, run the half hour itself")
@pytest.mark.parametrize("name", ["smoke", "measure"])
def test_no_line_fails(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "GPU_DRY": "1", "OUT": str(tmp_path)}
    command = [sys.executable, "-m", "tests.gpu.half_hour", name]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
