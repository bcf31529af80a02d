"""Signs of life of a run's processes, and their stacks on request. Standard library only.

The supervisor names a file to its stages (``GRPO_SIGNS``). A process writes there that it made progress (a step, an
evaluation chunk, a file of a checkpoint) or that a download begins. The supervisor's watchdog compares the contents: a
clock plays no part. Without a supervisor nothing is written.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo_train.run_dir.files import closing_descriptor, open_for_writing
from grpo_train.run_dir.safe_json import Unreadable, open_regular

SIGNS_VARIABLE = "GRPO_SIGNS"
DOWNLOAD = "download"
WIDTH = 1_024
"""Bytes of a sign, always the same: replaced in place, it needs no space on a full disk."""


def sign_of_life(kind: str, detail: str = "") -> None:
    """Record progress of this process. ``kind`` is one word; ``detail`` is the directory of a download."""
    file = os.environ.get(SIGNS_VARIABLE)
    if not file:
        return
    text = f"{kind} {os.getpid()} {time.monotonic_ns()} {detail}"
    sign = text.encode(errors="replace")[:WIDTH].ljust(WIDTH)
    flags = os.O_WRONLY | os.O_CREAT
    with suppress(OSError), closing_descriptor(open_for_writing(Path(file), flags)) as descriptor:
        os.pwrite(descriptor, sign, 0)  # a full disk is never a reason to end training


@contextmanager
def downloading(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Declare a download into ``folder``: as long as that grows, the process is alive."""
    sign_of_life(DOWNLOAD, os.fspath(folder))
    try:
        yield
    finally:
        sign_of_life("downloaded")


def read_sign(file: Path) -> tuple[str, str, str]:
    """Kind, detail and whole text of the last sign; empty without one."""
    try:
        with open_regular(file) as opened:
            text = opened.read(WIDTH).decode(errors="replace").rstrip()
    except (OSError, Unreadable):
        return "", "", ""
    kind, _, rest = text.partition(" ")
    detail = rest.split(" ", 2)
    return kind, detail[2] if len(detail) == 3 else "", text


def show_stacks_on_request() -> None:
    """Print the stacks of all threads to stderr at SIGUSR2. Works in a process that is blocked in native code, too."""
    import faulthandler

    if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
