"""Names of checkpoints on their way in or out, and how a reader waits for a removal. Standard library only.

The other side, and the protocol between the two: :mod:`grpo_train.train.retention`.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from grpo_train.run_dir.files import remove_tree
from grpo_train.run_dir.manifest import STEP_NAME
from grpo_train.run_dir.processes import is_alive, start_ticks
from grpo_train.run_dir.run import RunDir


def hidden_name(step: int) -> str:
    """A name for what is not, or no longer, a checkpoint: it says who is at work, so that others leave it alone."""
    pid = os.getpid()
    return f".step_{step}.{pid}-{start_ticks(pid)}-{secrets.token_hex(4)}.tmp"


def remove_leftovers(run: RunDir) -> None:
    """Remove the hidden directories and links that writers left which are dead by now."""
    for path in run.training_state.glob(".step_*.tmp"):
        owner = path.name.split(".")[2].split("-")
        if owner[0].isdigit() and len(owner) > 1 and owner[1].isdigit():
            alive = is_alive(int(owner[0]), int(owner[1]))
            if alive and int(owner[0]) != os.getpid():
                continue
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_tree(path)


def is_there_to_stay(path: Path, patience_s: float = 10.0) -> bool:
    """Whether a checkpoint (or its ``model/``, or any other directory) is there and stays; to be asked once announced.

    Waits for the end of a removal that has begun. One that a kill left unfinished is given up on after ``patience_s``.
    """
    real = path.resolve()
    step = real.parent if real.name == "model" else real
    deadline = time.monotonic() + patience_s
    while path.exists() and STEP_NAME.fullmatch(step.name) and any(step.parent.glob(f".{step.name}.*.tmp")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return path.exists()
