"""Making a snapshot visible: claim a number, write the manifest, then ``COMPLETE``.

Two boxes may choose the same number at once. Each writes a claim under a random name before it lists the claims, so at
least one sees both; who sees another takes the next number.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from grpo_train.backup.layout import CLAIM, COMPLETE, MANIFEST_NAME
from grpo_train.backup.record import StoreRecord
from grpo_train.backup.snapshot import MAX_MANIFEST_BYTES, Snapshot
from grpo_train.backup.snapshots import StoredRun, completion_of
from grpo_train.backup.store import StoreError

_LAST = 999_999


def commit(stored: StoredRun, snapshot: Snapshot, record: StoreRecord, save: Callable[[], None]) -> Snapshot:
    """Write a snapshot whose objects are all proven; returns it with its number.

    ``save`` stores the record, so that what a kill leaves is removed by the next backup. Raises StoreError.
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
    snapshot = replace(snapshot, number=number)
    data = snapshot.to_json()
    if len(data) > MAX_MANIFEST_BYTES:
        raise StoreError(f"the manifest of {home.name} would have {len(data)} bytes", code="full")
    _write_proven(stored, home.snapshot(number, MANIFEST_NAME), data)
    _write_proven(stored, home.snapshot(number, COMPLETE), completion_of(data))
    record.known = number
    record.claimed, record.claim = 0, ""
    save()
    store.delete([claim])
    return snapshot


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
            stored.store.delete([home.snapshot(number, MANIFEST_NAME), mine])
            for key in [key for key in stored.objects if key.startswith(home.snapshot(number))]:
                del stored.objects[key]
            stored.__dict__.pop("numbers", None)
    record.claimed, record.claim = 0, ""


def _write_proven(stored: StoredRun, key: str, data: bytes) -> None:
    stored.store.write_small(key, data)
    if stored.store.read_small(key, len(data)) != data:
        raise StoreError(f"{key}: {stored.store.url} holds other bytes than were sent", code="damaged")
