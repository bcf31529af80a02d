"""The folder in which a copy is collected, taken by one copy at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.files import open_lock
from remote.protocol import RemoteError
from remote.protocol.copied_files import LOCK
from remote.protocol.copies import SILENCE_S, CopyStream

WAIT_S = SILENCE_S + 5
"""An agent whose connection was lost notices within SILENCE_S, and then writes what had arrived."""
LOOK_S = 0.2
"""Between two attempts: the system waits for a lock without a time limit only."""


@contextmanager
def staging_alone(wire: CopyStream, staging: Path, make: Callable[[], None], what: str, clock: Clock) -> Iterator[None]:
    """Make the folder and keep other copies out of it.

    A copy whose connection was lost is often still held by an agent that does not know it yet; the copy that continues
    it waits for that one, and says to the other end that it is alive. Raises RemoteError ``busy``, in which ``what``
    names the copy, where another one stays at work; CopyInterrupted; OSError.
    """
    until = clock.monotonic() + WAIT_S
    while (lock := _take(staging, make)) is None:
        if clock.monotonic() > until:
            raise RemoteError("busy", f"another {what} is at work", "wait until it has ended")
        clock.sleep(LOOK_S)
        wire.working()
    try:
        yield
    finally:
        os.close(lock)


def _take(staging: Path, make: Callable[[], None]) -> int | None:
    """Descriptor of the folder's lock; None where another process has it, or removed the folder meanwhile."""
    import fcntl

    make()
    try:
        lock = open_lock(staging / LOCK)
    except FileNotFoundError:
        return None
    is_ours = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(lock), os.stat(staging / LOCK))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not is_ours:
            os.close(lock)
    return lock if is_ours else None
