"""Objects on their way, several at a time: sent and proven, or fetched and hashed before a file gets its name."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from grpo_train.backup.direct import DirectFile
from grpo_train.backup.job import CommandProgress
from grpo_train.backup.snapshot import Part, StoredFile
from grpo_train.backup.snapshots import Reading, StoredRun, clock_of
from grpo_train.backup.store import FilePiece, ObjectStore, StoreError
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.files import discarding, open_for_writing
from grpo_train.run_dir.manifest import sha256

TRANSFERS = 8
"""Objects at once."""
_AGAIN = 2
"""Times that an object is sent again after its proof failed."""
_READS_AGAIN = 2
"""Times that a part is read again after it arrived damaged."""
_SPARE = 64 << 20
"""Bytes of free space beyond what is restored."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Upload:
    """One object to store."""

    part: Part
    source: FilePiece | bytes
    owner: str
    """The path in the run that it belongs to; a source that changed costs only this."""


@dataclass
class Sent:
    """Outcome of :func:`send`."""

    failed: dict[str, StoreError]
    """Owners whose source changed, or whose object failed its proof to the end."""
    bytes: int = 0
    objects: int = 0
    read: dict[str, Reading] = field(default_factory=dict)
    """Objects whose proof was to read them back, by key."""


def send(stored: StoredRun, uploads: Iterable[Upload], job: CommandProgress, transfers: int = TRANSFERS) -> Sent:
    """Store each object once and prove it.

    An object that an earlier, killed backup stored is proven, not sent again. Raises StoreError for what concerns the
    whole store.
    """
    wanted = {upload.part.key: upload for upload in uploads}
    job.update(
        phase="sending", bytes=0, proven=0, files=0, files_total=len(wanted),
        bytes_total=sum(upload.part.size for upload in wanted.values()),
    )  # fmt: skip
    if not wanted:
        return Sent({})
    sent, clock = Sent({}), clock_of(stored.store)
    lock = threading.Lock()

    def one(upload: Upload) -> None:
        if upload.owner in sent.failed:
            return
        try:
            was_sent, read = _send_one(stored, upload, job, clock)
        except StoreError as error:
            if error.code not in ("changed", "damaged", "missing", "bad_name"):
                raise
            with lock:
                sent.failed.setdefault(upload.owner, error)
            return
        with lock:
            sent.bytes += upload.part.size * was_sent
            sent.objects += was_sent
            if read:
                sent.read[upload.part.key] = read
        job.add(files=1, what=upload.owner)

    for_each(one, wanted.values(), transfers)
    return sent


def _send_one(
    stored: StoredRun, upload: Upload, job: CommandProgress, clock: Callable[[], float]
) -> tuple[int, Reading | None]:
    """Store and prove one object; returns how often it was sent (0: it was there), and its reading if that was the
    proof. Raises StoreError."""
    store, part = stored.store, upload.part
    is_there = not stored.problem_of(part)
    for attempt in range(_AGAIN + 1):
        if not is_there:
            write(store, part.key, upload.source, job)
        try:
            reading = Reading(part.sha256, clock())
            was_read = store.prove(part.key, part.size, part.sha256, lambda moved: job.add(proven=moved))
            return 0 if is_there else 1, reading if was_read else None
        except StoreError as error:
            if error.code not in ("damaged", "missing") or (attempt == _AGAIN and not is_there):
                raise
            is_there = False
    raise StoreError(f"{part.key}: damaged in {store.url} after {_AGAIN + 1} uploads", code="damaged")


def write(store: ObjectStore, key: str, source: FilePiece | bytes, job: CommandProgress) -> None:
    """Store one object. Raises StoreError."""
    if isinstance(source, bytes):
        store.write_small(key, source)
        job.add(moved=len(source))
    else:
        store.write(key, source, lambda moved: job.add(moved=moved))


@dataclass
class Wanted:
    """A file to fetch."""

    target: Path
    file: StoredFile
    owner: str
    """What is spoiled if it is damaged in the store: a checkpoint, or the file."""


def download(
    store: ObjectStore, files: Sequence[Wanted], job: CommandProgress, transfers: int
) -> dict[str, StoreError]:
    """Fetch files, each hashed; returns what is damaged in the store, by owner. Raises StoreError, OSError."""
    job.update(phase="reading", bytes_total=sum(wanted.file.size for wanted in files), files_total=len(files))
    failed: dict[str, StoreError] = {}
    lock = threading.Lock()

    def one(wanted: Wanted) -> None:
        if wanted.owner in failed:
            return
        try:
            fetch_file(store, wanted.file, wanted.target, job)
        except StoreError as error:
            if error.code not in ("missing", "damaged"):
                raise
            with lock:
                failed.setdefault(wanted.owner, error)
        job.add(files=1, what=wanted.owner)

    for_each(one, files, transfers)
    return failed


def check_space(folder: Path, size: int) -> None:
    """Raise RunDirError (``disk_full``) naming the bytes that are missing."""
    needed, free = size + _SPARE, shutil.disk_usage(folder).free
    if needed > free:
        raise RunDirError(
            f"the disk of {folder} has {free:,} bytes free, and {needed:,} are needed: free {needed - free:,} bytes, "
            "or fetch less (restore: --steps latest, --steps logs)",
            code="disk_full",
        )


def fetch_file(store: ObjectStore, file: StoredFile, target: Path, job: CommandProgress) -> None:
    """Fetch a file under a partial name, hashed, and rename it; one that is there with the right bytes stays.

    Raises StoreError (``damaged``, ``missing``), OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and not target.is_symlink() and _is_whole(target, file):
        job.add(moved=file.size)
        return
    partial = target.with_name(f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.partial")
    partial.unlink(missing_ok=True)
    descriptor = open_for_writing(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode | 0o600)
    with discarding(partial):
        with DirectFile(descriptor, file.size) as output:
            for part in file.parts:
                _fetch_whole_part(store, part, output, file, job)
            output.flush()
        os.replace(partial, target)


def _fetch_whole_part(
    store: ObjectStore, part: Part, output: DirectFile, file: StoredFile, job: CommandProgress
) -> None:
    start = output.tell()
    for attempt in range(_READS_AGAIN + 1):
        try:
            return _fetch_part(store, part, output, job)
        except StoreError as error:
            if error.code != "damaged" or attempt == _READS_AGAIN:
                raise StoreError(f"{file.path}: {error}", code=error.code) from None
            output.rewind(start)


def _fetch_part(store: ObjectStore, part: Part, output: DirectFile, job: CommandProgress) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in store.read(part.key):
        size += len(chunk)
        if size > part.size:
            break
        digest.update(chunk)
        output.write(chunk)
        job.add(moved=len(chunk))
    if size != part.size or digest.hexdigest() != part.sha256:
        job.add(moved=-min(size, part.size))
        raise StoreError(f"{part.key} in {store.url} differs from its SHA-256", code="damaged")


def _is_whole(target: Path, file: StoredFile) -> bool:
    """Whether a file that an earlier restore left has the right bytes."""
    if target.stat().st_size != file.size:
        return False
    if len(file.parts) == 1:
        return sha256(target) == file.parts[0].sha256
    with target.open("rb") as read:
        return all(hashlib.sha256(read.read(part.size)).hexdigest() == part.sha256 for part in file.parts)


def for_each(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> None:
    """Call ``work`` with each item; after the first exception no further item is begun, and it is raised."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    stop = threading.Event()

    def one(item: Item) -> None:
        if stop.is_set():
            return
        try:
            work(item)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:  # Ctrl-C too
            stop.set()
            raise
