"""Making a snapshot visible: claim a number, store the objects, write the manifest, then ``COMPLETE``.

Two boxes may choose the same number at once. Each writes a claim under a random name before it lists the claims, so at
least one sees both; who sees another takes the next number. A prune deletes objects that no manifest names, which a
backup may be about to name: it writes a mark before it looks for claims, and a backup looks for the mark after it wrote
its claim.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from grpo_train.backup.layout import CLAIM, COMPLETE, MANIFEST_NAME, PRUNING, READ_BACK
from grpo_train.backup.read_back import Reading, remember
from grpo_train.backup.record import StoreRecord
from grpo_train.backup.snapshot import MAX_MANIFEST_BYTES, Snapshot
from grpo_train.backup.snapshots import StoredRun, completion_of
from grpo_train.backup.store import StoreError

PRUNING_S = 3600.0
"""Age at which the mark of a prune counts as left by a kill."""
_LAST = 999_999


def claim_number(stored: StoredRun, record: StoreRecord, save: Callable[[], None]) -> int:
    """Reserve the number of a new snapshot; what a killed backup of this directory left is removed first.

    ``save`` stores the record. Raises StoreError (``busy``) while a prune is at work.
    """
    store, home = stored.store, stored.home
    remove_unfinished(stored, record)
    number = max(stored.numbers, default=0) + 1
    while True:
        if number > _LAST:
            raise StoreError(f"{home.snapshots} in {store.url} is full; prune it", code="full")
        record.claimed, record.claim = number, f"{CLAIM}{secrets.token_hex(8)}"
        save()
        claim = home.snapshot(number, record.claim)
        store.write_small(claim, b"")
        if [entry.key for entry in store.entries(home.snapshot(number))] == [claim]:
            break
        store.delete([claim])
        number += 1
    mark = store.head(home.snapshots + PRUNING)
    if mark and store.now() - mark.modified < PRUNING_S:
        release(stored, record, save)
        raise StoreError(
            f"{home.name}: grpo-train prune-backups is at work in {store.url}; rerun this command when that has ended",
            code="busy",
        )
    return number


def release(stored: StoredRun, record: StoreRecord, save: Callable[[], None]) -> None:
    """Give a claimed number up, or end the claim of a completed snapshot."""
    stored.store.delete([stored.home.snapshot(record.claimed, record.claim)])
    record.claimed, record.claim = 0, ""
    save()


def commit(
    stored: StoredRun,
    snapshot: Snapshot,
    record: StoreRecord,
    save: Callable[[], None],
    read: Mapping[str, Reading],
) -> tuple[Snapshot, float | None]:
    """Write a snapshot, whose objects are all proven, under the claimed number. Raises StoreError.

    ``read``: what was read back for it. It is remembered before the snapshot is complete: after a kill in between,
    objects that were read would count as never read.

    Returns the snapshot, and when all of it was read back (:func:`grpo_train.backup.read_back.remember`).
    """
    home, number = stored.home, record.claimed
    snapshot = replace(snapshot, number=number)
    data = snapshot.to_json()
    if len(data) > MAX_MANIFEST_BYTES:
        raise StoreError(f"the manifest of {home.name} would have {len(data)} bytes", code="full")
    _write_proven(stored, home.snapshot(number, MANIFEST_NAME), data)
    read_at = remember(stored, snapshot, read)
    _write_proven(stored, home.snapshot(number, COMPLETE), completion_of(data))
    record.known = number
    release(stored, record, save)
    return snapshot, read_at


def remove_unfinished(stored: StoredRun, record: StoreRecord) -> None:
    """Remove what a killed backup of this directory left of its snapshot; a complete one stays."""
    number, home = record.claimed, stored.home
    if not number or not record.claim:
        return
    keys = {entry.key for entry in stored.store.entries(home.snapshot(number))}
    mine = home.snapshot(number, record.claim)
    if mine in keys:
        if home.snapshot(number, COMPLETE) in keys:
            stored.store.delete([mine])
        else:
            stored.store.delete([home.snapshot(number, name) for name in (MANIFEST_NAME, READ_BACK, record.claim)])
            stored.forget(home.snapshot(number))
    record.claimed, record.claim = 0, ""


def _write_proven(stored: StoredRun, key: str, data: bytes) -> None:
    stored.store.write_small(key, data)
    if stored.store.read_small(key, len(data)) != data:
        raise StoreError(f"{key}: {stored.store.url} holds other bytes than were sent", code="damaged")
