"""What killed agents and launches left on the box: removed when an agent starts, and once a day while it runs.

A staging directory of a launch exists for milliseconds under the lock of ``training_runs``; an agent's bundle is marked
as used when an agent starts from it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.questions import ANSWERS, asks_folder
from remote.agent import code, compiled

STAGING_AGE_S = 3_600.0
ASK_AGE_S = 86_400.0
"""Answers are read by a client that returns within a day."""
BUNDLE_AGE_S = 30 * 86_400.0
EVERY_S = 86_400.0
_BUNDLE = re.compile(r"[0-9a-f]{64}\.(name|pyz(\.\d+\.tmp|\.[a-z]+-\d+)?)")
"""The last is its compiled modules (:mod:`remote.agent.compiled`)."""


def start(root: Path, ended: threading.Event, clock: Clock) -> None:
    """Clean up on a thread, because the disk may hang, until ``ended`` is set."""

    def work() -> None:
        while True:
            remove_staging(root)
            remove_asks(root)
            remove_bundles(Path(sys.argv[0]))
            with suppress(OSError, UserError):
                code.prune(clock.time())
            compiled.store()
            if clock.wait(ended, EVERY_S):
                return

    threading.Thread(target=work, name="housekeeping", daemon=True).start()


def remove_staging(root: Path) -> None:
    """Remove this account's ``.new-*`` older than an hour from ``training_runs``, unless a run is being created."""
    import fcntl  # POSIX only

    runs = root / "training_runs"
    try:
        lock = os.open(runs / ".lock", os.O_RDWR | os.O_CLOEXEC)  # no lock: no run was ever created
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in runs.glob(".new-*"):
            if _is_old(path, STAGING_AGE_S, stat.S_ISDIR):
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # busy, or a mount without locks: the next agent tries again
    finally:
        os.close(lock)


def remove_asks(root: Path) -> None:
    """Remove questions and answers of processes that answered nothing for a day: they have ended long ago."""
    try:
        folders = list(asks_folder(root).iterdir())
    except OSError:
        return  # nothing was asked
    for folder in folders:
        if _is_old(folder / ANSWERS, ASK_AGE_S, stat.S_ISREG):
            shutil.rmtree(folder, ignore_errors=True)


def remove_bundles(own: Path) -> None:
    """Mark the running bundle as used, and remove the other ones beside it that no agent used for 30 days."""
    if not _BUNDLE.fullmatch(own.name):
        return
    try:
        os.utime(own)
        for path in own.parent.iterdir():
            if path != own and _BUNDLE.fullmatch(path.name) and _is_old(path, BUNDLE_AGE_S, stat.S_ISREG):
                path.unlink(missing_ok=True)
    except OSError:
        pass  # a read-only home


def _is_old(path: Path, age_s: float, is_kind: Callable[[int], bool]) -> bool:
    """Whether a path of this kind and of this account has not changed for ``age_s`` seconds."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    mine = facts.st_uid == os.geteuid()
    return mine and is_kind(facts.st_mode) and time.time() - facts.st_mtime > age_s
