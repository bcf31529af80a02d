"""Columns of one log on disk, one file each, in a private folder of this account that is bounded in size.

**Safe after a kill.** Rows are written first and counted by the header afterwards, which is replaced in one rename.
What lies behind the counted rows is overwritten by the next writer. To remove rows, the header is replaced first.

**Safe with two agents.** Whoever reads or writes holds the folder's lock. A header that another process replaced is
read again. A column shorter than its header says, or a header that cannot be read, is an index that does not exist.

The columns are read, not mapped: a mapped file that is truncated would end the process.

An index belongs to one boot of one host: what a power failure leaves of unsynced files is never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock

VERSION = 3
HEADER = "header.json"
LOCK_WAIT_S = 2.0
MAX_INDEX_BYTES = 512 << 20
"""Of one index."""
USED_EVERY_S = 60.0


class NoIndex(Exception):
    """The folder has no index that can be used."""


class Busy(Exception):
    """Another process holds the index for too long."""


class Unwritable(Exception):
    """The disk does not take an index: it is full, read-only or has no locks."""


class IndexStore:
    """The index in one folder. Only the lock's holder may call anything but :meth:`locked`."""

    def __init__(self, folder: Path, wait_s: float = LOCK_WAIT_S, clock: Clock = CLOCK) -> None:
        self.folder = folder
        self._wait_s, self._clock = wait_s, clock
        self._used = 0.0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the index. Raises Busy and Unwritable."""
        descriptor = self._lock()
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        import fcntl

        path, deadline = self.folder / "lock", self._clock.monotonic() + self._wait_s
        while True:
            with _writing(path):
                self.folder.mkdir(0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # not removed meanwhile
                        return descriptor
            except BlockingIOError:
                pass
            except OSError as error:
                os.close(descriptor)
                raise Unwritable(f"{path}: {error.strerror}") from error
            os.close(descriptor)
            if self._clock.monotonic() > deadline:
                raise Busy(f"{path} is held by another process")
            self._clock.sleep(0.01)

    def header(self) -> dict[str, Any]:
        """The header. Raises NoIndex."""
        try:
            header: dict[str, Any] = json.loads((self.folder / HEADER).read_bytes())
            if header["version"] != VERSION:
                raise NoIndex
            for table, columns in header["tables"].items():
                for number, (_, code) in enumerate(columns["columns"] if columns["rows"] else []):
                    if self._file(table, number).stat().st_size < columns["rows"] * array(code).itemsize:
                        raise NoIndex
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoIndex from error
        if self._clock.monotonic() - self._used > USED_EVERY_S:
            self._used = self._clock.monotonic()
            with suppress(OSError):
                os.utime(self.folder)
        return header

    def replace_header(self, header: dict[str, Any]) -> None:
        """Make a header the valid one. Raises Unwritable."""
        temporary = self.folder / f"{HEADER}.tmp"
        with _writing(temporary):
            temporary.unlink(missing_ok=True)
            _write_at(temporary, 0, json.dumps({**header, "version": VERSION}, separators=(",", ":")).encode())
            os.replace(temporary, self.folder / HEADER)

    def clear(self) -> None:
        """Remove the index."""
        with suppress(OSError):
            for name in sorted(os.listdir(self.folder), key=lambda name: name != HEADER):  # the header first
                if name != "lock":
                    os.unlink(self.folder / name)

    def write(self, table: str, number: int, row: int, values: array[Any]) -> None:
        """Write values of a column from a row on; nothing counts until the header says so. Raises Unwritable."""
        path = self._file(table, number)
        with _writing(path):
            _write_at(path, row * values.itemsize, memoryview(values).cast("B"))

    def read(self, table: str, number: int, code: str, start: int, end: int) -> array[Any]:
        """Rows of a column. Raises NoIndex when they are not there."""
        values: array[Any] = array(code)
        try:
            with open(self._file(table, number), "rb", buffering=0) as file:
                file.seek(start * values.itemsize)
                values.frombytes(file.read((end - start) * values.itemsize))
        except (OSError, ValueError) as error:
            raise NoIndex from error
        if len(values) != end - start:
            raise NoIndex
        return values

    def _file(self, table: str, number: int) -> Path:
        return self.folder / f"{table}-{number}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror or error}") from error


def _write_at(path: Path, position: int, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written
    finally:
        os.close(descriptor)


MAX_CACHE_BYTES = 2 << 30
"""Of all indexes; at most a quarter of what they and the free disk have together."""
MIN_FREE = 128 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def places(bundle: Path) -> list[Path]:
    """Folders for indexes, the preferred one first. ``bundle``: the running program."""
    environment, user = os.environ, os.geteuid()
    found = [
        Path(environment["HOME"], ".grpo", "index") if environment.get("HOME") else None,
        bundle.parent.parent / "index" if bundle.is_file() else None,
        Path(environment["XDG_RUNTIME_DIR"], "grpo-index") if environment.get("XDG_RUNTIME_DIR") else None,
        Path(tempfile.gettempdir(), f"grpo-index-{user}"),
        Path("/dev/shm", f"grpo-index-{user}"),
    ]
    return [place for place in found if place is not None]


def check(place: Path) -> None:
    """Make a folder for indexes. Raises Unwritable unless it is this account's own and has room."""
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
        facts = os.lstat(place)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise Unwritable(f"{place} is not a directory of this account")
        if facts.st_mode & 0o077:
            place.chmod(0o700)
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise Unwritable(f"{place}: {error.strerror}") from error
    if free < MIN_FREE:
        raise Unwritable(f"{place}: less than {MIN_FREE >> 20} MiB are free")


def folder_name(kind: str, device: int, inode: int) -> str:
    """Name of the folder of a log's index."""
    try:
        boot = _BOOT.read_text()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{VERSION} {kind} {device} {inode} {boot}".encode()).hexdigest()[:32]


def prune_indexes(place: Path, limit: int = MAX_CACHE_BYTES) -> None:
    """Remove the indexes used longest ago until the rest is within the limit, but none that is in use."""
    sizes: dict[Path, int] = {}
    for folder in place.iterdir():
        with suppress(OSError):
            sizes[folder] = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    total = sum(sizes.values())
    limit = min(limit, (total + shutil.disk_usage(place).free) // 4)
    for folder in sorted(sizes, key=_used):
        if total <= limit:
            return
        with suppress(OSError, Busy):
            with IndexStore(folder, wait_s=0).locked():
                shutil.rmtree(folder)
            total -= sizes[folder]


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
