"""The directories that programs run in: one slot per program at a time, emptied after each.

A slot is a directory and a Landlock ruleset that allows writing below it; a program's working directory is a fresh
one in its slot. The rulesets are made once per slot, which is why slots are used again and their contents never.

Everything lies in one directory per process, removed at exit; one that a killed process left is removed by the next
process that makes its own (a lock on the directory tells).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

from grpo_train.rewards.sandbox import landlock
from grpo_train.rewards.sandbox.interpreter import interpreter

PREFIX = "grpo-sandbox-"


class Slot:
    """A directory in which one program at a time may write."""

    def __init__(self, path: str, landlock_abi: int) -> None:
        os.mkdir(path, 0o711)
        self.path = path
        self.ruleset: int | None = None
        if landlock_abi:
            python = interpreter()
            self.ruleset = landlock.create_ruleset(python.readable, python.stdlib, path, landlock_abi)

    def fresh_directory(self, owner: int | None) -> str:
        """A new empty directory, which belongs to uid ``owner`` if one is given."""
        path = os.path.join(self.path, secrets.token_hex(8))
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, owner, owner)
        return path

    def close(self) -> None:
        if self.ruleset is not None:
            os.close(self.ruleset)
            self.ruleset = None


class Workspace:
    """This process's slots."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        remove_abandoned()
        self.root = tempfile.mkdtemp(prefix=PREFIX)
        self._lock_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.chmod(self.root, 0o711)
        self._guard = threading.Lock()
        self._idle: dict[int, list[Slot]] = {}
        self._made = 0
        atexit.register(self.close)

    def take(self, landlock_abi: int) -> Slot:
        """An empty slot of nobody's; give it back with :meth:`give_back`."""
        with self._guard:
            idle = self._idle.setdefault(landlock_abi, [])
            while idle:
                slot = idle.pop()
                if os.path.isdir(slot.path):
                    return slot
                slot.close()  # a cleaner of temporary files took it
            self._made += 1
            path = os.path.join(self.root, f"slot-{self._made}")
        return Slot(path, landlock_abi)

    def give_back(self, slot: Slot, landlock_abi: int) -> None:
        """Empties the slot for its next program. One that cannot be emptied is not used again, and is said."""
        try:
            empty(slot.path)
        except OSError as error:
            slot.close()
            warnings.warn(f"sandbox: what a program left in {slot.path} stays: {error}", stacklevel=2)
            return
        with self._guard:
            self._idle[landlock_abi].append(slot)

    def close(self) -> None:
        if os.getpid() != self.pid:
            return
        with suppress(OSError):
            empty(self.root)
            os.rmdir(self.root)


def empty(directory: str) -> None:
    """Removes everything below ``directory``, however deep, never following a link. Raises OSError.

    ``shutil.rmtree`` recurses, so that a program that nests ten thousand directories would leave them all behind.
    Here what is nested is moved up to the top and removed from there.
    """
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while names := os.listdir(top):
            for name in names:
                _remove(top, name)
    finally:
        os.close(top)


def _remove(top: int, name: str) -> None:
    """Removes one entry of ``top``; of a directory, moves its subdirectories into ``top`` first."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    with suppress(OSError):
        os.rmdir(name, dir_fd=top)  # an empty one, even if nobody may read it
        return
    os.chmod(name, 0o700, dir_fd=top)  # the program may have made it unreadable; it is over, and swaps nothing now
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for inner in os.listdir(fd):
            if stat.S_ISDIR(os.stat(inner, dir_fd=fd, follow_symlinks=False).st_mode):
                os.rename(inner, f"moved-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)


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
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
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


register: Callable[..., None] = os.register_at_fork
register(after_in_child=_after_fork)
