"""The snapshots of a run in a store: which are complete, why others are not, and which objects were read back.

``snapshots/000007/READ_BACK`` names objects of snapshot 7, each with the SHA-256 that it had and the time by the
store's clock. Every snapshot carries forward what was known before it. An object counts as read back only while the
store says that it was not stored again since; so a replaced object and a copied bucket are read again.

Whoever may write to the store may write this file, too, as they may remove the objects: it is believed where the
question is whether a box can be terminated, and never before a deletion, which reads everything itself. Without it, or
where it is damaged, objects are read once more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from grpo_train.backup.snapshot import (
    ARCHIVED_RUNS,
    CLAIM,
    COMPLETE,
    KINDS,
    MANIFEST_NAME,
    MARK,
    MAX_MANIFEST_BYTES,
    READ_BACK,
    SNAPSHOTS,
    Home,
    Part,
    Snapshot,
    home_of,
    parse_snapshot,
)
from grpo_train.backup.store import ObjectStore, StoredObject, StoreError
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import prefixed
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.safe_json import Unreadable, leave_out, parse_object

_MAX_COMPLETE_BYTES = 4096
_LOOK_BACK = 3
"""Snapshots; a run without evaluations may have hundreds."""
READ_BACK_FORMAT = 1
_SLACK_S = 5.0
"""A store's times are in whole seconds, and its clock is estimated from them."""


@dataclass(frozen=True)
class StoredSnapshot:
    """One folder of ``snapshots/``."""

    home: Home
    number: int
    state: str
    """``complete``, ``incomplete`` (never finished) or ``damaged``."""
    reason: str = ""
    modified: float = 0.0
    """When it was completed (else begun), by the store's clock."""
    manifest: Snapshot | None = None
    """Of a complete one."""
    marked: float | None = None
    """When ``prune-backups`` marked it for removal, by the store's clock."""

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"


class StoredRun:
    """A run in a store, by one listing of its keys."""

    def __init__(self, store: ObjectStore, home: Home) -> None:
        self.store, self.home = store, home
        places = [home.prefix, home.twin.prefix] if home.twin else [home.prefix]
        self.objects: dict[str, StoredObject] = {entry.key: entry for place in places for entry in store.entries(place)}
        """Every object below the run's prefix, by key; of an archived run also those of its twin."""
        self._read: dict[int, StoredSnapshot] = {}

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of all snapshots, begun ones too, in order."""
        start = len(self.home.snapshots)
        names = {key[start:].partition("/")[0] for key in self.objects if key.startswith(self.home.snapshots)}
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) == 6)

    def snapshot(self, number: int) -> StoredSnapshot:
        """A snapshot; every object that it names exists with the right size, or it is damaged. Raises StoreError."""
        if number not in self._read:
            self._read[number] = self._open(number)
        return self._read[number]

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """All of them, newest first."""
        return (self.snapshot(number) for number in reversed(self.numbers))

    def newest(self) -> StoredSnapshot | None:
        """The newest complete snapshot."""
        return self._newest(lambda snapshot: snapshot.is_complete)

    def newest_readable(self) -> StoredSnapshot | None:
        """The newest snapshot with a proven manifest, even if objects it names are missing."""
        return self._newest(lambda snapshot: snapshot.manifest is not None)

    def _newest(self, is_wanted: Callable[[StoredSnapshot], bool]) -> StoredSnapshot | None:
        for found in self.snapshots():
            if is_wanted(found):
                return found
            if found.state == "damaged":
                leave_out(self.home.snapshot(found.number), found.reason)
        return None

    def problem_of(self, part: Part) -> str:
        """Why an object cannot be the named one, by the listing; "" if it may be."""
        if (entry := self.entry(part.key)) is None:
            return "is missing"
        return "" if entry.size == part.size else f"has {entry.size} bytes instead of {part.size}"

    def forget(self, start: str) -> None:
        """Drop deleted keys from the listing."""
        for key in [key for key in self.objects if key.startswith(start)]:
            del self.objects[key]
        self.__dict__.pop("numbers", None)
        self._read.clear()

    def entry(self, key: str) -> StoredObject | None:
        """An object of this run, or one that it shares with others."""
        if key not in self.objects and not key.startswith(self.home.prefix) and (found := self.store.head(key)):
            self.objects[key] = found
        return self.objects.get(key)

    def _open(self, number: int) -> StoredSnapshot:
        key = self.home.snapshot(number)
        marked = self.objects.get(key + MARK)
        complete, manifest = self.objects.get(key + COMPLETE), self.objects.get(key + MANIFEST_NAME)
        begun = complete or manifest or next((e for k, e in self.objects.items() if k.startswith(key + CLAIM)), None)
        modified, mark = begun.modified if begun else 0.0, marked.modified if marked else None

        def found(state: str, reason: str, snapshot: Snapshot | None = None) -> StoredSnapshot:
            return StoredSnapshot(self.home, number, state, reason, modified, snapshot, mark)

        if not complete:
            if marked:
                return found("incomplete", "a prune was killed while it removed it; rerun grpo-train prune-backups")
            return found("incomplete", "it was never completed; the next backup of this run removes it")
        if not manifest:
            ends = "grpo-train prune-backups removes it once a newer snapshot is complete"
            return found("damaged", f"{COMPLETE} without {MANIFEST_NAME}; {ends}")
        try:
            snapshot = read_manifest(self.store, self.home, number)
        except (StoreError, Unreadable) as error:
            if isinstance(error, StoreError) and error.code not in ("missing", "damaged"):
                raise
            return found("damaged", str(error))
        for part in snapshot.parts().values():
            if problem := self.problem_of(part):
                return found("damaged", f"{part.key} {problem}", snapshot)
        return found("complete", "", snapshot)


def read_manifest(store: ObjectStore, home: Home, number: int) -> Snapshot:
    """The manifest of a snapshot, proven by ``COMPLETE``. Raises StoreError and Unreadable."""
    said = store.read_small(home.snapshot(number, COMPLETE), _MAX_COMPLETE_BYTES)
    data = store.read_small(home.snapshot(number, MANIFEST_NAME), MAX_MANIFEST_BYTES)
    where = home.snapshot(number, MANIFEST_NAME)
    if said != completion_of(data):
        raise StoreError(f"{where}: its bytes differ from the SHA-256 in {COMPLETE}", code="damaged")
    with prefixed(f"{where}: "):
        snapshot = parse_snapshot(data)
    if (snapshot.kind, snapshot.name, snapshot.identity, snapshot.number) != (*_facts(home), number):
        raise Unreadable(f"{where}: it belongs to another run or number")
    for part in snapshot.parts().values():
        inside = part.key.startswith((home.prefix, "weights/", *([home.twin.prefix] if home.twin else [])))
        if not inside or f"/{SNAPSHOTS}/" in part.key[: len(home.prefix) + len(SNAPSHOTS) + 1]:
            raise Unreadable(f"{where}: {part.key!r} lies outside this run")
    return snapshot


def completion_of(manifest: bytes) -> bytes:
    """Content of ``COMPLETE``, as ``sha256sum --check`` reads it."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST_NAME}\n".encode()


def homes(store: ObjectStore, kind: str = "") -> list[Home]:
    """Every run in a store, or those of one kind."""
    kinds = (kind,) if kind else KINDS
    found = (home_of(each, name) for each in kinds for name in store.folders(f"{each}/"))
    return [home for home in found if home]


def homes_named(store: ObjectStore, name: str, kinds: tuple[str, ...] = KINDS) -> list[Home]:
    """Runs with this name, or whose folder in the store is this name: two boxes may both have one."""
    found = (home for kind in kinds for home in homes(store, kind))
    return [home for home in found if name in (home.name, f"{home.name}--{home.identity}", home.identity)]


def stored_evaluations(store: ObjectStore, home: Home, number: int | None = None) -> list[Home]:
    """The evaluations of a run as of a snapshot. ``None``: the newest, with those that it got in the archive."""
    snapshots = StoredRun(store, home).snapshots()
    found = evaluation_homes(each.manifest for each in snapshots if number is None or each.number <= number)
    if number is None and home.kind == "training_runs":
        archived = StoredRun(store, Home(ARCHIVED_RUNS, home.name, home.identity)).newest()
        found += evaluation_homes([archived.manifest]) if archived else []
    return list(dict.fromkeys(found))


def evaluation_homes(manifests: Iterable[Snapshot | None]) -> list[Home]:
    """The evaluations that the first of some snapshots names, newest first.

    A cleanup of an older version made a snapshot that names none: then those of one shortly before it.
    """
    names = next((each.evaluations for each in islice(manifests, _LOOK_BACK) if each and each.evaluations), ())
    return [found for name in names if (found := home_of("eval_runs", name))]


def owners(snapshot: Snapshot) -> Mapping[str, list[str]]:
    """Each object of a snapshot to the paths whose bytes it holds."""
    found: dict[str, list[str]] = {}
    for file in snapshot.files:
        for part in (*file.parts, *file.replaced):
            found.setdefault(part.key, []).append(file.path)
    for group in snapshot.groups():
        for file in group.files:
            for part in file.parts:
                found.setdefault(part.key, []).append(f"{group.path}/{file.path}")
    return found


def _facts(home: Home) -> tuple[str, str, str]:
    return home.kind, home.name, home.identity


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
        data = json.dumps({"format": READ_BACK_FORMAT, "objects": rows}, indent=0, ensure_ascii=False) + "\n"
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
    if document.get("format") != READ_BACK_FORMAT or not isinstance(rows, dict):
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
