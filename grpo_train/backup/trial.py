"""What a destination can be trusted with, found out by trying.

The rights and the disk are tried each time a destination is opened for writing. What a store does with checksums is
tried once and recorded on this machine, with the store's ID.

A store may be another way into the file system of the root: Lambda's S3 adapter serves the NFS mount of the box, a
second mount shows the same export. So a file with a random name is written on either side and looked for on the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from grpo_train.backup.store import ObjectStore, StoreError, Trust
from grpo_train.run_dir.files import atomic_write, read_json, stat_of, utc_now
from grpo_train.run_dir.machine import read_mounts
from grpo_train.run_dir.safe_json import Unreadable, parse_object

STORE_FILE = "grpo-store.json"
FORMAT = 1
_MAX_BYTES = 64 << 10
_MARKER_AGE_S = 86_400.0
MARKER = "grpo-marker-"
_MAX_FOLDERS = 1_000
"""Folders at the top of a mount in which a marker is looked for."""


class Tried(ObjectStore, Protocol):
    """A store that can be tried."""

    identity: str
    """Address and path, the same for everybody who means this store."""
    location: str
    """The last parts of the path under which the store's objects would appear on a disk."""

    def is_on_disk_of(self, folder: Path) -> bool:
        """Whether the store is known to lie on the disk of an existing directory."""

    def sees(self, name: str) -> bool:
        """Whether a file is in the store or anywhere above its prefix."""

    def try_checksums(self) -> tuple[bool, bool]:
        """(computes_sha256, refuses_wrong_md5)."""

    def trust_checksums(self, computes_sha256: bool) -> None:
        """Use the SHA-256 checksums of a store that computes them."""


@dataclass(frozen=True)
class _Record:
    """What this machine knows of a destination."""

    store_id: str
    computes_sha256: bool = False
    refuses_wrong_md5: bool = False


def trust(store: Tried, root: Path) -> Trust:
    """Try a store that is to be written to. Raises StoreError naming the right that is missing."""
    stale = _stale_markers(store)
    record = _recorded(store)
    store_id = _read_id(store)
    if record and not store_id:  # a disk that is not mounted looks like an empty store
        raise StoreError(
            f"{store.url}: {STORE_FILE} is missing, but this store had one (ID {record.store_id}); mount the disk or "
            f"check the prefix. If the store was emptied on purpose, remove {_record_file(store)}",
            code="no_bucket",
        )
    same_disk = _try_rights_and_disk(store, root, stale)
    store_id = store_id or _create_id(store)
    if record is None or record.store_id != store_id:
        record = _Record(store_id, *store.try_checksums())
        _write(store, record)
    return Trust(store_id, record.computes_sha256, record.refuses_wrong_md5, same_disk)


def known_trust(store: Tried) -> Trust:
    """What is known of a store that is only read: nothing is written, and an unknown one is trusted with nothing."""
    store_id = _read_id(store) or ""
    record = _recorded(store)
    if record is None or record.store_id != store_id:
        record = _Record(store_id)
    return Trust(store_id, record.computes_sha256, record.refuses_wrong_md5, same_disk=True)


def _stale_markers(store: Tried) -> list[str]:
    """Markers that a kill left. This is the first request: it needs the right to list."""
    markers = list(store.entries(MARKER))
    now = store.now() if markers else 0.0
    return [entry.key for entry in markers if entry.modified < now - _MARKER_AGE_S]


def _try_rights_and_disk(store: Tried, root: Path, stale: list[str]) -> bool:
    """Write, read and delete a marker; returns whether store and root are on one disk."""
    name = marker_name()
    data = secrets.token_bytes(32)
    store.write_small(name, data)
    try:
        same = (
            store.is_on_disk_of(existing(root))
            or appears_below(root, f"{store.location}/{name}")
            or _is_seen(store, root)
        )
        store.read_back(name, len(data), hashlib.sha256(data).hexdigest())
        same = same or appears_below(root, f"{store.location}/{name}")
    finally:
        store.delete([name, *stale])
    return same


def _is_seen(store: Tried, root: Path) -> bool:
    """Whether the store shows a file that is written to the root; False where none can be written."""
    marker = existing(root) / f".{marker_name()}"
    try:
        marker.write_bytes(b"")
        return any(store.sees(name) for name in names_in_store(marker))
    except OSError:
        return False
    finally:
        with suppress(OSError):  # never written
            marker.unlink()


# ------------------------------------------------------------------------------------------------------ the ID


def _create_id(store: Tried) -> str:
    """Describe a new store; returns its ID."""
    text = json.dumps({"format": FORMAT, "store_id": secrets.token_hex(16), "created": utc_now()}, indent=1) + "\n"
    store.write_small(STORE_FILE, text.encode())
    return _read_id(store) or ""  # of two machines that create it at the same time, one wins


def _read_id(store: ObjectStore) -> str | None:
    """The ID of a store; None of a new one. Raises StoreError for a newer format, and when it is damaged."""
    try:
        facts = parse_object(store.read_small(STORE_FILE, _MAX_BYTES))
    except Unreadable as error:
        raise StoreError(f"{store.url}/{STORE_FILE}: {error}", code="damaged") from None
    except StoreError as error:
        if error.code == "missing":
            return None
        raise
    store_id = facts.get("store_id")
    if not isinstance(facts.get("format"), int) or not isinstance(store_id, str) or not store_id:
        raise StoreError(f"{store.url}/{STORE_FILE}: not the description of a store", code="damaged")
    if facts["format"] > FORMAT:
        raise StoreError(f"{store.url}: written by a newer version of grpo-train; upgrade it", code="damaged")
    return store_id


# -------------------------------------------------------------------------------------------------- the record


def _record_file(store: Tried) -> Path:
    import platformdirs

    digest = hashlib.sha256(store.identity.encode()).hexdigest()[:16]
    return Path(platformdirs.user_state_dir("grpo-tui")) / "destinations" / f"{digest}.json"


def _recorded(store: Tried) -> _Record | None:
    facts = read_json(_record_file(store)) or {}
    try:
        return _Record(str(facts["store_id"]), facts["computes_sha256"] is True, facts["refuses_wrong_md5"] is True)
    except KeyError:
        return None


def _write(store: Tried, record: _Record) -> None:
    file = _record_file(store)
    with suppress(OSError):  # tried again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps({"identity": store.identity, **asdict(record)}, indent=1) + "\n")


def marker_name() -> str:
    """A new name that no file has."""
    return MARKER + secrets.token_hex(16)


def on_same_device(one: Path, other: Path) -> bool:
    """Whether two existing directories are on one file system or one physical disk."""
    return bool(_disks(one) & _disks(other))


def appears_below(folder: Path, location: str) -> bool:
    """Whether an object appears as a file around ``folder``, which need not exist.

    ``location``: bucket (or the store's directory), prefix and key. The file system of ``folder`` may show it at its
    top or in a folder there, with or without the leading parts of the location.
    """
    names = list(_tails(location))
    return any(shows(place, name) for place in _places(folder) for name in names)


def shows(place: Path, name: str) -> bool:
    """Whether a directory shows a file, and not through another mount below it."""
    file, here = stat_of(place / name), stat_of(place)
    return file is not None and here is not None and file.st_dev == here.st_dev


def names_in_store(marker: Path) -> list[str]:
    """Keys under which a store that serves the file system of ``marker`` would have it."""
    top = mount_point(marker.parent)
    return list(_tails(str(Path(top.name) / marker.relative_to(top))))


def mount_point(folder: Path) -> Path:
    """The mount point of an existing directory's file system."""
    folder = folder.resolve()
    while not os.path.ismount(folder):
        folder = folder.parent
    return folder


def existing(folder: Path) -> Path:
    """The directory, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _tails(location: str) -> Iterator[str]:
    """``a/b/c``, ``b/c``, ``c``."""
    names = [name for name in location.split("/") if name]
    for start in range(len(names)):
        yield "/".join(names[start:])


def _places(folder: Path) -> Iterator[Path]:
    """The directories from ``folder`` up to its mount point, and the folders at the top of the mount."""
    here = existing(folder).resolve()
    top = mount_point(here)
    while here != top:
        yield here
        here = here.parent
    yield top
    with suppress(OSError), os.scandir(top) as items:  # another account's root
        for _, item in zip(range(_MAX_FOLDERS), items, strict=False):
            if item.is_dir(follow_symlinks=False) and not os.path.ismount(item.path):
                yield Path(item.path)


def _disks(folder: Path) -> set[str]:
    """What a directory is stored on: its device, what it is mounted from, and the physical disks below."""
    facts = os.stat(folder)
    found = {f"device {facts.st_dev}"}
    number = f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}"
    for source in _mount_sources(number):
        found.add(f"source {source}")
        if device := stat_of(source):
            found |= _physical(f"{os.major(device.st_rdev)}:{os.minor(device.st_rdev)}")
    return found | _physical(number)


def _mount_sources(number: str) -> Iterator[str]:
    """What a device is mounted from, such as ``/dev/sda1`` or ``server:/export``; not ``tmpfs`` and the like."""
    return (mount.source for mount in read_mounts() if mount.device == number and "/" in mount.source)


def _physical(number: str) -> set[str]:
    """The disks below a block device: of a partition its disk, of a mapped device those it maps to."""
    folder = Path("/sys/dev/block", number)
    if not folder.exists():
        return set()
    folder = folder.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    found = {f"disk {folder.name}"}
    for slave in (folder / "slaves").glob("*"):
        found |= _physical((slave / "dev").read_text().strip())
    return found
