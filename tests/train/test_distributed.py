"""The group of processes at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.engine import REPOSITORY, environment
from tests.support.patience import PATIENCE

ONE_PROCESS = """
from pathlib import Path
from grpo_train.train.distributed import World, dist
dist.init_process_group("gloo", init_method="file://{file}", rank=0, world_size=1)
import grpo_train.train.loop
threads = lambda: [comm.read_text() for comm in Path("/proc/self/task").glob("*/comm") if "gloo" in comm.read_text()]
assert threads()
World(size=2).leave()
assert not threads(), threads()
"""


def test_leaving_ends_the_threads(tmp_path: Path) -> None:
    """A fresh process: what is imported after the group exists must not keep it."""
    code = ONE_PROCESS.format(file=tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 60,
    )
    assert done.returncode == 0, done.stderr
