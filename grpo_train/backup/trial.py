"""What a destination can be trusted with, found out by trying.

The rights and the disk are tried each time a destination is opened for writing. What a store does with checksums is
tried once and recorded on this machine, with the store's ID.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from grpo_train.backup.same_disk import MARKER, appears_below, existing, marker_name, names_in_store
from grpo_train.backup.store import ObjectStore, StoreError, Trust
from grpo_train.run_dir.files import atomic_write, read_json, utc_now
from grpo_train.run_dir.safe_json import Unreadable, parse_object

STORE_FILE = "grpo-store.json"
FORMAT = 1
_MAX_BYTES = 64 << 10
_MARKER_AGE_S = 86_400.0


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
