"""Checkpoints that are being written or removed: their hidden names, and waiting for a removal. Standard library only.

The protocol between writer and reader is described in :mod:`grpo_train.train.retention`.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import remove_tree
from grpo_train.run_dir.manifest import STEP_NAME
from grpo_train.run_dir.processes import is_alive, start_ticks
from grpo_train.run_dir.run import RunDir

_WRITER = re.compile(r"\.(\d+)-(\d+)-")
"""Pid and start ticks in a :func:`hidden_name`."""


def hidden_name(step: int) -> str:
    """Name of a checkpoint that is being written or removed; it identifies the process at work."""
    pid = os.getpid()
    return f".step_{step}.{pid}-{start_ticks(pid)}-{secrets.token_hex(4)}.tmp"


def remove_hidden(run: RunDir) -> None:
    """Remove hidden directories and links whose writer is dead."""
    hidden = (path for pattern in ("", "superseded/*/") for path in run.training_state.glob(f"{pattern}.step_*.tmp"))
    for path in hidden:
        writer = _WRITER.search(path.name)
        if writer and int(writer[1]) != os.getpid() and is_alive(int(writer[1]), int(writer[2])):
            continue
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            remove_tree(path)


def exists_after_removal(path: Path, patience_s: float = 10.0, *, clock: Clock = CLOCK) -> bool:
    """Whether a checkpoint (or its ``model/``, or any other directory) exists once a removal in progress has ended.

    Call it after announcing that the checkpoint is in use. A removal that a kill left unfinished is waited for
    ``patience_s`` seconds.
    """
    real = path.resolve()
    step = real.parent if real.name == "model" else real
    deadline = clock.monotonic() + patience_s
    while path.exists() and STEP_NAME.fullmatch(step.name) and any(step.parent.glob(f".{step.name}.*.tmp")):
        if clock.monotonic() > deadline:
            break
        clock.sleep(0.02)
    return path.exists()
