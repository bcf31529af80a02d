"""Fetching files from a store: every byte hashed before a file gets its name, several files at a time."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.direct import DirectFile
from grpo_train.backup.job import CommandProgress
from grpo_train.backup.parallel import for_each
from grpo_train.backup.snapshot import Part, StoredFile
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.files import discarding, open_for_writing
from grpo_train.run_dir.manifest import sha256

_AGAIN = 2
"""Times that a part is read again after it arrived damaged."""
_SPARE = 64 << 20
"""Bytes of free space beyond what is restored."""


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
    for attempt in range(_AGAIN + 1):
        try:
            return _fetch_part(store, part, output, job)
        except StoreError as error:
            if error.code != "damaged" or attempt == _AGAIN:
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
