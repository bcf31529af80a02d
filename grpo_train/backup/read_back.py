"""Which objects were read back and hashed, and when, so that no box reads an object twice.

``snapshots/000007/READ_BACK`` names objects of snapshot 7, each with the SHA-256 that it had and the time by the
store's clock. Every snapshot carries forward what was known before it. An object counts as read back only while the
store says that it was not stored again since; so a replaced object and a copied bucket are read again.

Whoever may write to the store may write this file, too, as they may remove the objects: it is believed where the
question is whether a box can be terminated, and never before a deletion, which reads everything itself. Without it, or
where it is damaged, objects are read once more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from grpo_train.backup.layout import READ_BACK
from grpo_train.backup.snapshot import MAX_MANIFEST_BYTES, Part, Snapshot
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import ObjectStore, StoredObject, StoreError
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.safe_json import Unreadable, parse_object

FORMAT = 1
_SLACK_S = 5.0
"""A store's times are in whole seconds, and its clock is estimated from them."""


@dataclass(frozen=True)
class Reading:
    """An object that had the right bytes when it was read back."""

    sha256: str
    time: float
    """When the reading began, by the store's clock."""


def clock_of(store: ObjectStore, clock: Clock = CLOCK) -> Callable[[], float]:
    """The store's clock, which is asked once."""
    now, began = store.now(), clock.monotonic()
    return lambda: now + clock.monotonic() - began


def readings_of(stored: StoredRun, parts: Iterable[Part]) -> dict[str, Reading]:
    """What is known of objects, by key; one that was stored again since is left out. Raises StoreError."""
    left = {part.key: part for part in parts}
    found: dict[str, Reading] = {}
    for mark in _marks(stored):
        if not left:
            break
        for key, reading in _read(stored.store, mark).items():
            part = left.get(key)
            if part and reading.sha256 == part.sha256 and _is_same(stored.entry(key), part, reading):
                found[key] = reading
                del left[key]
    return found


def unread(stored: StoredRun, snapshot: Snapshot) -> list[Part]:
    """Objects of a snapshot that were never read back, or stored again since. Raises StoreError."""
    parts = snapshot.parts()
    known = readings_of(stored, parts.values())
    return [part for key, part in parts.items() if key not in known]


def remember(stored: StoredRun, snapshot: Snapshot, fresh: Mapping[str, Reading]) -> float | None:
    """Write what is known of a snapshot's objects, ``fresh`` included.

    Returns when the first of them was read, by the store's clock; None unless all were. Trouble with the store costs
    nothing but a second reading.
    """
    parts = snapshot.parts()
    try:
        known = readings_of(stored, (part for key, part in parts.items() if key not in fresh))
        known |= {key: reading for key, reading in fresh.items() if key in parts}
        if not known:
            return None
        rows = {key: [reading.sha256, round(reading.time, 3)] for key, reading in sorted(known.items())}
        data = json.dumps({"format": FORMAT, "objects": rows}, indent=0, ensure_ascii=False) + "\n"
        stored.store.write_small(stored.home.snapshot(snapshot.number, READ_BACK), data.encode())
    except StoreError:  # a store that is read-only by now
        return None
    return min(reading.time for reading in known.values()) if len(known) == len(parts) else None


def _marks(stored: StoredRun) -> Iterator[StoredObject]:
    """The files of all snapshots, newest first; of an archived run then those that it had before."""
    for home in filter(None, (stored.home, stored.home.twin)):
        keys = [key for key in stored.objects if key.startswith(home.snapshots) and key.endswith(f"/{READ_BACK}")]
        yield from (stored.objects[key] for key in sorted(keys, reverse=True))


def _read(store: ObjectStore, mark: StoredObject) -> dict[str, Reading]:
    """What a file says; nothing of a time after it was written."""
    try:
        document = parse_object(store.read_small(mark.key, MAX_MANIFEST_BYTES))
    except Unreadable:
        return {}
    except StoreError as error:  # removed since it was listed
        if error.code in ("missing", "damaged"):
            return {}
        raise
    rows = document.get("objects")
    if document.get("format") != FORMAT or not isinstance(rows, dict):
        return {}
    found = {}
    for key, row in rows.items():
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
            when = to_float(row[1])
            if when is not None and when <= mark.modified + _SLACK_S:
                found[key] = Reading(row[0], when)
    return found


def _is_same(entry: StoredObject | None, part: Part, reading: Reading) -> bool:
    """Whether the store holds the object that was read."""
    return entry is not None and entry.size == part.size and entry.modified <= reading.time + _SLACK_S
