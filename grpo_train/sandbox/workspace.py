"""Working directories of programs: slots, each used by one program at a time and emptied afterwards.

A slot is a directory and a Landlock ruleset that allows writing below it; each program gets a fresh directory in its
slot. Slots are reused because a ruleset is created once per slot. Removing a directory takes milliseconds on some
disks, so one that its program left untouched is renamed for the next program.

If the kernel allows it, a program mounts a tmpfs on a directory of its slot, which stays empty on disk.

All slots are in one directory per process, which is removed at exit. The next process that starts removes directories
that killed processes left (their locks are free).
"""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import secrets
import tempfile
import threading
import time
import warnings
from contextlib import suppress

from grpo_train.sandbox import landlock
from grpo_train.sandbox.canary import canary
from grpo_train.sandbox.interpreter import interpreter

PREFIX = "grpo-sandbox-"
CANARY_FILE = "canary"
MAX_TIDY_SECONDS = 0.1
MAX_CLEANERS = 4
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Slot:
    """A directory to which one program at a time may write."""

    def __init__(self, path: str, landlock_abi: int, owner: int | None, tmpfs: bool) -> None:
        os.mkdir(path, 0o711)
        os.chmod(path, 0o711)  # whatever the umask: programs run as other accounts
        self.path = path
        self.kind = (landlock_abi, owner, tmpfs)
        self.owner = owner
        self.tmpfs: str | None = None
        """Mount point of the program's tmpfs, which holds its directory; empty on disk."""
        if tmpfs:
            self.tmpfs = os.path.join(path, "tmpfs")
            os.mkdir(self.tmpfs, 0o500)
            os.chmod(path, 0o511)
        self.directory: str | None = None
        self._given_out: tuple[Stamp, Stamp] | None = None
        self.ruleset: int | None = None
        if landlock_abi:
            python = interpreter()
            self.ruleset = landlock.create_ruleset(python.readable, python.stdlib, path, landlock_abi)

    def fresh_directory(self) -> str:
        """An empty directory with a new name: newly created, or one that its last program left untouched."""
        if self.tmpfs is not None:
            return os.path.join(self.tmpfs, secrets.token_hex(8))
        path = os.path.join(self.path, secrets.token_hex(8))
        if self.directory is not None:
            os.rename(self.directory, path)
            os.utime(path)
        else:
            os.mkdir(path, 0o700)
            if self.owner is not None:
                os.chown(path, self.owner, self.owner)
        self.directory = path
        self._given_out = (_stamp(self.path), _stamp(path))
        return path

    def tidy(self, deadline: float) -> bool:
        """Empty the slot for the next program; False if not done by ``deadline``. Raises OSError."""
        if self.tmpfs is not None:
            return True
        with suppress(OSError):
            if self.directory is not None and self._given_out == (_stamp(self.path), _stamp(self.directory)):
                return True
        self.directory = None
        return empty(self.path, deadline)

    def close(self) -> None:
        if self.ruleset is not None:
            os.close(self.ruleset)
            self.ruleset = None


Stamp = tuple[int, int, int, int]


def _stamp(directory: str) -> Stamp:
    """A value that changes when a directory's entries change: programs cannot set ctime."""
    status = os.stat(directory)
    return status.st_ctime_ns, status.st_mode, status.st_size, status.st_nlink


class Workspace:
    """This process's slots."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        remove_abandoned()
        self.root = tempfile.mkdtemp(prefix=PREFIX)
        self._lock_fd = os.open(self.root, DIRECTORY)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.chmod(self.root, 0o711)
        self.canary = os.path.join(self.root, CANARY_FILE)
        """A world-readable file with the secret, protected by Landlock only."""
        with open(self.canary, "w", encoding="utf-8") as file:
            file.write(canary())
        os.chmod(self.canary, 0o644)
        self._guard = threading.Lock()
        self._idle: dict[tuple[int, int | None, bool], list[Slot]] = {}
        self._made = 0
        self._cleaners = threading.BoundedSemaphore(MAX_CLEANERS)
        atexit.register(self.close)

    def take(self, landlock_abi: int, owner: int | None, tmpfs: bool) -> Slot:
        """Take an empty slot; return it with :meth:`give_back`. ``owner``: uid of the program, None for this user."""
        with self._guard:
            idle = self._idle.setdefault((landlock_abi, owner, tmpfs), [])
            while idle:
                slot = idle.pop()
                if os.path.isdir(slot.tmpfs or slot.directory or slot.path):
                    return slot
                slot.close()  # removed by a cleaner of temporary files
            self._made += 1
            path = os.path.join(self.root, f"slot-{self._made}")
        return Slot(path, landlock_abi, owner, tmpfs)

    def give_back(self, slot: Slot) -> None:
        """Empty the slot for its next program.

        Removing thousands of files continues in a thread, so that the verdict does not wait, unless too many such
        threads are busy.
        """
        if not self._tidy(slot, time.monotonic() + MAX_TIDY_SECONDS):
            if self._cleaners.acquire(blocking=False):
                threading.Thread(target=self._clean, args=(slot,), daemon=True).start()
            else:
                self._tidy(slot, math.inf)

    def _clean(self, slot: Slot) -> None:
        try:
            self._tidy(slot, math.inf)
        finally:
            self._cleaners.release()

    def _tidy(self, slot: Slot, deadline: float) -> bool:
        """Empty the slot; False if not done by ``deadline``. Drop a slot that cannot be emptied, with a warning."""
        try:
            if not slot.tidy(deadline):
                return False
        except OSError as error:
            slot.close()
            warnings.warn(f"sandbox: cannot remove files of a program in {slot.path}: {error}", stacklevel=2)
            return True
        with self._guard:
            if self._lock_fd >= 0:
                self._idle[slot.kind].append(slot)
                return True
        slot.close()
        return True

    def close(self) -> None:
        """Remove the directory. Slots that programs use are closed when they are given back."""
        if os.getpid() != self.pid:
            return
        atexit.unregister(self.close)
        with suppress(OSError):
            empty(self.root)
            os.rmdir(self.root)
        with self._guard:
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()
            lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            os.close(lock_fd)


def empty(directory: str, deadline: float = math.inf) -> bool:
    """Remove everything below ``directory`` at any depth, without following links. Raises OSError.

    Returns False if something is left at ``deadline`` (monotonic clock). ``shutil.rmtree`` recurses and keeps a
    descriptor per level, so it fails on ten thousand nested directories. Here one descriptor moves down, and up again
    through "..", which is safe because the programs have ended.
    """
    here = os.open(directory, DIRECTORY)
    path: list[str] = []
    try:
        while True:
            deeper = _remove_files(here, deadline)
            if deeper is not None:
                path.append(deeper)
                here = _step(here, deeper)
            elif path:
                here = _step(here, "..")
                os.rmdir(path.pop(), dir_fd=here)
            else:
                return True
    except _TooLate:
        return False
    finally:
        os.close(here)


class _TooLate(Exception):
    """The deadline has passed."""


def _step(here: int, name: str) -> int:
    """Replace the descriptor ``here`` by one of the directory ``name`` in it."""
    fd = os.open(name, DIRECTORY, dir_fd=here)
    os.close(here)
    return fd


def _remove_files(here: int, deadline: float) -> str | None:
    """Remove files and empty directories; return the name of a non-empty directory, made readable, or None."""
    with os.scandir(here) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                raise _TooLate
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=here)
                continue
            try:
                os.rmdir(entry.name, dir_fd=here)
            except OSError:
                os.chmod(entry.name, 0o700, dir_fd=here)  # the program may have made it unreadable
                return entry.name
    return None


def remove_abandoned() -> None:
    """Remove directories of processes that have ended."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(base, name)
        with suppress(OSError):
            if os.lstat(path).st_uid != os.geteuid():
                continue
            fd = os.open(path, DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                empty(path)
                os.rmdir(path)
            finally:
                os.close(fd)


_guard = threading.Lock()
_workspace: Workspace | None = None


def workspace() -> Workspace:
    """This process's workspace, created by the first call."""
    global _workspace
    with _guard:
        if _workspace is None or _workspace.pid != os.getpid() or not os.path.isdir(_workspace.root):
            before, _workspace = _workspace, Workspace()
            if before is not None:
                before.close()  # a cleaner of temporary files removed it
        return _workspace


def _after_fork() -> None:
    """Reset state in a forked process: it needs its own workspace, and a lock that no thread of the parent holds."""
    global _guard, _workspace
    _guard, _workspace = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
