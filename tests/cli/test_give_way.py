"""Backups have the lowest priority, also in a session of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os
from grpo_train.run_dir.machine import give_way
give_way()
print(os.nice(0), open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no scheduling groups")
@pytest.mark.parametrize("alone", [True, False], ids=["own session", "session of a shell"])
def test_backups_give_way_to_training(alone: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, start_new_session=alone
    )
    own, _, group = done.stdout.partition(" ")
    assert own == "19"
    assert group.strip().endswith("nice 19") is alone
