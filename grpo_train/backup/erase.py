"""Removing what a self-test backed up: only objects of runs that a root of its own has, proven by their identity.

A self-test with ``--to`` notes the destination in its directory, for ``grpo-train clean`` after a kill.
No command erases other backups: :mod:`~grpo_train.backup.prune` removes what newer snapshots contain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.layout import COMPLETE, Home
from grpo_train.backup.record import home_here
from grpo_train.backup.snapshot import Snapshot
from grpo_train.backup.snapshots import StoredRun
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.run_dir.files import atomic_write
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import read_bytes

SOURCES = {"training_runs": "launch.json", "eval_runs": "eval_config.yaml"}
"""Kinds that are erased, and the file that identifies one: written once, and hashed to its identity."""
ROOT = "root"
"""In the directory of a self-test: the root that it backs up."""
_NOTE = "destination"


@dataclass(frozen=True)
class Erased:
    """What was removed from a store, and what stays."""

    prefixes: list[str]
    """Folders of the runs and evaluations that were removed."""
    objects: int
    shared: list[str]
    """Folders of starting weights, which stay: other runs may share them."""


def note_destination(selftest: Path, name: str) -> None:
    """Record where a self-test backs up, before it does. Raises OSError."""
    atomic_write(selftest / _NOTE, name)


def noted_destination(selftest: Path) -> str:
    """The name that :func:`note_destination` recorded; "" without one. Raises OSError, Unreadable."""
    return (read_bytes(selftest / _NOTE, 4096) or b"").decode(errors="replace")


def homes_of(root: Path) -> list[tuple[Home, Path]]:
    """Where the runs and evaluations of a root are in every store, with the file that identifies each.

    Raises OSError, Unreadable.
    """
    sources = [file for kind, name in SOURCES.items() for file in sorted((root / kind).glob(f"[!.]*/{name}"))]
    return [(home_here(file.parent.parent.name, file.parent), file) for file in sources]


def erase(store: ObjectStore, root: Path) -> Erased:
    """Remove every object of the runs and evaluations of a root from a store.

    Nothing is removed unless each snapshot with a readable manifest names the identity and the very bytes of the file
    here. Raises StoreError (``not_ours`` for other bytes), OSError, Unreadable.
    """
    found = []
    shared: set[str] = set()
    for home, file in homes_of(root):
        stored = StoredRun(store, home)
        for manifest in (each.manifest for each in stored.snapshots() if each.manifest is not None):
            _prove(manifest, home, file)
            parts = (part for weights in manifest.weights for each in weights.files for part in each.parts)
            shared.update("/".join(part.key.split("/")[:2]) + "/" for part in parts)
        found.append(stored)
    prefixes, count = [], 0
    for stored in found:
        keys = sorted(key for key in stored.objects if key.startswith(stored.home.prefix))
        if keys:
            store.delete([key for key in keys if key.endswith(f"/{COMPLETE}")])  # from here on it is not complete
            store.delete([key for key in keys if not key.endswith(f"/{COMPLETE}")])
            prefixes.append(stored.home.prefix)
            count += len(keys)
        store.abort_stale_uploads(stored.home.prefix, 0.0)
    return Erased(prefixes, count, sorted(shared))


def _prove(manifest: Snapshot, home: Home, file: Path) -> None:
    here = sha256(file)
    there = [part.sha256 for each in manifest.files if each.path == file.name for part in each.parts]
    if manifest.identity != home.identity or there not in ([here], []):
        raise StoreError(f"{home.snapshot(manifest.number)} is not of {file.parent}", code="not_ours")
