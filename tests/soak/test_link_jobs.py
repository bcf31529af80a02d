"""200 random moments each at which the agent or the laptop is killed in a launch, stop, kill or resume.

``GRPO_LINK_SEED`` repeats a run, ``GRPO_LINK_TRIALS`` changes the number of moments.
"""

from __future__ import annotations

import collections
import os
import random
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.boxes import Box
from tests.remote.conftest import _own_directories, box, root, tmux_socket
from tests.support.job_faults import MOMENTS, agent_killed, laptop_killed

__all__ = ["_own_directories", "box", "root", "tmux_socket"]
SEED = os.environ.get("GRPO_LINK_SEED") or str(random.randrange(10**6))
TRIALS = int(os.environ.get("GRPO_LINK_TRIALS", "200"))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("op", MOMENTS)
@pytest.mark.parametrize("victim", [agent_killed, laptop_killed])
def test_a_request_happens_once(
    box: Box, op: str, victim: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    outcomes: collections.Counter[str] = collections.Counter()
    for trial in range(TRIALS):
        seed = f"{SEED}-{victim.__name__}-{op}-{trial}"
        name = f"run_{trial:03d}"
        try:
            outcomes[victim(box, op, random.Random(seed), name, time.sleep)] += 1
        except BaseException:
            print(f"failed: seed {seed}", traceback.format_exc(), sep="\n", flush=True)
            raise
        subprocess.run(["tmux", "-L", box.tmux_socket, "kill-session", "-t", f"={name}"], capture_output=True)
    print(f"\n{victim.__name__}, {op}: seed {SEED}, {TRIALS} moments, {dict(outcomes)}")
