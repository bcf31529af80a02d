"""Sending objects and proving them, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from grpo_train.backup.job import CommandProgress
from grpo_train.backup.parallel import for_each
from grpo_train.backup.read_back import Reading, clock_of
from grpo_train.backup.snapshot import Part
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import FilePart, ObjectStore, StoreError

TRANSFERS = 8
"""Objects at once."""
_AGAIN = 2
"""Times that an object is sent again after its proof failed."""


@dataclass(frozen=True)
class Upload:
    """One object to store."""

    part: Part
    source: FilePart | bytes
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


def write(store: ObjectStore, key: str, source: FilePart | bytes, job: CommandProgress) -> None:
    """Store one object. Raises StoreError."""
    if isinstance(source, bytes):
        store.write_small(key, source)
        job.add(moved=len(source))
    else:
        store.write(key, source, lambda moved: job.add(moved=moved))
