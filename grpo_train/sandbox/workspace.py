"""The directories that programs run in: one slot per program at a time, emptied after each.

A slot is a directory and a Landlock ruleset that allows writing below it; a program's working directory is a fresh
one in its slot. The rulesets are made once per slot, which is why slots are used again and their contents never. (On
some disks removing a directory takes milliseconds: one that its program left untouched goes to the next by a new name.)

Where the kernel allows it a program mounts a file system in memory on its slot's box, which is empty before and after.

Everything lies in one directory per process, removed at exit; one that a killed process left is removed by the next
process that makes its own (a lock on the directory tells).
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
    """A directory in which one program at a time may write."""

    def __init__(self, path: str, landlock_abi: int, owner: int | None, boxed: bool) -> None:
        os.mkdir(path, 0o711)
        self.path = path
        self.kind = (landlock_abi, owner, boxed)
        self.owner = owner
        self.box: str | None = None
        """Where the program mounts a file system of its own and makes its directory; nothing is written here."""
        if boxed:
            self.box = os.path.join(path, "box")
            os.mkdir(self.box, 0o500)
            os.chmod(path, 0o511)
        self.directory: str | None = None
        self._given_out: tuple[Stamp, Stamp] | None = None
        self.ruleset: int | None = None
        if landlock_abi:
            python = interpreter()
            self.ruleset = landlock.create_ruleset(python.readable, python.stdlib, path, landlock_abi)

    def fresh_directory(self) -> str:
        """An empty directory of a new name: a new one, or one that was given out and that no program touched."""
        if self.box is not None:
            return os.path.join(self.box, secrets.token_hex(8))
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
        """Makes it ready for the next program; False if that takes longer. Raises OSError."""
        if self.box is not None:
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
    """Changes whenever anything in a directory is made, removed or renamed: nobody can set the time of change."""
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
        """A file with the secret, which everybody may read, but for Landlock."""
        with open(self.canary, "w", encoding="utf-8") as file:
            file.write(canary())
        os.chmod(self.canary, 0o644)
        self._guard = threading.Lock()
        self._idle: dict[tuple[int, int | None, bool], list[Slot]] = {}
        self._made = 0
        self._cleaners = threading.BoundedSemaphore(MAX_CLEANERS)
        atexit.register(self.close)

    def take(self, landlock_abi: int, owner: int | None, boxed: bool) -> Slot:
        """An empty slot of nobody's; its programs run as ``owner`` (None: this user), ``boxed`` with files in memory.
        Give it back afterwards."""
        with self._guard:
            idle = self._idle.setdefault((landlock_abi, owner, boxed), [])
            while idle:
                slot = idle.pop()
                if os.path.isdir(slot.box or slot.directory or slot.path):
                    return slot
                slot.close()  # a cleaner of temporary files took it
            self._made += 1
            path = os.path.join(self.root, f"slot-{self._made}")
        return Slot(path, landlock_abi, owner, boxed)

    def give_back(self, slot: Slot) -> None:
        """Empties the slot for its next program. Thousands of files are removed in a thread of their own: the verdict
        does not wait for that, unless too many of these threads are busy already."""
        tidy = self._tidy(slot, time.monotonic() + MAX_TIDY_SECONDS)
        if not tidy:
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
        """False if there is more to do. A slot that cannot be emptied is not used again, and that is said."""
        try:
            if not slot.tidy(deadline):
                return False
        except OSError as error:
            slot.close()
            warnings.warn(f"sandbox: what a program left in {slot.path} stays: {error}", stacklevel=2)
            return True
        with self._guard:
            self._idle[slot.kind].append(slot)
        return True

    def wait_until_clean(self) -> None:
        """Returns when no thread removes files any more."""
        for _ in range(MAX_CLEANERS):
            self._cleaners.acquire()
        for _ in range(MAX_CLEANERS):
            self._cleaners.release()

    def close(self) -> None:
        if os.getpid() != self.pid:
            return
        with suppress(OSError):
            empty(self.root)
            os.rmdir(self.root)


def empty(directory: str, deadline: float = math.inf) -> bool:
    """Removes everything below ``directory``, however deep, never following a link; False if at ``deadline`` (of the
    monotonic clock) something is left. Raises OSError.

    ``shutil.rmtree`` recurses and keeps a descriptor per level, so that a program that nests ten thousand directories
    would leave them all behind. Here one descriptor goes down, and up again by "..": the programs are over, so nothing
    moves meanwhile.
    """
    here = os.open(directory, DIRECTORY)
    way: list[str] = []
    try:
        while True:
            deeper = _remove_files(here, deadline)
            if deeper is not None:
                way.append(deeper)
                here = _step(here, deeper)
            elif way:
                here = _step(here, "..")
                os.rmdir(way.pop(), dir_fd=here)
            else:
                return True
    except _TooLate:
        return False
    finally:
        os.close(here)


class _TooLate(Exception):
    """The deadline has passed."""


def _step(here: int, name: str) -> int:
    """A descriptor of a directory in ``here``, instead of ``here``'s."""
    fd = os.open(name, DIRECTORY, dir_fd=here)
    os.close(here)
    return fd


def _remove_files(here: int, deadline: float) -> str | None:
    """Removes files and empty directories; the name of a directory that is not empty, which can now be entered."""
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
    """Removes the directories of processes that are gone."""
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
    """This process's workspace, made at the first call."""
    global _workspace
    with _guard:
        if _workspace is None or _workspace.pid != os.getpid() or not os.path.isdir(_workspace.root):
            _workspace = Workspace()
        return _workspace


def _after_fork() -> None:
    """A forked process makes its own, and must not wait for a lock that another thread of its parent held."""
    global _guard, _workspace
    _guard, _workspace = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
