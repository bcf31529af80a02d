"""A store in a directory, such as a mounted disk. The directory itself is never created: it may be a mount point.

An object is written under a hidden partial name beside it, flushed to disk and renamed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo_train.backup.direct import DirectFile, read_from_disk
from grpo_train.backup.store import (
    CHUNK,
    FilePiece,
    OnBytes,
    RateLimit,
    StoredObject,
    StoreError,
    check_content,
    check_key,
    check_prefix,
    is_key,
    is_partial,
    partial_name,
    read_piece,
)
from grpo_train.backup.trial import mount_point, on_same_device, shows
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import closing_descriptor, discarding, fsync_path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_ATTEMPTS = 100


class FolderStore:
    """Objects as files below ``path``. Raises StoreError (``no_bucket``) when that directory does not exist."""

    def __init__(self, path: Path, limit: RateLimit | None = None, clock: Clock = CLOCK) -> None:
        self.path = path
        self.url = str(path)
        self.limit = limit
        self._clock = clock
        self._check_base()
        self.identity = str(path.resolve())
        self.location = self.identity

    def entries(self, prefix: str) -> Iterator[StoredObject]:
        folder, slash, start = check_prefix(prefix).rpartition("/")
        self._check_base()
        yield from self._walk(folder + slash, start)

    def folders(self, prefix: str) -> list[str]:
        self._check_base()
        return sorted(name for name, is_folder in self._names(check_prefix(prefix)) if is_folder)

    def head(self, key: str) -> StoredObject | None:
        with self._errors(key):
            try:
                facts = os.lstat(self._file(key))
            except FileNotFoundError:
                self._check_base()
                return None
            except NotADirectoryError:
                return None
            return StoredObject(key, facts.st_size, facts.st_mtime) if stat.S_ISREG(facts.st_mode) else None

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        with self._errors(key), os.fdopen(self._open(key), "rb", buffering=0) as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                self._take(len(chunk))
                yield chunk

    def read_small(self, key: str, limit: int) -> bytes:
        with self._errors(key), os.fdopen(self._open(key), "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise StoreError(f"{self._file(key)}: more than {limit} bytes", code="damaged")
        return data

    def write(self, key: str, piece: FilePiece, on_bytes: OnBytes | None = None) -> None:
        def content() -> Iterator[bytes]:
            for chunk in read_piece(piece):
                self._take(len(chunk))
                yield chunk
                if on_bytes:
                    on_bytes(len(chunk))

        self._write(key, content, piece.size)

    def write_small(self, key: str, data: bytes) -> None:
        self._write(key, lambda: [data], len(data))

    def prove(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> bool:
        self.read_back(key, size, sha256, on_bytes)
        return True

    def read_back(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> None:
        check_content(self._read_from_disk(key), str(self._file(key)), size, sha256, on_bytes)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            file = self._file(key)
            with self._errors(key):
                with suppress(FileNotFoundError, NotADirectoryError):  # a repeated deletion
                    file.unlink()
                self._remove_empty(file.parent)
        self._check_base()

    def abort_stale_uploads(self, prefix: str, older_than_s: float) -> int:
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        oldest, count = self.now() - older_than_s, 0
        for partial in self._partials(folder + slash):
            with self._errors(str(partial)), suppress(FileNotFoundError):  # its writer has just finished
                if partial.lstat().st_mtime < oldest:
                    partial.unlink()
                    count += 1
        return count

    def now(self) -> float:
        """The clock of the disk's server, read from a new file; this machine's clock where none can be written."""
        probe = self.path / partial_name()
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime
        except OSError:
            self._check_base()
            return self._clock.time()
        finally:
            with suppress(OSError):  # never written
                probe.unlink()

    # --------------------------------------------------------------------------------------------------- trial

    def is_on_disk_of(self, folder: Path) -> bool:
        return on_same_device(self.path, folder)

    def sees(self, name: str) -> bool:
        here, top = self.path.resolve(), mount_point(self.path)
        places = [place for place in (here, *here.parents) if place.is_relative_to(top)]
        return any(shows(place, name) for place in places)

    def try_checksums(self) -> tuple[bool, bool]:
        return False, False  # a file system reports none

    def trust_checksums(self, computes_sha256: bool) -> None:
        pass

    # ------------------------------------------------------------------------------------------------- writing

    def _write(self, key: str, content: Callable[[], Iterable[bytes]], size: int) -> None:
        file = self._file(key)
        with self._errors(key):
            partial, descriptor = self._create_partial(file)
            with discarding(partial):
                with DirectFile(descriptor, size) as output:
                    for chunk in content():
                        output.write(chunk)
                    output.flush()
                os.replace(partial, file)
            fsync_path(file.parent)

    def _create_partial(self, file: Path) -> tuple[Path, int]:
        """A new partial file beside ``file``, and its descriptor."""
        partial = file.with_name(partial_name())
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):  # a deletion removes an empty directory above it meanwhile
                self._make_folder(file.parent)
                return partial, os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._check_base()
        raise StoreError(f"{file.parent}: no such directory, though it was created; is it a dangling link?")

    def _make_folder(self, folder: Path) -> None:
        """Create a directory below the base and flush the names of the new ones to disk."""
        if folder.is_dir():
            return
        self._check_base()
        new = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(self.path)]
        for parent in reversed(new[:-1]):
            with suppress(FileExistsError):  # another upload's
                parent.mkdir()
                fsync_path(parent.parent)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.path:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    # ------------------------------------------------------------------------------------------------- reading

    def _walk(self, folder: str, start: str = "") -> Iterator[StoredObject]:
        """Entries below a directory ("" or ending with ``/``) whose name there begins with ``start``."""
        for name, is_folder in self._names(folder):
            if not name.startswith(start):
                continue
            if is_folder:
                yield from self._walk(f"{folder}{name}/")
            elif is_key(folder + name) and (entry := self.head(folder + name)):
                yield entry

    def _names(self, folder: str) -> list[tuple[str, bool]]:
        """(name, whether it is a directory) of a directory ("" or ending with ``/``), in the order of keys."""
        found = []
        gone = FileNotFoundError, NotADirectoryError
        # A deletion removes an empty directory meanwhile.
        with self._errors(folder), suppress(*gone), os.scandir(self.path / folder) as items:
            for item in items:
                is_folder = item.is_dir(follow_symlinks=False)
                if is_folder or (item.is_file(follow_symlinks=False) and not is_partial(item.name)):
                    found.append((item.name, is_folder))
        return sorted(found, key=lambda pair: (pair[0] + "/" if pair[1] else pair[0]).encode(errors="surrogateescape"))

    def _partials(self, folder: str) -> Iterator[Path]:
        for path, folders, names in os.walk(self.path / folder):
            folders.sort()
            yield from (Path(path, name) for name in names if is_partial(name))

    def _read_from_disk(self, key: str) -> Iterator[memoryview]:
        with self._errors(key), closing_descriptor(self._open(key)) as descriptor:
            for block in read_from_disk(descriptor):
                self._take(len(block))
                yield block

    def _open(self, key: str) -> int:
        """Descriptor of an object's file."""
        descriptor = os.open(self._file(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise StoreError(f"{self._file(key)}: not a regular file", code="damaged")

    def _file(self, key: str) -> Path:
        return self.path / check_key(key)

    def _take(self, size: int) -> None:
        if self.limit:
            self.limit.take(size)

    # -------------------------------------------------------------------------------------------------- errors

    def _check_base(self) -> None:
        if not self.path.is_dir():
            raise StoreError(
                f"{self.path}: no such directory; mount the disk, or create the directory for backups", code="no_bucket"
            )

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Failures of the disk as StoreErrors."""
        try:
            yield
        except OSError as error:
            code = error.errno
            where = self.path / key
            if code in _MISSING:
                self._check_base()
                raise StoreError(f"{where}: no such object", code="missing") from None
            if code == errno.ELOOP:
                raise StoreError(f"{where}: a symbolic link, not a regular file", code="damaged") from None
            kind = "full" if code in _FULL else "refused" if code in _REFUSED else "unreachable"
            raise StoreError(f"{where}: {error.strerror or error}", code=kind) from error
